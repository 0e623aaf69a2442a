/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * All VMs are made to stand still for another daemon, or one that ends
 * (control/restart/exec.c): what is late, a command, a worker or memory that is being
 * freed, and what becomes of its VM and of the others.
 */
#include "two.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "control/registry.h"
#include "control/restart/internal.h"
#include "control/restart/restart.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "guest/budget.h"
#include "guest/reaper.h"

static gint64 late_us; /* what restart_late_us is */

/* This one takes long to close, as much memory does. */
static _Atomic int slow_fd = -1;
static _Atomic bool slow_closing;

int __wrap_close(int fd);
int __real_close(int fd);

int __wrap_close(int fd)
{
    while (fd >= 0 && fd == atomic_load(&slow_fd)) {
        atomic_store(&slow_closing, true);
        g_usleep(1000);
    }
    return __real_close(fd);
}

struct freeze {
    GPtrArray *frozen;
    gint64 since;
    GError *err;
    bool ok, done, all;
};

static void run_freeze(void *opaque)
{
    struct freeze *f = opaque;

    f->ok = restart_freeze_all(f->frozen, f->all, &f->since, &f->err);
    f->done = true;
}

/* Until all stand still, as soon as nothing of the last test is being closed any more. */
static void begin_freeze(struct two *t, struct freeze *f)
{
    coro_run(run_freeze, f);
    TWO_WAIT(t->b.vm->conn->frozen);
}

/* What is late, is so soon. */
static void be_impatient(void)
{
    restart_late_us = G_USEC_PER_SEC / 4;
}

static void teardown(struct two *t, gconstpointer arg)
{
    restart_late_us = late_us;
    two_teardown(t, arg);
}

/* What goes to stderr, in a file. */
struct caught {
    int log, before;
};

static void catch_log(struct caught *c)
{
    c->log = memfd_create("log", MFD_CLOEXEC);
    c->before = dup(STDERR_FILENO);
    g_assert_cmpint(dup2(c->log, STDERR_FILENO), ==, STDERR_FILENO);
}

static bool has_logged(const struct caught *c, const char *what)
{
    g_autofree char *text = g_malloc0(65536);

    g_assert_cmpint(pread(c->log, text, 65535, 0), >=, 0);
    return strstr(text, what);
}

static void release_log(const struct caught *c)
{
    g_assert_cmpint(dup2(c->before, STDERR_FILENO), ==, STDERR_FILENO);
    close(c->before);
    close(c->log);
}

static void run_thaw(void *opaque)
{
    struct freeze *f = opaque;

    restart_thaw_all(f->frozen, true);
    f->done = true;
}

/* Who came along does, in this daemon. */
static void go_on(struct two *t, struct freeze *f)
{
    restart_thaw_all(f->frozen, true);
    two_check_b_answers(t);
    g_ptr_array_unref(f->frozen);
}

/* A command that takes long holds up nobody but its VM. */
static void test_late(struct two *t, gconstpointer arg)
{
    uint16_t destroy = two_park_destroy(t), info = two_send_info(t->a.cl), reset;
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    begin_freeze(t, &f);
    reset = two_send_info(t->b.cl);
    client_silent(t->b.cl);
    /* In vain: the others go on, and what is late is waited for. */
    two_expect_reply(t->b.cl, reset, 0);
    two_check_b_answers(t);
    g_assert_false(f.done);
    grace_pass(&two_stuck);
    two_expect_reply(t->a.cl, destroy, 0);
    TWO_WAIT((grace_pass(&two_stuck), f.done));
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 2);

    /* What came meanwhile waits, and nobody waits for it. */
    reset = client_send(t->a.cl, VFIO_USER_DEVICE_RESET, 0, NULL, 0, NULL, 0);
    client_silent(t->a.cl);
    f.done = false;
    coro_run(run_thaw, &f);
    g_assert_true(f.done);
    two_expect_reply(t->a.cl, info, 0);
    two_check_b_answers(t);
    client_silent(t->a.cl);
    grace_offline(&two_stuck);
    two_expect_reply(t->a.cl, reset, 0);
    g_ptr_array_unref(f.frozen);
}

/* One that does not end costs its VM the connection, and the others a second. */
static void test_hung(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    be_impatient();
    t->a.vm->ops.held = true;
    coro_run(run_freeze, &f);
    TWO_WAIT(t->a.vm->conn->why);
    two_check_b_answers(t);
    coro_unlock(&t->a.vm->ops);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_null(t->a.vm->conn);
    g_assert_nonnull(t->b.vm->conn);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    go_on(t, &f);
}

/* Who leaves keeps the others whatever one does. */
static void test_leave(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};

    be_impatient();
    t->a.vm->ops.held = true;
    coro_run(run_freeze, &f);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 1);
    g_assert_true(f.frozen->pdata[0] == t->b.vm);
    g_assert_null(t->a.vm->conn->why);
    restart_thaw_all(f.frozen, true); /* it leaves nothing in the end */
    two_check_b_answers(t);
    t->a.vm->ops.held = false;
    g_ptr_array_unref(f.frozen);
}

/* All stand still, and then go on as it is in vain. */
static void expect_attempt(struct two *t, struct freeze *f)
{
    uint16_t info = two_send_info(t->b.cl);

    client_silent(t->b.cl);
    two_expect_reply(t->b.cl, info, 0);
    two_check_b_answers(t);
    g_assert_false(f->done);
}

/*
 * A command waits for a worker that stands in another VM's turn: its own VM is not let go
 * for that, and not named.
 */
static void test_held_up(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
    uint16_t destroy = two_park_destroy(t);
    struct caught c;

    be_impatient();
    catch_log(&c);
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    TWO_WAIT(t->b.vm->conn->frozen); /* the next attempt */
    g_assert_true(has_logged(&c, "the VM is not known"));
    g_assert_false(has_logged(&c, "vm test"));
    release_log(&c);
    g_assert_null(t->a.vm->conn->why);
    TWO_WAIT((grace_pass(&two_stuck), f.done));
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    two_expect_reply(t->a.cl, destroy, 0);
    g_assert_null(t->a.vm->conn->why);
    go_on(t, &f);
}

/* Nor is it when the worker goes on, and the command is not over yet. */
static void test_held_up_once(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    be_impatient();
    t->a.vm->ops.held = true;
    grace_online(&two_stuck);
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    TWO_STAYS(restart_late_us * 3 / 2, !t->a.vm->conn->why);
    grace_offline(&two_stuck);
    TWO_WAIT(t->b.vm->conn->frozen); /* the next attempt */
    g_assert_null(t->a.vm->conn->why);
    coro_unlock(&t->a.vm->ops);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    go_on(t, &f);
}

/* ... nor is it left out. */
static void test_leave_held_up(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};
    uint16_t destroy = two_park_destroy(t);

    be_impatient();
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    TWO_WAIT(t->b.vm->conn->frozen); /* the next attempt, which is the last one */
    TWO_STAYS(3 * G_USEC_PER_SEC / 2, t->b.vm->conn->frozen);
    TWO_WAIT((grace_pass(&two_stuck), f.done));
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    two_expect_reply(t->a.cl, destroy, 0);
    go_on(t, &f);
}

static _Atomic bool stand, stands;

/* In a turn of VM A's worker, with its token. */
static void stand_there(struct note *n, struct vm *vm)
{
    atomic_store(&stands, true);
    while (atomic_load(&stand)) {
        g_usleep(1000);
    }
}

/*
 * A worker that stands in a page fault when nothing else is in work, with a VM's token:
 * the others go on until it is out of it.
 */
static void test_stuck(struct two *t, gconstpointer arg)
{
    static struct note note = {.run = stand_there};
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
    struct caught c;

    atomic_store(&stand, true);
    vm_post(t->a.vm, &note);
    TWO_WAIT(atomic_load(&stands));
    catch_log(&c);
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    g_assert_true(has_logged(&c, "vm test: delays a restart: its worker"));
    g_assert_false(has_logged(&c, "vm other"));
    release_log(&c);
    atomic_store(&stand, false);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_no_error(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    go_on(t, &f);
}

/* 10.0.0.1. */
static const struct pvrdma_gid gid_a = {{[10] = 0xff, [11] = 0xff, [12] = 10, [15] = 1}};

static void bind_address(struct two *t)
{
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024,
        .vlan = 0xfff,
        .gid = gid_a,
        .gid_type = ((struct pvrdma_dsr *)(void *)t->ram_a.ram)->caps.gid_types,
    };

    g_assert_cmpuint(
        two_command(t->a.cl, &t->ram_a, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req)), ==,
        0);
}

/*
 * Who leaves waits for it for longer, at last: it can leave nobody out instead.  Peers
 * wait for as long from the end of that on as they would have without.
 */
static void test_leave_stuck(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};
    const struct route *route;
    uint64_t held;

    bind_address(t);
    route = route_find(t->a.vm->objects.network, &gid_a);
    grace_online(&two_stuck);
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    grace_pass(&two_stuck); /* once */
    TWO_WAIT(atomic_load(&t->a.vm->dp.paused));
    TWO_STAYS(3 * G_USEC_PER_SEC / 2, atomic_load(&t->a.vm->dp.paused));
    g_assert_false(f.done);
    held = atomic_load(&route->held_until);
    g_assert_cmpuint(held, !=, 0);
    TWO_WAIT((grace_pass(&two_stuck), f.done));
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    g_assert_cmpuint(atomic_load(&route->held_until), >, held);
    go_on(t, &f);
}

/* The daemon is to end at once while all stand still for a worker: all go on. */
static void test_leave_end(struct two *t, gconstpointer arg)
{
    char *argv[] = {NULL};
    struct freeze f = {.frozen = g_ptr_array_new()};

    grace_online(&two_stuck);
    begin_freeze(t, &f);
    g_assert_false(f.done);
    restart_stop();
    TWO_WAIT(f.done);
    g_assert_false(f.ok);
    g_assert_nonnull(f.err);
    g_assert_cmpuint(f.frozen->len, ==, 0);
    two_check_b_answers(t);
    g_assert_false(atomic_load(&t->a.vm->dp.paused));
    restart_init(argv);
    g_error_free(f.err);
    g_ptr_array_unref(f.frozen);
}

/*
 * Memory is being freed, by the reaper or (@arg) a closer: all run while that is waited
 * for, and stand still for a moment only if it takes too long.
 */
static void test_memory(struct two *t, gconstpointer arg)
{
    gint64 before = restart_memory_us;
    int behind = sealed_memfd(PG);
    GError *err = NULL;

    g_assert_true(reaper_start(&err));
    for (unsigned round = 0; round < 2; round++) {
        struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
        struct budget *b = budget_new();
        int fd = sealed_memfd(PG);

        atomic_store(&slow_closing, false);
        atomic_store(&slow_fd, fd);
        if (arg) {
            discard_fd(&t->a.vm->discard, fd);
        } else {
            budget_set(b, PG, 1);
            g_assert_null(budget_take(b, PG));
            budget_retire(b, PG);
            reaper_unmap(mmap(NULL, PG, PROT_READ, MAP_SHARED, fd, 0), PG, PG, b, fd);
        }
        TWO_WAIT(atomic_load(&slow_closing));
        restart_memory_us = round ? 0 : before;
        if (round) {
            begin_freeze(t, &f);
            expect_attempt(t, &f);
        } else {
            coro_run(run_freeze, &f);
            two_check_b_answers(t);
        }
        g_assert_false(f.done);
        atomic_store(&slow_fd, -1);
        TWO_WAIT(f.done);
        g_assert_true(f.ok);
        if (round) { /* what is to be closed from now on waits */
            discard_fd(&t->a.vm->discard, behind);
            g_usleep(10000);
            g_assert_cmpint(fcntl(behind, F_GETFD), >=, 0);
        }
        restart_thaw_all(f.frozen, true);
        TWO_WAIT(discard_waiting(t->a.vm->discard) == 0);
        two_check_b_answers(t);
        budget_unref(b);
        g_ptr_array_unref(f.frozen);
    }
    restart_memory_us = before;
    reaper_stop();
}

/* A daemon that leaves does not stay for it: the kernel frees it then. */
static void test_leave_memory(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new()};
    gint64 before = restart_memory_us;
    int fd = sealed_memfd(PG);

    be_impatient();
    restart_memory_us = 0;
    atomic_store(&slow_closing, false);
    atomic_store(&slow_fd, fd);
    discard_fd(&t->a.vm->discard, fd);
    TWO_WAIT(atomic_load(&slow_closing));
    begin_freeze(t, &f);
    expect_attempt(t, &f);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    atomic_store(&slow_fd, -1);
    TWO_WAIT(discard_waiting(t->a.vm->discard) == 0);
    two_check_b_answers(t);
    restart_memory_us = before;
    g_ptr_array_unref(f.frozen);
}

static int feature(int fd, uint32_t flags, uint32_t state, bool wait, uint16_t *id)
{
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_mig_device_state data;
    } msg = {{sizeof(msg), VFIO_USER_FEATURE_MIG_DEVICE_STATE | flags}, {state, -1}};

    if (wait) {
        return client_do(fd, VFIO_USER_DEVICE_FEATURE, &msg, sizeof(msg));
    }
    *id = client_send(fd, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0);
    return 0;
}

static void set_state(int fd, enum vfio_user_mig_state state)
{
    g_assert_cmpint(feature(fd, VFIO_USER_FEATURE_SET, state, true, NULL), ==, 0);
}

/* All of VM A's state, as @msg for another VM; A runs on. */
static uint32_t copy_state(struct two *t, uint8_t *msg)
{
    struct vfio_user_mig_data req = {UINT32_MAX, VFIO_USER_MAX_DATA};
    g_autofree struct reply *r = g_new0(struct reply, 1);

    set_state(t->a.cl, VFIO_USER_MIG_STOP_COPY);
    client_ask(t->a.cl, VFIO_USER_MIG_DATA_READ, &req, sizeof(req), r);
    set_state(t->a.cl, VFIO_USER_MIG_RUNNING);
    memcpy(msg, r->body, r->len);
    return r->len;
}

/*
 * A target waits for its addresses: nobody waits for that, it goes on behind, for as long
 * as it would have without.
 */
static void test_claim(struct two *t, gconstpointer arg)
{
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, TWO_RAM_GPA, TWO_RAM_PAGES * PG};
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
    g_autofree uint8_t *state = g_malloc(VFIO_USER_MAX_DATA + 64);
    g_autofree struct reply *r = g_new0(struct reply, 1);
    gint64 before = migration_claim_us;
    struct fixture c = t->a;
    uint32_t len;
    uint16_t id;

    bind_address(t);
    len = copy_state(t, state);
    two_add_vm(&c, "third");
    g_assert_true(config_vm_set(c.vm->cfg, "addresses", "10.0.0.1", NULL));
    client_attach(&c);
    g_assert_cmpint(
        client_call(c.cl, VFIO_USER_DMA_MAP, &map, sizeof(map), &t->ram_a.fd, 1, r), ==,
        0);
    set_state(c.cl, VFIO_USER_MIG_RESUMING);
    g_assert_cmpint(client_do(c.cl, VFIO_USER_MIG_DATA_WRITE, state, len), ==, 0);
    set_state(c.cl, VFIO_USER_MIG_STOP);
    migration_claim_us = 1000ll * G_USEC_PER_SEC;
    feature(c.cl, VFIO_USER_FEATURE_SET, VFIO_USER_MIG_RUNNING, false, &id);
    TWO_WAIT(c.vm->conn->parked);

    migration_claim_us = 0; /* of claims that begin from now on */
    coro_run(run_freeze, &f);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 3);
    g_assert_true(c.vm->conn && !c.vm->conn->why);
    client_silent(c.cl);
    restart_thaw_all(f.frozen, true);
    TWO_WAIT(c.vm->conn->parked);
    client_silent(c.cl);
    close(t->a.cl);
    t->a.cl = -1;
    two_expect_reply(c.cl, id, 0); /* the addresses are to be had */
    migration_claim_us = before;
    close(c.cl);
    TWO_WAIT(!c.vm->conn);
    registry_remove(c.vm);
    g_ptr_array_unref(f.frozen);
}

/* Of two that are late one goes on as soon as it is at rest. */
static void test_two(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};
    struct caught c;
    uint16_t info;

    t->a.vm->ops.held = true;
    t->b.vm->ops.held = true;
    catch_log(&c);
    coro_run(run_freeze, &f);
    TWO_WAIT(has_logged(&c, "vm other: delays a restart: a command"));
    release_log(&c);
    coro_unlock(&t->a.vm->ops);
    info = two_send_info(t->a.cl);
    two_expect_reply(t->a.cl, info, 0);
    g_assert_false(f.done);
    g_assert_null(t->b.vm->conn->why);
    t->b.vm->ops.held = false;
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    go_on(t, &f);
}

/* One with a fault is let go, and the others stand still without it. */
static void test_fault(struct two *t, gconstpointer arg)
{
    struct freeze f = {.frozen = g_ptr_array_new(), .all = true};

    guest_fault(&t->a.vm->guest, "the test says so");
    coro_run(run_freeze, &f);
    TWO_WAIT(f.done);
    g_assert_true(f.ok);
    g_assert_null(t->a.vm->conn);
    g_assert_cmpuint(f.frozen->len, ==, 2);
    restart_thaw_all(f.frozen, true);
    two_expect_eof(t->a.cl);
    two_check_b_answers(t);
    g_ptr_array_unref(f.frozen);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    late_us = restart_late_us;
#define ADD(path, arg, name)                                                      \
    g_test_add("/frontend/freeze/" path, struct two, arg, two_setup, test_##name, \
               teardown)
    ADD("late", NULL, late);
    ADD("hung", NULL, hung);
    ADD("leave", NULL, leave);
    ADD("held-up", NULL, held_up);
    ADD("held-up-once", NULL, held_up_once);
    ADD("leave-held-up", NULL, leave_held_up);
    ADD("stuck", NULL, stuck);
    ADD("leave-stuck", NULL, leave_stuck);
    ADD("leave-end", NULL, leave_end);
    ADD("memory", NULL, memory);
    ADD("closing", GINT_TO_POINTER(1), memory);
    ADD("leave-memory", NULL, leave_memory);
    ADD("claim", NULL, claim);
    ADD("two", NULL, two);
    ADD("fault", NULL, fault);
    return g_test_run();
}
