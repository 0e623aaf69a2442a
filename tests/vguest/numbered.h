/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Numbered messages from one guest to another, of any type of queue pair, so that what
 * became of each can be told: they arrive whole and never twice, but for datagrams in
 * order, and of a reliable connection all of them do.
 *
 * Everything here aborts the test on a surprise.
 */
#ifndef NUMBERED_H
#define NUMBERED_H

#include "vgtest.h"

#define NUMBERED_QPS 4u

/* To the QPs of side 1, from one each of side 0. */
struct numbered {
    struct vgt_pair p;
    enum pvrdma_qp_type type;
    unsigned n_qps;
    struct vg_srq *srq; /* or NULL */
    struct vg_qp *tx[NUMBERED_QPS], *rx[NUMBERED_QPS];
    /* posted, complete, to arrive */
    uint64_t sent[NUMBERED_QPS], done[NUMBERED_QPS], next[NUMBERED_QPS];
    GByteArray *came[NUMBERED_QPS]; /* datagrams: a bit for each number */
    uint64_t arrived;
};

/*
 * Of VMs @a and @b, which are two; @shared: all receive from one queue.  Of type GSI it
 * is the one queue pair that a guest has.
 */
void numbered_open(struct numbered *n, unsigned a, unsigned b, enum pvrdma_qp_type type,
                   bool shared, const struct vgt_opts *opts);
/* Until @arrived have arrived in all, the last ones of them maybe not complete. */
void numbered_run(struct numbered *n, uint64_t arrived);
/* What is under way yet. */
void numbered_end(struct numbered *n);
/* How many are known not to have come: later ones have. */
uint64_t numbered_lost(const struct numbered *n);
void numbered_close(struct numbered *n);

#endif /* NUMBERED_H */
