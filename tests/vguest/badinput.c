/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Bad input of virtual guests; see badinput.h. */
#include "badinput.h"

/* ---- counters ---- */

/* "GROUP.NAME" or "GROUP.SUBGROUP.NAME" of VM @vm. */
static int64_t count_in(JsonNode *all, unsigned vm, const char *path)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);
    g_auto(GStrv) part = g_strsplit(path, ".", 0);
    JsonObject *o = vg_status_vm(all, name);
    unsigned i = 0;

    for (; part[i + 1]; i++) {
        o = json_object_get_object_member(o, part[i]);
        g_assert_nonnull(o);
    }
    g_assert_true(json_object_has_member(o, part[i]));
    return json_object_get_int_member(o, part[i]);
}

int64_t count_of(unsigned vm, const char *path)
{
    JsonNode *all = vg_daemon_counters(vgt_daemon);
    int64_t n = count_in(all, vm, path);

    json_node_unref(all);
    return n;
}

struct tally tally(unsigned vm, const char *path)
{
    return (struct tally){vm, path, count_of(vm, path)};
}

void counted(const struct tally *t, int64_t n)
{
    vgt_await(count_of(t->vm, t->path) >= t->before + n);
    g_assert_cmpint(count_of(t->vm, t->path), ==, t->before + n);
}

/* ---- the traffic of others ---- */

static struct vgt_traffic clean;
static gint clean_rounds, clean_stop;

static gpointer clean_thread(gpointer unused)
{
    while (!g_atomic_int_get(&clean_stop)) {
        vgt_traffic_run(&clean, 2);
        g_atomic_int_inc(&clean_rounds);
        g_usleep(200);
    }
    return NULL;
}

/* All that would show if they had noticed something. */
static int64_t noticed(void)
{
    static const char *const path[] = {WRS, COMMANDS, EVENTS, "device.bad_doorbells",
                                       "device.async_events.dropped"};
    JsonNode *all = vg_daemon_counters(vgt_daemon);
    int64_t n = 0;

    for (unsigned i = 0; i < 2 * G_N_ELEMENTS(path); i++) {
        n += count_in(all, 2 + i % 2, path[i / 2]);
    }
    json_node_unref(all);
    return n;
}

/* ---- one bad thing at a time ---- */

void post(struct vgt_side *s, struct vg_wr wr)
{
    wr.flags |= VGT_SIG;
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

struct vg_wr write_wr(struct vgt_pair *p, struct pvrdma_sge *sge, uint32_t rkey)
{
    *sge = vg_sge(p->s[0].mr, 0, 64);
    return (struct vg_wr){.wr_id = 1,
                          .opcode = PVRDMA_WR_RDMA_WRITE,
                          .nsge = 1,
                          .sge = sge,
                          .rkey = rkey,
                          .remote_addr = p->s[1].mr->buf->va + FAR};
}

void fails(struct vgt_pair *p, struct vg_wr wr, enum pvrdma_wc_status status)
{
    post(&p->s[0], wr);
    vgt_expect(p->s[0].scq, wr.wr_id, status);
    g_assert_cmpuint(vg_qp_state(p->s[0].qp), ==, PVRDMA_QPS_ERR);
    vgt_pair_reconnect(p, NULL);
}

static void test_bad(gconstpointer data)
{
    const struct bad *bad = data;
    int before = g_atomic_int_get(&clean_rounds);
    int64_t seen = noticed();

    bad->run();
    vgt_await(g_atomic_int_get(&clean_rounds) - before >= 20);
    g_test_message("%d rounds of the others' traffic",
                   g_atomic_int_get(&clean_rounds) - before);
    g_assert_cmpint(noticed(), ==, seen);
    vg_daemon_check(vgt_daemon);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
}

int bad_main(int *argc, char ***argv, const struct bad *bads, unsigned n)
{
    static const char *const keys[] = {"worker=0", "worker=0", "worker=0", "worker=1",
                                       "worker=1"};
    struct vg_daemon_opts o = {.n_vms = G_N_ELEMENTS(keys),
                               .poll_us = -1,
                               .workers = 2,
                               .keys = keys,
                               .vm_keys = "max-mr-pages=1000000"};
    GThread *t;
    int ret;

    vgt_init(argc, argv, 110);
    vgt_daemon = vg_daemon_start(&o);
    vgt_traffic_open(&clean, 2, 3, 2, 2, 4096, NULL);
    t = g_thread_new("clean", clean_thread, NULL);
    for (unsigned i = 0; i < n; i++) {
        g_autofree char *path = g_strdup_printf("/badinput/%s", bads[i].name);

        g_test_add_data_func(path, &bads[i], test_bad);
    }
    ret = g_test_run();
    g_atomic_int_set(&clean_stop, 1);
    g_thread_join(t);
    vgt_traffic_close(&clean);
    vg_daemon_stop(vgt_daemon);
    return ret;
}
