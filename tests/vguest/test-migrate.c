/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a guest moves between VMs of one daemon with its connections, while its
 * peer goes on; it is stopped, cancelled, killed at each stage.
 *
 * VM 0 and VM 2 are the two places of the guest that moves, VM 1 is its peer.  All may
 * have any address, and a guest keeps those it has.
 */
#include "migrate.h"

#include <errno.h>
#include <string.h>

#define STOP      VFIO_USER_MIG_STOP
#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING
#define FAILED    VFIO_USER_MIG_ERROR

#define PLACE(i) ((i) % 2 ? 2u : 0u)

/* So long its memory is copied before its state comes. */
#define BEFORE_STATE_US 300000

/* A guest with no traffic moves there and back, and is itself. */
static void test_idle(gconstpointer style)
{
    struct vgt_pair p;

    vgt_pair_of(&p, style);
    for (unsigned i = 1; i <= 4; i++) {
        vg_move(p.s[0].g, vgt_daemon, PLACE(i), i <= 2);
        g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_RTS);
        vgt_write_once(&p, i);
        vgt_recv(&p.s[0], 10 + i, 4096, 100);
        vgt_send(&p.s[1], 20 + i, PVRDMA_WR_SEND, VGT_SIG, 0, 100, NULL, 0);
        vgt_expect(p.s[0].rcq, 10 + i, PVRDMA_WC_SUCCESS);
        vgt_expect(p.s[1].scq, 20 + i, PVRDMA_WC_SUCCESS);
    }
    vgt_pair_close(&p);
}

/* What is under way when it stops arrives once, in order, and counts once. */
static void test_traffic(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    unsigned moves = vgt_rounds(100);
    uint64_t under_way = 0;
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 8, 4, 200000, &o);
    for (unsigned i = 1; i <= moves; i++) {
        vgt_traffic_push(&t, 5);
        under_way += vgt_traffic_under_way(&t);
        vg_move(t.s[0].g, vgt_daemon, PLACE(i), i % 3 == 0);
    }
    vgt_traffic_run(&t, 20);
    g_test_message("%" PRIu64 " operations, %" PRIu64 " bytes, %" PRIu64
                   " of the operations through %u moves",
                   t.ops, t.bytes, under_way, moves);
    g_assert_true(!VGT_PLAIN_BUILD || under_way > 0); /* few moves there */
    vgt_traffic_close(&t);
}

/* Both ends of the connections move, each with what is under way. */
static void test_peer_moves(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    unsigned moves = vgt_rounds(20);
    unsigned at[2] = {0, 1}, spare = 2;
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    for (unsigned i = 0; i < moves; i++) {
        unsigned to = spare;

        vgt_traffic_push(&t, 5);
        spare = at[i % 2];
        at[i % 2] = to;
        vg_move(t.s[i % 2].g, vgt_daemon, to, VG_MOVE_PLAIN);
    }
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
}

/* The counter is what the successes are, and each add returned the one before. */
static void test_count(gconstpointer style)
{
    uint64_t posted = 0, got = 0, counter, total = vgt_rounds(4000);
    unsigned moved = 0;
    struct vgt_pair p;

    vgt_pair_of(&p, style);
    while (got < total) {
        struct pvrdma_cqe cqe;

        while (posted < total && posted < got + 16) {
            vgt_count(&p.s[0], posted, 8 + posted % 16 * 8, &p.s[1]);
            posted++;
        }
        if (posted % 100 == 0 && posted / 100 > moved) {
            vg_move(p.s[0].g, vgt_daemon, PLACE(++moved), VG_MOVE_PLAIN);
        }
        if (!vg_cq_wait(p.s[0].scq, &cqe, VGT_WAIT_MS)) {
            g_error("no completion of add %" PRIu64, got);
        }
        g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(cqe.wr_id, ==, got);
        memcpy(&counter, VG_MR_HOST(p.s[0].mr, 8 + got % 16 * 8), 8);
        g_assert_cmpuint(counter, ==, got);
        got++;
    }
    memcpy(&counter, VG_MR_HOST(p.s[1].mr, 0), 8);
    g_assert_cmpuint(counter, ==, total);
    g_assert_cmpuint(moved, >, 1);
    vgt_pair_close(&p);
}

/* A migration that is given up: the source goes on, as if it had only been paused. */
static void test_cancel(gconstpointer style)
{
    static const enum vfio_user_mig_state state[] = {STOP, STOP_COPY};
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, 4, 200000, &o);
    for (unsigned i = 0; i < vgt_rounds(50); i++) {
        vgt_traffic_push(&t, 5);
        vg_mig_enter(t.s[0].g, state[i % 2]);
        if (i % 4 == 3) { /* it may have been read to the end */
            g_byte_array_unref(vg_mig_read(t.s[0].g, 4096));
        }
        vg_mig_enter(t.s[0].g, RUNNING);
    }
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
}

/* While it stands still nothing in its memory changes and no interrupt comes. */
static void test_stop(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;
    struct vguest *g;

    vgt_traffic_open(&t, 0, 1, 4, 4, 200000, &o);
    g = t.s[0].g;
    for (unsigned i = 0; i < vgt_rounds(10); i++) {
        g_autofree uint8_t *before = g_malloc(g->ram_size);
        g_autoptr(GByteArray) first = NULL, second = NULL;

        vgt_traffic_push(&t, 5);
        vg_cq_arm(t.s[0].rcq, false);
        vg_mig_enter(g, STOP);
        for (unsigned v = 0; v < PVRDMA_NUM_VEC; v++) {
            vg_irq_wait(g, v, 0);
        }
        memcpy(before, g->ram, g->ram_size);
        g_usleep(30000);
        vg_mig_enter(g, STOP_COPY);
        first = vg_mig_read(g, 4096);
        g_usleep(5000);
        g_assert_cmpint(memcmp(before, g->ram, g->ram_size), ==, 0);
        for (unsigned v = 0; v < PVRDMA_NUM_VEC; v++) {
            g_assert_cmpuint(vg_irq_wait(g, v, 0), ==, 0);
        }
        vg_mig_enter(g, RUNNING);
    }
    vgt_traffic_run(&t, 5);
    vgt_traffic_close(&t);
}

/* Once the target runs the source does not any more, whatever its VMM asks. */
static void test_one_place(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct vg_place other;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    other = vg_place_open(g, vgt_daemon, 2);
    stream = vg_mig_save(g);
    vg_place_swap(g, &other);
    vg_mig_load(g, stream);
    /* The source goes on first: then the target cannot. */
    vg_place_swap(g, &other);
    vg_mig_enter(g, RUNNING);
    vgt_write_once(&p, 1);
    vg_place_swap(g, &other);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    g_assert_cmpuint(vg_mig_get(g), ==, STOP);
    /* Nor when that stands still later: it is not what was saved any more. */
    vgt_vm(vgt_daemon, "pause", 0);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    vgt_vm(vgt_daemon, "resume", 0);
    vg_place_swap(g, &other);
    vgt_write_once(&p, 2);
    vg_place_close(&other);

    /* And the other way round. */
    other = vg_place_open(g, vgt_daemon, 2);
    vg_mig_enter(g, STOP_COPY);
    g_byte_array_unref(stream);
    stream = vg_mig_read(g, 65536);
    vg_place_swap(g, &other);
    vg_mig_enter(g, RESUMING);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, 1000), ==, 0);
    vg_mig_enter(g, RUNNING);
    vgt_write_once(&p, 3);
    vg_place_swap(g, &other);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    }
    g_assert_cmpuint(vg_mig_get(g), !=, RUNNING);
    vg_place_swap(g, &other);
    vgt_write_once(&p, 4);
    vg_place_close(&other);
    vgt_write_once(&p, 5);
    vgt_pair_close(&p);
}

/* A target that dies, or gets a stream that is damaged: the source goes on. */
static void test_target_fails(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;
    struct vguest *g;

    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    g = t.s[0].g;
    for (unsigned stage = 0; stage < 6; stage++) {
        g_autoptr(GByteArray) stream = NULL;
        struct vg_place other;

        vgt_traffic_push(&t, 5);
        other = vg_place_open(g, vgt_daemon, 2);
        stream = vg_mig_save(g);
        vg_place_swap(g, &other);
        if (stage > 0) {
            vg_mig_enter(g, RESUMING);
        }
        if (stage > 1) {
            g_assert_cmpint(vg_mig_write(g, stream->data,
                                         stage == 2 ? stream->len / 2 : stream->len,
                                         4096),
                            ==, 0);
        }
        if (stage == 2) {
            g_assert_cmpint(vg_mig_set(g, STOP), ==, EBADMSG);
            g_assert_cmpuint(vg_mig_get(g), ==, FAILED);
        } else if (stage == 4) {
            vg_mig_enter(g, STOP);
        } else if (stage == 5) { /* its VMM thinks again */
            vg_mig_enter(g, STOP);
            g_assert_cmpint(vg_reset(g), ==, 0);
            g_assert_cmpuint(vg_mig_get(g), ==, RUNNING);
        }
        vg_place_swap(g, &other);
        vg_place_close(&other);
        vg_mig_enter(g, RUNNING);
    }
    vgt_traffic_run(&t, 20);
    vgt_traffic_close(&t);
}

/* Its VMM is killed at some stage: what its peer had for it fails, and nothing hangs. */
static void test_source_killed(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    o.conn = (struct vg_conn){.timeout = 8, .retry_cnt = 2, .rnr_retry = 7};
    for (unsigned stage = 0; stage < 3; stage++) {
        struct pvrdma_cqe c;
        struct vgt_pair p;
        struct vguest *g;

        vgt_pair_open(&p, 0, 1, &o);
        g = p.s[0].g;
        vg_mig_enter(g, stage ? STOP_COPY : STOP);
        if (stage == 2) { /* its state was read, but not to the end */
            struct vfio_user_mig_data req = {8 + 16, 16};

            g_assert_cmpint(vg_request(g, VFIO_USER_MIG_DATA_READ, 0, &req, sizeof(req),
                                       NULL, 0, NULL),
                            ==, 0);
        }
        vgt_send(&p.s[1], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 100, &p.s[0], 0);
        vgt_expect_none(p.s[1].scq, VGT_QUIET_MS(50));
        vg_disconnect(g);
        g_assert_true(vg_cq_wait(p.s[1].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
        vgt_pair_close(&p);
    }
}

/* Its state was saved, and nobody goes on with it: it is begun anew where it was. */
static void test_begun_anew(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 1);
    g_byte_array_unref(vg_mig_save(p.s[0].g));
    vg_disconnect(p.s[0].g);
    vgt_pair_close(&p);
    vgt_pair_open(&p, 0, 1, &o);
    vgt_write_once(&p, 2);
    vgt_pair_close(&p);
}

/* What `pvrdmactl vm migrate-status` says of @name, which is in @state. */
struct told {
    const char *last;
    int64_t bytes, done, still, resume, parts;
};

static struct told status_of(const char *name, const char *state)
{
    g_autoptr(JsonNode) node = vg_ctl_json(vgt_daemon, "vm migrate-status");
    JsonObject *vm = vg_status_vm(node, name);
    struct told told;

    g_assert_cmpstr(json_object_get_string_member(vm, "state"), ==, state);
    g_assert_cmpstr(json_object_get_string_member(vm, "error"), ==, "");
    told = (struct told){
        .last = g_intern_string(json_object_get_string_member(vm, "last")),
        .bytes = json_object_get_int_member(vm, "bytes"),
        .done = json_object_get_int_member(vm, "done"),
        .still = json_object_get_int_member(vm, "still_us"),
        .resume = json_object_get_int_member(vm, "resume_us"),
    };
    told.parts = told.resume + json_object_get_int_member(vm, "quiesce_us") +
                 json_object_get_int_member(vm, "save_us") +
                 json_object_get_int_member(vm, "load_us");
    return told;
}

/* In the middle of a move, and after it, on both sides. */
static void test_status(gconstpointer style)
{
    g_autoptr(GByteArray) stream = NULL;
    struct told told, was;
    struct vg_place other;
    gint64 since;
    char *text;
    struct vgt_pair p;
    struct vguest *g = vgt_pair_of(&p, style);

    vg_mig_enter(g, STOP_COPY);
    told = status_of("vm0", "stop-copy");
    g_assert_cmpint(told.done, ==, 0);
    g_assert_cmpint(told.bytes, >, 500);
    g_assert_cmpint(told.still, >, 0);
    stream = vg_mig_read(g, 65536);
    was = told;
    told = status_of("vm0", "stop-copy");
    g_assert_cmpint(told.done, ==, stream->len);
    g_assert_cmpint(told.bytes, ==, stream->len);
    g_assert_cmpint(told.still, >, was.still);

    other = vg_place_open(g, vgt_daemon, 2);
    vg_place_swap(g, &other);
    vg_mig_enter(g, RESUMING);
    g_usleep(BEFORE_STATE_US);
    g_assert_cmpint(status_of("vm2", "resuming").still, ==, 0);
    since = g_get_monotonic_time();
    g_assert_cmpint(vg_mig_write(g, stream->data, 100, 100), ==, 0);
    told = status_of("vm2", "resuming");
    g_assert_cmpint(told.done, ==, 100);
    g_assert_cmpint(told.bytes, ==, 0);
    g_assert_cmpint(vg_mig_write(g, stream->data + 100, stream->len - 100, 65536), ==, 0);
    vg_move_end(g, &other, VG_MOVE_PLAIN);
    since = g_get_monotonic_time() - since;
    told = status_of("vm2", "running");
    g_assert_cmpstr(told.last, ==, "loaded");
    /* Not since it was told that a state would come; stopping it there counts. */
    g_assert_cmpint(told.still, <=, since + told.parts);
    g_assert_cmpint(told.done, ==, stream->len);
    g_assert_cmpint(told.bytes, ==, stream->len);
    g_assert_cmpint(told.still, >=, told.parts);
    was = told;
    /* The source tells the whole of it: until it heard of its new place. */
    told = status_of("vm0", "running");
    g_assert_cmpstr(told.last, ==, "saved");
    g_assert_cmpint(told.still, >=, told.parts + was.parts - was.resume);
    g_assert_cmpint(vg_ctl(vgt_daemon, &text, "vm migrate-status vm2"), ==, 0);
    g_assert_nonnull(strstr(text, "loaded"));
    g_free(text);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm migrate-status vm9"), !=, 0);
    vgt_pair_close(&p);
}

/*
 * The source of a VM that has moved is reset: it is RUNNING and empty, and not that VM
 * any more.  It gets none of the addresses while the other has them, and works with its
 * own.
 */
static void test_reset_moved(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vg_place from;
    struct vguest *g;
    struct vgt_pair p, more;

    vgt_pair_open(&p, 0, 1, &o);
    g = p.s[0].g;
    from = vg_move_begin(g, vgt_daemon, 2);
    vg_mig_enter(g, RUNNING);
    vg_raise_all(g);
    vg_place_swap(g, &from);
    g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE);
    g_assert_cmpint(vg_request(g, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0, NULL), ==,
                    0);
    g_assert_cmpint(vg_mig_get(g), ==, RUNNING);
    vgt_assert_no_objects("vm0");
    for (unsigned i = 0; i < 2; i++) { /* it stands still and goes on as any other */
        vg_mig_enter(g, STOP);
        vg_mig_enter(g, RUNNING);
    }
    vgt_vm(vgt_daemon, "pause", 0);
    vgt_vm(vgt_daemon, "resume", 0);
    vg_place_swap(g, &from);
    vgt_write_once(&p, 1); /* the one that moved has heard nothing of it */
    vg_place_close(&from);
    vgt_pair_close(&p);
    vgt_pair_open(&more, 0, 1, &o);
    vgt_write_once(&more, 2);
    vgt_pair_close(&more);
}

/*
 * The same, and the guest is begun anew in that very connection: its address is another's
 * until that has gone; then it is its own, and its queue pairs work.  @load: a state was
 * to be loaded before, which came to nothing; and the new guest is saved, and goes on,
 * so that it may have a higher generation than the one that moved, which stands still.
 */
static void begun_where_it_was(gconstpointer style, bool load)
{
    struct vg_place target;
    struct vgt_pair p;
    struct vgt_side *s = &p.s[0];

    vgt_pair_of(&p, style);
    target = vg_move_begin(s->g, vgt_daemon, 2);
    vg_mig_enter(s->g, RUNNING);
    vg_place_swap(s->g, &target);
    if (load) {
        vg_mig_enter(s->g, RESUMING);
        g_assert_cmpint(vg_mig_set(s->g, STOP), ==, EBADMSG);
    }
    g_assert_cmpint(vg_reset(s->g), ==, 0);
    s->g->up = false;
    vg_mr_free(s->mr);
    vg_qp_free(s->qp);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_pd_free(s->pd);
    if (load) {
        g_byte_array_unref(vg_mig_save(s->g));
        vg_mig_enter(s->g, RUNNING);
        vgt_vm(vgt_daemon, "pause", 2);
    }
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    g_assert_cmpuint(vgt_waiting_gids("vm0"), ==, 1); /* the address runs elsewhere */
    vg_place_close(&target);
    for (gint64 end = g_get_monotonic_time() + VGT_WAIT_MS * 1000;
         vgt_waiting_gids("vm0") > 0;) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_usleep(2000);
    }
    s->pd = vg_pd_new(s->g);
    s->scq = vg_cq_new(s->pd, 16);
    s->rcq = vg_cq_new(s->pd, 16);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, NULL);
    s->mr = vg_mr_new(s->pd, vg_buf_new(s->g, 0, 4096, VG_SCATTERED),
                      PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_WRITE);
    vg_qp_to_reset(p.s[1].qp);
    vg_qp_connect(s->qp, p.s[1].qp, NULL);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

static void test_reset_begun(gconstpointer style)
{
    begun_where_it_was(style, false);
}

static void test_load_begun(gconstpointer style)
{
    begun_where_it_was(style, true);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {
        .n_vms = 3, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};
    static const struct vgt_both tests[] = {
        {"idle", test_idle},
        {"traffic", test_traffic},
        {"peer-moves", test_peer_moves},
        {"count", test_count},
        {"cancel", test_cancel},
        {"stop", test_stop},
        {"one-place", test_one_place},
        {"target-fails", test_target_fails},
        {"source-killed", test_source_killed},
        {"begun-anew", test_begun_anew},
        {"reset-moved", test_reset_moved},
        {"reset-begun", test_reset_begun},
        {"load-begun", test_load_begun},
        {"status", test_status},
    };

    vgt_init(&argc, &argv, 240);
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("migrate", tests, G_N_ELEMENTS(tests));
    return vgt_run();
}
