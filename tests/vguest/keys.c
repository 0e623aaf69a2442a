/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Keys that come and go; see keys.h. */
#include "keys.h"

#include <string.h>

#define FAR (512u << 10) /* where the owner receives */

static void post(struct vg_qp *qp, struct vg_wr wr)
{
    wr.flags |= VGT_SIG;
    g_assert_cmpuint(vg_post_send(qp, &wr, 1), ==, 1);
}

enum { BIND = 100, WRITE, SEND_INV, LOCAL_INV, TAKEN };

void key_open(struct key *k, struct vgt_side *s)
{
    struct vg_buf *buf = vg_buf_new(s->g, 0x7f6600000000ull, KEY_LEN, VG_SCATTERED);
    struct pvrdma_ext_cmd_create_mw req = {
        .cmd = PVRDMA_CMD_CREATE_MW, .pd_handle = s->pd->handle, .type = 2};
    struct pvrdma_resp_create_mr resp;

    if (k->fast) {
        k->mr = vg_mr_new_fast(s->pd, buf, 64);
        return;
    }
    k->mr = vg_mr_new(s->pd, buf, VG_ACCESS_ALL | PVRDMA_ACCESS_MW_BIND);
    g_assert_cmpint(vg_command(s->g, &req, sizeof(req), &resp, sizeof(resp)), ==, 0);
    k->handle = resp.mr_handle;
    k->rkey = resp.rkey;
}

void key_close(struct key *k, struct vgt_side *s)
{
    if (!k->fast) {
        g_assert_cmpint(
            vg_destroy(s->g, (enum pvrdma_cmd)PVRDMA_CMD_DESTROY_MW, k->handle), ==, 0);
    }
    vg_mr_free(k->mr);
}

/* The request that makes the next key. */
static struct vg_wr key_wr(struct key *k)
{
    struct vg_wr wr;

    if (k->fast) {
        wr = vg_wr_fast_reg(k->mr, BIND, VG_ACCESS_ALL);
        k->rkey = k->mr->rkey;
        return wr;
    }
    k->rkey = (k->rkey & ~0xffu) | ((k->rkey + 1) & 0xff);
    return (struct vg_wr){.wr_id = BIND,
                          .opcode = PVRDMA_WR_BIND_MW,
                          .bind = {.addr = k->mr->buf->va,
                                   .length = KEY_LEN,
                                   .lkey = k->mr->lkey,
                                   .access_flags = PVRDMA_ACCESS_REMOTE_WRITE,
                                   .rkey = k->rkey}};
}

static struct vg_wr write_wr(struct vgt_side *s, const struct key *k,
                             struct pvrdma_sge *sge)
{
    *sge = vg_sge(s->mr, 0, KEY_LEN);
    return (struct vg_wr){.wr_id = WRITE,
                          .opcode = PVRDMA_WR_RDMA_WRITE,
                          .remote_addr = k->mr->buf->va,
                          .rkey = k->rkey,
                          .nsge = 1,
                          .sge = sge};
}

void key_round(struct vgt_pair *p, struct key *k, void (*move)(void *), void *opaque,
               unsigned when, bool by_peer)
{
    struct vgt_side *peer = &p->s[0], *own = &p->s[1];
    struct pvrdma_sge sge;
    struct pvrdma_cqe c;

    post(own->qp, key_wr(k));
    if (when == 0) {
        move(opaque);
    }
    vgt_expect(own->scq, BIND, PVRDMA_WC_SUCCESS);
    vgt_fill(VG_MR_HOST(peer->mr, 0), KEY_LEN, k->rkey);
    post(peer->qp, write_wr(peer, k, &sge));
    if (when == 1) {
        move(opaque);
    }
    if (by_peer) {
        vgt_recv(own, TAKEN, FAR, 8);
        post(peer->qp, (struct vg_wr){.wr_id = SEND_INV,
                                      .opcode = PVRDMA_WR_SEND_WITH_INV,
                                      .imm = k->rkey});
        if (when == 2) {
            move(opaque);
        }
        vgt_expect(peer->scq, WRITE, PVRDMA_WC_SUCCESS);
        vgt_expect(peer->scq, SEND_INV, PVRDMA_WC_SUCCESS);
        c = vgt_expect(own->rcq, TAKEN, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(c.wc_flags & PVRDMA_WC_FLAG_INV, !=, 0);
        g_assert_cmpuint(c.imm_data, ==, k->rkey);
    } else {
        vgt_expect(peer->scq, WRITE, PVRDMA_WC_SUCCESS);
        post(own->qp, (struct vg_wr){.wr_id = LOCAL_INV,
                                     .opcode = PVRDMA_WR_LOCAL_INV,
                                     .imm = k->rkey});
        if (when == 2) {
            move(opaque);
        }
        vgt_expect(own->scq, LOCAL_INV, PVRDMA_WC_SUCCESS);
    }
    vgt_check(k->mr->buf->host, KEY_LEN, k->rkey);
}

void key_dead(struct vgt_pair *p, struct key *k)
{
    struct pvrdma_sge sge;

    memset(k->mr->buf->host, 0x5c, KEY_LEN);
    post(p->s[0].qp, write_wr(&p->s[0], k, &sge));
    vgt_expect(p->s[0].scq, WRITE, PVRDMA_WC_REM_ACCESS_ERR);
    for (unsigned i = 0; i < KEY_LEN; i++) {
        g_assert_cmpuint(k->mr->buf->host[i], ==, 0x5c);
    }
}
