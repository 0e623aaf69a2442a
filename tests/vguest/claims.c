/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See claims.h. */
#include "claims.h"

#include <string.h>
#include <unistd.h>

struct fake claims_host[3];

void claims_begin(const char *keys)
{
    struct host_opts o = {.n_vms = 4, .n_peers = 3, .daemon_keys = keys};

    vgt_daemon = host_start(0, &o);
}

void claims_begin_link(unsigned i)
{
    fake_init(&claims_host[i], i);
    claims_host[i].hello.timeout_ms = 60000;
    fake_link(&claims_host[i], i);
}

void claims_link_up(unsigned i)
{
    claims_begin_link(i);
    check_ping(&claims_host[i], 1);
}

void claims_end(void)
{
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = NULL;
    for (unsigned i = 1; i < 3; i++) {
        if (claims_host[i].fd > 0) {
            close(claims_host[i].fd);
            claims_host[i].fd = 0;
        }
    }
}

int64_t claims_status(const char *group, const char *name)
{
    return vg_status_int(vgt_daemon, NULL, group, name);
}

struct peer_claim claims_make(const struct pvrdma_gid *gid, uint64_t owner,
                              uint64_t generation)
{
    struct peer_claim c = {
        .gid = *gid, .owner = {owner, 1}, .generation = generation, .network = "lan"};

    return c;
}

void claims_say(unsigned i, enum peer_msg_type type, struct peer_claim c)
{
    struct peer_msg m = {.type = (uint16_t)type, .claim = c};

    put_msg(&claims_host[i], &m);
}

void claims_settle(unsigned i)
{
    static uint64_t stamp = 100;

    check_ping(&claims_host[i], ++stamp);
}

void claims_ask(unsigned i, const struct pvrdma_gid *gid)
{
    struct peer_claim c = {.gid = *gid, .network = "lan"};

    claims_say(i, PEER_MSG_ASK, c);
}

struct peer_msg claims_next(unsigned i)
{
    struct peer_msg m;

    do {
        g_assert_true(get_msg(&claims_host[i], &m, NULL));
    } while (m.type == PEER_MSG_PING || m.type == PEER_MSG_PONG);
    return m;
}

bool claims_is(const struct peer_msg *m)
{
    return m->type == PEER_MSG_CLAIM || m->type == PEER_MSG_PROVED;
}

struct peer_claim claims_hear(unsigned i, enum peer_msg_type type,
                              const struct pvrdma_gid *gid)
{
    struct peer_msg m = claims_next(i);

    g_assert_cmpuint(claims_is(&m) ? PEER_MSG_CLAIM : m.type, ==, type);
    g_assert_cmpstr(m.claim.network, ==, "lan");
    g_assert_cmpmem(&m.claim.gid, sizeof(*gid), gid, sizeof(*gid));
    return m.claim;
}

void claims_hear_ask(unsigned i, const struct pvrdma_gid *gid)
{
    struct peer_msg m;

    do {
        m = claims_next(i);
    } while (m.type != PEER_MSG_ASK || memcmp(&m.claim.gid, gid, sizeof(*gid)) != 0);
}

void claims_ud_side(struct vgt_side *s, unsigned vm)
{
    struct vgt_opts o;

    ud_options(&o, VGT_STOCK);
    vgt_side_open(s, vm, &o, 0);
    vg_ud_to_rts(s->qp, QKEY);
}

void claims_rc_side(struct vgt_side *s, unsigned vm, const struct pvrdma_gid *far)
{
    struct vgt_opts o = {.conn = {.timeout = 8, .retry_cnt = 1}};

    vgt_side_open(s, vm, &o, 0);
    vg_qp_reset_to_rts(s->qp, far, 77, 1, 1, &o.conn);
}
