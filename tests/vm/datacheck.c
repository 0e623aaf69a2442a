/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * datacheck: moves known patterns with every RC operation and compares each
 * byte that arrives.  Plain libibverbs, so it runs on any RDMA device.
 *
 *   datacheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS]             server
 *   datacheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] SERVER-IP   client
 *
 * Both ends run the same programme and exchange addresses over TCP.  A check is
 * one message: its completion, length, immediate data, every byte of it and the
 * bytes around it.  Parts:
 *
 *   sizes   SEND, SEND_IMM, WRITE, WRITE_IMM, READ around page and 64 KiB
 *           limits, source and destination unaligned
 *   sge     many SGEs of random lengths at both ends
 *   atomic  compare-and-swap, fetch-and-add
 *   both    all operations on 16 QPs, both directions at once
 *
 * In every step one end acts (posts operations), and the other prepares and
 * verifies memory; then the roles change.  TCP messages order the steps: "ready"
 * (buffers are filled, receives posted) and "done" (completions seen).
 *
 * Prints "N checks, N errors"; exits 0 only without errors.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NQP     16
#define DEPTH   32
#define MAX_SGE 8
#define AREA    (2u << 20) /* each of the two areas of a side's buffer */
#define GUARD   64u
#define WAIT_S  60

struct peer {
    uint32_t qpn[NQP];
    uint32_t psn[NQP];
    uint32_t rkey;
    uint32_t max_sge;
    uint64_t addr;
    union ibv_gid gid;
};

static struct {
    const char *dev;
    int gid_index, port, rounds;
    const char *server;
    int sock;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *scq, *rcq;
    struct ibv_mr *mr;
    struct ibv_qp *qp[NQP];
    struct peer me, other;
    uint32_t nsge;
    uint8_t *buf; /* [source area][destination area] */
    unsigned long checks, errors;
} s = {.gid_index = 0, .port = 18515, .rounds = 1};

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

static void die(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "datacheck: ");
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n%lu checks, %lu errors\n", s.checks, s.errors + 1);
    exit(1);
}

static void check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void check(bool ok, const char *fmt, ...)
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

static void fill(uint8_t *p, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        p[i] = pattern(seed, i);
    }
}

/* First byte that differs, or @len. */
static uint32_t differs(const uint8_t *p, uint32_t len, uint32_t seed)
{
    for (uint32_t i = 0; i < len; i++) {
        if (p[i] != pattern(seed, i)) {
            return i;
        }
    }
    return len;
}

/* Surround [p, p + len) with guard bytes and spoil it. */
static void spoil(uint8_t *p, uint32_t len)
{
    memset(p - GUARD, 0xa5, len + 2 * GUARD);
}

static void verify(const char *what, const uint8_t *p, uint32_t len, uint32_t seed)
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

static void sock_write(const void *p, size_t len)
{
    while (len) {
        ssize_t n = write(s.sock, p, len);

        if (n <= 0) {
            die("connection to the peer lost: %s", strerror(errno));
        }
        p = (const char *)p + n;
        len -= (size_t)n;
    }
}

static void sock_read(void *p, size_t len)
{
    while (len) {
        ssize_t n = read(s.sock, p, len);

        if (n <= 0) {
            die("connection to the peer lost");
        }
        p = (char *)p + n;
        len -= (size_t)n;
    }
}

/* Both ends have come here. */
static void barrier(char tag)
{
    char c;

    sock_write(&tag, 1);
    sock_read(&c, 1);
    if (c != tag) {
        die("out of step with the peer: %c, not %c", c, tag);
    }
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
    if (fd < 0 || bind(fd, ai->ai_addr, ai->ai_addrlen) || listen(fd, 1)) {
        die("cannot listen on port %d: %s", s.port, strerror(errno));
    }
    conn = accept(fd, NULL, NULL);
    if (conn < 0) {
        die("accept: %s", strerror(errno));
    }
    close(fd);
    return conn;
}

static void tcp_open(void)
{
    struct addrinfo hints = {.ai_flags = AI_PASSIVE | AI_NUMERICHOST,
                             .ai_family = s.server ? AF_UNSPEC : AF_INET,
                             .ai_socktype = SOCK_STREAM};
    struct addrinfo *ai;
    char port[16];
    int one = 1;

    snprintf(port, sizeof(port), "%d", s.port);
    if (getaddrinfo(s.server, port, &hints, &ai)) {
        die("bad address %s", s.server ? s.server : "");
    }
    s.sock = s.server ? tcp_connect(ai) : tcp_accept(ai);
    freeaddrinfo(ai);
    setsockopt(s.sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- verbs ---- */

static void open_device(void)
{
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);

    for (int i = 0; list && i < n; i++) {
        if (!s.dev || strcmp(ibv_get_device_name(list[i]), s.dev) == 0) {
            s.ctx = ibv_open_device(list[i]);
            break;
        }
    }
    if (!s.ctx) {
        die("no device %s", s.dev ? s.dev : "");
    }
    ibv_free_device_list(list);
}

static void create_objects(void)
{
    struct ibv_device_attr da;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

    if (ibv_query_device(s.ctx, &da)) {
        die("query_device failed");
    }
    s.nsge = (uint32_t)da.max_sge < MAX_SGE ? (uint32_t)da.max_sge : MAX_SGE;
    if (posix_memalign((void **)&s.buf, 4096, 2 * AREA)) {
        die("no memory");
    }
    memset(s.buf, 0, 2 * AREA);
    s.pd = ibv_alloc_pd(s.ctx);
    s.scq = s.pd ? ibv_create_cq(s.ctx, NQP * DEPTH, NULL, NULL, 0) : NULL;
    s.rcq = s.scq ? ibv_create_cq(s.ctx, NQP * DEPTH, NULL, NULL, 0) : NULL;
    s.mr = s.rcq ? ibv_reg_mr(s.pd, s.buf, 2 * AREA, access) : NULL;
    if (!s.mr) {
        die("cannot create PD, CQ or MR: %s", strerror(errno));
    }
    for (int i = 0; i < NQP; i++) {
        struct ibv_qp_init_attr a = {.send_cq = s.scq,
                                     .recv_cq = s.rcq,
                                     .qp_type = IBV_QPT_RC,
                                     .cap = {.max_send_wr = DEPTH,
                                             .max_recv_wr = DEPTH,
                                             .max_send_sge = s.nsge,
                                             .max_recv_sge = s.nsge}};

        s.qp[i] = ibv_create_qp(s.pd, &a);
        if (!s.qp[i]) {
            die("cannot create QP %d: %s", i, strerror(errno));
        }
        s.me.qpn[i] = s.qp[i]->qp_num;
        s.me.psn[i] = (s.qp[i]->qp_num * 7919u + (uint32_t)i) & 0xffffff;
    }
    s.me.rkey = s.mr->rkey;
    s.me.addr = (uintptr_t)s.buf;
    s.me.max_sge = s.nsge;
    if (ibv_query_gid(s.ctx, 1, s.gid_index, &s.me.gid)) {
        die("no GID with index %d", s.gid_index);
    }
}

static void connect_qp(int i)
{
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

    if (ibv_modify_qp(s.qp[i], &init,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                          IBV_QP_ACCESS_FLAGS) ||
        ibv_modify_qp(s.qp[i], &rtr,
                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                          IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                          IBV_QP_MIN_RNR_TIMER) ||
        ibv_modify_qp(s.qp[i], &rts,
                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                          IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)) {
        die("cannot connect QP %d: %s", i, strerror(errno));
    }
}

/* Addresses of both ends: the struct is exchanged as it is (same programme). */
static void exchange(void)
{
    sock_write(&s.me, sizeof(s.me));
    sock_read(&s.other, sizeof(s.other));
    if (s.other.max_sge < s.nsge) {
        s.nsge = s.other.max_sge;
    }
    for (int i = 0; i < NQP; i++) {
        connect_qp(i);
    }
    barrier('C');
}

static void close_all(void)
{
    for (int i = 0; i < NQP; i++) {
        if (ibv_destroy_qp(s.qp[i])) {
            check(false, "destroy_qp failed");
        }
    }
    if (ibv_dereg_mr(s.mr) || ibv_destroy_cq(s.scq) || ibv_destroy_cq(s.rcq) ||
        ibv_dealloc_pd(s.pd) || ibv_close_device(s.ctx)) {
        check(false, "an object could not be destroyed");
    }
    close(s.sock);
    free(s.buf);
}

static struct ibv_wc wait_wc(struct ibv_cq *cq, const char *what)
{
    time_t end = time(NULL) + WAIT_S;
    struct ibv_wc wc;

    for (unsigned spins = 0;; spins++) {
        int n = ibv_poll_cq(cq, 1, &wc);

        if (n < 0) {
            die("%s: poll_cq failed", what);
        }
        if (n == 1) {
            if (wc.status != IBV_WC_SUCCESS) {
                die("%s: wr_id %llu ended with %s", what, (unsigned long long)wc.wr_id,
                    ibv_wc_status_str(wc.status));
            }
            return wc;
        }
        if ((spins & 0xfff) == 0xfff && time(NULL) > end) {
            die("%s: no completion", what);
        }
    }
}

static struct ibv_sge sge_at(uint64_t off, uint32_t len)
{
    struct ibv_sge e = {
        .addr = (uintptr_t)s.buf + off, .length = len, .lkey = s.mr->lkey};

    return e;
}

static void post_recv(int q, uint64_t id, struct ibv_sge *sge, int n)
{
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = sge, .num_sge = n}, *bad;

    if (ibv_post_recv(s.qp[q], &wr, &bad)) {
        die("post_recv failed");
    }
}

static void post_send(int q, struct ibv_send_wr *wr)
{
    struct ibv_send_wr *bad;

    if (ibv_post_send(s.qp[q], wr, &bad)) {
        die("post_send failed");
    }
}

/* ---- one message, one end acting ---- */

struct op {
    const char *name;
    enum ibv_wr_opcode opcode;
    bool recv, imm, rdma, read;
};

static const struct op ops[] = {
    {"send", IBV_WR_SEND, true, false, false, false},
    {"send-imm", IBV_WR_SEND_WITH_IMM, true, true, false, false},
    {"write", IBV_WR_RDMA_WRITE, false, false, true, false},
    {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM, true, true, true, false},
    {"read", IBV_WR_RDMA_READ, false, false, true, true},
};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

static enum ibv_wc_opcode expected_wc(const struct op *o)
{
    return o->read ? IBV_WC_RDMA_READ : o->rdma ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
}

static void check_recv_wc(const struct op *o, const struct ibv_wc *wc, uint32_t len,
                          uint32_t imm)
{
    check(wc->opcode == (o->rdma ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV),
          "%s: receive opcode %d", o->name, wc->opcode);
    check(wc->byte_len == len, "%s: byte_len %u, not %u", o->name, wc->byte_len, len);
    if (o->imm) {
        check((wc->wc_flags & IBV_WC_WITH_IMM) && wc->imm_data == htonl(imm),
              "%s: immediate data %x, not %x", o->name, ntohl(wc->imm_data), imm);
    }
}

/*
 * Actor: source at @src of its source area (for READ: where the data goes, in
 * its destination area).  Target: data at @dst of its destination area (READ:
 * taken from its source area).
 */
static void one_message(bool actor, const struct op *o, uint32_t len, uint32_t src,
                        uint32_t dst, uint32_t seed)
{
    uint64_t from = GUARD + src, to = AREA + GUARD + dst;
    uint64_t local = o->read ? to : from, remote = o->read ? from : to;
    int q = (int)(seed % NQP);

    if (actor == o->read) {
        spoil(s.buf + to, len);
    } else {
        fill(s.buf + from, len, seed);
    }
    if (!actor && o->recv) {
        struct ibv_sge e = sge_at(o->rdma ? 0 : to, o->rdma ? 0 : len);

        post_recv(q, seed, &e, o->rdma || !len ? 0 : 1);
    }
    barrier('R');
    if (actor) {
        struct ibv_sge e = sge_at(local, len);
        struct ibv_send_wr wr = {.wr_id = seed,
                                 .sg_list = &e,
                                 .num_sge = len ? 1 : 0,
                                 .opcode = o->opcode,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = htonl(seed)};
        struct ibv_wc wc;

        wr.wr.rdma.remote_addr = s.other.addr + remote;
        wr.wr.rdma.rkey = s.other.rkey;
        post_send(q, &wr);
        wc = wait_wc(s.scq, o->name);
        check(wc.wr_id == seed, "%s: wr_id", o->name);
        check(wc.opcode == expected_wc(o), "%s: opcode %d", o->name, wc.opcode);
        if (o->read) {
            verify(o->name, s.buf + to, len, seed);
        }
    } else if (o->recv) {
        struct ibv_wc wc = wait_wc(s.rcq, o->name);

        check(wc.wr_id == seed, "%s: receive wr_id", o->name);
        check_recv_wc(o, &wc, len, seed);
    }
    barrier('D');
    if (!actor && !o->read) {
        verify(o->name, s.buf + to, len, seed);
    }
}

static void part_sizes(bool actor, uint32_t round)
{
    static const uint32_t sizes[] = {
        0,    1,    7,    8,     63,    64,    65,    1023,   1024,   1025,   4095,
        4096, 4097, 8192, 12289, 65535, 65536, 65537, 131071, 131072, 131073, 1000003};
    static const uint32_t offs[][2] = {{0, 0}, {1, 3}, {4031, 1}, {63, 4095}};
    uint32_t seed = 1000 + round * 100000 + (actor == !s.server) * 50000;

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned k = 0; k < sizeof(offs) / sizeof(offs[0]); k++) {
            for (unsigned o = 0; o < NOPS; o++) {
                one_message(actor, &ops[o], sizes[i], offs[k][0], offs[k][1], seed++);
            }
        }
    }
}

/* ---- scatter and gather ---- */

static uint32_t rnd(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* Cut @len into nsge pieces at @base, each in a stripe of its own. */
static void cut(struct ibv_sge *sge, uint64_t base, uint32_t len, uint32_t *x)
{
    uint32_t stripe = AREA / MAX_SGE / 2, left = len;

    for (uint32_t i = 0; i < s.nsge; i++) {
        uint32_t part = rnd(x) % (stripe / 2);

        part = i + 1 == s.nsge || part > left ? left : part;
        sge[i] = sge_at(base + (uint64_t)i * 2 * stripe + rnd(x) % 4096, part);
        left -= part;
    }
}

static void gather(const struct ibv_sge *sge, uint8_t *flat, bool store)
{
    for (uint32_t i = 0; i < s.nsge; i++) {
        uint8_t *p = (uint8_t *)(uintptr_t)sge[i].addr;

        if (store) {
            memcpy(p, flat, sge[i].length);
        } else {
            memcpy(flat, p, sge[i].length);
        }
        flat += sge[i].length;
    }
}

static void part_sge(bool actor, uint32_t round)
{
    uint8_t *flat = malloc(AREA);
    uint32_t x = 77 + round + (actor == !s.server) * 1000;

    for (uint32_t i = 0; i < 200 && flat; i++) {
        struct ibv_sge src[MAX_SGE], dst[MAX_SGE];
        uint32_t len = rnd(&x) % (i & 1 ? 60000 : 300), at;

        cut(src, 0, len, &x);
        cut(dst, AREA, len, &x);
        if (actor) {
            fill(flat, len, i);
            gather(src, flat, true);
        } else {
            memset(s.buf + AREA, 0, AREA);
            post_recv(3, i, dst, (int)s.nsge);
        }
        barrier('R');
        if (actor) {
            struct ibv_send_wr wr = {.wr_id = i,
                                     .sg_list = src,
                                     .num_sge = (int)s.nsge,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};

            post_send(3, &wr);
            wait_wc(s.scq, "sge");
        } else {
            struct ibv_wc wc = wait_wc(s.rcq, "sge");

            check(wc.byte_len == len, "sge: byte_len %u, not %u", wc.byte_len, len);
            gather(dst, flat, false);
            at = differs(flat, len, i);
            check(at == len, "sge: %u bytes in %u pieces: byte %u differs", len, s.nsge,
                  at);
        }
        barrier('D');
    }
    free(flat);
}

/* ---- atomics ---- */

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t a, uint64_t swap)
{
    struct ibv_sge e = sge_at(64, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &e,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED};
    uint64_t old;

    wr.wr.atomic.remote_addr = s.other.addr + AREA + 256;
    wr.wr.atomic.rkey = s.other.rkey;
    wr.wr.atomic.compare_add = a;
    wr.wr.atomic.swap = swap;
    post_send(5, &wr);
    wait_wc(s.scq, "atomic");
    memcpy(&old, s.buf + 64, 8);
    return old;
}

static void part_atomic(bool actor)
{
    volatile uint64_t *word = (volatile uint64_t *)(void *)(s.buf + AREA + 256);
    uint64_t sum = 5;

    if (!actor) {
        *word = 5;
    }
    barrier('R');
    if (actor) {
        for (uint64_t i = 1; i <= 200; i++) {
            uint64_t old = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i * 0x100000001ull, 0);

            check(old == sum, "fetch-and-add: %llx, not %llx", (unsigned long long)old,
                  (unsigned long long)sum);
            sum += i * 0x100000001ull;
        }
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, sum + 1, 9) == sum, "compare, unequal");
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, sum, 4711) == sum, "compare, equal");
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 4711, 4712) == 4711, "swapped value");
    }
    barrier('D');
    if (!actor) {
        check(*word == 4712, "atomics left %llx", (unsigned long long)*word);
    }
    barrier('D');
}

/* ---- everything at once ---- */

#define SLOT (AREA / NQP / 4) /* 32 KiB */

/* Step @k of QP @q, from the end with direction @dir. */
static uint32_t both_seed(int dir, int q, uint32_t k)
{
    return 7000000u + ((k * NQP + (uint32_t)q) * 2 + (uint32_t)dir);
}

static void both_post(int dir, uint32_t k)
{
    for (int q = 0; q < NQP; q++) {
        uint32_t seed = both_seed(dir, q, k), x = seed;
        const struct op *o = &ops[(k + (uint32_t)q) % 4]; /* not READ */
        uint32_t len = rnd(&x) % (SLOT - 4 * GUARD);
        uint64_t off = (uint64_t)q * SLOT + GUARD + seed % 61;
        struct ibv_sge e = sge_at(off, len);
        struct ibv_send_wr wr = {.wr_id = seed,
                                 .sg_list = &e,
                                 .num_sge = 1,
                                 .opcode = o->opcode,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = htonl(seed)};

        wr.wr.rdma.remote_addr = s.other.addr + AREA + off;
        wr.wr.rdma.rkey = s.other.rkey;
        post_send(q, &wr);
    }
}

/* Fill what we send, spoil what arrives, post receives, for step @k. */
static void both_prepare(int dir, uint32_t k)
{
    for (int q = 0; q < NQP; q++) {
        uint32_t seed = both_seed(dir, q, k), in = both_seed(!dir, q, k), x = seed,
                 y = in;
        const struct op *o = &ops[(k + (uint32_t)q) % 4];
        uint32_t len = rnd(&y) % (SLOT - 4 * GUARD);
        uint64_t off = (uint64_t)q * SLOT + GUARD + in % 61;
        struct ibv_sge e = sge_at(AREA + off, len);

        fill(s.buf + (uint64_t)q * SLOT + GUARD + seed % 61, rnd(&x) % (SLOT - 4 * GUARD),
             seed);
        spoil(s.buf + AREA + off, len);
        if (o->recv) {
            post_recv(q, in, &e, o->rdma ? 0 : 1);
        }
    }
}

static void both_collect(int dir, uint32_t k)
{
    int recvs = 0;

    for (int q = 0; q < NQP; q++) {
        struct ibv_wc wc = wait_wc(s.scq, "both");

        check(wc.wr_id >= both_seed(dir, 0, k) && wc.wr_id <= both_seed(dir, NQP - 1, k),
              "both: wr_id of a send");
        recvs += ops[(k + (uint32_t)q) % 4].recv;
    }
    while (recvs--) {
        struct ibv_wc wc = wait_wc(s.rcq, "both");
        uint32_t in = (uint32_t)wc.wr_id, x = in;
        const struct op *o = &ops[(k + ((in - 7000000u) / 2) % NQP) % 4];

        check_recv_wc(o, &wc, rnd(&x) % (SLOT - 4 * GUARD), in);
    }
}

static void part_both(uint32_t round)
{
    int dir = s.server ? 1 : 0;

    for (uint32_t k = round * 100; k < round * 100 + 60; k++) {
        both_prepare(dir, k);
        barrier('R');
        both_post(dir, k);
        both_collect(dir, k);
        barrier('D'); /* plain WRITEs of the peer are complete as well */
        for (int q = 0; q < NQP; q++) {
            uint32_t in = both_seed(!dir, q, k), x = in;

            verify(ops[(k + (uint32_t)q) % 4].name,
                   s.buf + AREA + (uint64_t)q * SLOT + GUARD + in % 61,
                   rnd(&x) % (SLOT - 4 * GUARD), in);
        }
    }
}

int main(int argc, char **argv)
{
    unsigned long other[2];
    int opt;

    while ((opt = getopt(argc, argv, "d:g:p:n:")) != -1) {
        switch (opt) {
        case 'd':
            s.dev = optarg;
            break;
        case 'g':
            s.gid_index = atoi(optarg);
            break;
        case 'p':
            s.port = atoi(optarg);
            break;
        case 'n':
            s.rounds = atoi(optarg);
            break;
        default:
            fprintf(stderr, "usage: datacheck -d DEVICE -g GIDINDEX [-p PORT] "
                            "[-n ROUNDS] [SERVER-IP]\n");
            return 2;
        }
    }
    s.server = argv[optind];
    open_device();
    create_objects();
    tcp_open();
    exchange();
    for (uint32_t r = 0; r < (uint32_t)s.rounds; r++) {
        for (int half = 0; half < 2; half++) {
            bool actor = (half == 0) == (s.server != NULL);

            part_sizes(actor, r);
            part_sge(actor, r);
            part_atomic(actor);
        }
        part_both(r);
    }
    /* Either end's errors fail both. */
    sock_write(&s.errors, sizeof(s.errors));
    sock_read(&other[0], sizeof(other[0]));
    close_all();
    printf("%lu checks, %lu errors\n", s.checks, s.errors + other[0]);
    return s.errors || other[0] ? 1 : 0;
}
