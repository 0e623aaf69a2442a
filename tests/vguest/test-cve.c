/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: one for each CVE of the pvrdma device that QEMU once had.
 * Above each test stands the check without which it fails: tried by taking it
 * out.
 */
#include "vgtest.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

/* The daemon is alive, and a guest that behaves gets its work done. */
static void assert_sound(void)
{
    struct vgt_pair p;

    vg_daemon_check(vgt_daemon);
    vgt_pair_open(&p, 2, 3, NULL);
    vgt_fill(VG_MR_HOST(p.s[0].mr, 0), 5000, 1);
    vgt_recv(&p.s[1], 1, 0, 5000);
    vgt_send(&p.s[0], 2, PVRDMA_WR_SEND, VGT_SIG, 0, 5000, NULL, 0);
    vgt_expect(p.s[1].rcq, 1, PVRDMA_WC_SUCCESS);
    vgt_expect(p.s[0].scq, 2, PVRDMA_WC_SUCCESS);
    vgt_check(VG_MR_HOST(p.s[1].mr, 0), 5000, 1);
    vgt_pair_close(&p);
}

static void assert_no_growth(const struct vg_usage *before, const struct vg_usage *after,
                             long kib)
{
    if (VGT_PLAIN_BUILD) {
        g_assert_cmpint(after->rss_anon_kib, <, before->rss_anon_kib + kib);
    }
}

/* ---- CVE-2018-20123: memory leak when realize fails half-way ---- */

/* The daemon closes a connection while it has not seen the last one's end. */
static void connect_until(struct vguest *g, int (*then)(struct vguest *))
{
    for (unsigned i = 0; i < 2000; i++) {
        int err = vg_connect(g);

        g_assert_cmpint(err, ==, 0);
        err = then ? then(g) : 0;
        if (err == 0) {
            return;
        }
        g_assert_cmpint(err, ==, -EPIPE);
        vg_disconnect(g);
        g_usleep(1000);
    }
    g_error("VM %u stays occupied", g->index);
}

static void fail_attach(unsigned step)
{
    struct vguest *g = vguest_open(vgt_daemon, 0, NULL);
    int efd[2] = {eventfd(0, 0), eventfd(0, 0)};

    connect_until(g, step < 3 ? NULL : step < 6 ? vg_version : vg_attach);
    switch (step) {
    case 0: /* not a word */
        break;
    case 1: /* cut in the middle of VERSION */
        vg_raw_send(g->sock, "\0\0\1\0\300", 5, NULL, 0);
        break;
    case 2: /* descriptors on a message that takes none */
        vg_raw_send(g->sock, "\0\0\1\0\20\0\0\0\0\0\0\0\0\0\0\0", 16, efd, 2);
        break;
    case 3:
        break;
    case 4: /* map with a descriptor that is no memory */
        g_assert_cmpint(vg_dma_map(g, efd[0], 0, 0, 1 << 20, 3), >, 0);
        break;
    case 5: /* map, then overlap */
        g_assert_cmpint(vg_dma_map(g, g->memfd, 0, 0, 1 << 20, 3), ==, 0);
        g_assert_cmpint(vg_dma_map(g, g->memfd, 0, 4096, 1 << 20, 3), ==, EEXIST);
        break;
    case 6: /* interrupts with too many descriptors */
        g_assert_cmpint(vg_set_irqs(g, VG_IRQ_EVENTFDS, 0, 1, efd, 2), >, 0);
        break;
    case 7: /* interrupts that are none */
        g_assert_cmpint(vg_set_irqs(g, VG_IRQ_EVENTFDS, 0, 1, &g->memfd, 1), >, 0);
        break;
    case 8: /* a shared region whose rings do not exist */
        vg_setup_dsr(g);
        g->dsr->cq_ring.pdir_dma = 0x7ffffffff000ull;
        g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), >, 0);
        break;
    }
    close(efd[0]);
    close(efd[1]);
    vguest_crash(g);
}

/* Check: every message's descriptors that nobody took are closed, whatever
 * became of it (close_fds in frontend/conn.c). */
static void test_2018_20123(void)
{
    struct vg_usage before, after;

    for (unsigned i = 0; i < 20; i++) {
        fail_attach(i % 9);
    }
    assert_sound();
    vgt_usage_settled(&before);
    for (unsigned i = 0; i < 900; i++) {
        fail_attach(i % 9);
        if (i % 9 == 8) {
            /* The daemon has seen the last one go. */
            fail_attach(0);
        }
    }
    vgt_usage_returns(&before);
    vg_daemon_usage(vgt_daemon, &after);
    /* What an attachment allocates at the least, 900 times. */
    assert_no_growth(&before, &after, 450);
    g_test_message("growth %ld KiB", after.rss_anon_kib - before.rss_anon_kib);
    assert_sound();
}

/* ---- CVE-2018-20124: num_sge of a WQE not checked ---- */

/* Check: num_sge against the queue's max_sge (fetch and check in
 * datapath/requester.c, claim_recv in datapath/responder.c). */
static void test_2018_20124(void)
{
    static const uint32_t counts[] = {5, 8, 17, 255, 65536, 0x7fffffff, 0xffffffff};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        struct pvrdma_sge sge[8];
        struct vg_wr wr = {.wr_id = i,
                           .opcode = PVRDMA_WR_RDMA_WRITE,
                           .remote_addr = p.s[1].mr->buf->va,
                           .rkey = p.s[1].mr->rkey,
                           .nsge = counts[i],
                           .sge = sge};

        for (unsigned k = 0; k < 8; k++) {
            sge[k] = vg_sge(p.s[0].mr, 0, 8);
        }
        g_assert_cmpuint(vg_post_send(p.s[0].qp, &wr, 1), ==, 1);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_LOC_QP_OP_ERR);
        vgt_pair_reconnect(&p, NULL);

        /* The same in a receive WQE. */
        wr.nsge = counts[i];
        g_assert_cmpuint(vg_post_recv(p.s[1].qp, &wr, 1), ==, 1);
        vgt_send(&p.s[0], i, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
        vgt_expect(p.s[0].scq, i, PVRDMA_WC_REM_OP_ERR);
        g_assert_cmpuint(vg_qp_state(p.s[1].qp), ==, PVRDMA_QPS_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    vgt_pair_close(&p);
    assert_sound();
}

/* ---- CVE-2018-20125: page counts of CQ and QP rings not checked ---- */

static int try_cq(struct vguest *g, uint64_t pdir, uint32_t cqe, uint32_t n)
{
    struct pvrdma_cmd_create_cq req = {
        .pdir_dma = pdir, .cqe = cqe, .nchunks = n, .ctx_handle = g->uctx};
    struct pvrdma_resp_create_cq resp;

    return vg_create_cq(g, &req, &resp);
}

static int try_qp(struct vg_pd *pd, struct vg_cq *cq, uint64_t pdir, uint32_t send_wr,
                  uint32_t recv_wr, uint32_t total, uint32_t send)
{
    struct pvrdma_cmd_create_qp req = {.pdir_dma = pdir,
                                       .pd_handle = pd->handle,
                                       .send_cq_handle = cq->handle,
                                       .recv_cq_handle = cq->handle,
                                       .max_send_wr = send_wr,
                                       .max_recv_wr = recv_wr,
                                       .max_send_sge = 4,
                                       .max_recv_sge = 4,
                                       .total_chunks = total,
                                       .send_chunks = send,
                                       .qp_type = PVRDMA_QPT_RC};
    struct pvrdma_resp_create_qp resp;

    return vg_create_qp(pd->g, &req, &resp);
}

/* Check: page counts are recomputed from the numbers of entries, a mismatch is
 * refused (cq_check in verbs/cq.c, qp_layout in verbs/qp.c; each tried). */
static void test_2018_20125(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);
    struct vg_cq *cq = vg_cq_new(pd, 64);
    struct vg_buf *mem = vg_buf_new(g, 0, 40 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    uint64_t pdir = vg_pdir_new(g, mem->page, 40);

    /* 64 CQEs need 1 + 1 pages, 1024 need 1 + 16. */
    g_assert_cmpint(try_cq(g, pdir, 64, 1), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 64, 0), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 1024, 16), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 1024, 0xffffffff), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 0, 2), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 0xffffffff, 2), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 0x80000000u, 2), >, 0);
    /* As many bytes as 32 bits call none. */
    g_assert_cmpint(try_cq(g, pdir, 0x80000000u, 1), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 0x04000000u, 1), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 0x04000001u, 2), >, 0);
    g_assert_cmpint(try_cq(g, pdir, 64, 200), >, 0); /* pdir ends at 40 */
    /* 64 send WQEs of 256 bytes: 4 pages; 64 of 128 to receive: 2. */
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 6, 4), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 7, 3), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 7, 6), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 7, 65535), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 0, 0), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 1, 0), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 0, 0, 7, 4), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 0xffffffff, 1, 7, 4), >, 0);
    g_assert_cmpint(try_qp(pd, cq, pdir, 1, 0x80000000u, 7, 4), >, 0);
    /* Page counts are 16 bits wide: 2^16 + 7 pages look like 7. */
    g_assert_cmpint(try_qp(pd, cq, pdir, 1 << 20, 64, 7, 4), >, 0);
    vg_pdir_free(g, pdir, 40);
    vg_buf_free(mem);
    vg_cq_free(cq);
    vg_pd_free(pd);
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2018-20126: leaks on the error paths of CREATE_CQ and CREATE_QP ----
 */

/* Check: a page list that cannot be read is given back (verbs_ring_init in
 * verbs/verbs.c). */
static void test_2018_20126(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);
    struct vg_cq *cq = vg_cq_new(pd, 64);
    struct vg_buf *mem = vg_buf_new(g, 0, 300 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    uint64_t pdir;
    struct vg_usage before, after;
    uint64_t *entry;

    /* The last page of all is not aligned: found out at the very end. */
    pdir = vg_pdir_new(g, mem->page, 300);
    entry = vg_ptr(g, *(uint64_t *)vg_ptr(g, pdir));
    entry[256] += 8;
    entry[6] += 8;
    for (unsigned i = 0; i < 2000; i++) {
        struct pvrdma_cmd_create_mr mr = {.start = 0,
                                          .length = 300ull << 12,
                                          .pdir_dma = pdir,
                                          .nchunks = 300,
                                          .pd_handle = pd->handle};
        struct pvrdma_resp_create_mr resp;

        g_assert_cmpint(try_cq(g, pdir, 16384, 257), >, 0);
        g_assert_cmpint(try_qp(pd, cq, pdir, 64, 64, 7, 4), >, 0);
        g_assert_cmpint(vg_create_mr(g, &mr, &resp), >, 0);
        if (i == 199) {
            vgt_usage_settled(&before);
        }
    }
    vg_daemon_usage(vgt_daemon, &after);
    assert_no_growth(&before, &after, 2000);
    /* Nothing is counted as used: the PD and the CQ can go. */
    vg_cq_free(cq);
    vg_pd_free(pd);
    vgt_assert_no_objects("vm0");
    vg_pdir_free(g, pdir, 300);
    vg_buf_free(mem);
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2018-20191: no read function for the doorbell BAR ---- */

/* Check: accesses are held against the region's size, and each BAR has an
 * answer to reads (region_check, region_read in frontend/regions.c). */
static void test_2018_20191(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    uint8_t buf[4096];

    for (unsigned bar = 0; bar < 3; bar++) {
        for (unsigned size = 1; size <= 16; size++) {
            for (unsigned off = 0; off < 16; off++) {
                int err = vg_region_read(g, bar, off, buf, size);

                g_assert_cmpint(err, >=, 0);
                err = vg_region_write(g, bar, 0x800 + off, buf, size, false);
                g_assert_cmpint(err, >=, 0);
            }
        }
        g_assert_cmpint(vg_region_read(g, bar, 0, buf, 4), ==, 0);
        g_assert_cmpint(vg_region_read(g, bar, -4ull, buf, 4), >, 0);
        g_assert_cmpint(vg_region_read(g, bar, 1ull << 40, buf, 4), >, 0);
        g_assert_cmpint(vg_region_read(g, bar, 0xffffffffull, buf, 4), >, 0);
    }
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2018-20216: endless walk over a ring ---- */

/* Check: an index that is none, or claims more than the ring holds, stops the
 * queue (wq_pending in datapath/ring.c). */
static void test_2018_20216(void)
{
    static const uint32_t bad[] = {128, 129, 1000, 0x7fffffff, 0x80000000u, 0xffffffff};
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL); /* 64 WQEs: indices run to 127 */
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        struct vg_usage a, b;

        *p.s[0].qp->sq.prod_tail = bad[i];
        vg_ring_send(p.s[0].qp);
        vgt_expect_event(p.s[0].g, PVRDMA_EVENT_QP_FATAL, p.s[0].qp->handle);
        *p.s[0].qp->rq.prod_tail = bad[i];
        vg_ring_recv(p.s[0].qp);
        g_usleep(20000);
        vg_daemon_usage(vgt_daemon, &a);
        g_usleep(200000);
        vg_daemon_usage(vgt_daemon, &b);
        g_assert_cmpint(b.cpu_ticks - a.cpu_ticks, <, 10);
        vgt_pair_reconnect(&p, NULL);

        /* The peer's receive ring: found by our SEND. */
        *p.s[1].qp->rq.prod_tail = bad[i];
        vgt_send(&p.s[0], 1, PVRDMA_WR_SEND, 0, 0, 8, NULL, 0);
        vgt_expect(p.s[0].scq, 1, PVRDMA_WC_REM_OP_ERR);
        vgt_pair_reconnect(&p, NULL);
    }
    /* In range, but more than the ring holds: 100 entries of 64. */
    *p.s[0].qp->sq.prod_tail = 100;
    vg_ring_send(p.s[0].qp);
    vgt_expect_event(p.s[0].g, PVRDMA_EVENT_QP_FATAL, p.s[0].qp->handle);
    vgt_pair_close(&p);
    assert_sound();
}

/* ---- CVE-2021-3582: MR length not checked against its pages ---- */

static int try_mr(struct vg_pd *pd, uint64_t pdir, uint64_t start, uint64_t length,
                  uint32_t nchunks, uint32_t flags)
{
    struct pvrdma_cmd_create_mr req = {.start = start,
                                       .length = length,
                                       .pdir_dma = pdir,
                                       .pd_handle = pd->handle,
                                       .access_flags = VG_ACCESS_ALL,
                                       .flags = flags,
                                       .nchunks = nchunks};
    struct pvrdma_resp_create_mr resp;

    return vg_create_mr(pd->g, &req, &resp);
}

/* Check: nchunks must be the pages that start and length cover (user_mr_check
 * in verbs/mr.c). */
static void test_2021_3582(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);
    struct vg_buf *mem = vg_buf_new(g, 0, 4 * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    uint64_t pdir = vg_pdir_new(g, mem->page, 4);

    g_assert_cmpint(try_mr(pd, pdir, 0, 4 * 4096 + 1, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 4095, 3 * 4096 + 2, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 1, 4 * 4096, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, 1ull << 40, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, -1ull, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, -1ull, 0, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, -4096ull, 8192, 2, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, -4096ull, 4 * 4096, 4, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, 0xffffffffull << 12, 0xffffffff, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, (262145ull << 12), 262145, 0), >, 0);
    g_assert_cmpint(try_mr(pd, 0xdead0000ull, 0, 4096, 1, 0), >, 0);
    g_assert_cmpint(try_mr(pd, pdir, 0, 0x1000, 1, PVRDMA_MR_FLAG_DMA), >, 0);
    /* A right one still works. */
    vg_mr_free(vg_mr_alloc(pd, 0x1234567, 4 * 4096 + 1, VG_ACCESS_ALL));
    vg_pdir_free(g, pdir, 4);
    vg_buf_free(mem);
    vg_pd_free(pd);
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2021-3607: page count of the device rings not checked ---- */

static int try_dsr(struct vguest *g)
{
    int err = vg_write_dsr(g, g->dsr_gpa);

    if (!err) {
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
        err = vg_reg_read(g, PVRDMA_REG_ERR);
    }
    return err;
}

/* Check: num_pages of both rings within 2..EVENT_RING_MAX_PAGES before anything
 * is read (ring_pages_read in device/device.c). */
static void test_2021_3607(void)
{
    static const uint32_t bad[] = {0,          1,          65,          513,       65536,
                                   0x40000001, 0x7fffffff, 0x80000000u, 0xffffffff};
    struct vguest *g = vguest_open(vgt_daemon, 0, NULL);
    struct vg_usage before, after;

    g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
    vgt_usage_settled(&before);
    for (unsigned i = 0; i < 2 * G_N_ELEMENTS(bad); i++) {
        vg_setup_dsr(g);
        if (i & 1) {
            g->dsr->async_ring.num_pages = bad[i / 2];
        } else {
            g->dsr->cq_ring.num_pages = bad[i / 2];
        }
        g_assert_cmpint(try_dsr(g), >, 0);
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    }
    vg_daemon_usage(vgt_daemon, &after);
    assert_no_growth(&before, &after, 8192);
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2021-3608: a pointer used uninitialised on the error path ---- */

/* Check: nothing of a DSR is taken over before all of it was checked (dsr_load
 * in device/device.c). */
static void test_2021_3608(void)
{
    struct vguest *g = vguest_open(vgt_daemon, 0, NULL);
    uint64_t rubbish, zero, far;

    g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
    rubbish = vg_alloc_page(g);
    for (unsigned i = 0; i < PVRDMA_PAGE_SIZE / 8; i++) {
        ((uint64_t *)vg_ptr(g, rubbish))[i] = i % 3 ? -1ull : 0x4000000000000ull;
    }
    zero = vg_alloc_page(g);
    far = vg_alloc_page(g);
    for (unsigned i = 0; i < PVRDMA_PAGE_SIZE / 8; i++) {
        ((uint64_t *)vg_ptr(g, far))[i] = 0x4000000000000ull;
    }
    for (unsigned i = 0; i < 49; i++) {
        uint64_t *dir, good;

        vg_setup_dsr(g);
        dir = vg_ptr(g, g->async_pdir);
        good = *dir;
        switch (i % 7) {
        case 0:
            g->dsr->async_ring.pdir_dma = rubbish;
            break;
        case 1:
            g->dsr->async_ring.pdir_dma = 0xfffffffffffff000ull;
            break;
        case 2:
            g->dsr->cq_ring.pdir_dma = rubbish;
            break;
        case 3:
            g->dsr->cmd_slot_dma = 0x10000000000ull;
            break;
        case 4:
            g->dsr->resp_slot_dma = -8ull;
            break;
        case 5: /* a ring at address 0 twice, where there is memory: its own fault */
            g->dsr->cq_ring.pdir_dma = zero;
            break;
        case 6: /* a directory and tables that are right, pages where no memory is */
            *dir = far;
            break;
        }
        if (i % 7 == 5) {
            g_assert_cmpint(try_dsr(g), ==, 0);
        } else {
            g_assert_cmpint(try_dsr(g), >, 0);
        }
        *dir = good;
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_UNQUIESCE);
        vg_reg_write(g, PVRDMA_REG_REQUEST, 0);
        if (i & 1) {
            vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
        }
    }
    vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    vguest_free(g);
    assert_sound();
}

/* ---- CVE-2022-1050: the DSR rewritten, commands after teardown ---- */

/* Check: commands need a valid DSR and an active device (command_execute in
 * device/command.c); a new DSR ends what hung on the old one (dsr_write in
 * device/device.c; each tried). */
static void test_2022_1050(void)
{
    struct vgt_pair p;
    struct vguest *g;
    struct pvrdma_qp_attr attr;
    struct pvrdma_cmd_create_pd create_pd = {.hdr.cmd = PVRDMA_CMD_CREATE_PD};
    uint64_t dsr2;
    uint32_t pd = 0;

    /* Commands before there is a DSR, and before ACTIVATE. */
    g = vguest_open(vgt_daemon, 0, NULL);
    g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
    vg_reg_write(g, PVRDMA_REG_REQUEST, 0);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_REG_ERR), !=, 0);
    vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_REG_ERR), !=, 0);
    vg_setup_dsr(g);
    g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), ==, 0);
    memcpy(vg_ptr(g, g->dsr->cmd_slot_dma), &create_pd, sizeof(create_pd));
    vg_reg_write(g, PVRDMA_REG_REQUEST, 0);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_REG_ERR), !=, 0);
    vguest_free(g);

    vgt_pair_open(&p, 0, 1, NULL);
    g = p.s[0].g;
    /* Traffic in flight, the DSR replaced under it: by itself, by rubbish, by
     * a copy elsewhere. */
    for (unsigned i = 0; i < 32; i++) {
        vgt_send(&p.s[0], i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 500000, &p.s[1], 0);
    }
    vg_write_dsr(g, 0xffffffffffff0000ull);
    vg_write_dsr(g, 0x7000000000ull);
    vg_write_dsr(g, g->dsr_gpa + 8);
    vg_write_dsr(g, (64 << 20) - 64); /* runs over the end of RAM */
    dsr2 = vg_alloc_page(g);
    memcpy(vg_ptr(g, dsr2), g->dsr, sizeof(*g->dsr));
    vg_write_dsr(g, dsr2);
    g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), ==, 0);
    /* What hung on the old one is gone. */
    vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    g_assert_cmpint(vg_query_qp(g, p.s[0].qp->handle, &attr), >, 0);

    /* Teardown, then commands and doorbells for what was there.  A slot address
     * that is 0 by then would find a command, too. */
    memcpy(vg_ptr(g, 0), &create_pd, sizeof(create_pd));
    vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    vg_ring_send(p.s[0].qp);
    vg_ring_recv(p.s[0].qp);
    vg_cq_arm(p.s[0].scq, false);
    g_assert_cmpint(vg_create_pd(g, 0, &pd), >, 0);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_QP, p.s[0].qp->handle), >, 0);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_CQ, p.s[0].scq->handle), >, 0);
    /* No memory of the guest is touched from here on. */
    memset(p.s[0].scq->mem->host, 0x3c, p.s[0].scq->mem->len);
    g_usleep(50000);
    for (uint64_t i = 0; i < p.s[0].scq->mem->len; i++) {
        g_assert_cmpuint(p.s[0].scq->mem->host[i], ==, 0x3c);
    }
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    /* Handles of the former life are not those of this one. */
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, p.s[0].mr->handle), >, 0);
    g->up = false; /* objects are gone: free our side only */
    vgt_pair_close(&p);
    assert_sound();
}

/* ---- CVE-2023-1544: more ring pages than one table holds ---- */

/* Check: no more than 512 entries are read from one table (pagedir_read in
 * device/pagedir.c); the device rings have the bounds of 2021-3607. */
static void test_2023_1544(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);
    struct vg_cq *cq;
    struct vg_buf *mem = vg_buf_new(g, 0, 600 * PVRDMA_PAGE_SIZE, VG_CONTIG);
    uint64_t pdir = vg_pdir_new(g, mem->page, 600);
    uint64_t *dir = vg_ptr(g, pdir), second = dir[1];

    /* A CQ over more than one table is right and works ... */
    cq = vg_cq_new(pd, 65536);
    vg_cq_free(cq);
    /* ... but not if the second table is missing or no guest memory. */
    dir[1] = 0;
    (void)try_mr(pd, pdir, 0, 600ull << 12, 600, 0);
    dir[1] = 0xfffffffff000ull;
    g_assert_cmpint(try_mr(pd, pdir, 0, 600ull << 12, 600, 0), >, 0);
    dir[1] = second + 4; /* entries would run over the table's end */
    g_assert_cmpint(try_mr(pd, pdir, 0, 600ull << 12, 600, 0), >, 0);
    dir[1] = second + 8; /* and these would even be aligned */
    g_assert_cmpint(try_mr(pd, pdir, 0, 600ull << 12, 600, 0), >, 0);
    dir[1] = second;
    g_assert_cmpint(try_mr(pd, pdir, 0, 600ull << 12, 600, 0), ==, 0);
    vg_pdir_free(g, pdir, 600);
    vg_buf_free(mem);
    vguest_free(g); /* with the MR and its PD still there */

    g = vguest_open(vgt_daemon, 0, NULL);
    g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
    for (uint32_t n = 512; n < 2000; n += 37) {
        vg_setup_dsr(g);
        g->dsr->async_ring.num_pages = n;
        g_assert_cmpint(try_dsr(g), >, 0);
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    }
    vguest_free(g);
    assert_sound();
    g_free(pd);
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {.n_vms = 4, .poll_us = -1};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/cve/2018-20123", test_2018_20123);
    g_test_add_func("/cve/2018-20124", test_2018_20124);
    g_test_add_func("/cve/2018-20125", test_2018_20125);
    g_test_add_func("/cve/2018-20126", test_2018_20126);
    g_test_add_func("/cve/2018-20191", test_2018_20191);
    g_test_add_func("/cve/2018-20216", test_2018_20216);
    g_test_add_func("/cve/2021-3582", test_2021_3582);
    g_test_add_func("/cve/2021-3607", test_2021_3607);
    g_test_add_func("/cve/2021-3608", test_2021_3608);
    g_test_add_func("/cve/2022-1050", test_2022_1050);
    g_test_add_func("/cve/2023-1544", test_2023_1544);
    return vgt_run();
}
