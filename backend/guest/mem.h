/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory: the VMM's DMA map, and the only way to read and write it.
 *
 * The map is an immutable sorted array behind an atomic pointer.  The main
 * thread replaces it; workers read it.  A pointer obtained from guest_ptr() is
 * valid until the caller's next quiescent point (worker) or until the main
 * loop runs again (main thread).
 *
 * Of a file as much is mapped as the regions need, and some more; they index into
 * that.  What it takes of the address space is counted (budget.h), and given back
 * when the reaper has unmapped it.  A page fault beyond the backing (SIGBUS: holes,
 * exhausted huge pages, a truncated file) is survived: the handler maps anonymous
 * memory there and calls guest_fault().
 */
#ifndef PVRDMAD_GUEST_MEM_H
#define PVRDMAD_GUEST_MEM_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "guest/dirty.h"

#define GUEST_MEM_MAX_REGIONS 4096u

struct budget;
struct guest;
struct guest_file;

struct guest_region {
    uint64_t gpa;
    uint64_t size; /* bytes; gpa + size - 1 does not wrap */
    uint8_t *hva;  /* NULL: the VMM gave no descriptor, not accessible */
    bool writable;
    struct guest_file *file;
};

struct guest_map {
    uint64_t generation; /* differs from every earlier map; 0: the empty one at first */
    unsigned n;
    struct guest_region region[]; /* ascending, disjoint */
};

struct guest_mem {
    struct guest *guest;
    _Atomic(struct guest_map *) map;   /* never NULL between init and fini */
    _Atomic(struct dirty_log *) dirty; /* NULL: no log is kept */
    bool require_sealed;
    /* Main thread: */
    GPtrArray *files; /* of struct guest_file; between init and fini */
    unsigned max_files;
    struct budget *budget; /* outlives fini while memory is being unmapped */
    uint64_t refused;      /* ranges, for want of budget; since the daemon's start */
};

/* Install the SIGBUS handler; once per process. */
void guest_mem_init_process(void);

void guest_mem_init(struct guest_mem *mem, struct guest *guest, bool require_sealed);
/* What it may take, if not the defaults; after init.  0: the default. */
void guest_mem_limit(struct guest_mem *mem, uint64_t max_bytes, unsigned max_files);
/* Unmap all; the caller guarantees that no worker uses the VM any more. */
void guest_mem_fini(struct guest_mem *mem);

/*
 * Is so much of the guest's former memory still being unmapped that no VMM should be
 * taken?  Also before init.
 */
bool guest_mem_piled_up(struct guest_mem *mem);
/* The guest is about to be freed. */
void guest_mem_forget(struct guest_mem *mem);

/*
 * Add a range.  @fd is -1 or a descriptor, which stays the caller's.
 * @flags: VFIO_USER_DMA_*_FLAG.  Returns 0 or a positive errno: EEXIST
 * (overlap), EINVAL, EPERM (descriptor not acceptable), ENOSPC (a limit; the log
 * says which), ENOMEM.
 */
int guest_mem_map(struct guest_mem *mem, int fd, uint64_t offset, uint64_t gpa,
                  uint64_t size, uint32_t flags);

/*
 * Remove an exact range, or everything (@all).  Waits until no worker uses it
 * (grace_wait); unmapping then is the reaper's.  Returns 0, ENOENT or EINVAL.
 */
int guest_mem_unmap(struct guest_mem *mem, uint64_t gpa, uint64_t size, bool all);

/*
 * The @i-th range as it was given, for a daemon that takes this one's place.  @fd stays
 * ours; -1: the VMM gave none, or, if false is returned, none was kept.  Main thread.
 */
struct guest_mem_range {
    uint64_t offset, gpa, size;
    uint32_t flags;
    int fd;
};
unsigned guest_mem_ranges(struct guest_mem *mem);
bool guest_mem_range(struct guest_mem *mem, unsigned i, struct guest_mem_range *out);

/* Numbers for reports and leak checks; before init and after fini too. */
struct guest_mem_stats {
    unsigned regions, files;
    uint64_t ram;     /* of the guest, within its reach */
    uint64_t bytes;   /* of our address space: mapped and in use */
    uint64_t pending; /* being unmapped */
    uint64_t refused;
};
void guest_mem_get_stats(struct guest_mem *mem, struct guest_mem_stats *st);

static inline const struct guest_region *guest_map_find(const struct guest_map *map,
                                                        uint64_t gpa)
{
    unsigned lo = 0, hi = map->n;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;
        const struct guest_region *r = &map->region[mid];

        if (gpa < r->gpa) {
            hi = mid;
        } else if (gpa - r->gpa >= r->size) {
            lo = mid + 1;
        } else {
            return r;
        }
    }
    return NULL;
}

/*
 * Host address of guest-physical [gpa, gpa + len), or NULL if it is not mapped
 * contiguously (or not writable and @write is set).
 */
static inline void *guest_ptr(struct guest_mem *mem, uint64_t gpa, uint64_t len,
                              bool write)
{
    const struct guest_map *map = atomic_load_explicit(&mem->map, memory_order_acquire);
    const struct guest_region *r = guest_map_find(map, gpa);

    if (!r || !r->hva || len > r->size - (gpa - r->gpa) || (write && !r->writable)) {
        return NULL;
    }
    return r->hva + (gpa - r->gpa);
}

/*
 * A host address found under one generation of the map may be used again, after
 * quiescent points too, as long as the generation is still the same.
 */
static inline uint64_t guest_mem_generation(struct guest_mem *mem)
{
    return atomic_load_explicit(&mem->map, memory_order_acquire)->generation;
}

/*
 * Every store to guest memory is followed by this call, before anything tells of it, so
 * that a dirty log has the page after its new content is there (dirty.h).
 */
static inline void guest_mark_dirty(struct guest_mem *mem, uint64_t gpa, uint64_t len)
{
    struct dirty_log *log = atomic_load_explicit(&mem->dirty, memory_order_acquire);

    if (G_UNLIKELY(log != NULL)) {
        dirty_mark(log, gpa, len);
    }
}

/*
 * Stores of single words, each marked.  @p is the host address of @gpa, which must be
 * writable and aligned.  guest_store32() releases; the others are full barriers.
 */
static inline void guest_store32(struct guest_mem *mem, uint64_t gpa, uint32_t *p,
                                 uint32_t value)
{
    __atomic_store_n(p, value, __ATOMIC_RELEASE);
    guest_mark_dirty(mem, gpa, sizeof(*p));
}

static inline uint64_t guest_add64(struct guest_mem *mem, uint64_t gpa, uint64_t *p,
                                   uint64_t value)
{
    uint64_t old = __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST);

    guest_mark_dirty(mem, gpa, sizeof(*p));
    return old;
}

/* Returns what was there: @want if @value was stored. */
static inline uint64_t guest_cas64(struct guest_mem *mem, uint64_t gpa, uint64_t *p,
                                   uint64_t want, uint64_t value)
{
    __atomic_compare_exchange_n(p, &want, value, false, __ATOMIC_SEQ_CST,
                                __ATOMIC_SEQ_CST);
    guest_mark_dirty(mem, gpa, sizeof(*p));
    return want;
}

/*
 * Copy in / out.  Return false if the range is not accessible, or what came in is not to
 * be believed.
 */
bool guest_read(struct guest_mem *mem, uint64_t gpa, void *dst, uint64_t len);

static inline bool guest_write(struct guest_mem *mem, uint64_t gpa, const void *src,
                               uint64_t len)
{
    void *p = guest_ptr(mem, gpa, len, true);

    if (!p) {
        return false;
    }
    memcpy(p, src, len);
    guest_mark_dirty(mem, gpa, len);
    return true;
}

#endif /* PVRDMAD_GUEST_MEM_H */
