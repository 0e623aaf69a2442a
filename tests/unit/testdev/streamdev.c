/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See streamdev.h. */
#include "streamdev.h"

#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/iwarp/iwarp.h"
#include "transport/iwarp/wire/bytes.h"
#include "transport/transports.h"

#define QP_PAGES   7u
#define SEND_PAGES 4u
#define NSGE       4u
#define PSN        0x1234u
/* Turns in a row that bring nothing, before it is left alone. */
#define IDLE_TURNS 3u

static const struct pvrdma_gid own = {.raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 5}};

static void command(struct streamdev *d, uint32_t op, void *req, size_t size)
{
    testdev_do(d->td, op, req, size);
    testdev_irqs(d->td, PVRDMA_VEC_CMD);
}

static const union pvrdma_cmd_resp *response(const struct streamdev *d)
{
    return testdev_ptr(d->td, d->td->resp);
}

void streamdev_start(struct streamdev *d)
{
    struct pvrdma_cmd_create_bind bind = {
        .mtu = 1024, .vlan = 0xfff, .gid = own, .gid_type = PVRDMA_GID_TYPE_ROCE_V2};
    GError *err = NULL;

    testdev_start();
    tcp_open(false, &err);
    g_assert_no_error(err);
    tcp_forced = true; /* nobody's address is asked for */
    transport_local = &transport_tcp;
    d->td = testdev_new("stream");
    testdev_up(d->td);
    command(d, PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind));
    d->qp_pdir = testdev_new_pdir(d->td, QP_PAGES, &d->qp_first);
    d->cq_pdir = testdev_new_pdir(d->td, 2, &d->cq_first);
    for (unsigned i = 0; i < STREAMDEV_MRS; i++) {
        d->beside[i] = testdev_pages(d->td, 1);
        d->mr_pdir[i] = testdev_new_pdir(d->td, STREAMDEV_PAGES, &d->mr_first[i]);
    }
    d->beside[STREAMDEV_MRS] = testdev_pages(d->td, 1);
}

void streamdev_stop(struct streamdev *d)
{
    testdev_free(d->td);
    tcp_close();
    testdev_stop();
}

/* ---- objects ---- */

static void create_mrs(struct streamdev *d)
{
    static const uint32_t access[] = {0x1f, PVRDMA_ACCESS_REMOTE_READ};

    for (unsigned i = 0; i < STREAMDEV_MRS; i++) {
        struct pvrdma_cmd_create_mr req = {.pd_handle = d->pd,
                                           .nchunks = STREAMDEV_PAGES};

        if (i == STREAMDEV_FAST) {
            req.flags = PVRDMA_MR_FLAG_FRMR;
        } else {
            req.start = STREAMDEV_VA;
            req.length = STREAMDEV_LEN;
            req.pdir_dma = d->mr_pdir[i];
            req.access_flags = access[i];
        }
        command(d, PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
        d->mr[i] = response(d)->create_mr.mr_handle;
        d->key[i] = response(d)->create_mr.rkey;
        memset(testdev_ptr(d->td, d->mr_first[i]), STREAMDEV_CANARY,
               STREAMDEV_PAGES * 4096);
    }
    for (unsigned i = 0; i <= STREAMDEV_MRS; i++) {
        memset(testdev_ptr(d->td, d->beside[i]), STREAMDEV_CANARY, 4096);
    }
}

static void create_queues(struct streamdev *d, uint32_t type)
{
    struct pvrdma_cmd_create_cq cq = {
        .pdir_dma = d->cq_pdir, .cqe = STREAMDEV_WR, .nchunks = 2};
    struct pvrdma_cmd_create_qp qp = {.pdir_dma = d->qp_pdir,
                                      .pd_handle = d->pd,
                                      .max_send_wr = STREAMDEV_WR,
                                      .max_recv_wr = STREAMDEV_WR,
                                      .max_send_sge = NSGE,
                                      .max_recv_sge = NSGE,
                                      .total_chunks = QP_PAGES,
                                      .send_chunks = SEND_PAGES,
                                      .qp_type = type,
                                      .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};

    memset(testdev_ptr(d->td, d->qp_first), 0, QP_PAGES * 4096);
    memset(testdev_ptr(d->td, d->cq_first), 0, 2 * 4096);
    command(d, PVRDMA_CMD_CREATE_CQ, &cq, sizeof(cq));
    d->cq = qp.send_cq_handle = qp.recv_cq_handle = response(d)->create_cq.cq_handle;
    command(d, PVRDMA_CMD_CREATE_QP, &qp, sizeof(qp));
    d->qpn = response(d)->create_qp.qpn;
    d->qp = id_table_get(&d->td->vm.objects.qp, response(d)->create_qp.qp_handle);
    g_assert_nonnull(d->qp);
    d->posted = d->received = 0;
}

static void modify(struct streamdev *d, uint32_t mask, const struct pvrdma_qp_attr *a)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = d->qp->handle, .attr_mask = PVRDMA_QP_STATE | mask, .attrs = *a};

    command(d, PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

/* To RTS; nobody has the peer's address.  Whose is less, that side calls. */
static void connect_qp(struct streamdev *d, const struct streamdev_opts *o)
{
    struct pvrdma_qp_attr a = {.qp_state = PVRDMA_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = 0xf,
                               .path_mtu = PVRDMA_MTU_1024,
                               .dest_qp_num = 0x77,
                               .rq_psn = PSN,
                               .max_rd_atomic = 4,
                               .max_dest_rd_atomic = TCP_DEPTH,
                               .min_rnr_timer = 1,
                               .timeout = 0, /* for ever */
                               .retry_cnt = 1,
                               .rnr_retry = 1,
                               .ah_attr = {.dgid = own, .ah_flags = 1, .port_num = 1}};
    bool rc = o->type == PVRDMA_QPT_RC;

    a.ah_attr.dgid.raw[15] = o->responder ? 1 : 9;
    modify(d, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_PORT | PVRDMA_QP_ACCESS_FLAGS, &a);
    a.qp_state = PVRDMA_QPS_RTR;
    modify(d,
           PVRDMA_QP_AV | PVRDMA_QP_PATH_MTU | PVRDMA_QP_DEST_QPN | PVRDMA_QP_RQ_PSN |
               (rc ? PVRDMA_QP_MAX_DEST_RD_ATOMIC | PVRDMA_QP_MIN_RNR_TIMER : 0),
           &a);
    a.qp_state = PVRDMA_QPS_RTS;
    modify(d,
           PVRDMA_QP_SQ_PSN | (rc ? PVRDMA_QP_TIMEOUT | PVRDMA_QP_RETRY_CNT |
                                        PVRDMA_QP_RNR_RETRY | PVRDMA_QP_MAX_RD_ATOMIC
                                  : 0),
           &a);
}

void streamdev_open(struct streamdev *d, const struct streamdev_opts *o)
{
    struct hello hello, peer = {.incarnation = 1, .psn = PSN, .mtu = PVRDMA_MTU_1024};
    struct vm *vm = &d->td->vm;
    struct conn *c;
    int fd[2];

    d->pd = testdev_pd(d->td, 0);
    create_mrs(d);
    create_queues(d, o->type);
    connect_qp(d, o);
    g_assert_cmpint(
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd), ==, 0);
    if (o->sndbuf) {
        setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &o->sndbuf, sizeof(o->sndbuf));
    }
    d->fd = fd[1];
    vm_token_take(vm);
    c = d->qp->req.conn;
    g_assert_true(c && c->initiator == !o->responder);
    pthread_mutex_lock(&d->qp->lock);
    conn_hello(c, &hello);
    peer.unreliable = !c->reliable;
    g_assert_true(socket_up(c, fd[0], &o->framing, c->initiator, &hello, &peer));
    pthread_mutex_unlock(&d->qp->lock);
    vm_token_release(vm);
}

void streamdev_close(struct streamdev *d)
{
    g_assert_cmpuint(testdev_handle(d->td, PVRDMA_CMD_DESTROY_QP, d->qp->handle), ==, 0);
    g_assert_cmpuint(testdev_handle(d->td, PVRDMA_CMD_DESTROY_CQ, d->cq), ==, 0);
    for (unsigned i = 0; i < STREAMDEV_MRS; i++) {
        g_assert_cmpuint(testdev_handle(d->td, PVRDMA_CMD_DESTROY_MR, d->mr[i]), ==, 0);
    }
    g_assert_cmpuint(testdev_handle(d->td, PVRDMA_CMD_DESTROY_PD, d->pd), ==, 0);
    close(d->fd);
}

/* ---- its worker ---- */

struct call {
    struct source source; /* first */
    void (*fn)(void *arg);
    void *arg;
    _Atomic bool done;
};

static void run_call(struct source *s)
{
    struct call *c = (struct call *)(void *)s;

    if (!atomic_load(&c->done)) {
        c->fn(c->arg);
        atomic_store(&c->done, true);
    }
}

void streamdev_on_worker(struct streamdev *d, void (*fn)(void *arg), void *arg)
{
    struct call c = {.source = {.fd = -1, .ready = run_call}, .fn = fn, .arg = arg};

    g_assert_true(worker_add_source(d->td->vm.dp.worker, &c.source, 0)); /* pokes it */
    while (!atomic_load(&c.done)) {
        g_usleep(20);
    }
    worker_remove_source(&c.source);
    datapath_wake(&d->td->vm); /* what it has to do from now on */
}

struct stream *streamdev_stream(const struct streamdev *d)
{
    struct stream *s = d->qp->req.conn->s;

    return s && !stream_is_over(s) ? s : NULL;
}

int streamdev_unread(const struct streamdev *d)
{
    struct stream *s = streamdev_stream(d);
    int n = 0;

    return s && ioctl(s->socket.fd, SIOCINQ, &n) == 0 ? n : 0;
}

struct stream *streamdev_serve(struct streamdev *d)
{
    struct vm *vm = &d->td->vm;
    int was = streamdev_unread(d), n;

    for (unsigned idle = 0; idle < IDLE_TURNS; idle++) {
        atomic_store(&d->qp->req.conn->net->net.ready, true);
        sched_serve(worker_self(), vm, now_ns());
        n = streamdev_unread(d);
        idle = n < was ? 0 : idle;
        was = n;
    }
    return streamdev_stream(d);
}

/* ---- the guest ---- */

void streamdev_post_recv(struct streamdev *d, uint32_t len)
{
    struct pvrdma_ring_state *st = testdev_ptr(d->td, d->qp_first);
    uint32_t tail = st->rx.prod_tail, slot = pvrdma_idx_slot(tail, STREAMDEV_WR);
    uint8_t *wqe = testdev_ptr(d->td, d->qp_first + (1 + SEND_PAGES) * 4096 + slot * 128);
    struct pvrdma_rq_wqe_hdr h = {.wr_id = d->posted, .num_sge = 1};
    struct pvrdma_sge s = {
        .addr = STREAMDEV_VA, .length = len, .lkey = d->key[STREAMDEV_ALL]};

    if (d->posted - d->received < STREAMDEV_WR) {
        memcpy(wqe, &h, sizeof(h));
        memcpy(wqe + sizeof(h), &s, sizeof(s));
        st->rx.prod_tail = pvrdma_idx_next(tail, STREAMDEV_WR);
        d->posted++;
        doorbell_set(&d->td->vm.guest.db.own->recv, d->qp->handle);
        datapath_wake(&d->td->vm);
    }
}

void streamdev_post_send(struct streamdev *d, struct pvrdma_sq_wqe_hdr h, uint32_t len)
{
    struct pvrdma_ring_state *st = testdev_ptr(d->td, d->qp_first);
    uint32_t tail = st->tx.prod_tail, slot = pvrdma_idx_slot(tail, STREAMDEV_WR);
    uint8_t *wqe = testdev_ptr(d->td, d->qp_first + 4096 + slot * 256);
    struct pvrdma_sge s = {
        .addr = STREAMDEV_VA, .length = len, .lkey = d->key[STREAMDEV_ALL]};

    if (((tail - st->tx.cons_head) & (2 * STREAMDEV_WR - 1)) < STREAMDEV_WR) {
        h.wr_id = UINT32_MAX; /* no receive's */
        h.num_sge = len ? 1 : 0;
        memcpy(wqe, &h, sizeof(h));
        memcpy(wqe + sizeof(h), &s, sizeof(s));
        st->tx.prod_tail = pvrdma_idx_next(tail, STREAMDEV_WR);
        datapath_ring(&d->td->vm, d->qp->handle);
    }
}

void streamdev_register(struct streamdev *d, uint32_t key)
{
    struct pvrdma_sq_wqe_hdr h = {
        .opcode = PVRDMA_WR_FAST_REG,
        .wr.fast_reg = {.iova_start = STREAMDEV_VA,
                        .pl_pdir_dma = d->mr_pdir[STREAMDEV_FAST],
                        .page_shift = PVRDMA_PAGE_SHIFT,
                        .page_list_len = STREAMDEV_PAGES,
                        .length = STREAMDEV_LEN,
                        .access_flags = 0xf,
                        .rkey = key}};

    d->key[STREAMDEV_FAST] = key;
    streamdev_post_send(d, h, 0);
}

bool streamdev_poll(struct streamdev *d, struct pvrdma_cqe *c)
{
    struct pvrdma_ring_state *st = testdev_ptr(d->td, d->cq_first);
    uint32_t head = st->rx.cons_head;

    if (head == __atomic_load_n(&st->rx.prod_tail, __ATOMIC_ACQUIRE)) {
        return false;
    }
    memcpy(c,
           testdev_ptr(d->td, d->cq_first + 4096 +
                                  pvrdma_idx_slot(head, STREAMDEV_WR) * sizeof(*c)),
           sizeof(*c));
    d->received += c->wr_id != UINT32_MAX;
    __atomic_store_n(&st->rx.cons_head, pvrdma_idx_next(head, STREAMDEV_WR),
                     __ATOMIC_RELEASE);
    return true;
}

/* ---- the peer ---- */

void streamdev_frame(GByteArray *to, const uint8_t *ulpdu, uint32_t len, bool crc_on)
{
    uint8_t length[FPDU_LENGTH], tail[FPDU_MAX_TAIL];
    uint32_t crc;

    put_be16(length, (uint16_t)len);
    crc = crc32c_add(CRC32C_INIT, length, sizeof(length));
    g_byte_array_append(to, length, sizeof(length));
    if (len) {
        g_byte_array_append(to, ulpdu, len);
    }
    g_byte_array_append(to, tail,
                        (guint)fpdu_tail(len, crc_on, crc32c_add(crc, ulpdu, len), tail));
}

void streamdev_segment(GByteArray *to, const struct rdmap_segment *s, uint8_t fill,
                       uint32_t len, bool crc_on)
{
    uint8_t *ulpdu = g_malloc(RDMAP_MAX_HEAD + len);
    size_t head = rdmap_put(s, ulpdu);

    memset(ulpdu + head, fill, len);
    streamdev_frame(to, ulpdu, (uint32_t)head + len, crc_on);
    g_free(ulpdu);
}
