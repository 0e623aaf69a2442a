/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A way around three hosts; see route.h. */
#include "route.h"

#include "hosts.h"

const char *const route_kind_name[ROUTE_N_KINDS] = {"copy to tcp",        "tcp to copy",
                                                    "tcp to tcp",         "copy to copy",
                                                    "within a host, tcp", "both"};

/* Hosts that the guests go to, in turn; who shall stay is at his host with STAY. */
#define STAY 16u
static const struct {
    unsigned host[2];
    enum route_kind kind;
} step[] = {
    {{1, 0 | STAY}, ROUTE_AWAY},
    {{2, 0 | STAY}, ROUTE_ELSEWHERE},
    {{2, 0 | STAY}, ROUTE_WITHIN_TCP},
    {{2 | STAY, 2}, ROUTE_TOGETHER},
    {{2, 2 | STAY}, ROUTE_WITHIN_COPY},
    {{0, 1}, ROUTE_BOTH}, /* copy to tcp */
    {{1, 0}, ROUTE_BOTH}, /* they change places */
    {{1, 1}, ROUTE_BOTH}, /* tcp to copy */
    {{1, 1}, ROUTE_BOTH}, /* each to another VM beside it */
    {{0, 0}, ROUTE_BOTH}, /* to another host, together */
    {{0 | STAY, 1}, ROUTE_AWAY},
    {{0 | STAY, 0}, ROUTE_TOGETHER},
};

/* Guest @i shall go to host @to of step[]. */
static bool goes(struct route_at *at, unsigned to)
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

static enum route_kind kind_of(const struct route_at before[2],
                               const struct route_at after[2], const bool moves[2])
{
    bool was = before[0].host == before[1].host, is = after[0].host == after[1].host;

    if (moves[0] && moves[1]) {
        return ROUTE_BOTH;
    }
    if (was != is) {
        return was ? ROUTE_AWAY : ROUTE_TOGETHER;
    }
    if (was) {
        return ROUTE_WITHIN_COPY;
    }
    return before[!moves[0]].host == after[!moves[0]].host ? ROUTE_WITHIN_TCP
                                                           : ROUTE_ELSEWHERE;
}

enum route_kind route_move(struct route *r, struct vguest *const g[2])
{
    const struct route_at before[2] = {r->at[0], r->at[1]};
    unsigned i = r->moves++, now = i % G_N_ELEMENTS(step);
    struct vg_place place[2];
    bool moves[2];

    for (unsigned k = 0; k < 2; k++) {
        moves[k] = goes(&r->at[k], step[now].host[k]);
        if (moves[k]) {
            place[k] = vg_place_resuming(g[k], r->host[r->at[k].host], r->at[k].vm);
        }
    }
    for (unsigned k = 0; k < 2; k++) {
        if (moves[k]) {
            vg_move_state(g[k], &place[k]);
        }
    }
    g_assert_cmpint(kind_of(before, r->at, moves), ==, step[now].kind);
    for (unsigned n = 0; n < 2; n++) {
        unsigned k = (n + i) % 2; /* who was stopped first does not go on first always */

        if (moves[k]) {
            vg_move_end(g[k], &place[k],
                        i % 3 == 2 ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
        }
    }
    return step[now].kind;
}

void route_assert_all(const unsigned done[ROUTE_N_KINDS])
{
    for (unsigned k = 0; k < ROUTE_N_KINDS; k++) {
        g_test_message("%s: %u", route_kind_name[k], done[k]);
        g_assert_cmpuint(done[k], >, 0);
    }
}
