/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: made-up hosts claim addresses as they like: which of them a daemon
 * believes, and what it remembers at most.
 */
#include "claims.h"

#include <string.h>
#include <unistd.h>

/*
 * Of a host that has to be heard from, or counts as gone: how often it was asked for @gid
 * until the daemon had dealt with all that was said.
 */
static unsigned hear_asks(unsigned i, const struct pvrdma_gid *gid)
{
    struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = 1}, m;
    unsigned n = 0;

    put_msg(&claims_host[i], &ping);
    do {
        g_assert_true(get_msg(&claims_host[i], &m, NULL));
        n += m.type == PEER_MSG_ASK && memcmp(&m.claim.gid, gid, sizeof(*gid)) == 0;
    } while (m.type != PEER_MSG_PONG);
    return n;
}

static void wait_asked(unsigned i, const struct pvrdma_gid *gid)
{
    vgt_await(hear_asks(i, gid));
}

/* ---- owners ---- */

/* Where a datagram to @far goes: host 1 or 2; 0: nowhere. */
static unsigned goes_to(struct vgt_side *s, const struct pvrdma_gid *far)
{
    static uint64_t n = 1000;
    unsigned found = 0;
    struct peer_msg m;

    /* Marked by its number, and so are those that the other host gets. */
    n++;
    ud_send(s, s, (struct dg){.to = far, .wr_id = n, .qpn = (uint32_t)n});
    vgt_expect(s->scq, n, PVRDMA_WC_SUCCESS);
    /* An answer may pass a datagram on its way; the second does not. */
    for (unsigned round = 0; round < 4; round++) {
        unsigned i = 1 + round % 2;
        struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = n * 8 + round};

        put_msg(&claims_host[i], &ping);
        do {
            g_assert_true(get_msg(&claims_host[i], &m, NULL));
            if (m.type == PEER_MSG_DATAGRAM && m.datagram.dqpn == n) {
                g_assert_cmpuint(found, ==, 0);
                found = i;
            }
        } while (m.type != PEER_MSG_PONG || m.stamp != n * 8 + round);
    }
    return found;
}

static void test_owners(void)
{
    struct pvrdma_gid far = vg_gid(60);
    struct peer_claim c;
    struct vgt_side s;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_link_up(2);
    claims_ud_side(&s, 0);
    claims_say(1, PEER_MSG_CLAIM, claims_make(&far, 7, 5));
    claims_settle(1);
    g_assert_cmpuint(goes_to(&s, &far), ==, 1);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far, 8, 9)); /* another VM's */
    claims_settle(2);
    host_wait_logged(vgt_daemon, "peer host2: claims 10.0.0.61 of network lan: refused");
    g_assert_cmpuint(goes_to(&s, &far), ==, 1);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far, 7, 5)); /* it has not moved */
    claims_settle(2);
    host_wait_logged(vgt_daemon, "<6>peer host2: claims 10.0.0.61 of network lan: "
                                 "refused, its owner has moved");
    g_assert_cmpuint(goes_to(&s, &far), ==, 1);
    claims_say(2, PEER_MSG_CLAIM,
               claims_make(&far, 7, 6)); /* it has, and runs at the other all the same */
    claims_settle(2);
    host_wait_logged(vgt_daemon, "refused, its owner runs where it was");
    g_assert_cmpuint(goes_to(&s, &far), ==, 1);
    c = claims_make(&far, 7, 5);
    c.hold_ms = 60000;
    claims_say(1, PEER_MSG_HOLD, c); /* now it does not: who has it? */
    claims_settle(1);
    claims_hear_ask(2, &far);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far, 7, 6));
    claims_settle(2);
    g_assert_cmpuint(goes_to(&s, &far), ==, 2);
    claims_say(1, PEER_MSG_CLAIM, claims_make(&far, 7, 5)); /* too late */
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&far, 7, 5));
    claims_settle(1);
    g_assert_cmpuint(goes_to(&s, &far), ==, 2);
    /* Of its own another one may have it now. */
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far, 9, 1));
    claims_settle(2);
    g_assert_cmpuint(goes_to(&s, &far), ==, 2);
    g_assert_cmpint(claims_status("directory", "claims_refused"), ==, 2);
    /* Ours stays ours. */
    claims_say(1, PEER_MSG_CLAIM, claims_make(&s.g->gid, 7, 99));
    claims_settle(1);
    g_assert_cmpint(claims_status("directory", "claims_refused"), ==, 3);
    vgt_side_close(&s);
    claims_end();
}

/* ---- moves ---- */

/* What this daemon says of @gid, that its VM has. */
static struct peer_claim own_claim(unsigned i, const struct pvrdma_gid *gid)
{
    struct peer_claim c = {.gid = *gid, .network = "lan"};
    struct peer_msg m;

    claims_settle(i);
    claims_say(i, PEER_MSG_ASK, c);
    do {
        m = claims_next(i);
    } while (!claims_is(&m) || memcmp(&m.claim.gid, gid, sizeof(*gid)) != 0);
    claims_settle(i);
    return m.claim;
}

/*
 * A VM's address is claimed from elsewhere: by a host that repeats the claim, while it
 * runs; by another owner, while it stands still; and by itself.
 */
static void test_moved(void)
{
    struct peer_claim mine, c;
    struct vgt_side s;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_link_up(2);
    claims_ud_side(&s, 0);
    mine = own_claim(1, &s.g->gid);
    g_assert_cmpuint(mine.generation, ==, 1);
    g_assert_cmpuint(mine.hold_ms, ==, 0);
    own_claim(2, &s.g->gid);
    mine.generation = 99;
    claims_say(1, PEER_MSG_CLAIM, mine);
    c = claims_hear(1, PEER_MSG_CLAIM, &s.g->gid); /* it runs here */
    g_assert_cmpuint(c.generation, ==, 1);
    g_assert_cmpuint(c.hold_ms, ==, 0);
    g_assert_cmpint(claims_status("directory", "claims_refused"), ==, 1);
    ud_passes(&s, &s, (struct dg){.len = 64, .wr_id = 1});

    vgt_vm(vgt_daemon, "pause", 0);
    claims_hear(1, PEER_MSG_HOLD, &s.g->gid);
    claims_hear(2, PEER_MSG_HOLD, &s.g->gid);
    claims_say(1, PEER_MSG_CLAIM, claims_make(&s.g->gid, 7, 99));
    mine.generation = 1;
    claims_say(1, PEER_MSG_CLAIM, mine);
    claims_settle(1);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, 0);
    /* Nor is it anywhere else now that it stands still: nobody has its state. */
    mine.generation = 2;
    claims_say(1, PEER_MSG_CLAIM, mine);
    claims_settle(1);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, 0);
    vgt_vm(vgt_daemon, "resume", 0);
    ud_passes(&s, &s, (struct dg){.len = 64, .wr_id = 2});
    vgt_side_close(&s);
    claims_end();
}

/*
 * The link is lost: for a while the addresses are not free, held or not.  After that,
 * too, who sends to one that was held waits until its owner, or anybody who has it now,
 * is heard; but not if its host had said that it ends.
 */
static void test_lost(void)
{
    struct peer_msg stops = {.type = PEER_MSG_CLOSE, .reason = PEER_CLOSE_STOPPING};
    struct pvrdma_gid far[5];
    struct vguest *g;
    struct vgt_side s, rc;

    claims_begin("peer-timeout=3");
    claims_link_up(1);
    claims_link_up(2);
    g = vguest_new(vgt_daemon, 1, NULL);
    claims_ud_side(&s, 0);
    for (unsigned i = 0; i < 5; i++) {
        struct peer_claim c;

        far[i] = vg_gid(60 + i);
        c = claims_make(&far[i], 7 + i, 5);
        c.hold_ms = i == 3 ? 0 : 60000;
        claims_say(i == 4 ? 2 : 1, PEER_MSG_CLAIM, c);
    }
    claims_settle(1);
    claims_settle(2);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, 5);
    claims_rc_side(&rc, 2, &far[2]);
    put_msg(&claims_host[2], &stops);
    wait_closed(claims_host[2].fd);
    close(claims_host[1].fd);
    host_wait_up(vgt_daemon, 1, false);
    g_assert_cmpint(vg_bind_gid(g, 1, &far[0]), ==, 0); /* they wait */
    g_assert_cmpint(vg_bind_gid(g, 2, &far[3]), ==, 0);
    g_assert_cmpint(claims_status("directory", "waiting_gids"), ==, 2);
    vgt_await(claims_status("directory", "waiting_gids") == 0);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, 2);

    UD_LOST(&s, &s, 0, "to_paused", .to = &far[1], .len = 8);
    claims_link_up(2);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far[1], 99, 1)); /* another VM's */
    claims_settle(2);
    ud_send(&s, &s, (struct dg){.to = &far[1], .len = 8, .wr_id = 2});
    vgt_expect(s.scq, 2, PVRDMA_WC_SUCCESS);
    while (claims_next(2).type != PEER_MSG_DATAGRAM) {
    }
    vgt_send(&rc, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &rc, 0);
    vgt_expect_none(rc.scq, 50);
    claims_begin_link(1);
    claims_hear_ask(1, &far[2]);
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&far[2], 9, 5));
    vgt_expect(rc.scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_side_close(&rc);
    vgt_side_close(&s);
    vguest_free(g);
    claims_end();
}

/* ---- bounds ---- */

static void test_too_many(void)
{
    const unsigned max = 65536, n = 70000;
    const unsigned each =
        430; /* bytes: "addresses that a peer has claimed", docs/hosts.md */
    struct vg_usage before, after;
    struct peer_claim c;
    long grown;
    struct vguest *g;

    claims_begin("peer-timeout=60");
    claims_link_up(1);
    claims_link_up(2);
    g = vguest_new(vgt_daemon, 0, NULL);
    claims_settle(1);
    vg_daemon_usage(vgt_daemon, &before);
    for (unsigned i = 0; i < n; i++) {
        struct pvrdma_gid gid = {
            .raw = {0xfd, [13] = i >> 16 & 255, [14] = i >> 8 & 255, [15] = i & 255}};

        c = claims_make(&gid, 7, 1);
        claims_say(1, PEER_MSG_CLAIM, c);
    }
    claims_settle(1);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, max);
    g_assert_cmpint(claims_status("directory", "too_many"), ==, n - max);
    vg_daemon_usage(vgt_daemon, &after);
    grown = (after.rss_anon_kib - before.rss_anon_kib) * 1024;
    g_test_message("%ld bytes for each of %u claims", grown / (long)max, max);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(grown, >, (long)max * each * 3 / 4);
        g_assert_cmpint(grown, <, (long)max * each);
    }
    c = claims_make(&(struct pvrdma_gid){.raw = {0xfc, [15] = 1}}, 8, 1);
    claims_say(2, PEER_MSG_CLAIM, c); /* others have their own */
    claims_settle(2);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, max + 1);
    /* In networks that nobody here is in: nothing is remembered. */
    strcpy(c.network, "elsewhere");
    for (unsigned i = 0; i < 1000; i++) {
        g_snprintf(c.network, sizeof(c.network), "elsewhere%u", i);
        claims_say(2, PEER_MSG_CLAIM, c);
    }
    claims_settle(2);
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, max + 1);
    vguest_free(g);
    claims_end();
}

/*
 * A host has died while VMs of it stood still, and one begins anew elsewhere, says
 * nothing of that, and has not even heard of who waits for it: it is asked again and
 * again.
 */
static void test_elsewhere(void)
{
    struct pvrdma_gid far[2] = {vg_gid(60), vg_gid(61)};
    struct vgt_side rc, ud;

    claims_begin("peer-timeout=3");
    claims_link_up(1);
    claims_link_up(2);
    claims_ud_side(&ud, 0);
    for (unsigned i = 0; i < 2; i++) {
        struct peer_claim c = claims_make(&far[i], 7 + i, 5);

        c.hold_ms = 600000;
        claims_say(1, PEER_MSG_CLAIM, c);
    }
    claims_settle(1);
    claims_rc_side(&rc, 1, &far[0]);
    close(claims_host[1].fd);
    claims_host[1].fd = 0;
    for (unsigned n = 0; n < 3; n++) { /* when it is lost for good, and then */
        wait_asked(2, &far[0]);
        claims_say(2, PEER_MSG_UNCLAIM, claims_make(&far[0], 0, 0));
    }
    g_assert_cmpint(claims_status("directory", "remote_gids"), ==, 2);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far[0], 99, 1));
    claims_settle(2);
    ud_send(&ud, &ud, (struct dg){.to = &far[0], .len = 8, .wr_id = 1});
    vgt_expect(ud.scq, 1, PVRDMA_WC_SUCCESS);
    while (claims_next(2).type != PEER_MSG_DATAGRAM) {
    }
    UD_LOST(&ud, &ud, 0, "to_paused", .to = &far[1], .len = 8);
    wait_asked(2, &far[1]);
    claims_say(2, PEER_MSG_CLAIM, claims_make(&far[1], 99, 1));
    claims_settle(2);
    ud_send(&ud, &ud, (struct dg){.to = &far[1], .len = 8, .wr_id = 2});
    vgt_expect(ud.scq, 2, PVRDMA_WC_SUCCESS);
    while (claims_next(2).type != PEER_MSG_DATAGRAM) {
    }
    vgt_side_close(&rc);
    vgt_side_close(&ud);
    claims_end();
}

/*
 * Holds that end, one after the other, while their host is away: then nobody is there.
 * What is still held is not looked at for each of them.
 */
static void test_hold_ends(void)
{
    enum { N = 20, FIRST_MS = 4000, EVERY_MS = 100 };
    struct pvrdma_gid far[N + 1];
    struct vgt_side rc, ud;
    int64_t begun, ended;
    unsigned asks = 0;

    claims_begin("peer-timeout=3");
    claims_link_up(1);
    claims_link_up(2);
    claims_ud_side(&ud, 0);
    begun = vg_now_ns();
    for (unsigned i = 0; i <= N; i++) {
        struct peer_claim c;

        far[i] = vg_gid(60 + i);
        c = claims_make(&far[i], 7, 5);
        c.hold_ms = i < N ? FIRST_MS + i * EVERY_MS : 600000;
        claims_say(1, PEER_MSG_CLAIM, c);
    }
    claims_settle(1);
    claims_rc_side(&rc, 1, &far[N]);
    close(claims_host[1].fd);
    claims_host[1].fd = 0;
    host_wait_up(vgt_daemon, 1, false);
    UD_LOST(&ud, &ud, 0, "to_paused", .to = &far[N - 1], .len = 8);
    while (claims_status("directory", "remote_gids") > 1) {
        g_assert_cmpint(vg_now_ns() - begun, <, VGT_WAIT_MS * 1000000ll);
        asks += hear_asks(2, &far[N]);
        g_usleep(20000);
    }
    asks += hear_asks(2, &far[N]);
    ended = vg_now_ns();
    g_assert_cmpint(ended - begun, >=, (FIRST_MS + (N - 1) * EVERY_MS) * 1000000ll);
    g_assert_cmpuint(asks, >=, 1);
    g_assert_cmpint(asks, <=, (ended - begun) / 1000000000 - 1);
    UD_LOST(&ud, &ud, 0, "to_nobody", .to = &far[0], .len = 8);
    vgt_side_close(&rc);
    vgt_side_close(&ud);
    claims_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/claims/owners", test_owners);
    g_test_add_func("/claims/moved", test_moved);
    g_test_add_func("/claims/lost", test_lost);
    g_test_add_func("/claims/elsewhere", test_elsewhere);
    g_test_add_func("/claims/hold-ends", test_hold_ends);
    g_test_add_func("/claims/too-many", test_too_many);
    return vgt_run();
}
