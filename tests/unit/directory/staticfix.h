/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of the engine `static` share: a VM with addresses, peers 0 to 2, and
 * what these are sent, as lines in a string: "0?2" asks peer 0 for address 2, "0+2"
 * claims it there, "0-2" says that it is not here, "0=2" that it stands still or not any
 * more, "0>2" that another host goes on with it.
 */
#ifndef TESTS_STATICFIX_H
#define TESTS_STATICFIX_H

#include "directory/static.h"
#include "turn.h"
#include "vm/attach.h"

static struct vm_config staticfix_cfg = {.name = (char *)"a", .network = (char *)"blue"};
static struct vm staticfix_vm = {
    .cfg = &staticfix_cfg, .id = 1, .identity = {.owner = {7, 8}, .generation = 1}};

static char staticfix_peers[3];
#define STATICFIX_PEER(i) ((struct peer *)(void *)&staticfix_peers[i])

static inline struct pvrdma_gid staticfix_gid(unsigned n)
{
    struct pvrdma_gid gid = {.raw = {0xfe, 0x80, [15] = n}};

    return gid;
}

/* ---- what is sent ---- */

static GString *staticfix_sent;
static bool staticfix_full[3]; /* its link takes nothing */
static uint64_t staticfix_last_hold;

static inline bool staticfix_say(struct peer *peer, char what, const char *network,
                                 const struct pvrdma_gid *gid)
{
    unsigned i = (unsigned)((char *)peer - staticfix_peers);

    if (staticfix_full[i]) {
        return false;
    }
    g_string_append_printf(staticfix_sent, "%u%c%u%s ", i, what, gid->raw[15],
                           g_str_equal(network, "blue") ? "" : network);
    return true;
}

static inline bool staticfix_send_ask(struct peer *peer, const char *network,
                                      const struct pvrdma_gid *gid)
{
    return staticfix_say(peer, '?', network, gid);
}

static inline bool staticfix_send_claim(struct peer *peer, const char *network,
                                        const struct pvrdma_gid *gid,
                                        const struct claim *claim, uint64_t hold_ns)
{
    g_assert_cmpuint(claim->owner[0], ==, 7);
    g_assert_true(claim->owner[1] == 8 || claim->owner[1] == 9);
    g_assert_cmpuint(claim->generation, ==, staticfix_vm.identity.generation);
    staticfix_last_hold = hold_ns;
    return staticfix_say(peer, '+', network, gid);
}

static inline bool staticfix_send_unclaim(struct peer *peer, const char *network,
                                          const struct pvrdma_gid *gid)
{
    return staticfix_say(peer, '-', network, gid);
}

static inline bool staticfix_send_hold(struct peer *peer, const char *network,
                                       const struct pvrdma_gid *gid, uint64_t hold_ns)
{
    staticfix_last_hold = hold_ns;
    return staticfix_say(peer, '=', network, gid);
}

static inline bool staticfix_send_rival(struct peer *peer, const char *network,
                                        const struct pvrdma_gid *gid,
                                        const struct claim *claim)
{
    return staticfix_say(peer, '>', network, gid);
}

static unsigned staticfix_resets;

static inline void staticfix_reset(struct peer *peer)
{
    staticfix_resets++;
    static_peer_down(peer);
}

static const struct static_ops staticfix_ops = {
    staticfix_send_ask,  staticfix_send_claim, staticfix_send_unclaim,
    staticfix_send_hold, staticfix_send_rival, staticfix_reset};

/* The messages since the last time, without the last blank. */
static inline void staticfix_expect(const char *want)
{
    if (staticfix_sent->len) {
        g_string_truncate(staticfix_sent, staticfix_sent->len - 1);
    }
    g_assert_cmpstr(staticfix_sent->str, ==, want);
    g_string_truncate(staticfix_sent, 0);
}

static inline void staticfix_up(unsigned i)
{
    static_peer_up(STATICFIX_PEER(i), "host");
}

/* The VM's network is known, and so what others say of it is remembered. */
static inline void staticfix_init(int *argc, char ***argv)
{
    g_test_init(argc, argv, NULL);
    staticfix_cfg.network = (char *)g_intern_string("blue");
    staticfix_sent = g_string_new(NULL);
}

static inline void staticfix_begin(unsigned n_up)
{
    directory_init();
    g_string_truncate(staticfix_sent, 0);
    memset(staticfix_full, 0, sizeof(staticfix_full));
    g_assert_cmpint(static_start(&staticfix_ops), ==, 0);
    for (unsigned i = 0; i < n_up; i++) {
        staticfix_up(i);
    }
    staticfix_expect("");
}

static inline void staticfix_end(void)
{
    static_stop();
    g_assert_cmpuint(directory_routes(), ==, 0);
    directory_fini();
}

static inline void staticfix_asked(unsigned peer, unsigned n)
{
    struct pvrdma_gid gid = staticfix_gid(n);

    static_asked(STATICFIX_PEER(peer), "blue", &gid);
}

static inline void staticfix_claimed(unsigned peer, unsigned n, uint64_t owner)
{
    struct pvrdma_gid gid = staticfix_gid(n);
    struct claim c = {{owner, 0}, 1};

    static_claimed(STATICFIX_PEER(peer), "blue", &gid, &c, 0);
}

static inline void staticfix_unclaimed(unsigned peer, unsigned n)
{
    struct pvrdma_gid gid = staticfix_gid(n);

    static_unclaimed(STATICFIX_PEER(peer), "blue", &gid);
}

static inline void staticfix_bind(unsigned n)
{
    struct pvrdma_gid gid = staticfix_gid(n);

    g_assert_cmpint(directory_bind(&staticfix_vm, &gid), ==, 0);
}

static inline void staticfix_unbind(unsigned n)
{
    struct pvrdma_gid gid = staticfix_gid(n);

    directory_unbind(&staticfix_vm, &gid);
}

/* The order of the peers is the hash table's. */
static inline void staticfix_expect_all(unsigned n, char what, unsigned gid)
{
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *message = g_strdup_printf("%u%c%u", i, what, gid);

        g_assert_nonnull(strstr(staticfix_sent->str, message));
    }
    g_assert_cmpuint(staticfix_sent->len, ==, 4 * n);
    g_string_truncate(staticfix_sent, 0);
}

static inline void staticfix_expect_asks(unsigned n, unsigned gid)
{
    staticfix_expect_all(n, '?', gid);
}

#endif /* TESTS_STATICFIX_H */
