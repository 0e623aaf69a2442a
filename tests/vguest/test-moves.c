/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: many moves in a row, of every kind (route.h), of either end of 64
 * connections or of both at once, under traffic whose every byte and every addition is
 * checked.
 */
#include "hosts.h"
#include "route.h"

#define NQP 64u

static struct vg_daemon *host[ROUTE_HOSTS];

static void test_around(gconstpointer style)
{
    unsigned moves = MAX(vgt_rounds(100), ROUTE_STEPS);
    struct host_opts ho = {.n_vms = 4,
                           .daemon_keys = "peer-timeout=30\nworkers=2",
                           .vm_keys = "addresses=10.0.0.1;10.0.0.2"};
    struct vgt_opts o = vgt_opts_of(style);
    struct route r = ROUTE_BEGIN(host);
    unsigned done[ROUTE_N_KINDS] = {0};
    uint64_t under_way = 0;
    struct vgt_traffic t;
    int64_t begun;

    hosts_start(host, ROUTE_HOSTS, &ho);
    vgt_daemon = host[0];
    vgt_traffic_open(&t, r.at[0].vm, r.at[1].vm, NQP, 4, 30000, &o);
    begun = vg_now_ns();
    for (unsigned i = 0; i < moves; i++) {
        vgt_traffic_push(&t, 5);
        under_way += vgt_traffic_under_way(&t);
        done[route_move(&r, (struct vguest *[]){t.s[0].g, t.s[1].g})]++;
    }
    vgt_traffic_run(&t, 20);
    g_test_message("%u moves in %.1f s: %" PRIu64 " operations, %" PRIu64
                   " bytes, %" PRIu64 " of the operations through a move",
                   moves, (vg_now_ns() - begun) / 1e9, t.ops, t.bytes, under_way);
    route_assert_all(done);
    g_assert_cmpuint(under_way, >, moves);
    vgt_traffic_close(&t);
    hosts_stop(host, ROUTE_HOSTS);
    vgt_daemon = NULL;
}

int main(int argc, char **argv)
{
    static const struct vgt_both tests[] = {
        {"around", test_around},
    };

    vgt_init(&argc, &argv, 240);
    vgt_add_both("moves", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
