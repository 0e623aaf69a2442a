/* SPDX-License-Identifier: GPL-2.0-or-later */
/* pagedir.c: bounds, order, alignment, holes in the DMA map. */
#include <errno.h>

#include "guest/pagedir.h"
#include "testdev.h"

static void test_order(void)
{
    struct testdev *td = testdev_new("pagedir");
    static const uint32_t sizes[] = {1, 2, 511, 512, 513, 1024, 1300};

    for (unsigned s = 0; s < G_N_ELEMENTS(sizes); s++) {
        uint32_t n = sizes[s];
        g_autofree uint64_t *want = g_new(uint64_t, n);
        g_autofree uint64_t *got = g_new0(uint64_t, n + 1);

        for (uint32_t i = 0; i < n; i++) {
            want[i] = 0x1000ull * (i * 7919u % 4099u);
        }
        got[n] = 0x5a5a;
        g_assert_cmpint(
            pagedir_read(&td->vm.guest.mem, testdev_pdir(td, want, n), n, got), ==, 0);
        g_assert_cmpmem(want, n * 8, got, n * 8);
        g_assert_cmpuint(got[n], ==, 0x5a5a); /* not one more */
    }
    testdev_free(td);
}

/* CVE-2023-1544, CVE-2021-3607: page counts beyond what a directory holds. */
static void test_cve_2023_1544(void)
{
    struct testdev *td = testdev_new("pagedir");
    uint64_t dir = testdev_new_pdir(td, 4, NULL), page[4];

    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 0, page), ==, EINVAL);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 262145, page), ==, EINVAL);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, UINT32_MAX, page), ==, EINVAL);
    testdev_free(td);
}

static void test_bad(void)
{
    struct testdev *td = testdev_new("pagedir");
    uint64_t dir = testdev_new_pdir(td, 600, NULL);
    g_autofree uint64_t *page = g_new(uint64_t, 600);
    uint64_t *entry = testdev_ptr(td, dir);
    uint64_t table = entry[1];

    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 600, page), ==, 0);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir + 8, 600, page), ==, EINVAL);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, 0, 600, page), ==, EFAULT);
    g_assert_cmpint(
        pagedir_read(&td->vm.guest.mem, TESTDEV_GPA + TESTDEV_RAM_SIZE, 600, page), ==,
        EFAULT);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, UINT64_MAX - 4095, 600, page), ==,
                    EFAULT);
    entry[1] = table + 8;
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 600, page), ==, EINVAL);
    entry[1] = 0x1000;
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 600, page), ==, EFAULT);
    /* A table that is not needed is not looked at. */
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 512, page), ==, 0);
    entry[1] = table;
    ((uint64_t *)testdev_ptr(td, table))[87] |= 1; /* page 599 */
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 600, page), ==, EINVAL);
    g_assert_cmpint(pagedir_read(&td->vm.guest.mem, dir, 599, page), ==, 0);
    testdev_free(td);
}

/* A page of directories above; n alone says how many of them are looked at. */
static void test_deep(void)
{
    struct testdev *td = testdev_new("pagedir");
    struct guest_mem *mem = &td->vm.guest.mem;
    const uint32_t full = PVRDMA_PDIR_MAX_PAGES, n = full + 600;
    g_autofree uint64_t *want = g_new(uint64_t, n);
    g_autofree uint64_t *got = g_new0(uint64_t, n + 1);
    uint64_t top = testdev_pages(td, 1), *entry = testdev_ptr(td, top);

    for (uint32_t i = 0; i < n; i++) {
        want[i] = 0x1000ull * (i * 7919u % 1000003u);
    }
    entry[0] = testdev_pdir(td, want, full);
    entry[1] = testdev_pdir(td, want + full, 600);
    got[n] = 0x5a5a;
    g_assert_cmpint(pagedir_read_deep(mem, top, n, got), ==, 0);
    g_assert_cmpmem(want, (size_t)n * 8, got, (size_t)n * 8);
    g_assert_cmpuint(got[n], ==, 0x5a5a);
    memset(got, 0, (size_t)n * 8);
    g_assert_cmpint(pagedir_read_deep(mem, top, 3, got), ==, 0);
    g_assert_cmpmem(want, 3 * 8, got, 3 * 8);
    g_assert_cmpuint(got[3], ==, 0);

    g_assert_cmpint(pagedir_read_deep(mem, top, 0, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_deep(mem, top, PVRDMA_EXT_MR_MAX_PAGES + 1, got), ==,
                    EINVAL);
    g_assert_cmpint(pagedir_read_deep(mem, top, UINT32_MAX, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_deep(mem, top + 8, n, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_deep(mem, 0, n, got), ==, EFAULT);
    entry[1] += 8;
    g_assert_cmpint(pagedir_read_deep(mem, top, n, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_deep(mem, top, full, got), ==, 0);
    entry[1] = 0x1000;
    g_assert_cmpint(pagedir_read_deep(mem, top, full + 1, got), ==, EFAULT);
    testdev_free(td);
}

/* What a worker reads: one table, pages that are there. */
static void test_short(void)
{
    struct testdev *td = testdev_new("pagedir");
    uint64_t want[512], got[513] = {0}, dir, *entry;
    struct guest_mem *mem = &td->vm.guest.mem;

    for (uint32_t i = 0; i < 512; i++) {
        want[i] = TESTDEV_GPA + 0x1000ull * (i * 7919u % (TESTDEV_RAM_SIZE >> 12));
    }
    dir = testdev_pdir(td, want, 512);
    entry = testdev_ptr(td, dir);
    for (uint32_t n = 1; n <= 512; n++) {
        memset(got, 0x5a, sizeof(got));
        g_assert_cmpint(pagedir_read_short(mem, dir, n, got), ==, 0);
        g_assert_cmpmem(want, n * 8, got, n * 8);
        g_assert_cmpuint(got[n], ==, 0x5a5a5a5a5a5a5a5a);
    }
    g_assert_cmpint(pagedir_read_short(mem, dir, 0, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_short(mem, dir, 513, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_short(mem, dir, UINT32_MAX, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_short(mem, dir + 8, 1, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_short(mem, 0, 1, got), ==, EFAULT);
    g_assert_cmpint(pagedir_read_short(mem, UINT64_MAX - 4095, 1, got), ==, EFAULT);
    entry = testdev_ptr(td, entry[0]); /* the list */
    entry[511] |= 16;
    g_assert_cmpint(pagedir_read_short(mem, dir, 512, got), ==, EINVAL);
    g_assert_cmpint(pagedir_read_short(mem, dir, 511, got), ==, 0);
    entry[510] = 1ull << 50; /* aligned, not there */
    g_assert_cmpint(pagedir_read_short(mem, dir, 511, got), ==, EFAULT);
    g_assert_cmpint(pagedir_read_short(mem, dir, 510, got), ==, 0);
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/device/pagedir/order", test_order);
    g_test_add_func("/device/pagedir/cve-2023-1544", test_cve_2023_1544);
    g_test_add_func("/device/pagedir/bad", test_bad);
    g_test_add_func("/device/pagedir/deep", test_deep);
    g_test_add_func("/device/pagedir/short", test_short);
    return testdev_run();
}
