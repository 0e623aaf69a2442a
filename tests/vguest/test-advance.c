/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a target announces its addresses while it is RESUMING, and its peers
 * connect in advance; what becomes of these connections when it runs, or does not, and
 * what a host can do that only says so.
 *
 * Hosts 0 to 2 declare the same VMs: VM n has the address 10.0.0.(n + 1) wherever it is.
 * Where one is made up it is host 2.
 */
#include "fakestream.h"
#include "migrate.h"

#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "transport/tcp/ctl.h"

#define NQP 24u /* more than are made at a time */

static struct vg_daemon *host[3];

/* Who waits for many others on a busy machine does not give up. */
static const struct vg_conn patient = {.timeout = 21, .retry_cnt = 7, .rnr_retry = 7};
static const struct vg_qp_opts small = {
    .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};

static void begin_with(unsigned n, const char *vm_keys)
{
    struct host_opts o = {.n_vms = 3,
                          .n_peers = G_N_ELEMENTS(host),
                          .daemon_keys = "peer-timeout=30\nworkers=2",
                          .vm_keys = vm_keys};

    for (unsigned i = 0; i < n; i++) {
        host[i] = host_start(i, &o);
    }
    hosts_wait_up(host, n);
    vgt_daemon = host[0];
}

static void end(void)
{
    hosts_stop(host, G_N_ELEMENTS(host));
    vgt_daemon = NULL;
}

static struct vgt_opts between(unsigned a, unsigned b)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[a], host[b]}};
}

/* Until host @peer has just so many parked with @d. */
static void wait_parked(const struct vg_daemon *d, unsigned peer, int64_t n)
{
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (host_peer_int(d, peer, "parked") != n) {
        if (vg_now_ns() > until) {
            g_error("%" PRId64 " are parked with host%u, not %" PRId64,
                    host_peer_int(d, peer, "parked"), peer, n);
        }
        g_usleep(2000);
    }
}

static void wait_both(unsigned a, unsigned b, int64_t n)
{
    wait_parked(host[a], b, n);
    wait_parked(host[b], a, n);
}

/* @g goes there with its state; returns where it was. */
static void go(struct vguest *g, struct vg_place *place)
{
    vg_move_state(g, place);
    vg_move_end(g, place, VG_MOVE_PLAIN);
}

static int64_t taken(unsigned at, unsigned peer)
{
    return host_peer_int(host[at], peer, "taken");
}

/* ---- moves ---- */

/* From host 0 to host 1, the peer at host @peer; each stream is one made in advance. */
static void move_all(unsigned peer)
{
    struct vgt_opts o;
    struct vgt_traffic t;
    struct vg_place place;

    begin_with(3, NULL);
    o = between(0, peer);
    vgt_traffic_open(&t, 0, 1, NQP, 4, 20000, &o);
    vgt_traffic_push(&t, 20);
    place = vg_place_resuming(t.s[0].g, host[1], 0);
    wait_both(1, peer, NQP);
    g_assert_cmpint(taken(1, peer), ==, 0);
    vgt_traffic_push(&t, 20); /* it runs where it was, all the while */
    go(t.s[0].g, &place);
    vgt_traffic_run(&t, 50);
    g_assert_cmpint(taken(1, peer), ==, NQP);
    g_assert_cmpint(taken(peer, 1), ==, NQP);
    g_assert_cmpint(host_peer_int(host[1], peer, "takes_refused"), ==, 0);
    g_assert_cmpint(host_peer_int(host[peer], 1, "takes_refused"), ==, 0);
    wait_both(1, peer, 0);
    vgt_traffic_close(&t);
    end();
}

static void test_copy_to_tcp(void)
{
    move_all(0);
}

static void test_tcp_to_tcp(void)
{
    move_all(2);
}

/*
 * There and back, and again, with operations on their way through each move: as often as
 * either VM's addresses are announced at once.
 */
static void test_to_and_fro(void)
{
    unsigned rounds = MIN(vgt_rounds(20), 2 * 60);
    uint64_t under_way = 0;
    struct vgt_opts o;
    struct vgt_traffic t;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    for (unsigned i = 1; i <= rounds; i++) {
        struct vg_place place = vg_place_resuming(t.s[0].g, host[i % 2], 0);

        wait_parked(host[i % 2], 2, 4);
        wait_parked(host[2], i % 2, 4);
        vgt_traffic_push(&t, 5);
        under_way += vgt_traffic_under_way(&t);
        go(t.s[0].g, &place);
        vgt_traffic_run(&t, 5);
        wait_both(i % 2, 2, 0);
    }
    g_assert_cmpint(taken(2, 0) + taken(2, 1), ==, 4 * rounds);
    g_assert_true(!VGT_PLAIN_BUILD || under_way > 0);
    vgt_traffic_close(&t);
    end();
}

/*
 * First the one and then its peer: what was announced of the one is still there, and has
 * none for where its peer is now.
 */
static void test_both(void)
{
    struct vgt_opts o;
    struct vgt_traffic t;
    struct vg_place place;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, NQP, 4, 20000, &o);
    vgt_traffic_push(&t, 20);
    place = vg_place_resuming(t.s[0].g, host[1], 0);
    wait_both(1, 2, NQP);
    go(t.s[0].g, &place);
    vgt_traffic_run(&t, 20);
    g_assert_cmpint(taken(1, 2), ==, NQP);
    place = vg_place_resuming(t.s[1].g, host[0], 1);
    wait_both(0, 1, NQP);
    vgt_traffic_push(&t, 20);
    go(t.s[1].g, &place);
    vgt_traffic_run(&t, 20);
    for (unsigned i = 0; i < 2; i++) {
        g_assert_cmpint(taken(i, !i), ==, NQP);
        g_assert_cmpint(host_peer_int(host[i], !i, "takes_refused"), ==, 0);
    }
    vgt_traffic_close(&t);
    end();
}

static void test_uc(void)
{
    bool arrived = false;
    struct vgt_opts o;
    struct vgt_pair p;
    struct vg_place place;

    begin_with(3, NULL);
    o = between(0, 2);
    o.qp.type = PVRDMA_QPT_UC;
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    place = vg_place_resuming(p.s[0].g, host[1], 0);
    wait_both(1, 2, 1);
    go(p.s[0].g, &place);
    /* The first may be lost, but not all of them. */
    for (unsigned i = 1; !arrived; i++) {
        g_assert_cmpint((int)i, <, vg_patience(30000)); /* a minute */
        vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 8, i);
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_SUCCESS);
        g_usleep(2000);
        arrived = vgt_matches(VG_MR_HOST(p.s[1].mr, 0), 8, i);
    }
    g_assert_cmpint(taken(1, 2), ==, 1);
    vgt_pair_close(&p);
    end();
}

/*
 * RESUMING, the state, RUNNING, at once: the connections are still being made, some or
 * none are taken.  No operation is lost or done twice by that.
 */
static void test_at_once(void)
{
    struct vgt_opts o;
    struct vgt_traffic t;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, NQP, 4, 20000, &o);
    for (unsigned i = 1; i <= 6; i++) {
        vgt_traffic_push(&t, 5);
        vg_move(t.s[0].g, host[i % 2], 0, VG_MOVE_PLAIN);
        vgt_traffic_run(&t, 5);
    }
    vgt_traffic_close(&t);
    end();
}

/*
 * More queue pairs than may ask for one at a time wait for fewer connections than these:
 * all go on, whoever has got none as without.
 */
static void test_many(void)
{
    enum { ANNOUNCED = 1030, ALL = 2100 };
    g_autofree struct vg_qp **qp = g_new(struct vg_qp *, 2 * ALL);
    struct vg_place place = {0};
    struct vgt_opts o;
    struct vgt_pair p;

    begin_with(3, NULL);
    o = between(2, 0); /* what moves has the higher address: it is asked */
    for (unsigned i = 0; i < 2; i++) {
        o.guest[i].low_size = 256 << 20;
    }
    o.cqe = 2 * ALL;
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < ALL; i++) {
        for (unsigned j = 0; j < 2; j++) {
            qp[2 * i + j] = vg_qp_new(p.s[j].pd, p.s[j].scq, p.s[j].rcq, &small);
        }
        vg_qp_connect(qp[2 * i], qp[2 * i + 1], &patient);
        if (i + 2 == ANNOUNCED) { /* the pair's own counts, too */
            place = vg_place_resuming(p.s[1].g, host[1], 1);
            wait_both(1, 2, ANNOUNCED);
        }
    }
    for (unsigned round = 0; round < 2; round++) {
        struct pvrdma_cqe cqe;

        if (round) {
            go(p.s[1].g, &place);
        }
        for (unsigned i = 0; i < ALL; i++) {
            g_assert_true(vgt_post_write(&p, qp[2 * i], i));
        }
        for (unsigned i = 0; i < ALL; i++) {
            g_assert_true(vg_cq_wait(p.s[0].scq, &cqe, VGT_WAIT_MS));
            g_assert_cmpint(cqe.status, ==, PVRDMA_WC_SUCCESS);
        }
    }
    g_assert_cmpint(taken(2, 1), >, 0);
    for (unsigned i = 0; i < 2 * ALL; i++) {
        vg_qp_free(qp[i]);
    }
    vgt_pair_close(&p);
    end();
}

/* ---- what does not come to that ---- */

/* It is not to run there: RESUMING ends without a state, or its VMM goes. */
static void test_given_up(void)
{
    struct vgt_opts o;
    struct vgt_traffic t;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, NQP, 4, 20000, &o);
    vgt_traffic_run(&t, 5);
    for (unsigned i = 0; i < 2; i++) {
        struct vg_place place = vg_place_resuming(t.s[0].g, host[1], 0);

        wait_both(1, 2, NQP);
        if (i == 0) {
            vg_place_swap(t.s[0].g, &place);
            g_assert_cmpint(vg_mig_set(t.s[0].g, VFIO_USER_MIG_STOP), !=, 0);
            vg_place_swap(t.s[0].g, &place);
            wait_both(1, 2, 0);
        }
        vg_place_close(&place);
        wait_both(1, 2, 0);
        vgt_traffic_run(&t, 20);
    }
    g_assert_cmpint(taken(2, 1), ==, 0);
    vgt_traffic_close(&t);
    end();
}

/* What nobody takes when it runs is closed then, after a while: one of two, or all. */
static void test_left_over(gconstpointer how)
{
    bool all = GPOINTER_TO_UINT(how);
    struct vg_qp *more[2];
    struct vg_place place;
    struct vgt_opts o;
    struct vgt_pair p;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_pair_open(&p, 0, 1, &o);
    for (unsigned i = 0; i < 2; i++) {
        more[i] = vg_qp_new(p.s[i].pd, p.s[i].scq, p.s[i].rcq, &o.qp);
    }
    vg_qp_connect(more[0], more[1], NULL);
    vgt_write_once(&p, 1);
    place = vg_place_resuming(p.s[0].g, host[1], 0);
    wait_both(1, 2, 2);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(more[i]);
        if (all) {
            g_assert_cmpint(vg_qp_to_reset(p.s[i].qp), ==, 0);
        }
    }
    go(p.s[0].g, &place);
    if (!all) {
        vgt_write_once(&p, 2);
    }
    wait_both(1, 2, 0);
    g_assert_cmpint(taken(1, 2), ==, all ? 0 : 1);
    if (all) {
        vgt_pair_reconnect(&p, NULL);
        vgt_write_once(&p, 3);
    }
    vgt_pair_close(&p);
    end();
}

/* A link that comes up, and one that is lost, while it is RESUMING. */
static void test_link(void)
{
    struct host_opts o = {.n_vms = 3, .n_peers = 3, .daemon_keys = "peer-timeout=30"};
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts to;

    for (unsigned i = 0; i < 2; i++) {
        host[i] = host_start(i, &o);
    }
    hosts_wait_up(host, 2);
    vgt_daemon = host[0];
    to = between(0, 0);
    vgt_traffic_open(&t, 0, 1, 4, 4, 20000, &to);
    place = vg_place_resuming(t.s[0].g, host[1], 0);
    wait_both(0, 1, 4);
    /* That of host 0 goes, and comes. */
    vg_daemon_check(host[0]);
    vgt_restart(host[0]);
    host_wait_up(host[1], 0, true);
    wait_both(0, 1, 4);
    /* Host 2 was not there, and has nobody who cares. */
    host[2] = host_start(2, &o);
    host_wait_up(host[2], 1, true);
    host_wait_up(host[2], 0, true);
    g_assert_cmpint(host_peer_int(host[2], 1, "parked"), ==, 0);
    go(t.s[0].g, &place);
    vgt_traffic_run(&t, 20);
    g_assert_cmpint(taken(0, 1), ==, 4);
    vgt_traffic_close(&t);
    end();
}

/* The target's daemon dies; or is replaced, and announces it again. */
static void test_target_dies(gconstpointer how)
{
    bool dies = GPOINTER_TO_UINT(how);
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts o;

    begin_with(3, NULL);
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, NQP, 4, 20000, &o);
    vgt_traffic_run(&t, 5);
    place = vg_place_resuming(t.s[0].g, host[1], 0);
    wait_both(1, 2, NQP);
    if (dies) {
        vg_daemon_kill(host[1]);
        host[1] = NULL;
        wait_parked(host[2], 1, 0);
        vg_place_close(&place);
    } else {
        vgt_restart(host[1]);
        host_wait_up(host[1], 0, true);
        host_wait_up(host[1], 2, true);
        host_wait_up(host[2], 1, true);
        wait_both(1, 2, NQP);
        go(t.s[0].g, &place);
    }
    vgt_traffic_run(&t, 20);
    g_assert_cmpint(taken(2, 1), ==, dies ? 0 : NQP);
    vgt_traffic_close(&t);
    end();
}

/* A VM that may have any address announces none. */
static void test_any(void)
{
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts o;

    begin_with(3, "addresses=any");
    o = between(0, 2);
    vgt_traffic_open(&t, 0, 1, 4, 4, 20000, &o);
    vgt_traffic_push(&t, 5);
    place = vg_place_resuming(t.s[0].g, host[1], 0);
    g_usleep(100000);
    g_assert_cmpint(host_peer_int(host[1], 2, "parked"), ==, 0);
    go(t.s[0].g, &place);
    vgt_traffic_run(&t, 20);
    g_assert_cmpint(taken(1, 2), ==, 0);
    vgt_traffic_close(&t);
    end();
}

/* ---- a made-up host ---- */

#define FEATURES PEER_FEATURE_ADVANCE

static void link_up(uint64_t features)
{
    fake_init(&fake, 2);
    fake.hello.features = features;
    fake.hello.timeout_ms = 60000;
    fake_link(&fake, 2);
    check_ping(&fake, 1);
}

static struct peer_msg hear(enum peer_msg_type type)
{
    struct peer_msg m;

    do {
        g_assert_true(get_msg(&fake, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_CLOSE);
    } while (m.type != type);
    return m;
}

/* Our startup frame of that kind. */
static size_t put_parking(enum mpa_kind kind, const struct parking *p,
                          uint8_t out[MPA_MAX_STARTUP])
{
    struct mpa_frame f = start_frame(kind);
    uint8_t data[PARKING_SIZE];

    f.data = data;
    f.data_len = sizeof(data);
    parking_put(p, data);
    return mpa_put(&f, out);
}

/* Host @from connects to host 0 and shows @p; is it let in?  @fd, then. */
static bool park_from(unsigned from, struct parking p, int *fd)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_frame reply;
    struct parking back;

    *fd = connect_from(from, 0);
    put(*fd, bytes, put_parking(MPA_REQUEST, &p, bytes));
    if (!get_start(*fd, MPA_REPLY, bytes, &reply)) {
        close(*fd);
        return false;
    }
    g_assert_false(reply.reject);
    g_assert_true(parking_get(reply.data, reply.data_len, &back));
    g_assert_cmpmem(back.token, sizeof(back.token), p.token, sizeof(p.token));
    g_assert_cmpuint(back.number, ==, p.number);
    return true;
}

static int park(struct parking p)
{
    int fd;

    g_assert_true(park_from(2, p, &fd));
    put_empty_write(fd, CTL_STAG_RTR, 0);
    return fd;
}

/* What is answered to a TAKE of that stream, by and to those queue pairs. */
static unsigned take_by(struct parking p, const struct pvrdma_gid *sgid, uint32_t sqpn,
                        const struct pvrdma_gid *dgid, uint32_t dqpn)
{
    struct peer_msg m = {.type = PEER_MSG_TAKE};
    struct hello h = {.incarnation = 5, .psn = 1, .mtu = PVRDMA_MTU_1024};
    static uint64_t n = 100;

    h.token[0] = ++n;
    m.take = (struct peer_take){.bind = {.network = "lan",
                                         .sgid = *sgid,
                                         .dgid = *dgid,
                                         .sqpn = sqpn,
                                         .dqpn = dqpn,
                                         .incarnation = 5,
                                         .token = {n, 0}},
                                .token = {p.token[0], p.token[1]},
                                .number = p.number};
    hello_put(&h, m.take.hello);
    put_msg(&fake, &m);
    m = hear(PEER_MSG_TAKEN);
    g_assert_cmpuint(m.taken.answer.token[0], ==, n);
    return m.taken.answer.result;
}

/* The same by and to queue pairs that nobody has. */
static unsigned take(struct parking p, const struct pvrdma_gid *dgid)
{
    const struct pvrdma_gid nobody = vg_gid(7);

    return take_by(p, &nobody, 5, dgid, 7);
}

/* Host 0 has announced a VM: who connects, and what it says then. */
static void test_bad_connections(void)
{
    struct vg_daemon *d;
    struct parking p = {{0, 0}, 0}, wrong;
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts to;
    struct peer_msg m;
    struct rdmap_segment s;
    int fd, again;

    begin_with(2, NULL);
    d = host[0];
    to = between(0, 1);
    vgt_traffic_open(&t, 1, 0, 4, 4, 20000, &to);
    link_up(FEATURES);
    place =
        vg_place_resuming(t.s[1].g, d, 2); /* the guest's RAM is as good as another's */
    m = hear(PEER_MSG_ANNOUNCE);
    g_assert_cmpstr(m.announce.network, ==, "lan");
    g_assert_cmpmem(&m.announce.gid, 16, vg_gid(2).raw, 16);
    memcpy(p.token, m.announce.token, sizeof(p.token));

    /* Another token, another host, a number that is there. */
    wrong = p;
    wrong.token[1] ^= 1;
    g_assert_false(park_from(2, wrong, &fd));
    g_assert_false(park_from(1, p, &fd));
    fd = park(p);
    wait_parked(d, 2, 1);
    g_assert_false(park_from(2, p, &again));
    wait_parked(d, 2, 1);
    /* It says something. */
    put_empty_write(fd, 0x1000, 0x1000);
    wait_closed(fd);
    wait_parked(d, 2, 0);
    /* Not the first frame; two of them; half of it. */
    p.number = 2;
    g_assert_true(park_from(2, p, &fd));
    rdmap_begin(&s, RDMAP_READ_REQUEST);
    s.ddp.msn = 1;
    put_segment(fd, &s, 0);
    wait_closed(fd);
    fd = park(p);
    put_empty_write(fd, CTL_STAG_RTR, 0);
    wait_closed(fd);
    wait_parked(d, 2, 0);

    /* It takes what it may not: of no such number, of no such token. */
    p.number = 5;
    fd = park(p);
    wait_parked(d, 2, 1);
    wrong = p;
    wrong.number = 4;
    g_assert_cmpuint(take(wrong, &m.announce.gid), ==, PEER_BIND_REFUSED);
    wrong.number = UINT32_MAX;
    g_assert_cmpuint(take(wrong, &m.announce.gid), ==, PEER_BIND_REFUSED);
    wrong = p;
    wrong.token[0] ^= 1;
    g_assert_cmpuint(take(wrong, &m.announce.gid), ==, PEER_BIND_REFUSED);
    /* Of another address than was announced: the stream stays. */
    g_assert_cmpuint(take(p, &t.s[0].g->gid), ==, PEER_BIND_REFUSED);
    wait_parked(d, 2, 1);
    /* Nobody has that queue pair, and the stream is used up: not twice. */
    g_assert_cmpuint(take(p, &m.announce.gid), ==, PEER_BIND_NOT_YET);
    wait_closed(fd);
    wait_parked(d, 2, 0);
    g_assert_cmpuint(take(p, &m.announce.gid), ==, PEER_BIND_REFUSED);
    g_assert_cmpint(host_peer_int(d, 2, "taken"), ==, 0);

    /* It is over: what there was goes, and nothing comes any more. */
    fd = park(p);
    vg_place_close(&place);
    wait_closed(fd);
    g_assert_false(park_from(2, p, &fd));
    check_ping(&fake, 2);
    close(fake.fd);
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
    end();
}

/* Host 0 calls the made-up one @n times, in any order: @fd is by number. */
static void be_called(int listener, const uint64_t token[2], int *fd, unsigned n)
{
    static uint8_t bytes[MPA_MAX_STARTUP];

    memset(fd, -1, n * sizeof(*fd));
    for (unsigned i = 0; i < n;) {
        int one = accept(listener, NULL, NULL);
        struct mpa_frame request;
        struct parking p;

        g_assert_cmpint(one, >=, 0);
        if (recv(one, bytes, PEER_MAGIC_LEN, MSG_PEEK | MSG_WAITALL) != PEER_MAGIC_LEN ||
            memcmp(bytes, PEER_MAGIC, PEER_MAGIC_LEN) == 0) {
            close(one); /* host 1, which wants a link */
            continue;
        }
        g_assert_true(get_start(one, MPA_REQUEST, bytes, &request));
        g_assert_true(parking_get(request.data, request.data_len, &p));
        g_assert_cmpmem(p.token, 16, token, 16);
        g_assert_cmpuint(p.number, <, n);
        g_assert_cmpint(fd[p.number], ==, -1);
        fd[p.number] = one;
        put(one, bytes, put_parking(MPA_REPLY, &p, bytes));
        i++;
    }
}

static void announce(const struct pvrdma_gid *gid, uint64_t token)
{
    struct peer_msg m = {.type = PEER_MSG_ANNOUNCE};

    m.announce =
        (struct peer_announce){.network = "lan", .gid = *gid, .token = {token, 1}};
    put_msg(&fake, &m);
}

/* The made-up host announces what it likes; host 0 has NQP queue pairs with host 1. */
static void test_liar(void)
{
    uint64_t token[2] = {77, 1};
    int listener, fd[NQP], next[NQP];
    const struct pvrdma_gid nobody = vg_gid(200);
    struct parking p;
    struct vgt_traffic t;
    struct vgt_opts o;

    begin_with(2, NULL);
    o = between(0, 1);
    vgt_traffic_open(&t, 1, 0, NQP, 4, 20000, &o);
    vgt_traffic_run(&t, 5);
    link_up(FEATURES);
    listener = listen_as(2);
    announce(&nobody, 3);
    announce(&t.s[0].g->gid, 4); /* whose peers are elsewhere */
    announce(&t.s[1].g->gid, token[0]);
    be_called(listener, token, fd, NQP);
    wait_parked(host[0], 2, NQP);
    /* A new announcement in place of the old one. */
    token[0]++;
    announce(&t.s[1].g->gid, token[0]);
    be_called(listener, token, next, NQP);
    for (unsigned i = 0; i < NQP; i++) {
        wait_closed(fd[i]);
    }
    wait_parked(host[0], 2, NQP);
    /* Bytes on one, the end of another. */
    put_empty_write(next[0], CTL_STAG_RTR, 0);
    close(next[1]);
    wait_parked(host[0], 2, NQP - 2);
    wait_closed(next[0]);
    /* It wants to be that address's queue pair, which is at host 1. */
    p = (struct parking){{token[0], token[1]}, 2};
    g_assert_cmpuint(
        take_by(p, &t.s[1].g->gid, t.qp[1][0]->qpn, &t.s[0].g->gid, t.qp[0][0]->qpn), ==,
        PEER_BIND_REFUSED);
    wait_closed(next[2]);
    g_assert_cmpint(host_peer_int(host[0], 2, "taken"), ==, 0);
    vgt_traffic_run(&t, 20);
    /* Without a link nothing stays. */
    close(fake.fd);
    for (unsigned i = 3; i < NQP; i++) {
        wait_closed(next[i]);
    }
    wait_parked(host[0], 2, 0);
    close(listener);
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
    end();
}

static void claim(const struct pvrdma_gid *gid)
{
    struct peer_msg m = {.type = PEER_MSG_CLAIM};

    m.claim = (struct peer_claim){
        .gid = *gid, .owner = {7, 1}, .generation = 1, .network = "lan"};
    put_msg(&fake, &m);
}

/* It claims, too, what it has announced, and never answers: a BIND follows. */
static void test_silent(void)
{
    struct vgt_opts side = {.guest[0].db = VG_DB_EXT};
    struct pvrdma_gid far = vg_gid(9);
    struct peer_msg m;
    uint64_t token[2] = {78, 1};
    struct vgt_side s;
    int listener, fd;
    int64_t begun;

    begin_with(2, NULL);
    link_up(FEATURES);
    listener = listen_as(2);
    vgt_side_open(&s, 0, &side, 0);
    g_assert_cmpint(vg_qp_to_init(s.qp, &patient), ==, 0);
    g_assert_cmpint(vg_qp_to_rtr(s.qp, &far, 0x77, 1, &patient), ==, 0);
    announce(&far, token[0]);
    be_called(listener, token, &fd, 1);
    wait_parked(host[0], 2, 1);
    begun = vg_now_ns();
    claim(&far);
    m = hear(PEER_MSG_TAKE);
    g_assert_cmpmem(m.take.token, 16, token, 16);
    g_assert_cmpuint(m.take.number, ==, 0);
    g_assert_cmpuint(m.take.bind.dqpn, ==, 0x77);
    hear(PEER_MSG_BIND);
    g_assert_cmpint(vg_now_ns() - begun, >, 4000000000ll);
    wait_closed(fd);
    wait_parked(host[0], 2, 0);
    check_ping(&fake, 2);
    close(fake.fd);
    close(listener);
    vgt_side_close(&s);
    end();
}

static void refuse(const struct peer_take *t)
{
    struct peer_msg m = {.type = PEER_MSG_TAKEN};

    m.taken.answer = (struct peer_bind_answer){
        .token = {t->bind.token[0], t->bind.token[1]}, .result = PEER_BIND_NOT_YET};
    put_msg(&fake, &m);
}

/*
 * It has announced more connections than are asked for at a time, answers nothing before
 * those are all asked for, and refuses each then: the others are asked for only now, and
 * for each queue pair a BIND follows.
 */
static void test_full(void)
{
    enum { AT_A_TIME = 1024, ALL = AT_A_TIME + 76 };
    static struct vg_qp *qp[ALL];
    static int fd[ALL];
    static struct peer_take first[AT_A_TIME];
    struct vgt_opts side = {.guest[0] = {.db = VG_DB_EXT, .low_size = 256 << 20}};
    g_autoptr(GHashTable) bound = g_hash_table_new(NULL, NULL);
    struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = 56}, m;
    struct pvrdma_gid far = vg_gid(9);
    uint64_t token[2] = {79, 1};
    unsigned n = AT_A_TIME;
    struct rlimit rl;
    struct vgt_side s;
    int listener;

    g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &rl), ==, 0);
    if (rl.rlim_max < 4 * ALL + 64) { /* a quarter of them is for these */
        g_test_skip("RLIMIT_NOFILE allows too few connections in advance");
        return;
    }
    rl.rlim_cur = rl.rlim_max;
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &rl), ==, 0);
    begin_with(2, NULL);
    link_up(FEATURES);
    listener = listen_as(2);
    vgt_side_open(&s, 0, &side, 0);
    for (unsigned i = 0; i < ALL; i++) {
        qp[i] = vg_qp_new(s.pd, s.scq, s.rcq, &small);
        g_assert_cmpint(vg_qp_to_init(qp[i], &patient), ==, 0);
        g_assert_cmpint(vg_qp_to_rtr(qp[i], &far, 0x1000 + i, 1, &patient), ==, 0);
    }
    announce(&far, token[0]);
    be_called(listener, token, fd, ALL);
    wait_parked(host[0], 2, ALL);
    claim(&far);
    for (unsigned i = 0; i < AT_A_TIME; i++) {
        first[i] = hear(PEER_MSG_TAKE).take;
    }
    g_usleep(50000); /* there is time for one more */
    put_msg(&fake, &ping);
    do {
        g_assert_true(get_msg(&fake, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_TAKE);
        g_assert_cmpint(m.type, !=, PEER_MSG_BIND);
    } while (m.type != PEER_MSG_PONG);
    for (unsigned i = 0; i < AT_A_TIME; i++) {
        refuse(&first[i]);
    }
    while (n < ALL || g_hash_table_size(bound) < ALL) {
        g_assert_true(get_msg(&fake, &m, NULL));
        if (m.type == PEER_MSG_TAKE) {
            refuse(&m.take);
            n++;
        } else if (m.type == PEER_MSG_BIND) {
            g_hash_table_add(bound, GUINT_TO_POINTER(m.bind.dqpn));
        }
    }
    g_assert_cmpuint(n, ==, ALL);
    for (unsigned i = 0; i < ALL; i++) {
        g_assert_true(g_hash_table_contains(bound, GUINT_TO_POINTER(0x1000 + i)));
        wait_closed(fd[i]);
    }
    wait_parked(host[0], 2, 0);
    g_assert_cmpint(host_peer_int(host[0], 2, "taken"), ==, 0);
    g_assert_cmpint(host_peer_int(host[0], 2, "takes_refused"), ==, ALL);
    check_ping(&fake, 2);
    close(fake.fd);
    close(listener);
    for (unsigned i = 0; i < ALL; i++) {
        vg_qp_free(qp[i]);
    }
    vgt_side_close(&s);
    end();
}

/* A host that has not that feature is told nothing. */
static void test_without(void)
{
    struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = 55}, m;
    struct vgt_traffic t;
    struct vg_place place;
    struct vgt_opts o;

    begin_with(2, NULL);
    o = between(0, 1);
    vgt_traffic_open(&t, 0, 1, 4, 4, 20000, &o);
    link_up(FEATURES & ~(uint64_t)PEER_FEATURE_ADVANCE);
    place = vg_place_resuming(t.s[0].g, host[0], 2);
    put_msg(&fake, &ping);
    do {
        g_assert_true(get_msg(&fake, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_ANNOUNCE);
    } while (m.type != PEER_MSG_PONG);
    announce(&t.s[1].g->gid, 5);
    check_ping(&fake, 2);
    g_assert_cmpint(host_peer_int(host[0], 2, "refused_messages"), ==, 1);
    g_assert_cmpint(host_peer_int(host[0], 2, "parked"), ==, 0);
    vg_place_close(&place);
    close(fake.fd);
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
    end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/advance/copy-to-tcp", test_copy_to_tcp);
    g_test_add_func("/advance/tcp-to-tcp", test_tcp_to_tcp);
    g_test_add_func("/advance/to-and-fro", test_to_and_fro);
    g_test_add_func("/advance/both", test_both);
    g_test_add_func("/advance/uc", test_uc);
    g_test_add_func("/advance/at-once", test_at_once);
    g_test_add_func("/advance/many", test_many);
    g_test_add_func("/advance/given-up", test_given_up);
    g_test_add_data_func("/advance/left-over", NULL, test_left_over);
    g_test_add_data_func("/advance/left-over-all", GUINT_TO_POINTER(1), test_left_over);
    g_test_add_func("/advance/link", test_link);
    g_test_add_data_func("/advance/target-dies", GUINT_TO_POINTER(1), test_target_dies);
    g_test_add_data_func("/advance/target-replaced", NULL, test_target_dies);
    g_test_add_func("/advance/any", test_any);
    g_test_add_func("/advance/bad-connections", test_bad_connections);
    g_test_add_func("/advance/liar", test_liar);
    g_test_add_func("/advance/silent", test_silent);
    g_test_add_func("/advance/full", test_full);
    g_test_add_func("/advance/without", test_without);
    return vgt_run();
}
