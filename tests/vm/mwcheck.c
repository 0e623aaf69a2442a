/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * mwcheck: memory windows and changing regions, as a peer sees them.
 *
 *   mwcheck -d DEVICE -g GIDINDEX -p PORT [SERVER]
 *       Without SERVER the owner of the memory: it binds, invalidates and changes, and
 *       tells the other end over TCP what to read, write or add by which key.  What may
 *       be done must move the right bytes, what may not must fail there and move none.
 *   mwcheck -k -d DEVICE -g GIDINDEX
 *       Bind windows, of both types, made before and after their region, print "ready"
 *       and wait for a signal.
 *
 * The owner prints "N checks, N errors" and fails if there are errors.  One thread.
 * Needs libibverbs; the messages' patterns and the TCP connection are datacheck's.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "datacheck.h"
#include "mwsteps.h"
#include "options.h"
#include "rcqp.h"

#define SIZE 65536u
/* The owner's third has a protection domain of its own. */
#define QPS   3
#define OTHER 2

#define ALL_ACCESS                                                               \
    (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND)
/* IBV_ACCESS_FLUSH_GLOBAL and _PERSISTENT, newer than what this is built with.  A QP
 * takes them, as with any device that has no such requests. */
#define FLUSH (3u << 8)
#define RW    (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum op { WRITE, READ, ADD, SEND_INV, CONNECT, END };

struct order {
    uint32_t op, qp, rkey, len, seed, pad;
    uint64_t addr;
};

struct answer {
    uint32_t status; /* enum ibv_wc_status */
    uint32_t at;     /* READ: first byte that differs; ADD: what there was */
};

static struct {
    struct ibv_pd *pd[2];
    struct ibv_qp *qp[QPS];
    struct ibv_cq *cq;
    struct {
        uint32_t qpn[QPS], pad;
        union ibv_gid gid;
    } peer;
    struct ibv_mr *mr;
    uint8_t *area[2]; /* SIZE each; the other end uses the first */
    uint32_t seed;
} m;

static struct ibv_pd *pd_of(int qp)
{
    return m.pd[qp == OTHER && !s.server];
}

static void create(void)
{
    struct ibv_qp_init_attr init = {
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };

    m.pd[0] = ibv_alloc_pd(s.ctx);
    m.pd[1] = ibv_alloc_pd(s.ctx);
    m.cq = ibv_create_cq(s.ctx, 64, NULL, NULL, 0);
    DIE_IF(!m.pd[0] || !m.pd[1] || !m.cq, "PDs and CQ: %s", strerror(errno));
    init.send_cq = init.recv_cq = m.cq;
    for (int i = 0; i < QPS; i++) {
        m.qp[i] = ibv_create_qp(pd_of(i), &init);
        DIE_IF(!m.qp[i], "create_qp: %s", strerror(errno));
    }
    for (int i = 0; i < 2; i++) {
        DIE_IF(posix_memalign((void **)&m.area[i], 4096, SIZE), "no memory");
        memset(m.area[i], 0, SIZE);
    }
}

static struct ibv_mr *region(uint8_t *area, int access)
{
    struct ibv_mr *mr = ibv_reg_mr(m.pd[0], area, SIZE, access);

    DIE_IF(!mr, "reg_mr: %s", strerror(errno));
    return mr;
}

/* From any state to RTS. */
static void connect_qp(uint32_t i)
{
    int err = rcqp_modify(m.qp[i], IBV_QPS_RESET, (struct ibv_qp_attr){0}, 0);
    struct ibv_wc wc;

    err = err ? err : rcqp_to_init(m.qp[i], (ALL_ACCESS & ~IBV_ACCESS_MW_BIND) | FLUSH);
    err = err ? err : rcqp_connect(m.qp[i], m.peer.qpn[i], &m.peer.gid, s.gid_index);
    DIE_IF(err, "connection of QP %u: %s", i, strerror(err));
    /* What it flushed. */
    while (ibv_poll_cq(m.cq, 1, &wc) > 0) {
    }
}

static void meet(void)
{
    uint32_t qpn[QPS + 1] = {0};
    union ibv_gid gid;

    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &gid), "query_gid: %s", strerror(errno));
    for (int i = 0; i < QPS; i++) {
        qpn[i] = m.qp[i]->qp_num;
    }
    sock_write(qpn, sizeof(qpn));
    sock_write(&gid, sizeof(gid));
    sock_read(&m.peer, sizeof(m.peer));
    for (uint32_t i = 0; i < QPS; i++) {
        connect_qp(i);
    }
    barrier('c');
}

/* ---- the other end ------------------------------------------------------------------
 */

static struct answer obey(const struct order *o)
{
    struct ibv_sge sge = {(uintptr_t)m.area[0], o->len, m.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1};
    struct answer a = {0};

    switch (o->op) {
    case WRITE:
        fill(m.area[0], o->len, o->seed);
        wr.opcode = IBV_WR_RDMA_WRITE;
        break;
    case READ:
        memset(m.area[0], 0xdd, o->len);
        wr.opcode = IBV_WR_RDMA_READ;
        break;
    case ADD:
        wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        wr.wr.atomic.compare_add = o->seed;
        wr.wr.atomic.remote_addr = o->addr;
        wr.wr.atomic.rkey = o->rkey;
        break;
    case SEND_INV:
        fill(m.area[0], o->len, o->seed);
        wr.opcode = IBV_WR_SEND_WITH_INV;
        wr.invalidate_rkey = o->rkey;
        break;
    default:
        connect_qp(o->qp);
        return a;
    }
    if (o->op == WRITE || o->op == READ) {
        wr.wr.rdma.remote_addr = o->addr;
        wr.wr.rdma.rkey = o->rkey;
    }
    DIE_IF(ibv_post_send(m.qp[o->qp], &wr, &bad), "post_send: %s", strerror(errno));
    a.status = wait_any(m.cq, "an order").status;
    if (o->op == READ) {
        a.at = differs(m.area[0], o->len, o->seed);
    } else if (o->op == ADD) {
        memcpy(&a.at, m.area[0], sizeof(a.at));
    }
    return a;
}

static void serve_orders(void)
{
    struct answer a;
    struct order o;

    m.mr = region(m.area[0], IBV_ACCESS_LOCAL_WRITE);
    for (;;) {
        sock_read(&o, sizeof(o));
        if (o.op == END) {
            return;
        }
        DIE_IF(o.qp >= QPS || o.len > SIZE, "a bad order");
        a = obey(&o);
        sock_write(&a, sizeof(a));
    }
}

/* ---- the owner ----------------------------------------------------------------------
 */

static struct answer tell(struct order o)
{
    struct answer a;

    sock_write(&o, sizeof(o));
    sock_read(&a, sizeof(a));
    return a;
}

static void reconnect(uint32_t qp)
{
    connect_qp(qp);
    tell((struct order){.op = CONNECT, .qp = qp});
}

/* A WRITE and a READ by the other end move @len bytes at @p. */
static void works(const char *what, uint32_t qp, uint32_t rkey, uint8_t *p, uint32_t len)
{
    struct order o = {.op = WRITE,
                      .qp = qp,
                      .rkey = rkey,
                      .len = len,
                      .seed = ++m.seed,
                      .addr = (uintptr_t)p};
    struct answer a;

    memset(p, 0, len);
    a = tell(o);
    check(a.status == IBV_WC_SUCCESS, "%s: WRITE: %s", what, ibv_wc_status_str(a.status));
    check(differs(p, len, o.seed) == len, "%s: WRITE: wrong bytes", what);
    o.op = READ;
    o.seed = ++m.seed;
    fill(p, len, o.seed);
    a = tell(o);
    check(a.status == IBV_WC_SUCCESS, "%s: READ: %s", what, ibv_wc_status_str(a.status));
    check(a.at == len, "%s: READ: byte %u differs", what, a.at);
}

static void reads(const char *what, uint32_t qp, uint32_t rkey, uint8_t *p, uint32_t len)
{
    struct answer a;

    fill(p, len, ++m.seed);
    a = tell((struct order){.op = READ,
                            .qp = qp,
                            .rkey = rkey,
                            .len = len,
                            .seed = m.seed,
                            .addr = (uintptr_t)p});
    check(a.status == IBV_WC_SUCCESS && a.at == len, "%s: READ: %s, byte %u", what,
          ibv_wc_status_str(a.status), a.at);
}

/* The other end may not, and nothing changes; then the QPs are connected anew. */
static void refused(const char *what, enum op op, uint32_t qp, uint32_t rkey, uint8_t *p,
                    uint32_t len)
{
    uint32_t seed = ++m.seed;
    struct answer a;

    for (int i = 0; i < 2; i++) {
        fill(m.area[i], SIZE, seed);
    }
    a = tell((struct order){.op = op,
                            .qp = qp,
                            .rkey = rkey,
                            .len = len,
                            .seed = seed + 1,
                            .addr = (uintptr_t)p});
    check(a.status == IBV_WC_REM_ACCESS_ERR, "%s: %s", what, ibv_wc_status_str(a.status));
    for (int i = 0; i < 2; i++) {
        check(differs(m.area[i], SIZE, seed) == SIZE, "%s: bytes changed", what);
    }
    m.seed++;
    reconnect(qp);
}

static struct ibv_mw *window(enum ibv_mw_type type)
{
    struct ibv_mw *mw = ibv_alloc_mw(m.pd[0], type);

    DIE_IF(!mw, "alloc_mw %d: %s", type, strerror(errno));
    return mw;
}

static void post(struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    int err = ibv_post_send(m.qp[0], wr, &bad);

    DIE_IF(err, "opcode %d: %s", (int)wr->opcode, strerror(err));
}

static struct mw_actor owner(void)
{
    return (struct mw_actor){m.qp[0], post};
}

/* Bind by QP 0; the completion's status. */
static enum ibv_wc_status bind(struct ibv_mw *mw, struct ibv_mr *mr, uint8_t *p,
                               uint64_t len, unsigned access)
{
    struct mw_actor by = owner();
    struct ibv_mw_bind_info info = {
        .mr = mr, .addr = (uintptr_t)p, .length = len, .mw_access_flags = access};

    return mw_bind(&by, mw, info).status;
}

static void must_bind(const char *what, struct ibv_mw *mw, struct ibv_mr *mr, uint8_t *p,
                      uint64_t len, unsigned access)
{
    enum ibv_wc_status status = bind(mw, mr, p, len, access);

    check(status == IBV_WC_SUCCESS, "%s: %s", what, ibv_wc_status_str(status));
}

static void no_bind(const char *what, struct ibv_mw *mw, struct ibv_mr *mr, uint8_t *p,
                    uint64_t len, unsigned access)
{
    enum ibv_wc_status status = bind(mw, mr, p, len, access);

    check(status == IBV_WC_MW_BIND_ERR, "%s: %s", what, ibv_wc_status_str(status));
    reconnect(0);
}

static void busy(const char *what, struct ibv_mr *mr)
{
    int err = ibv_dereg_mr(mr);

    check(err == EBUSY, "%s: dereg_mr: %s", what, strerror(err));
    DIE_IF(!err, "the region is gone");
    errno = 0;
    err = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL_ACCESS);
    check(err && errno == EBUSY, "%s: rereg_mr: %d, %s", what, err, strerror(errno));
}

static void must_dereg(const char *what, struct ibv_mr *mr)
{
    int err = ibv_dereg_mr(mr);

    check(!err, "%s: dereg_mr: %s", what, strerror(err));
}

static void must_dealloc(struct ibv_mw *mw)
{
    int err = ibv_dealloc_mw(mw);

    check(!err, "dealloc_mw: %s", strerror(err));
}

static void windows_type_1(void)
{
    struct ibv_mr *mr = region(m.area[0], ALL_ACCESS);
    struct ibv_mr *closed = region(m.area[1], ALL_ACCESS & ~IBV_ACCESS_MW_BIND);
    uint8_t *p = m.area[0] + 4096 + 104, *q = m.area[0] + 32768;
    struct ibv_mw *mw = window(IBV_MW_TYPE_1);
    uint32_t old = mw->rkey;

    refused("type 1, not bound", WRITE, 0, old, p, 8);
    no_bind("type 1, region without MW_BIND", mw, closed, m.area[1], 4096, RW);
    no_bind("type 1, beyond the region", mw, mr, m.area[0] + SIZE - 4096, 4097, RW);
    must_bind("type 1", mw, mr, p, 5000, RW);
    check(mw->rkey != old, "the key is the old one");
    works("type 1", 0, mw->rkey, p, 5000);
    works("type 1, by another QP", 1, mw->rkey, p + 8, 100);
    refused("type 1, another PD", READ, OTHER, mw->rkey, p, 8);
    refused("type 1, before it", WRITE, 0, mw->rkey, p - 1, 8);
    refused("type 1, behind it", WRITE, 0, mw->rkey, p + 4993, 8);
    refused("type 1, no atomics", ADD, 0, mw->rkey, p, 8);
    works("type 1, after refusals", 0, mw->rkey, p, 5000);
    busy("type 1", mr);

    old = mw->rkey;
    must_bind("type 1 again", mw, mr, q, 4096, IBV_ACCESS_REMOTE_READ);
    refused("type 1, the key before", READ, 0, old, q, 8);
    reads("type 1, read only", 0, mw->rkey, q, 4096);
    refused("type 1, read only", WRITE, 0, mw->rkey, q, 8);
    busy("type 1 again", mr);

    old = mw->rkey;
    must_bind("type 1, length 0", mw, mr, q, 0, 0);
    refused("type 1, unbound", READ, 0, old, q, 8);
    refused("type 1, unbound, the new key", READ, 0, mw->rkey, q, 8);
    must_dereg("type 1, unbound", mr);
    must_dereg("no windows", closed);
    must_dealloc(mw);
}

static void invalidate(uint32_t rkey)
{
    struct mw_actor by = owner();

    mw_local_inv(&by, rkey);
}

/* The other end ends the key; the message comes too. */
static void invalidated_by_send(uint32_t rkey, struct ibv_mr *mr)
{
    struct ibv_sge sge = {(uintptr_t)m.area[0], 64, mr->lkey};
    struct ibv_recv_wr *bad, wr = {.wr_id = 9, .sg_list = &sge, .num_sge = 1};
    struct order o = {.op = SEND_INV, .rkey = rkey, .len = 64, .seed = ++m.seed};
    struct answer a;
    struct ibv_wc wc;

    DIE_IF(ibv_post_recv(m.qp[0], &wr, &bad), "post_recv: %s", strerror(errno));
    a = tell(o);
    check(a.status == IBV_WC_SUCCESS, "SEND_WITH_INV: %s", ibv_wc_status_str(a.status));
    wc = wait_any(m.cq, "receive");
    mw_invalidated(&wc, wr.wr_id, 64, rkey);
    check(differs(m.area[0], 64, o.seed) == 64, "receive: wrong bytes");
}

static void windows_type_2(void)
{
    struct ibv_mr *mr = region(m.area[0], ALL_ACCESS);
    struct ibv_mw *mw = window(IBV_MW_TYPE_2);
    uint8_t *p = m.area[0] + 8192;
    uint32_t old;

    must_bind("type 2", mw, mr, p, 8192, RW | IBV_ACCESS_REMOTE_ATOMIC);
    works("type 2", 0, mw->rkey, p, 8192);
    memset(p, 0, 8);
    check(
        tell((struct order){
                 .op = ADD, .rkey = mw->rkey, .len = 8, .seed = 5, .addr = (uintptr_t)p})
                    .status == IBV_WC_SUCCESS &&
            *p == 5,
        "type 2: ADD: %u", *p);
    refused("type 2, by a QP that did not bind it", WRITE, 1, mw->rkey, p, 8);
    busy("type 2", mr);
    invalidate(mw->rkey);
    refused("type 2, LOCAL_INV", WRITE, 0, mw->rkey, p, 8);

    old = mw->rkey;
    must_bind("type 2 again", mw, mr, p, 4096, RW);
    check(mw->rkey != old, "the key is the old one");
    works("type 2 again", 0, mw->rkey, p, 4096);
    invalidated_by_send(mw->rkey, mr);
    refused("type 2, SEND_WITH_INV", READ, 0, mw->rkey, p, 8);
    refused("type 2, the key before", READ, 0, old, p, 8);

    must_bind("type 2, third time", mw, mr, p, 4096, RW);
    old = mw->rkey;
    no_bind("type 2, bound already", mw, mr, p, 8, RW);
    busy("type 2, after a failed bind", mr);
    must_dealloc(mw);
    refused("type 2, deallocated", READ, 0, old, p, 8);
    must_dereg("type 2, deallocated", mr);
}

static void change(const char *what, struct ibv_mr *mr, int flags, int pd, uint8_t *area,
                   int access)
{
    uint32_t lkey = mr->lkey, rkey = mr->rkey;
    int err;

    errno = 0;
    err = ibv_rereg_mr(mr, flags, flags & IBV_REREG_MR_CHANGE_PD ? m.pd[pd] : NULL,
                       flags & IBV_REREG_MR_CHANGE_TRANSLATION ? area : NULL,
                       flags & IBV_REREG_MR_CHANGE_TRANSLATION ? SIZE : 0, access);
    check(!err, "%s: rereg_mr: %d, %s", what, err, strerror(errno));
    check(mr->lkey == lkey && mr->rkey == rkey, "%s: other keys", what);
}

static void regions(void)
{
    struct ibv_mr *mr = region(m.area[0], ALL_ACCESS);
    uint8_t *a = m.area[0] + 4000, *b = m.area[1] + 4000;
    int err;

    works("region", 0, mr->rkey, a, 9000);
    change("access", mr, IBV_REREG_MR_CHANGE_ACCESS, 0, NULL,
           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    reads("region, read only", 0, mr->rkey, a, 9000);
    refused("region, read only", WRITE, 0, mr->rkey, a, 8);
    refused("region, read only", ADD, 0, mr->rkey, m.area[0], 8);
    change("access", mr, IBV_REREG_MR_CHANGE_ACCESS, 0, NULL, ALL_ACCESS);
    works("region, writable", 0, mr->rkey, a, 9000);

    change("memory", mr, IBV_REREG_MR_CHANGE_TRANSLATION, 0, m.area[1], 0);
    works("region, other memory", 0, mr->rkey, b, 9000);
    refused("region, the memory before", WRITE, 0, mr->rkey, a, 8);

    change("PD", mr, IBV_REREG_MR_CHANGE_PD, 1, NULL, 0);
    works("region, other PD", OTHER, mr->rkey, b, 9000);
    refused("region, the PD before", READ, 0, mr->rkey, b, 8);
    change("the same PD", mr, IBV_REREG_MR_CHANGE_PD, 1, NULL, 0);
    works("region, the same PD", OTHER, mr->rkey, b, 9000);

    /* What is refused changes nothing. */
    err = ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD, m.pd[0],
                       NULL, 0, IBV_ACCESS_REMOTE_WRITE);
    check(err, "REMOTE_WRITE without LOCAL_WRITE was taken");
    works("region, after a refusal", OTHER, mr->rkey, b, 9000);

    change("all", mr,
           IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_PD |
               IBV_REREG_MR_CHANGE_TRANSLATION,
           0, m.area[0], IBV_ACCESS_LOCAL_WRITE | RW);
    works("region, all changed", 0, mr->rkey, a, 9000);
    refused("region, all changed, no atomics", ADD, 0, mr->rkey, m.area[0], 8);
    refused("region, all changed, the PD before", READ, OTHER, mr->rkey, a, 8);
    must_dereg("region", mr);
}

/* ---- windows that nobody ends -------------------------------------------------------
 */

static void keep(void)
{
    struct ibv_mw *mw[4];
    struct ibv_mr *mr;

    create();
    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &m.peer.gid), "query_gid: %s",
           strerror(errno));
    m.peer.qpn[0] = m.qp[1]->qp_num;
    m.peer.qpn[1] = m.qp[0]->qp_num;
    connect_qp(0);
    connect_qp(1);
    mw[0] = window(IBV_MW_TYPE_1);
    mw[1] = window(IBV_MW_TYPE_2);
    mr = region(m.area[0], ALL_ACCESS);
    mw[2] = window(IBV_MW_TYPE_1);
    mw[3] = window(IBV_MW_TYPE_2);
    for (uint32_t i = 0; i < 4; i++) {
        must_bind("kept", mw[i], mr, m.area[0] + i * 4096, 4096, RW);
    }
    busy("kept", mr);
    puts(s.errors ? "errors" : "ready");
    fflush(stdout);
    pause();
}

int main(int argc, char **argv)
{
    struct options o = {.number = (unsigned)s.port};

    if (!options_read(&o, argc, argv, 'p', 'k')) {
        fprintf(stderr, "usage: mwcheck -d DEVICE -g GIDINDEX -p PORT [SERVER]\n"
                        "       mwcheck -k -d DEVICE -g GIDINDEX\n");
        return 2;
    }
    s.dev = o.device;
    s.gid_index = o.gid_index;
    s.port = (int)o.number;
    s.server = argv[optind];
    open_device();
    if (o.flag) {
        keep();
        return 1;
    }
    tcp_open();
    create();
    meet();
    if (s.server) {
        serve_orders();
        return 0;
    }
    windows_type_1();
    windows_type_2();
    regions();
    sock_write(&(struct order){.op = END}, sizeof(struct order));
    printf("%lu checks, %lu errors\n", s.checks, s.errors);
    return s.errors ? 1 : 0;
}
