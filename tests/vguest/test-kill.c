/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a VM is killed under traffic.
 *
 * Each round a child process attaches VM 0, connects two QPs to VM 1, which
 * this process holds, and streams WRITEs and SENDs, while we stream WRITEs and
 * SENDs to it.  Then it gets SIGKILL.  Our work must complete with errors (or
 * flushes), never hang, and the daemon must return to the descriptors, guest
 * mappings, threads and objects it had before.
 *
 * A hundred rounds unless asked for more or less, see vgt_rounds().
 */
#include "vgtest.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define NQP   2
#define DEPTH 8
#define LEN   200000u

struct address {
    uint32_t qpn[NQP];
    uint64_t va;
    uint32_t rkey;
};

struct end {
    struct vgt_side s;
    struct vg_qp *qp[NQP];
    struct address me, other;
};

/* A VM that dies must not be waited for longer than this. */
static const struct vg_conn conn = {.timeout = 8, .retry_cnt = 3};

static void end_open(struct end *e, unsigned vm)
{
    struct vgt_opts o = {.cqe = 256, .mr_len = 4 * LEN};

    vgt_side_open(&e->s, vm, &o, vm);
    for (unsigned q = 0; q < NQP; q++) {
        e->qp[q] = vg_qp_new(e->s.pd, e->s.scq, e->s.rcq,
                             &(struct vg_qp_opts){.send_wr = DEPTH, .recv_wr = DEPTH});
        e->me.qpn[q] = e->qp[q]->qpn;
    }
    e->me.va = e->s.mr->buf->va;
    e->me.rkey = e->s.mr->rkey;
}

static bool exchange(struct end *e, int sock)
{
    return write(sock, &e->me, sizeof(e->me)) == sizeof(e->me) &&
           read(sock, &e->other, sizeof(e->other)) == sizeof(e->other);
}

static void end_connect(struct end *e, unsigned peer_vm)
{
    struct pvrdma_gid gid = vg_gid(peer_vm);

    for (unsigned q = 0; q < NQP; q++) {
        vg_qp_reset_to_rts(e->qp[q], &gid, e->other.qpn[q], e->other.qpn[q], e->me.qpn[q],
                           &conn);
    }
}

static void refill_one(struct end *e, unsigned q)
{
    struct pvrdma_sge ssge = vg_sge(e->s.mr, 0, LEN);
    struct pvrdma_sge rsge = vg_sge(e->s.mr, 2 * LEN, LEN);
    struct vg_wr rwr = {.nsge = 1, .sge = &rsge};
    struct vg_wr wr[2] = {
        {.opcode = PVRDMA_WR_RDMA_WRITE,
         .flags = VGT_SIG,
         .nsge = 1,
         .sge = &ssge,
         .remote_addr = e->other.va + LEN,
         .rkey = e->other.rkey},
        {.opcode = PVRDMA_WR_SEND, .flags = VGT_SIG, .nsge = 1, .sge = &ssge}};

    /* One ring's worth: a queue that is flushed never gets full, but the CQ does. */
    for (unsigned i = 0; i < DEPTH && vg_post_recv(e->qp[q], &rwr, 1); i++) {
    }
    for (unsigned i = 0; i < DEPTH / 2 && vg_post_send(e->qp[q], wr, 2); i++) {
    }
}

/* Keep both rings of all QPs full. */
static void refill(struct end *e)
{
    for (unsigned q = 0; q < NQP; q++) {
        refill_one(e, q);
    }
}

/* The child: until it is killed. */
static void victim(int sock)
{
    struct end e;
    char c = 'x';

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memset(&e, 0, sizeof(e));
    end_open(&e, 0);
    if (!exchange(&e, sock)) {
        _exit(1);
    }
    end_connect(&e, 1);
    if (write(sock, &c, 1) != 1 || read(sock, &c, 1) != 1) {
        _exit(1);
    }
    for (;;) {
        struct pvrdma_cqe cqe;

        refill(&e);
        while (vg_cq_poll(e.s.scq, &cqe, 1) == 1 || vg_cq_poll(e.s.rcq, &cqe, 1) == 1) {
        }
    }
}

/* Run until both QPs had traffic each way; false: an error came first. */
static void stream(struct end *e, unsigned completions)
{
    struct pvrdma_cqe cqe;
    unsigned sent = 0, received = 0;
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (sent < completions || received < completions) {
        refill(e);
        while (vg_cq_poll(e->s.scq, &cqe, 1) == 1) {
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            sent++;
        }
        while (vg_cq_poll(e->s.rcq, &cqe, 1) == 1) {
            g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
            received++;
        }
        g_assert_cmpint(vg_now_ns(), <, end);
    }
}

/* Everything posted comes back; the first failure of a QP says why. */
static void drain(struct end *e)
{
    bool failed[NQP] = {false}, empty = false;
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    while (!empty) {
        struct pvrdma_cqe cqe;

        /* Until the daemon has seen the VM go, its memory still takes data. */
        for (unsigned q = 0; q < NQP; q++) {
            if (!failed[q]) {
                refill_one(e, q);
            }
        }

        while (vg_cq_poll(e->s.scq, &cqe, 1) == 1) {
            unsigned q = cqe.qp == e->qp[1]->handle;

            if (cqe.status == PVRDMA_WC_SUCCESS) {
                g_assert_false(failed[q]);
            } else if (!failed[q]) {
                /* Silence of the peer; or its memory went first. */
                g_assert_true(cqe.status == PVRDMA_WC_RETRY_EXC_ERR ||
                              cqe.status == PVRDMA_WC_REM_OP_ERR ||
                              cqe.status == PVRDMA_WC_REM_ACCESS_ERR);
                failed[q] = true;
            } else {
                g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_WR_FLUSH_ERR);
            }
        }
        while (vg_cq_poll(e->s.rcq, &cqe, 1) == 1) {
            g_assert_true(cqe.status == PVRDMA_WC_SUCCESS ||
                          cqe.status == PVRDMA_WC_WR_FLUSH_ERR);
        }
        empty = true;
        for (unsigned q = 0; q < NQP; q++) {
            empty = empty && failed[q] &&
                    *e->qp[q]->sq.cons_head == *e->qp[q]->sq.prod_tail &&
                    *e->qp[q]->rq.cons_head == *e->qp[q]->rq.prod_tail;
        }
        if (vg_now_ns() > end) {
            for (unsigned q = 0; q < NQP; q++) {
                struct vg_qp *qp = e->qp[q];

                g_test_message("QP %u: %s, state %u, send ring %u/%u, receive "
                               "ring %u/%u",
                               q, failed[q] ? "failed" : "no error", vg_qp_state(qp),
                               *qp->sq.cons_head, *qp->sq.prod_tail, *qp->rq.cons_head,
                               *qp->rq.prod_tail);
            }
            g_error("the killed VM's peer does not get its work back");
        }
        g_usleep(100);
    }
    for (unsigned q = 0; q < NQP; q++) {
        g_assert_cmpuint(vg_qp_state(e->qp[q]), ==, PVRDMA_QPS_ERR);
    }
}

static void end_close(struct end *e)
{
    for (unsigned q = 0; q < NQP; q++) {
        vg_qp_free(e->qp[q]);
    }
    vgt_side_close(&e->s);
}

static void one_round(GRand *r)
{
    struct end e;
    int pair[2], status;
    pid_t pid;
    char c;

    memset(&e, 0, sizeof(e));
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), ==, 0);
    pid = fork();
    g_assert_cmpint(pid, >=, 0);
    if (pid == 0) {
        close(pair[0]);
        victim(pair[1]);
        _exit(0);
    }
    close(pair[1]);
    end_open(&e, 1);
    g_assert_true(exchange(&e, pair[0]));
    end_connect(&e, 0);
    g_assert_cmpint(write(pair[0], "x", 1), ==, 1);
    g_assert_cmpint(read(pair[0], &c, 1), ==, 1);
    stream(&e, 10 + g_rand_int(r) % 20);
    g_usleep(g_rand_int(r) % 3000);
    g_assert_cmpint(kill(pid, SIGKILL), ==, 0);
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(pair[0]);
    drain(&e);
    end_close(&e);
}

static void test_kill(void)
{
    unsigned rounds = vgt_rounds(100);
    GRand *r = g_rand_new_with_seed(4);
    struct vg_usage before, after;

    one_round(r);
    vgt_usage_settled(&before);
    for (unsigned i = 0; i < rounds; i++) {
        one_round(r);
    }
    vgt_usage_returns(&before);
    vgt_assert_no_objects("vm0");
    vgt_assert_no_objects("vm1");
    vg_daemon_usage(vgt_daemon, &after);
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(after.rss_anon_kib, <, before.rss_anon_kib + 4096);
    }
    g_test_message("%u rounds: %u fds, %u guest mappings, %u threads before and "
                   "after; RssAnon %ld -> %ld KiB",
                   rounds, before.fds, before.maps, before.threads, before.rss_anon_kib,
                   after.rss_anon_kib);
    g_rand_free(r);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 300);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_func("/kill/under-traffic", test_kill);
    return vgt_run();
}
