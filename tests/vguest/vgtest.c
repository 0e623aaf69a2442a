/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Shared parts of the vguest tests; see vgtest.h.
 */
#include "vgtest.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

struct vg_daemon *vgt_daemon;

static void too_long(int sig)
{
    static const char msg[] = "test program takes too long\n";
    ssize_t n = write(STDERR_FILENO, msg, sizeof(msg) - 1);

    (void)n;
    abort();
}

static unsigned soak_factor(void)
{
    const char *env = g_getenv("VGUEST_SOAK");
    unsigned long n = env ? strtoul(env, NULL, 10) : 1;

    return CLAMP(n, 1, 1000);
}

/* Instrumented, or on a NIC of a machine that is emulated (tests/l1). */
static bool is_slow(void)
{
    return !VGT_PLAIN_BUILD || g_getenv("VGUEST_NIC");
}

bool vgt_judges(void)
{
    return VGT_PLAIN_BUILD && g_strcmp0(g_getenv("VGUEST_JUDGE"), "1") == 0;
}

unsigned vgt_rounds(unsigned n)
{
    return is_slow() ? MAX(n * soak_factor() / 10, 1) : n * soak_factor();
}

void vgt_init(int *argc, char ***argv, unsigned seconds)
{
    struct sigaction sa = {.sa_handler = too_long};

    g_test_init(argc, argv, NULL);
    sigaction(SIGALRM, &sa, NULL);
    signal(SIGPIPE, SIG_IGN);
    /* As meson's limits are multiplied (run-check.py). */
    alarm(seconds * soak_factor() * (is_slow() ? 6 : 1));
}

void vgt_start(int *argc, char ***argv, unsigned seconds, unsigned n_vms)
{
    struct vg_daemon_opts o = {.n_vms = n_vms, .poll_us = -1, .workers = 2};

    vgt_init(argc, argv, seconds);
    vgt_daemon = vg_daemon_start(&o);
}

void vgt_add_both(const char *prefix, const struct vgt_both *tests, unsigned n)
{
    static const char *const name[] = {
        [VGT_STOCK] = "stock", [VGT_EXTENDED] = "extended"};

    for (unsigned i = 0; i < n; i++) {
        for (unsigned style = VGT_STOCK; style <= VGT_EXTENDED; style++) {
            g_autofree char *path =
                g_strdup_printf("/%s/%s/%s", prefix, tests[i].name, name[style]);

            g_test_add_data_func(path, GUINT_TO_POINTER(style), tests[i].run);
        }
    }
}

bool vgt_by_streams(void)
{
    return g_getenv("VGUEST_PATH") != NULL;
}

static bool by_channels(void)
{
    return g_strcmp0(g_getenv("VGUEST_PATH"), "rnic") == 0;
}

static uint64_t noted_bytes;
static bool channels_break;

void vgt_channels_break(void)
{
    channels_break = true;
}

void vgt_note_channels(const char *vm)
{
    noted_bytes += (uint64_t)vgt_counter(vm, "channels", "received_bytes");
}

bool vgt_resets(void)
{
    const char *daemon = g_getenv("PVRDMAD");

    return daemon && g_str_has_suffix(daemon, "-reset");
}

int vgt_run(void)
{
    int ret = g_test_run();

    if (vgt_daemon) {
        vg_daemon_stop(vgt_daemon);
        vgt_daemon = NULL;
    }
    return vgt_judged(ret);
}

int vgt_judged(int ret)
{
    if (ret == 0 && vgt_resets()) {
        g_test_message("%lu connections were reset", vg_daemon_resets());
        g_assert_cmpuint(vg_daemon_resets(), >, 0);
    }
    if (ret == 0 && by_channels()) {
        uint64_t bytes = noted_bytes + vg_daemon_channel_bytes();
        unsigned long by_tcp, streams = vg_daemon_channel_streams(&by_tcp);

        g_test_message("%" PRIu64 " bytes came by channels; %lu streams, %lu by TCP",
                       bytes, streams, by_tcp);
        g_assert_cmpuint(bytes, >, 0);
        /*
         * A channel that takes longer to be made than others wait takes over later.  A
         * daemon that is another's successor has connections before it has opened NICs.
         */
        if (!noted_bytes && !channels_break) {
            g_assert_cmpuint(by_tcp, <=, streams);
        }
    }
    return ret;
}

/* ---- patterns ---- */

static uint64_t word(uint64_t seed, uint64_t i)
{
    uint64_t x = (seed * 0x2545f4914f6cdd1dull + i) * 0x9e3779b97f4a7c15ull;

    return x ^ x >> 29;
}

void vgt_fill(void *buf, size_t len, uint64_t seed)
{
    uint8_t *p = buf;
    size_t i;

    for (i = 0; i + 8 <= len; i += 8) {
        uint64_t w = word(seed, i);

        memcpy(p + i, &w, 8);
    }
    if (i < len) {
        uint64_t w = word(seed, i);

        memcpy(p + i, &w, len - i);
    }
}

bool vgt_matches(const void *buf, size_t len, uint64_t seed)
{
    const uint8_t *p = buf;
    size_t i;

    for (i = 0; i < len; i += 8) {
        uint64_t w = word(seed, i);

        if (memcmp(p + i, &w, MIN(8, len - i))) {
            return false;
        }
    }
    return true;
}

void vgt_check(const void *buf, size_t len, uint64_t seed)
{
    if (!vgt_matches(buf, len, seed)) {
        g_error("data differ: %zu bytes, seed %" PRIu64, len, seed);
    }
}

/* ---- completions ---- */

struct pvrdma_cqe vgt_expect(struct vg_cq *cq, uint64_t wr_id,
                             enum pvrdma_wc_status status)
{
    struct pvrdma_cqe cqe;

    if (!vg_cq_wait(cq, &cqe, VGT_WAIT_MS)) {
        vg_daemon_check(cq->g->d);
        g_error("no completion for wr_id %" PRIu64, wr_id);
    }
    if (cqe.status != status) {
        g_error("wr_id %" PRIu64 " (QP %" PRIu64 ", opcode %u): status %u, not %u",
                cqe.wr_id, cqe.qp, cqe.opcode, cqe.status, status);
    }
    g_assert_cmpuint(cqe.wr_id, ==, wr_id);
    return cqe;
}

void vgt_expect_event(struct vguest *g, uint32_t type, uint32_t info)
{
    g_assert_true(vg_event_wait(g, type, info, VGT_WAIT_MS));
}

void vgt_expect_none(struct vg_cq *cq, int ms)
{
    struct pvrdma_cqe cqe;

    if (vg_cq_wait(cq, &cqe, ms)) {
        g_error("unexpected completion: wr_id %" PRIu64 ", status %u", cqe.wr_id,
                cqe.status);
    }
}

void vgt_send(struct vgt_side *s, uint64_t wr_id, uint32_t opcode, uint32_t flags,
              uint64_t off, uint32_t len, const struct vgt_side *peer,
              uint64_t remote_off)
{
    struct pvrdma_sge sge = vg_sge(s->mr, off, len);
    struct vg_wr wr = {.wr_id = wr_id,
                       .opcode = opcode,
                       .flags = flags,
                       .imm = 0x01020304 + (uint32_t)wr_id,
                       .nsge = 1,
                       .sge = &sge};

    if (peer) {
        wr.remote_addr = peer->mr->buf->va + remote_off;
        wr.rkey = peer->mr->rkey;
    }
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

void vgt_complete(struct vgt_side *s, uint64_t wr_id, uint32_t opcode, uint64_t off,
                  uint32_t len, const struct vgt_side *peer, uint64_t remote_off)
{
    vgt_send(s, wr_id, opcode, VGT_SIG, off, len, peer, remote_off);
    vgt_expect(s->scq, wr_id, PVRDMA_WC_SUCCESS);
}

void vgt_write_once(struct vgt_pair *p, uint64_t wr_id)
{
    vgt_complete(&p->s[0], wr_id, PVRDMA_WR_RDMA_WRITE, 0, 8, &p->s[1], 0);
}

bool vgt_post_write(const struct vgt_pair *p, struct vg_qp *qp, uint64_t wr_id)
{
    struct pvrdma_sge sge = vg_sge(p->s[0].mr, 0, 8);
    struct vg_wr wr = vg_wr_to(wr_id, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, p->s[1].mr, 0);

    return vg_post_send(qp, &wr, 1) == 1;
}

void vgt_count(struct vgt_side *s, uint64_t wr_id, uint64_t off,
               const struct vgt_side *peer)
{
    struct pvrdma_sge sge = vg_sge(s->mr, off, 8);
    struct vg_wr wr =
        vg_wr_to(wr_id, PVRDMA_WR_ATOMIC_FETCH_AND_ADD, VGT_SIG, &sge, peer->mr, 0);

    wr.compare_add = 1;
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

void vgt_recv(struct vgt_side *s, uint64_t wr_id, uint64_t off, uint32_t len)
{
    struct pvrdma_sge sge = vg_sge(s->mr, off, len);
    struct vg_wr wr = {.wr_id = wr_id, .nsge = 1, .sge = &sge};

    g_assert_cmpuint(vg_post_recv(s->qp, &wr, 1), ==, 1);
}

/* ---- pairs ---- */

static void side_fill(struct vgt_side *s, const struct vgt_opts *o, unsigned which)
{
    s->pd = o->kernel ? vg_pd_new_kernel(s->g) : vg_pd_new(s->g);
    s->scq = vg_cq_new_flags(s->pd, o->cqe ? o->cqe : 256, o->cq_flags);
    s->rcq = vg_cq_new_flags(s->pd, o->cqe ? o->cqe : 256, o->cq_flags);
    s->qp = vg_qp_new(s->pd, s->scq, s->rcq, &o->qp);
    s->mr = vg_mr_alloc(s->pd, 0x7f1200000000ull + which * 0x10000000ull,
                        o->mr_len ? o->mr_len : 1 << 20, VG_ACCESS_ALL);
}

void vgt_side_open(struct vgt_side *s, unsigned vm, const struct vgt_opts *o,
                   unsigned which)
{
    s->g = vguest_new(o->daemon[which] ? o->daemon[which] : vgt_daemon, vm,
                      &o->guest[which]);
    side_fill(s, o, which);
}

static void side_empty(struct vgt_side *s)
{
    vg_mr_free(s->mr);
    vg_qp_free(s->qp);
    vg_cq_free(s->scq);
    vg_cq_free(s->rcq);
    vg_pd_free(s->pd);
}

void vgt_side_close(struct vgt_side *s)
{
    side_empty(s);
    vguest_free(s->g);
}

struct vgt_opts vgt_opts_of(gconstpointer style)
{
    enum vg_db_mode db = GPOINTER_TO_UINT(style) == VGT_STOCK ? VG_DB_SHARED : VG_DB_EXT;

    return (struct vgt_opts){.guest = {{.db = db}, {.db = db}}};
}

void vgt_pair_open(struct vgt_pair *p, unsigned a, unsigned b,
                   const struct vgt_opts *opts)
{
    static const struct vgt_opts none;
    const struct vgt_opts *o = opts ? opts : &none;

    vgt_side_open(&p->s[0], a, o, 0);
    if (a == b && o->daemon[0] == o->daemon[1]) {
        p->s[1].g = p->s[0].g;
        side_fill(&p->s[1], o, 1);
    } else {
        vgt_side_open(&p->s[1], b, o, 1);
    }
    if (!o->unconnected) {
        vg_qp_connect(p->s[0].qp, p->s[1].qp, &o->conn);
    }
}

struct vguest *vgt_pair_of(struct vgt_pair *p, gconstpointer style)
{
    struct vgt_opts o = vgt_opts_of(style);

    vgt_pair_open(p, 0, 1, &o);
    return p->s[0].g;
}

void vgt_pair_close(struct vgt_pair *p)
{
    side_empty(&p->s[0]);
    side_empty(&p->s[1]);
    if (p->s[1].g != p->s[0].g) {
        vguest_free(p->s[1].g);
    }
    vguest_free(p->s[0].g);
}

void vgt_pair_reconnect(struct vgt_pair *p, const struct vg_conn *c)
{
    struct pvrdma_cqe cqe;

    for (unsigned i = 0; i < 2; i++) {
        vg_qp_to_reset(p->s[i].qp);
    }
    for (unsigned i = 0; i < 2; i++) {
        while (vg_cq_poll(p->s[i].scq, &cqe, 1) == 1 ||
               vg_cq_poll(p->s[i].rcq, &cqe, 1) == 1) {
        }
    }
    vg_qp_connect(p->s[0].qp, p->s[1].qp, c);
}

static bool same_usage(const struct vg_usage *a, const struct vg_usage *b)
{
    return a->fds == b->fds && a->maps == b->maps && a->threads == b->threads;
}

int64_t vgt_counter(const char *vm, const char *group, const char *name)
{
    g_autoptr(JsonNode) node = vg_daemon_counters(vgt_daemon);
    JsonObject *o = json_object_get_object_member(vg_status_vm(node, vm), group);

    return json_object_get_int_member(o, name);
}

unsigned vgt_waiting_gids(const char *vm)
{
    g_autoptr(JsonNode) all = vg_daemon_status(vgt_daemon);

    return json_array_get_length(
        json_object_get_array_member(vg_status_vm(all, vm), "waiting_gids"));
}

void vgt_await_counter(const char *vm, const char *group, const char *name, int64_t n)
{
    vgt_await(vgt_counter(vm, group, name) >= n);
}

long vgt_settled_kib(void)
{
    long most = 0;

    for (unsigned same = 0; same < 20; same++) {
        struct vg_usage now;

        g_usleep(50000);
        vg_daemon_usage(vgt_daemon, &now);
        if (now.rss_anon_kib > most) {
            most = now.rss_anon_kib;
            same = 0;
        }
    }
    return most;
}

bool vgt_tcp_undisturbed(void)
{
    return g_strcmp0(g_getenv("VGUEST_PATH"), "tcp") == 0 && !g_getenv("PVRDMAD");
}

void vgt_usage_settled(struct vg_usage *u)
{
    vg_daemon_usage(vgt_daemon, u);
    /* Threads that close what a VM left may live for a moment. */
    for (unsigned same = 0; same < 40;) {
        struct vg_usage now;

        g_usleep(10000);
        vg_daemon_usage(vgt_daemon, &now);
        same = same_usage(u, &now) ? same + 1 : 0;
        *u = now;
    }
}

void vgt_usage_returns(const struct vg_usage *want)
{
    struct vg_usage now;

    for (int i = 0; i < vg_patience(500); i++) {
        vg_daemon_usage(vgt_daemon, &now);
        /* On a machine that stood still @want may be of a moment at which it held more.
         */
        if (now.fds <= want->fds && now.maps <= want->maps &&
            now.threads <= want->threads) {
            return;
        }
        g_usleep(10000);
    }
    g_error("the daemon holds %u fds, %u maps, %u threads; expected %u, %u, %u", now.fds,
            now.maps, now.threads, want->fds, want->maps, want->threads);
}

unsigned vgt_worker_of(unsigned vm)
{
    g_autofree char *name = g_strdup_printf("vm%u", vm);
    g_autoptr(JsonNode) status = vg_daemon_status(vgt_daemon);
    JsonObject *o = vg_status_vm(status, name);

    g_assert_true(json_object_has_member(o, "worker"));
    return (unsigned)json_object_get_int_member(o, "worker");
}

static pid_t worker_thread(unsigned i)
{
    g_autoptr(JsonNode) status = vg_daemon_status(vgt_daemon);
    JsonArray *all =
        json_object_get_array_member(json_node_get_object(status), "worker_threads");

    return (pid_t)json_object_get_int_member(json_array_get_object_element(all, i),
                                             "thread");
}

pid_t vgt_worker_stop(unsigned i)
{
    pid_t tid = worker_thread(i);

    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) != 0) {
        g_test_skip(g_strerror(errno));
        return 0;
    }
    g_assert_cmpint(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), ==, 0);
    g_assert_cmpint(waitpid(tid, NULL, __WALL), ==, tid);
    return tid;
}

void vgt_worker_go(pid_t tid)
{
    g_assert_cmpint(ptrace(PTRACE_DETACH, tid, NULL, NULL), ==, 0);
}

void vgt_vm(const struct vg_daemon *d, const char *verb, unsigned i)
{
    g_assert_cmpint(vg_ctl(d, NULL, "vm %s vm%u", verb, i), ==, 0);
}

int64_t vgt_restart(const struct vg_daemon *d)
{
    g_autoptr(JsonNode) node = vg_ctl_json(d, "--timeout=%d restart", VGT_WAIT_MS / 1000);

    return json_object_get_int_member(json_node_get_object(node), "pause_us");
}

void vgt_assert_no_objects(const char *vm)
{
    static const char *const kinds[] = {"pds", "mrs", "cqs", "qps", "srqs"};
    JsonNode *status = vg_daemon_status(vgt_daemon);
    JsonObject *o = json_object_get_object_member(vg_status_vm(status, vm), "objects");

    g_assert_nonnull(o);
    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) {
        g_assert_cmpint(json_object_get_int_member(o, kinds[i]), ==, 0);
    }
    json_node_unref(status);
}

static char *logged(gsize *len)
{
    char *text = NULL;

    g_assert_true(g_file_get_contents(vgt_daemon->log, &text, len, NULL));
    return text;
}

size_t vgt_log_length(void)
{
    gsize len;

    g_free(logged(&len));
    return len;
}

void vgt_wait_logged_after(size_t from, const char *words)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool found = false;

    while (!found) {
        g_autofree char *text = NULL;
        gsize len;

        g_assert_cmpint(vg_now_ns(), <, end);
        g_usleep(2000);
        text = logged(&len);
        found = from <= len && strstr(text + from, words) != NULL;
    }
}

void vgt_wait_logged(const char *words)
{
    vgt_wait_logged_after(0, words);
}
