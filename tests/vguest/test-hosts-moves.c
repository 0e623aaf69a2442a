/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: connections follow the address that they go to.  VM 0 is on host 0 and
 * its peer, VM 1, on host 1; host 2 is made up, and says that VM 1 is there now.
 */
#include "fakehost.h"
#include "migrate.h"

#include <string.h>
#include <unistd.h>

static struct vg_daemon *host[2];
static struct fake fake[2]; /* its links to both */

/* Would give up after 3 * 67 ms of silence, and half a second for what is on its way. */
static const struct vg_conn impatient = {.timeout = 14, .retry_cnt = 2, .rnr_retry = 7};

/* Would wait for minutes. */
static const struct vg_conn patient = {.timeout = 25, .retry_cnt = 7, .rnr_retry = 7};

static void begin(struct vgt_pair *p, const struct vg_conn *conn)
{
    struct host_opts o = {
        .n_vms = 3, .n_peers = 3, .daemon_keys = "peer-timeout=30\nworkers=2"};
    struct vgt_opts vo = {.conn = *conn};

    hosts_start(host, 2, &o);
    for (unsigned i = 0; i < 2; i++) {
        fake_init_to(&fake[i], 2, i);
        fake[i].hello.timeout_ms = 60000;
        fake_link(&fake[i], 2);
        check_ping(&fake[i], 1);
        vo.daemon[i] = host[i];
    }
    vgt_daemon = host[0];
    vgt_pair_open(p, 0, 1, &vo);
    vgt_write_once(p, 1);
}

static void end(struct vgt_pair *p)
{
    vgt_pair_close(p);
    for (unsigned i = 0; i < 2; i++) {
        vg_daemon_stop(host[i]);
        close(fake[i].fd);
    }
    vgt_daemon = NULL;
}

static struct peer_msg hear(unsigned i, enum peer_msg_type type)
{
    struct peer_msg m;

    do {
        g_assert_true(get_msg(&fake[i], &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_CLOSE);
    } while (m.type != type);
    return m;
}

static void say(unsigned i, enum peer_msg_type type, struct peer_claim c)
{
    struct peer_msg m = {.type = (uint16_t)type, .claim = c};
    static uint64_t stamp = 100;

    put_msg(&fake[i], &m);
    check_ping(&fake[i], ++stamp);
}

/* What host 1 says of VM 1. */
static struct peer_claim claim_of_vm1(const struct vgt_pair *p)
{
    struct peer_claim c = {.gid = p->s[1].g->gid, .network = "lan"};
    struct peer_msg m = {.type = PEER_MSG_ASK, .claim = c};

    put_msg(&fake[1], &m);
    m = hear(1, PEER_MSG_CLAIM);
    g_assert_cmpmem(&m.claim.gid, sizeof(c.gid), &c.gid, sizeof(c.gid));
    return m.claim;
}

static int64_t refused(void)
{
    return vg_status_int(host[0], NULL, "directory", "claims_refused");
}

/* VM 1, which is paused, has moved.  That it is may not have come to host 0 yet. */
static void move(struct peer_claim c)
{
    int64_t before;

    do {
        before = refused();
        say(0, PEER_MSG_CLAIM, c);
    } while (refused() != before);
}

/* A test begins, and VM 1 stands still; its claim. */
static struct peer_claim begin_held(struct vgt_pair *p, const struct vg_conn *conn)
{
    struct peer_claim c;

    begin(p, conn);
    c = claim_of_vm1(p);
    vgt_vm(host[1], "pause", 1);
    hear(1, PEER_MSG_HOLD);
    return c;
}

/* The queue pair of VM 0 looks for its peer at host 2. */
static void hear_bind(const struct vgt_pair *p)
{
    struct peer_bind b = hear(0, PEER_MSG_BIND).bind;

    g_assert_cmpstr(b.network, ==, "lan");
    g_assert_cmpmem(&b.sgid, sizeof(b.sgid), &p->s[0].g->gid, sizeof(b.sgid));
    g_assert_cmpmem(&b.dgid, sizeof(b.dgid), &p->s[1].g->gid, sizeof(b.dgid));
    g_assert_cmpuint(b.sqpn, ==, p->s[0].qp->qpn);
    g_assert_cmpuint(b.dqpn, ==, p->s[1].qp->qpn);
}

/* While the peer runs where it was, nothing changes. */
static void test_stays(void)
{
    struct peer_claim c;
    struct vgt_pair p;

    begin(&p, &impatient);
    c = claim_of_vm1(&p);
    c.generation = 9;
    say(0, PEER_MSG_CLAIM, c);
    host_wait_logged(host[0], "peer host2: claims 10.0.0.2 of network lan: refused, its "
                              "owner runs where it was");
    for (unsigned i = 0; i < 20; i++) {
        vgt_write_once(&p, 10 + i);
    }
    end(&p);
}

/*
 * The peer stands still, and has gone: what is on its way there is taken back, and goes
 * to its new place as soon as that can be reached.  No time runs until then.
 */
static void test_follows(void)
{
    struct vgt_pair p;
    struct peer_claim c = begin_held(&p, &impatient);

    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100000, &p.s[1], 0);
    vgt_expect_none(p.s[0].scq, 1500);
    c.generation++;
    c.hold_ms = 60000;
    move(c);
    vgt_send(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    vgt_expect_none(p.s[0].scq, 1500); /* it is held there, too */
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    c.hold_ms = 0;
    say(0, PEER_MSG_HOLD, c);
    hear_bind(&p);
    /* Nobody is there: now the clock runs. */
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_expect(p.s[0].scq, 3, PVRDMA_WC_WR_FLUSH_ERR);
    end(&p);
}

/* The stream to the former place is left for that alone, however patient one is. */
static void test_leaves(void)
{
    struct vgt_pair p;
    struct peer_claim c = begin_held(&p, &patient);

    c.generation++;
    c.hold_ms = 60000;
    move(c);
    c.hold_ms = 0;
    put_msg(&fake[0], &(struct peer_msg){.type = PEER_MSG_HOLD, .claim = c});
    hear_bind(&p);
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    end(&p);
}

/* It comes back in the end, to where it was, and all goes on. */
static void test_returns(void)
{
    struct vgt_pair p;
    struct peer_claim c = begin_held(&p, &impatient);

    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 100000, 4);
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100000, &p.s[1], 0);
    c.generation++;
    c.hold_ms = 60000;
    move(c); /* host 1 does not hear of it */
    vgt_expect_none(p.s[0].scq, 200);
    say(0, PEER_MSG_UNCLAIM, c);
    vgt_vm(host[1], "resume", 1);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p.s[1].mr, 0), 100000, 4);
    vgt_write_once(&p, 5);
    end(&p);
}

/* A hold has an end, without another word. */
static void test_bounded(void)
{
    struct vgt_pair p;
    struct peer_claim c = begin_held(&p, &impatient);

    c.generation++;
    c.hold_ms = 1000;
    move(c);
    vgt_send(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[1], 0);
    hear_bind(&p);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    end(&p);
}

/* ---- two places of one state ---- */

/* The key that is in @stream. */
static const uint8_t *key_in(const GByteArray *stream)
{
    return vg_mig_section(stream, "KEY ", 32);
}

static void prove(struct peer_claim *c, const uint8_t *key)
{
    GHmac *h = g_hmac_new(G_CHECKSUM_SHA256, key, 32);
    const uint64_t words[] = {c->owner[0], c->owner[1], c->generation};
    uint8_t digest[32];
    gsize len = sizeof(digest);

    g_hmac_update(h, (const guchar *)"pvrdma place of a VM", -1);
    g_hmac_update(h, (const guchar *)words, sizeof(words));
    g_hmac_update(h, (const guchar *)c->host, -1);
    g_hmac_get_digest(h, digest, &len);
    g_hmac_unref(h);
    memcpy(c->proof, digest, sizeof(c->proof));
}

/* Guest @i's state is read, and then it goes on here. */
static GByteArray *save_and_go_on(struct vguest *g)
{
    GByteArray *stream;

    stream = vg_mig_save(g);
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    return stream;
}

/*
 * Host 2 says that VM 1 runs there, too.  VM 1 goes on until that is proved, and comes
 * first.
 */
static void test_proved(void)
{
    g_autoptr(GByteArray) stream = NULL;
    struct peer_claim c, told;
    struct vgt_pair p;

    begin(&p, &patient);
    c = claim_of_vm1(&p);
    stream = save_and_go_on(p.s[1].g);
    told = hear(1, PEER_MSG_PROVED).claim;
    g_assert_cmpstr(told.host, ==, "host1");
    g_assert_cmpuint(told.generation, ==, 3);
    g_assert_cmpint(told.owner[0] == c.owner[0] && told.owner[1] == c.owner[1], !=, 0);
    c = told;
    prove(&c, key_in(stream));
    g_assert_cmpmem(c.proof, sizeof(c.proof), told.proof, sizeof(told.proof));

    c.generation = 9;
    strcpy(c.host, "host2"); /* another's proof, of another time */
    say(1, PEER_MSG_PROVED, c);
    strcpy(c.host, "host7"); /* and as if it came from elsewhere */
    say(1, PEER_MSG_PROVED, c);
    strcpy(c.host, "host1");
    say(1, PEER_MSG_PROVED, c);
    vgt_write_once(&p, 2);

    strcpy(c.host, "host2");
    c.generation = 3; /* behind host1 by its name: it hears of that */
    prove(&c, key_in(stream));
    put_msg(&fake[1], &(struct peer_msg){.type = PEER_MSG_PROVED, .claim = c});
    g_assert_cmpstr(hear(1, PEER_MSG_PROVED).claim.host, ==, "host1");
    vgt_write_once(&p, 3);

    c.generation = 4;
    prove(&c, key_in(stream));
    say(1, PEER_MSG_PROVED, c);
    g_assert_true(vg_wait_closed(p.s[1].g, VGT_WAIT_MS));
    host_wait_logged(host[1],
                     "host host2 runs another instance of this VM from the same state");
    vg_disconnect(p.s[1].g);
    end(&p);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/hosts-moves/stays", test_stays);
    g_test_add_func("/hosts-moves/follows", test_follows);
    g_test_add_func("/hosts-moves/leaves", test_leaves);
    g_test_add_func("/hosts-moves/returns", test_returns);
    g_test_add_func("/hosts-moves/bounded", test_bounded);
    g_test_add_func("/hosts-moves/proved", test_proved);
    return vgt_run();
}
