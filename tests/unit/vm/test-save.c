/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * save.c and what it brings together: a device goes into a stream and comes out of
 * it as it was, with its addresses, and goes on.
 */
#include <errno.h>
#include <string.h>

#include "datapath/engine.h"
#include "directory/directory.h"
#include "fullqueues.h"
#include "pair.h"

static void test_round_trip(void)
{
    struct objects_stats st = testdev_stats(from);
    g_autoptr(GByteArray) a = fulldev_save(from), b = NULL;
    uint64_t clock = datapath_clock(&from->vm);

    g_assert_true(pair_load(a));
    g_assert_cmpuint(datapath_clock(&to->vm), <=, clock + 60 * 1000000000ull);
    g_assert_cmpuint(to->vm.identity.generation, ==, from->vm.identity.generation + 1);
    b = fulldev_save(to);
    pair_assert_equal(a, b);
    g_assert_cmpmem(&st, sizeof(st), &(struct objects_stats[]){testdev_stats(to)}[0],
                    sizeof(st));
    g_assert_cmpuint(st.mr, ==, 9);
    g_assert_cmpuint(st.gid, ==, 2);
}

/* What was in flight is to be started again, and needs no look at the ring for that. */
static void test_window(void)
{
    struct qp *qp;
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_assert_true(pair_load(a));
    qp = fullqueues_qp(to, FULL_QP_WINDOW);
    g_assert_cmpuint(qp->req.in_flight, ==, 0);
    g_assert_cmpuint(qp->req.replay, ==, 3);
    g_assert_cmpuint(qp->req.seq, ==, 1000);
    g_assert_cmpuint(qp->req.psn, ==, 0xfffffe);
    g_assert_cmpuint(qp->req.sent[1001 % QP_WINDOW].state, ==, SENT_DONE);
    g_assert_cmpuint(qp->sq.cons, ==, 127);
    g_assert_cmpuint(qp->sq.next, ==, 127);
    g_assert_cmpuint(qp->sq.prod, ==, 2);
    g_assert_cmpint(qp->req.wait, ==, QP_WAIT_RNR);
    /* A request about keys goes on where it was. */
    qp = fullqueues_qp(to, FULL_QP_LOCAL);
    g_assert_true(qp->req.op.active && qp->req.op.period);
    g_assert_cmpuint(qp->sq.next, ==, 5);
}

/* Nobody sees that it was saved: the next stream, and the memory, are the same. */
static void test_save_changes_nothing(void)
{
    g_autofree uint8_t *ram = g_memdup2(from->ram, TESTDEV_RAM_SIZE);
    g_autoptr(GByteArray) a = fulldev_save(from), b = fulldev_save(from);

    pair_assert_equal(a, b);
    g_assert_cmpint(memcmp(ram, from->ram, TESTDEV_RAM_SIZE), ==, 0);
}

/* The guest goes on with what it had. */
static void test_goes_on(void)
{
    const struct mr *mr, *was;
    g_autoptr(GByteArray) a = fulldev_save(from);
    uint32_t pd;

    g_assert_true(pair_load(a));
    pair_move_memory();
    device_reset(from->vm.dev);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_cmpuint(directory_count(), ==, 2);
    datapath_resume(&to->vm);

    for (uint32_t i = 1; i < id_table_end(&to->vm.objects.mr); i++) {
        mr = id_table_get(&to->vm.objects.mr, i);
        g_assert_true(!mr || mr->pd == id_table_get(&to->vm.objects.pd, mr->pd->handle));
    }
    /* Handles go on where they were, keys too: 1 is a dead MR's. */
    pd = testdev_pd(to, 0);
    g_assert_cmpuint(pd, ==, 4);
    g_assert_null(objects_mr_by_key(&to->vm.objects, 1 << 8 | 1));
    was = id_table_get(&to->vm.objects.mr, 3);
    g_assert_cmpuint(was->windows, ==, 2);
    g_assert_cmpuint(testdev_handle(to, PVRDMA_CMD_DESTROY_MR, 3), !=, 0);
    g_assert_cmpuint(testdev_handle(to, PVRDMA_CMD_DESTROY_MW, 2), ==, 0);
    g_assert_cmpuint(testdev_handle(to, PVRDMA_CMD_DESTROY_MW, 4), ==, 0);
    g_assert_cmpuint(testdev_handle(to, PVRDMA_CMD_DESTROY_MR, 3), ==, 0);
    /* A vector that it has cannot be added, and its interrupt was latched. */
    g_assert_true(event_vector_exists(&to->vm.guest.events, 5));
    g_assert_true(atomic_load(&to->vm.guest.irq.vec[PVRDMA_VEC_CQ + 5].pending));
    testdev_write(to, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
}

/* LOCAL_INV of @mr's last key by queue pair @qpn of its PD. */
static enum pvrdma_wc_status invalidate(const struct mr *mr, uint32_t qpn)
{
    struct send_op op = {
        .m = {.opcode = PVRDMA_WR_LOCAL_INV, .imm = mr->fast->valid->lkey}};
    struct qp qp = {.vm = &to->vm, .qpn = qpn, .pd = mr->pd};
    struct outcome o;

    do {
        vm_token_take(&to->vm);
        o = keys_run(&qp, &op);
        vm_token_release(&to->vm);
    } while (o.what == OUT_GRACE);
    return o.what == OUT_DONE ? PVRDMA_WC_SUCCESS : o.status;
}

/* The peer has taken a window's key: who bound it may still do that, nobody else. */
static void test_unbound_window(void)
{
    const struct mr *mw = NULL;
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_assert_true(pair_load(a));
    for (uint32_t i = 1; i < id_table_end(&to->vm.objects.mr); i++) {
        const struct mr *mr = id_table_get(&to->vm.objects.mr, i);

        if (mr && mr->window == PVRDMA_EXT_MW_TYPE_2B && mr == mr->fast->idle &&
            (mr->fast->valid->lkey & 0xff) == FULLDEV_WINDOW_KEY) {
            mw = mr;
        }
    }
    g_assert_nonnull(mw);
    g_assert_cmpint(invalidate(mw, FULLDEV_BINDER + 1), ==, PVRDMA_WC_MW_BIND_ERR);
    g_assert_cmpint(invalidate(mw, FULLDEV_BINDER), ==, PVRDMA_WC_SUCCESS);
}

/* From a VM of this host that stands still: it does not run again. */
static void test_take_over(void)
{
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_assert_true(pair_load(a));
    g_assert_true(directory_may_run(&from->vm));
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_false(directory_may_run(&from->vm));
    g_assert_true(directory_may_run(&to->vm));
    /* What it had does not go with it. */
    device_reset(from->vm.dev);
    g_assert_cmpuint(directory_count(), ==, 2);
}

/* All addresses, or none: somebody else has the last one.  What the others are taken from
 * runs on. */
static void test_claim_beside(void)
{
    const struct pvrdma_gid last = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 2}};
    struct testdev *other = testdev_new("other");
    g_autoptr(GByteArray) a = fulldev_save(from);

    directory_unbind(&from->vm, &last);
    g_assert_cmpint(directory_bind(&other->vm, &last), ==, 0);
    g_assert_true(pair_load(a));
    g_assert_cmpint(vm_claim(&to->vm), ==, EADDRINUSE);
    g_assert_true(directory_may_run(&from->vm));
    g_assert_cmpuint(directory_count(), ==, 2);
    directory_unbind(&other->vm, &last);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_false(directory_may_run(&from->vm));
    testdev_free(other);
}

/* The same where nobody else has the others. */
static void test_claim(void)
{
    const struct pvrdma_gid last = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 2}};
    struct testdev *other = testdev_new("other");
    g_autoptr(GByteArray) a = fulldev_save(from);

    device_reset(from->vm.dev);
    g_assert_true(pair_load(a));
    g_assert_cmpint(directory_bind(&other->vm, &last), ==, 0);
    g_assert_cmpint(vm_claim(&to->vm), !=, 0);
    g_assert_cmpuint(directory_count(), ==, 1);
    /* What is not claimed is not let go either. */
    device_reset(to->vm.dev);
    g_assert_cmpuint(directory_count(), ==, 1);
    g_assert_true(pair_load(a));
    directory_unbind(&other->vm, &last);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_cmpuint(directory_count(), ==, 2);
    testdev_free(other);
}

static unsigned n_calls;

static void count_call(const char *network, const struct pvrdma_gid *gid)
{
    n_calls++;
}

static bool nobody_to_ask(const char *network, const struct pvrdma_gid *gid)
{
    return false;
}

static void ignore(const char *network, const struct pvrdma_gid *gid)
{
}

static void ignore_vm(const struct vm *vm, const char *network,
                      const struct pvrdma_gid *gid)
{
}

static void ignore_time(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
}

/* Other hosts are asked for what a good stream has, once for each address. */
static void test_looks(void)
{
    static const struct directory_engine engine = {
        .name = "test",
        .ask = nobody_to_ask,
        .call = count_call,
        .give_up = ignore,
        .bound = ignore_vm,
        .unbound = ignore,
        .held = ignore_time,
    };
    g_autoptr(GByteArray) a = NULL;

    from->vm.objects.gid[5] = from->vm.objects.gid[0];
    a = fulldev_save(from);
    from->vm.objects.gid[5].bound = false;
    device_reset(from->vm.dev);
    g_assert_cmpint(directory_set_engine(&engine), ==, 0);
    n_calls = 0;
    g_assert_false(pair_load_bytes(a->data, a->len - 1));
    g_assert_cmpuint(n_calls, ==, 0);
    g_assert_true(pair_load(a));
    g_assert_cmpuint(n_calls, ==, 2);
    device_reset(to->vm.dev);
    directory_set_engine(NULL);
}

/* Who has the state has the key; a stream that is refused brings none. */
static void test_key(void)
{
    uint8_t none[sizeof(from->vm.identity.key)] = {0};
    g_autoptr(GByteArray) a = NULL;
    uint64_t len;

    g_assert_cmpmem(from->vm.identity.key, sizeof(none), none, sizeof(none));
    a = fulldev_save(from);
    g_assert_cmpint(memcmp(from->vm.identity.key, none, sizeof(none)), !=, 0);
    g_assert_false(pair_load_bytes(a->data, a->len - 1));
    g_assert_cmpmem(to->vm.identity.key, sizeof(none), none, sizeof(none));
    g_assert_true(pair_load(a));
    g_assert_cmpmem(to->vm.identity.key, sizeof(none), from->vm.identity.key,
                    sizeof(none));
    memset(pair_section(a, "KEY ", &len), 0, sizeof(none));
    g_assert_false(pair_load(a));
    g_assert_cmpmem(to->vm.identity.key, sizeof(none), from->vm.identity.key,
                    sizeof(none));
}

/* A ring goes on where it was, and what waited is told. */
static void test_events(void)
{
    struct guest *g;
    g_autoptr(GByteArray) a = NULL;

    event_async(&from->vm.guest, PVRDMA_EVENT_PORT_ERR, 1); /* paused: it is lost */
    a = fulldev_save(from);
    g_assert_true(pair_load(a));
    g = &to->vm.guest;
    g_assert_cmpuint(g->events.async.prod, ==, 3);
    g_assert_cmpuint(g->events.cqn[0].ring.prod, ==, 3);
    g_assert_cmpuint(g->events.cqn[5].ring.prod, ==, 3);
    g_assert_true(g->events.async.active);
    g_assert_true(atomic_load(&g->events.paused));
    pair_move_memory();
    datapath_resume(&to->vm);
    testdev_irqs(to, PVRDMA_VEC_ASYNC);
    event_async(g, PVRDMA_EVENT_PORT_ERR, 1);
    /* Its QPs go on, too, and have things to tell. */
    g_assert_cmpuint(testdev_irqs(to, PVRDMA_VEC_ASYNC), >=, 1);
    pthread_mutex_lock(&g->events.async.lock);
    g_assert_cmpuint(g->events.async.prod, >=, 4);
    pthread_mutex_unlock(&g->events.async.lock);
}

/* What a queue pair failed for its peer hears still. */
static void test_failed(void)
{
    const struct qp_responder *resp;
    g_autoptr(GByteArray) a = fulldev_save(from);

    g_assert_true(pair_load(a));
    resp = &fullqueues_qp(to, FULL_QP_SRQ)->resp;
    g_assert_cmpuint(atomic_load(&resp->failed_status), ==, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpuint(resp->failed_seq, ==, 42);
}

/*
 * Without bus mastering, the device pauses by itself, and it goes on when it is back and
 * the guest gives a command; in between it moves, too.
 */
static void test_stopped(void)
{
    GByteArray *a;

    device_set_bus_master(from->vm.dev, false);
    g_assert_cmpuint(from->vm.pauses, ==, 2);
    a = fulldev_save(from);
    g_assert_true(pair_load(a));
    g_assert_cmpuint(to->vm.pauses, ==, 2);
    g_assert_true(to->vm.dev->active);
    datapath_resume(&to->vm);
    g_assert_true(atomic_load(&to->vm.dp.paused));
    device_set_bus_master(to->vm.dev, true);
    g_assert_true(atomic_load(&to->vm.dp.paused));
    device_go_on(to->vm.dev);
    g_assert_false(atomic_load(&to->vm.dp.paused));
    datapath_pause(&to->vm);
    g_assert_true(pair_load(a));
    g_assert_false(pair_load_bytes(a->data, a->len - 1));
    pair_assert_reset();
    g_byte_array_unref(a);

    device_set_bus_master(from->vm.dev, true);
    a = fulldev_save(from);
    g_assert_true(pair_load(a));
    g_assert_cmpuint(to->vm.pauses, ==, 2);
    g_assert_true(to->vm.dev->bus_master);
    g_assert_true(to->vm.dev->stopped);
    g_assert_false(pair_load_bytes(a->data, a->len - 1));
    pair_assert_reset();
    g_byte_array_unref(a);
}

/* A device in reset is one, too. */
static void test_empty(void)
{
    struct testdev *td = fulldev_new("state");
    GByteArray *a = fulldev_save(td);

    to = fulldev_new("state");
    datapath_pause(&to->vm);
    g_assert_true(pair_load(a));
    pair_assert_reset();
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_byte_array_unref(a);
    testdev_free(td);
    testdev_free(to);
}

/* Into a device that has a life of its own. */
static void test_in_use(void)
{
    g_autoptr(GByteArray) a = fulldev_save(from), b = NULL;

    device_reset(from->vm.dev);
    datapath_resume(&to->vm);
    fulldev_fill(to);
    g_assert_true(pair_load(a));
    b = fulldev_save(to);
    pair_assert_equal(a, b);
}

/* What is told of it before it is saved: it is to be of use for how long that takes. */
static void assert_estimate(guint len)
{
    uint64_t told = vm_state_estimate(&from->vm);

    g_assert_cmpuint(told, >=, len);
    g_assert_cmpuint(told, <=, len + len / 8 + (64u << 10));
}

static void test_estimate(void)
{
    GByteArray *a = fulldev_save(from);

    assert_estimate(a->len);
    device_reset(from->vm.dev);
    g_assert_cmpuint(vm_state_estimate(&from->vm), <, a->len + (64u << 10));
    g_byte_array_unref(a);
    a = fulldev_save(from);
    assert_estimate(a->len);
    g_byte_array_unref(a);
}

/* More than may be is not saved, however much memory that would take. */
static void test_too_long(void)
{
    const uint32_t handle = 3, npages = 1u << 20;
    struct mr *mr, *big;
    GByteArray *a;

    mr = id_table_get(&from->vm.objects.mr, handle);
    big = g_malloc0(sizeof(*big) + npages * sizeof(big->page[0]));
    *big = *mr;
    big->npages = npages;
    id_table_publish(&from->vm.objects.mr, handle, big);
    a = fulldev_save(from);
    g_assert_cmpuint(a->len, >, npages * 8);
    from->vm.objects.pages_used += npages;
    assert_estimate(a->len);
    from->vm.objects.pages_used -= npages;
    g_byte_array_unref(a);
    from->vm.cfg->max_mr_pages = 1;
    a = fulldev_save(from);
    g_assert_cmpuint(a->len, ==, vm_state_max(&from->vm) + 1);
    g_assert_false(pair_load(a));
    g_byte_array_unref(a);
    id_table_publish(&from->vm.objects.mr, handle, mr);
    g_free(big);
    /* What an array of bytes can be. */
    from->vm.cfg->max_mr_pages = UINT32_MAX;
    g_assert_cmpuint(vm_state_max(&from->vm), <, 1u << 31);
}

/*
 * An entry that waits for its address does so where it is loaded, and has it then; who
 * was saved does not.  One that cannot be is refused.
 */
static void test_waiting(void)
{
    const struct pvrdma_gid gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 77}};
    const union verbs_req req = {
        .abi.create_bind = {
            .mtu = 1024, .vlan = 0xfff, .index = 9, .gid = gid, .gid_type = 2}};
    struct testdev *other = testdev_new("other");
    g_autoptr(GByteArray) a = NULL, b = NULL;
    uint64_t len;
    uint8_t *p;

    g_assert_cmpint(directory_bind(&other->vm, &gid), ==, 0);
    g_assert_cmpint(verbs_create_bind(&from->vm, &req, NULL), ==, 0);
    a = fulldev_save(from);
    g_assert_true(pair_load(a));
    g_assert_true(to->vm.objects.gid[9].bound && to->vm.objects.gid[9].waiting);
    b = fulldev_save(to);
    g_assert_cmpmem(pair_section(a, "GIDW", &len), 33, pair_section(b, "GIDW", &len), 33);
    g_assert_cmpuint(len, ==, 33);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
    g_assert_true(to->vm.objects.gid[9].waiting);
    directory_unbind(&other->vm, &gid);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
    g_assert_false(to->vm.objects.gid[9].waiting);
    g_assert_true(from->vm.objects.gid[9].waiting);

    p = pair_section(a, "GIDW", &len);
    p[4] = 63 + 1;
    g_assert_false(pair_load(a));
    p[4] = 0; /* GIDS has it */
    g_assert_false(pair_load(a));
    p[4] = 9;
    g_assert_true(pair_load(a));
    testdev_free(other);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    log_set_level(LOG_LVL_ERROR);
    pair_add("/vm-state/round-trip", test_round_trip);
    pair_add("/vm-state/window", test_window);
    pair_add("/vm-state/save-changes-nothing", test_save_changes_nothing);
    pair_add("/vm-state/goes-on", test_goes_on);
    pair_add("/vm-state/unbound-window", test_unbound_window);
    pair_add("/vm-state/take-over", test_take_over);
    pair_add("/vm-state/claim", test_claim);
    pair_add("/vm-state/claim-beside", test_claim_beside);
    pair_add("/vm-state/looks", test_looks);
    pair_add("/vm-state/key", test_key);
    pair_add("/vm-state/events", test_events);
    pair_add("/vm-state/failed", test_failed);
    pair_add("/vm-state/stopped", test_stopped);
    g_test_add_func("/vm-state/empty", test_empty);
    pair_add("/vm-state/in-use", test_in_use);
    pair_add("/vm-state/estimate", test_estimate);
    pair_add("/vm-state/too-long", test_too_long);
    pair_add("/vm-state/waiting", test_waiting);
    return testdev_run();
}
