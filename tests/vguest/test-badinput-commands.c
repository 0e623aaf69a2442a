/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: commands that a guest should not give: with handles that are none, more
 * than go, with page directories that lie, for memory that is a device's (see
 * badinput.h).
 */
#include "badinput.h"

#include <errno.h>
#include <string.h>

#define NOWHERE (1ull << 50)

/* Handles that are none, another's, or of a thing that is still in use. */
static void bad_handles(void)
{
    static const uint32_t none[] = {0, 77, UINT32_MAX};
    struct pvrdma_resp_create_mr mr_resp;
    struct pvrdma_resp_create_cq cq_resp;
    struct pvrdma_resp_create_qp qp_resp;
    struct pvrdma_qp_attr attr;
    struct tally t;
    struct vgt_pair p;
    struct vguest *g;
    unsigned n = 0;

    vgt_pair_open(&p, 0, 1, NULL);
    g = p.s[0].g;
    t = tally(0, COMMANDS);
    for (unsigned i = 0; i < G_N_ELEMENTS(none); i++) {
        struct pvrdma_cmd_create_mr mr = {.start = VA,
                                          .length = 4096,
                                          .pd_handle = none[i],
                                          .access_flags = VG_ACCESS_ALL,
                                          .nchunks = 1,
                                          .pdir_dma = p.s[0].mr->pdir};
        struct pvrdma_cmd_create_cq cq = {.ctx_handle = none[i] ? none[i] : 78,
                                          .cqe = 64,
                                          .nchunks = 2,
                                          .pdir_dma = p.s[0].mr->pdir};
        struct pvrdma_cmd_create_qp qp = {.pd_handle = none[i],
                                          .send_cq_handle = p.s[0].scq->handle,
                                          .recv_cq_handle = p.s[0].rcq->handle,
                                          .max_send_wr = 16,
                                          .max_recv_wr = 16,
                                          .max_send_sge = 1,
                                          .max_recv_sge = 1,
                                          .qp_type = PVRDMA_QPT_RC,
                                          .total_chunks = 3,
                                          .send_chunks = 1,
                                          .pdir_dma = p.s[0].mr->pdir};

        g_assert_cmpint(vg_create_mr(g, &mr, &mr_resp), >, 0);
        g_assert_cmpint(vg_create_cq(g, &cq, &cq_resp), >, 0);
        g_assert_cmpint(vg_create_qp(g, &qp, &qp_resp), >, 0);
        g_assert_cmpint(vg_query_qp(g, none[i], &attr), >, 0);
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_QP, none[i]), >, 0);
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_PD, none[i]), >, 0);
        n += 6;
    }
    /* In use: by traffic, too. */
    vgt_send(&p.s[0], 1, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 400000, &p.s[1], 0);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_CQ, p.s[0].scq->handle), ==, EBUSY);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_PD, p.s[0].pd->handle), ==, EBUSY);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    counted(&t, n + 2);
    vgt_pair_close(&p);
}

/* ---- floods ---- */

/* As many as go, all of them wrong. */
static void command_flood(void)
{
    unsigned n = vgt_rounds(20000), bad = 0;
    struct tally t, ns;
    struct vgt_pair p;

    vgt_pair_open(&p, 0, 1, NULL);
    t = tally(0, COMMANDS);
    ns = tally(0, "device.command_ns");
    for (unsigned i = 0; i < n; i++) {
        union pvrdma_cmd_req req = {.hdr.cmd = i % 50};
        union pvrdma_cmd_resp resp, *in_resp;

        memset((uint8_t *)&req + sizeof(req.hdr), 0xff, sizeof(req) - sizeof(req.hdr));
        in_resp = req.hdr.cmd == PVRDMA_CMD_MODIFY_QP ? &resp : NULL; /* its error is */
        bad += vg_command(p.s[0].g, &req, sizeof(req), in_resp, sizeof(resp)) != 0;
    }
    g_assert_cmpuint(bad, >, n / 10 * 9); /* all but a few contexts */
    counted(&t, bad);
    g_assert_cmpint(count_of(0, ns.path), >, ns.before);
    vgt_write_once(&p, 1);
    vgt_pair_close(&p);
}

/* Vectors over and over, with rings that are one page, nobody's, or each other. */
static void vector_flood(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, &(struct vg_opts){.db = VG_DB_EXT});
    struct vg_buf *ring = vg_buf_new(g, 0, 4096, VG_CONTIG);
    uint64_t same[64], pdir;
    struct vg_usage before;
    struct tally t = tally(0, COMMANDS);
    int64_t bad = 0;

    for (unsigned i = 0; i < G_N_ELEMENTS(same); i++) {
        same[i] = ring->page[0];
    }
    pdir = vg_pdir_new(g, same, G_N_ELEMENTS(same));
    vgt_usage_settled(&before);
    for (unsigned round = 0; round < vgt_rounds(20); round++) {
        for (unsigned i = 0; i < 200; i++) {
            unsigned vector = i % (PVRDMA_EXT_MAX_VECTORS + 2);
            uint32_t npages = i % 3 ? 64 : 65;

            bad += vg_add_vector(g, vector, pdir + (i % 5 ? 0 : NOWHERE), npages) != 0;
        }
        g_assert_cmpint(bad, >, 0);
        counted(&t, bad);
        g_assert_cmpint(vg_reset(g), ==, 0);
        g->up = false;
        g_assert_cmpint(vg_bring_up(g), ==, 0);
    }
    vgt_usage_returns(&before);
    vg_pdir_free(g, pdir, G_N_ELEMENTS(same));
    vg_buf_free(ring);
    vguest_free(g);
}

/* ---- page directories that lie ---- */

struct flip {
    uint64_t *word, good, bad;
    gint stop;
};

static gpointer flip_thread(gpointer data)
{
    struct flip *f = data;

    while (!g_atomic_int_get(&f->stop)) {
        __atomic_store_n(f->word, f->bad, __ATOMIC_RELAXED);
        __atomic_store_n(f->word, f->good, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* MR of @n pages by a deep directory at @top; 0 or the error, which is counted. */
static int deep(struct vg_pd *pd, uint64_t top, uint32_t n,
                struct pvrdma_resp_create_mr *resp)
{
    struct pvrdma_cmd_create_mr req = {.start = VA,
                                       .length = n * 4096ull,
                                       .pd_handle = pd->handle,
                                       .access_flags = VG_ACCESS_ALL,
                                       .flags = PVRDMA_EXT_MR_DEEP,
                                       .nchunks = n,
                                       .pdir_dma = top};
    struct tally t = tally(0, COMMANDS);
    int err = vg_create_mr(pd->g, &req, resp);

    g_assert_cmpint(err, >=, 0);
    counted(&t, err != 0);
    return err;
}

/* One page at all three levels: it names itself. */
static void lying_loop(struct vg_pd *pd)
{
    struct pvrdma_resp_create_mr resp;
    uint64_t page = vg_alloc_page(pd->g), *entry = vg_ptr(pd->g, page);
    int64_t pages = count_of(0, "objects.pages");

    for (unsigned i = 0; i < 512; i++) {
        entry[i] = page;
    }
    /* All of its memory is one page, that the guest has: its own affair. */
    g_assert_cmpint(deep(pd, page, 3 * 262144, &resp), ==, 0);
    g_assert_cmpint(count_of(0, "objects.pages"), ==, pages + 3 * 262144);
    g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    /* Beyond the VM's limit, and beyond what can be. */
    g_assert_cmpint(deep(pd, page, 5 * 262144, &resp), ==, ENOSPC);
    g_assert_cmpint(deep(pd, page, 1u << 31, &resp), >, 0);
    entry[1] = NOWHERE;
    g_assert_cmpint(deep(pd, page, 262144, &resp), ==, EFAULT);
    g_assert_cmpint(count_of(0, "objects.pages"), ==, pages);
    vg_free_pages(pd->g, page, 1);
}

/* The levels share their pages and change while they are read: at which does not matter.
 */
static void lying_changes(struct vg_pd *pd)
{
    enum { N = 2 * 262144 };
    uint64_t top = vg_alloc_pages(pd->g, 4), page = top + 3 * 4096;
    int64_t pages = count_of(0, "objects.pages");
    unsigned failed = 0, done = 0, rounds = vgt_rounds(30);

    for (unsigned level = 0; level < 3; level++) {
        uint64_t *entry = vg_ptr(pd->g, top + level * 4096);

        for (unsigned i = 0; i < 512; i++) {
            entry[i] = top + (level + 1) * 4096;
        }
    }
    for (unsigned i = 0; i < rounds || !failed; i++) {
        uint64_t *table = vg_ptr(pd->g, top + i % 3 * 4096);
        struct flip f = {.word = &table[i % 3 ? 17 : 1],
                         .good = i % 3 == 2 ? page : top + (i % 3 + 1) * 4096};
        struct pvrdma_resp_create_mr resp;
        GThread *t;

        f.bad = f.good ^ (i & 1 ? NOWHERE : 8);
        t = g_thread_new("flip", flip_thread, &f);
        if (deep(pd, top, N, &resp) == 0) {
            g_assert_cmpint(vg_destroy(pd->g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==,
                            0);
            done++;
        } else {
            failed++;
        }
        g_atomic_int_set(&f.stop, 1);
        g_thread_join(t);
        g_assert_cmpint(count_of(0, "objects.pages"), ==, pages);
    }
    g_test_message("%u were refused, %u had it right", failed, done);
    vg_free_pages(pd->g, top, 4);
}

static void lying_directories(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);

    lying_loop(pd);
    lying_changes(pd);
    vg_pd_free(pd);
    vguest_free(g);
}

/*
 * What a driver finds behind a dma-buf is claimed like any other memory, by its pages:
 * a device's, such as our own BAR, half of them RAM, or RAM that goes later.
 */
static void claimed_device_memory(void)
{
    const uint64_t unplugged = 0x300000000ull, bar = VG_UAR_PFN << 12;
    const uint64_t claim[][2] = {{bar, bar + 4096}, {0, bar}, {bar, 0}, {0, unplugged}};
    struct vgt_pair p;
    struct pvrdma_resp_create_mr resp;
    struct pvrdma_cmd_create_mr req = {
        .start = VA, .length = 8192, .access_flags = VG_ACCESS_ALL, .nchunks = 2};
    struct tally commands, wrs, peer;
    struct pvrdma_sge sge;
    struct vg_wr wr;
    uint64_t pdir;

    vgt_pair_open(&p, 1, 0, NULL); /* VM 1 will write there */
    req.pd_handle = p.s[1].pd->handle;
    commands = tally(0, COMMANDS);
    for (unsigned i = 0; i < G_N_ELEMENTS(claim); i++) {
        pdir = vg_pdir_new(p.s[1].g, claim[i], 2);
        req.pdir_dma = pdir;
        g_assert_cmpint(vg_create_mr(p.s[1].g, &req, &resp), ==, EFAULT);
        vg_pdir_free(p.s[1].g, pdir, 2);
    }
    counted(&commands, G_N_ELEMENTS(claim));

    g_assert_cmpint(vg_dma_map(p.s[1].g, p.s[1].g->memfd, 0, unplugged, 4096, 3), ==, 0);
    pdir = vg_pdir_new(p.s[1].g, claim[3], 2);
    req.pdir_dma = pdir;
    g_assert_cmpint(vg_create_mr(p.s[1].g, &req, &resp), ==, 0);
    wr = write_wr(&p, &sge, resp.rkey);
    wr.remote_addr = VA + 4096;
    post(&p.s[0], wr);
    vgt_expect(p.s[0].scq, 1, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(vg_dma_unmap(p.s[1].g, unplugged, 4096), ==, 0);
    wrs = tally(1, WRS);
    peer = tally(0, WRS);
    post(&p.s[0], wr);
    {
        struct pvrdma_cqe c;

        g_assert_true(vg_cq_wait(p.s[0].scq, &c, VGT_WAIT_MS));
        g_assert_cmpuint(c.status, !=, PVRDMA_WC_SUCCESS);
    }
    counted(&wrs, 1);
    counted(&peer, 1);
    g_assert_cmpint(vg_destroy(p.s[1].g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
    vg_pdir_free(p.s[1].g, pdir, 2);
    vgt_pair_close(&p);
}

int main(int argc, char **argv)
{
    static const struct bad bads[] = {
        {"handles", bad_handles},
        {"command-flood", command_flood},
        {"vector-flood", vector_flood},
        {"lying-directories", lying_directories},
        {"claimed-device-memory", claimed_device_memory},
    };

    return bad_main(&argc, &argv, bads, G_N_ELEMENTS(bads));
}
