/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: the connection manager.
 *
 * As with librdmacm a part is done when the user takes an event: a request gets its id
 * then, and the active side's QP is made ready, and the passive side told, when
 * ESTABLISHED is returned.
 */
#include <unistd.h>

#include "internal.h"
#include "entries.h"

/* A peer that cannot be reached, or does not answer a disconnect. */
#define UNREACHABLE_NS  (100 * 1000000ll)
#define DISCONNECT_NS   (1000 * 1000000ll)
#define DEFAULT_TIMEOUT 18
#define REQUEST_DATA    56
#define ACCEPT_DATA     196
#define REJECT_DATA     148
/* Status of REJECTED: no such port, and the peer's user. */
#define REJECT_NO_SERVICE 8
#define REJECT_BY_USER    28

static int failed(int err)
{
    errno = err ? err : errno;
    return err ? -1 : 0;
}

static struct sockaddr_in *src_of(struct softid *id)
{
    return &id->ibv.route.addr.src_sin;
}

static struct sockaddr_in *dst_of(struct softid *id)
{
    return &id->ibv.route.addr.dst_sin;
}

/* ---- events ---- */

static struct softcmevent *event_put(struct softid *owner, enum rdma_cm_event_type type,
                                     int status)
{
    struct softcmevent *e = g_new0(struct softcmevent, 1);

    e->owner = owner;
    e->ibv.id = &owner->ibv;
    e->ibv.event = type;
    e->ibv.status = status;
    soft_queue_put(&((struct softcmchannel *)owner->ibv.channel)->events, e);
    return e;
}

/* The numbers are the peer's: what it begins, this side answers. */
static void event_words(struct softcmevent *e, const struct cm_words *words, bool exact,
                        uint8_t padded)
{
    struct rdma_conn_param *c = &e->ibv.param.conn;

    memcpy(e->data, words->private_data, words->private_len);
    c->private_data = e->data;
    c->private_data_len = exact ? words->private_len : padded;
    c->responder_resources = words->initiator_depth;
    c->initiator_depth = words->responder_resources;
    c->retry_count = words->retry;
    c->rnr_retry_count = words->rnr_retry;
    c->qp_num = words->qpn;
}

static void event_free(struct softcmevent *e)
{
    if (e->wire) {
        soft_wire_free(e->wire);
    }
    g_free(e);
}

/* What was not read of an id that goes away, or of all. */
static void events_forget(struct softcmchannel *c, struct softid *owner)
{
    for (GList *l = c->events.q.head, *next; l; l = next) {
        struct softcmevent *e = l->data;

        next = l->next;
        if (!owner || e->owner == owner) {
            g_queue_delete_link(&c->events.q, l);
            soft_queue_less(&c->events);
            event_free(e);
        }
    }
}

struct rdma_event_channel *soft_cm_create_event_channel(void)
{
    struct softcmchannel *c = NULL;
    int err = soft_enter("cm_create_event_channel");
    bool any = false;

    for (unsigned i = 0; i < soft.devs->len; i++) {
        any = any || !((struct softdev *)soft.devs->pdata[i])->gone;
    }
    if (!err && !any) {
        err = ENODEV;
    }
    if (!err) {
        c = g_new0(struct softcmchannel, 1);
        soft_queue_init(&c->events);
        c->ibv.fd = c->events.fd;
        soft.objects++;
    }
    soft_leave();
    failed(err);
    return c ? &c->ibv : NULL;
}

void soft_cm_destroy_event_channel(struct rdma_event_channel *ibv)
{
    struct softcmchannel *c = (struct softcmchannel *)ibv;

    soft_enter("cm_destroy_event_channel");
    for (unsigned i = 0; i < soft.ids->len; i++) {
        if (((struct softid *)soft.ids->pdata[i])->ibv.channel == ibv) {
            soft_bug("an event channel is destroyed before its ids");
        }
    }
    events_forget(c, NULL);
    close(c->events.fd);
    soft.objects--;
    g_free(c);
    soft_leave();
}

/* ---- ids ---- */

static struct softid *id_new(struct rdma_event_channel *channel, void *context,
                             enum rdma_port_space ps)
{
    struct softid *id = g_new0(struct softid, 1);

    id->ibv.channel = channel;
    id->ibv.context = context;
    id->ibv.ps = ps;
    id->ibv.qp_type = IBV_QPT_RC;
    id->timeout = DEFAULT_TIMEOUT;
    soft.objects++;
    g_ptr_array_add(soft.ids, id);
    return id;
}

static void id_open(struct softid *id, struct softdev *dev)
{
    if (!id->ctx) {
        id->ctx = soft_cma(dev);
        id->ibv.verbs = &id->ctx->ibv;
        id->ibv.port_num = 1;
    }
}

int soft_cm_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
                      void *context, enum rdma_port_space ps)
{
    int err = soft_enter("cm_create_id");

    if (!err && (!channel || ps != RDMA_PS_TCP)) {
        err = EINVAL;
    }
    if (!err) {
        *id = &id_new(channel, context, ps)->ibv;
    }
    soft_leave();
    return failed(err);
}

int soft_cm_destroy_id(struct rdma_cm_id *ibv)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_destroy_id");

    if (!err) {
        if (ibv->qp) {
            soft_bug("an id is destroyed before its QP");
        }
        id->state = ID_ENDED;
        id->expires = 0;
        if (id->wire) {
            soft_wire_free(id->wire);
            id->wire = NULL;
        }
        events_forget((struct softcmchannel *)ibv->channel, id);
        g_ptr_array_remove_fast(soft.ids, id);
        while (id->got) {
            pthread_cond_wait(&soft.acked, &soft.lock);
        }
        if (id->ctx) {
            soft_cma_put(id->ctx);
        }
        if (id->dev) {
            soft_dev_put(id->dev);
        }
        soft.objects--;
        g_free(id);
    }
    soft_leave();
    return failed(err);
}

static bool port_taken(const struct sockaddr_in *a)
{
    for (unsigned i = 0; i < soft.ids->len; i++) {
        struct softid *id = soft.ids->pdata[i];
        struct sockaddr_in *b = src_of(id);

        if ((id->state == ID_BOUND || id->state == ID_LISTENS) &&
            b->sin_port == a->sin_port &&
            (!b->sin_addr.s_addr || !a->sin_addr.s_addr ||
             b->sin_addr.s_addr == a->sin_addr.s_addr)) {
            return true;
        }
    }
    return false;
}

static int id_bind(struct softid *id, const struct sockaddr *addr)
{
    struct sockaddr_in a;
    struct softdev *dev;

    if (id->state != ID_IDLE || addr->sa_family != AF_INET) {
        return EINVAL;
    }
    memcpy(&a, addr, sizeof(a));
    dev = a.sin_addr.s_addr ? soft_find_address(a.sin_addr.s_addr) : NULL;
    if (a.sin_addr.s_addr && !dev) {
        return ENODEV;
    }
    if (!a.sin_port) {
        do {
            soft.next_port = soft.next_port < 32768 ? 32768 : soft.next_port + 1;
            a.sin_port = htons(soft.next_port);
        } while (port_taken(&a));
    } else if (port_taken(&a)) {
        return EADDRINUSE;
    }
    *src_of(id) = a;
    if (dev) {
        id_open(id, dev);
    }
    id->state = ID_BOUND;
    return 0;
}

int soft_cm_bind_addr(struct rdma_cm_id *ibv, struct sockaddr *addr)
{
    int err = soft_enter("cm_bind_addr");

    if (!err) {
        err = id_bind((struct softid *)ibv, addr);
    }
    soft_leave();
    return failed(err);
}

int soft_cm_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src,
                         struct sockaddr *dst, int timeout_ms)
{
    struct softid *id = (struct softid *)ibv;
    struct softdev *dev = NULL;
    int err = soft_enter("cm_resolve_addr");

    if (!err && src && id->state == ID_IDLE) {
        err = id_bind(id, src);
    }
    if (!err &&
        (dst->sa_family != AF_INET || (id->state != ID_IDLE && id->state != ID_BOUND))) {
        err = EINVAL;
    }
    if (!err) {
        memcpy(dst_of(id), dst, sizeof(*dst_of(id)));
        dev = id->ctx ? id->ctx->dev : soft_find_address(dst_of(id)->sin_addr.s_addr);
        for (unsigned i = 0; !dev && i < soft.devs->len; i++) {
            struct softdev *d = soft.devs->pdata[i];

            dev = !d->gone && d->up ? d : NULL;
        }
        err = dev ? 0 : ENODEV;
    }
    if (!err && (dev->fatal || dev->gone || !dev->up)) {
        event_put(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV);
    } else if (!err) {
        if (id->state == ID_IDLE) {
            struct sockaddr_in a = {.sin_family = AF_INET,
                                    .sin_addr.s_addr = dev->address[0]};

            id_bind(id, (struct sockaddr *)&a);
        }
        id->state = ID_ADDR;
        id->dev = dev;
        dev->refs++;
        event_put(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    }
    soft_leave();
    return failed(err);
}

int soft_cm_resolve_route(struct rdma_cm_id *ibv, int timeout_ms)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_resolve_route");

    if (!err && (id->state != ID_ADDR || !id->ctx)) {
        err = EINVAL;
    }
    if (!err) {
        id->state = ID_ROUTE;
        event_put(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    }
    soft_leave();
    return failed(err);
}

int soft_cm_set_option(struct rdma_cm_id *ibv, int level, int optname, void *optval,
                       size_t optlen)
{
    struct softid *id = (struct softid *)ibv;
    bool byte = optname == RDMA_OPTION_ID_TOS || optname == RDMA_OPTION_ID_ACK_TIMEOUT;
    int err = soft_enter("cm_set_option");

    if (!err && (level != RDMA_OPTION_ID || optlen != (byte ? 1 : sizeof(int)) ||
                 optname > RDMA_OPTION_ID_ACK_TIMEOUT)) {
        err = optname > RDMA_OPTION_ID_ACK_TIMEOUT ? ENOSYS : EINVAL;
    }
    if (!err && optname == RDMA_OPTION_ID_ACK_TIMEOUT) {
        memcpy(&id->timeout, optval, 1);
    } else if (!err && optname == RDMA_OPTION_ID_TOS) {
        memcpy(&id->tos, optval, 1);
    }
    soft_leave();
    return failed(err);
}

int soft_cm_create_qp(struct rdma_cm_id *ibv, struct ibv_pd *pd,
                      struct ibv_qp_init_attr *attr)
{
    struct softid *id = (struct softid *)ibv;
    struct ibv_qp_cap *cap = &attr->cap;
    int err = soft_enter("cm_create_qp");

    if (!err &&
        (ibv->qp || !id->ctx || !pd || pd->context != ibv->verbs || !attr->send_cq ||
         !attr->recv_cq || attr->send_cq->context != ibv->verbs ||
         attr->recv_cq->context != ibv->verbs || attr->srq ||
         attr->qp_type != IBV_QPT_RC)) {
        err = EINVAL;
    }
    if (!err && id->ctx->dev->fatal) {
        err = EIO;
    }
    if (!err &&
        (cap->max_send_wr > id->ctx->dev->wr || cap->max_recv_wr > id->ctx->dev->wr ||
         cap->max_send_sge > id->ctx->dev->sge || cap->max_recv_sge > id->ctx->dev->sge ||
         cap->max_inline_data > id->ctx->dev->inline_data)) {
        err = EINVAL;
    }
    if (!err) {
        ibv->qp = &soft_qp_new(id, (struct softpd *)pd, attr)->ibv;
        ibv->pd = pd;
    }
    soft_leave();
    return failed(err);
}

void soft_cm_destroy_qp(struct rdma_cm_id *ibv)
{
    soft_enter("cm_destroy_qp");
    soft_qp_free((struct softqp *)ibv->qp);
    ibv->qp = NULL;
    soft_leave();
}

/* ---- connections ---- */

int soft_cm_listen(struct rdma_cm_id *ibv, int backlog)
{
    struct softid *id = (struct softid *)ibv;
    struct sockaddr_in any = {.sin_family = AF_INET};
    int err = soft_enter("cm_listen");

    if (!err && id->state == ID_IDLE) {
        err = id_bind(id, (struct sockaddr *)&any);
    }
    if (!err && id->state != ID_BOUND) {
        err = EINVAL;
    }
    if (!err) {
        id->state = ID_LISTENS;
    }
    soft_leave();
    return failed(err);
}

static struct softid *find_listener(in_addr_t a, uint16_t port)
{
    for (unsigned i = 0; i < soft.ids->len; i++) {
        struct softid *id = soft.ids->pdata[i];
        in_addr_t at = src_of(id)->sin_addr.s_addr;

        if (id->state == ID_LISTENS && src_of(id)->sin_port == port && (!at || at == a)) {
            return id;
        }
    }
    return NULL;
}

static struct softqp *qp_of(struct softid *id)
{
    return (struct softqp *)id->ibv.qp;
}

static void send_words(struct softid *id, enum packet_kind kind)
{
    const struct rdma_conn_param *c = &id->param;
    struct packet *p = soft_packet(kind, sizeof(struct cm_words));
    struct cm_words *words = (struct cm_words *)p->data;

    memset(words, 0, sizeof(*words));
    words->src = src_of(id)->sin_addr.s_addr;
    words->sport = src_of(id)->sin_port;
    words->dst = dst_of(id)->sin_addr.s_addr;
    words->dport = dst_of(id)->sin_port;
    words->qpn = id->ibv.qp->qp_num;
    words->responder_resources = c->responder_resources;
    words->initiator_depth = c->initiator_depth;
    words->retry = c->retry_count;
    words->rnr_retry = c->rnr_retry_count;
    words->private_len = c->private_data_len;
    if (c->private_data_len) {
        memcpy(words->private_data, c->private_data, c->private_data_len);
    }
    soft_send(id->wire, p);
}

static int check_param(struct softid *id, const struct rdma_conn_param *param,
                       uint8_t room)
{
    struct softdev *dev = id->ctx ? id->ctx->dev : NULL;
    const struct rdma_conn_param all = {.responder_resources = RDMA_MAX_RESP_RES,
                                        .initiator_depth = RDMA_MAX_INIT_DEPTH,
                                        .retry_count = 7,
                                        .rnr_retry_count = 7};

    if (!id->ibv.qp) {
        return EINVAL;
    }
    if (dev->fatal) {
        return EIO;
    }
    id->param = param ? *param : all;
    if (id->param.responder_resources == RDMA_MAX_RESP_RES) {
        id->param.responder_resources = (uint8_t)dev->ord;
    }
    if (id->param.initiator_depth == RDMA_MAX_INIT_DEPTH) {
        id->param.initiator_depth = (uint8_t)dev->ord;
    }
    if (id->param.responder_resources > dev->ord ||
        id->param.initiator_depth > dev->ord ||
        (!dev->iwarp && id->param.private_data_len > room) || id->param.retry_count > 7 ||
        id->param.rnr_retry_count > 7) {
        return EINVAL;
    }
    return 0;
}

/* The QP can receive and send; the manager leaves the peer every right. */
static void qp_ready(struct softid *id, uint8_t ord, uint8_t ird)
{
    struct softqp *qp = qp_of(id);

    qp->ord = ord;
    qp->ird = ird;
    qp->access = IBV_ACCESS_REMOTE_WRITE |
                 (ird ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0);
    qp->timeout = id->timeout;
    id->ctx->dev->tos = id->tos;
    qp->rnr_retry = qp->rnr_left = id->words.rnr_retry;
    qp->wire = id->wire;
    id->wire->qp = qp;
    soft_qp_state(qp, IBV_QPS_RTS);
}

int soft_cm_connect(struct rdma_cm_id *ibv, struct rdma_conn_param *param)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_connect");

    if (!err && id->state != ID_ROUTE) {
        err = EINVAL;
    }
    if (!err) {
        err = check_param(id, param, REQUEST_DATA);
    }
    if (!err && id->dev->siw && soft_find_address(dst_of(id)->sin_addr.s_addr) &&
        !find_listener(dst_of(id)->sin_addr.s_addr, dst_of(id)->sin_port)) {
        err = ECONNREFUSED;
    }
    if (!err) {
        id->state = ID_CONNECTS;
        qp_of(id)->retry_cnt = id->param.retry_count;
        id->wire =
            id->dev->up ? soft_wire_connect(id->dev, dst_of(id)->sin_addr.s_addr) : NULL;
        if (id->wire) {
            id->wire->id = id;
            send_words(id, PKT_REQ);
        } else {
            id->expires = soft_now() + UNREACHABLE_NS;
            soft_timer(id->expires);
        }
    }
    soft_leave();
    return failed(err);
}

int soft_cm_accept(struct rdma_cm_id *ibv, struct rdma_conn_param *param)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_accept");

    if (!err && id->state != ID_REQUESTED) {
        err = EINVAL;
    }
    if (!err) {
        err = check_param(id, param, ACCEPT_DATA);
    }
    if (!err) {
        id->state = ID_ACCEPTED;
        qp_of(id)->retry_cnt = id->words.retry;
        qp_ready(id, id->param.initiator_depth, id->param.responder_resources);
        send_words(id, PKT_REP);
        soft_kick(id->wire);
    }
    soft_leave();
    return failed(err);
}

static void send_reject(struct wire *w, uint8_t status, const void *data, uint8_t len)
{
    struct packet *p = soft_packet(PKT_REJ, len);

    p->h.status = status;
    if (len) {
        memcpy(p->data, data, len);
    }
    soft_send(w, p);
}

int soft_cm_reject(struct rdma_cm_id *ibv, const void *data, uint8_t len)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_reject");

    if (!err &&
        (id->state != ID_REQUESTED || (!id->ctx->dev->iwarp && len > REJECT_DATA))) {
        err = EINVAL;
    }
    if (!err) {
        send_reject(id->wire, REJECT_BY_USER, data, len);
        id->state = ID_ENDED;
    }
    soft_leave();
    return failed(err);
}

int soft_cm_disconnect(struct rdma_cm_id *ibv)
{
    struct softid *id = (struct softid *)ibv;
    int err = soft_enter("cm_disconnect");

    if (!err && (id->state < ID_ACCEPTED || !id->ctx)) {
        err = EINVAL;
    }
    if (!err) {
        if (ibv->qp) {
            soft_qp_state(qp_of(id), IBV_QPS_ERR);
        }
        if (id->state == ID_ACCEPTED || id->state == ID_CONNECTED) {
            id->state = ID_LEAVES;
            soft_send_plain(id->wire, PKT_DREQ);
            id->expires = soft_now() + DISCONNECT_NS;
            soft_timer(id->expires);
        } else if (id->state == ID_LEFT) {
            id->state = ID_ENDED;
            soft_send_plain(id->wire, PKT_DREP);
        }
    }
    soft_leave();
    return failed(err);
}

static void disconnected(struct softid *id, bool ended)
{
    bool iwarp = id->ctx->dev->iwarp;

    id->expires = 0;
    id->state = ended ? ID_ENDED : ID_LEFT;
    event_put(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    if (iwarp && id->ibv.qp) {
        soft_qp_fail(qp_of(id), IBV_WC_WR_FLUSH_ERR);
    }
    if (ended && !iwarp) {
        event_put(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
    }
}

static void unreachable(struct softid *id)
{
    id->expires = 0;
    id->state = ID_ENDED;
    event_put(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

void soft_cm_timer(struct softid *id, int64_t now)
{
    if (id->expires && id->expires <= now) {
        if (id->state == ID_LEAVES) {
            disconnected(id, true);
        } else {
            unreachable(id);
        }
    } else if (id->expires) {
        soft_timer(id->expires);
    }
}

/* Nothing will pass any more; a connection that is being made or ended waits for it. */
void soft_cm_stalled(struct softid *id)
{
    if ((id->state == ID_CONNECTS || id->state == ID_ACCEPTED) && !id->expires) {
        id->expires = soft_now() + UNREACHABLE_NS;
        soft_timer(id->expires);
    }
}

/* iWARP: the stream is at its end. */
void soft_cm_terminated(struct wire *w)
{
    if (w && w->id && (w->id->state == ID_CONNECTED || w->id->state == ID_ACCEPTED)) {
        disconnected(w->id, false);
    }
}

void soft_cm_removed(struct softdev *dev)
{
    for (unsigned i = 0; i < soft.ids->len; i++) {
        struct softid *id = soft.ids->pdata[i];

        if (id->ctx && id->ctx->dev == dev) {
            event_put(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
    }
}

static void requested(struct wire *w, const struct cm_words *words)
{
    struct softid *id = find_listener(words->dst, words->dport);
    struct softcmevent *e;

    if (!id) {
        send_reject(w, REJECT_NO_SERVICE, NULL, 0);
        soft_wire_free(w);
        return;
    }
    e = event_put(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    e->wire = w;
    e->words = *words;
}

void soft_cm_packet(struct wire *w, struct packet *p)
{
    struct cm_words *words = (struct cm_words *)p->data;
    struct softid *id = w->id;

    if (p->h.kind == PKT_REQ && !id) {
        requested(w, words);
    } else if (p->h.kind == PKT_LOST) {
        w->lost = true;
        if (id && (id->state == ID_CONNECTS || id->state == ID_ACCEPTED)) {
            unreachable(id);
        } else if (id && (id->state == ID_CONNECTED || id->state == ID_LEAVES)) {
            disconnected(id, id->state == ID_LEAVES);
        }
        soft_cut(w);
    } else if (id) {
        switch (p->h.kind) {
        case PKT_REP:
            if (id->state == ID_CONNECTS) {
                id->words = *words;
                event_put(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
            }
            break;
        case PKT_RTU:
            if (id->state == ID_ACCEPTED) {
                id->state = ID_CONNECTED;
                id->expires = 0;
                event_put(id, RDMA_CM_EVENT_ESTABLISHED, 0);
            }
            break;
        case PKT_REJ:
            if (id->state == ID_CONNECTS || id->state == ID_ACCEPTED) {
                struct softcmevent *e =
                    event_put(id, RDMA_CM_EVENT_REJECTED, p->h.status);

                id->state = ID_ENDED;
                id->expires = 0;
                e->words.private_len = (uint8_t)p->h.len;
                memcpy(e->words.private_data, p->data, p->h.len);
            }
            break;
        case PKT_DREQ:
            if (id->state == ID_CONNECTED || id->state == ID_ACCEPTED) {
                disconnected(id, false);
            } else if (id->state == ID_LEAVES) {
                disconnected(id, true);
            }
            break;
        case PKT_DREP:
            if (id->state == ID_LEAVES) {
                disconnected(id, true);
            }
            break;
        }
    }
    g_free(p);
}

/* The user takes an event. */
static void event_taken(struct softcmevent *e)
{
    struct softid *id = e->owner;

    switch (e->ibv.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        id_open(id, id->dev);
        break;
    case RDMA_CM_EVENT_CONNECT_REQUEST: {
        struct wire *w = e->wire;
        struct softid *new = id_new(id->ibv.channel, id->ibv.context, id->ibv.ps);

        e->wire = NULL;
        e->ibv.listen_id = &id->ibv;
        e->ibv.id = &new->ibv;
        new->wire = w;
        w->id = new;
        new->words = e->words;
        new->state = ID_REQUESTED;
        *src_of(new) = (struct sockaddr_in){.sin_family = AF_INET,
                                            .sin_port = e->words.dport,
                                            .sin_addr.s_addr = e->words.dst};
        *dst_of(new) = (struct sockaddr_in){.sin_family = AF_INET,
                                            .sin_port = e->words.sport,
                                            .sin_addr.s_addr = e->words.src};
        id_open(new, w->dev);
        event_words(e, &e->words, w->dev->iwarp, REQUEST_DATA);
        break;
    }
    case RDMA_CM_EVENT_CONNECT_RESPONSE: {
        e->ibv.event = RDMA_CM_EVENT_ESTABLISHED;
        event_words(e, &id->words, id->dev->iwarp, ACCEPT_DATA);
        if (id->state == ID_CONNECTS && id->ibv.qp) {
            id->state = ID_CONNECTED;
            id->expires = 0;
            qp_ready(id, id->words.responder_resources, id->words.initiator_depth);
            soft_send_plain(id->wire, PKT_RTU);
        }
        break;
    }
    case RDMA_CM_EVENT_REJECTED:
        event_words(e, &e->words, id->ctx->dev->iwarp, REJECT_DATA);
        if (id->ibv.qp) {
            soft_qp_state(qp_of(id), IBV_QPS_ERR);
        }
        break;
    default:
        break;
    }
}

int soft_cm_get_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
    struct softcmevent *e = soft_queue_get(&((struct softcmchannel *)channel)->events,
                                           soft_enter("cm_get_event"));

    if (!e) {
        return -1;
    }
    e->owner->got++;
    event_taken(e);
    soft_leave();
    *event = &e->ibv;
    return 0;
}

int soft_cm_ack_event(struct rdma_cm_event *event)
{
    struct softcmevent *e = (struct softcmevent *)event;

    soft_enter("cm_ack_event");
    e->owner->got--;
    pthread_cond_broadcast(&soft.acked);
    soft_leave();
    event_free(e);
    return 0;
}
