/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: datagrams between a daemon's VMs and addresses that made-up hosts claim:
 * what is sent and when, what waits for a link, and which of those that come are
 * believed.
 */
#include "claims.h"

#include <unistd.h>

static struct peer_datagram datagram(const struct pvrdma_gid *from,
                                     const struct vgt_side *to, const void *data,
                                     uint32_t len)
{
    return (struct peer_datagram){.network = "lan",
                                  .sgid = *from,
                                  .dgid = to->g->gid,
                                  .sqpn = 0x123456,
                                  .dqpn = to->qp->qpn,
                                  .qkey = QKEY,
                                  .hop_limit = 9,
                                  .data = data,
                                  .len = len};
}

static void send_datagram(unsigned i, struct peer_datagram d)
{
    struct peer_msg m = {.type = PEER_MSG_DATAGRAM, .datagram = d};

    put_msg(&claims_host[i], &m);
}

/* What is sent, and that its source is known there before it comes. */
static void test_sent(void)
{
    struct pvrdma_gid far = vg_gid(60);
    struct peer_datagram *d;
    struct peer_msg m;
    struct vgt_side s;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_ud_side(&s, 0);
    vgt_fill(VG_MR_HOST(s.mr, 0), 100, 5);
    ud_send(&s, &s,
            (struct dg){.len = 100,
                        .to = &far,
                        .wr_id = 3,
                        .qpn = 0xabcdef,
                        .opcode = PVRDMA_WR_SEND_WITH_IMM,
                        .flags = PVRDMA_SEND_SOLICITED});
    claims_hear(1, PEER_MSG_ASK, &far);
    vgt_expect_none(s.scq, 50); /* it waits */
    claims_say(1, PEER_MSG_CLAIM, claims_make(&far, 7, 1));
    claims_hear(1, PEER_MSG_CLAIM, &s.g->gid);
    m = claims_next(1);
    d = &m.datagram;
    g_assert_cmpuint(m.type, ==, PEER_MSG_DATAGRAM);
    g_assert_cmpstr(d->network, ==, "lan");
    g_assert_cmpmem(&d->sgid, 16, &s.g->gid, 16);
    g_assert_cmpmem(&d->dgid, 16, &far, 16);
    g_assert_cmpuint(d->sqpn, ==, s.qp->qpn);
    g_assert_cmpuint(d->dqpn, ==, 0xabcdef);
    g_assert_cmpuint(d->qkey, ==, QKEY);
    g_assert_cmpuint(d->imm, ==, 0x01020304);
    g_assert_cmpuint(d->flags, ==, PEER_DATAGRAM_IMM | PEER_DATAGRAM_SOLICITED);
    g_assert_cmpuint(d->traffic_class, ==, 0x5a);
    g_assert_cmpuint(d->flow_label, ==, 0xabcde);
    g_assert_cmpuint(d->hop_limit, ==, 63);
    g_assert_cmpuint(d->len, ==, 100);
    vgt_check(d->data, 100, 5);
    vgt_expect(s.scq, 3, PVRDMA_WC_SUCCESS);
    /* Withdrawn: it is asked for anew, and nobody has it. */
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&far, 7, 1));
    claims_settle(1);
    ud_send(&s, &s, (struct dg){.to = &far, .wr_id = 4});
    claims_hear(1, PEER_MSG_ASK, &far);
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&far, 0, 0));
    vgt_expect(s.scq, 4, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(ud_dropped(0, "to_nobody"), ==, 1);
    vgt_side_close(&s);
    claims_end();
}

/*
 * A link that is lost may be back in a moment: until then a MAD waits that may be for one
 * of that host's VMs.  A host that has said that it ends has none.
 */
static void test_back(void)
{
    struct pvrdma_gid far = vg_gid(60);
    struct peer_msg stops = {.type = PEER_MSG_CLOSE, .reason = PEER_CLOSE_STOPPING};
    struct dg mad = UD_MAD;
    struct fake other;
    struct vgt_side s;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_settle(1);
    ud_gsi_open(&s, 0);
    mad.to = &far;
    /* Who cannot prove to be that host has nothing to say about it. */
    fake_init(&other, 1);
    fake_call(&other, 1);
    get_hello(&other);
    put_msg(&other, &stops);
    wait_closed(other.fd);
    close(claims_host[1].fd);
    host_wait_up(vgt_daemon, 1, false);
    ud_send(&s, &s, mad);
    vgt_expect_none(s.scq, 50);
    claims_begin_link(1);
    claims_hear_ask(1, &far);
    claims_say(1, PEER_MSG_CLAIM, claims_make(&far, 7, 1));
    vgt_expect(s.scq, 0, PVRDMA_WC_SUCCESS);
    while (claims_next(1).type != PEER_MSG_DATAGRAM) {
    }
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&far, 7, 1));
    put_msg(&claims_host[1], &stops);
    wait_closed(claims_host[1].fd);
    claims_host[1].fd = 0;
    ud_send(&s, &s, mad);
    vgt_expect(s.scq, 0, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_side_close(&s);
    claims_end();
}

/*
 * A link that is lost again and again, sooner than anybody answers: whoever waits for an
 * address that nobody has waits for the first times, and then hears so.
 */
static void test_flaps(void)
{
    struct pvrdma_gid far = vg_gid(60);
    int64_t until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    struct vgt_side s;
    struct pvrdma_cqe c;
    unsigned n = 0;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_rc_side(&s, 0, &far);
    close(claims_host[1].fd);
    host_wait_up(vgt_daemon, 1, false);
    vgt_send(&s, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &s, 0);
    vgt_expect_none(s.scq, 50);
    do {
        g_assert_cmpint(vg_now_ns(), <, until);
        claims_link_up(1);
        close(claims_host[1].fd);
        host_wait_up(vgt_daemon, 1, false);
        n++;
    } while (!vg_cq_wait(s.scq, &c, 100));
    claims_host[1].fd = 0;
    g_test_message("lost %u times more", n);
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
    g_assert_cmpuint(n, >, 1);
    vgt_side_close(&s);
    claims_end();
}

/*
 * Links that take each other's place are no losses: when one is lost after that, who
 * waits for an address goes on waiting.
 */
static void test_replaced(void)
{
    struct pvrdma_gid far = vg_gid(60);
    struct vgt_side s;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_rc_side(&s, 0, &far);
    for (unsigned i = 0; i < 6; i++) {
        int old = claims_host[1].fd;

        claims_link_up(1);
        wait_closed(old);
        close(old);
    }
    close(claims_host[1].fd);
    claims_host[1].fd = 0;
    host_wait_up(vgt_daemon, 1, false);
    vgt_send(&s, 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &s, 0);
    vgt_expect_none(s.scq, 2000);
    vgt_side_close(&s);
    claims_end();
}

/* A host speaks for its own VMs, and of addresses that it has claimed. */
static void test_sources(void)
{
    struct pvrdma_gid mine = vg_gid(60), other = vg_gid(61), none = vg_gid(62);
    struct peer_datagram d;
    uint8_t data[PEER_MAX_DATA];
    struct vgt_side s;
    struct pvrdma_cqe c;

    claims_begin("peer-timeout=30");
    claims_link_up(1);
    claims_link_up(2);
    claims_ud_side(&s, 0);
    vgt_fill(data, sizeof(data), 9);
    claims_say(1, PEER_MSG_CLAIM, claims_make(&mine, 7, 1));
    claims_say(2, PEER_MSG_CLAIM, claims_make(&other, 8, 1));
    claims_settle(2);
    vgt_recv(&s, 500, FAR, GRH + PEER_MAX_DATA);
    send_datagram(1, datagram(&none, &s, data, 8));
    send_datagram(1, datagram(&other, &s, data, 8));
    send_datagram(1, datagram(&s.g->gid, &s, data, 8));
    d = datagram(&mine, &s, data, 8);
    strcpy(d.network, "elsewhere");
    send_datagram(1, d);
    claims_settle(1);
    g_assert_cmpint(claims_status("remote_datagrams", "bad_source"), ==, 4);
    g_assert_cmpint(claims_status("remote_datagrams", "received"), ==, 0);
    /* To what is not there. */
    d = datagram(&mine, &s, data, 8);
    d.dgid = none;
    send_datagram(1, d);
    d.dgid = other;
    send_datagram(1, d);
    claims_settle(1);
    g_assert_cmpint(claims_status("remote_datagrams", "to_nobody"), ==, 2);
    d = datagram(&mine, &s, data, 8);
    d.dqpn ^= 0x10000;
    send_datagram(1, d);
    d = datagram(&mine, &s, data, 8);
    d.qkey++;
    send_datagram(1, d);
    d = datagram(&mine, &s, data, 8);
    d.dqpn = 1; /* a MAD, and no GSI QP */
    d.sqpn = 1;
    send_datagram(1, d);
    /* One that is right, behind them all. */
    d = datagram(&mine, &s, data, PEER_MAX_DATA);
    send_datagram(1, d);
    c = vgt_expect(s.rcq, 500, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.byte_len, ==, GRH + PEER_MAX_DATA);
    g_assert_cmpuint(c.src_qp, ==, 0x123456);
    vgt_check(VG_MR_HOST(s.mr, FAR + GRH), PEER_MAX_DATA, 9);
    g_assert_cmpint(ud_dropped(0, "no_qp"), ==, 2);
    g_assert_cmpint(ud_dropped(0, "qkey_violations"), ==, 1);
    g_assert_cmpint(claims_status("remote_datagrams", "received"), ==, 4);
    /* No longer claimed. */
    claims_say(1, PEER_MSG_UNCLAIM, claims_make(&mine, 7, 1));
    send_datagram(1, datagram(&mine, &s, data, 8));
    claims_settle(1);
    g_assert_cmpint(claims_status("remote_datagrams", "bad_source"), ==, 5);
    vgt_side_close(&s);
    claims_end();
}

/* A host sends what nobody takes, without end: other VMs and commands go on. */
static void test_flood(void)
{
    struct pvrdma_gid mine = vg_gid(60);
    uint8_t data[PEER_MAX_DATA] = {0}, msg[PEER_MSG_MAX];
    struct vgt_side s[3];
    size_t len;
    struct peer_msg m = {.type = PEER_MSG_DATAGRAM};
    int64_t count = vgt_rounds(20000), until, got;

    claims_begin("peer-timeout=30\nworkers=2");
    claims_link_up(1);
    for (unsigned i = 0; i < 3; i++) {
        claims_ud_side(&s[i], i);
    }
    claims_say(1, PEER_MSG_CLAIM, claims_make(&mine, 7, 1));
    m.datagram = datagram(&mine, &s[0], data, sizeof(data));
    len = peer_msg_put(&m, msg);
    for (int64_t i = 0; i < count; i++) {
        put(claims_host[1].fd, msg, len);
        if (i % 1000 == 0) {
            ud_passes(&s[1], &s[2], (struct dg){.len = 64, .wr_id = 1});
        }
    }
    until = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    do {
        got = ud_dropped(0, "no_receive") + ud_dropped(0, "too_many");
        g_assert_cmpint(vg_now_ns(), <, until);
    } while (got < count);
    g_assert_cmpint(got, ==, count);
    g_assert_cmpint(ud_dropped(1, "too_many") + ud_dropped(2, "too_many"), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        vgt_side_close(&s[i]);
    }
    claims_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/claims-datagrams/sent", test_sent);
    g_test_add_func("/claims-datagrams/back", test_back);
    g_test_add_func("/claims-datagrams/flaps", test_flaps);
    g_test_add_func("/claims-datagrams/replaced", test_replaced);
    g_test_add_func("/claims-datagrams/sources", test_sources);
    g_test_add_func("/claims-datagrams/flood", test_flood);
    return vgt_run();
}
