/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: many moves in a row, of either end of 64 connections or of both at once,
 * under traffic whose every byte and every addition is checked: away from the peer (copy
 * to tcp), to where it is (tcp to copy), between two other hosts (tcp to tcp), from one
 * VM of a daemon to another, and back.
 *
 * Each host declares the same VMs.  Guest 0 is in VM 0 or 2 of a host, guest 1 in VM 1 or
 * 3, so that each finds a place wherever the other is.  Addresses are the guests' own.
 */
#include "hosts.h"
#include "migrate.h"

#define N_HOSTS 3

static struct vg_daemon *host[N_HOSTS];

/* Where the two guests are: host and VM. */
struct at {
    unsigned host, vm;
};

enum kind { AWAY, TOGETHER, ELSEWHERE, WITHIN_COPY, WITHIN_TCP, BOTH, N_KINDS };
static const char *const kind_name[] = {"copy to tcp",        "tcp to copy",
                                        "tcp to tcp",         "copy to copy",
                                        "within a host, tcp", "both"};

/* Hosts that the guests go to, in turn; who shall stay is at his host with STAY. */
#define STAY 16u
static const struct {
    unsigned host[2];
    enum kind kind;
} route[] = {
    {{1, 0 | STAY}, AWAY},
    {{2, 0 | STAY}, ELSEWHERE},
    {{2, 0 | STAY}, WITHIN_TCP},
    {{2 | STAY, 2}, TOGETHER},
    {{2, 2 | STAY}, WITHIN_COPY},
    {{0, 1}, BOTH}, /* copy to tcp */
    {{1, 0}, BOTH}, /* they change places */
    {{1, 1}, BOTH}, /* tcp to copy */
    {{1, 1}, BOTH}, /* each to another VM beside it */
    {{0, 0}, BOTH}, /* to another host, together */
    {{0 | STAY, 1}, AWAY},
    {{0 | STAY, 0}, TOGETHER},
};

/* Guest @i shall go to host @to of route[]. */
static bool goes(struct at *at, unsigned to)
{
    if (to & STAY) {
        g_assert_cmpuint(at->host, ==, to & ~STAY);
        return false;
    }
    if (at->host == to) {
        at->vm ^= 2;
    }
    at->host = to;
    return true;
}

static enum kind kind_of(const struct at before[2], const struct at after[2],
                         const bool moves[2])
{
    bool was = before[0].host == before[1].host, is = after[0].host == after[1].host;

    if (moves[0] && moves[1]) {
        return BOTH;
    }
    if (was != is) {
        return was ? AWAY : TOGETHER;
    }
    if (was) {
        return WITHIN_COPY;
    }
    return before[!moves[0]].host == after[!moves[0]].host ? WITHIN_TCP : ELSEWHERE;
}

static void move(struct vgt_traffic *t, struct at at[2], unsigned i)
{
    struct at before[2] = {at[0], at[1]};
    struct vg_place from[2];
    bool moves[2];

    for (unsigned k = 0; k < 2; k++) {
        moves[k] = goes(&at[k], route[i % G_N_ELEMENTS(route)].host[k]);
        if (moves[k]) {
            from[k] = vg_move_begin(t->s[k].g, host[at[k].host], at[k].vm);
        }
    }
    g_assert_cmpint(kind_of(before, at, moves), ==, route[i % G_N_ELEMENTS(route)].kind);
    for (unsigned n = 0; n < 2; n++) {
        unsigned k = (n + i) % 2; /* who was stopped first does not go on first always */

        if (moves[k]) {
            vg_move_end(t->s[k].g, &from[k],
                        i % 3 == 2 ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
        }
    }
}

static void test_around(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;
    unsigned moves = MAX(vgt_rounds(100), (unsigned)G_N_ELEMENTS(route));
    struct host_opts ho = {.n_vms = 4,
                           .n_peers = N_HOSTS,
                           .daemon_keys = "peer-timeout=30\nworkers=2",
                           .vm_keys = "addresses=any"};
    struct vgt_opts o = {.guest = {{.db = db}, {.db = db}}};
    struct at at[2] = {{0, 0}, {0, 1}};
    unsigned done[N_KINDS] = {0};
    uint64_t under_way = 0;
    struct vgt_traffic t;
    int64_t begun;

    hosts_start(host, N_HOSTS, &ho);
    vgt_daemon = host[0];
    vgt_traffic_open(&t, at[0].vm, at[1].vm, 64, 4, 30000, &o);
    begun = vg_now_ns();
    for (unsigned i = 0; i < moves; i++) {
        vgt_traffic_push(&t, 5);
        under_way += vgt_traffic_under_way(&t);
        move(&t, at, i);
        done[route[i % G_N_ELEMENTS(route)].kind]++;
    }
    vgt_traffic_run(&t, 20);
    g_test_message("%u moves in %.1f s: %" PRIu64 " operations, %" PRIu64
                   " bytes, %" PRIu64 " of the operations through a move",
                   moves, (vg_now_ns() - begun) / 1e9, t.ops, t.bytes, under_way);
    for (unsigned k = 0; k < N_KINDS; k++) {
        g_test_message("%s: %u", kind_name[k], done[k]);
        g_assert_cmpuint(done[k], >, 0);
    }
    g_assert_cmpuint(under_way, >, moves);
    vgt_traffic_close(&t);
    hosts_stop(host, N_HOSTS);
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
