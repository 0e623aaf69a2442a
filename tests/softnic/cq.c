/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: completion queues and their channels.
 */
#include <unistd.h>

#include "internal.h"
#include "entries.h"

struct ibv_comp_channel *soft_create_comp_channel(struct ibv_context *ibv)
{
    struct softctx *ctx = (struct softctx *)ibv;
    struct softchannel *c = NULL;
    int err = soft_enter("create_comp_channel");

    if (!err && ctx->dev->fatal) {
        err = EIO;
    }
    if (!err) {
        c = g_new0(struct softchannel, 1);
        c->ctx = ctx;
        c->ibv.context = ibv;
        soft_queue_init(&c->events);
        c->ibv.fd = c->events.fd;
        ctx->users++;
        soft.objects++;
    }
    soft_leave();
    errno = err ? err : errno;
    return c ? &c->ibv : NULL;
}

int soft_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
    struct softchannel *c = (struct softchannel *)ibv;
    int err = soft_enter("destroy_comp_channel");

    if (!err && ibv->refcnt) {
        err = EBUSY;
    }
    if (!err) {
        close(c->events.fd);
        c->ctx->users--;
        soft.objects--;
        g_free(c);
    }
    soft_leave();
    return err;
}

struct ibv_cq *soft_create_cq(struct ibv_context *ibv, int cqe, void *opaque,
                              struct ibv_comp_channel *channel, int vector)
{
    struct softctx *ctx = (struct softctx *)ibv;
    struct softcq *cq = NULL;
    int err = soft_enter("create_cq");

    if (!err && ctx->dev->fatal) {
        err = EIO;
    }
    if (!err &&
        (cqe < 1 || cqe > 1 << 20 || vector < 0 || vector >= ibv->num_comp_vectors ||
         (channel && channel->context != ibv))) {
        err = EINVAL;
    }
    if (!err) {
        cq = g_new0(struct softcq, 1);
        cq->ctx = ctx;
        cq->size = (uint32_t)cqe;
        cq->ring = g_new0(struct softcqe, cqe);
        cq->channel = (struct softchannel *)channel;
        cq->ibv.context = ibv;
        cq->ibv.channel = channel;
        cq->ibv.cq_context = opaque;
        cq->ibv.cqe = cqe;
        if (channel) {
            channel->refcnt++;
        }
        ctx->users++;
        soft.objects++;
    }
    soft_leave();
    errno = err ? err : errno;
    return cq ? &cq->ibv : NULL;
}

int soft_destroy_cq(struct ibv_cq *ibv)
{
    struct softcq *cq = (struct softcq *)ibv;
    int err = soft_enter("destroy_cq");

    if (!err && cq->users) {
        err = EBUSY;
    }
    if (!err) {
        if (cq->channel) {
            soft_queue_remove(&cq->channel->events, cq);
            cq->ibv.channel->refcnt--;
        }
        cq->armed = ARMED_NOT;
        soft_async_forget(cq->ctx, cq);
        while (cq->comp_got || cq->async_got) {
            pthread_cond_wait(&soft.acked, &soft.lock);
        }
        cq->ctx->users--;
        soft.objects--;
        g_free(cq->ring);
        g_free(cq);
    }
    soft_leave();
    return err;
}

/* One more completion, which frees the receive or send queue up to @upto when polled. */
void soft_complete(struct softqp *qp, bool receive, struct ibv_wc wc, bool solicited,
                   uint32_t upto)
{
    struct softcq *cq = receive ? qp->rcq : qp->scq;
    struct softdev *dev = qp->ctx->dev;

    if (dev->silent) {
        return;
    }
    if (dev->lose_at && !--dev->lose_at) {
        dev->lost++;
        return;
    }
    if (wc.status != IBV_WC_SUCCESS) {
        struct ibv_wc bad;

        memset(&bad, 0xa5, sizeof(bad));
        bad.wr_id = wc.wr_id;
        bad.status = wc.status;
        bad.vendor_err = 0;
        wc = bad;
    }
    wc.qp_num = qp->ibv.qp_num;
    if (cq->dead || cq->n == cq->size) {
        dev->overruns++;
        if (!cq->dead) {
            cq->dead = true;
            soft_async_cq(cq);
            soft_qp_fail(qp, IBV_WC_GENERAL_ERR);
        }
        return;
    }
    cq->ring[(cq->first + cq->n++) % cq->size] =
        (struct softcqe){.wc = wc, .qp = qp, .receive = receive, .upto = upto};
    if (cq->channel &&
        (cq->armed == ARMED_ANY ||
         (cq->armed == ARMED_SOLICITED && (solicited || wc.status != IBV_WC_SUCCESS)))) {
        cq->armed = ARMED_NOT;
        soft_queue_put(&cq->channel->events, cq);
    }
}

/* Completions of a QP that is gone stay, but free nothing. */
void soft_cq_forget(struct softcq *cq, struct softqp *qp)
{
    for (uint32_t i = 0; i < cq->n; i++) {
        struct softcqe *e = &cq->ring[(cq->first + i) % cq->size];

        if (e->qp == qp) {
            e->qp = NULL;
        }
    }
}

int soft_poll_cq(struct ibv_cq *ibv, int num, struct ibv_wc *wc)
{
    struct softcq *cq = (struct softcq *)ibv;
    int n = 0, err = soft_enter("poll_cq");

    if (!err && !cq->n) {
        soft_run(1);
    }
    if (!err && cq->dead) {
        err = EIO;
    }
    while (!err && n < num && cq->n) {
        struct softcqe *e = &cq->ring[cq->first];

        wc[n++] = e->wc;
        if (e->qp && e->receive) {
            e->qp->rroom = e->upto;
        } else if (e->qp) {
            e->qp->room = e->upto;
        }
        cq->first = (cq->first + 1) % cq->size;
        cq->n--;
    }
    soft_leave();
    return err ? -err : n;
}

int soft_req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
    struct softcq *cq = (struct softcq *)ibv;
    int err = soft_enter("req_notify_cq");

    if (!err && (cq->armed != ARMED_ANY)) {
        cq->armed = solicited_only ? ARMED_SOLICITED : ARMED_ANY;
    }
    soft_leave();
    return err;
}

int soft_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **opaque)
{
    struct softcq *c =
        soft_queue_get(&((struct softchannel *)ibv)->events, soft_enter("get_cq_event"));

    if (!c) {
        return -1;
    }
    c->comp_got++;
    *cq = &c->ibv;
    *opaque = c->ibv.cq_context;
    soft_leave();
    return 0;
}

void soft_ack_cq_events(struct ibv_cq *ibv, unsigned n)
{
    struct softcq *cq = (struct softcq *)ibv;

    soft_enter("ack_cq_events");
    if (cq->comp_got < n) {
        soft_bug("more events are acknowledged than there were");
    }
    cq->comp_got -= n;
    pthread_cond_broadcast(&soft.acked);
    soft_leave();
}
