/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Part "regions" of bench: what it takes the daemon to register memory and to take it
 * back, in processor time of its main thread.  The peer is a copy of the page list, which
 * the daemon cannot do without.
 *
 * The memory is a sparse file besides the library's RAM; nobody touches it, only page
 * lists name it.
 */
#include "bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GIB     (1ull << 30)
#define BIG_GPA (1ull << 42)
#define BIG_VA  0x7e0000000000ull
#define AIM_MS  50.0 /* for 1 GiB */

/* Of the daemon's main thread, ms. */
static double main_ms(void)
{
    g_autofree char *path =
        g_strdup_printf("/proc/%d/task/%d/schedstat", vgt_daemon->pid, vgt_daemon->pid);
    g_autofree char *text = NULL;

    g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
    return strtod(text, NULL) / 1e6;
}

static double own_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Of memory that is there: the first copy is not counted. */
static double copy_ms(uint32_t n)
{
    uint64_t *from = g_new0(uint64_t, n), *into = g_new0(uint64_t, n);
    const unsigned rounds = 20;
    double start = 0;

    for (unsigned i = 0; i <= rounds; i++) {
        from[i] = i;
        memcpy(into, from, n * sizeof(*from));
        __asm__ volatile("" ::"r"(into) : "memory");
        start = i == 0 ? own_ms() : start;
    }
    g_free(from);
    g_free(into);
    return (own_ms() - start) / rounds;
}

/* One shape: @gib of memory in @ranges of the DMA map. */
static void shape(const char *what, unsigned gib, unsigned ranges, bool scattered)
{
    struct vg_opts opts = {.low_size = 256 * MIB};
    uint32_t n = gib * (uint32_t)(GIB / PVRDMA_PAGE_SIZE);
    uint64_t size = gib * GIB, each = size / ranges;
    struct vguest *g = vguest_new(vgt_daemon, 0, &opts);
    struct vg_pd *pd = vg_pd_new(g);
    g_autoptr(GRand) order = scattered ? g_rand_new_with_seed(1) : NULL;
    uint64_t *page = page_list(BIG_GPA, n, order);
    uint64_t pdir = vg_pdir_new_deep(g, page, n);
    struct pvrdma_cmd_create_mr req = {.start = BIG_VA,
                                       .length = size,
                                       .pd_handle = pd->handle,
                                       .access_flags = VG_ACCESS_ALL,
                                       .flags = PVRDMA_EXT_MR_DEEP,
                                       .nchunks = n,
                                       .pdir_dma = pdir};
    int fd = memfd_create("regions", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    unsigned rounds = 0;
    int64_t start;
    double create = 0, destroy = 0, ms;

    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), ==, 0);
    for (unsigned i = 0; i < ranges; i++) {
        g_assert_cmpint(vg_dma_map(g, fd, i * each, BIG_GPA + i * each, each, VG_DMA_RW),
                        ==, 0);
    }
    if (gib == 1) { /* as any driver does */
        req.flags = 0;
        req.pdir_dma = *(uint64_t *)vg_ptr(g, pdir);
    }
    for (start = vg_now_ns(); rounds < 3 || time_left(start); rounds++) {
        struct pvrdma_resp_create_mr resp;
        double before = main_ms(), made;

        g_assert_cmpint(vg_create_mr(g, &req, &resp), ==, 0);
        made = main_ms();
        create += made - before;
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, resp.mr_handle), ==, 0);
        destroy += main_ms() - made;
    }
    create /= rounds;
    destroy /= rounds;
    ms = copy_ms(n);
    printf("  %-38s%8.2f ms, taken back %6.2f ms (aim: %.0f in all, %s), %.1f times a "
           "copy of the list\n",
           what, create, destroy, AIM_MS * gib,
           create + destroy <= AIM_MS * gib ? "met" : "MISSED", (create + destroy) / ms);
    fflush(stdout);
    close(fd);
    vg_pdir_free_deep(g, pdir, n);
    g_free(page);
    vg_pd_free(pd);
    vguest_free(g);
}

void part_regions(void)
{
    shape("1 GiB, contiguous", 1, 1, false);
    shape("1 GiB, scattered", 1, 1, true);
    shape("1 GiB, contiguous, 2,048 ranges", 1, 2048, false);
    shape("1 GiB, scattered over 2,048 ranges", 1, 2048, true);
    shape("8 GiB, contiguous", 8, 1, false);
    shape("8 GiB, scattered", 8, 1, true);
}
