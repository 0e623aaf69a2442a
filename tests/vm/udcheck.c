/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * udcheck: datagrams between two devices, there and back, every byte compared.
 *
 *   udcheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] [-x [-i BYTES]]        server
 *   udcheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] [-x [-i BYTES]] SERVER client
 *
 * The client sends a datagram, the server looks at it and answers it by the address
 * handle that it makes of the completion (ibv_create_ah_from_wc), and the client
 * looks at the answer.  Both look at the length, the bytes and what is behind them,
 * immediate data, the sender's number, and the 40 bytes of route in front: who it
 * came from and for whom.  Before each round come datagrams that must not arrive: for
 * another Q_Key, for a number that no QP has.  Then one whose Q_Key says "the sending
 * QP's own".
 *
 * -x uses the extended API: ibv_wr_set_ud_addr, ibv_start_poll, and inline data of up
 * to BYTES, which must be granted; exit status 3 if that API is not there.
 *
 * Nothing is lost between two VMs of a host while a receive is posted, so a datagram
 * that does not come is an error.  Numbers and GIDs are exchanged over TCP.
 *
 * Prints "N checks, N errors"; exits 0 only without errors.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "device.h"

#define GRH    40u
#define SLOT   8192u
#define DEPTH  8u
#define WAIT_S 30
#define QKEY   0x1234567u

struct peer {
    uint32_t qpn;
    uint32_t mtu;
    union ibv_gid gid;
};

static struct {
    const char *dev, *server;
    int gid_index, port, rounds, sock;
    bool ex;
    uint32_t want_inline, max_inline;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_cq_ex *cq_ex;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct ibv_ah *ah;
    struct peer me, other;
    uint8_t *buf; /* DEPTH receive slots, one send slot */
    unsigned checks, errors;
} s = {.port = 18520, .rounds = 1};

/* ---- the two processes ---------------------------------------------------------- */

static void tcp_open(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)s.port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    if (s.server) {
        DIE_IF(inet_pton(AF_INET, s.server, &a.sin_addr) != 1 ||
                   connect(fd, (struct sockaddr *)&a, sizeof(a)),
               "connect");
        s.sock = fd;
        return;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    DIE_IF(bind(fd, (struct sockaddr *)&a, sizeof(a)) || listen(fd, 1), "listen");
    s.sock = accept(fd, NULL, NULL);
    DIE_IF(s.sock < 0, "accept");
    close(fd);
}

static void swap_with_peer(const void *mine, void *theirs, size_t len)
{
    DIE_IF(send(s.sock, mine, len, 0) != (ssize_t)len ||
               recv(s.sock, theirs, len, MSG_WAITALL) != (ssize_t)len,
           "the other end is gone");
}

/* ---- objects --------------------------------------------------------------------- */

static void no_ex(const char *what)
{
    if (errno == EOPNOTSUPP || errno == ENOSYS) {
        fprintf(stderr, "udcheck: no %s here\n", what);
        exit(3);
    }
    die(what);
}

static void open_device(void)
{
    struct ibv_port_attr port;

    s.ctx = device_open(s.dev);
    DIE_IF(!s.ctx, "cannot open the device");
    DIE_IF(ibv_query_port(s.ctx, 1, &port) ||
               ibv_query_gid(s.ctx, 1, s.gid_index, &s.me.gid),
           "port or GID");
    s.me.mtu = 128u << port.active_mtu;
}

static void make_qp(void)
{
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .qp_type = IBV_QPT_UD,
        .cap = {.max_send_wr = DEPTH,
                .max_recv_wr = DEPTH,
                .max_send_sge = 2,
                .max_recv_sge = 2,
                .max_inline_data = s.want_inline},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = s.pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
    };
    struct ibv_qp_init_attr plain = {
        .send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_UD, .cap = attr.cap};
    struct ibv_qp_attr to = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};

    s.qp = s.ex ? ibv_create_qp_ex(s.ctx, &attr) : ibv_create_qp(s.pd, &plain);
    if (!s.qp) {
        no_ex("extended UD QPs");
    }
    s.max_inline = s.ex ? attr.cap.max_inline_data : plain.cap.max_inline_data;
    CHECK(s.max_inline >= s.want_inline, "only %u bytes inline", s.max_inline);
    DIE_IF(ibv_modify_qp(s.qp, &to,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY),
           "QP to INIT");
    to.qp_state = IBV_QPS_RTR;
    DIE_IF(ibv_modify_qp(s.qp, &to, IBV_QP_STATE), "QP to RTR");
    to.qp_state = IBV_QPS_RTS;
    DIE_IF(ibv_modify_qp(s.qp, &to, IBV_QP_STATE | IBV_QP_SQ_PSN), "QP to RTS");
    s.me.qpn = s.qp->qp_num;
}

static void make_objects(void)
{
    struct ibv_cq_init_attr_ex attr = {.cqe = 4 * DEPTH,
                                       .wc_flags = IBV_WC_STANDARD_FLAGS};

    s.pd = ibv_alloc_pd(s.ctx);
    DIE_IF(!s.pd || posix_memalign((void **)&s.buf, 4096, (DEPTH + 1) * SLOT), "set-up");
    s.mr = ibv_reg_mr(s.pd, s.buf, (DEPTH + 1) * SLOT, IBV_ACCESS_LOCAL_WRITE);
    if (s.ex) {
        s.cq_ex = ibv_create_cq_ex(s.ctx, &attr);
        s.cq = s.cq_ex ? ibv_cq_ex_to_cq(s.cq_ex) : NULL;
    } else {
        s.cq = ibv_create_cq(s.ctx, 4 * DEPTH, NULL, NULL, 0);
    }
    if (!s.mr || !s.cq) {
        no_ex("extended CQs");
    }
    make_qp();
}

/* ---- sending and receiving --------------------------------------------------------- */

static void post_recv(unsigned slot)
{
    struct ibv_sge sge[2] = {
        {(uintptr_t)s.buf + slot * SLOT, GRH, s.mr->lkey},
        {(uintptr_t)s.buf + slot * SLOT + GRH, s.me.mtu, s.mr->lkey},
    };
    struct ibv_recv_wr wr = {.wr_id = slot, .sg_list = sge, .num_sge = 2}, *bad;

    memset(s.buf + slot * SLOT, 0xdd, SLOT);
    CHECK(!ibv_post_recv(s.qp, &wr, &bad), "post_recv");
}

/* A completion in either API's form as that of ibv_poll_cq. */
static bool take_ex(struct ibv_wc *wc)
{
    struct ibv_poll_cq_attr none = {0};
    int ret = ibv_start_poll(s.cq_ex, &none);

    if (ret == ENOENT) {
        return false;
    }
    if (ret) {
        errno = ret;
        die("ibv_start_poll");
    }
    *wc = (struct ibv_wc){
        .wr_id = s.cq_ex->wr_id,
        .status = s.cq_ex->status,
        .opcode = ibv_wc_read_opcode(s.cq_ex),
        .byte_len = ibv_wc_read_byte_len(s.cq_ex),
        .imm_data = ibv_wc_read_imm_data(s.cq_ex),
        .qp_num = ibv_wc_read_qp_num(s.cq_ex),
        .src_qp = ibv_wc_read_src_qp(s.cq_ex),
        .wc_flags = ibv_wc_read_wc_flags(s.cq_ex),
        .slid = (uint16_t)ibv_wc_read_slid(s.cq_ex),
        .sl = ibv_wc_read_sl(s.cq_ex),
        .dlid_path_bits = ibv_wc_read_dlid_path_bits(s.cq_ex),
    };
    ibv_end_poll(s.cq_ex);
    return true;
}

/* The next completion of a receive, or of a send.  The two come in any order, as the
 * other end is quick or slow; there is never more than one of each. */
static struct ibv_wc take(bool received)
{
    static struct ibv_wc held;
    static bool has_held;
    time_t end = time(NULL) + WAIT_S;
    struct ibv_wc wc;

    if (has_held && (held.opcode == IBV_WC_RECV) == received) {
        has_held = false;
        return held;
    }
    while (time(NULL) <= end) {
        int n = s.ex ? take_ex(&wc) : ibv_poll_cq(s.cq, 1, &wc);

        DIE_IF(n < 0, "ibv_poll_cq");
        if (!n) {
            continue;
        }
        CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
        CHECK(wc.qp_num == s.qp->qp_num, "of QP %u", wc.qp_num);
        if ((wc.opcode == IBV_WC_RECV) == received) {
            return wc;
        }
        CHECK(!has_held, "more than was sent");
        held = wc;
        has_held = true;
    }
    fprintf(stderr, "udcheck: nothing %s after %u checks\n", received ? "came" : "went",
            s.checks);
    exit(1);
}

static uint8_t pattern(uint32_t seed, uint32_t i)
{
    return (uint8_t)((i ^ seed) * 167u + (i >> 8) + seed);
}

static void send_ex(struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t len,
                    uint32_t seed, bool by_value)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(s.qp);
    uint8_t *data = s.buf + DEPTH * SLOT;

    ibv_wr_start(ex);
    ex->wr_id = seed;
    ex->wr_flags = IBV_SEND_SIGNALED;
    if (seed & 1) {
        ibv_wr_send_imm(ex, htonl(seed));
    } else {
        ibv_wr_send(ex);
    }
    ibv_wr_set_ud_addr(ex, ah, qpn, qkey);
    if (by_value) {
        ibv_wr_set_inline_data(ex, data, len);
    } else {
        ibv_wr_set_sge(ex, s.mr->lkey, (uintptr_t)data, len);
    }
    CHECK(!ibv_wr_complete(ex), "wr_complete");
}

static void send_plain(struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t len,
                       uint32_t seed, bool by_value)
{
    uintptr_t data = (uintptr_t)s.buf + DEPTH * SLOT;
    struct ibv_sge sge[2] = {{data, len / 3, s.mr->lkey},
                             {data + len / 3, len - len / 3, s.mr->lkey}};
    struct ibv_send_wr wr = {
        .wr_id = seed,
        .sg_list = sge,
        .num_sge = 2,
        .opcode = seed & 1 ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED | (by_value ? IBV_SEND_INLINE : 0),
        .imm_data = htonl(seed),
    };
    struct ibv_send_wr *bad;

    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    CHECK(!ibv_post_send(s.qp, &wr, &bad), "post_send");
}

/* Every fourth goes out by value where that is granted, half of these in the old form. */
static void send_one(struct ibv_ah *ah, uint32_t qpn, uint32_t qkey, uint32_t len,
                     uint32_t seed)
{
    bool by_value = seed % 4 >= 2 && s.max_inline && len <= s.max_inline;

    for (uint32_t i = 0; i < len; i++) {
        s.buf[DEPTH * SLOT + i] = pattern(seed, i);
    }
    (s.ex && seed % 8 < 6 ? send_ex : send_plain)(ah, qpn, qkey, len, seed, by_value);
}

static void sent(uint32_t seed)
{
    struct ibv_wc wc = take(false);

    CHECK(wc.opcode == IBV_WC_SEND, "opcode %d", (int)wc.opcode);
    CHECK(wc.wr_id == seed, "wr_id %llu, not %u", (unsigned long long)wc.wr_id, seed);
}

static bool is_v4(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return !memcmp(gid->raw, mapped, sizeof(mapped));
}

/* What lies before the data is as of a RoCE v2 packet that came by UDP. */
static void check_route(const uint8_t *grh, uint32_t len)
{
    if (is_v4(&s.me.gid)) {
        const uint8_t *ip = grh + 20;
        uint32_t sum = 0;

        for (unsigned i = 0; i < 20; i += 2) {
            sum += (uint32_t)(ip[i] << 8 | ip[i + 1]);
        }
        CHECK(ip[0] == 0x45, "IPv4 header begins with %02x", ip[0]);
        CHECK((uint32_t)(ip[2] << 8 | ip[3]) > 20 + len, "length of the packet");
        CHECK(ip[9] == 17, "protocol %u", ip[9]);
        CHECK((sum & 0xffff) + (sum >> 16) == 0xffff, "checksum");
        CHECK(!memcmp(ip + 12, s.other.gid.raw + 12, 4), "IPv4 source");
        CHECK(!memcmp(ip + 16, s.me.gid.raw + 12, 4), "IPv4 destination");
    } else {
        CHECK(grh[0] >> 4 == 6, "IPv6 header begins with %02x", grh[0]);
        CHECK((uint32_t)(grh[4] << 8 | grh[5]) > len, "length of the payload");
        CHECK(!memcmp(grh + 8, s.other.gid.raw, 16), "IPv6 source");
        CHECK(!memcmp(grh + 24, s.me.gid.raw, 16), "IPv6 destination");
    }
}

static void check_received(const struct ibv_wc *wc, uint32_t len, uint32_t seed)
{
    const uint8_t *slot = s.buf + wc->wr_id * SLOT, *data = slot + GRH;
    uint32_t bad = 0;

    CHECK(wc->opcode == IBV_WC_RECV, "opcode %d", (int)wc->opcode);
    CHECK(wc->byte_len == GRH + len, "%u bytes, not %u", wc->byte_len, GRH + len);
    CHECK(wc->wc_flags & IBV_WC_GRH, "flags %#x", (unsigned)wc->wc_flags);
    CHECK(!(wc->wc_flags & IBV_WC_WITH_IMM) == !(seed & 1), "flags %#x of %u",
          (unsigned)wc->wc_flags, seed);
    CHECK(!(seed & 1) || wc->imm_data == htonl(seed), "immediate data %u, not %u",
          ntohl(wc->imm_data), seed);
    CHECK(wc->src_qp == s.other.qpn, "from QP %u, not %u", wc->src_qp, s.other.qpn);
    check_route(slot, len);
    for (uint32_t i = 0; i < len; i++) {
        bad += data[i] != pattern(seed, i);
    }
    CHECK(!bad, "%u of %u bytes differ", bad, len);
    CHECK(data[len] == 0xdd, "written behind the end");
}

/* ---- client and server ----------------------------------------------------------------
 */

static const int lengths[] = {0, 1, 3, 63, 64, 127, 128, 129, 255, 512, 1000, 1023, -1};
#define MSGS (sizeof(lengths) / sizeof(lengths[0]))

static uint32_t length_of(uint32_t i)
{
    uint32_t mtu = s.me.mtu < s.other.mtu ? s.me.mtu : s.other.mtu;
    int len = lengths[i % MSGS];

    return len < 0 || (uint32_t)len > mtu ? mtu : (uint32_t)len;
}

/* One for an address that nobody has: nothing has to be asked for it, nor waited for. */
static void check_nobody(struct ibv_ah_attr attr)
{
    struct ibv_ah *ah;

    attr.grh.dgid.raw[15] ^= 0xc8;
    ah = ibv_create_ah(s.pd, &attr);
    CHECK(ah, "no handle for an address that nobody has: %s", strerror(errno));
    if (ah) {
        ibv_destroy_ah(ah);
    }
}

static void client(void)
{
    struct ibv_ah_attr attr = {.is_global = 1,
                               .port_num = 1,
                               .grh = {.dgid = s.other.gid,
                                       .hop_limit = 64,
                                       .sgid_index = (uint8_t)s.gid_index}};
    uint32_t total = (uint32_t)s.rounds * MSGS;
    struct ibv_wc wc;

    s.ah = ibv_create_ah(s.pd, &attr);
    DIE_IF(!s.ah, "ibv_create_ah");
    /* The stock library, and ours with the stock driver, which has no inline data, ask.
     */
    if (s.ex && s.want_inline) {
        check_nobody(attr);
    }
    for (uint32_t i = 0; i < total; i++) {
        if (i % MSGS == 0) {
            send_one(s.ah, s.other.qpn, QKEY + 1, 32, i);
            sent(i);
            send_one(s.ah, s.other.qpn ^ 0x800000, QKEY, 32, i);
            sent(i);
        }
        post_recv(i % DEPTH);
        send_one(s.ah, s.other.qpn, i % MSGS == 1 ? 1u << 31 : QKEY, length_of(i), i);
        wc = take(true);
        check_received(&wc, length_of(i + 5), i + 7);
        sent(i);
    }
    ibv_destroy_ah(s.ah);
}

static void server(void)
{
    uint32_t total = (uint32_t)s.rounds * MSGS;

    for (uint32_t i = 0; i < total; i++) {
        struct ibv_wc wc = take(true);
        struct ibv_ah *ah;

        check_received(&wc, length_of(i), i);
        ah = ibv_create_ah_from_wc(
            s.pd, &wc, (struct ibv_grh *)(void *)(s.buf + wc.wr_id * SLOT), 1);
        DIE_IF(!ah, "ibv_create_ah_from_wc");
        post_recv((unsigned)wc.wr_id);
        send_one(ah, wc.src_qp, QKEY, length_of(i + 5), i + 7);
        sent(i + 7);
        ibv_destroy_ah(ah);
    }
}

int main(int argc, char **argv)
{
    unsigned other_errors;
    int opt, ret;

    while ((opt = getopt(argc, argv, "d:g:p:n:i:x")) != -1) {
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
        case 'i':
            s.want_inline = (uint32_t)atoi(optarg);
            break;
        case 'x':
            s.ex = true;
            break;
        default:
            fprintf(stderr, "usage: udcheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] "
                            "[-x [-i BYTES]] [SERVER]\n");
            return 2;
        }
    }
    s.server = argv[optind];
    open_device();
    make_objects();
    tcp_open();
    if (!s.server) {
        for (unsigned i = 0; i < DEPTH; i++) {
            post_recv(i);
        }
    }
    swap_with_peer(&s.me, &s.other, sizeof(s.me));
    (s.server ? client : server)();
    swap_with_peer(&s.errors, &other_errors, sizeof(other_errors));
    ret = ibv_destroy_qp(s.qp) || ibv_destroy_cq(s.cq) || ibv_dereg_mr(s.mr) ||
          ibv_dealloc_pd(s.pd) || ibv_close_device(s.ctx);
    CHECK(!ret, "tear-down");
    printf("%u checks, %u errors\n", s.checks, s.errors + other_errors);
    return s.errors || other_errors ? 1 : 0;
}
