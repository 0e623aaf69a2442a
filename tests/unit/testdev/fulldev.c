/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See fulldev.h. */
#include "fulldev.h"

#include "datapath/engine.h"
#include "fullqueues.h"

#define VA 0x7f0000000123ull

/* The first field behind the header of every answer that has a handle. */
static uint32_t made(struct testdev *td)
{
    return ((const struct pvrdma_resp_handle *)testdev_ptr(td, td->resp))->handle;
}

/* ---- contexts ---- */

static void ext_context(struct testdev *td, uint32_t uar_page)
{
    struct pvrdma_ext_cmd_uc req = {
        .pfn = TESTDEV_UAR_PFN + uar_page,
        .pdir_dma = testdev_new_pdir(td, PVRDMA_EXT_PAGES, NULL),
        .features = PVRDMA_EXT_CONTEXT_FEATURES,
        .npages = PVRDMA_EXT_PAGES,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_UC_EXT, &req, sizeof(req));
}

/* ---- memory ---- */

static uint32_t user_mr(struct testdev *td, uint32_t pd, uint32_t npages, uint32_t access)
{
    struct pvrdma_cmd_create_mr req = {
        .start = VA,
        .length = (npages - 1) * (uint64_t)PVRDMA_PAGE_SIZE,
        .pdir_dma = testdev_new_pdir(td, npages, NULL),
        .pd_handle = pd,
        .access_flags = access,
        .nchunks = npages,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    return made(td);
}

static uint32_t kernel_mr(struct testdev *td, uint32_t pd, uint32_t flags, uint32_t room)
{
    struct pvrdma_cmd_create_mr req = {.pd_handle = pd, .flags = flags, .nchunks = room};

    testdev_do(td, PVRDMA_CMD_CREATE_MR, &req, sizeof(req));
    return made(td);
}

static uint32_t window(struct testdev *td, uint32_t pd, uint32_t type)
{
    struct pvrdma_ext_cmd_create_mw req = {.pd_handle = pd, .type = type};

    testdev_do(td, PVRDMA_CMD_CREATE_MW, &req, sizeof(req));
    return made(td);
}

/* As the work request of a QP of @pd; what it waits for is the device's own worker. */
static void run(struct testdev *td, uint32_t pd, struct send_op *op)
{
    struct qp qp = {.vm = &td->vm, .qpn = FULLDEV_BINDER};
    struct outcome o;

    qp.pd = id_table_get(&td->vm.objects.pd, pd);
    do {
        vm_token_take(&td->vm);
        o = keys_run(&qp, op);
        vm_token_release(&td->vm);
    } while (o.what == OUT_GRACE);
    g_assert_cmpint(o.what, ==, OUT_DONE);
}

static void fast_register(struct testdev *td, uint32_t pd, uint32_t mr, uint8_t key)
{
    struct send_op op = {
        .m = {.opcode = PVRDMA_WR_FAST_REG},
        .reg = {.iova_start = VA,
                .pl_pdir_dma = testdev_new_pdir(td, 3, NULL),
                .page_shift = PVRDMA_PAGE_SHIFT,
                .page_list_len = 3,
                .length = 2 * PVRDMA_PAGE_SIZE,
                .access_flags = PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_READ,
                .rkey = mr << 8 | key}};

    run(td, pd, &op);
}

static void bind_window(struct testdev *td, uint32_t pd, uint32_t mw, uint32_t mr)
{
    const struct mr *base = id_table_get(&td->vm.objects.mr, mr);
    struct send_op op = {.m = {.opcode = PVRDMA_WR_BIND_MW},
                         .bind = {.addr = base->start + 64,
                                  .length = 128,
                                  .lkey = base->lkey,
                                  .access_flags = PVRDMA_ACCESS_REMOTE_WRITE,
                                  .rkey = mw << 8 | FULLDEV_WINDOW_KEY}};

    run(td, pd, &op);
}

/* Its key goes; who had it bound may do that once more. */
static void unbind_window(struct testdev *td, uint32_t pd, uint32_t mw)
{
    struct send_op op = {
        .m = {.opcode = PVRDMA_WR_LOCAL_INV, .imm = mw << 8 | FULLDEV_WINDOW_KEY}};

    run(td, pd, &op);
}

static void memory(struct testdev *td, uint32_t kernel_pd, uint32_t pd)
{
    uint32_t mr, mw, gone = user_mr(td, pd, 2, PVRDMA_ACCESS_LOCAL_WRITE);

    mw = window(td, pd, PVRDMA_EXT_MW_TYPE_1); /* before what it is bound to */
    mr = user_mr(td, pd, 3, PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_MW_BIND);
    bind_window(td, pd, mw, mr);
    bind_window(td, pd, window(td, pd, PVRDMA_EXT_MW_TYPE_2B), mr);
    window(td, pd, PVRDMA_EXT_MW_TYPE_2B);
    user_mr(td, pd, 5, PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_ZERO_BASED);
    kernel_mr(td, kernel_pd, PVRDMA_MR_FLAG_DMA, 0);
    kernel_mr(td, kernel_pd, PVRDMA_MR_FLAG_FRMR, 4);
    fast_register(td, kernel_pd, kernel_mr(td, kernel_pd, PVRDMA_MR_FLAG_FRMR, 8), 0x77);
    mw = window(td, pd, PVRDMA_EXT_MW_TYPE_2B);
    bind_window(td, pd, mw, mr);
    unbind_window(td, pd, mw);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, gone), ==, 0);
}

/* ---- the rest ---- */

static void gid(struct testdev *td, uint32_t index, uint8_t n)
{
    struct pvrdma_cmd_create_bind req = {
        .mtu = 1024,
        .vlan = 0xfff,
        .index = index,
        .gid = {.raw = {[10] = 0xff, 0xff, 10, 0, 0, n}},
        .gid_type = PVRDMA_GID_TYPE_ROCE_V2,
    };

    testdev_do(td, PVRDMA_CMD_CREATE_BIND, &req, sizeof(req));
}

static void vector(struct testdev *td, uint32_t number)
{
    struct pvrdma_ext_cmd_vector req = {
        .pdir_dma = testdev_new_pdir(td, 3, NULL), .npages = 3, .vector = number};

    testdev_do(td, PVRDMA_CMD_ADD_VECTOR, &req, sizeof(req));
}

/* Some events that were told, so that the rings are not at their begin. */
static void told(struct testdev *td)
{
    struct guest *g = &td->vm.guest;

    for (unsigned i = 0; i < 3; i++) {
        event_async(g, PVRDMA_EVENT_PORT_ERR, 1);
        event_cq_notify(g, 1, 0);
        event_cq_notify(g, 1, 5);
    }
    irq_raise(&g->irq, PVRDMA_VEC_CQ + 5); /* nobody has assigned it */
}

/* Each another number. */
static void set_counters(struct vm_datapath *dp)
{
    atomic_store(&dp->tx_msgs, 12345);
    atomic_store(&dp->tx_bytes, 12346);
    atomic_store(&dp->rx_msgs, 12347);
    atomic_store(&dp->rx_bytes, 12348);
    atomic_store(&dp->errors, 12349);
    atomic_store(&dp->rnr_waits, 12350);
    atomic_store(&dp->retries, 12351);
    atomic_store(&dp->replays, 12352);
    atomic_store(&dp->interrupts, 12353);
    atomic_store(&dp->datagrams_sent, 12354);
    atomic_store(&dp->datagrams_received, 12355);
    for (unsigned i = 0; i < DATAGRAM_DROPS; i++) {
        atomic_store(&dp->datagrams_dropped[i], 100 + i);
    }
    for (unsigned i = 0; i < UC_DROPS; i++) {
        atomic_store(&dp->uc_dropped[i], 10 - UC_DROPS + i);
    }
}

struct testdev *fulldev_new(const char *name)
{
    return testdev_new_with(name, "addresses", "any", "max-qp", "64", "max-cq", "128",
                            "max-srq", "16", "max-mr", "64", "max-pd", "32", NULL);
}

void fulldev_fill(struct testdev *td)
{
    uint32_t uctx, pd, kernel_pd;

    testdev_up(td);
    testdev_write(td, PVRDMA_REG_IMR, 0x5a);
    testdev_uctx(td, 9);
    uctx = testdev_uctx(td, 4);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_UC, uctx), ==, 0);
    uctx = testdev_uctx(td, 5);
    ext_context(td, 7);
    ext_context(td, 0); /* the kernel's */
    pd = testdev_pd(td, 0);
    kernel_pd = testdev_pd(td, 0);
    g_assert_cmpuint(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd), ==, 0);
    pd = testdev_pd(td, uctx);
    memory(td, kernel_pd, pd);
    gid(td, 0, 1);
    gid(td, 3, 2);
    vector(td, 5);
    told(td);
    fullqueues_make(td, kernel_pd, uctx, pd);
    datapath_pause(&td->vm);
    fullqueues_work(td);
    set_counters(&td->vm.dp);
}

GByteArray *fulldev_save(struct testdev *td)
{
    GByteArray *bytes = g_byte_array_new();

    vm_save(&td->vm, bytes);
    return bytes;
}
