/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device with one connected queue pair whose stream ends at a socket of the test's:
 * what a peer says there is the test's to choose, byte by byte.  For the unit test and
 * the fuzzer of what transport "tcp" does with it.
 *
 * The VM's worker serves it as ever, and, from within streamdev_on_worker(), when the
 * test says so and not otherwise.  No grace period ends in there.
 */
#ifndef TESTS_STREAMDEV_H
#define TESTS_STREAMDEV_H

#include "testdev.h"
#include "transport/iwarp/poll.h"

#define STREAMDEV_WR    64u
#define STREAMDEV_PAGES 16u
#define STREAMDEV_VA    0x7f0000010080ull
#define STREAMDEV_LEN   (STREAMDEV_PAGES * 4096u - 0x100u)
/* What all memory but the queues is full of, at first. */
#define STREAMDEV_CANARY 0xc3

/* Three MRs at the same address: for all, to be read only, and fast, not registered. */
enum { STREAMDEV_ALL, STREAMDEV_READ, STREAMDEV_FAST, STREAMDEV_MRS };

struct streamdev {
    struct testdev *td;
    struct qp *qp;
    int fd; /* the peer's end */
    uint32_t pd, cq, qpn;
    uint32_t mr[STREAMDEV_MRS], key[STREAMDEV_MRS];
    uint32_t posted, received; /* receives, and those that have completed */
    /* Guest memory, which stays: */
    uint64_t qp_pdir, qp_first; /* header, 4 send pages, 2 receive pages */
    uint64_t cq_pdir, cq_first; /* header, 1 page */
    uint64_t mr_pdir[STREAMDEV_MRS], mr_first[STREAMDEV_MRS];
    uint64_t beside[STREAMDEV_MRS + 1]; /* a page before and behind each */
};

struct streamdev_opts {
    uint32_t type; /* enum pvrdma_qp_type: RC or UC */
    bool responder;
    struct framing framing;
    int sndbuf; /* bytes, of the device's socket; 0: the kernel's choice */
};

/* Once per process; there is one such device. */
void streamdev_start(struct streamdev *d);
void streamdev_stop(struct streamdev *d);

/* The objects, memory as at first, and the stream; the queue pair is in RTS. */
void streamdev_open(struct streamdev *d, const struct streamdev_opts *o);
void streamdev_close(struct streamdev *d);

/* Call @fn on the worker's thread and wait for its end. */
void streamdev_on_worker(struct streamdev *d, void (*fn)(void *arg), void *arg);
/* From there: the VM's turns, as long as what has come gets less.  NULL: it is broken. */
struct stream *streamdev_serve(struct streamdev *d);
/* Bytes that it has not read. */
int streamdev_unread(const struct streamdev *d);
/* Its stream; with the token, or on the worker. */
struct stream *streamdev_stream(const struct streamdev *d);

/* A receive of @len bytes at the MR's begin; no more than there is room for. */
void streamdev_post_recv(struct streamdev *d, uint32_t len);
/* @h with @len bytes of the MR, from its begin on, is posted; likewise. */
void streamdev_post_send(struct streamdev *d, struct pvrdma_sq_wqe_hdr h, uint32_t len);
/* The fast MR with @key from now on, with all rights. */
void streamdev_register(struct streamdev *d, uint32_t key);
/* The next completion; false: there is none. */
bool streamdev_poll(struct streamdev *d, struct pvrdma_cqe *c);

/* Append a frame. */
void streamdev_frame(GByteArray *to, const uint8_t *ulpdu, uint32_t len, bool crc_on);
/* One of @s with @len bytes of value @fill. */
void streamdev_segment(GByteArray *to, const struct rdmap_segment *s, uint8_t fill,
                       uint32_t len, bool crc_on);

#endif /* TESTS_STREAMDEV_H */
