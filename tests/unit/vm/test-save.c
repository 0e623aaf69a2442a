/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * save.c and what it brings together: a device goes into a stream and comes out of
 * it as it was, and no stream but such a one makes a device.
 *
 * test-save --full|--reset FILE writes a stream instead.  golden/ has those of the
 * first release's form, state-1 and reset-1: until there is one, they are written anew
 * when the form changes, or what fulldev.c makes; then a new one is put beside them.
 */
#include <errno.h>
#include <string.h>

#include "datapath/engine.h"
#include "directory/directory.h"
#include "fulldev.h"
#include "fullqueues.h"

static struct testdev *from, *to;

static void setup(void)
{
    from = fulldev_new("state");
    fulldev_fill(from);
    to = fulldev_new("state");
    datapath_pause(&to->vm);
}

static void teardown(void)
{
    testdev_free(from);
    testdev_free(to);
}

static bool load(const uint8_t *data, size_t len)
{
    GError *err = NULL;
    bool ok = vm_load(&to->vm, data, len, &err);

    g_assert_true(ok == (err == NULL));
    g_clear_error(&err);
    return ok;
}

/* The guest's memory goes its own way, before or after. */
static void move_memory(void)
{
    memcpy(to->ram, from->ram, TESTDEV_RAM_SIZE);
    to->next = from->next;
    to->dsr = from->dsr;
    to->cmd = from->cmd;
    to->resp = from->resp;
}

/* In reset, with nothing of what was read. */
static void assert_reset(void)
{
    struct objects_stats st = testdev_stats(to);

    g_assert_cmpuint(st.uctx + st.pd + st.mr + st.cq + st.qp + st.srq + st.gid, ==, 0);
    g_assert_cmpuint(st.pages, ==, 0);
    g_assert_false(to->vm.dev->active);
    g_assert_false(to->vm.dev->dsr_valid);
    g_assert_cmpuint(to->vm.pauses, ==, 1);
    g_assert_false(event_deferred(&to->vm.guest.events));
}

/* Where the content of section @tag begins, and its length in *len. */
static guint8 *section(GByteArray *bytes, const char *tag, uint64_t *len)
{
    for (guint at = 16; at + 16 <= bytes->len;) {
        memcpy(len, bytes->data + at + 8, sizeof(*len));
        *len = GUINT64_FROM_LE(*len);
        if (memcmp(bytes->data + at, tag, 4) == 0) {
            return bytes->data + at + 16;
        }
        at += 16 + (guint)*len;
    }
    g_error("no section %s", tag);
}

/* Without what differs each time: the owner's number of moves, the clock. */
static void make_comparable(GByteArray *bytes)
{
    uint64_t len;

    memset(section(bytes, "OWNR", &len) + 16, 0, 8);
    memset(section(bytes, "STAT", &len), 0, 8);
}

static void test_round_trip(void)
{
    struct objects_stats st;
    GByteArray *a, *b;
    uint64_t clock;

    setup();
    st = testdev_stats(from);
    a = fulldev_save(from);
    clock = datapath_clock(&from->vm);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpuint(datapath_clock(&to->vm), <=, clock + 60 * 1000000000ull);
    g_assert_cmpuint(to->vm.generation, ==, from->vm.generation + 1);
    b = fulldev_save(to);
    make_comparable(a);
    make_comparable(b);
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_assert_cmpmem(&st, sizeof(st), &(struct objects_stats[]){testdev_stats(to)}[0],
                    sizeof(st));
    g_assert_cmpuint(st.mr, ==, 9);
    g_assert_cmpuint(st.gid, ==, 2);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    teardown();
}

/* What was in flight is to be started again, and needs no look at the ring for that. */
static void test_window(void)
{
    struct qp *qp;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
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
    g_byte_array_unref(a);
    teardown();
}

/* Nobody sees that it was saved: the next stream, and the memory, are the same. */
static void test_save_changes_nothing(void)
{
    g_autofree uint8_t *ram = NULL;
    GByteArray *a, *b;

    setup();
    ram = g_memdup2(from->ram, TESTDEV_RAM_SIZE);
    a = fulldev_save(from);
    b = fulldev_save(from);
    make_comparable(a);
    make_comparable(b);
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_assert_cmpint(memcmp(ram, from->ram, TESTDEV_RAM_SIZE), ==, 0);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    teardown();
}

/* The guest goes on with what it had. */
static void test_goes_on(void)
{
    const struct mr *mr, *was;
    GByteArray *a;
    uint32_t pd;

    setup();
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    move_memory();
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
    g_assert_cmpuint(directory_count(), ==, 0);
    g_byte_array_unref(a);
    teardown();
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
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
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
    g_byte_array_unref(a);
    teardown();
}

/* From a VM of this host that stands still: it does not run again. */
static void test_take_over(void)
{
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    g_assert_true(directory_may_run(&from->vm));
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_false(directory_may_run(&from->vm));
    g_assert_true(directory_may_run(&to->vm));
    /* What it had does not go with it. */
    device_reset(from->vm.dev);
    g_assert_cmpuint(directory_count(), ==, 2);
    g_byte_array_unref(a);
    teardown();
    g_assert_cmpuint(directory_count(), ==, 0);
}

/* All addresses, or none: somebody else has the last one.  What the others are taken from
 * runs on. */
static void test_claim_beside(void)
{
    const struct pvrdma_gid last = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 2}};
    struct testdev *other = testdev_new("other");
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    directory_unbind(&from->vm, &last);
    g_assert_cmpint(directory_bind(&other->vm, &last), ==, 0);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpint(vm_claim(&to->vm), ==, EADDRINUSE);
    g_assert_true(directory_may_run(&from->vm));
    g_assert_cmpuint(directory_count(), ==, 2);
    directory_unbind(&other->vm, &last);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_false(directory_may_run(&from->vm));
    g_byte_array_unref(a);
    testdev_free(other);
    teardown();
}

/* The same where nobody else has the others. */
static void test_claim(void)
{
    const struct pvrdma_gid last = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 2}};
    struct testdev *other = testdev_new("other");
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    device_reset(from->vm.dev);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpint(directory_bind(&other->vm, &last), ==, 0);
    g_assert_cmpint(vm_claim(&to->vm), !=, 0);
    g_assert_cmpuint(directory_count(), ==, 1);
    /* What is not claimed is not let go either. */
    device_reset(to->vm.dev);
    g_assert_cmpuint(directory_count(), ==, 1);
    g_assert_true(load(a->data, a->len));
    directory_unbind(&other->vm, &last);
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_assert_cmpuint(directory_count(), ==, 2);
    g_byte_array_unref(a);
    testdev_free(other);
    teardown();
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
    GByteArray *a;

    setup();
    from->vm.objects.gid[5] = from->vm.objects.gid[0];
    a = fulldev_save(from);
    from->vm.objects.gid[5].bound = false;
    device_reset(from->vm.dev);
    g_assert_cmpint(directory_set_engine(&engine), ==, 0);
    n_calls = 0;
    g_assert_false(load(a->data, a->len - 1));
    g_assert_cmpuint(n_calls, ==, 0);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpuint(n_calls, ==, 2);
    device_reset(to->vm.dev);
    directory_set_engine(NULL);
    g_byte_array_unref(a);
    teardown();
}

/* It only grows, by two at most, and must never begin anew: half of all is too many. */
static void test_generation(void)
{
    static const struct {
        uint64_t generation;
        bool good;
    } of[] = {{0, false},
              {1, true},
              {UINT64_MAX / 2, true},
              {UINT64_MAX / 2 + 1, false},
              {UINT64_MAX - 1, false},
              {UINT64_MAX, false}};
    GByteArray *a;
    guint8 *at;
    uint64_t len;

    setup();
    a = fulldev_save(from);
    at = section(a, "OWNR", &len) + 16;
    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        uint64_t le = GUINT64_TO_LE(of[i].generation), was = to->vm.generation;

        memcpy(at, &le, sizeof(le));
        g_assert_true(load(a->data, a->len) == of[i].good);
        g_assert_cmpuint(to->vm.generation, ==, of[i].good ? of[i].generation + 1 : was);
    }
    g_byte_array_unref(a);
    teardown();
}

/* Who has the state has the key; a stream that is refused brings none. */
static void test_key(void)
{
    uint8_t none[sizeof(from->vm.key)] = {0};
    GByteArray *a;
    uint64_t len;

    setup();
    g_assert_cmpmem(from->vm.key, sizeof(none), none, sizeof(none));
    a = fulldev_save(from);
    g_assert_cmpint(memcmp(from->vm.key, none, sizeof(none)), !=, 0);
    g_assert_false(load(a->data, a->len - 1));
    g_assert_cmpmem(to->vm.key, sizeof(none), none, sizeof(none));
    g_assert_true(load(a->data, a->len));
    g_assert_cmpmem(to->vm.key, sizeof(none), from->vm.key, sizeof(none));
    memset(section(a, "KEY ", &len), 0, sizeof(none));
    g_assert_false(load(a->data, a->len));
    g_assert_cmpmem(to->vm.key, sizeof(none), from->vm.key, sizeof(none));
    g_byte_array_unref(a);
    teardown();
}

/* A ring goes on where it was, and what waited is told. */
static void test_events(void)
{
    struct guest *g;
    GByteArray *a;

    setup();
    event_async(&from->vm.guest, PVRDMA_EVENT_PORT_ERR, 1); /* paused: it is lost */
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    g = &to->vm.guest;
    g_assert_cmpuint(g->events.async.prod, ==, 3);
    g_assert_cmpuint(g->events.cqn[0].ring.prod, ==, 3);
    g_assert_cmpuint(g->events.cqn[5].ring.prod, ==, 3);
    g_assert_true(g->events.async.active);
    g_assert_true(atomic_load(&g->events.paused));
    move_memory();
    datapath_resume(&to->vm);
    testdev_irqs(to, PVRDMA_VEC_ASYNC);
    event_async(g, PVRDMA_EVENT_PORT_ERR, 1);
    /* Its QPs go on, too, and have things to tell. */
    g_assert_cmpuint(testdev_irqs(to, PVRDMA_VEC_ASYNC), >=, 1);
    pthread_mutex_lock(&g->events.async.lock);
    g_assert_cmpuint(g->events.async.prod, >=, 4);
    pthread_mutex_unlock(&g->events.async.lock);
    g_byte_array_unref(a);
    teardown();
}

/* What a queue pair failed for its peer hears still. */
static void test_failed(void)
{
    const struct qp_responder *resp;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    resp = &fullqueues_qp(to, FULL_QP_SRQ)->resp;
    g_assert_cmpuint(atomic_load(&resp->failed_status), ==, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpuint(resp->failed_seq, ==, 42);
    g_byte_array_unref(a);
    teardown();
}

/*
 * Without bus mastering, the device pauses by itself, and it goes on when it is back and
 * the guest gives a command; in between it moves, too.
 */
static void test_stopped(void)
{
    GByteArray *a;

    setup();
    device_set_bus_master(from->vm.dev, false);
    g_assert_cmpuint(from->vm.pauses, ==, 2);
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpuint(to->vm.pauses, ==, 2);
    g_assert_true(to->vm.dev->active);
    datapath_resume(&to->vm);
    g_assert_true(atomic_load(&to->vm.dp.paused));
    device_set_bus_master(to->vm.dev, true);
    g_assert_true(atomic_load(&to->vm.dp.paused));
    device_go_on(to->vm.dev);
    g_assert_false(atomic_load(&to->vm.dp.paused));
    datapath_pause(&to->vm);
    g_assert_true(load(a->data, a->len));
    g_assert_false(load(a->data, a->len - 1));
    assert_reset();
    g_byte_array_unref(a);

    device_set_bus_master(from->vm.dev, true);
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    g_assert_cmpuint(to->vm.pauses, ==, 2);
    g_assert_true(to->vm.dev->bus_master);
    g_assert_true(to->vm.dev->stopped);
    g_assert_false(load(a->data, a->len - 1));
    assert_reset();
    g_byte_array_unref(a);
    teardown();
}

/* A device in reset is one, too. */
static void test_empty(void)
{
    struct testdev *td = fulldev_new("state");
    GByteArray *a = fulldev_save(td);

    to = fulldev_new("state");
    datapath_pause(&to->vm);
    g_assert_true(load(a->data, a->len));
    assert_reset();
    g_assert_cmpint(vm_claim(&to->vm), ==, 0);
    g_byte_array_unref(a);
    testdev_free(td);
    testdev_free(to);
}

/* Into a device that has a life of its own. */
static void test_in_use(void)
{
    GByteArray *a, *b;

    setup();
    a = fulldev_save(from);
    device_reset(from->vm.dev);
    datapath_resume(&to->vm);
    fulldev_fill(to);
    g_assert_true(load(a->data, a->len));
    b = fulldev_save(to);
    make_comparable(a);
    make_comparable(b);
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    teardown();
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
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    assert_estimate(a->len);
    device_reset(from->vm.dev);
    g_assert_cmpuint(vm_state_estimate(&from->vm), <, a->len + (64u << 10));
    g_byte_array_unref(a);
    a = fulldev_save(from);
    assert_estimate(a->len);
    g_byte_array_unref(a);
    teardown();
}

/* More than may be is not saved, however much memory that would take. */
static void test_too_long(void)
{
    const uint32_t handle = 3, npages = 1u << 20;
    struct mr *mr, *big;
    GByteArray *a;

    setup();
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
    g_assert_false(load(a->data, a->len));
    g_byte_array_unref(a);
    id_table_publish(&from->vm.objects.mr, handle, mr);
    g_free(big);
    /* What an array of bytes can be. */
    from->vm.cfg->max_mr_pages = UINT32_MAX;
    g_assert_cmpuint(vm_state_max(&from->vm), <, 1u << 31);
    teardown();
}

/* Whatever the guest has seen must be the same. */
static void test_other_limits(void)
{
    static const struct {
        const char *key, *value, *said;
    } of[] = {
        {"max-qp", "65", "max-qp is 64 there and 65 here"},
        {"max-cq", "129", "max-cq is 128 there and 129 here"},
        {"max-srq", "17", "max-srq is 16 there and 17 here"},
        {"max-mr", "65", "max-mr is 64 there and 65 here"},
        {"max-pd", "33", "max-pd is 32 there and 33 here"},
        {"max-mr-pages", "1000", "max-mr-pages is"},
        {"mac", "52:54:00:00:00:09", "mac is not the same"},
        {"network", "elsewhere", "network is not the same"},
    };
    GError *err = NULL;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        testdev_free(to);
        /* Of two values of a key the last one counts. */
        to = testdev_new_with("state", "addresses", "any", "max-qp", "64", "max-cq",
                              "128", "max-srq", "16", "max-mr", "64", "max-pd", "32",
                              of[i].key, of[i].value, NULL);
        datapath_pause(&to->vm);
        g_assert_false(vm_load(&to->vm, a->data, a->len, &err));
        g_assert_nonnull(strstr(err->message, of[i].said));
        g_clear_error(&err);
        assert_reset();
    }
    g_byte_array_unref(a);
    teardown();
}

/* Addresses that the configuration here does not give to the VM. */
/* The guest has been told of no more than there is here; but it may have been of less. */
static void test_offers(void)
{
    static const char *const said[] = {"the guest was offered features 0x80000000",
                                       "bytes of inline data, this daemon has",
                                       "counters, this daemon has"};
    GError *err = NULL;
    uint32_t value[3];
    uint64_t len;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    for (unsigned i = 0; i < G_N_ELEMENTS(said); i++) {
        uint8_t *at = section(a, "OFFR", &len);
        uint32_t was, more, less = 0;

        g_assert_cmpuint(len, ==, sizeof(value));
        memcpy(value, at, len);
        was = value[i];
        g_assert_cmpuint(was, !=, 0);
        more = i == 0 ? GUINT32_TO_LE(GUINT32_FROM_LE(was) | 0x80000000)
                      : GUINT32_TO_LE(GUINT32_FROM_LE(was) + 1);
        memcpy(at + i * sizeof(more), &more, sizeof(more));
        g_assert_false(vm_load(&to->vm, a->data, a->len, &err));
        g_assert_nonnull(strstr(err->message, said[i]));
        g_clear_error(&err);
        assert_reset();
        memcpy(at + i * sizeof(less), &less, sizeof(less));
        g_assert_true(load(a->data, a->len));
        memcpy(at + i * sizeof(was), &was, sizeof(was));
    }
    g_byte_array_unref(a);
    teardown();
}

static void test_other_addresses(void)
{
    GError *err = NULL;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    testdev_free(to);
    to = testdev_new_with("state", "addresses", "10.0.0.1", "max-qp", "64", "max-cq",
                          "128", "max-srq", "16", "max-mr", "64", "max-pd", "32", NULL);
    datapath_pause(&to->vm);
    g_assert_false(vm_load(&to->vm, a->data, a->len, &err));
    g_assert_nonnull(strstr(err->message, "GID table: entry 3"));
    g_clear_error(&err);
    assert_reset();
    /* What the other one holds it still holds. */
    g_assert_cmpuint(directory_count(), ==, 2);
    g_byte_array_unref(a);
    teardown();
}

/* ---- streams that are kept ---- */

/* What fullqueues.c has given to queue pairs in each of these forms: no field may change
 * its place. */
static void assert_attributes(const struct qp *q)
{
    const struct pvrdma_qp_attr *a = &q->attr;

    g_assert_cmpuint(a->rq_psn, ==, 0x123456);
    g_assert_cmpuint(a->sq_psn, ==, 0xfffffe);
    g_assert_cmpuint(a->dest_qp_num, ==, 0x070009);
    g_assert_cmpuint(a->path_mtu, ==, PVRDMA_MTU_1024);
    g_assert_cmpuint(a->max_rd_atomic, ==, 4);
    g_assert_cmpuint(a->min_rnr_timer, ==, 12);
    g_assert_cmpuint(a->timeout, ==, 14);
    g_assert_cmpuint(a->retry_cnt, ==, 6);
    g_assert_cmpuint(a->rnr_retry, ==, 5);
    g_assert_cmpuint(a->ah_attr.flow_label, ==, 0x12345);
    g_assert_cmpuint(a->ah_attr.hop_limit, ==, 64);
    g_assert_cmpuint(a->ah_attr.traffic_class, ==, 3);
    g_assert_cmpuint(a->ah_attr.sl, ==, 2);
}

static void assert_window(const struct qp *q)
{
    const struct qp_requester *req = &q->req;

    assert_attributes(q);
    g_assert_cmpuint(q->sq.cons, ==, 127);
    g_assert_cmpuint(req->seq, ==, 1000);
    g_assert_cmpuint(req->psn, ==, 0xfffffe);
    g_assert_cmpuint(req->replay, ==, 3);
    for (uint64_t i = 0; i < 3; i++) {
        g_assert_cmpuint(window_at(q, 1000 + i)->wr_id, ==, 11 + i);
    }
    g_assert_cmpuint(window_at(q, 1000)->npsn, ==, 4);
    g_assert_cmpuint(window_at(q, 1000)->length, ==, 4096);
    g_assert_cmpuint(window_at(q, 1000)->opcode, ==, PVRDMA_WC_RDMA_READ);
    g_assert_true(window_at(q, 1000)->signaled && window_at(q, 1000)->returns);
    g_assert_cmpuint(window_at(q, 1001)->state, ==, SENT_DONE);
    g_assert_cmpuint(req->retry_seq, ==, 1000);
    g_assert_cmpuint(req->retries_left, ==, 3);
    g_assert_cmpuint(req->rnr_left, ==, 2);
    g_assert_cmpint(req->wait, ==, QP_WAIT_RNR);
    g_assert_cmpuint(req->rnr_until, ==, to->vm.dp.stopped_at + 400000000);
}

static void assert_responder(const struct qp *q)
{
    const struct qp_responder *resp = &q->resp;

    g_assert_cmpuint(atomic_load(&q->state), ==, PVRDMA_QPS_ERR);
    assert_attributes(q);
    g_assert_cmpuint(resp->psn, ==, 0x654321);
    g_assert_cmpuint(resp->seq, ==, 42);
    g_assert_cmpuint(resp->incarnation, ==, 0x1122334455667788);
    g_assert_true(resp->comm_est && resp->inv_period);
    g_assert_cmpuint(resp->inv_key, ==, 0x305);
    g_assert_cmpuint(resp->recv.wr_id, ==, 5);
    g_assert_cmpuint(resp->recv.nsge, ==, 2);
    for (uint32_t i = 0; i < 2; i++) {
        g_assert_cmpuint(resp->recv.sge[i].addr, ==, 0x1000 * (i + 1));
        g_assert_cmpuint(resp->recv.sge[i].length, ==, 100 * (i + 1));
        g_assert_cmpuint(resp->recv.sge[i].lkey, ==, 0x201 + i);
    }
    g_assert_cmpuint(resp->n_atomic, ==, 18);
    for (uint64_t i = 0; i < G_N_ELEMENTS(resp->atomic); i++) {
        g_assert_cmpuint(resp->atomic[i].seq, ==, 20 + i);
        g_assert_cmpuint(resp->atomic[i].old, ==, 1000 * i);
    }
    g_assert_cmpuint(atomic_load(&resp->rx_msgs), ==, 8);
    g_assert_cmpuint(atomic_load(&resp->rx_bytes), ==, 9);
    g_assert_cmpuint(atomic_load(&q->req.tx_msgs), ==, 10);
    g_assert_cmpuint(atomic_load(&q->req.tx_bytes), ==, 11);
    g_assert_cmpuint(atomic_load(&q->seldom.errors), ==, 1);
    g_assert_cmpuint(atomic_load(&q->seldom.rnr_waits), ==, 2);
    g_assert_cmpuint(atomic_load(&q->seldom.retries), ==, 3);
    g_assert_cmpuint(atomic_load(&q->seldom.rnr_naks), ==, 4);
    g_assert_cmpuint(atomic_load(&q->seldom.duplicates), ==, 5);
    g_assert_cmpuint(atomic_load(&q->seldom.dropped), ==, 6);
    g_assert_cmpuint(atomic_load(&resp->failed_status), ==, PVRDMA_WC_REM_ACCESS_ERR);
    g_assert_cmpuint(resp->failed_seq, ==, 42);
}

static void assert_locals(void)
{
    const struct send_op *op = &fullqueues_qp(to, FULL_QP_LOCAL)->req.op;

    g_assert_cmpuint(op->wr_id, ==, 1234567890123);
    g_assert_cmpuint(op->m.opcode, ==, PVRDMA_WR_LOCAL_INV);
    g_assert_cmpuint(op->m.imm, ==, 0x123);
    g_assert_true(op->period);
    op = &fullqueues_qp(to, FULL_QP_REG)->req.op;
    g_assert_cmpuint(op->reg.iova_start, ==, 1);
    g_assert_cmpuint(op->reg.pl_pdir_dma, ==, 2);
    g_assert_cmpuint(op->reg.page_shift, ==, 12);
    g_assert_cmpuint(op->reg.page_list_len, ==, 4);
    g_assert_cmpuint(op->reg.length, ==, 5);
    g_assert_cmpuint(op->reg.access_flags, ==, 6);
    g_assert_cmpuint(op->reg.rkey, ==, 7);
    op = &fullqueues_qp(to, FULL_QP_BIND)->req.op;
    g_assert_cmpuint(op->bind.addr, ==, 1);
    g_assert_cmpuint(op->bind.length, ==, 2);
    g_assert_cmpuint(op->bind.lkey, ==, 3);
    g_assert_cmpuint(op->bind.access_flags, ==, 4);
    g_assert_cmpuint(op->bind.rkey, ==, 5);
}

static void assert_full(void)
{
    const struct cq *cq = id_table_get(&to->vm.objects.cq, FULL_CQ_KERNEL);
    const struct srq *srq = id_table_get(&to->vm.objects.srq, FULL_SRQ_EXT);
    struct objects_stats st = testdev_stats(to);

    g_assert_cmpuint(st.uctx, ==, 3);
    g_assert_cmpuint(st.pd, ==, 2);
    g_assert_cmpuint(st.mr, ==, 9);
    g_assert_cmpuint(st.cq, ==, 3);
    g_assert_cmpuint(st.srq, ==, 2);
    g_assert_cmpuint(st.qp, ==, 8);
    g_assert_cmpuint(st.gid, ==, 2);
    g_assert_cmpuint(atomic_load(&to->vm.dp.tx_msgs), ==, 12345);
    g_assert_cmpuint(atomic_load(&to->vm.dp.uc_dropped[UC_DROPS - 1]), ==, 9);
    g_assert_cmpuint(cq->prod, ==, 70);
    g_assert_cmpuint(cq->cons, ==, 65);
    g_assert_cmpuint(cq->last_sol, ==, 66);
    cq = id_table_get(&to->vm.objects.cq, FULL_CQ_EXT);
    g_assert_cmpuint(cq->hold.count, ==, 100);
    g_assert_cmpuint(cq->hold.ns, ==, 60000000);
    g_assert_cmpuint(cq->hold.n, ==, 4);
    g_assert_true(cq->hold.sol);
    g_assert_cmpuint(srq->rq.wq.cons, ==, 33);
    g_assert_cmpuint(atomic_load(&srq->limit), ==, 7);
    assert_window(fullqueues_qp(to, FULL_QP_WINDOW));
    assert_responder(fullqueues_qp(to, FULL_QP_SRQ));
    assert_locals();
    g_assert_cmpuint(fullqueues_qp(to, FULL_QP_UD)->attr.qkey, ==, 0x11111111);
    g_assert_cmpuint(fullqueues_qp(to, FULL_QP_UD)->attr.sq_psn, ==, 77);
}

/* It is of the same owner, one move later, with its key. */
static void assert_owner(GByteArray *a)
{
    const uint8_t none[sizeof(to->vm.key)] = {0};
    uint64_t len, owner[3];
    uint8_t *key;

    memcpy(owner, section(a, "OWNR", &len), sizeof(owner));
    g_assert_cmpuint(to->vm.owner[0], ==, GUINT64_FROM_LE(owner[0]));
    g_assert_cmpuint(to->vm.owner[1], ==, GUINT64_FROM_LE(owner[1]));
    g_assert_cmpuint(to->vm.generation, ==, GUINT64_FROM_LE(owner[2]) + 1);
    key = section(a, "KEY ", &len);
    g_assert_cmpmem(to->vm.key, sizeof(none), key, len);
    g_assert_cmpint(memcmp(key, none, sizeof(none)), !=, 0);
}

static GByteArray *golden(const char *name)
{
    g_autofree char *path = g_build_filename(GOLDEN_DIR, name, NULL);
    GError *err = NULL;
    gchar *data;
    gsize len;

    g_file_get_contents(path, &data, &len, &err);
    g_assert_no_error(err);
    return g_byte_array_new_take((guint8 *)data, len);
}

/* What earlier releases have written is loaded by this one, is all there, and is written
 * by it as it was. */
static void load_golden(const char *name)
{
    GByteArray *a = golden(name), *b;
    GError *err = NULL;

    to = fulldev_new("state");
    datapath_pause(&to->vm);
    vm_load(&to->vm, a->data, a->len, &err);
    g_assert_no_error(err);
    if (g_str_has_prefix(name, "reset")) {
        assert_reset();
    } else {
        assert_full();
    }
    assert_owner(a);
    b = fulldev_save(to);
    make_comparable(a);
    make_comparable(b);
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    testdev_free(to);
}

/* The last of a kind, "state" or "reset", is today's form: what differs between two
 * devices left out, today's has the same bytes.  If not, a new one has to be added. */
static void assert_today(const char *kind, unsigned last)
{
    g_autofree char *name = g_strdup_printf("%s-%u", kind, last);
    GByteArray *a = golden(name), *b;
    uint64_t len;

    to = fulldev_new("state");
    if (strcmp(kind, "state") == 0) {
        fulldev_fill(to);
    }
    b = fulldev_save(to);
    make_comparable(a);
    make_comparable(b);
    memset(section(a, "OWNR", &len), 0, 24);
    memset(section(b, "OWNR", &len), 0, 24);
    memcpy(section(b, "KEY ", &len), section(a, "KEY ", &len), sizeof(to->vm.key));
    g_assert_cmpmem(a->data, a->len, b->data, b->len);
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    testdev_free(to);
}

static void test_golden(void)
{
    GDir *dir = g_dir_open(GOLDEN_DIR, 0, NULL);
    unsigned n = 0, n_reset = 0;
    const char *name;

    g_assert_nonnull(dir);
    while ((name = g_dir_read_name(dir))) {
        g_test_message("%s", name);
        load_golden(name);
        *(g_str_has_prefix(name, "reset") ? &n_reset : &n) += 1;
    }
    g_dir_close(dir);
    assert_today("state", n);
    assert_today("reset", n_reset);
}

/*
 * An entry that waits for its address does so where it is loaded, and has it then; who
 * was saved does not.  One that cannot be is refused.
 */
static void test_waiting(void)
{
    const struct pvrdma_gid gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, 77}};
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024, .vlan = 0xfff, .index = 9, .gid = gid, .gid_type = 2};
    struct testdev *other = testdev_new("other");
    GByteArray *a, *b;
    uint64_t len;
    uint8_t *p;

    setup();
    g_assert_cmpint(directory_bind(&other->vm, &gid), ==, 0);
    g_assert_cmpint(verbs_create_bind(&from->vm, &req), ==, 0);
    a = fulldev_save(from);
    g_assert_true(load(a->data, a->len));
    g_assert_true(to->vm.objects.gid[9].bound && to->vm.objects.gid[9].waiting);
    b = fulldev_save(to);
    g_assert_cmpmem(section(a, "GIDW", &len), 33, section(b, "GIDW", &len), 33);
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

    p = section(a, "GIDW", &len);
    p[4] = 63 + 1;
    g_assert_false(load(a->data, a->len));
    p[4] = 0; /* GIDS has it */
    g_assert_false(load(a->data, a->len));
    p[4] = 9;
    g_assert_true(load(a->data, a->len));
    g_byte_array_unref(a);
    g_byte_array_unref(b);
    testdev_free(other);
    teardown();
}

/* ---- hostile streams ---- */

static void test_cut(void)
{
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    for (guint len = 0; len < a->len; len++) {
        uint8_t *copy = g_memdup2(a->data, len); /* so that ASan sees its end */

        g_assert_false(load(copy, len));
        assert_reset();
        g_free(copy);
    }
    g_byte_array_unref(a);
    teardown();
}

/* Whatever it makes of it: it can be saved, loaded again, and taken down. */
static void try_changed(GByteArray *a)
{
    GByteArray *b;

    if (load(a->data, a->len)) {
        b = fulldev_save(to);
        g_assert_true(load(b->data, b->len));
        g_byte_array_unref(b);
        device_reset(to->vm.dev);
    }
    device_set_bus_master(to->vm.dev, false);
    assert_reset();
}

/* Any one byte; the fuzzer has the time for more. */
static void test_changed(void)
{
    static const uint8_t masks[] = {0x01, 0x80, 0xff};
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    for (guint i = 0; i < a->len; i++) {
        uint8_t was = a->data[i];

        a->data[i] = was ^ masks[i % G_N_ELEMENTS(masks)];
        try_changed(a);
        a->data[i] = was;
    }
    g_byte_array_unref(a);
    teardown();
}

/* Each part once, and in its place. */
static void test_parts(void)
{
    static const char *const tags[] = {"CAPS", "OFFR", "OWNR", "KEY ", "DEVC", "RING",
                                       "STAT", "CTXT", "PD  ", "MR  ", "GIDS", "GIDW",
                                       "LINK", "CQ  ", "SRQ ", "QP  ", "FAIL", "WAIT"};
    GByteArray *a, *b;

    setup();
    a = fulldev_save(from);
    for (unsigned i = 0; i < G_N_ELEMENTS(tags); i++) {
        uint64_t len;
        guint at = (guint)(section(a, tags[i], &len) - a->data) - 16;
        guint all = 16 + (guint)len;

        b = g_byte_array_new(); /* without it */
        g_byte_array_append(b, a->data, a->len);
        g_byte_array_remove_range(b, at, all);
        g_assert_false(load(b->data, b->len));
        assert_reset();
        g_byte_array_unref(b);

        b = g_byte_array_new(); /* twice */
        g_byte_array_append(b, a->data, at + all);
        g_byte_array_append(b, a->data + at, a->len - at);
        g_assert_false(load(b->data, b->len));
        assert_reset();
        /* Unless nobody needs to know it. */
        b->data[at + all] = b->data[at + all + 6] = 1;
        g_assert_true(load(b->data, b->len));
        g_byte_array_unref(b);
    }
    g_byte_array_unref(a);
    teardown();
}

/* Load it with @n bytes of FAIL changed at @at of it. */
static bool load_failed(const GByteArray *a, guint at, const void *value, guint n)
{
    GByteArray *b = g_byte_array_new();
    uint64_t len;
    bool ok;

    g_byte_array_append(b, a->data, a->len);
    memcpy(section(b, "FAIL", &len) + at, value, n);
    g_assert_cmpuint(len, ==, 13);
    ok = load(b->data, b->len);
    g_byte_array_unref(b);
    return ok;
}

/* No queue pair fails like that. */
static void test_bad_failure(void)
{
    static const uint8_t not_there = 40, running = FULL_QP_WINDOW, ud = FULL_QP_UD,
                         none = PVRDMA_WC_SUCCESS, own = PVRDMA_WC_LOC_PROT_ERR,
                         too_far = 43, executed = 41, other = PVRDMA_WC_REM_OP_ERR;
    uint8_t *at, twice[13];
    uint64_t len;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_assert_false(load_failed(a, 0, &not_there, 1));
    g_assert_false(load_failed(a, 0, &running, 1));
    g_assert_false(load_failed(a, 0, &ud, 1));
    g_assert_false(load_failed(a, 4, &none, 1));
    g_assert_false(load_failed(a, 4, &own, 1));
    g_assert_false(load_failed(a, 5, &too_far, 1));
    assert_reset();
    g_assert_true(load_failed(a, 5, &executed, 1));
    g_assert_true(load_failed(a, 4, &other, 1));
    /* Twice. */
    at = section(a, "FAIL", &len);
    memcpy(twice, at, sizeof(twice));
    at[-8] = 2 * sizeof(twice);
    len = (guint)(at - a->data) + sizeof(twice);
    g_byte_array_set_size(a, a->len + sizeof(twice));
    memmove(a->data + len + sizeof(twice), a->data + len, a->len - len - sizeof(twice));
    memcpy(a->data + len, twice, sizeof(twice));
    g_assert_false(load(a->data, a->len));
    assert_reset();
    g_byte_array_unref(a);
    teardown();
}

/* What must be understood and is not: another's section, and one's own of another
 * version. */
static void test_needed_parts(void)
{
    static const uint8_t head[16] = {'N', 'E', 'W', ' ', 1, 0, 0, 0};
    GError *err = NULL;
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_byte_array_set_size(a, a->len - 16);
    g_byte_array_append(a, head, sizeof(head));
    g_byte_array_append(a, (const uint8_t *)"END \1\0\0\0\0\0\0\0\0\0\0\0", 16);
    g_assert_false(vm_load(&to->vm, a->data, a->len, &err));
    g_assert_nonnull(strstr(err->message, "unknown or misplaced section"));
    g_clear_error(&err);
    g_byte_array_unref(a);
    a = fulldev_save(from);
    for (gsize at = 16; at + 16 <= a->len;) {
        struct {
            char tag[4];
            uint16_t version, flags;
            uint64_t len;
        } s;

        memcpy(&s, a->data + at, sizeof(s));
        if (memcmp(s.tag, "END ", 4) == 0) {
            break;
        }
        a->data[at + 4]++;
        for (unsigned optional = 0; optional < 2; optional++) {
            a->data[at + 6] ^= optional;
            g_assert_false(vm_load(&to->vm, a->data, a->len, &err));
            g_assert_nonnull(strstr(err->message, "this daemon reads 1"));
            g_clear_error(&err);
            assert_reset();
        }
        a->data[at + 4]--;
        a->data[at + 6] ^= 1;
        at += sizeof(s) + GUINT64_FROM_LE(s.len);
    }
    g_assert_true(load(a->data, a->len));
    g_byte_array_unref(a);
    teardown();
}

/* What a later release may add is passed over, but not any number of it. */
static void test_unknown_parts(void)
{
    static const uint8_t head[16] = {'N', 'E', 'W', ' ', 1, 0, 1, 0};
    GByteArray *a;

    setup();
    a = fulldev_save(from);
    g_byte_array_set_size(a, a->len - 16);
    for (unsigned i = 0; i <= 65; i++) {
        GByteArray *b = g_byte_array_new();

        g_byte_array_append(b, a->data, a->len);
        g_byte_array_append(b, (const uint8_t *)"END \1\0\0\0\0\0\0\0\0\0\0\0", 16);
        g_assert_true(load(b->data, b->len) == (i <= 64));
        g_byte_array_unref(b);
        g_byte_array_append(a, head, sizeof(head));
    }
    assert_reset();
    g_byte_array_unref(a);
    teardown();
}

/* A stream of today, to be kept: of a full device, or of one in reset. */
static int write_stream(const char *file, bool full)
{
    struct testdev *td = fulldev_new("state");
    GByteArray *a;
    bool ok;

    if (full) {
        fulldev_fill(td);
    }
    a = fulldev_save(td);
    ok = g_file_set_contents(file, (const char *)a->data, a->len, NULL);
    g_byte_array_unref(a);
    testdev_free(td);
    return !ok;
}

int main(int argc, char **argv)
{
    int ret;

    if (argc == 3 &&
        (strcmp(argv[1], "--full") == 0 || strcmp(argv[1], "--reset") == 0)) {
        testdev_start();
        ret = write_stream(argv[2], strcmp(argv[1], "--full") == 0);
        testdev_stop();
        return ret;
    }
    g_test_init(&argc, &argv, NULL);
    testdev_start();
    log_set_level(LOG_LVL_ERROR);
    g_test_add_func("/vm-state/round-trip", test_round_trip);
    g_test_add_func("/vm-state/window", test_window);
    g_test_add_func("/vm-state/save-changes-nothing", test_save_changes_nothing);
    g_test_add_func("/vm-state/goes-on", test_goes_on);
    g_test_add_func("/vm-state/unbound-window", test_unbound_window);
    g_test_add_func("/vm-state/take-over", test_take_over);
    g_test_add_func("/vm-state/claim", test_claim);
    g_test_add_func("/vm-state/claim-beside", test_claim_beside);
    g_test_add_func("/vm-state/looks", test_looks);
    g_test_add_func("/vm-state/generation", test_generation);
    g_test_add_func("/vm-state/key", test_key);
    g_test_add_func("/vm-state/events", test_events);
    g_test_add_func("/vm-state/failed", test_failed);
    g_test_add_func("/vm-state/stopped", test_stopped);
    g_test_add_func("/vm-state/empty", test_empty);
    g_test_add_func("/vm-state/in-use", test_in_use);
    g_test_add_func("/vm-state/estimate", test_estimate);
    g_test_add_func("/vm-state/too-long", test_too_long);
    g_test_add_func("/vm-state/other-limits", test_other_limits);
    g_test_add_func("/vm-state/offers", test_offers);
    g_test_add_func("/vm-state/other-addresses", test_other_addresses);
    g_test_add_func("/vm-state/golden", test_golden);
    g_test_add_func("/vm-state/waiting", test_waiting);
    g_test_add_func("/vm-state/cut", test_cut);
    g_test_add_func("/vm-state/changed", test_changed);
    g_test_add_func("/vm-state/parts", test_parts);
    g_test_add_func("/vm-state/bad-failure", test_bad_failure);
    g_test_add_func("/vm-state/needed-parts", test_needed_parts);
    g_test_add_func("/vm-state/unknown-parts", test_unknown_parts);
    ret = g_test_run();
    testdev_stop();
    return ret;
}
