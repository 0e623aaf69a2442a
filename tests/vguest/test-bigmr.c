/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: memory regions of more than 1 GiB (PVRDMA_EXT_MR_DEEP), of pages that
 * lie anywhere in a sparse memfd.  What is checked is looked at page by page, where the
 * page list says that it is.
 */
#include "vgtest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GIB     (1ull << 30)
#define BIG_GPA (1ull << 42)
#define BIG_VA  0x7e0000000000ull
#define OFFSET  0x123ull /* of the MR in its first page */
#define LENGTH  (4 * GIB + 5 * 4096 + 77)
#define NPAGES  ((uint32_t)((OFFSET + LENGTH + 4095) / 4096))

/* Memory besides the library's, an order of its pages, and an MR over them. */
struct big {
    struct vguest *g;
    int fd;
    uint64_t *page, top;
    struct pvrdma_cmd_create_mr req;
    struct pvrdma_resp_create_mr resp;
};

static void big_open(struct big *b, struct vg_pd *pd)
{
    GRand *r = g_rand_new_with_seed(7);

    b->g = pd->g;
    b->fd = memfd_create("bigmr", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    g_assert_cmpint(b->fd, >=, 0);
    g_assert_cmpint(ftruncate(b->fd, NPAGES * 4096ll), ==, 0);
    g_assert_cmpint(fcntl(b->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), ==, 0);
    g_assert_cmpint(vg_dma_map(b->g, b->fd, 0, BIG_GPA, NPAGES * 4096ull, VG_DMA_RW), ==,
                    0);
    b->page = g_new(uint64_t, NPAGES);
    for (uint32_t i = 0; i < NPAGES; i++) {
        b->page[i] = BIG_GPA + i * 4096ull;
    }
    for (uint32_t i = NPAGES - 1; i > 0; i--) {
        uint32_t k = g_rand_int(r) % (i + 1);
        uint64_t p = b->page[i];

        b->page[i] = b->page[k];
        b->page[k] = p;
    }
    g_rand_free(r);
    b->top = vg_pdir_new_deep(b->g, b->page, NPAGES);
    b->req = (struct pvrdma_cmd_create_mr){.start = BIG_VA + OFFSET,
                                           .length = LENGTH,
                                           .pd_handle = pd->handle,
                                           .access_flags = VG_ACCESS_ALL,
                                           .flags = PVRDMA_EXT_MR_DEEP,
                                           .nchunks = NPAGES,
                                           .pdir_dma = b->top};
}

static void big_close(struct big *b)
{
    vg_pdir_free_deep(b->g, b->top, NPAGES);
    g_free(b->page);
    close(b->fd);
}

/* Bytes of the MR, through the memfd. */
static void big_access(struct big *b, uint64_t at, void *data, uint64_t len, bool write)
{
    uint8_t *p = data;

    for (at += OFFSET; len;) {
        uint64_t off = at & 4095, n = MIN(len, 4096 - off);
        off_t where = (off_t)(b->page[at >> 12] - BIG_GPA + off);
        ssize_t done = write ? pwrite(b->fd, p, n, where) : pread(b->fd, p, n, where);

        g_assert_cmpint(done, ==, (ssize_t)n);
        p += n;
        at += n;
        len -= n;
    }
}

static void transfer(struct vgt_side *s, uint32_t opcode, struct pvrdma_sge sge,
                     uint64_t remote, uint32_t rkey, enum pvrdma_wc_status status)
{
    struct vg_wr wr = vg_wr_at(5, opcode, PVRDMA_SEND_SIGNALED, &sge, remote, rkey);

    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
    vgt_expect(s->scq, 5, status);
}

/* Both ends, and where tables and directories meet: as target, and as local memory. */
static void test_copy(void)
{
    static const uint64_t places[] = {
        0,       4096 - OFFSET - 1,       2 * 1024 * 1024 - OFFSET - 5000,
        GIB - 5, 4 * GIB - OFFSET - 4000, LENGTH - 9001};
    enum { LEN = 9001 };
    /* Directories are long runs, which few scattered pages must leave. */
    struct vgt_opts o = {.guest[1] = {.low_size = 256 << 20}, .mr_len = 16384};
    uint8_t data[LEN];
    struct vgt_pair p;
    struct big b;

    vgt_pair_open(&p, 0, 1, &o);
    big_open(&b, p.s[1].pd);
    g_assert_cmpint(vg_create_mr(b.g, &b.req, &b.resp), ==, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(places); i++) {
        struct vgt_side *near = &p.s[0], *far = &p.s[1];
        uint64_t va = b.req.start + places[i];

        vgt_fill(near->mr->buf->host, LEN, i);
        transfer(near, PVRDMA_WR_RDMA_WRITE, vg_sge(near->mr, 0, LEN), va, b.resp.rkey,
                 PVRDMA_WC_SUCCESS);
        big_access(&b, places[i], data, LEN, false);
        vgt_check(data, LEN, i);

        vgt_fill(data, LEN, 100 + i);
        big_access(&b, places[i], data, LEN, true);
        transfer(near, PVRDMA_WR_RDMA_READ, vg_sge(near->mr, 0, LEN), va, b.resp.rkey,
                 PVRDMA_WC_SUCCESS);
        vgt_check(near->mr->buf->host, LEN, 100 + i);

        memset(near->mr->buf->host, 0, LEN);
        transfer(far, PVRDMA_WR_RDMA_WRITE,
                 (struct pvrdma_sge){.addr = va, .length = LEN, .lkey = b.resp.lkey},
                 near->mr->buf->va, near->mr->rkey, PVRDMA_WC_SUCCESS);
        vgt_check(near->mr->buf->host, LEN, 100 + i);
    }
    /* Not one byte more. */
    transfer(&p.s[0], PVRDMA_WR_RDMA_WRITE, vg_sge(p.s[0].mr, 0, LEN),
             b.req.start + LENGTH - LEN + 1, b.resp.rkey, PVRDMA_WC_REM_ACCESS_ERR);
    vgt_pair_reconnect(&p, NULL);
    transfer(&p.s[0], PVRDMA_WR_RDMA_WRITE, vg_sge(p.s[0].mr, 0, 1), b.req.start - 1,
             b.resp.rkey, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpint(vg_destroy(b.g, PVRDMA_CMD_DESTROY_MR, b.resp.mr_handle), ==, 0);
    big_close(&b);
    vgt_pair_close(&p);
    vgt_assert_no_objects("vm1");
}

static int64_t pages_used(void)
{
    return vg_status_int(vgt_daemon, "vm0", "objects", "pages");
}

/* Where the page list names page @i. */
static uint64_t *list_entry(struct big *b, uint32_t i)
{
    uint64_t *dir = vg_ptr(b->g, b->top);
    uint64_t *tables = vg_ptr(b->g, dir[i / PVRDMA_PDIR_MAX_PAGES]);
    uint64_t *table =
        vg_ptr(b->g, tables[i % PVRDMA_PDIR_MAX_PAGES / PVRDMA_PDIR_ENTRIES]);

    return &table[i % PVRDMA_PDIR_ENTRIES];
}

/* What is told is what can be had; a directory that is none costs nothing. */
static void test_refused(void)
{
    static const uint32_t bad_page[] = {0, PVRDMA_PDIR_MAX_PAGES, NPAGES - 1};
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    struct vg_pd *pd = vg_pd_new(g);
    int64_t before = pages_used();
    uint64_t *entry;
    struct big b;

    big_open(&b, pd);
    entry = vg_ptr(g, b.top);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_FEAT_LARGE_MR,
                     !=, 0);
    g_assert_cmpuint(vg_reg_read(g, PVRDMA_EXT_REG_MR_PAGES), ==, 2000000);

    b.req.flags = 0;
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), >, 0);
    b.req.flags = PVRDMA_EXT_MR_DEEP;
    entry[4] ^= 8;
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), >, 0);
    entry[4] ^= 8 | 1ull << 50;
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), >, 0);
    entry[4] ^= 1ull << 50;
    /* One page of a million that is no memory of the guest's, and one that is half. */
    for (unsigned i = 0; i < G_N_ELEMENTS(bad_page); i++) {
        entry = list_entry(&b, bad_page[i]);
        *entry ^= 1ull << 50;
        g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), ==, EFAULT);
        *entry ^= 1ull << 50 | 2048;
        g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), ==, EINVAL);
        *entry ^= 2048;
    }
    b.req.length += 4096;
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), >, 0);
    b.req.length -= 4096;
    g_assert_cmpint(pages_used(), ==, before);

    /* One fits what the VM may have, two do not. */
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), ==, 0);
    g_assert_cmpint(pages_used(), ==, before + NPAGES);
    {
        struct pvrdma_resp_create_mr second;

        g_assert_cmpint(vg_create_mr(g, &b.req, &second), >, 0);
    }
    g_assert_cmpint(pages_used(), ==, before + NPAGES);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, b.resp.mr_handle), ==, 0);
    g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), ==, 0);
    g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, b.resp.mr_handle), ==, 0);
    big_close(&b);
    vg_pd_free(pd);
    vguest_free(g);
}

/* The guest goes without a word, with such a region; the daemon has its memory back. */
static void test_crash(void)
{
    struct vg_usage before, after;

    for (unsigned i = 0; i < 4; i++) {
        struct vguest *g = vguest_open(vgt_daemon, 0, NULL);
        struct vg_pd *pd;
        struct big b;

        g_assert_cmpint(vg_attach_again(g, 10000), ==, 0);
        g_assert_cmpint(vg_bring_up(g), ==, 0);
        pd = vg_pd_new(g);
        big_open(&b, pd);
        g_assert_cmpint(vg_create_mr(g, &b.req, &b.resp), ==, 0);
        big_close(&b);
        g->up = false;
        vg_pd_free(pd);
        vguest_crash(g);
        vgt_usage_settled(i == 0 ? &before : &after);
    }
    if (VGT_PLAIN_BUILD) { /* one list has 8 MiB */
        g_assert_cmpint(after.rss_anon_kib, <, before.rss_anon_kib + 4096);
    }
}

int main(int argc, char **argv)
{
    struct vg_daemon_opts o = {
        .n_vms = 2, .poll_us = -1, .vm_keys = "max-mr-pages=2000000\n"};

    vgt_init(&argc, &argv, 100);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/bigmr/copy", test_copy);
    g_test_add_func("/bigmr/refused", test_refused);
    g_test_add_func("/bigmr/crash", test_crash);
    return vgt_run();
}
