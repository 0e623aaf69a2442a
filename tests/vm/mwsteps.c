/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See mwsteps.h. */
#include "mwsteps.h"

#include <string.h>

#include "datacheck.h"

#define BIND       7
#define INVALIDATE 8

struct ibv_wc mw_bind(const struct mw_actor *by, struct ibv_mw *mw,
                      struct ibv_mw_bind_info info)
{
    struct ibv_mw_bind one = {
        .wr_id = BIND, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
    struct ibv_send_wr two = {
        .wr_id = BIND,
        .opcode = IBV_WR_BIND_MW,
        .send_flags = IBV_SEND_SIGNALED,
        .bind_mw = {.mw = mw, .rkey = ibv_inc_rkey(mw->rkey), .bind_info = info}};
    struct ibv_wc wc;
    int err;

    if (mw->type == IBV_MW_TYPE_1) {
        err = ibv_bind_mw(by->qp, mw, &one);
        DIE_IF(err, "bind_mw: %s", strerror(err));
    } else {
        by->post(&two);
    }
    wc = wait_any(by->qp->send_cq, "bind");
    check(wc.wr_id == BIND, "bind: completion of %llu", (unsigned long long)wc.wr_id);
    if (wc.status == IBV_WC_SUCCESS) {
        check(wc.opcode == IBV_WC_BIND_MW, "bind: opcode %d", (int)wc.opcode);
        if (mw->type == IBV_MW_TYPE_2) {
            mw->rkey = two.bind_mw.rkey;
        }
    }
    return wc;
}

void mw_local_inv(const struct mw_actor *by, uint32_t rkey)
{
    struct ibv_send_wr wr = {.wr_id = INVALIDATE,
                             .opcode = IBV_WR_LOCAL_INV,
                             .send_flags = IBV_SEND_SIGNALED,
                             .invalidate_rkey = rkey};
    struct ibv_wc wc;

    by->post(&wr);
    wc = wait_wc(by->qp->send_cq, "LOCAL_INV");
    check(wc.wr_id == INVALIDATE && wc.opcode == IBV_WC_LOCAL_INV, "LOCAL_INV: opcode %d",
          (int)wc.opcode);
}

void mw_invalidated(const struct ibv_wc *wc, uint64_t id, uint32_t len, uint32_t rkey)
{
    check(wc->status == IBV_WC_SUCCESS && wc->wr_id == id && wc->opcode == IBV_WC_RECV &&
              wc->byte_len == len,
          "SEND with invalidate: %s, receive of %u bytes, not %u",
          ibv_wc_status_str(wc->status), wc->byte_len, len);
    check((wc->wc_flags & IBV_WC_WITH_INV) && wc->invalidated_rkey == rkey,
          "SEND with invalidate: flags %#x, key %#x, not %#x", wc->wc_flags,
          wc->invalidated_rkey, rkey);
}
