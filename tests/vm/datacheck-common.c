/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the parts of datacheck work with: patterns, the connection to the other end,
 * objects and their completions.
 */
#include "datacheck.h"
#include "device.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define DEPTH  32
#define INLINE 96
#define WAIT_S 60

struct datacheck s = {.gid_index = 0, .port = 18515, .rounds = 1};

void die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "datacheck: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n%lu checks, %lu errors\n", s.checks, s.errors + 1);
    exit(1);
}

void check(bool ok, const char *fmt, ...)
{
    va_list ap;

    s.checks++;
    if (ok) {
        return;
    }
    if (++s.errors <= 20) {
        va_start(ap, fmt);
        vprintf(fmt, ap);
        va_end(ap);
        printf("\n");
    }
}

/* ---- patterns ---- */

static uint8_t pattern(uint32_t seed, uint32_t i)
{
    uint32_t x = (seed * 2654435761u) ^ (i * 2246822519u);

    return (uint8_t)(x ^ x >> 15 ^ x >> 24);
}

void fill(uint8_t *p, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        p[i] = pattern(seed, i);
    }
}

/* First byte that differs, or @len. */
uint32_t differs(const uint8_t *p, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        if (p[i] != pattern(seed, i)) {
            return i;
        }
    }
    return len;
}

/* Surround [p, p + len) with guard bytes and spoil it. */
void spoil(uint8_t *p, uint32_t len)
{
    memset(p - GUARD, 0xa5, len + 2 * GUARD);
}

void verify(const char *what, const uint8_t *p, uint32_t len, uint32_t seed)
{
    uint32_t at = differs(p, len, seed);
    bool guard = true;

    for (uint32_t i = 1; i <= GUARD; i++) {
        guard = guard && p[-(int)i] == 0xa5 && p[len + i - 1] == 0xa5;
    }
    check(at == len, "%s: %u bytes: byte %u differs", what, len, at);
    check(guard, "%s: %u bytes: bytes around the buffer changed", what, len);
}

/* ---- the other end, over TCP ---- */

void sock_write(const void *p, size_t len)
{
    while (len) {
        ssize_t n = write(s.sock, p, len);

        DIE_IF(n <= 0, "connection to the peer lost: %s", strerror(errno));
        p = (const char *)p + n;
        len -= (size_t)n;
    }
}

void sock_read(void *p, size_t len)
{
    while (len) {
        ssize_t n = read(s.sock, p, len);

        DIE_IF(n <= 0, "connection to the peer lost");
        p = (char *)p + n;
        len -= (size_t)n;
    }
}

/* Both ends have come here. */
void barrier(char tag)
{
    char c;

    sock_write(&tag, 1);
    sock_read(&c, 1);
    DIE_IF(c != tag, "out of step with the peer: %c, not %c", c, tag);
}

static int tcp_connect(struct addrinfo *ai)
{
    for (int i = 0; i < WAIT_S * 5; i++) {
        int fd = socket(ai->ai_family, SOCK_STREAM, 0);

        if (fd >= 0 && connect(fd, ai->ai_addr, ai->ai_addrlen) == 0) {
            return fd;
        }
        close(fd);
        usleep(200000);
    }
    die("cannot connect to %s", s.server);
}

static int tcp_accept(struct addrinfo *ai)
{
    int one = 1, fd = socket(ai->ai_family, SOCK_STREAM, 0), conn;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    DIE_IF(fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 1),
           "cannot listen on port %d: %s", s.port, strerror(errno));
    conn = accept(fd, NULL, NULL);
    DIE_IF(conn < 0, "accept: %s", strerror(errno));
    close(fd);
    return conn;
}

void tcp_open(void)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICHOST,
                             .ai_family = s.server ? AF_UNSPEC : AF_INET,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *ai;
    char port[16];
    int one = 1;

    snprintf(port, sizeof(port), "%d", s.port);
    DIE_IF(getaddrinfo(s.server, port, &hints, &ai), "bad address %s",
           s.server ? s.server : "");
    s.sock = s.server ? tcp_connect(ai) : tcp_accept(ai);
    freeaddrinfo(ai);
    setsockopt(s.sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- verbs ---- */

void open_device(void)
{
    s.ctx = device_open(s.dev);
    DIE_IF(!s.ctx, "cannot open the device: %s", strerror(errno));
}

#define EX_UC                                                                         \
    (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE | \
     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
#define EX_RC                                                               \
    (EX_UC | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | \
     IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
#define EX_KEYS \
    (IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_BIND_MW)

static struct ibv_qp *create_qp(int i, uint32_t max_inline)
{
    struct ibv_qp_init_attr_ex a = {
        .send_cq = s.scq,
        .recv_cq = s.rcq,
        .srq = is_srq(i) ? s.srq : NULL,
        .qp_type = is_uc(i) ? IBV_QPT_UC : IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH,
                .max_recv_wr = DEPTH,
                .max_send_sge = s.nsge,
                .max_recv_sge = s.nsge,
                .max_inline_data = max_inline},
        .comp_mask = IBV_QP_INIT_ATTR_PD,
        .pd = s.pd,
    };
    struct ibv_qp *qp;

    if (s.ex) {
        a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        a.send_ops_flags = is_uc(i) ? EX_UC : i == MW_QP ? EX_RC | EX_KEYS : EX_RC;
    }
    qp = ibv_create_qp_ex(s.ctx, &a);
    if (qp && a.cap.max_inline_data < s.me.max_inline) {
        s.me.max_inline = a.cap.max_inline_data;
    }
    return qp;
}

/*
 * UC, SRQs, inline data and memory windows are not offered by every device or driver:
 * without them, at either end, their parts are left out.
 */
static void create_qps(void)
{
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = DEPTH, .max_sge = s.nsge}};

    s.srq = ibv_create_srq(s.pd, &srq);
    s.me.max_inline = INLINE;
    for (int i = 0; i < NQPS; i++) {
        if ((is_srq(i) && !s.srq) || (is_uc(i) && s.reliable) ||
            (i == MW_QP && !s.mw[0])) {
            continue;
        }
        s.qp[i] = create_qp(i, INLINE);
        if (!s.qp[i]) {
            s.qp[i] = create_qp(i, 0);
        }
        if (!s.qp[i] && s.ex && !i && (errno == EOPNOTSUPP || errno == ENOSYS)) {
            fprintf(stderr, "datacheck: no ibv_wr_*() here\n");
            exit(3);
        }
        DIE_IF(!s.qp[i] && !is_uc(i), "cannot create QP %d: %s", i, strerror(errno));
        if (s.qp[i]) {
            s.me.qpn[i] = s.qp[i]->qp_num;
            s.me.psn[i] = (s.qp[i]->qp_num * 7919u + (uint32_t)i) & 0xffffff;
        }
    }
}

/* Of both types or none. */
static void create_windows(void)
{
    s.mw[0] = ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
    s.mw[1] = s.mw[0] ? ibv_alloc_mw(s.pd, IBV_MW_TYPE_2) : NULL;
    if (s.mw[0] && !s.mw[1]) {
        ibv_dealloc_mw(s.mw[0]);
        s.mw[0] = NULL;
    }
}

void create_objects(void)
{
    struct ibv_device_attr da;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

    DIE_IF(ibv_query_device(s.ctx, &da), "query_device failed");
    s.nsge = (uint32_t)da.max_sge < MAX_SGE ? (uint32_t)da.max_sge : MAX_SGE;
    DIE_IF(posix_memalign((void **)&s.buf, 4096, 2 * AREA), "no memory");
    memset(s.buf, 0, 2 * AREA);
    s.pd = ibv_alloc_pd(s.ctx);
    s.scq = s.pd ? ibv_create_cq(s.ctx, NQPS * DEPTH, NULL, NULL, 0) : NULL;
    s.rcq = s.scq ? ibv_create_cq(s.ctx, NQPS * DEPTH, NULL, NULL, 0) : NULL;
    if (s.pd) {
        create_windows();
        access |= s.mw[0] ? IBV_ACCESS_MW_BIND : 0;
    }
    s.mr = s.rcq ? ibv_reg_mr(s.pd, s.buf, 2 * AREA, access) : NULL;
    DIE_IF(!s.mr, "cannot create PD, CQ or MR: %s", strerror(errno));
    create_qps();
    s.me.rkey = s.mr->rkey;
    s.me.addr = (uintptr_t)s.buf;
    s.me.max_sge = s.nsge;
    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &s.me.gid), "no GID with index %d",
           s.gid_index);
}

void qp_connect(int i)
{
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT,
                               .port_num = 1,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
                                                  IBV_ACCESS_REMOTE_READ |
                                                  IBV_ACCESS_REMOTE_ATOMIC};
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR,
                              .path_mtu = IBV_MTU_1024,
                              .dest_qp_num = s.other.qpn[i],
                              .rq_psn = s.other.psn[i],
                              .max_dest_rd_atomic = 4,
                              .min_rnr_timer = 5,
                              .ah_attr = {.is_global = 1,
                                          .port_num = 1,
                                          .grh = {.dgid = s.other.gid,
                                                  .hop_limit = 64,
                                                  .sgid_index = (uint8_t)s.gid_index}}};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS,
                              .timeout = 18,
                              .retry_cnt = 7,
                              .rnr_retry = 7,
                              .sq_psn = s.me.psn[i],
                              .max_rd_atomic = 4};

    int rtr_mask =
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    int rts_mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    struct ibv_wc left;

    if (is_uc(i)) {
        init.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    } else {
        rtr_mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        rts_mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                    IBV_QP_MAX_QP_RD_ATOMIC;
    }
    DIE_IF(ibv_modify_qp(s.qp[i], &reset, IBV_QP_STATE), "cannot reset QP %d: %s", i,
           strerror(errno));
    while (ibv_poll_cq(s.scq, 1, &left) > 0 || ibv_poll_cq(s.rcq, 1, &left) > 0) {
    }
    DIE_IF(ibv_modify_qp(s.qp[i], &init,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                             IBV_QP_ACCESS_FLAGS) ||
               ibv_modify_qp(s.qp[i], &rtr, rtr_mask) ||
               ibv_modify_qp(s.qp[i], &rts, rts_mask),
           "cannot connect QP %d: %s", i, strerror(errno));
}

/* Both ends have this one. */
bool has_qp(int i)
{
    return s.me.qpn[i] && s.other.qpn[i];
}

/* Addresses of both ends: the struct is exchanged as it is (same program). */
void exchange(void)
{
    sock_write(&s.me, sizeof(s.me));
    sock_read(&s.other, sizeof(s.other));
    if (s.other.max_sge < s.nsge) {
        s.nsge = s.other.max_sge;
    }
    for (int i = 0; i < NQPS; i++) {
        if (has_qp(i)) {
            qp_connect(i);
        }
    }
    barrier('C');
}

void close_all(void)
{
    for (int i = 0; i < NQPS; i++) {
        if (s.qp[i] && ibv_destroy_qp(s.qp[i])) {
            check(false, "destroy_qp failed");
        }
    }
    for (int i = 0; i < 2; i++) {
        if (s.mw[i] && ibv_dealloc_mw(s.mw[i])) {
            check(false, "dealloc_mw failed");
        }
    }
    if ((s.srq && ibv_destroy_srq(s.srq)) || ibv_dereg_mr(s.mr) ||
        ibv_destroy_cq(s.scq) || ibv_destroy_cq(s.rcq) || ibv_dealloc_pd(s.pd) ||
        ibv_close_device(s.ctx)) {
        check(false, "an object could not be destroyed");
    }
    close(s.sock);
    free(s.buf);
}

struct ibv_wc wait_any(struct ibv_cq *cq, const char *what)
{
    time_t end = time(NULL) + WAIT_S;
    struct ibv_wc wc;

    for (unsigned spins = 0;; spins++) {
        int n = ibv_poll_cq(cq, 1, &wc);

        DIE_IF(n < 0, "%s: poll_cq failed", what);
        if (n == 1) {
            return wc;
        }
        DIE_IF((spins & 0xfff) == 0xfff && time(NULL) > end, "%s: no completion", what);
    }
}

struct ibv_wc wait_wc(struct ibv_cq *cq, const char *what)
{
    struct ibv_wc wc = wait_any(cq, what);

    DIE_IF(wc.status != IBV_WC_SUCCESS, "%s: wr_id %llu ended with %s", what,
           (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
    return wc;
}

struct ibv_sge sge_at(uint64_t off, uint32_t len)
{
    struct ibv_sge e = {
        .addr = (uintptr_t)s.buf + off, .length = len, .lkey = s.mr->lkey};

    return e;
}

void post_recv(int q, uint64_t id, struct ibv_sge *sge, int n)
{
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = n}, *bad;

    DIE_IF(is_srq(q) ? ibv_post_srq_recv(s.srq, &wr, &bad)
                     : ibv_post_recv(s.qp[q], &wr, &bad),
           "post_recv failed");
}

static void set_data(struct ibv_qp_ex *qp, const struct ibv_send_wr *wr)
{
    struct ibv_data_buf list[MAX_SGE];

    if (!(wr->send_flags & IBV_SEND_INLINE)) {
        ibv_wr_set_sge_list(qp, (size_t)wr->num_sge, wr->sg_list);
        return;
    }
    for (int i = 0; i < wr->num_sge; i++) {
        list[i].addr = (void *)(uintptr_t)wr->sg_list[i].addr;
        list[i].length = wr->sg_list[i].length;
    }
    ibv_wr_set_inline_data_list(qp, (size_t)wr->num_sge, list);
}

/* What ibv_post_send() does with @wr. */
static int post_ex(struct ibv_qp_ex *qp, const struct ibv_send_wr *wr)
{
    uint64_t to = wr->wr.rdma.remote_addr;
    uint32_t key = wr->wr.rdma.rkey;

    ibv_wr_start(qp);
    qp->wr_id = wr->wr_id;
    qp->wr_flags = wr->send_flags & ~(unsigned)IBV_SEND_INLINE;
    switch (wr->opcode) {
    case IBV_WR_SEND:
        ibv_wr_send(qp);
        break;
    case IBV_WR_SEND_WITH_IMM:
        ibv_wr_send_imm(qp, wr->imm_data);
        break;
    case IBV_WR_SEND_WITH_INV:
        ibv_wr_send_inv(qp, wr->invalidate_rkey);
        break;
    case IBV_WR_RDMA_WRITE:
        ibv_wr_rdma_write(qp, key, to);
        break;
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        ibv_wr_rdma_write_imm(qp, key, to, wr->imm_data);
        break;
    case IBV_WR_RDMA_READ:
        ibv_wr_rdma_read(qp, key, to);
        break;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        ibv_wr_atomic_cmp_swp(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                              wr->wr.atomic.compare_add, wr->wr.atomic.swap);
        break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        ibv_wr_atomic_fetch_add(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr,
                                wr->wr.atomic.compare_add);
        break;
    case IBV_WR_LOCAL_INV:
        ibv_wr_local_inv(qp, wr->invalidate_rkey);
        return ibv_wr_complete(qp);
    case IBV_WR_BIND_MW:
        ibv_wr_bind_mw(qp, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
        return ibv_wr_complete(qp);
    default:
        die("opcode %d", (int)wr->opcode);
    }
    set_data(qp, wr);
    return ibv_wr_complete(qp);
}

void post_send(int q, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;
    int err =
        s.ex ? post_ex(ibv_qp_to_qp_ex(s.qp[q]), wr) : ibv_post_send(s.qp[q], wr, &bad);

    DIE_IF(err, "opcode %d is not posted: %s", (int)wr->opcode, strerror(err));
}
