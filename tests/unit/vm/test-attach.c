/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A VM's life: attach and detach leave nothing behind, a fault that any thread
 * reports ends in a detach by the main loop, pauses are counted.  With real
 * workers, without a VMM.
 */
#include <fcntl.h>
#include <glib/gstdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/grace.h"
#include "config/config.h"
#include "control/registry.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "guest/mem.h"
#include "pvrdma/vfio_user.h"
#include "vm/attach.h"

static struct daemon_config *cfg;

static unsigned count_fds(void)
{
    GDir *dir = g_dir_open("/proc/self/fd", 0, NULL);
    unsigned n = 0;

    while (g_dir_read_name(dir)) {
        n++;
    }
    g_dir_close(dir);
    return n;
}

static unsigned count_maps(void)
{
    g_autofree char *text = NULL;
    unsigned n = 0;

    g_assert_true(g_file_get_contents("/proc/self/maps", &text, NULL, NULL));
    for (char *p = text; *p; p++) {
        n += *p == '\n';
    }
    return n;
}

static struct vm *declare(const char *name)
{
    g_autoptr(GError) err = NULL;
    struct vm_config *vc = config_vm_new(cfg, name, &err);
    struct vm *vm;

    g_assert_true(config_vm_set(vc, "addresses", "any", &err));
    vm = registry_add(vc, &err);
    g_assert_no_error(err);
    return vm;
}

static void attach(struct vm *vm)
{
    g_autoptr(GError) err = NULL;

    g_assert_true(vm_attach(vm, &err));
    g_assert_no_error(err);
    g_assert_true(vm->attached);
}

/* One attachment with some guest memory. */
static void one_round(struct vm *vm)
{
    int fd = memfd_create("guest", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(ftruncate(fd, 1 << 20), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), ==, 0);
    attach(vm);
    g_assert_cmpint(guest_mem_map(&vm->guest.mem, fd, 0, 0, 1 << 20,
                                  VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG),
                    ==, 0);
    close(fd);
    vm_detach(vm);
}

static void test_rounds(void)
{
    struct vm *vm = declare("a");
    unsigned fds, maps;

    /* The first rounds fill the allocator's caches. */
    for (unsigned i = 0; i < 4; i++) {
        one_round(vm);
    }
    fds = count_fds();
    maps = count_maps();
    for (unsigned i = 0; i < 200; i++) {
        one_round(vm);
        vm_detach(vm); /* a second one does nothing */
    }
    g_assert_cmpuint(count_fds(), ==, fds);
    /* The allocator may map a little; one per round would be 200. */
    g_assert_cmpuint(count_maps(), <, maps + 100);
    g_assert_cmpuint(vm->attaches, ==, 204);
    registry_remove(vm);
    g_assert_null(registry_find("a"));
}

static gpointer faulter(gpointer vm)
{
    guest_fault(&((struct vm *)vm)->guest, "the test says so");
    guest_fault(&((struct vm *)vm)->guest, "a second reason");
    return NULL;
}

static void test_fault(void)
{
    struct vm *vm = declare("a"), *other = declare("b");

    attach(vm);
    attach(other);
    g_thread_join(g_thread_new("faulter", faulter, vm));
    g_assert_cmpstr(atomic_load(&vm->guest.fault), ==, "the test says so");
    for (unsigned i = 0; i < 1000 && vm->attached; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(1000);
    }
    g_assert_false(vm->attached);
    g_assert_null(atomic_load(&vm->guest.fault));
    g_assert_cmpuint(vm->faults, ==, 1);
    g_assert_true(other->attached);
    g_assert_cmpuint(other->faults, ==, 0);

    attach(vm); /* and it may come back */
    registry_remove(vm);
    registry_remove(other); /* attached: detaches */
}

static void test_pause(void)
{
    struct vm *vm = declare("a");

    datapath_pause(vm); /* not attached: nothing */
    g_assert_cmpuint(vm->pauses, ==, 0);
    attach(vm);
    datapath_resume(vm);
    g_assert_false(atomic_load(&vm->dp.paused));
    datapath_pause(vm);
    datapath_pause(vm);
    g_assert_true(atomic_load(&vm->dp.paused));
    datapath_resume(vm);
    g_assert_true(atomic_load(&vm->dp.paused));
    datapath_resume(vm);
    g_assert_false(atomic_load(&vm->dp.paused));

    /* A VM that leaves while paused does not come back paused. */
    datapath_pause(vm);
    datapath_pause(vm);
    vm_detach(vm);
    attach(vm);
    g_assert_false(atomic_load(&vm->dp.paused));
    g_assert_cmpuint(vm->pauses, ==, 0);
    registry_remove(vm);
}

int main(int argc, char **argv)
{
    g_autofree char *dir = NULL;
    g_autoptr(GError) err = NULL;
    int rc;

    g_test_init(&argc, &argv, NULL);
    dir = g_dir_make_tmp("pvrdma-vm-XXXXXX", NULL);
    g_assert_nonnull(dir);
    cfg = config_new();
    g_assert_true(config_set(cfg, "socket-dir", dir, false, NULL));
    config_complete(cfg);
    log_set_level(LOG_LVL_ERROR);
    guest_mem_init_process();
    directory_init();
    g_assert_true(registry_start(&err));
    g_assert_true(datapath_start(2, 50, &err));

    g_test_add_func("/vm/rounds", test_rounds);
    g_test_add_func("/vm/fault", test_fault);
    g_test_add_func("/vm/pause", test_pause);
    rc = g_test_run();

    datapath_stop();
    registry_stop();
    directory_fini();
    config_free(cfg);
    g_rmdir(dir);
    return rc;
}
