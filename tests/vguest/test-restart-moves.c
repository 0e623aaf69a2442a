/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the daemon is replaced while a guest stands still or moves.  Whatever
 * state its device is in, whatever part of a stream was read or written, the new daemon
 * goes on there, the guest's peers wait, and nothing is lost or done twice.
 *
 * VM 0 and VM 2 are the two places of the guest that moves, VM 1 is its peer.
 */
#include "hosts.h"
#include "migrate.h"

#include <errno.h>
#include <string.h>

#define STOP      VFIO_USER_MIG_STOP
#define RUNNING   VFIO_USER_MIG_RUNNING
#define STOP_COPY VFIO_USER_MIG_STOP_COPY
#define RESUMING  VFIO_USER_MIG_RESUMING
#define FAILED    VFIO_USER_MIG_ERROR

/* Would give up after a second of silence or two, if its time went on. */
static const struct vg_conn impatient = {.timeout = 14, .retry_cnt = 1, .rnr_retry = 7};

/* ---- stop and cont ---- */

static void test_stop(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;

    o.conn = impatient;
    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    for (unsigned i = 0; i < 3; i++) {
        vgt_traffic_push(&t, 5);
        vg_mig_enter(t.s[0].g, STOP);
        vgt_restart(vgt_daemon);
        g_assert_cmpint(vg_mig_get(t.s[0].g), ==, STOP);
        g_usleep(i ? 10000 : 2500000); /* longer than its peer would wait */
        vgt_restart(vgt_daemon);
        vg_mig_enter(t.s[0].g, RUNNING);
        vgt_traffic_run(&t, 5);
    }
    vgt_traffic_close(&t);
}

/* Nothing of a guest that stands still is done, nor answered; then all of it is. */
static void test_still(void)
{
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    vg_mig_enter(p.s[1].g, STOP);
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[1], 0);
    vgt_send(&p.s[1], 2, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 8, &p.s[0], 0);
    vgt_restart(vgt_daemon);
    vgt_expect_none(p.s[0].scq, 100);
    vgt_expect_none(p.s[1].scq, 1);
    vg_mig_enter(p.s[1].g, RUNNING);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[1].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_pair_close(&p);
}

/* ---- moves ---- */

static GByteArray *read_some(struct vguest *g, uint32_t n)
{
    struct vfio_user_mig_data req = {(uint32_t)sizeof(req) + n, n};
    GByteArray *some = g_byte_array_new();
    struct vg_reply r;

    g_assert_cmpint(
        vg_request(g, VFIO_USER_MIG_DATA_READ, 0, &req, sizeof(req), NULL, 0, &r), ==, 0);
    g_assert_cmpuint(r.len, ==, sizeof(req) + n);
    g_byte_array_append(some, r.data + sizeof(req), n);
    vg_reply_clear(&r);
    return some;
}

#define FIRST 100u /* bytes of a stream, before the daemon is replaced */

/* @g, at @from, moves to VM @vm of @to; both daemons are replaced at every stage. */
static void move(struct vguest *g, struct vg_daemon *from, struct vg_daemon *to,
                 unsigned vm, enum vg_move how)
{
    struct vg_place other = vg_place_open(g, to, vm);
    g_autoptr(GByteArray) stream = NULL, rest = NULL;

    vg_mig_enter(g, STOP_COPY);
    vgt_restart(from);
    stream = read_some(g, FIRST);
    vgt_restart(from);
    rest = vg_mig_read(g, 4096);
    g_byte_array_append(stream, rest->data, rest->len);
    vg_place_swap(g, &other);
    vg_mig_enter(g, RESUMING);
    vgt_restart(to);
    g_assert_cmpint(vg_mig_write(g, stream->data, FIRST, 64), ==, 0);
    vgt_restart(to);
    g_assert_cmpint(
        vg_mig_write(g, stream->data + FIRST, stream->len - FIRST, VFIO_USER_MAX_DATA),
        ==, 0);
    vg_mig_enter(g, STOP);
    vgt_restart(to);
    g_assert_cmpint(vg_mig_get(g), ==, STOP);
    if (how == VG_MOVE_LEAVE_FIRST) { /* its addresses are held for whoever has it */
        vg_place_close(&other);
    }
    vgt_restart(from);
    vg_mig_enter(g, RUNNING);
    vg_raise_all(g);
    if (how == VG_MOVE_PLAIN) {
        vg_place_swap(g, &other);
        host_wait_logged(from, "its addresses have moved");
        vgt_restart(from);
        g_assert_cmpint(vg_mig_get(g), ==, STOP_COPY);
        g_assert_cmpint(vg_mig_set(g, RUNNING), ==, EADDRINUSE); /* it runs elsewhere */
        vg_place_swap(g, &other);
        vg_place_close(&other);
    }
}

static void test_move(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    for (unsigned i = 0; i < 3; i++) {
        vgt_traffic_push(&t, 5);
        move(t.s[0].g, vgt_daemon, vgt_daemon, i % 2 ? 0 : 2,
             i ? VG_MOVE_LEAVE_FIRST : VG_MOVE_PLAIN);
    }
    vgt_traffic_run(&t, 10);
    vgt_traffic_close(&t);
}

/* From host 1 to where its peer is, and back. */
static void test_hosts(gconstpointer style)
{
    static const struct host_opts keys = {.n_vms = 3, .daemon_keys = "peer-timeout=30"};
    struct vgt_opts o = vgt_opts_of(style);
    struct vg_daemon *shared = vgt_daemon, *host[2];
    struct vgt_traffic t;

    o.conn = (struct vg_conn){.timeout = 21, .retry_cnt = 7, .rnr_retry = 7};
    hosts_start(host, 2, &keys);
    vgt_daemon = o.daemon[1] = host[0];
    o.daemon[0] = host[1];
    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    for (unsigned i = 0; i < 2; i++) {
        vgt_traffic_push(&t, 5);
        move(t.s[0].g, host[1 - i], host[i], 2 * (1 - i), VG_MOVE_PLAIN);
        vgt_traffic_run(&t, 5);
    }
    vgt_traffic_close(&t);
    hosts_stop(host, 2);
    vgt_daemon = shared;
}

/* A move that is called off: the source goes on, the target is gone. */
static void test_cancel(gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);
    struct vg_place place;
    struct vgt_traffic t;

    vgt_traffic_open(&t, 0, 1, 4, 4, 100000, &o);
    vgt_traffic_push(&t, 5);
    place = vg_move_begin(t.s[0].g, vgt_daemon, 2);
    vgt_restart(vgt_daemon);
    vg_place_swap(t.s[0].g, &place);
    vg_mig_enter(t.s[0].g, RUNNING); /* the first who wants it */
    vg_place_swap(t.s[0].g, &place);
    vgt_restart(vgt_daemon);
    g_assert_cmpint(vg_mig_set(t.s[0].g, RUNNING), ==, EADDRINUSE);
    vg_place_swap(t.s[0].g, &place);
    vg_place_close(&place);
    vgt_traffic_run(&t, 5);
    vgt_traffic_close(&t);
}

/* ---- its own states ---- */

/*
 * What it was when it stopped is itself; what it was before it ran on is not, and its
 * connections end.  Nothing of it was used since, so that its RAM fits.
 */
static void test_own(void)
{
    struct vgt_pair p, more;
    struct vguest *g;

    vgt_pair_open(&p, 0, 1, NULL);
    g = p.s[0].g;
    for (unsigned past = 0; past < 2; past++) {
        g_autoptr(GByteArray) stream = NULL;

        vg_mig_enter(g, STOP_COPY);
        stream = vg_mig_read(g, 4096);
        vgt_restart(vgt_daemon);
        if (past) {
            vg_mig_enter(g, RUNNING);
        }
        vg_mig_enter(g, STOP);
        vg_mig_load(g, stream);
        vgt_restart(vgt_daemon);
        vg_mig_enter(g, RUNNING);
        if (!past) {
            vgt_write_once(&p, 1);
        }
    }
    g_assert_cmpuint(vg_qp_state(p.s[0].qp), ==, PVRDMA_QPS_ERR);
    vgt_pair_close(&p);
    vgt_pair_open(&more, 0, 1, NULL);
    vgt_write_once(&more, 2);
    vgt_pair_close(&more);
}

/* A stream that was refused stays so, and why; a reset helps. */
static void test_failed(void)
{
    static const uint8_t junk[4096] = "no stream";
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    char *text = NULL;

    vg_mig_enter(g, RESUMING);
    g_assert_cmpint(vg_mig_write(g, junk, sizeof(junk), 512), ==, 0);
    vgt_restart(vgt_daemon);
    g_assert_cmpint(vg_mig_set(g, STOP), ==, EBADMSG);
    vgt_restart(vgt_daemon);
    g_assert_cmpint(vg_mig_get(g), ==, FAILED);
    g_assert_cmpint(vg_ctl(vgt_daemon, &text, "--json vm migrate-status vm0"), ==, 0);
    g_assert_nonnull(strstr(text, "the state of the device"));
    g_free(text);
    g_assert_cmpint(vg_request(g, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0, NULL), ==,
                    0);
    g_assert_cmpint(vg_mig_get(g), ==, RUNNING);
    vguest_free(g);
}

/* ---- the dirty log ---- */

static int log_set(struct vguest *g, uint32_t feature)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_start data;
    } msg = {{sizeof(msg), feature | VFIO_USER_FEATURE_SET},
             {.page_size = PVRDMA_PAGE_SIZE}};

    return vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, NULL);
}

/* Is it in the log?  That forgets it. */
static bool was_stored(struct vguest *g, uint64_t gpa)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_report data;
    } msg = {
        {sizeof(msg) + 8, VFIO_USER_FEATURE_DMA_LOGGING_REPORT | VFIO_USER_FEATURE_GET},
        {gpa, PVRDMA_PAGE_SIZE, PVRDMA_PAGE_SIZE}};
    struct vg_reply r;
    uint64_t bits;

    g_assert_cmpint(
        vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, &r), ==,
        0);
    g_assert_cmpuint(r.len, ==, sizeof(msg) + sizeof(bits));
    memcpy(&bits, r.data + sizeof(msg), sizeof(bits));
    vg_reply_clear(&r);
    g_assert_cmpuint(bits, <=, 1);
    return bits;
}

/* A page that is written to before, one after, and one never; then the guest moves. */
static void test_log(void)
{
    const uint64_t size = 3 * PVRDMA_PAGE_SIZE;
    struct vgt_pair p;
    const uint64_t *gpa;

    vgt_pair_open(&p, 1, 0, NULL);
    gpa = p.s[1].mr->buf->page;
    g_assert_cmpint(log_set(p.s[1].g, VFIO_USER_FEATURE_DMA_LOGGING_START), ==, 0);
    for (unsigned i = 0; i < 3; i++) {
        vgt_write_once(&p, 1);
        vgt_restart(vgt_daemon);
        vgt_complete(&p.s[0], 2, PVRDMA_WR_RDMA_WRITE, 0, 8, &p.s[1], PVRDMA_PAGE_SIZE);
        g_assert_true(was_stored(p.s[1].g, gpa[0]));
        g_assert_true(was_stored(p.s[1].g, gpa[1]));
        g_assert_false(was_stored(p.s[1].g, gpa[2]));
        vgt_restart(vgt_daemon);
        g_assert_false(was_stored(p.s[1].g, gpa[0]));
    }
    g_assert_cmpint(log_set(p.s[1].g, VFIO_USER_FEATURE_DMA_LOGGING_START), ==, EBUSY);
    vgt_complete(&p.s[0], 3, PVRDMA_WR_RDMA_WRITE, 0, (uint32_t)size, &p.s[1], 0);
    vg_mig_enter(p.s[1].g, STOP);
    vgt_restart(vgt_daemon);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_true(was_stored(p.s[1].g, gpa[i]));
    }
    move(p.s[1].g, vgt_daemon, vgt_daemon, 2, VG_MOVE_PLAIN);
    vgt_write_once(&p, 4);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct vgt_both both[] = {
        {"stop", test_stop},
        {"move", test_move},
        {"cancel", test_cancel},
        {"hosts", test_hosts},
    };
    struct vg_daemon_opts o = {
        .n_vms = 3, .poll_us = -1, .workers = 2, .vm_keys = "addresses=any"};

    vgt_init(&argc, &argv, 180);
    vgt_daemon = vg_daemon_start(&o);
    vgt_add_both("restart-moves", both, G_N_ELEMENTS(both));
    g_test_add_func("/restart-moves/still", test_still);
    g_test_add_func("/restart-moves/own", test_own);
    g_test_add_func("/restart-moves/failed", test_failed);
    g_test_add_func("/restart-moves/log", test_log);
    return vgt_run();
}
