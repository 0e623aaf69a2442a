/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A made-up host's iWARP connections; see fakestream.h. */
#include "fakestream.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "transport/iwarp/wire/bytes.h"
#include "transport/iwarp/wire/control_stags.h"

#define FAR_QPN 0x77u
#define PSN     0x1234u

struct vg_daemon *fakestream_host[2];
struct fake fake;
struct vgt_side victim;
struct vgt_traffic traffic;
struct hello hello;
struct mpa_frame start;
struct vg_conn victim_attr;
static struct pvrdma_gid far_gid;

/* ---- what surrounds a case ---- */

static void say(const struct peer_msg *m)
{
    put_msg(&fake, m);
}

void victim_to_rtr(void)
{
    if (vg_qp_state(victim.qp) != PVRDMA_QPS_RESET) {
        vg_qp_to_reset(victim.qp);
    }
    vg_qp_to_init(victim.qp, &victim_attr);
    vg_qp_to_rtr(victim.qp, &far_gid, FAR_QPN, PSN, &victim_attr);
    hello.incarnation++;
    hello.seq = 0;
}

void victim_connect(void)
{
    victim_to_rtr();
    vg_qp_to_rts(victim.qp, 0, &victim_attr);
}

/* One of @kind, as a daemon's, but for its private data. */
static struct mpa_frame start_frame(enum mpa_kind kind)
{
    return (struct mpa_frame){.kind = kind,
                              .revision = 2,
                              .crc = true,
                              .enhanced = true,
                              .p2p = true,
                              .rtr = MPA_RTR_WRITE,
                              .ird = 16,
                              .ord = 16};
}

void fakestream_begin(enum pvrdma_qp_type type, enum mpa_kind role)
{
    struct host_opts o = {.n_vms = 5, .n_peers = 3, .daemon_keys = "peer-timeout=60"};
    struct peer_msg claim = {.type = PEER_MSG_CLAIM};
    struct vgt_opts side = {.guest[0].db = VG_DB_EXT, .qp.type = type};
    struct vgt_opts between;

    far_gid = vg_gid(role == MPA_REQUEST ? 0 : 9);
    victim_attr = (struct vg_conn){.timeout = 14, .retry_cnt = 7};
    start = start_frame(role);
    for (unsigned i = 0; i < 2; i++) {
        fakestream_host[i] = host_start(i, &o);
    }
    host_wait_up(fakestream_host[0], 1, true);
    host_wait_up(fakestream_host[1], 0, true);
    vgt_daemon = fakestream_host[0];
    fake_init(&fake, 2);
    fake.hello.timeout_ms = 60000;
    fake_link(&fake, 2);
    vgt_side_open(&victim, 3, &side, 0);
    claim.claim = (struct peer_claim){
        .gid = far_gid, .owner = {7, 1}, .generation = 1, .network = "lan"};
    say(&claim);
    check_ping(&fake, 1);
    between = (struct vgt_opts){.daemon = {fakestream_host[0], fakestream_host[1]}};
    vgt_traffic_open(&traffic, 1, 2, 2, 8, 20000, &between);
    hello = (struct hello){.incarnation = 1,
                           .psn = PSN,
                           .mtu = PVRDMA_MTU_1024,
                           .unreliable = type == PVRDMA_QPT_UC};
    victim_connect();
}

void fakestream_end(void)
{
    vgt_traffic_run(&traffic, 50);
    vgt_traffic_close(&traffic);
    if (fake.fd >= 0) {
        check_ping(&fake, 2);
        close(fake.fd);
    }
    vgt_side_close(&victim);
    for (unsigned i = 0; i < 2; i++) {
        vg_daemon_stop(fakestream_host[i]);
    }
    vgt_daemon = NULL;
}

/* ---- a connection ---- */

unsigned ask(void)
{
    struct peer_msg m = {.type = PEER_MSG_BIND};

    hello.token[0]++;
    m.bind = (struct peer_bind){.network = "lan",
                                .sgid = far_gid,
                                .dgid = victim.g->gid,
                                .sqpn = FAR_QPN,
                                .dqpn = victim.qp->qpn,
                                .incarnation = hello.incarnation,
                                .token = {hello.token[0], hello.token[1]}};
    say(&m);
    do {
        g_assert_true(get_msg(&fake, &m, NULL));
    } while (m.type != PEER_MSG_BIND_ANSWER || m.answer.token[0] != hello.token[0]);
    return m.answer.result;
}

size_t put_start(uint8_t out[MPA_MAX_STARTUP])
{
    struct mpa_frame f = start;
    uint8_t data[HELLO_SIZE];

    hello_put(&hello, data);
    f.data = data;
    f.data_len = sizeof(data);
    return mpa_put(&f, out);
}

void put_ulpdu(int fd, uint8_t *ulpdu, uint32_t len, uint32_t spoil)
{
    uint8_t frame[FPDU_LENGTH + 4096 + FPDU_MAX_TAIL];
    uint32_t crc;

    g_assert_cmpuint(len, <=, 4096);
    put_be16(frame, (uint16_t)len);
    memcpy(frame + FPDU_LENGTH, ulpdu, len);
    memset(frame + FPDU_LENGTH + len, 0, FPDU_MAX_TAIL);
    crc = crc32c_add(CRC32C_INIT, frame, FPDU_LENGTH + len + fpdu_pad(len));
    crc32c_put(crc ^ spoil, frame + FPDU_LENGTH + len + fpdu_pad(len));
    /* It may be closed already. */
    send(fd, frame, fpdu_size(len), MSG_NOSIGNAL);
}

void put_segment(int fd, const struct rdmap_segment *s, uint32_t len)
{
    uint8_t ulpdu[4096] = {0};
    size_t head = rdmap_put(s, ulpdu);

    put_ulpdu(fd, ulpdu, (uint32_t)head + len, 0);
}

void put_empty_write(int fd, uint32_t stag, uint64_t to)
{
    struct rdmap_segment s;

    rdmap_begin(&s, RDMAP_WRITE);
    s.ddp.stag = stag;
    s.ddp.to = to;
    put_segment(fd, &s, 0);
}

bool get_start(int fd, enum mpa_kind kind, uint8_t bytes[MPA_MAX_STARTUP],
               struct mpa_frame *f)
{
    size_t size = MPA_HEADER, have = 0;

    do {
        ssize_t n = recv(fd, bytes + have, size - have, 0);

        if (n == 0 || (n < 0 && errno == ECONNRESET)) {
            return false;
        }
        g_assert_cmpint(n, >, 0);
        have += (size_t)n;
        g_assert_cmpint(mpa_get(kind, bytes, have, f, &size), ==, IWARP_OK);
    } while (have < size);
    return true;
}

bool get_ready(int fd)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_frame reply;

    if (!get_start(fd, MPA_REPLY, bytes, &reply)) {
        return false;
    }
    put_empty_write(fd, CTL_STAG_RTR, 0);
    return !reply.reject;
}

static struct {
    int fd;
    struct fpdu_rx rx;
    struct fpdu_input input;
    uint8_t room[FPDU_MAX_SIZE], in[4096];
} in;

void get_from(int fd)
{
    in.fd = fd;
    in.input = (struct fpdu_input){in.in, 0};
    fpdu_rx_init(&in.rx, in.room, sizeof(in.room), true, rdmap_head_len);
}

bool get_segment(struct rdmap_segment *s, int ms)
{
    for (;;) {
        struct pollfd p = {.fd = in.fd, .events = POLLIN};
        struct fpdu_part part;
        ssize_t n;

        g_assert_cmpint(fpdu_rx_next(&in.rx, &in.input, &part), ==, IWARP_OK);
        if (part.kind == FPDU_WHOLE) {
            g_assert_cmpint(rdmap_get(part.data, part.len, part.len, RDMAP_EXTENDED, s),
                            ==, IWARP_OK);
            return true;
        }
        g_assert_cmpint(part.kind, ==, FPDU_NONE);
        if (poll(&p, 1, ms) == 0) {
            return false;
        }
        n = recv(in.fd, in.in, sizeof(in.in), 0);
        g_assert_cmpint(n, >, 0);
        in.input = (struct fpdu_input){in.in, (size_t)n};
    }
}

int call(void)
{
    uint8_t bytes[MPA_MAX_STARTUP];

    for (;;) {
        int fd;

        if (vg_qp_state(victim.qp) != PVRDMA_QPS_RTS) {
            victim_connect();
        }
        if (ask() != PEER_BIND_OK) {
            continue;
        }
        fd = connect_from(2, 0);
        put(fd, bytes, put_start(bytes));
        if (get_ready(fd)) {
            get_from(fd);
            return fd;
        }
        close(fd); /* it failed by the one before, at this moment */
    }
}

void expect_end(int fd, enum iwarp_error error)
{
    static uint8_t room[FPDU_MAX_SIZE], in[1 << 16];
    enum iwarp_error told = IWARP_OK;
    struct fpdu_rx rx;
    ssize_t n;

    fpdu_rx_init(&rx, room, sizeof(room), true, rdmap_head_len);
    while ((n = recv(fd, in, sizeof(in), 0)) > 0) {
        struct fpdu_input input = {in, (size_t)n};
        struct fpdu_part part;

        for (;;) {
            struct rdmap_segment s;

            g_assert_cmpint(fpdu_rx_next(&rx, &input, &part), ==, IWARP_OK);
            if (part.kind == FPDU_NONE) {
                break;
            }
            g_assert_cmpint(rdmap_get(part.data, part.len, part.len, RDMAP_EXTENDED, &s),
                            ==, IWARP_OK);
            if (s.opcode == RDMAP_TERMINATE) {
                g_assert_cmpuint(s.terminate.layer, ==, iwarp_error_layer(error));
                g_assert_cmpuint(s.terminate.etype, ==, iwarp_error_type(error));
                g_assert_cmpuint(s.terminate.code, ==, iwarp_error_code(error));
                told = error;
            }
        }
    }
    g_assert_true(n == 0 || errno == ECONNRESET);
    g_assert_true(told == error || n < 0); /* a reset drops what was told */
    close(fd);
    vgt_traffic_run(&traffic, 5);
    vg_daemon_check(fakestream_host[0]);
}
