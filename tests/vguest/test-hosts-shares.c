/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: what tenants share once there are hosts.  In each case one of them takes
 * all that it can get, and another notices nothing.
 */
#include "fakehost.h"
#include "ud.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct vg_daemon *host[2];

static struct host_opts opts_of(const char *daemon_keys)
{
    return (struct host_opts){.n_vms = 8, .n_peers = 2, .daemon_keys = daemon_keys};
}

static void begin(const char *daemon_keys)
{
    struct host_opts o = opts_of(daemon_keys);

    hosts_start(host, 2, &o);
    vgt_daemon = host[1];
}

static void end(void)
{
    hosts_stop(host, 2);
    vgt_daemon = NULL;
}

/* ---- the main thread ---- */

/*
 * A worker stands still with a VM's token, as in a page fault that a VMM has made long,
 * while queue pairs of other hosts connect with that VM, and it with them: its host goes
 * on with registers, links and connections of others.
 */
#define ROUNDS  6u
#define N_CONNS 4u
#define N_LOAD  2048u /* messages within the VM: its worker is in its turns */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LOAD_LEN (1u << 17) /* the same number takes ten times as long */
#else
#define LOAD_LEN (1u << 20)
#endif

/* Eight tries of 0.5 s. */
static const struct vg_conn patient = {.timeout = 17, .retry_cnt = 7, .rnr_retry = 7};

/* Queue pairs of host 1, which are ready, with some of host 0 that are not yet. */
struct waiting {
    struct vgt_side far, near;
    struct vg_qp *qp[2][ROUNDS * N_CONNS];
    unsigned n, begun;
};

static void waiting_open(struct waiting *w, struct vguest *near, unsigned far, unsigned n)
{
    static const struct vgt_opts fresh = {.unconnected = true};
    static const struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1};
    struct vgt_opts o = fresh;
    struct vgt_side *s[2] = {&w->far, &w->near};

    o.daemon[0] = host[0];
    o.conn = patient;
    vgt_side_open(&w->far, far, &o, 0);
    w->near = (struct vgt_side){.g = near};
    w->near.pd = vg_pd_new(near);
    w->near.scq = vg_cq_new(w->near.pd, 256);
    w->near.mr = vg_mr_alloc(w->near.pd, 0x10000000, 4096, VG_ACCESS_ALL);
    w->n = n;
    w->begun = 0;
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < 2; k++) {
            w->qp[k][i] = vg_qp_new(s[k]->pd, s[k]->scq, s[k]->scq, &small);
            vg_qp_to_init(w->qp[k][i], &patient);
        }
        vg_qp_to_rtr(w->qp[1][i], &w->far.g->gid, w->qp[0][i]->qpn, 1, &patient);
        vg_qp_to_rts(w->qp[1][i], 1, &patient);
    }
}

static void waiting_close(struct waiting *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        vg_qp_free(w->qp[0][i]);
        vg_qp_free(w->qp[1][i]);
    }
    vg_mr_free(w->near.mr);
    vg_cq_free(w->near.scq);
    vg_pd_free(w->near.pd);
    vgt_side_close(&w->far);
}

/* The next @n become ready, and write. */
static void waiting_begin(struct waiting *w, unsigned n)
{
    for (unsigned i = w->begun; i < w->begun + n; i++) {
        struct pvrdma_sge sge = vg_sge(w->far.mr, 0, 64);
        struct vg_wr wr = vg_wr_to(i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, w->near.mr, 0);

        vg_qp_to_rtr(w->qp[0][i], &w->near.g->gid, w->qp[1][i]->qpn, 1, &patient);
        vg_qp_to_rts(w->qp[0][i], 1, &patient);
        g_assert_cmpuint(vg_post_send(w->qp[0][i], &wr, 1), ==, 1);
    }
    w->begun += n;
}

static void waiting_written(struct waiting *w, unsigned n)
{
    struct pvrdma_cqe c;

    while (n--) {
        g_assert_true(vg_cq_wait(w->far.scq, &c, VGT_WAIT_MS));
        g_assert_cmpint(c.status, ==, PVRDMA_WC_SUCCESS);
    }
}

static void load(struct vgt_pair *p)
{
    for (unsigned i = 0; i < N_LOAD; i++) {
        vgt_send(&p->s[0], i, PVRDMA_WR_RDMA_WRITE, i == N_LOAD - 1 ? VGT_SIG : 0, 0,
                 LOAD_LEN, &p->s[1], 0);
    }
}

static void test_token(void)
{
    struct vgt_opts o = {.qp = {.send_wr = N_LOAD}, .conn = {.timeout = 20}};
    struct waiting lesser, greater, other; /* VM 2 is called, or calls */
    struct vguest *by;
    struct vgt_pair p;
    pid_t tid = 1;

    begin("workers=2\npeer-timeout=60");
    vgt_pair_open(&p, 2, 2, &o);
    by = vguest_new(host[1], 6, NULL);
    g_assert_cmpuint(vgt_worker_of(6), !=, vgt_worker_of(2));
    waiting_open(&lesser, p.s[0].g, 1, ROUNDS * N_CONNS);
    waiting_open(&greater, p.s[0].g, 3, ROUNDS * N_CONNS);
    waiting_open(&other, by, 5, ROUNDS);
    for (unsigned i = 0; i < ROUNDS && tid; i++) {
        load(&p);
        g_usleep(2000);
        tid = vgt_worker_stop(vgt_worker_of(2)); /* in a turn of VM 2's, most times */
        if (tid) {
            waiting_begin(&lesser, N_CONNS);
            waiting_begin(&greater, N_CONNS);
            g_usleep(20000);
            vg_reg_read(by, PVRDMA_REG_ERR);
            waiting_begin(&other, 1);
            waiting_written(&other, 1);
            vg_reg_read(by, PVRDMA_REG_ERR);
            vgt_worker_go(tid);
            waiting_written(&lesser, N_CONNS);
            waiting_written(&greater, N_CONNS);
        }
        vgt_expect(p.s[0].scq, N_LOAD - 1, PVRDMA_WC_SUCCESS);
    }
    waiting_close(&other);
    waiting_close(&greater);
    waiting_close(&lesser);
    vguest_free(by);
    vgt_pair_close(&p);
    end();
}

/* ---- places before it is known who calls ---- */

static struct vgt_opts between(void)
{
    return (struct vgt_opts){.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                             .daemon = {host[0], host[1]},
                             .conn = patient};
}

/* VM @b of host 1 sends to VM @a of host 0, by a new queue pair. */
static void sends(unsigned a, unsigned b)
{
    struct vgt_opts o = between();
    struct vgt_pair p;

    vgt_pair_open(&p, a, b, &o);
    vgt_recv(&p.s[0], 7, 0, 64);
    vgt_complete(&p.s[1], 1, PVRDMA_WR_SEND, 0, 64, &p.s[0], 0);
    vgt_pair_close(&p);
}

/*
 * Any program at a host's address, or guest behind it, keeps all places that the host has
 * for connections that begin.  In rounds, since tries that are refused are over at once.
 */
#define N_IDLE 90u

struct keeper {
    unsigned from, to, n;
    const char *says; /* first */
    int fd[N_IDLE];
    unsigned made;
    volatile gint stop;
    GThread *thread;
};

static bool has_ended(int fd)
{
    char c[256];
    ssize_t n;

    do {
        n = recv(fd, c, sizeof(c), MSG_DONTWAIT);
    } while (n > 0);
    return n == 0 || errno != EAGAIN;
}

/* -1: nobody listens. */
static int call(unsigned from, unsigned to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unsigned ends[2] = {from, to};
    struct sockaddr_in in[2];

    for (unsigned i = 0; i < 2; i++) {
        g_autofree char *text = host_address(ends[i]);

        in[i] = (struct sockaddr_in){.sin_family = AF_INET,
                                     .sin_port = htons(i ? (uint16_t)hosts_port() : 0)};
        g_assert_cmpint(inet_pton(AF_INET, text, &in[i].sin_addr), ==, 1);
    }
    g_assert_cmpint(bind(fd, (struct sockaddr *)&in[0], sizeof(in[0])), ==, 0);
    if (connect(fd, (struct sockaddr *)&in[1], sizeof(in[1])) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

static gpointer keep_thread(gpointer opaque)
{
    struct keeper *k = opaque;

    while (!g_atomic_int_get(&k->stop)) {
        for (unsigned i = 0; i < k->n; i++) {
            if (k->fd[i] >= 0 && has_ended(k->fd[i])) {
                close(k->fd[i]);
                k->fd[i] = -1;
            }
            if (k->fd[i] < 0) {
                k->fd[i] = call(k->from, k->to);
                k->made += k->fd[i] >= 0 && send(k->fd[i], k->says, 16, MSG_NOSIGNAL) > 0;
            }
        }
        g_usleep(2000);
    }
    for (unsigned i = 0; i < k->n; i++) {
        if (k->fd[i] >= 0) {
            close(k->fd[i]);
        }
    }
    return NULL;
}

static void keep(struct keeper *k, unsigned from, unsigned to, unsigned n,
                 const char *says)
{
    *k = (struct keeper){.from = from, .to = to, .n = n, .says = says};
    memset(k->fd, -1, sizeof(k->fd));
    k->thread = g_thread_new("keep", keep_thread, k);
}

static void keep_no_more(struct keeper *k)
{
    g_atomic_int_set(&k->stop, 1);
    g_thread_join(k->thread);
    g_test_message("%u connections that kept places", k->made);
}

static void test_requests(void)
{
    struct keeper k;

    begin(NULL);
    keep(&k, 1, 0, N_IDLE, "MPA ID Req Frame");
    g_usleep(300000);
    for (unsigned i = 0; i < 4; i++) { /* host 1 calls */
        sends(3, 1);
    }
    keep_no_more(&k);
    end();
}

/* A link begins while its hosts' addresses are kept, both ways. */
static void test_links(void)
{
    struct host_opts o = opts_of(NULL);
    struct keeper k[2];

    host[0] = host_start(0, &o);
    for (unsigned i = 0; i < 2; i++) {
        keep(&k[i], i, !i, 64, PEER_MAGIC);
    }
    g_usleep(300000);
    host[1] = host_start(1, &o);
    hosts_wait_up(host, 2);
    for (unsigned i = 0; i < 2; i++) {
        keep_no_more(&k[i]);
    }
    end();
}

/* ---- connections ---- */

/*
 * Host 1's daemon has few descriptors, and one of its VMs more queue pairs than that.  It
 * has as many connections as it leaves to others, whoever makes them.
 */
#define FEW  512u
#define MANY 512u

struct crowd {
    struct vguest *g[2]; /* of hosts 0 and 1 */
    struct vg_pd *pd[2];
    struct vg_cq *cq[2];
    struct vg_mr *mr[2];
    struct vg_qp *qp[2][MANY];
};

static void crowd_open(struct crowd *c, unsigned a, unsigned b)
{
    static const struct vg_opts large = {.low_size = 256u << 20, .db = VG_DB_EXT};
    static const struct vg_qp_opts small = {
        .send_wr = 2, .recv_wr = 2, .send_sge = 1, .recv_sge = 1, .contig = true};

    for (unsigned i = 0; i < 2; i++) {
        c->g[i] = vguest_new(host[i], i ? b : a, &large);
        c->pd[i] = vg_pd_new(c->g[i]);
        c->cq[i] = vg_cq_new(c->pd[i], 4 * MANY);
        c->mr[i] = vg_mr_alloc(c->pd[i], 0x10000000, 4096, VG_ACCESS_ALL);
        for (unsigned k = 0; k < MANY; k++) {
            c->qp[i][k] = vg_qp_new(c->pd[i], c->cq[i], c->cq[i], &small);
        }
    }
}

/* Each of host @from's writes to its peer: how many can? */
static unsigned crowd_writes(struct crowd *c, unsigned from, unsigned n)
{
    static const struct vg_conn brief = {.timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
    unsigned good = 0;

    for (unsigned k = 0; k < n; k++) {
        struct pvrdma_sge sge = vg_sge(c->mr[from], 0, 8);
        struct vg_wr wr =
            vg_wr_to(k, PVRDMA_WR_RDMA_WRITE, VGT_SIG, &sge, c->mr[!from], 0);

        vg_qp_connect(c->qp[0][k], c->qp[1][k], &brief);
        g_assert_cmpuint(vg_post_send(c->qp[from][k], &wr, 1), ==, 1);
    }
    for (unsigned k = 0; k < n; k++) {
        struct pvrdma_cqe cqe;

        g_assert_true(vg_cq_wait(c->cq[from], &cqe, VGT_WAIT_MS));
        if (cqe.status == PVRDMA_WC_SUCCESS) {
            good++;
        } else {
            g_assert_cmpint(cqe.status, ==, PVRDMA_WC_RETRY_EXC_ERR);
        }
    }
    return good;
}

static void crowd_reset(struct crowd *c)
{
    for (unsigned k = 0; k < MANY; k++) {
        vg_qp_to_reset(c->qp[0][k]);
        vg_qp_to_reset(c->qp[1][k]);
    }
}

static void crowd_close(struct crowd *c)
{
    for (unsigned i = 0; i < 2; i++) {
        for (unsigned k = 0; k < MANY; k++) {
            vg_qp_free(c->qp[i][k]);
        }
        vg_mr_free(c->mr[i]);
        vg_cq_free(c->cq[i]);
        vg_pd_free(c->pd[i]);
        vguest_free(c->g[i]);
    }
}

/* Host 1 has so many descriptors, before it has any connection. */
static void begin_with_few(unsigned n)
{
    struct rlimit few = {n, n};

    begin(NULL);
    g_assert_cmpint(prlimit(host[1]->pid, RLIMIT_NOFILE, &few, NULL), ==, 0);
}

static unsigned lines_with(const struct vg_daemon *d, const char *words)
{
    g_autofree char *text = NULL;
    unsigned n = 0;

    g_assert_true(g_file_get_contents(d->log, &text, NULL, NULL));
    for (const char *at = text; (at = strstr(at, words)); at++) {
        n++;
    }
    return n;
}

/*
 * Of the TCP connections from or to host 1: how many may have more of the kernel's memory
 * for what they send than connections of a VM that has many?
 */
static unsigned growing(unsigned *all)
{
    g_autofree char *address = host_address(1);
    g_autofree char *command =
        g_strdup_printf("ss -tnmHO state established src %s", address);
    g_autofree char *text = NULL;
    g_auto(GStrv) lines = NULL;
    unsigned n = 0;
    int status;

    if (!g_spawn_command_line_sync(command, &text, NULL, &status, NULL) || status) {
        *all = 0;
        return 0;
    }
    lines = g_strsplit(text, "\n", -1);
    *all = 0;
    for (unsigned i = 0; lines[i]; i++) {
        const char *at = strstr(lines[i], ",tb");

        *all += at != NULL;
        n += at && g_ascii_strtoull(at + 3, NULL, 10) > 2u << 20;
    }
    return n;
}

/* @opaque: of the two hosts, who makes the connections. */
static void test_connections(gconstpointer opaque)
{
    static struct crowd c;
    unsigned from = GPOINTER_TO_UINT(opaque), vm = from ? 1 : 6, good, large, all;
    g_autofree char *name = g_strdup_printf("vm%u", vm);
    struct vguest *by;

    begin_with_few(FEW);
    crowd_open(&c, 3, vm);
    good = crowd_writes(&c, from, MANY);
    g_assert_cmpuint(good, ==, FEW / 4); /* half are for connections: half of those */
    g_assert_cmpint(vgt_counter(name, "tcp", "connections"), ==, good);
    g_assert_cmpint(vgt_counter(name, "tcp", "over_share"), >, 0);
    large = growing(&all);
    g_test_message("%u of %u connections grow", large, all);
    g_assert_true(!all || all >= good); /* none: there is no `ss` */
    g_assert_cmpuint(large, <=, 32);
    host_wait_logged(host[1], "its share of connections is used up");
    g_assert_cmpuint(lines_with(host[1], "its share of connections"), ==, 1);
    sends(4, 2);
    sends(2, 4); /* the other way round */
    by = vguest_new(host[1], 5, NULL);
    vguest_free(by);

    crowd_reset(&c); /* so there are some again */
    g_assert_cmpint(vgt_counter(name, "tcp", "connections"), ==, 0);
    g_assert_cmpuint(crowd_writes(&c, from, 8), ==, 8);
    crowd_close(&c);
    end();
}

/* ---- datagrams ---- */

#define N_FLOODS  5u /* VMs 1 to 5 */
#define N_OTHER   8u /* datagrams of VM 0 */
#define N_MADS    4u /* of VM 6, and of a VM that floods */
#define FLOOD_LEN 4096u

static void ud_side(struct vgt_side *s, unsigned vm)
{
    struct vgt_opts o;

    ud_options(&o, VGT_EXTENDED);
    vgt_side_open(s, vm, &o, 0);
    vg_ud_to_rts(s->qp, QKEY);
}

static void sends_some(struct vgt_side *s, struct dg d, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        d.wr_id = i;
        ud_send(s, s, d);
        vgt_expect(s->scq, i, PVRDMA_WC_SUCCESS);
    }
}

/* Each of them has as much that waits as it can. */
static void flood(struct vgt_side *s, const struct pvrdma_gid *to)
{
    bool any;

    do {
        any = false;
        for (unsigned i = 0; i < N_FLOODS; i++) {
            sends_some(&s[i], (struct dg){.to = to, .qpn = 2, .len = FLOOD_LEN}, 32);
            any |= ud_dropped(i + 1, "link_full") == 0;
        }
    } while (any);
}

/*
 * VMs flood a host that does not read: of another VM's datagrams none is dropped, nor any
 * management datagram, those of a VM that floods among them.
 */
static void test_datagrams(void)
{
    struct host_opts o = opts_of("peer-timeout=60");
    struct pvrdma_gid far = vg_gid(60);
    struct peer_msg m = {
        .type = PEER_MSG_CLAIM,
        .claim = {.gid = far, .owner = {7, 1}, .generation = 1, .network = "lan"}};
    struct vgt_side floods[N_FLOODS], other, gsi, own;
    unsigned others = 0, mads = 0;
    struct dg mad = UD_MAD;
    struct fake f;

    o.peer_keys = "max-queued=1M";
    host[0] = vgt_daemon = host_start(0, &o);
    fake_init(&f, 1);
    f.hello.timeout_ms = 60000;
    fake_link(&f, 1);
    check_ping(&f, 1);
    ud_side(&other, 0);
    ud_gsi_open(&gsi, 6);
    for (unsigned i = 0; i < N_FLOODS - 1; i++) {
        ud_side(&floods[i], i + 1);
    }
    ud_gsi_open(&own, N_FLOODS);
    floods[N_FLOODS - 1] = own;
    floods[N_FLOODS - 1].qp =
        vg_qp_new(own.pd, own.scq, own.rcq, &(struct vg_qp_opts){.type = PVRDMA_QPT_UD});
    vg_ud_to_rts(floods[N_FLOODS - 1].qp, QKEY);

    put_msg(&f, &m);
    check_ping(&f, 2);
    flood(floods, &far);
    mad.to = &far;
    sends_some(&other, (struct dg){.to = &far, .qpn = 3, .len = 256}, N_OTHER);
    sends_some(&gsi, mad, N_MADS);
    sends_some(&own, mad, N_MADS);
    g_assert_cmpint(ud_dropped(0, "link_full"), ==, 0);
    g_assert_cmpint(ud_dropped(6, "link_full"), ==, 0);
    while (others < N_OTHER || mads < 2 * N_MADS) {
        g_assert_true(get_msg(&f, &m, NULL));
        if (m.type == PEER_MSG_DATAGRAM) {
            others += m.datagram.dqpn == 3;
            mads += m.datagram.dqpn == 1;
        }
    }
    vg_qp_free(floods[N_FLOODS - 1].qp);
    for (unsigned i = 0; i < N_FLOODS - 1; i++) {
        vgt_side_close(&floods[i]);
    }
    vgt_side_close(&own);
    vgt_side_close(&gsi);
    vgt_side_close(&other);
    vg_daemon_stop(host[0]);
    close(f.fd);
    host[0] = vgt_daemon = NULL;
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 240);
    g_test_add_func("/hosts-shares/token", test_token);
    g_test_add_func("/hosts-shares/requests", test_requests);
    g_test_add_func("/hosts-shares/links", test_links);
    g_test_add_data_func("/hosts-shares/connections/calls", GUINT_TO_POINTER(1),
                         test_connections);
    g_test_add_data_func("/hosts-shares/connections/called", GUINT_TO_POINTER(0),
                         test_connections);
    g_test_add_func("/hosts-shares/datagrams", test_datagrams);
    return vgt_run();
}
