/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a guest is put back to what it was (`loadvm`, a file that is loaded once
 * more or late), while its peers have gone on.
 *
 * VM 0 and VM 2 are places of the guest that is put back, VM 1 is its peer.
 */
#include "hosts.h"
#include "migrate.h"

#include <errno.h>
#include <string.h>

#define STOP      VFIO_USER_MIG_STOP
#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING

static struct vgt_opts opts_of(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}}};
}

/* It stands still, in STOP_COPY. */
static GByteArray *saved(struct vguest *g)
{
    g_assert_cmpint(vg_mig_set(g, STOP_COPY), ==, 0);
    return vg_mig_read(g, 65536);
}

static void load(struct vguest *g, const GByteArray *stream)
{
    g_assert_cmpint(vg_mig_set(g, RESUMING), ==, 0);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, 65536), ==, 0);
    g_assert_cmpint(vg_mig_set(g, STOP), ==, 0);
}

/* What is loaded is said to be a snapshot. */
static void load_snapshot(struct vguest *g, const GByteArray *stream)
{
    g_assert_cmpint(vg_mig_set(g, RESUMING), ==, 0);
    g_assert_cmpint(vg_mig_put_back(g), ==, 0);
    load(g, stream);
}

/* As QEMU's `loadvm` and `cont`. */
static void put_back(struct vguest *g, const GByteArray *stream)
{
    g_assert_cmpint(vg_reset(g), ==, 0);
    load(g, stream);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
    vg_raise_all(g);
}

/* @g is at VM @vm, with a VMM that was started anew; the former one has gone. */
static void begin_vmm(struct vguest *g, unsigned vm)
{
    struct vg_place other = vg_place_open(g, vgt_daemon, vm);

    vg_place_swap(g, &other);
    vg_place_close(&other);
}

/* What was loaded runs, once the daemon has seen that its former VMM has gone. */
static void run_loaded(struct vguest *g)
{
    gint64 end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;
    int err;

    while ((err = vg_mig_set(g, RUNNING)) == EADDRINUSE) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(1000);
    }
    g_assert_cmpint(err, ==, 0);
    vg_raise_all(g);
}

/*
 * A guest is put back to what it was (a snapshot): its connections end, and new ones are
 * as good as ever.  Nothing of them was used since, so that its RAM fits.
 */
static void test_same(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    struct vgt_pair p, more;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    for (unsigned i = 0; i < 2; i++) {
        g_autoptr(GByteArray) stream = saved(g);

        /* It did not run since: that is no past. */
        if (i == 0) {
            load_snapshot(g, stream);
            g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
            vg_raise_all(g);
        } else {
            put_back(g, stream);
        }
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vgt_write_once(&p, 1 + i);
    }
    for (unsigned i = 0; i < 2; i++) { /* twice the same */
        g_autoptr(GByteArray) stream = saved(g);

        g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
        if (i == 0) { /* what is saved later makes it no younger */
            g_byte_array_unref(saved(g));
        }
        put_back(g, stream);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_ERR);
        if (i == 0) {
            g_assert_true(
                vg_event_wait(g, PVRDMA_EVENT_QP_FATAL, p.s[0].qp->handle, VGT_WAIT_MS));
        }
    }
    /* Its peer is told when it asks. */
    vgt_send(&p.s[1], 20, PVRDMA_WR_SEND, VGT_SIG, 0, 100, NULL, 0);
    vgt_expect(p.s[1].scq, 20, PVRDMA_WC_RETRY_EXC_ERR);
    vgt_pair_close(&p);
    vgt_pair_open(&more, 0, 1, &o);
    vgt_write_once(&more, 2);
    vgt_pair_close(&more);
}

/* A past that was loaded and never run is forgotten when the guest is another. */
static void test_reset(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_side *s;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    s = &p.s[0];
    stream = saved(s->g);
    g_assert_cmpint(vg_mig_set(s->g, RUNNING), ==, 0);
    load(s->g, stream);
    g_assert_cmpint(vg_reset(s->g), ==, 0);
    g_assert_cmpuint(vg_mig_get(s->g), ==, RUNNING);
    s->g->up = false;
    vg_mr_free(s->mr);
    vg_qp_free(s->qp);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_pd_free(s->pd);
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 16);
    s->rcq = vg_cq_new(s->pd, 16);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    s->mr = vg_mr_new(s->pd, vg_buf_new(s->g, 0, 4096, VG_SCATTERED),
                      PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_WRITE);
    g_assert_cmpint(vg_qp_to_reset(p.s[1].qp), ==, 0);
    vg_qp_connect(s->qp, p.s[1].qp, NULL);
    vgt_write_once(&p, 1);
    g_assert_cmpint(vg_mig_set(s->g, STOP), ==, 0);
    g_assert_cmpint(vg_mig_set(s->g, RUNNING), ==, 0);
    g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_RTS);
    vgt_write_once(&p, 2);
    vgt_pair_close(&p);
}

/* ---- what the daemon knows of it ---- */

/* The queue pair of what was put back has failed; its peer, which was not, has not. */
static void expect_past(struct vgt_pair *p)
{
    g_assert_true(
        vg_event_wait(p->s[0].g, PVRDMA_EVENT_QP_FATAL, p->s[0].qp->handle, VGT_WAIT_MS));
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_ERR);
    g_assert_cmpuint(vg_qp_state(p->s[1].qp), ==, PVRDMA_QPS_RTS);
}

/*
 * Neither has ever sent anything, so that there is nothing to compare: that the VM ran on
 * is known by its state's number.  That of a copy of the state is, too.
 */
static void test_ran_on(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);

    o.conn = (struct vg_conn){.timeout = 12, .retry_cnt = 2, .rnr_retry = 7};
    for (unsigned copied = 0; copied < 2; copied++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        vgt_recv(&p.s[0], 8, 64, 8);
        stream = saved(g);
        g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
        begin_vmm(g, 2);
        load(g, stream);
        if (copied) {
            g_byte_array_unref(g_steal_pointer(&stream));
            stream = saved(g);
            begin_vmm(g, 0);
            load(g, stream);
        }
        run_loaded(g);
        expect_past(&p);
        vgt_expect(p.s[0].rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
        vgt_send(&p.s[1], 9, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
        vgt_expect(p.s[1].scq, 9, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_pair_close(&p);
    }
}

/* How many addresses wait for their owner, whose VMM has gone. */
static int64_t left(void)
{
    JsonNode *status = vg_daemon_status(vgt_daemon);
    JsonObject *o =
        json_object_get_object_member(json_node_get_object(status), "directory");
    int64_t n = json_object_get_int_member(o, "left_gids");

    json_node_unref(status);
    return n;
}

/* Until some do, as it has been seen that the VMM has gone; or none does any more. */
static void wait_left(bool some)
{
    while ((left() > 0) != some) {
        g_usleep(5000);
    }
}

/* A daemon in which they do so for 3 s. */
static struct vg_daemon *short_hold(void)
{
    struct vg_daemon_opts o = {.n_vms = 3,
                               .poll_us = -1,
                               .workers = 2,
                               .vm_keys = "addresses=any",
                               .daemon_keys = "hold-timeout=3"};

    return vg_daemon_start(&o);
}

/* Its VMM has gone with its state: if it is back later than in time it does not go on. */
static void test_late(gconstpointer style)
{
    struct vg_daemon *former = vgt_daemon;
    struct vgt_opts o = opts_of(style);

    vgt_daemon = short_hold();
    for (unsigned loaded_in_time = 0; loaded_in_time < 2; loaded_in_time++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        stream = saved(g);
        begin_vmm(g, 2);
        wait_left(true);
        if (loaded_in_time) {
            load(g, stream);
        }
        wait_left(false);
        if (!loaded_in_time) {
            load(g, stream);
        }
        run_loaded(g);
        expect_past(&p);
        vgt_pair_close(&p);
    }
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = former;
}

/*
 * A daemon that knows nothing of the state is told by the VMM, or is not; one that was
 * replaced meanwhile has been.  It counts for that one load.
 */
static void test_snapshot(gconstpointer style)
{
    enum { NOT_TOLD, TOLD, TOLD_BEFORE, RESTARTED };
    struct vgt_opts o = opts_of(style);

    for (unsigned how = NOT_TOLD; how <= RESTARTED; how++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        g_assert_cmpint(vg_mig_put_back(g), ==, EINVAL);
        stream = saved(g);
        g_assert_cmpint(vg_mig_put_back(g), ==, EINVAL);
        g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
        vgt_restart(vgt_daemon);
        begin_vmm(g, 2);
        if (how != NOT_TOLD) {
            g_assert_cmpint(vg_mig_set(g, RESUMING), ==, 0);
            g_assert_cmpint(vg_mig_put_back(g), ==, 0);
        }
        if (how == TOLD_BEFORE) {
            g_assert_cmpint(vg_reset(g), ==, 0);
        } else if (how == RESTARTED) {
            vgt_restart(vgt_daemon);
        }
        load(g, stream);
        run_loaded(g);
        if (how == TOLD || how == RESTARTED) {
            expect_past(&p);
        } else { /* for all that is known it has moved */
            vgt_expect_none(p.s[0].rcq, 50);
            g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
            vgt_write_once(&p, 1);
        }
        vgt_pair_close(&p);
    }
}

static void reconnect(struct vgt_pair *p)
{
    g_assert_cmpint(vg_qp_to_reset(p->s[0].qp), ==, 0);
    g_assert_cmpint(vg_qp_to_reset(p->s[1].qp), ==, 0);
    vg_qp_connect(p->s[0].qp, p->s[1].qp, NULL);
    vgt_write_once(p, 1);
}

/* An innocent move: what is connected goes on. */
static void move_on(struct vgt_pair *p, unsigned vm)
{
    vg_move(p->s[0].g, vgt_daemon, vm, VG_MOVE_PLAIN);
    vgt_expect_none(p->s[0].rcq, 50);
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_RTS);
    vgt_write_once(p, 2);
}

/* It is saved, and runs on here. */
static void save_and_run(struct vguest *g)
{
    g_byte_array_unref(saved(g));
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
}

/*
 * A state is put back in time, and once more: that is too late.  What is saved of the two
 * VMs has the same generations: nothing of the one is taken for the other's.
 */
static void test_again(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_opts o = opts_of(style);
    struct vgt_pair p;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    stream = saved(g);
    begin_vmm(g, 2);
    load(g, stream);
    run_loaded(g);
    vgt_expect_none(p.s[0].rcq, 50);
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    save_and_run(g);
    save_and_run(g);
    begin_vmm(g, 0);
    load(g, stream);
    run_loaded(g);
    expect_past(&p);
    reconnect(&p);
    save_and_run(g);
    move_on(&p, 2);
    vgt_pair_close(&p);
}

/*
 * A VM was begun from a state that is of the past, and connected anew.  Somebody looks at
 * that state, saves it again and would run it: that is nothing to the one that runs.
 */
static void test_looked_at(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_opts o = opts_of(style);
    struct vg_place other;
    struct vgt_pair p;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    stream = saved(g);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
    begin_vmm(g, 2);
    load(g, stream);
    run_loaded(g);
    reconnect(&p);
    other = vg_place_open(g, vgt_daemon, 0);
    vg_place_swap(g, &other);
    load(g, stream);
    g_byte_array_unref(saved(g));
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    vg_place_swap(g, &other);
    vg_place_close(&other);
    vgt_write_once(&p, 2);
    move_on(&p, 0);
    vgt_pair_close(&p);
}

/* An administrator's pause goes on all the time: nobody has gone on without it. */
static void test_paused(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);
    struct vgt_pair p;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm pause vm0"), ==, 0);
    save_and_run(g);
    vg_move(g, vgt_daemon, 2, VG_MOVE_PLAIN);
    vgt_expect_none(p.s[0].rcq, 50);
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

/*
 * A copy of a state, which was loaded and saved again without having run, is that state:
 * in time it goes on, and so does the first one; later neither does.
 */
static void test_copy(gconstpointer style)
{
    struct vg_daemon *former = vgt_daemon;
    struct vgt_opts o = opts_of(style);

    vgt_daemon = short_hold();
    for (unsigned how = 0; how < 4; how++) {
        g_autoptr(GByteArray) stream = NULL, copy = NULL;
        bool late = how / 2, first = how % 2;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        stream = saved(g);
        begin_vmm(g, 2);
        wait_left(true);
        begin_vmm(g, 0);
        load(g, stream);
        copy = saved(g);
        begin_vmm(g, 2);
        if (late) {
            wait_left(false);
        }
        load(g, first ? stream : copy);
        run_loaded(g);
        if (late) {
            expect_past(&p);
        } else {
            vgt_expect_none(p.s[0].rcq, 50);
            g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
            vgt_write_once(&p, 1);
        }
        vgt_pair_close(&p);
    }
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = former;
}

/* ---- what queue pairs know of it ---- */

/* How put_back_anew() does it. */
struct anew {
    unsigned sender; /* whose messages the other one's count lacks */
    uint8_t type;    /* of the queue pairs; 0: RC */
    bool unheard;    /* no message had come to what was saved */
    bool busy;       /* the sender has one on its way when it is back, else both wait */
    bool stopped;    /* the peer's VM stands still then, and runs on later */
    bool rnr;        /* the peer has a SEND that waits for a receive all the time */
    bool rtr;        /* it was saved in RTR */
};

/*
 * The same by a VMM that was started anew, and a daemon that was: nobody there knows that
 * the guest ran on, but QPs that count otherwise than their peers.  On one host both fail
 * as soon as both VMs run, though neither sends anything. Between hosts the one that was
 * put back does, and its peer when it sends, at the latest. Nothing completes that was
 * not executed.
 */
static void put_back_anew(const struct vgt_opts *opts, const struct anew *a)
{
    g_autoptr(GByteArray) stream = NULL;
    bool tcp = g_strcmp0(g_getenv("VGUEST_PATH"), "tcp") == 0;
    struct vgt_opts o = *opts;
    struct vgt_side *from, *to;
    g_autofree uint8_t *ram = NULL;
    struct pvrdma_cqe c;
    struct vgt_pair p;
    struct vg_qp was;
    struct vguest *g, *peer;

    o.qp.type = a->type;
    /* By copy nobody is to give up before both run; by TCP the peer is waited for. */
    o.conn.timeout = !tcp ? 20 : a->busy || a->rnr ? 18 : 16;
    o.unconnected = a->rtr;
    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    peer = p.s[1].g;
    for (unsigned i = 0; i < 2 && a->rtr; i++) {
        struct vg_qp *qp = p.s[i].qp, *to_qp = p.s[1 - i].qp;

        g_assert_cmpint(vg_qp_to_init(qp, &o.conn), ==, 0);
        g_assert_cmpint(vg_qp_to_rtr(qp, &p.s[1 - i].g->gid, to_qp->qpn, 7, &o.conn), ==,
                        0);
        g_assert_cmpint(i ? vg_qp_to_rts(qp, 7, &o.conn) : 0, ==, 0);
    }
    from = &p.s[a->sender];
    to = &p.s[1 - a->sender];
    for (unsigned i = a->rtr; i < (a->unheard ? 1 : 2); i++) {
        vgt_send(&p.s[i], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1 - i], 0);
        vgt_expect(p.s[i].scq, 1, PVRDMA_WC_SUCCESS);
    }
    for (unsigned i = a->rnr; i < 2; i++) {
        vgt_recv(&p.s[i], 8, 64, 8);
    }
    stream = saved(g);
    ram = g_memdup2(g->ram, g->ram_size);
    was = *p.s[0].qp;
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, 0);
    g_assert_cmpint(a->rtr ? vg_qp_to_rts(p.s[0].qp, 7, &o.conn) : 0, ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        vgt_send(from, 2 + i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, to, 0);
        vgt_expect(from->scq, 2 + i, PVRDMA_WC_SUCCESS);
    }
    if (a->rnr) {
        vgt_send(&p.s[1], 12, PVRDMA_WR_SEND, VGT_SIG, 0, 8, NULL, 0);
    }
    vgt_restart(vgt_daemon); /* which knows no more what is of the past */
    begin_vmm(g, 2);
    memcpy(g->ram, ram, g->ram_size);
    *p.s[0].qp = was;
    load(g, stream);
    memset(VG_MR_HOST(to->mr, 0), 0, 8);
    memset(VG_MR_HOST(from->mr, 0), 0x5a, 8);
    if (a->stopped) {
        g_assert_cmpint(vg_mig_set(peer, STOP), ==, 0);
    }
    if (a->busy) {
        vgt_send(from, 10, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, to, 0);
    }
    run_loaded(g);
    if (a->stopped) {
        vgt_expect_none(p.s[0].rcq, 50);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        g_assert_cmpint(vg_mig_set(peer, RUNNING), ==, 0);
        vg_raise_all(peer);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct vgt_side *s = &p.s[i];

        if (i == 1 && tcp) { /* it may have found that, too */
            vgt_send(s, 11, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
            do {
                g_assert_true(vg_cq_wait(s->scq, &c, VGT_WAIT_MS));
                g_assert_cmpuint(c.status, !=, PVRDMA_WC_SUCCESS);
            } while (c.wr_id != 11);
        } else {
            g_assert_true(
                vg_event_wait(s->g, PVRDMA_EVENT_QP_FATAL, s->qp->handle, VGT_WAIT_MS));
            if (a->busy && s == from) {
                vgt_expect(s->scq, 10, PVRDMA_WC_WR_FLUSH_ERR);
            }
            if (a->rnr && i == 1) {
                vgt_expect(s->scq, 12, PVRDMA_WC_WR_FLUSH_ERR);
            }
        }
        if (i >= a->rnr) {
            vgt_expect(s->rcq, 8, PVRDMA_WC_WR_FLUSH_ERR);
        }
        g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_ERR);
    }
    g_assert_cmpuint(*(uint8_t *)VG_MR_HOST(to->mr, 0), ==, 0);
    g_assert_cmpuint(*(uint8_t *)VG_MR_HOST(from->mr, 0), ==, 0x5a);
    vgt_pair_close(&p);
}

static void test_anew(gconstpointer style)
{
    static const struct anew kinds[] = {
        {.sender = 0},
        {.sender = 1},
        {.sender = 0, .unheard = true},
        {.sender = 1, .unheard = true},
        {.sender = 0, .busy = true},
        {.sender = 1, .busy = true},
        {.sender = 0, .stopped = true},
        {.sender = 1, .stopped = true},
        {.sender = 0, .stopped = true, .rnr = true},
        {.sender = 1, .unheard = true, .busy = true},
        {.sender = 0, .rtr = true},
    };
    static const struct anew uc = {.sender = 0, .type = PVRDMA_QPT_UC};
    struct vgt_opts o = opts_of(style);

    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) {
        put_back_anew(&o, &kinds[i]);
    }
    if (g_strcmp0(g_getenv("VGUEST_PATH"), "tcp") != 0) { /* there it goes on */
        put_back_anew(&o, &uc);
    }
}

/* In a daemon that has peers: there it is another transport's affair first. */
static void test_anew_peers(gconstpointer style)
{
    struct host_opts o = {.n_vms = 3, .n_peers = 2, .vm_keys = "addresses=any"};
    struct vg_daemon *former = vgt_daemon, *host[2];

    hosts_start(host, 2, &o);
    vgt_daemon = host[0];
    test_anew(style);
    hosts_stop(host, 2);
    vgt_daemon = former;
}

/* @qp is connected to the one of @to, whatever that is connected to. */
static void connect_anew(struct vg_qp *qp, const struct vgt_side *to, uint32_t rq_psn,
                         uint32_t sq_psn)
{
    g_assert_cmpint(vg_qp_to_reset(qp), ==, 0);
    g_assert_cmpint(vg_qp_to_init(qp, NULL), ==, 0);
    g_assert_cmpint(vg_qp_to_rtr(qp, &to->g->gid, to->qp->qpn, rq_psn, NULL), ==, 0);
    g_assert_cmpint(vg_qp_to_rts(qp, sq_psn, NULL), ==, 0);
}

/*
 * A queue pair was connected anew, to one that has its former connection still.  Their
 * VMs move, or the daemon is replaced: that puts nobody back, and the new connection is
 * good.
 */
static void connect_beside_a_move(const struct vgt_opts *o, unsigned mover, bool heard)
{
    struct vg_qp *stale, *fresh;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, o);
    stale = p.s[0].qp;
    fresh = p.s[1].qp;
    vgt_write_once(&p, 1);
    if (heard) {
        vgt_send(&p.s[1], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
        vgt_expect(p.s[1].scq, 1, PVRDMA_WC_SUCCESS);
    }
    connect_anew(fresh, &p.s[0], 0x123456, 0x654321);
    if (mover < 2) {
        vg_move(p.s[mover].g, vgt_daemon, 2, VG_MOVE_PLAIN);
    } else {
        vgt_restart(vgt_daemon);
    }
    vgt_expect_none(p.s[0].rcq, 50);
    g_assert_cmpuint(vg_qp_state(stale), ==, PVRDMA_QPS_RTS);
    g_assert_cmpuint(vg_qp_state(fresh), ==, PVRDMA_QPS_RTS);
    connect_anew(stale, &p.s[1], 0x654321, 0x123456);
    vgt_write_once(&p, 9);
    vgt_pair_close(&p);
}

static void test_connected_anew(gconstpointer style)
{
    struct vgt_opts o = opts_of(style);

    for (unsigned i = 0; i < 6; i++) {
        connect_beside_a_move(&o, i / 2, i % 2);
    }
}
int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {
        .n_vms = 3, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};
    static const struct vgt_both tests[] = {
        {"same", test_same},
        {"reset", test_reset},
        {"ran-on", test_ran_on},
        {"late", test_late},
        {"snapshot", test_snapshot},
        {"again", test_again},
        {"looked-at", test_looked_at},
        {"paused", test_paused},
        {"copy", test_copy},
        {"anew", test_anew},
        {"anew-peers", test_anew_peers},
        {"connected-anew", test_connected_anew},
    };

    vgt_init(&argc, &argv, 240);
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("past", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
