/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the unit tests of the data path share: a device with one GID, QPs of it that
 * are connected to an address of the test's choice, and calls on a worker.
 */
#ifndef TESTS_QPFIX_H
#define TESTS_QPFIX_H

#include "../testdev/testdev.h"
#include "datapath/engine.h"

static const struct pvrdma_gid qpfix_gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 1}};
static const struct pvrdma_gid qpfix_peer_gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 2}};

struct qpfix {
    struct testdev *td;
    uint32_t pd, cq;
};

static inline void qpfix_open(struct qpfix *f, const char *name)
{
    struct pvrdma_cmd_create_bind req = {.mtu = 1024,
                                         .vlan = 0xfff,
                                         .gid = qpfix_gid,
                                         .gid_type = PVRDMA_GID_TYPE_ROCE_V2};

    f->td = testdev_new(name);
    testdev_up(f->td);
    f->pd = testdev_pd(f->td, 0);
    f->cq = testdev_cq(f->td, 0, 64);
    g_assert_cmpuint(testdev_command(f->td, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req)),
                     ==, 0);
}

static inline struct qp *qpfix_qp(struct qpfix *f)
{
    struct qp *qp = id_table_get(&f->td->vm.objects.qp, testdev_qp(f->td, f->pd, f->cq));

    if (!qp) {
        g_error("the new QP is not there");
    }
    return qp;
}

static inline void qpfix_modify(struct qpfix *f, struct qp *qp, uint32_t mask,
                                struct pvrdma_qp_attr a)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = qp->handle, .attr_mask = PVRDMA_QP_STATE | mask, .attrs = a};

    g_assert_cmpuint(testdev_command(f->td, PVRDMA_CMD_MODIFY_QP, &req, sizeof(req)), ==,
                     0);
}

/* From RESET to RTR: connected to QP @dqpn of @dgid, which begins with @rq_psn. */
static inline void qpfix_to_rtr(struct qpfix *f, struct qp *qp,
                                const struct pvrdma_gid *dgid, uint32_t dqpn,
                                uint32_t rq_psn)
{
    qpfix_modify(f, qp, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS,
                 (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_INIT,
                                         .port_num = 1,
                                         .qp_access_flags = PVRDMA_ACCESS_REMOTE_WRITE});
    qpfix_modify(
        f, qp,
        PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
            PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER,
        (struct pvrdma_qp_attr){
            .qp_state = PVRDMA_QPS_RTR,
            .path_mtu = PVRDMA_MTU_1024,
            .dest_qp_num = dqpn,
            .rq_psn = rq_psn,
            .max_dest_rd_atomic = 4,
            .min_rnr_timer = 1,
            .ah_attr = {.dgid = *dgid, .hop_limit = 64, .ah_flags = 1, .port_num = 1}});
}

static inline void qpfix_to_rts(struct qpfix *f, struct qp *qp, uint8_t rnr_retry)
{
    qpfix_modify(f, qp,
                 PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT | PVRDMA_QP_RNR_RETRY |
                     PVRDMA_QP_SQ_PSN | PVRDMA_QP_MAX_RD_ATOMIC,
                 (struct pvrdma_qp_attr){.qp_state = PVRDMA_QPS_RTS,
                                         .timeout = 14,
                                         .retry_cnt = 7,
                                         .rnr_retry = rnr_retry,
                                         .max_rd_atomic = 4});
}

/* The guest's word of a ring: @rx half, consumer or producer index. */
static inline _Atomic uint32_t *qpfix_word(struct qpfix *f, const struct ring_mem *mem,
                                           bool rx, bool cons)
{
    return testdev_ptr(f->td, ring_word_gpa(mem, rx, cons));
}

struct qpfix_call {
    struct source source; /* first */
    void (*fn)(void *arg);
    void *arg;
    _Atomic bool done;
};

static inline void qpfix_run_call(struct source *s)
{
    struct qpfix_call *c = (struct qpfix_call *)(void *)s;

    if (!atomic_load(&c->done)) {
        c->fn(c->arg);
        atomic_store(&c->done, true);
    }
}

/* Call @fn on @w's thread and wait for its end. */
static inline void qpfix_on_worker(struct worker *w, void (*fn)(void *), void *arg)
{
    struct qpfix_call c = {
        .source = {.fd = -1, .ready = qpfix_run_call}, .fn = fn, .arg = arg};

    g_assert_true(worker_add_source(w, &c.source, 0)); /* which pokes it */
    while (!atomic_load(&c.done)) {
        g_usleep(100);
    }
    worker_remove_source(&c.source);
}

#endif /* TESTS_QPFIX_H */
