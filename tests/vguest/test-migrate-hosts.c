/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a guest moves between hosts with its connections, while its peers go on:
 * away from its peer (copy to tcp), to where its peer is (tcp to copy), between two other
 * hosts (tcp to tcp), and within one.
 *
 * Each host declares the same VMs: VM n has the address 10.0.0.(n + 1) wherever it is.
 */
#include "hosts.h"
#include "migrate.h"

#include <sched.h>
#include <string.h>

static struct vg_daemon *host[3];

static void begin(void)
{
    struct host_opts o = {.n_vms = 3, .daemon_keys = "peer-timeout=30\nworkers=2"};

    hosts_start(host, G_N_ELEMENTS(host), &o);
    vgt_daemon = host[0];
}

static void end(void)
{
    hosts_stop(host, G_N_ELEMENTS(host));
    vgt_daemon = NULL;
}

static struct vgt_opts between(gconstpointer style, unsigned a, unsigned b)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}},
                             .daemon = {host[a], host[b]}};
}

/* A place of the guest: VM @vm of host @host. */
struct at {
    unsigned host, vm;
};

/* Its peer is at host @peer; it is at place[0], then at the next ones, in turn. */
static void wander(gconstpointer style, unsigned peer, const struct at *place, unsigned n,
                   unsigned moves)
{
    uint64_t under_way = 0;
    struct vgt_traffic t;
    struct vgt_opts o;

    begin();
    o = between(style, place[0].host, peer);
    vgt_traffic_open(&t, place[0].vm, 1, 8, 4, 200000, &o);
    for (unsigned i = 1; i <= moves; i++) {
        const struct at *to = &place[i % n];

        vgt_traffic_push(&t, 5);
        under_way += vgt_traffic_under_way(&t);
        vg_move(t.s[0].g, host[to->host], to->vm,
                i % 3 ? VG_MOVE_PLAIN : VG_MOVE_LEAVE_FIRST);
    }
    vgt_traffic_run(&t, 20);
    g_test_message("%" PRIu64 " operations, %" PRIu64 " bytes, %" PRIu64
                   " of the operations through %u moves",
                   t.ops, t.bytes, under_way, moves);
    g_assert_true(!VGT_PLAIN_BUILD || under_way > 0); /* few moves there */
    vgt_traffic_close(&t);
    end();
}

static void test_away_and_back(gconstpointer style)
{
    static const struct at place[] = {{0, 0}, {1, 0}};

    wander(style, 0, place, G_N_ELEMENTS(place), vgt_rounds(100));
}

static void test_elsewhere(gconstpointer style)
{
    static const struct at place[] = {{0, 0}, {1, 0}};

    wander(style, 2, place, G_N_ELEMENTS(place), vgt_rounds(100));
}

static void test_around(gconstpointer style)
{
    static const struct at place[] = {{0, 0}, {0, 2}, {1, 0}, {2, 2}, {2, 0}, {1, 2}};

    wander(style, 0, place, G_N_ELEMENTS(place), vgt_rounds(30));
}

/* ---- in the middle of a message ------------------------------------------------- */

#define LONG (16u << 20) /* more than a connection takes ahead */
#define EDGE 64u

/* Has what is at @off arrived? */
static bool is_there(const struct vgt_side *to, uint32_t off, const uint8_t *edge)
{
    const volatile uint8_t *at = VG_MR_HOST(to->mr, off);

    for (unsigned i = 0; i < EDGE; i++) {
        if (at[i] != edge[i]) {
            return false;
        }
    }
    return true;
}

/* Message @id of side 0 has begun: its first bytes have arrived. */
static void begin_message(struct vgt_pair *p, uint32_t opcode, uint64_t id)
{
    bool read = opcode == PVRDMA_WR_RDMA_READ;
    struct vgt_side *src = &p->s[read], *dst = &p->s[!read];
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    const uint8_t *from = VG_MR_HOST(src->mr, 0);

    vgt_fill(VG_MR_HOST(src->mr, 0), LONG, id);
    memset(VG_MR_HOST(dst->mr, 0), 0xee, LONG);
    if (!read) {
        vgt_recv(&p->s[1], id, 0, LONG);
    }
    vgt_send(&p->s[0], id, opcode, VGT_SIG, 0, LONG,
             opcode == PVRDMA_WR_SEND ? NULL : &p->s[1], 0);
    while (!is_there(dst, 0, from)) {
        g_assert_cmpint(vg_now_ns(), <, until);
        sched_yield();
    }
}

/*
 * Side @mover moves to @to when a message's first bytes have arrived.  True: it stood
 * still before the last ones had, so that the message has begun on one way and ends on
 * another.
 */
static bool move_in_message(struct vgt_pair *p, unsigned mover, uint32_t opcode,
                            uint64_t id, const struct at *to)
{
    bool read = opcode == PVRDMA_WR_RDMA_READ, half;
    struct vgt_side *src = &p->s[read], *dst = &p->s[!read];
    struct vg_place place = vg_place_resuming(p->s[mover].g, host[to->host], to->vm);
    const uint8_t *from = VG_MR_HOST(src->mr, 0);

    begin_message(p, opcode, id);
    vg_move_state(p->s[mover].g, &place);
    half = !is_there(dst, LONG - EDGE, from + LONG - EDGE);
    vg_move_end(p->s[mover].g, &place, id % 3 ? VG_MOVE_PLAIN : VG_MOVE_LEAVE_FIRST);
    vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    if (!read) {
        vgt_expect(p->s[1].rcq, id, PVRDMA_WC_SUCCESS);
    }
    vgt_check(VG_MR_HOST(dst->mr, 0), LONG, id);
    return half;
}

#define SHORT 77u /* the pattern of a short message */

/* What VM 1 has sent, while it is on host 0, to one that stands still or is nowhere. */
static int64_t n_lost(void)
{
    return vgt_counter("vm1", "uc_dropped", "to_nobody") +
           vgt_counter("vm1", "uc_dropped", "to_paused");
}

/*
 * A short message behind what has arrived, and what arrives then.  It is lost while its
 * host has not heard where the receiver runs, or not seen that a connection is broken.
 */
static struct pvrdma_cqe short_message(struct vgt_pair *p)
{
    struct pvrdma_cqe c;
    int64_t lost;

    vgt_fill(VG_MR_HOST(p->s[0].mr, LONG), EDGE, SHORT);
    for (unsigned tries = 0; tries < 100; tries++) {
        lost = n_lost();
        vgt_complete(&p->s[0], 0, PVRDMA_WR_SEND, LONG, EDGE, NULL, 0);
        if (n_lost() == lost && vg_cq_wait(p->s[1].rcq, &c, 5000)) {
            return c;
        }
    }
    g_assert_not_reached();
}

/*
 * Message @id of an unreliable connection arrives whole, or not at all; then its receive
 * serves the next.
 */
static bool arrives(struct vgt_pair *p, uint64_t id)
{
    struct vgt_side *b = &p->s[1];
    struct pvrdma_cqe c;
    bool whole;

    vgt_recv(b, 0, LONG, EDGE);
    c = short_message(p);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.wr_id, ==, id);
    whole = c.byte_len == LONG;
    g_assert_true(whole || c.byte_len == EDGE);
    vgt_check(VG_MR_HOST(b->mr, 0), c.byte_len, whole ? id : SHORT);
    c = whole ? vgt_expect(b->rcq, 0, PVRDMA_WC_SUCCESS) : short_message(p);
    g_assert_cmpuint(c.wr_id, ==, 0);
    g_assert_cmpuint(c.byte_len, ==, EDGE);
    vgt_check(VG_MR_HOST(b->mr, LONG), EDGE, SHORT);
    return whole;
}

/*
 * The same of an unreliable connection.  Its sender stands still meanwhile, else it finds
 * that its peer does, and loses the message for that.  It is sent anew by copy, and lost
 * on the way to another host.  True: there was more of it to be sent.
 */
static bool move_in_unreliable(struct vgt_pair *p, uint64_t id, const struct at *to)
{
    struct vguest *sender = p->s[0].g, *g = p->s[1].g;
    struct vg_place place = vg_place_resuming(g, host[to->host], to->vm);
    bool copies = !vgt_by_streams(), anew = copies && to->host == 0;
    bool by_copy = copies && g->d == host[0], half, whole;
    int64_t lost = -n_lost();
    struct pvrdma_cqe c;

    begin_message(p, PVRDMA_WR_SEND, id);
    vg_mig_enter(sender, VFIO_USER_MIG_STOP);
    half = vg_cq_poll(p->s[0].scq, &c, 1) == 0;
    vg_move_state(g, &place);
    vg_move_end(g, &place, id % 3 ? VG_MOVE_PLAIN : VG_MOVE_LEAVE_FIRST);
    vg_run_loaded(sender);
    if (half) {
        c = vgt_expect(p->s[0].scq, id, PVRDMA_WC_SUCCESS);
    }
    g_assert_cmpuint(c.wr_id, ==, id);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    lost += n_lost();
    whole = arrives(p, id);
    if (half) {
        g_assert_true(whole == anew);
        /* What a connection takes with it when it breaks is not counted. */
        g_assert_cmpint(lost, <=, !anew);
        g_assert_cmpint(lost, >=, !anew && by_copy);
    }
    return half;
}

/* Each kind of way to each, as often as it takes: it may have been too late. */
static void in_message(enum pvrdma_qp_type type, unsigned mover, uint32_t opcode)
{
    static const struct at place[] = {{0, 0}, {1, 0}, {2, 0}, {0, 2}};
    enum { N = G_N_ELEMENTS(place) };
    unsigned half[N] = {0};
    struct vgt_opts o;
    struct vgt_pair p;
    uint64_t id = 0;

    begin();
    o = between(GUINT_TO_POINTER(VGT_EXTENDED), 0, 0);
    o.qp.type = (uint8_t)type;
    o.mr_len = LONG + EDGE;
    vgt_pair_open(&p, mover, !mover, &o);
    while (!half[0] || !half[1] || !half[2] || !half[3]) {
        unsigned to = ++id % N;

        g_assert_cmpuint(id, <, 100 * N);
        half[to] += type == PVRDMA_QPT_UC
                        ? move_in_unreliable(&p, id, &place[to])
                        : move_in_message(&p, mover, opcode, id, &place[to]);
    }
    g_test_message("%" PRIu64 " moves; in the middle from copy to tcp %u, tcp to tcp %u, "
                   "tcp to copy %u, copy to copy %u",
                   id, half[1], half[2], half[3], half[0]);
    vgt_pair_close(&p);
    end();
}

static void test_in_message(gconstpointer opcode)
{
    in_message(PVRDMA_QPT_RC, 1, GPOINTER_TO_UINT(opcode));
}

/* Its former connection may still bring the beginning while it is sent anew. */
static void test_in_own(gconstpointer opcode)
{
    in_message(PVRDMA_QPT_RC, 0, GPOINTER_TO_UINT(opcode));
}

static void test_in_unreliable(void)
{
    in_message(PVRDMA_QPT_UC, 1, PVRDMA_WR_SEND);
}

/* The daemon it came from dies when it has sent the state. */
static void test_source_host_dies(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_traffic t;
    struct vg_place other;
    struct vgt_opts o;
    struct vguest *g;

    begin();
    o = between(style, 0, 2);
    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    vgt_traffic_push(&t, 20);
    g = t.s[0].g;
    other = vg_place_open(g, host[1], 0);
    stream = vg_mig_save(g);
    vg_place_swap(g, &other);
    vg_daemon_kill(host[0]);
    host[0] = NULL;
    vgt_daemon = host[1];
    vg_mig_enter(g, VFIO_USER_MIG_RESUMING);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, 65536), ==, 0);
    host_wait_up(host[1], 0, false);
    host_wait_up(host[2], 0, false);
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    vg_raise_all(g);
    vg_place_close(&other);
    vgt_traffic_run(&t, 50);
    vgt_traffic_close(&t);
    end();
}

int main(int argc, char **argv)
{
    static const struct vgt_both tests[] = {
        {"away-and-back", test_away_and_back},
        {"elsewhere", test_elsewhere},
        {"around", test_around},
        {"source-host-dies", test_source_host_dies},
    };

    vgt_init(&argc, &argv, 240);
    vgt_add_both("migrate-hosts", tests, G_N_ELEMENTS(tests));
    g_test_add_data_func("/migrate-hosts/in-message/send",
                         GUINT_TO_POINTER(PVRDMA_WR_SEND), test_in_message);
    g_test_add_data_func("/migrate-hosts/in-message/write",
                         GUINT_TO_POINTER(PVRDMA_WR_RDMA_WRITE_WITH_IMM),
                         test_in_message);
    g_test_add_data_func("/migrate-hosts/in-message/read",
                         GUINT_TO_POINTER(PVRDMA_WR_RDMA_READ), test_in_message);
    g_test_add_data_func("/migrate-hosts/in-message/own-send",
                         GUINT_TO_POINTER(PVRDMA_WR_SEND), test_in_own);
    g_test_add_data_func("/migrate-hosts/in-message/own-write",
                         GUINT_TO_POINTER(PVRDMA_WR_RDMA_WRITE_WITH_IMM), test_in_own);
    g_test_add_func("/migrate-hosts/in-message/unreliable", test_in_unreliable);
    return vgt_run();
}
