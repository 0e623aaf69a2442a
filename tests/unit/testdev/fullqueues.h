/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * CQs, SRQs and QPs of a device that has all there can be (fulldev.h), with work of every
 * kind under way.
 */
#ifndef TESTS_FULLQUEUES_H
#define TESTS_FULLQUEUES_H

#include "testdev.h"

/* Handles, in the order in which they are made. */
enum {
    FULL_CQ_KERNEL = 1, /* armed in the daemon's region */
    FULL_CQ_EXT,        /* stamps, vector 5, an event is held back */
    FULL_CQ_USER,       /* failed */
};
enum { FULL_SRQ_EXT = 1, FULL_SRQ_USER };
enum {
    FULL_QP_GONE = 1,
    FULL_QP_WINDOW, /* two in flight, one in progress; waits for a receive */
    FULL_QP_LOCAL,  /* a LOCAL_INV is under way */
    FULL_QP_REG,    /* a FAST_REG */
    FULL_QP_BIND,   /* a BIND_MW */
    FULL_QP_SRQ,    /* in ERR for a message, with a receive, atomics, a key taken away */
    FULL_QP_UD,     /* in SQD */
    FULL_QP_UC,     /* its address is not the VM's any more */
    FULL_QP_GSI,    /* in RESET */
};

/* Make them.  GIDs 0 and 3, vector 5 and the PDs are there; @pd is @uctx's. */
void fullqueues_make(struct testdev *td, uint32_t kernel_pd, uint32_t uctx, uint32_t pd);
/* Have them work; the data path is paused. */
void fullqueues_work(struct testdev *td);

/* QP @handle. */
struct qp *fullqueues_qp(struct testdev *td, uint32_t handle);

#endif /* TESTS_FULLQUEUES_H */
