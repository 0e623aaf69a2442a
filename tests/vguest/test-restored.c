/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a guest is put back to what it was (`loadvm`, a file that is loaded once
 * more or late), while its peers have gone on.
 *
 * VM 0 and VM 2 are places of the guest that is put back, VM 1 is its peer.
 */
#include "migrate.h"

#include <errno.h>
#include <string.h>

#define STOP      VFIO_USER_MIG_STOP
#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING

/* What is loaded is said to be a snapshot. */
static void load_snapshot(struct vguest *g, const GByteArray *stream)
{
    vg_mig_enter(g, RESUMING);
    g_assert_cmpint(vg_mig_put_back(g), ==, 0);
    vg_mig_load(g, stream);
}

/* As QEMU's `loadvm` and `cont`. */
static void put_back(struct vguest *g, const GByteArray *stream)
{
    g_assert_cmpint(vg_reset(g), ==, 0);
    vg_mig_load(g, stream);
    vg_mig_enter(g, RUNNING);
    vg_raise_all(g);
}

/*
 * A guest is put back to what it was (a snapshot): its connections end, and new ones are
 * as good as ever.  Nothing of them was used since, so that its RAM fits.
 */
static void test_same(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_pair p, more;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    for (unsigned i = 0; i < 2; i++) {
        g_autoptr(GByteArray) stream = vg_mig_save(g);

        /* It did not run since: that is no past. */
        if (i == 0) {
            load_snapshot(g, stream);
            vg_mig_enter(g, RUNNING);
            vg_raise_all(g);
        } else {
            put_back(g, stream);
        }
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vgt_write_once(&p, 1 + i);
    }
    for (unsigned i = 0; i < 2; i++) { /* twice the same */
        g_autoptr(GByteArray) stream = vg_mig_save(g);

        vg_mig_enter(g, RUNNING);
        if (i == 0) { /* what is saved later makes it no younger */
            g_byte_array_unref(vg_mig_save(g));
        }
        put_back(g, stream);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_ERR);
        if (i == 0) {
            vgt_expect_event(g, PVRDMA_EVENT_QP_FATAL, p.s[0].qp->handle);
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
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_pair p;
    struct vgt_side *s = &p.s[0];

    vgt_pair_of(&p, style);
    stream = vg_mig_save(s->g);
    vg_mig_enter(s->g, RUNNING);
    vg_mig_load(s->g, stream);
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
    vg_qp_to_reset(p.s[1].qp);
    vg_qp_connect(s->qp, p.s[1].qp, NULL);
    vgt_write_once(&p, 1);
    vg_mig_enter(s->g, STOP);
    vg_mig_enter(s->g, RUNNING);
    g_assert_cmpuint(vg_qp_state(s->qp), ==, PVRDMA_QPS_RTS);
    vgt_write_once(&p, 2);
    vgt_pair_close(&p);
}

/* ---- what the daemon knows of it ---- */

/* It was not put back, for all that is known: what is connected goes on. */
static void expect_goes_on(struct vgt_pair *p, unsigned round)
{
    vgt_expect_none(p->s[0].rcq, VGT_QUIET_MS(50));
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_RTS);
    vgt_write_once(p, round);
}

/* The queue pair of what was put back has failed; its peer, which was not, has not. */
static void expect_past(struct vgt_pair *p)
{
    vgt_expect_event(p->s[0].g, PVRDMA_EVENT_QP_FATAL, p->s[0].qp->handle);
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_ERR);
    g_assert_cmpuint(vg_qp_state(p->s[1].qp), ==, PVRDMA_QPS_RTS);
}

/*
 * Neither has ever sent anything, so that there is nothing to compare: that the VM ran on
 * is known by the clock in its state.  That of a copy of the state is, too.
 */
static void test_ran_on(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    o.conn = (struct vg_conn){.timeout = 12, .retry_cnt = 2, .rnr_retry = 7};
    for (unsigned copied = 0; copied < 2; copied++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        vgt_recv(&p.s[0], 8, 64, 8);
        stream = vg_mig_save(g);
        vg_mig_enter(g, RUNNING);
        vg_begin_vmm(g, vgt_daemon, 2);
        vg_mig_load(g, stream);
        if (copied) {
            g_byte_array_unref(g_steal_pointer(&stream));
            stream = vg_mig_save(g);
            vg_begin_vmm(g, vgt_daemon, 0);
            vg_mig_load(g, stream);
        }
        vg_run_loaded(g);
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
    return vg_status_int(vgt_daemon, NULL, "directory", "left_gids");
}

/* Until some do, as it has been seen that the VMM has gone; or none does any more. */
static void wait_left(bool some)
{
    vgt_await((left() > 0) == some);
}

/* A daemon in which they do so for 6 s. */
static struct vg_daemon *short_hold(void)
{
    struct vg_daemon_opts o = {.n_vms = 3,
                               .poll_us = -1,
                               .workers = 2,
                               .vm_keys = "addresses=any",
                               .daemon_keys = "hold-timeout=6"};

    return vg_daemon_start(&o);
}

/* Its VMM has gone with its state: if it is back later than in time it does not go on. */
static void test_late(gconstpointer style)
{
    struct vg_daemon *former = vgt_daemon;

    vgt_daemon = short_hold();
    for (unsigned loaded_in_time = 0; loaded_in_time < 2; loaded_in_time++) {
        struct vgt_pair p;
        struct vguest *g = vgt_pair_of(&p, style);
        g_autoptr(GByteArray) stream = vg_mig_save(g);

        vg_begin_vmm(g, vgt_daemon, 2);
        wait_left(true);
        if (loaded_in_time) {
            vg_mig_load(g, stream);
        }
        wait_left(false);
        if (!loaded_in_time) {
            vg_mig_load(g, stream);
        }
        vg_run_loaded(g);
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
    enum { NOT_TOLD, TOLD, TOLD_BEFORE, RESTARTED, LOADED_AND_RESTARTED, COPIED };

    for (unsigned how = NOT_TOLD; how <= COPIED; how++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vgt_pair p;
        struct vguest *g = vgt_pair_of(&p, style);

        g_assert_cmpint(vg_mig_put_back(g), ==, EINVAL);
        stream = vg_mig_save(g);
        g_assert_cmpint(vg_mig_put_back(g), ==, EINVAL);
        vg_mig_enter(g, RUNNING);
        vgt_restart(vgt_daemon);
        vg_begin_vmm(g, vgt_daemon, 2);
        if (how != NOT_TOLD) {
            vg_mig_enter(g, RESUMING);
            g_assert_cmpint(vg_mig_put_back(g), ==, 0);
        }
        if (how == TOLD_BEFORE) {
            g_assert_cmpint(vg_reset(g), ==, 0);
        } else if (how == RESTARTED) {
            vgt_restart(vgt_daemon);
        }
        vg_mig_load(g, stream);
        if (how == LOADED_AND_RESTARTED) {
            vgt_restart(vgt_daemon);
        } else if (how == COPIED) { /* to where nobody can know */
            g_byte_array_unref(g_steal_pointer(&stream));
            stream = vg_mig_save(g);
            vgt_restart(vgt_daemon);
            vg_begin_vmm(g, vgt_daemon, 0);
            vg_mig_load(g, stream);
        }
        vg_run_loaded(g);
        if (how != NOT_TOLD && how != TOLD_BEFORE) {
            expect_past(&p);
        } else { /* for all that is known it has moved */
            expect_goes_on(&p, 1);
        }
        vgt_pair_close(&p);
    }
}

/* An innocent move: what is connected goes on. */
static void move_on(struct vgt_pair *p, unsigned vm)
{
    vg_move(p->s[0].g, vgt_daemon, vm, VG_MOVE_PLAIN);
    expect_goes_on(p, 2);
}

/* It is saved, and runs on here. */
static void save_and_run(struct vguest *g)
{
    g_byte_array_unref(vg_mig_save(g));
    vg_mig_enter(g, RUNNING);
}

/* A VM that has come and not run yet is saved and put back: that is no past. */
static void test_not_run(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vg_place from;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    from = vg_move_begin(g, vgt_daemon, 2);
    stream = vg_mig_save(g);
    g_assert_cmpint(vg_reset(g), ==, 0);
    load_snapshot(g, stream);
    vg_run_loaded(g);
    vg_place_close(&from);
    expect_goes_on(&p, 1);
    vgt_pair_close(&p);
}

/* It has moved on, and its source was reset and has ended; there it comes back to. */
static void test_back(gconstpointer style)
{
    struct vg_place from;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    from = vg_move_begin(g, vgt_daemon, 2);
    vg_run_loaded(g);
    vg_place_swap(g, &from);
    g_assert_cmpint(vg_reset(g), ==, 0);
    vg_place_swap(g, &from);
    vg_place_close(&from);
    vgt_write_once(&p, 1);
    move_on(&p, 0);
    vgt_pair_close(&p);
}

/* It was saved and reset; then the guest has booted, and maybe left the device again. */
static GByteArray *save_and_boot(struct vguest *g, bool leave)
{
    GByteArray *stream = vg_mig_save(g);
    g_autofree uint8_t *ram = g_memdup2(g->ram, g->ram_size);

    g_assert_cmpint(vg_reset(g), ==, 0);
    g_assert_cmpuint(vg_mig_get(g), ==, RUNNING);
    g->up = false;
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    if (leave) {
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    }
    memcpy(g->ram, ram, g->ram_size); /* nobody looks until it is put back */
    return stream;
}

/* It has, and is put back, all in one VMM. */
static void put_back_behind_boot(struct vgt_pair *p, bool leave)
{
    struct vguest *g = p->s[0].g;
    g_autoptr(GByteArray) stream = save_and_boot(g, leave);

    vg_mig_enter(g, STOP);
    g_assert_cmpint(vg_reset(g), ==, 0);
    load_snapshot(g, stream);
    vg_mig_enter(g, RUNNING);
    vg_raise_all(g);
    expect_past(p);
}

static void test_booted(gconstpointer style)
{
    for (unsigned leave = 0; leave < 2; leave++) {
        struct vgt_pair p;

        vgt_pair_of(&p, style);
        put_back_behind_boot(&p, leave);
        vgt_pair_close(&p);
    }
}

/* It is put back behind such a boot; what it is saved as after that is no past. */
static void test_booted_once(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    put_back_behind_boot(&p, false);
    vgt_pair_reconnect(&p, NULL);
    vgt_write_once(&p, 1);
    stream = vg_mig_save(g);
    load_snapshot(g, stream);
    vg_mig_enter(g, RUNNING);
    vg_raise_all(g);
    expect_goes_on(&p, 2);
    vgt_pair_close(&p);
}

/* In another one it gets nothing from what has booted, and is of the past after that. */
static void test_booted_elsewhere(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vg_place booted;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    stream = save_and_boot(g, false);
    vg_mig_enter(g, STOP);
    booted = vg_place_open(g, vgt_daemon, 2);
    vg_place_swap(g, &booted);
    vg_mig_load(g, stream);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    vg_place_close(&booted);
    vg_run_loaded(g);
    expect_past(&p);
    vgt_pair_close(&p);
}

/* One that was reset before its state ran elsewhere is another one, whenever it boots. */
static void test_booted_behind(gconstpointer style)
{
    g_autofree uint8_t *ram = NULL;
    struct vg_place place;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);
    g_autoptr(GByteArray) stream = vg_mig_save(g);

    g_assert_cmpint(vg_reset(g), ==, 0);
    place = vg_place_open(g, vgt_daemon, 2);
    vg_place_swap(g, &place);
    vg_mig_load(g, stream);
    vg_run_loaded(g);
    vgt_write_once(&p, 1);
    vg_mig_enter(g, STOP);
    vg_place_swap(g, &place);
    ram = g_memdup2(g->ram, g->ram_size);
    g->up = false;
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    g_assert_cmpuint(vgt_waiting_gids("vm0"), ==, 1); /* its address is another's now */
    memcpy(g->ram, ram, g->ram_size);
    g->up = true;
    vg_place_swap(g, &place);
    vg_run_loaded(g);
    vgt_write_once(&p, 2);
    vg_place_close(&place);
    vgt_pair_close(&p);
}

/* It was saved and reset, and its VMM has ended: the next one is put back. */
static void test_next(gconstpointer style)
{
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);
    g_autoptr(GByteArray) stream = vg_mig_save(g);

    g_assert_cmpint(vg_reset(g), ==, 0);
    vg_begin_vmm(g, vgt_daemon, 2);
    vg_begin_vmm(g, vgt_daemon, 0);
    load_snapshot(g, stream);
    vg_run_loaded(g);
    expect_past(&p);
    vgt_pair_close(&p);
}

/*
 * A state is put back in time, and once more: that is too late.  What is saved of the two
 * VMs has the same generations: nothing of the one is taken for the other's.
 */
static void test_again(gconstpointer style)
{
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);
    g_autoptr(GByteArray) stream = vg_mig_save(g);

    vg_begin_vmm(g, vgt_daemon, 2);
    vg_mig_load(g, stream);
    vg_run_loaded(g);
    vgt_expect_none(p.s[0].rcq, VGT_QUIET_MS(50));
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
    save_and_run(g);
    save_and_run(g);
    vg_begin_vmm(g, vgt_daemon, 0);
    vg_mig_load(g, stream);
    vg_run_loaded(g);
    expect_past(&p);
    vgt_pair_reconnect(&p, NULL);
    vgt_write_once(&p, 1);
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
    struct vg_place other;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);
    g_autoptr(GByteArray) stream = vg_mig_save(g);

    vg_mig_enter(g, RUNNING);
    vg_begin_vmm(g, vgt_daemon, 2);
    vg_mig_load(g, stream);
    vg_run_loaded(g);
    vgt_pair_reconnect(&p, NULL);
    vgt_write_once(&p, 1);
    other = vg_place_open(g, vgt_daemon, 0);
    vg_place_swap(g, &other);
    vg_mig_load(g, stream);
    g_byte_array_unref(vg_mig_save(g));
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
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    vgt_vm(vgt_daemon, "pause", 0);
    save_and_run(g);
    vg_move(g, vgt_daemon, 2, VG_MOVE_PLAIN);
    expect_goes_on(&p, 1);
    vgt_pair_close(&p);
}

/*
 * A copy of a state, which was loaded and saved again without having run, is that state:
 * in time it goes on, and so does the first one; later neither does.
 */
static void test_copy(gconstpointer style)
{
    struct vg_daemon *former = vgt_daemon;

    for (unsigned how = 0; how < 4; how++) {
        g_autoptr(GByteArray) stream = NULL, copy = NULL;
        bool late = how / 2, first = how % 2;
        struct vgt_pair p;
        struct vguest *g;

        if (how == 2) {
            vgt_daemon = short_hold();
        }
        g = vgt_pair_of(&p, style);
        stream = vg_mig_save(g);
        vg_begin_vmm(g, vgt_daemon, 2);
        wait_left(true);
        vg_begin_vmm(g, vgt_daemon, 0);
        vg_mig_load(g, stream);
        copy = vg_mig_save(g);
        vg_begin_vmm(g, vgt_daemon, 2);
        if (late) {
            wait_left(false);
        }
        vg_mig_load(g, first ? stream : copy);
        vg_run_loaded(g);
        if (late) {
            expect_past(&p);
        } else {
            expect_goes_on(&p, 1);
        }
        vgt_pair_close(&p);
    }
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = former;
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
        {"not-run", test_not_run},
        {"back", test_back},
        {"booted", test_booted},
        {"booted-once", test_booted_once},
        {"booted-elsewhere", test_booted_elsewhere},
        {"booted-behind", test_booted_behind},
        {"next", test_next},
    };

    vgt_init(&argc, &argv, 240);
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("restored", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
