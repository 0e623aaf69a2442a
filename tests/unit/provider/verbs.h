/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What the tests of the provider on a faked kernel share: a context with a PD and a CQ,
 * and the device, which the test plays.  test-verbs.c has it, and lists all tests.
 */
#ifndef VERBS_H
#define VERBS_H

#include <glib.h>

#include "fake-kernel.h"

struct rig {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    uint64_t cq_addr;
    bool ext;
};

struct words {
    uint32_t *tx_prod, *tx_cons, *rx_prod, *rx_cons, *arm;
};

/* Reads bytes as the device would; memcheck complains if they are undefined. */
void device_reads(const void *p, size_t n);
struct words qp_words(const struct rig *r, uint32_t handle);
struct words cq_words(const struct rig *r);
/* The next unconsumed send WQE of a QP; NULL if there is none. */
struct pvrdma_sq_wqe_hdr *device_take(const struct rig *r, uint32_t handle);
/* Of a receive of that QP; @name: what the device calls it. */
void device_received(const struct rig *r, uint32_t handle, uint64_t name);
/* The program posts a receive, the device takes it, and it completes. */
void device_complete(const struct rig *r, struct ibv_qp *qp, uint64_t wr_id);
/* Of a send request; @src_qp: what the device has there. */
void device_sent(const struct rig *r, uint32_t handle, uint64_t wr_id, uint32_t src_qp);
/* With another CQ for what is sent. */
/* To RTS, with the next handle. */
struct ibv_qp *make_qp_with(const struct rig *r, struct ibv_qp_init_attr *attr);
struct ibv_qp *make_qp_of(const struct rig *r, uint32_t depth, struct ibv_cq *send_cq);
struct ibv_qp *make_qp(const struct rig *r, uint32_t depth);
struct ibv_send_wr *list_of(struct ibv_send_wr *wr, struct ibv_sge *sge, unsigned n,
                            uint64_t first_id);
/* Where the libibverbs in use would find comp_mask. */
uint32_t mask_seen(struct pv_qp *qp);
struct pv_qp *make_qp_ex_of(struct rig *r, enum ibv_qp_type type, uint64_t ops);
struct pv_qp *make_qp_ex(struct rig *r, uint64_t ops);

/* Tests of other files, by their names in the list. */
void test_destroy_waits(struct rig *r, gconstpointer data);
void test_handle_in_poll(struct rig *r, gconstpointer data);
void test_destroy_in_poll(struct rig *r, gconstpointer data);
void test_threads(struct rig *r, gconstpointer data);
void test_churn(struct rig *r, gconstpointer data);
void test_gone(struct rig *r, gconstpointer data);
void test_gone_ex(struct rig *r, gconstpointer data);
void test_gone_late(struct rig *r, gconstpointer data);
void test_gone_two_cqs(struct rig *r, gconstpointer data);
void test_bad_names(struct rig *r, gconstpointer data);
void test_resize(struct rig *r, gconstpointer data);
void test_resize_sweep(struct rig *r, gconstpointer data);
void test_resize_ex(struct rig *r, gconstpointer data);
void test_arm_in_poll(struct rig *r, gconstpointer data);
void test_resize_threads(struct rig *r, gconstpointer data);
void test_wr(struct rig *r, gconstpointer data);
void test_wr_ud(struct rig *r, gconstpointer data);
void test_wr_uc(struct rig *r, gconstpointer data);
void test_windows(struct rig *r, gconstpointer data);

#endif /* VERBS_H */
