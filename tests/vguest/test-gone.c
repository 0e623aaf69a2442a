/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a page of a guest's memory is gone (as after an error of the machine's
 * memory) when the daemon reads or stores it.  What it finds there are zeros: they are
 * nobody's message, no result, no request, and no success; the VM is disconnected, and to
 * its peer it is silent.
 *
 * Each test has VMs of its own, as a VM's next connection has to wait after a fault.
 */
#include "vgtest.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define OLD   0xee /* what is where nothing may come */
#define LARGE (256u << 10)
#define VMS   64u

static const struct vg_conn brief = {.timeout = 8, .retry_cnt = 1};

/* A page that can go: it is in a file of its own. */
struct page {
    int fd;
};

static void map(struct vguest *g, int fd, uint64_t offset, uint64_t gpa, uint64_t size)
{
    if (size) {
        g_assert_cmpint(vg_dma_map(g, fd, offset, gpa, size, VG_DMA_RW), ==, 0);
    }
}

/* Page @k of @b is one, with what it has; once for each guest. */
static struct page take_page(struct vg_buf *b, uint32_t k)
{
    struct vguest *g = b->g;
    uint64_t gpa = b->page[k], low = g->opts.low_size;
    bool high = gpa >= VG_HIGH_GPA;
    uint64_t begin = high ? VG_HIGH_GPA : 0, size = high ? g->opts.high_size : low;
    uint64_t offset = high ? low : 0, before = gpa - begin;
    uint64_t behind = size - before - PVRDMA_PAGE_SIZE;
    uint8_t *at = (uint8_t *)b->map + (size_t)k * PVRDMA_PAGE_SIZE;
    struct page p = {memfd_create("gone", MFD_CLOEXEC)};

    g_assert_cmpint(p.fd, >=, 0);
    g_assert_cmpint(pwrite(p.fd, at, PVRDMA_PAGE_SIZE, 0), ==, PVRDMA_PAGE_SIZE);
    /* Else the daemon may look at its rings while they are not there. */
    vgt_vm(vgt_daemon, "pause", g->index);
    g_assert_cmpint(vg_dma_unmap(g, begin, size), ==, 0);
    map(g, g->memfd, offset, begin, before);
    map(g, p.fd, 0, gpa, PVRDMA_PAGE_SIZE);
    map(g, g->memfd, offset + before + PVRDMA_PAGE_SIZE, gpa + PVRDMA_PAGE_SIZE, behind);
    g_assert_true(mmap(at, PVRDMA_PAGE_SIZE, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, p.fd, 0) == at);
    vgt_vm(vgt_daemon, "resume", g->index);
    return p;
}

static void lose_page(struct page *p)
{
    g_assert_cmpint(ftruncate(p->fd, 0), ==, 0);
    close(p->fd);
}

static void open_pair(struct vgt_pair *p)
{
    static unsigned next;
    struct vgt_opts o = {.conn = brief};

    g_assert_cmpuint(next + 2, <=, VMS);
    vgt_pair_open(p, next, next + 1, &o);
    next += 2;
    for (unsigned i = 0; i < 2; i++) {
        memset(VG_MR_HOST(p->s[i].mr, 0), OLD, p->s[i].mr->buf->len);
    }
}

/* Its VM is let go, and nothing of it arrives at its peer's receives. */
static void close_gone(struct vgt_pair *p, unsigned gone)
{
    g_assert_true(vg_wait_closed(p->s[gone].g, VGT_WAIT_MS));
    vgt_expect_none(p->s[!gone].rcq, VGT_QUIET_MS(50));
    vg_disconnect(p->s[gone].g);
    vgt_pair_close(p);
    vg_daemon_check(vgt_daemon);
}

/* ---- bytes ---- */

static const struct moved {
    const char *name;
    uint32_t opcode, len;
    uint32_t page; /* which of the message's is gone */
    unsigned from; /* 0: what the owner of the page sends; 1: what is asked of it */
} moved[] = {
    {"send", PVRDMA_WR_SEND, 4096, 0, 0},
    {"send-large", PVRDMA_WR_SEND, LARGE, LARGE / 8192, 0},
    {"send-imm", PVRDMA_WR_SEND_WITH_IMM, 100, 0, 0},
    {"write", PVRDMA_WR_RDMA_WRITE, 4096, 0, 0},
    {"write-word", PVRDMA_WR_RDMA_WRITE, 8, 0, 0},
    {"write-last", PVRDMA_WR_RDMA_WRITE, LARGE, LARGE / 4096 - 1, 0},
    {"write-imm", PVRDMA_WR_RDMA_WRITE_WITH_IMM, LARGE, 1, 0},
    {"read", PVRDMA_WR_RDMA_READ, 4096, 0, 1},
    {"read-large", PVRDMA_WR_RDMA_READ, LARGE, LARGE / 8192, 1},
    {"add", PVRDMA_WR_ATOMIC_FETCH_AND_ADD, 8, 0, 1},
    {"swap", PVRDMA_WR_ATOMIC_CMP_AND_SWP, 8, 0, 1},
};

/* The memory of VM 0 that is read has gone. */
static void test_source(gconstpointer data)
{
    const struct moved *m = data;
    struct vgt_pair p;
    struct page page;
    unsigned from = m->from, to = 1;

    open_pair(&p);
    page = take_page(p.s[0].mr->buf, m->page);
    vgt_recv(&p.s[!from], 7, 0, LARGE);
    lose_page(&page);
    vgt_send(&p.s[from], 1, m->opcode, VGT_SIG, 0, m->len, &p.s[!from], 0);
    if (from == 1) {
        vgt_expect(p.s[1].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
    }
    /* Who polls the last byte has not seen it. */
    g_assert_cmpuint(*VG_MR_HOST(p.s[to].mr, m->len - 1), ==, OLD);
    close_gone(&p, 0);
}

/* The memory of VM 1 that is stored to has gone: nobody is told that it is there. */
static void test_target(gconstpointer data)
{
    const struct moved *m = data;
    struct vgt_pair p;
    struct page page;

    open_pair(&p);
    page = take_page(p.s[1].mr->buf, m->page);
    vgt_recv(&p.s[1], 7, 0, LARGE);
    lose_page(&page);
    vgt_send(&p.s[0], 1, m->opcode, VGT_SIG, 0, m->len, &p.s[1], 0);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
    close_gone(&p, 1);
}

/* ---- datagrams ---- */

static const struct datagram_case {
    const char *name;
    unsigned gone; /* 0: the sender's memory; 1: the receiver's */
    bool shared;   /* the receive is one of an SRQ */
} datagram_cases[] = {
    {"own", 0, false},
    {"shared", 0, true},
    {"target", 1, false},
    {"target-shared", 1, true},
};

/*
 * Nobody gets one of zeros.  That its receiver has no memory any more is no error of its
 * sender's: it was sent.
 */
static void test_datagram(gconstpointer data)
{
    const struct datagram_case *c = data;
    bool shared = c->shared;
    struct vgt_pair p;
    struct vg_qp_opts o = {.type = PVRDMA_QPT_UD};
    struct pvrdma_sge sge, room;
    struct vg_wr recv = {.wr_id = 7, .nsge = 1, .sge = &room};
    struct vg_wr wr = {.wr_id = 1,
                       .opcode = PVRDMA_WR_SEND,
                       .flags = VGT_SIG,
                       .nsge = 1,
                       .sge = &sge,
                       .remote_qkey = 1};
    struct vg_qp *from, *to;
    struct vg_srq *srq;
    struct pvrdma_av av;
    struct page page;

    open_pair(&p);
    from = vg_qp_new(p.s[0].pd, p.s[0].scq, p.s[0].rcq, &o);
    srq = shared ? vg_srq_new(p.s[1].pd, 16, 2, false) : NULL;
    o.srq = srq;
    to = vg_qp_new(p.s[1].pd, p.s[1].scq, p.s[1].rcq, &o);
    vg_ud_to_rts(from, 1);
    vg_ud_to_rts(to, 1);
    room = vg_sge(p.s[1].mr, 0, 4096);
    g_assert_cmpuint(srq ? vg_post_srq(srq, &recv, 1) : vg_post_recv(to, &recv, 1), ==,
                     1);
    page = take_page(p.s[c->gone].mr->buf, 0);
    sge = vg_sge(p.s[0].mr, 0, 1000);
    av = vg_av(p.s[0].pd, 0, &p.s[1].g->gid);
    wr.av = &av;
    wr.remote_qpn = to->qpn;
    lose_page(&page);
    g_assert_cmpuint(vg_post_send(from, &wr, 1), ==, 1);
    if (c->gone == 1) {
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
        g_assert_cmpuint(vg_qp_state(from), ==, PVRDMA_QPS_RTS);
    }
    g_assert_true(vg_wait_closed(p.s[c->gone].g, VGT_WAIT_MS));
    vgt_expect_none(p.s[1].rcq, VGT_QUIET_MS(50));
    vg_disconnect(p.s[c->gone].g);
    vg_qp_free(from);
    vg_qp_free(to);
    if (srq) {
        vg_srq_free(srq);
    }
    vgt_pair_close(&p);
    vg_daemon_check(vgt_daemon);
}

/* ---- requests ---- */

/* The number of requests that were posted: zero, as if old ones were posted again. */
static void test_index(void)
{
    enum { DONE = 100 }; /* of 64 places, so that some lie behind it */
    struct vgt_pair p;
    struct page page;

    open_pair(&p);
    page = take_page(p.s[0].qp->mem, 0);
    for (unsigned i = 0; i < DONE; i++) {
        vgt_recv(&p.s[1], i, 0, 64);
        vgt_complete(&p.s[0], i, PVRDMA_WR_SEND, 0, 64, NULL, 0);
        vgt_expect(p.s[1].rcq, i, PVRDMA_WC_SUCCESS);
    }
    for (unsigned i = 0; i < 32; i++) {
        vgt_recv(&p.s[1], DONE + i, 0, 64);
    }
    lose_page(&page);
    vg_ring_send(p.s[0].qp);
    close_gone(&p, 0);
}

/* The request itself, which is none of zero bytes then. */
static void test_request(void)
{
    struct pvrdma_sge sge = {0};
    struct vgt_pair p;
    struct vg_wr wr = vg_wr_of(1, PVRDMA_WR_SEND, 0, &sge);
    struct page page;
    g_autofree char *peer = NULL;

    open_pair(&p);
    peer = g_strdup_printf("vm%u", p.s[1].g->index);
    page = take_page(p.s[0].qp->mem, p.s[0].qp->sq.first / PVRDMA_PAGE_SIZE);
    sge = vg_sge(p.s[0].mr, 0, 64);
    g_assert_cmpuint(vg_queue_send(p.s[0].qp, &wr, 1), ==, 1);
    lose_page(&page);
    vg_ring_send(p.s[0].qp);
    g_assert_true(vg_wait_closed(p.s[0].g, VGT_WAIT_MS));
    g_assert_cmpint(vgt_counter(peer, "datapath", "rx_messages"), ==, 0);
    close_gone(&p, 0);
}

/* A receive: not one without room, for which its sender would be blamed. */
static void test_receive(void)
{
    struct vgt_pair p;
    struct page page;

    open_pair(&p);
    page = take_page(p.s[1].qp->mem, p.s[1].qp->rq.first / PVRDMA_PAGE_SIZE);
    vgt_recv(&p.s[1], 7, 0, 64);
    lose_page(&page);
    vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_RETRY_EXC_ERR);
    close_gone(&p, 1);
}

/* The number of receives, which is none that there can be then. */
static void test_receive_index(void)
{
    struct vgt_pair p;
    struct page page;

    open_pair(&p);
    page = take_page(p.s[1].qp->mem, 0);
    vgt_recv(&p.s[1], 7, 0, 64);
    vgt_complete(&p.s[0], 1, PVRDMA_WR_SEND, 0, 64, NULL, 0);
    vgt_expect(p.s[1].rcq, 7, PVRDMA_WC_SUCCESS);
    lose_page(&page);
    vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 64, NULL, 0);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_RETRY_EXC_ERR);
    close_gone(&p, 1);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {
        .n_vms = VMS, .workers = 2, .poll_us = -1, .daemon_keys = "require-sealed=false"};

    vgt_init(&argc, &argv, 110);
    vgt_daemon = vg_daemon_start(&o);
    for (unsigned i = 0; i < G_N_ELEMENTS(moved); i++) {
        g_autofree char *source = g_strdup_printf("/gone/source/%s", moved[i].name);
        g_autofree char *target = g_strdup_printf("/gone/target/%s", moved[i].name);

        g_test_add_data_func(source, &moved[i], test_source);
        if (moved[i].from == 0) {
            g_test_add_data_func(target, &moved[i], test_target);
        }
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(datagram_cases); i++) {
        g_autofree char *name =
            g_strdup_printf("/gone/datagram/%s", datagram_cases[i].name);

        g_test_add_data_func(name, &datagram_cases[i], test_datagram);
    }
    g_test_add_func("/gone/index", test_index);
    g_test_add_func("/gone/request", test_request);
    g_test_add_func("/gone/receive", test_receive);
    g_test_add_func("/gone/receive-index", test_receive_index);
    return vgt_run();
}
