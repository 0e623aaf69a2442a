/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Binding and invalidating by a QP, for programs that use datacheck.h.  Each posts one
 * request, of which the next completion of the QP's send CQ must be.
 */
#ifndef TESTS_VM_MWSTEPS_H
#define TESTS_VM_MWSTEPS_H

#include <infiniband/verbs.h>

struct mw_actor {
    struct ibv_qp *qp;
    /* How it posts. */
    void (*post)(struct ibv_send_wr *wr);
};

/* Of either type; the window has its new key if the returned completion is a success. */
struct ibv_wc mw_bind(const struct mw_actor *by, struct ibv_mw *mw,
                      struct ibv_mw_bind_info info);

void mw_local_inv(const struct mw_actor *by, uint32_t rkey);

/* @wc is that of receive @id: a SEND with invalidate of @len bytes ended @rkey. */
void mw_invalidated(const struct ibv_wc *wc, uint64_t id, uint32_t len, uint32_t rkey);

#endif /* TESTS_VM_MWSTEPS_H */
