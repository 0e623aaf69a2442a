/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * datacheck's part mw: data that move through memory windows.
 *
 * The target binds a window over a piece of its destination area and tells the actor
 * its key over TCP; the actor writes and reads by that key alone.  A window of type 1
 * is bound anew each time; one of type 2 (B) is invalidated in between, in turns by the
 * target's LOCAL_INV and by a SEND with invalidate of the actor's, whose data are
 * compared as well.  Now and then a key is used that is not valid any more, or beyond
 * the window: that fails at the actor, changes no byte, and both connect their QPs anew.
 *
 * Who may bind what to which memory, and what keeps a region from being deregistered,
 * is not tested here: this is about bytes.
 */
#include "datacheck.h"
#include "mwsteps.h"

#define STEPS   24
#define MAX_LEN 200000u

static const char *const names[2] = {"window of type 1", "window of type 2"};

/* ---- the target ---- */

static void post(struct ibv_send_wr *wr)
{
    post_send(MW_QP, wr);
}

static struct mw_actor target(void)
{
    return (struct mw_actor){s.qp[MW_QP], post};
}

static void bind_window(int type, uint32_t off, uint32_t len)
{
    struct ibv_mw_bind_info info = {.mr = s.mr,
                                    .addr = (uintptr_t)s.buf + off,
                                    .length = len,
                                    .mw_access_flags =
                                        IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
    struct mw_actor by = target();
    struct ibv_wc wc = mw_bind(&by, s.mw[type], info);

    DIE_IF(wc.status != IBV_WC_SUCCESS, "bind: %s", ibv_wc_status_str(wc.status));
}

/* ---- the actor ---- */

static enum ibv_wc_status access_by(enum ibv_wr_opcode opcode, uint32_t rkey,
                                    uint32_t local, uint32_t remote, uint32_t len)
{
    struct ibv_sge e = sge_at(local, len);
    struct ibv_send_wr wr = {.wr_id = 3,
                             .sg_list = &e,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED};

    wr.wr.rdma.remote_addr = s.other.addr + remote;
    wr.wr.rdma.rkey = rkey;
    post_send(MW_QP, &wr);
    return wait_any(s.scq, "access by a window").status;
}

static void send_inv(uint32_t rkey, uint32_t len)
{
    struct ibv_sge e = sge_at(GUARD, len);
    struct ibv_send_wr wr = {.wr_id = 4,
                             .sg_list = &e,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_INV,
                             .send_flags = IBV_SEND_SIGNALED,
                             .invalidate_rkey = rkey};
    struct ibv_wc wc;

    post_send(MW_QP, &wr);
    wc = wait_wc(s.scq, "send-inv");
    check(wc.opcode == IBV_WC_SEND, "send-inv: opcode %d", (int)wc.opcode);
}

/* ---- steps of both ---- */

/* What the actor writes by @rkey is at the target, and what is there it can read. */
static void step_data(bool actor, int type, uint32_t rkey, uint32_t off, uint32_t len,
                      uint32_t seed)
{
    const char *what = names[type];
    enum ibv_wc_status st;

    if (actor) {
        fill(s.buf + GUARD, len, seed);
        st = access_by(IBV_WR_RDMA_WRITE, rkey, GUARD, off, len);
        check(st == IBV_WC_SUCCESS, "%s: WRITE: %s", what, ibv_wc_status_str(st));
        spoil(s.buf + AREA + GUARD, len);
    }
    barrier('W');
    if (!actor) {
        verify(what, s.buf + off, len, seed);
        fill(s.buf + off, len, seed + 1);
    }
    barrier('R');
    if (actor) {
        st = access_by(IBV_WR_RDMA_READ, rkey, AREA + GUARD, off, len);
        check(st == IBV_WC_SUCCESS, "%s: READ: %s", what, ibv_wc_status_str(st));
        verify(what, s.buf + AREA + GUARD, len, seed + 1);
    }
    barrier('D');
}

/* Neither WRITE nor READ are possible, and the target's bytes stay those of @seed. */
static void step_refused(bool actor, const char *why, uint32_t rkey, uint32_t off,
                         uint32_t len, uint32_t at, uint32_t seed)
{
    static const enum ibv_wr_opcode opcodes[2] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
    enum ibv_wc_status st;

    for (int i = 0; i < 2; i++) {
        if (actor) {
            spoil(s.buf + AREA + GUARD, 8);
            st = access_by(opcodes[i], rkey, AREA + GUARD, at, 8);
            check(st == IBV_WC_REM_ACCESS_ERR, "%s: %s", why, ibv_wc_status_str(st));
            check(s.buf[AREA + GUARD] == 0xa5, "%s: bytes came", why);
        }
        barrier('A');
        if (!actor) {
            verify(why, s.buf + off, len, seed);
        }
        qp_connect(MW_QP);
        barrier('C');
    }
}

/* The key of the window of type 2 ends. */
static void step_invalidate(bool actor, bool remotely, uint32_t rkey, uint32_t seed)
{
    uint32_t len = 1 + seed % 5000;
    struct ibv_sge e = sge_at(GUARD, len);
    struct mw_actor by = target();

    if (remotely && !actor) {
        spoil(s.buf + GUARD, len);
        post_recv(MW_QP, seed, &e, 1);
    }
    barrier('i');
    if (!remotely) {
        if (!actor) {
            mw_local_inv(&by, rkey);
        }
    } else if (actor) {
        fill(s.buf + GUARD, len, seed);
        send_inv(rkey, len);
    } else {
        struct ibv_wc wc = wait_any(s.rcq, "send-inv");

        mw_invalidated(&wc, seed, len, rkey);
        verify("send-inv", s.buf + GUARD, len, seed);
    }
    barrier('I');
}

static void windows(bool actor, uint32_t round, int type)
{
    uint32_t old = 0;

    for (uint32_t k = 0; k < STEPS; k++) {
        uint32_t seed = 3000000u + ((round * 2 + (uint32_t)type) * STEPS + k) * 4;
        uint32_t len = 16 + seed * 7919u % (k & 1 ? MAX_LEN : 5000);
        uint32_t off = AREA + GUARD + seed * 31u % 8192, rkey;
        bool misuse = k % 6 == 4, remotely = k & 2;

        if (!actor) {
            spoil(s.buf + off, len);
            bind_window(type, off, len);
            rkey = s.mw[type]->rkey;
            sock_write(&rkey, sizeof(rkey));
        } else {
            sock_read(&rkey, sizeof(rkey));
        }
        /* The other VM's keys are its own: there it may be the same one. */
        check(rkey != old && rkey != (actor ? s.other : s.me).rkey, "key %#x again",
              rkey);
        step_data(actor, type, rkey, off, len, seed);
        if (misuse) {
            step_refused(actor, "beyond the window", rkey, off, len, off + len - 7,
                         seed + 1);
            if (type == 0 && old) {
                step_refused(actor, "the key before", old, off, len, off, seed + 1);
            }
            /* It is still bound. */
            step_data(actor, type, rkey, off, len, seed);
        }
        if (type == 1) {
            step_invalidate(actor, remotely, rkey, seed);
            if (misuse) {
                step_refused(actor, "an invalidated window", rkey, off, len, off,
                             seed + 1);
            }
        }
        old = rkey;
    }
}

void part_mw(bool actor, uint32_t round)
{
    windows(actor, round, 0);
    windows(actor, round, 1);
}
