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

#include <string.h>

static struct vg_daemon *host[3];

static void begin(void)
{
    struct host_opts o = {.n_vms = 3,
                          .n_peers = G_N_ELEMENTS(host),
                          .daemon_keys = "peer-timeout=30\nworkers=2",
                          .vm_keys = "addresses=any"};

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
    g_assert_cmpint(vg_mig_set(g, VFIO_USER_MIG_RESUMING), ==, 0);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, 65536), ==, 0);
    host_wait_up(host[1], 0, false);
    host_wait_up(host[2], 0, false);
    g_assert_cmpint(vg_mig_set(g, VFIO_USER_MIG_RUNNING), ==, 0);
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
    return vgt_run();
}
