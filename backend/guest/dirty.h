/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The dirty log: which pages of a guest's memory the daemon has stored to, for whoever
 * copies that memory while the guest runs.  dirty.c has the theory.
 */
#ifndef PVRDMAD_GUEST_DIRTY_H
#define PVRDMAD_GUEST_DIRTY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct guest_mem;
struct handover_in;
struct handover_out;
struct state_in;

/* Of one log. */
#define DIRTY_MAX_RANGES 16u
#define DIRTY_MAX_BYTES  (UINT64_C(1) << 46)

/* Guest-physical; whole pages.  It need not be mapped. */
struct dirty_span {
    uint64_t gpa, size;
};

/* Words of bits that go together to another daemon: a page of them. */
#define DIRTY_CHUNK 512u

struct dirty_range {
    struct dirty_span at;
    _Atomic uint64_t *bits; /* one per page */
    _Atomic uint64_t *used; /* one per DIRTY_CHUNK words of bits: may there be marks? */
};

struct dirty_log {
    int fd;        /* of the file that the bits are in; -1: none */
    int guard;     /* of the file's mapping, sigbus.h; -1: none */
    uint8_t *bits; /* of all ranges, one behind the other from whole pages on */
    uint64_t size; /* of them, in bytes */
    unsigned n;
    struct dirty_range range[DIRTY_MAX_RANGES];
};

/*
 * Main thread, all of them.  Begin a log of pages in @span: every store from the return
 * on is in it.  0, EBUSY (there is one), EINVAL (empty, overlapping, too much), ENOMEM.
 */
int guest_dirty_start(struct guest_mem *mem, const struct dirty_span *span, unsigned n);

/*
 * The same, whose bits are in a memfd that the client has, too (pvrdma/dirty.h).  *fd is
 * the caller's; the log does not need it.  EFBIG: more than one of these can have; with
 * an errno of the kernel's there is no file to be had.
 */
int guest_dirty_share(struct guest_mem *mem, const struct dirty_span *span, unsigned n,
                      int *fd);

/*
 * Take the marks in [gpa, gpa + size) out of the log and call @page for each.  What the
 * guest's memory holds from then on includes the stores that were marked.  ENOENT: not
 * within one span of a log.
 */
int guest_dirty_collect(struct guest_mem *mem, uint64_t gpa, uint64_t size,
                        void (*page)(void *opaque, uint64_t gpa), void *opaque);

/* End it, if there is one.  On return nobody uses it. */
void guest_dirty_stop(struct guest_mem *mem);

/*
 * The log of a guest that stands still goes to another daemon, with its marks; that one's
 * is there before anything is stored.  Nothing changes here; @s fails there.
 */
void dirty_hand_over(const struct guest_mem *mem, struct handover_out *h);
void dirty_adopt(struct guest_mem *mem, struct handover_in *h, struct state_in *s);

/* [gpa, gpa + len) was stored to.  For guest_mark_dirty(). */
void dirty_mark(struct dirty_log *log, uint64_t gpa, uint64_t len);

/* No thread uses it any more. */
void dirty_free(struct dirty_log *log);

#endif /* PVRDMAD_GUEST_DIRTY_H */
