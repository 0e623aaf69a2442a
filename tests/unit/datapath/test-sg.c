/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/sg.c: copies between MRs whose pages are scattered,
 * contiguous, unaligned, missing, or whose keys lie.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "datapath/engine.h"
#include "pvrdma/vfio_user.h"

#define RAM_PAGES 64u

static struct vm vm;
static uint8_t *ram;
static struct pd pd, other_pd;

static void setup(void)
{
    int fd = memfd_create("ram", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(ftruncate(fd, RAM_PAGES * 4096), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==,
                    0);
    guest_mem_init(&vm.guest.mem, &vm.guest, true);
    g_assert_cmpint(guest_mem_map(&vm.guest.mem, fd, 0, 0x100000, RAM_PAGES * 4096,
                                  VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG),
                    ==, 0);
    ram = mmap(NULL, RAM_PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    g_assert_true(ram != MAP_FAILED);
    close(fd);
    g_assert_true(id_table_init(&vm.objects.mr, 16));
}

/* A user MR at @start over the given RAM page numbers. */
static struct mr *make_mr(uint64_t start, uint64_t length, uint32_t access,
                          const unsigned *pages, unsigned n)
{
    struct mr *mr = g_malloc0(sizeof(*mr) + n * sizeof(mr->page[0]));

    mr->handle = id_table_reserve(&vm.objects.mr);
    mr->lkey = mr->rkey = mr->handle << 8 | vm.objects.mr.gen[mr->handle];
    mr->pd = &pd;
    mr->access = access;
    mr->start = start;
    mr->length = length;
    mr->offset = start & 4095;
    mr->npages = n;
    for (unsigned i = 0; i < n; i++) {
        mr->page[i] = 0x100000 + (uint64_t)pages[i] * 4096;
    }
    id_table_publish(&vm.objects.mr, mr->handle, mr);
    return mr;
}

static void drop_mr(struct mr *mr)
{
    id_table_release(&vm.objects.mr, mr->handle);
    g_free(mr);
}

static void test_copy(void)
{
    static const unsigned src_pages[] = {3, 4, 5, 9}, dst_pages[] = {20, 12, 30, 31, 40};
    struct mr *src = make_mr(0x7000123, 3 * 4096, 0, src_pages, 4);
    struct mr *dst =
        make_mr(0x9000ff0, 4 * 4096, PVRDMA_ACCESS_LOCAL_WRITE, dst_pages, 5);
    uint8_t *flat = g_malloc(3 * 4096);

    for (unsigned i = 0; i < RAM_PAGES * 4096; i++) {
        ram[i] = (uint8_t)(i * 7 + i / 251);
    }
    for (unsigned i = 0; i < 3 * 4096; i++) {
        unsigned off = i + 0x123;

        flat[i] = ram[src_pages[off / 4096] * 4096 + off % 4096];
    }
    /* Sliced at odd borders; several SGEs on both sides, one empty. */
    for (unsigned slice = 1; slice < 9000; slice = slice * 3 + 1) {
        struct pvrdma_sge s[] = {{0x7000123, 5000, src->lkey},
                                 {0, 0, 0xdead},
                                 {0x7000123 + 5000, 3 * 4096 - 5000, src->lkey}};
        struct pvrdma_sge d[] = {{0x9000ff0 + 17, 1, dst->lkey},
                                 {0x9000ff0 + 18, 3 * 4096 - 1, dst->lkey}};
        struct sg_list sl = {.vm = &vm, .pd = &pd, .nsge = 3, .sge = s};
        struct sg_list dl = {.vm = &vm,
                             .pd = &pd,
                             .nsge = 2,
                             .sge = d,
                             .write = true,
                             .access = PVRDMA_ACCESS_LOCAL_WRITE};

        for (unsigned i = 0; i < 5; i++) {
            memset(ram + dst_pages[i] * 4096, 0, 4096);
        }
        g_assert_true(sg_check(&sl) && sg_check(&dl));
        for (unsigned done = 0; done < 3 * 4096;) {
            unsigned n = MIN(slice, 3 * 4096 - done);

            g_assert_cmpint(sg_copy(&dl, &sl, n), ==, SG_OK);
            done += n;
        }
        for (unsigned i = 0; i < 3 * 4096; i++) {
            unsigned off = i + 0xff0 + 17;

            g_assert_cmpint(ram[dst_pages[off / 4096] * 4096 + off % 4096], ==, flat[i]);
        }
    }
    g_free(flat);
    drop_mr(src);
    drop_mr(dst);
}

static void test_keys(void)
{
    static const unsigned pages[] = {1, 2};
    struct mr *mr = make_mr(0x5000, 8192, PVRDMA_ACCESS_REMOTE_READ, pages, 2);
    struct pvrdma_sge sge = {0x5000, 8192, mr->lkey};
    struct sg_list l = {.vm = &vm, .pd = &pd, .nsge = 1, .sge = &sge};

    g_assert_true(sg_check(&l));
    l.access = PVRDMA_ACCESS_REMOTE_READ;
    g_assert_true(sg_check(&l));
    l.access = PVRDMA_ACCESS_REMOTE_WRITE;
    g_assert_false(sg_check(&l));
    l.access = 0;
    l.pd = &other_pd;
    g_assert_false(sg_check(&l));
    l.pd = &pd;
    sge.length = 8193;
    g_assert_false(sg_check(&l));
    sge = (struct pvrdma_sge){0x4fff, 1, mr->lkey};
    g_assert_false(sg_check(&l));
    sge = (struct pvrdma_sge){0x6fff, 1, mr->lkey};
    g_assert_true(sg_check(&l));
    sge = (struct pvrdma_sge){0x7000, 1, mr->lkey};
    g_assert_false(sg_check(&l));
    sge = (struct pvrdma_sge){UINT64_MAX, UINT32_MAX, mr->lkey};
    g_assert_false(sg_check(&l));
    sge = (struct pvrdma_sge){0x5000, 8, mr->lkey ^ 1};
    g_assert_false(sg_check(&l));
    drop_mr(mr);
}

static void test_unmapped(void)
{
    static const unsigned pages[] = {1, 1000}; /* the second is outside RAM */
    static const unsigned good[] = {5, 6};
    struct mr *bad = make_mr(0x5000, 8192, PVRDMA_ACCESS_LOCAL_WRITE, pages, 2);
    struct mr *ok = make_mr(0x5000, 8192, PVRDMA_ACCESS_LOCAL_WRITE, good, 2);
    struct pvrdma_sge b = {0x5000, 8192, bad->lkey}, o = {0x5000, 8192, ok->lkey};
    struct sg_list s = {.vm = &vm, .pd = &pd, .nsge = 1, .sge = &o};
    struct sg_list d = {.vm = &vm, .pd = &pd, .nsge = 1, .sge = &b, .write = true};

    g_assert_cmpint(sg_copy(&d, &s, 8192), ==, SG_DST_MEM);
    s.cur = d.cur = (struct sg_cursor){0, 0};
    d.write = false;
    s.write = true;
    g_assert_cmpint(sg_copy(&s, &d, 8192), ==, SG_SRC_MEM);
    /* A list shorter than what is asked for never runs over. */
    s.cur = d.cur = (struct sg_cursor){0, 0};
    b.length = 100;
    g_assert_cmpint(sg_copy(&s, &d, 200), ==, SG_SRC_KEY);
    drop_mr(bad);
    drop_mr(ok);
}

static void note_page(void *opaque, uint64_t gpa)
{
    g_array_append_val((GArray *)opaque, gpa);
}

/* All that was stored is in the dirty log, of a message that nobody may believe, too. */
static void test_dirty_by_fault(void)
{
    static const unsigned pages[] = {7, 9};
    static const uint8_t data[8192];
    static const struct dirty_span span = {0x100000, RAM_PAGES * 4096};
    static struct vm gone;
    struct mr *mr = make_mr(0x5000, 8192, PVRDMA_ACCESS_LOCAL_WRITE, pages, 2);
    struct pvrdma_sge sge = {0x5000 + 100, 4096, mr->lkey};
    struct sg_list d = {.vm = &vm, .pd = &pd, .nsge = 1, .sge = &sge, .write = true};
    struct sg_list s = {.vm = &gone, .raw = data};
    g_autoptr(GArray) marked = g_array_new(FALSE, FALSE, sizeof(uint64_t));

    memset(ram, 0xee, RAM_PAGES * 4096);
    atomic_store(&gone.guest.fault, "a page has gone");
    g_assert_cmpint(guest_dirty_start(&vm.guest.mem, &span, 1), ==, 0);
    g_assert_cmpint(sg_copy(&d, &s, 4096), ==, SG_FAULT);
    g_assert_cmpint(
        guest_dirty_collect(&vm.guest.mem, span.gpa, span.size, note_page, marked), ==,
        0);
    for (unsigned i = 0; i < RAM_PAGES; i++) {
        uint64_t gpa = span.gpa + i * 4096ull;
        bool is_marked = false, stored = false;

        for (unsigned j = 0; j < marked->len; j++) {
            is_marked |= g_array_index(marked, uint64_t, j) == gpa;
        }
        for (unsigned j = 0; j < 4096; j++) {
            stored |= ram[i * 4096 + j] != 0xee;
        }
        g_assert_true(is_marked || !stored);
    }
    g_assert_cmpuint(ram[pages[0] * 4096 + 100], ==, 0); /* it was a case of it */
    guest_dirty_stop(&vm.guest.mem);
    drop_mr(mr);
}

static void test_psn(void)
{
    g_assert_cmpuint(psn_count(0, 3), ==, 1);
    g_assert_cmpuint(psn_count(1, 3), ==, 1);
    g_assert_cmpuint(psn_count(1024, 3), ==, 1);
    g_assert_cmpuint(psn_count(1025, 3), ==, 2);
    g_assert_cmpuint(psn_count(256, 1), ==, 1);
    g_assert_cmpuint(psn_count(257, 1), ==, 2);
    g_assert_cmpuint(psn_count(4096, 5), ==, 1);
    g_assert_cmpuint(psn_count(1ull << 31, 5), ==, 1u << 19);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    setup();
    g_test_add_func("/sg/copy", test_copy);
    g_test_add_func("/sg/keys", test_keys);
    g_test_add_func("/sg/unmapped", test_unmapped);
    g_test_add_func("/sg/dirty-by-fault", test_dirty_by_fault);
    g_test_add_func("/responder/psn", test_psn);
    return g_test_run();
}
