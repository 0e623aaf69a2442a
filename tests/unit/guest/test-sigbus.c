/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * SIGBUS in more pages than a process may have mappings, and with mappings so short
 * that no page can be covered by itself: the VM has a fault, the process lives.
 *
 * The linker sends the daemon's mmap() here (--wrap).
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guest/doorbells.h"
#include "guest/guest.h"
#include "guest/sigbus.h"
#include "objects/vm.h"
#include "pvrdma/vfio_user.h"

#define PG    4096ull
#define PAGES 40000u /* each by itself would split a mapping: 80,000 of 65,530 */

void *__real_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset);

static volatile size_t refuse_up_to; /* covers of so many bytes fail */
static volatile unsigned covers;     /* counted in a signal handler */
static struct guest *covered;        /* whose memory that is */
static volatile bool too_early;      /* there were zeros, and it had no fault yet */

void *__wrap_mmap64(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
    if ((flags & MAP_FIXED) && (flags & MAP_ANONYMOUS)) {
        covers++;
        too_early |= !guest_faulted(covered);
        if (len <= refuse_up_to) {
            return MAP_FAILED;
        }
    }
    return __real_mmap64(at, len, prot, flags, fd, offset);
}

static struct vm_config test_config = {.name = (char *)"test"};

struct fixture {
    struct vm vm;
    struct guest_mem *mem;
    volatile uint8_t *p;
    int fd;
};

/* A file in guest memory of which nothing is left. */
static void setup(struct fixture *f, gconstpointer arg)
{
    guest_mem_init_process();
    f->vm.cfg = &test_config;
    covered = &f->vm.guest;
    f->mem = &f->vm.guest.mem;
    guest_mem_init(f->mem, &f->vm.guest, false);
    f->fd = memfd_create("test", MFD_CLOEXEC);
    g_assert_cmpint(ftruncate(f->fd, PAGES * PG), ==, 0);
    g_assert_cmpint(guest_mem_map(f->mem, f->fd, 0, 0, PAGES * PG,
                                  VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG),
                    ==, 0);
    f->p = guest_ptr(f->mem, 0, PAGES * PG, true);
    g_assert_cmpint(ftruncate(f->fd, 0), ==, 0);
    covers = 0;
    refuse_up_to = 0;
}

static void teardown(struct fixture *f, gconstpointer arg)
{
    guest_mem_fini(f->mem);
    close(f->fd);
}

static unsigned count_maps(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned n = 0;
    int c;

    while ((c = fgetc(maps)) != EOF) {
        n += c == '\n';
    }
    fclose(maps);
    return n;
}

/* Every page but each second one, so that covers cannot merge. */
static void touch_all(struct fixture *f)
{
    for (unsigned i = 0; i < PAGES; i += 2) {
        f->p[i * PG] = 1;
        g_assert_cmpint(f->p[i * PG + 1], ==, 0);
    }
}

static void test_many(struct fixture *f, gconstpointer arg)
{
    unsigned before = count_maps();

    g_assert_false(guest_faulted(&f->vm.guest));
    touch_all(f);
    g_assert_true(guest_faulted(&f->vm.guest));
    g_assert_false(too_early);
    g_assert_cmpuint(covers, ==, SIGBUS_MAX_COVERS + 1);
    /* 64 single pages were 128; a sanitizer may add some of its own. */
    g_assert_cmpuint(count_maps(), <=, before + 16);
}

static void test_no_page(struct fixture *f, gconstpointer arg)
{
    refuse_up_to = PG;
    f->p[17 * PG] = 1;
    g_assert_true(guest_faulted(&f->vm.guest));
    g_assert_cmpuint(covers, ==, 2);
    f->p[0] = 1;
    f->p[PAGES * PG - 1] = 1;
    g_assert_cmpuint(covers, ==, 2);
}

/* A guard that another VM got afterwards counts anew. */
static void test_again(struct fixture *f, gconstpointer arg)
{
    touch_all(f);
    teardown(f, NULL);
    f->vm.guest.fault = NULL;
    setup(f, NULL);
    f->p[3 * PG] = 1;
    g_assert_cmpuint(covers, ==, 1);
    g_assert_true(guest_faulted(&f->vm.guest));
}

/* ---- the doorbell region, of which a VMM has a descriptor ---- */

static int empty_file(void)
{
    int fd = memfd_create("empty", MFD_CLOEXEC);

    g_assert_cmpint(fd, >=, 0);
    return fd;
}

/*
 * The host has no pages for it any more: as in a file that has none, which lies in its
 * place.
 */
static void lose_region(struct pvrdma_db_region *region)
{
    int fd = empty_file();

    g_assert_true(mmap(region, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, 0) == region);
    close(fd);
}

static void test_doorbells(void)
{
    static struct guest guest;
    GError *err = NULL;

    guest_mem_init_process();
    covered = &guest;
    for (unsigned i = 0; i < 3; i++) {
        g_assert_true(doorbells_init(&guest.db, &guest, -1, &err));
        g_assert_no_error(err);
        lose_region(guest.db.shared);
        g_assert_false(guest_faulted(&guest));
        if (i == 0) {
            doorbell_set(&guest.db.shared->send, 77);
        } else {
            doorbells_reset(&guest.db, PVRDMA_DB_WORDS, 1, 1);
        }
        g_assert_true(guest_faulted(&guest));
        doorbells_fini(&guest.db);
        guest.fault = NULL;
    }
}

/* That of another daemon, which takes its place: either may be gone. */
static void test_doorbells_adopted(void)
{
    static struct guest guest;
    GError *err = NULL;

    covered = &guest;
    for (unsigned i = 0; i < 2; i++) {
        g_assert_true(doorbells_init(&guest.db, &guest, -1, &err));
        g_assert_no_error(err);
        if (i) {
            lose_region(guest.db.shared);
        }
        g_assert_true(doorbells_adopt(&guest.db, empty_file()));
        g_assert_true(guest_faulted(&guest));
        guest.fault = NULL;
        doorbell_set(&guest.db.shared->send, 77); /* it has a guard of its own */
        g_assert_true(guest_faulted(&guest));
        doorbells_fini(&guest.db);
        guest.fault = NULL;
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add("/guest/sigbus/many", struct fixture, NULL, setup, test_many, teardown);
    g_test_add("/guest/sigbus/no-page", struct fixture, NULL, setup, test_no_page,
               teardown);
    g_test_add_func("/guest/sigbus/doorbells", test_doorbells);
    g_test_add_func("/guest/sigbus/doorbells-adopted", test_doorbells_adopted);
    g_test_add("/guest/sigbus/again", struct fixture, NULL, setup, test_again, teardown);
    return g_test_run();
}
