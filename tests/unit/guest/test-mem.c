/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Guest memory: which ranges and descriptors are taken, that files are mapped
 * once and let go, and that missing pages cost the VM, not the process.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/budget.h"
#include "guest/mem.h"
#include "objects/vm.h"
#include "pvrdma/vfio_user.h"

#define PG 4096ull
#define RO VFIO_USER_DMA_READ_FLAG
#define RW (VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG)

struct fixture {
    struct vm vm;
    struct guest_mem *mem;
};

static struct vm_config test_config = {.name = (char *)"test"};

static void setup(struct fixture *f, gconstpointer arg)
{
    guest_mem_init_process();
    f->vm.cfg = &test_config;
    f->mem = &f->vm.guest.mem;
    guest_mem_init(f->mem, &f->vm.guest, arg == NULL);
}

static void teardown(struct fixture *f, gconstpointer arg)
{
    guest_mem_fini(f->mem);
}

static int make_memfd(uint64_t size, unsigned seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, seals), ==, 0);
    return fd;
}

static int sealed(uint64_t size)
{
    return make_memfd(size, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
}

static void check_stats(struct fixture *f, unsigned regions, unsigned files)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(f->mem, &st);
    g_assert_cmpuint(st.regions, ==, regions);
    g_assert_cmpuint(st.files, ==, files);
    g_assert_cmpint(st.bytes != 0, ==, files != 0);
}

/* Lines of /proc/self/maps that have @what in them. */
static unsigned count_maps(const char *what)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned n = 0;

    while (fgets(line, sizeof(line), maps)) {
        n += strstr(line, what) != NULL;
    }
    fclose(maps);
    return n;
}

static void test_access(struct fixture *f, gconstpointer arg)
{
    int fd = sealed(8 * PG);
    char out[16] = "written by us", in[16];
    uint32_t generation = atomic_load(&f->mem->map)->generation;

    /* Two ranges of one file, in reverse, with a hole between them. */
    g_assert_cmpint(guest_mem_map(f->mem, fd, 4 * PG, 0x100000, 2 * PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0x200000, 4 * PG, RW), ==, 0);
    g_assert_cmpuint(atomic_load(&f->mem->map)->generation, !=, generation);
    check_stats(f, 2, 1);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 1);

    g_assert_true(guest_write(f->mem, 0x100000 + PG - 4, out, sizeof(out)));
    g_assert_cmpint(pread(fd, in, sizeof(in), 5 * PG - 4), ==, sizeof(in));
    g_assert_cmpmem(in, sizeof(in), out, sizeof(out));
    g_assert_true(guest_read(f->mem, 0x100000 + PG - 4, in, sizeof(in)));

    g_assert_nonnull(guest_ptr(f->mem, 0x100000, 2 * PG, true));
    g_assert_null(guest_ptr(f->mem, 0x100000, 2 * PG + 1, false));
    g_assert_null(guest_ptr(f->mem, 0x100000 + 2 * PG, 1, false));
    g_assert_null(guest_ptr(f->mem, 0xfffff, 1, false));
    g_assert_null(guest_ptr(f->mem, 0x200000, UINT64_MAX, false));
    close(fd);
    /* The mapping does not need the descriptor. */
    g_assert_true(guest_read(f->mem, 0x200000, in, sizeof(in)));
    g_assert_cmpint(guest_mem_unmap(f->mem, 0x100000, 2 * PG, false), ==, 0);
    g_assert_null(guest_ptr(f->mem, 0x100000, 1, false));
    check_stats(f, 1, 1);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0x200000, 4 * PG, false), ==, 0);
    check_stats(f, 0, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
}

/* Descriptors of the process that lead to the file behind @fd, @fd included. */
static unsigned count_fds(int fd)
{
    struct stat want, st;
    unsigned n = 0;

    g_assert_cmpint(fstat(fd, &want), ==, 0);
    for (int i = 0; i < 1024; i++) {
        n += fstat(i, &st) == 0 && st.st_dev == want.st_dev && st.st_ino == want.st_ino;
    }
    return n;
}

/* What another daemon would need to have the same memory. */
static void test_ranges(struct fixture *f, gconstpointer arg)
{
    int fd = sealed(64 * PG), other = sealed(PG);
    struct guest_mem_range r;

    g_assert_cmpuint(guest_mem_ranges(f->mem), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 4 * PG, 0x200000, 2 * PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 40 * PG, 0x300000, PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, -1, 0, 0x400000, PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, other, 0, 0x100000, PG, RO), ==, 0);
    g_assert_cmpuint(count_fds(fd), ==, 2); /* however many ranges */
    g_assert_cmpuint(count_fds(other), ==, 2);

    g_assert_cmpuint(guest_mem_ranges(f->mem), ==, 4);
    g_assert_true(guest_mem_range(f->mem, 0, &r));
    g_assert_cmphex(r.gpa, ==, 0x100000);
    g_assert_cmphex(r.flags, ==, RO);
    g_assert_true(guest_mem_range(f->mem, 1, &r));
    g_assert_cmphex(r.gpa, ==, 0x200000);
    g_assert_cmphex(r.size, ==, 2 * PG);
    g_assert_cmphex(r.offset, ==, 4 * PG);
    g_assert_cmphex(r.flags, ==, RW);
    g_assert_cmpint(r.fd, >=, 0);
    g_assert_cmpint(r.fd, !=, fd);
    g_assert_true(guest_mem_range(f->mem, 2, &r));
    g_assert_cmphex(r.offset, ==, 40 * PG);
    g_assert_true(guest_mem_range(f->mem, 3, &r));
    g_assert_cmpint(r.fd, ==, -1);

    g_assert_cmpint(guest_mem_unmap(f->mem, 0x200000, 2 * PG, false), ==, 0);
    g_assert_cmpuint(count_fds(fd), ==, 2);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0x300000, PG, false), ==, 0);
    g_assert_cmpuint(count_fds(fd), ==, 1);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    g_assert_cmpuint(count_fds(other), ==, 1);
    close(fd);
    close(other);
}

/* Of a file system that is asked when a descriptor is closed none is kept. */
static void test_not_kept(struct fixture *f, gconstpointer arg)
{
    char name[] = "/var/tmp/pvrdma-XXXXXX";
    int fd = mkostemp(name, O_CLOEXEC);
    struct guest_mem_range r;

    g_assert_cmpint(fd, >=, 0);
    unlink(name);
    if (fcntl(fd, F_GET_SEALS) >= 0) {
        g_test_skip("/var/tmp is in memory");
        close(fd);
        return;
    }
    g_assert_cmpint(ftruncate(fd, PG), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0x100000, PG, RW), ==, 0);
    g_assert_cmpuint(count_fds(fd), ==, 1);
    g_assert_false(guest_mem_range(f->mem, 0, &r));
    close(fd);
}

static void test_arguments(struct fixture *f, gconstpointer arg)
{
    static const struct {
        uint64_t offset, gpa, size;
        uint32_t flags;
        int err;
    } rows[] = {
        {0, 0, 0, RW, EINVAL},
        {0, 0, PG, 0, EINVAL},
        {0, 0, PG, VFIO_USER_DMA_WRITE_FLAG, EINVAL},
        {0, 0, PG, 4 | RW, EINVAL},
        {0, 0, PG, 0x80000000u | RW, EINVAL},
        {1, 0, PG, RW, EINVAL},
        {512, 0, PG, RW, EINVAL},
        {0, 1, PG, RW, EINVAL},
        {0, 0, PG - 1, RW, EINVAL},
        {0, 0, PG + 512, RW, EINVAL},
        {0, UINT64_MAX - PG + 1, 2 * PG, RW, EINVAL},
        {0, PG, UINT64_MAX - PG + 1, RW, EINVAL},
        {0, 0, 5 * PG, RW, EINVAL},
        {PG, 0, 4 * PG, RW, EINVAL},
        {4 * PG, 0, PG, RW, EINVAL},
        {5 * PG, 0, PG, RW, EINVAL},
        {UINT64_MAX - PG + 1, 0, PG, RW, EINVAL},
        {UINT64_MAX - PG + 1, 0, 2 * PG, RW, EINVAL},
        {0, UINT64_MAX - PG + 1, PG, RW, 0},
        {3 * PG, 0, PG, RO, 0},
    };
    int fd = sealed(4 * PG);

    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        int err = guest_mem_map(f->mem, fd, rows[i].offset, rows[i].gpa, rows[i].size,
                                rows[i].flags);

        if (err != rows[i].err) {
            g_test_message("row %u", i);
        }
        g_assert_cmpint(err, ==, rows[i].err);
    }
    check_stats(f, 2, 2);
    g_assert_null(guest_ptr(f->mem, UINT64_MAX - PG + 1, PG + 1, true));
    g_assert_nonnull(guest_ptr(f->mem, UINT64_MAX - PG + 1, PG, true));
    /* Readable alone means not writable. */
    g_assert_nonnull(guest_ptr(f->mem, 0, PG, false));
    g_assert_null(guest_ptr(f->mem, 0, PG, true));
    close(fd);
}

static void test_overlap(struct fixture *f, gconstpointer arg)
{
    static const struct {
        uint64_t first, pages;
        int err;
    } rows[] = {
        {8, 4, EEXIST},  {7, 2, EEXIST}, {11, 2, EEXIST}, {9, 1, EEXIST}, {7, 6, EEXIST},
        {0, 16, EEXIST}, {8, 1, EEXIST}, {11, 1, EEXIST}, {0, 9, EEXIST}, {4, 4, 0},
        {12, 4, 0},      {3, 2, EEXIST}, {15, 2, EEXIST}, {0, 4, 0},      {16, 1, 0},
    };
    int fd = sealed(32 * PG);

    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 8 * PG, 4 * PG, RW), ==, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        int use = i % 2 ? fd : -1;

        g_assert_cmpint(
            guest_mem_map(f->mem, use, 0, rows[i].first * PG, rows[i].pages * PG, RW), ==,
            rows[i].err);
    }
    check_stats(f, 5, 1);
    for (uint64_t p = 0; p < 17; p++) {
        const struct guest_region *r =
            guest_map_find(atomic_load(&f->mem->map), p * PG + 5);

        g_assert_nonnull(r);
        g_assert_true(p * PG >= r->gpa && p * PG - r->gpa < r->size);
    }
    close(fd);
}

static void test_unmap(struct fixture *f, gconstpointer arg)
{
    int fd = sealed(4 * PG);

    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 4 * PG, 4 * PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, 2 * PG, false), ==, EINVAL);
    g_assert_cmpint(guest_mem_unmap(f->mem, 5 * PG, 3 * PG, false), ==, EINVAL);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, 5 * PG, false), ==, EINVAL);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, 0, false), ==, EINVAL);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, PG, false), ==, ENOENT);
    g_assert_cmpint(guest_mem_unmap(f->mem, 8 * PG, PG, false), ==, ENOENT);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, UINT64_MAX, false), ==, EINVAL);
    check_stats(f, 1, 1);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, 4 * PG, false), ==, 0);
    g_assert_cmpint(guest_mem_unmap(f->mem, 4 * PG, 4 * PG, false), ==, ENOENT);
    check_stats(f, 0, 0);

    for (unsigned i = 0; i < 8; i++) {
        g_assert_cmpint(guest_mem_map(f->mem, i % 2 ? fd : -1, 0, i * 8 * PG, PG,
                                      i % 4 == 1 ? RO : RW),
                        ==, 0);
    }
    check_stats(f, 8, 2);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    check_stats(f, 0, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
    close(fd);
}

static void refused(struct fixture *f, int fd, uint32_t flags)
{
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, PG, flags), ==, EPERM);
    check_stats(f, 0, 0);
    close(fd);
}

static int reopen(int fd, int flags)
{
    g_autofree char *path = g_strdup_printf("/proc/self/fd/%d", fd);
    int again = open(path, flags | O_CLOEXEC);

    g_assert_cmpint(again, >=, 0);
    return again;
}

static void test_descriptors(struct fixture *f, gconstpointer arg)
{
    g_autofree char *path = NULL;
    int fd = sealed(PG), pipes[2];

    refused(f, reopen(fd, O_RDONLY), RW);
    refused(f, reopen(fd, O_WRONLY), RO);
    refused(f, reopen(fd, O_PATH), RO);
    g_assert_cmpint(guest_mem_map(f->mem, reopen(fd, O_RDONLY), 0, 0, PG, RO), ==, 0);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, PG, false), ==, 0);
    close(fd);

    refused(f, make_memfd(PG, 0), RW);
    refused(f, make_memfd(PG, F_SEAL_GROW), RW);
    /* Sealed against writing as well: good for reading only. */
    fd = make_memfd(PG, F_SEAL_SHRINK | F_SEAL_WRITE);
    refused(f, dup(fd), RW);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, PG, RO), ==, 0);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    close(fd);

    fd = g_file_open_tmp("pvrdma-test-XXXXXX", &path, NULL);
    g_assert_cmpint(fd, >=, 0);
    unlink(path);
    g_assert_cmpint(ftruncate(fd, PG), ==, 0);
    refused(f, fd, RW);
    refused(f, open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), RO);
    refused(f, open("/dev/zero", O_RDWR | O_CLOEXEC), RW);
    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    refused(f, pipes[0], RO);
    refused(f, pipes[1], RO);
}

/* With the operator's leave any regular file does. */
static void test_unsealed(struct fixture *f, gconstpointer arg)
{
    g_autofree char *path = NULL;
    int fd = g_file_open_tmp("pvrdma-test-XXXXXX", &path, NULL);

    unlink(path);
    g_assert_cmpint(ftruncate(fd, PG + 100), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, 2 * PG, RW), ==, EINVAL);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, PG, RW), ==, 0);
    g_assert_true(guest_write(f->mem, 0, "x", 1));
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, PG, false), ==, 0);
    close(fd);
    refused(f, open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC), RO);
}

static void test_growth(struct fixture *f, gconstpointer arg)
{
    int fd = make_memfd(2 * PG, F_SEAL_SHRINK);
    char byte = 0;

    g_assert_cmpint(guest_mem_map(f->mem, fd, PG, 0x10000, PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0x30000, PG, RW), ==, 0);
    g_assert_true(guest_write(f->mem, 0x10000, "a", 1));
    g_assert_cmpint(ftruncate(fd, 64 * PG), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 60 * PG, 0x20000, 4 * PG, RW), ==, 0);
    check_stats(f, 3, 1);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 1);
    /* The old ranges have moved with the file, and still are the same pages. */
    g_assert_true(guest_read(f->mem, 0x10000, &byte, 1));
    g_assert_cmpint(byte, ==, 'a');
    g_assert_true(guest_write(f->mem, 0x30000, "b", 1));
    g_assert_cmpint(pread(fd, &byte, 1, 0), ==, 1);
    g_assert_cmpint(byte, ==, 'b');
    g_assert_true(guest_write(f->mem, 0x23fff, "c", 1));
    g_assert_cmpint(pread(fd, &byte, 1, 64 * PG - 1), ==, 1);
    g_assert_cmpint(byte, ==, 'c');
    g_assert_null(atomic_load(&f->vm.guest.fault));
    close(fd);
}

static void test_limits(struct fixture *f, gconstpointer arg)
{
    int fd = sealed(PG), big;

    for (uint64_t i = 0; i < GUEST_MEM_MAX_REGIONS; i++) {
        g_assert_cmpint(guest_mem_map(f->mem, i % 2 ? fd : -1, 0, i * PG, PG, RW), ==, 0);
    }
    g_assert_cmpint(guest_mem_map(f->mem, -1, 0, 1ull << 40, PG, RW), ==, ENOSPC);
    check_stats(f, GUEST_MEM_MAX_REGIONS, 1);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    close(fd);

    /* Address space is finite as well: 8 TiB in one range are refused, ... */
    big = sealed(1ull << 43);
    g_assert_cmpint(guest_mem_map(f->mem, big, 0, 0, 1ull << 43, RW), ==, ENOSPC);
    /* ... a small range of that file is not. */
    g_assert_cmpint(guest_mem_map(f->mem, big, 0, 0, PG, RW), ==, 0);
    close(big);

    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    for (uint64_t i = 0; i < BUDGET_GUEST_FILES; i++) {
        fd = sealed(PG);
        g_assert_cmpint(guest_mem_map(f->mem, fd, 0, i * PG, PG, RW), ==, 0);
        close(fd);
    }
    fd = sealed(PG);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 1ull << 40, PG, RW), ==, ENOSPC);
    close(fd);
}

static uint64_t bytes_of(struct fixture *f)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(f->mem, &st);
    return st.bytes;
}

/*
 * What is reported as the guest's RAM is its RAM: not the room that its files take here,
 * twice as firmware's windows are read-only, nor ranges that the VMM keeps to itself.
 */
static void test_ram(struct fixture *f, gconstpointer arg)
{
    struct guest_mem_stats st;
    int fd = sealed(200 * PG);

    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, 100 * PG, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 100 * PG, 100 * PG, 10 * PG, RO), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, -1, 0, 110 * PG, 30 * PG, RW), ==, 0);
    guest_mem_get_stats(f->mem, &st);
    g_assert_cmpuint(st.regions, ==, 3);
    g_assert_cmpuint(st.files, ==, 2);
    g_assert_cmpuint(st.ram, ==, 110 * PG);
    g_assert_cmpuint(st.bytes, ==, 400 * PG);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 100 * PG, false), ==, 0);
    guest_mem_get_stats(f->mem, &st);
    g_assert_cmpuint(st.ram, ==, 10 * PG);
    close(fd);
}

/* As much of a file is mapped as is asked for, whatever its size, and some more. */
static void test_sparse(struct fixture *f, gconstpointer arg)
{
    const uint64_t T = 1ull << 40, M = 1ull << 20;
    int fd = sealed(4 * T);
    uint64_t gpa = 0;
    char c = 0;

#ifdef __SANITIZE_THREAD__
    close(fd);
    g_test_skip("the thread sanitizer has no room for terabytes");
    return;
#endif
    g_assert_cmpint(guest_mem_map(f->mem, fd, 2 * T, gpa, PG, RW), ==, 0);
    g_assert_cmpuint(bytes_of(f), <=, 64 * M);
    g_assert_true(guest_write(f->mem, gpa, "a", 1));
    g_assert_cmpint(pread(fd, &c, 1, (off_t)(2 * T)), ==, 1);
    g_assert_cmpint(c, ==, 'a');

    /* Far away: a mapping of its own, while there are few. */
    for (unsigned i = 0; i < 3; i++) {
        gpa += PG;
        g_assert_cmpint(guest_mem_map(f->mem, fd, i * T / 2, gpa, PG, RW), ==, 0);
        g_assert_cmpuint(bytes_of(f), <=, 64 * M * (i + 2));
    }
    check_stats(f, 4, 4);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 4);

    /* Near one: that grows, downwards here, and keeps its ranges. */
    g_assert_cmpint(guest_mem_map(f->mem, fd, 2 * T - 8 * PG, 1 * T, 4 * PG, RW), ==, 0);
    check_stats(f, 5, 4);
    g_assert_true(guest_read(f->mem, 0, &c, 1));
    g_assert_cmpint(c, ==, 'a');
    g_assert_true(guest_write(f->mem, 1 * T + 4 * PG - 1, "b", 1));
    g_assert_cmpint(pread(fd, &c, 1, (off_t)(2 * T - 4 * PG - 1)), ==, 1);
    g_assert_cmpint(c, ==, 'b');

    /* A fifth place: two of them become one. */
    g_assert_cmpint(guest_mem_map(f->mem, fd, 3 * T, 2 * T, PG, RW), ==, 0);
    check_stats(f, 6, 4);
    g_assert_cmpuint(bytes_of(f), >=, 1 * T);
    g_assert_true(guest_read(f->mem, 0, &c, 1));
    g_assert_cmpint(c, ==, 'a');

    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    g_assert_cmpuint(bytes_of(f), ==, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
    close(fd);
}

/* Many steps upwards cost few new mappings, and never more than twice the need. */
static void test_steps(struct fixture *f, gconstpointer arg)
{
    const uint64_t step = 128ull << 20;
    int fd = sealed(1ull << 40);
    uint64_t last = 0;
    unsigned grown = 0;

    for (uint64_t i = 0; i < 512; i++) {
        g_assert_cmpint(guest_mem_map(f->mem, fd, i * step, i * step, step, RW), ==, 0);
        g_assert_cmpuint(bytes_of(f), <=, 2 * (i + 1) * step);
        grown += bytes_of(f) != last;
        last = bytes_of(f);
    }
    check_stats(f, 512, 1);
    g_assert_cmpuint(grown, <=, 12);
    close(fd);
}

/* Ranges from all over files of all sizes are the bytes they should be. */
static void test_random(struct fixture *f, gconstpointer arg)
{
    static const uint64_t sizes[] = {1, 3, 100, 16384, 16385, 100000, 1ull << 22};
    GRand *r = g_rand_new_with_seed(11);
    int fd[G_N_ELEMENTS(sizes)];
    struct {
        unsigned file;
        uint64_t page;
        bool on;
    } slot[64] = {0};

    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        fd[i] = sealed(sizes[i] * PG);
    }
    for (unsigned i = 0; i < 3000; i++) {
        unsigned s = g_rand_int(r) % G_N_ELEMENTS(slot);
        uint64_t gpa = s * PG, want = g_rand_int(r), got = 0;

        if (slot[s].on) {
            g_assert_cmpint(guest_mem_unmap(f->mem, gpa, PG, false), ==, 0);
            slot[s].on = false;
            continue;
        }
        slot[s].file = g_rand_int(r) % G_N_ELEMENTS(sizes);
        slot[s].page = g_rand_int(r) % sizes[slot[s].file];
        slot[s].on = true;
        g_assert_cmpint(
            guest_mem_map(f->mem, fd[slot[s].file], slot[s].page * PG, gpa, PG, RW), ==,
            0);
        for (unsigned k = 0; k < G_N_ELEMENTS(slot); k++) {
            off_t at = (off_t)(slot[k].page * PG);

            if (slot[k].on) {
                want++;
                g_assert_true(guest_write(f->mem, k * PG, &want, sizeof(want)));
                g_assert_cmpint(pread(fd[slot[k].file], &got, sizeof(got), at), ==, 8);
                g_assert_cmpuint(got, ==, want);
            }
        }
    }
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
        close(fd[i]);
    }
    g_rand_free(r);
}

/* Max-memory and max-files, and what a refusal leaves behind. */
static void test_own_limits(struct fixture *f, gconstpointer arg)
{
    const uint64_t M = 1ull << 20;
    struct guest_mem_stats st;
    int fd = sealed(1024 * M), other = sealed(PG);

    guest_mem_limit(f->mem, 512 * M, 1);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, 513 * M, RW), ==, ENOSPC);
    check_stats(f, 0, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, 512 * M, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 1023 * M, 1ull << 40, M, RW), ==, ENOSPC);
    g_assert_cmpint(guest_mem_map(f->mem, other, 0, 1ull << 40, PG, RW), ==, ENOSPC);
    check_stats(f, 1, 1);
    guest_mem_get_stats(f->mem, &st);
    g_assert_cmpuint(st.refused, ==, 3);
    g_assert_cmpuint(st.bytes, ==, 512 * M);
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 512 * M, false), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, other, 0, 1ull << 40, PG, RW), ==, 0);
    close(fd);
    close(other);
}

/* As QEMU maps a guest whose max-memory is just its size. */
static void test_tight(struct fixture *f, gconstpointer arg)
{
    const uint64_t G = 1ull << 30, low = 0xa0000, high = 0x100000;
    int fd = sealed(16 * G);

    guest_mem_limit(f->mem, 16 * G, 1);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, low, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, high, high, 2 * G - high, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 2 * G, 4 * G, 14 * G, RW), ==, 0);
    check_stats(f, 3, 1);
    g_assert_cmpuint(bytes_of(f), ==, 16 * G);
    close(fd);
}

/* What firmware does to 0xc0000..0xfffff, many times over. */
static void test_churn(struct fixture *f, gconstpointer arg)
{
    int rounds = g_test_slow() ? 100000 : 3000;
    int fd = sealed(0x200000);
    unsigned maps;

    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0, 0xc0000, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0x100000, 0x100000, 0x100000, RW), ==, 0);
    maps = count_maps("");
    for (int i = 0; i < rounds; i++) {
        uint64_t at = 0xc0000 + (uint64_t)(i % 16) * 0x4000;

        g_assert_cmpint(guest_mem_map(f->mem, fd, at, at, 0x4000, i & 1 ? RO : RW), ==,
                        0);
        g_assert_cmpint(guest_mem_unmap(f->mem, at, 0x4000, false), ==, 0);
    }
    check_stats(f, 2, 1);
    g_assert_cmpuint(count_maps(""), <=, maps + 8);
    close(fd);
}

/*
 * A file that was truncated: all accesses survive, the VM is at fault, and from then on
 * nothing that was read is said to be good.
 */
static void test_sigbus(struct fixture *f, gconstpointer arg)
{
    int fd = make_memfd(4 * PG, 0);
    char byte = 1;

    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0x10000, 4 * PG, RW), ==, 0);
    g_assert_true(guest_write(f->mem, 0x10000, "a", 1));
    g_assert_cmpint(ftruncate(fd, PG), ==, 0);
    g_assert_null(atomic_load(&f->vm.guest.fault));
    g_assert_true(guest_read(f->mem, 0x10000, &byte, 1));
    g_assert_false(guest_read(f->mem, 0x10000 + 2 * PG, &byte, 1));
    g_assert_cmpint(byte, ==, 0);
    g_assert_nonnull(atomic_load(&f->vm.guest.fault));
    g_assert_true(guest_write(f->mem, 0x10000 + 4 * PG - 1, "b", 1));
    g_assert_false(guest_read(f->mem, 0x10000, &byte, 1));
    g_assert_cmpint(byte, ==, 'a');
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
    close(fd);
}

/* Huge pages of which there are none left (none were reserved). */
static void test_sigbus_hugetlb(struct fixture *f, gconstpointer arg)
{
    const uint64_t huge = 2 << 20;
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB |
                                      (21u << MFD_HUGE_SHIFT));
    char *at;
    char byte = 1;

    if (fd < 0 || ftruncate(fd, 256 * (off_t)huge) < 0) {
        g_test_skip("no 2 MiB huge pages in this kernel");
        return;
    }
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), ==, 0);
    /* A window that is no multiple of the huge page, at an odd offset. */
    g_assert_cmpint(guest_mem_map(f->mem, fd, huge + 0x4000, 0xc0000, 0x4000, RW), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, fd, 0, 0x1000000, 256 * huge, RW), ==, 0);
    check_stats(f, 2, 1);
    at = guest_ptr(f->mem, 0x1000000, 256 * huge, true);
    for (unsigned i = 0; i < 256 && !atomic_load(&f->vm.guest.fault); i++) {
        at[i * huge + 12345] = 1;
    }
    if (atomic_load(&f->vm.guest.fault)) {
        g_assert_false(guest_read(f->mem, 0x1000000 + 256 * huge - 1, &byte, 1));
        g_assert_cmpint(byte, ==, 0);
    } else {
        g_test_skip("this machine has too many huge pages for the test");
    }
    g_assert_cmpint(guest_mem_unmap(f->mem, 0, 0, true), ==, 0);
    g_assert_cmpuint(count_maps("memfd:test"), ==, 0);
    close(fd);
}

/* Faults elsewhere are not swallowed. */
static void test_sigbus_foreign(struct fixture *f, gconstpointer arg)
{
    if (g_test_subprocess()) {
        int fd = make_memfd(PG, 0);
        volatile char *p = mmap(NULL, PG, PROT_READ, MAP_SHARED, fd, 0);

        signal(SIGABRT, SIG_DFL);
        g_assert_cmpint(ftruncate(fd, 0), ==, 0);
        exit(p[0]);
    }
    g_test_trap_subprocess(NULL, 5000000, 0);
    g_test_trap_assert_failed();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name, arg)                                                                \
    g_test_add("/frontend/guest_mem/" #name, struct fixture, arg, setup, test_##name, \
               teardown)
    ADD(access, NULL);
    ADD(ranges, NULL);
    ADD(not_kept, "unsealed");
    ADD(arguments, NULL);
    ADD(overlap, NULL);
    ADD(unmap, NULL);
    ADD(descriptors, NULL);
    ADD(unsealed, "unsealed");
    ADD(growth, NULL);
    ADD(limits, NULL);
    ADD(ram, NULL);
    ADD(sparse, NULL);
    ADD(steps, NULL);
    ADD(random, NULL);
    ADD(own_limits, NULL);
    ADD(tight, NULL);
    ADD(churn, NULL);
    ADD(sigbus, "unsealed");
    ADD(sigbus_hugetlb, NULL);
    ADD(sigbus_foreign, NULL);
    return g_test_run();
}
