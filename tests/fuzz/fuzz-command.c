/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of the device as a guest sees it: registers, DSR, the command slot,
 * page directories, event rings and doorbell messages, extensions included.
 *
 * An input is a list of steps, each a kind byte and its arguments.  Commands
 * come raw (any bytes) or as a request that is right, with handles of live
 * objects, into which the input patches bytes: the interesting mistakes are the
 * small ones.  One step makes a program with its extended objects, which many
 * commands are about.  One device serves all inputs; each ends with a reset, after
 * which nothing may be left, and a probe as the driver makes it, which must
 * work.
 *
 * The corpus has to get each command to succeed (fuzz_reached_all).
 */
#include "fuzz.h"
#include "pvrdma/ext.h"
#include "testdev.h"

#define POOL_PAGES   16
#define POOL_ENTRIES 600 /* a directory of two tables; the pages repeat */
#define MAX_STEPS    200
#define PROGRAM      0xff /* a step: the extended objects of a program */
#define N_COMMANDS   64

static struct testdev *td;
static uint64_t pool; /* directory that all templates use */
/* What the last successful CREATE_* returned. */
static uint32_t uctx, pd, mr, mw, cq, qp, qpn, srq;
static unsigned done[N_COMMANDS]; /* how often each has succeeded */
static bool stamped;              /* a CREATE_CQ with time stamps, too */

static void take(struct fuzz_input *in, void *dst, size_t n)
{
    size_t have = MIN(n, in->left);

    memset(dst, 0, n);
    memcpy(dst, in->data, have);
    in->data += have;
    in->left -= have;
}

static uint64_t take_int(struct fuzz_input *in, unsigned bytes)
{
    uint64_t v = 0;

    take(in, &v, bytes);
    return v;
}

/* ---- requests that are right ---- */

static const struct pvrdma_gid gid = {
    .raw = {[10] = 0xff, [11] = 0xff, 10, 0, 0, 1},
};

static void fill_modify(struct pvrdma_cmd_modify_qp *req, uint8_t variant)
{
    static const uint32_t masks[] = {0x39, 0x121381 | 1 << 15, 0x12e01, 1};

    req->qp_handle = qp;
    req->attr_mask = masks[variant % 4];
    req->attrs = (struct pvrdma_qp_attr){
        .qp_state = variant % 4 == 3 ? variant / 4 % 8 : 1u + variant % 4,
        .port_num = 1,
        .path_mtu = 3,
        .dest_qp_num = qpn, /* itself */
        .qp_access_flags = 0xf,
        .max_rd_atomic = 4,
        .max_dest_rd_atomic = 4,
        .timeout = 14,
        .retry_cnt = 1,
        .rnr_retry = 1,
        .ah_attr = {.dgid = gid, .ah_flags = 1, .port_num = 1},
    };
}

static void fill_ext_uc(struct pvrdma_ext_cmd_uc *req, uint8_t variant)
{
    req->pfn = TESTDEV_UAR_PFN + variant; /* 0: the kernel's */
    req->pdir_dma = pool;
    req->features = PVRDMA_EXT_CONTEXT_FEATURES;
    req->npages = PVRDMA_EXT_PAGES;
}

static void fill_rereg(struct pvrdma_ext_cmd_rereg_mr *req, uint8_t variant)
{
    req->mr_handle = mr;
    req->flags = variant % 8;
    req->pd_handle = pd;
    req->access_flags = 7;
    req->start = 0x7000;
    req->length = (1 + variant) * 4096u;
    req->pdir_dma = pool;
    req->nchunks = 1 + variant;
}

static void fill_move(struct pvrdma_ext_cmd_move_cq *req, uint8_t variant)
{
    req->cq_handle = cq;
    req->pdir_dma = pool;
    req->cqe = 32u << variant % 5;
    req->nchunks = 1 + (req->cqe + 63) / 64;
}

static void fill_moderate(struct pvrdma_ext_cmd_moderate_cq *req, uint8_t variant)
{
    req->cq_handle = cq;
    req->count = variant % 16;
    req->period = (uint16_t)(variant / 16 * 100);
}

static void fill_template(union pvrdma_cmd_req *req, uint32_t op, uint8_t variant)
{
    memset(req, 0, sizeof(*req));
    switch (op) {
    case PVRDMA_CMD_CREATE_MW:
        ((struct pvrdma_ext_cmd_create_mw *)(void *)req)->pd_handle = pd;
        ((struct pvrdma_ext_cmd_create_mw *)(void *)req)->type = 1 + variant % 2;
        break;
    case PVRDMA_CMD_REREG_MR:
        fill_rereg((struct pvrdma_ext_cmd_rereg_mr *)(void *)req, variant);
        break;
    case PVRDMA_CMD_MOVE_CQ:
        fill_move((struct pvrdma_ext_cmd_move_cq *)(void *)req, variant);
        break;
    case PVRDMA_CMD_MODERATE_CQ:
        fill_moderate((struct pvrdma_ext_cmd_moderate_cq *)(void *)req, variant);
        break;
    case PVRDMA_CMD_QUERY_PORT:
    case PVRDMA_CMD_QUERY_PKEY:
        req->query_port.port_num = 1;
        break;
    case PVRDMA_CMD_CREATE_PD:
        req->create_pd.ctx_handle = variant & 1 ? uctx : 0;
        break;
    case PVRDMA_CMD_CREATE_MR:
        req->create_mr.pd_handle = pd;
        req->create_mr.access_flags = 7;
        req->create_mr.pdir_dma = pool;
        req->create_mr.start = 0x7000;
        req->create_mr.length = (1 + variant) * 4096u;
        req->create_mr.nchunks = 1 + variant;
        break;
    case PVRDMA_CMD_CREATE_CQ:
        req->create_cq.pdir_dma = pool;
        req->create_cq.ctx_handle = variant & 1 ? uctx : 0;
        req->create_cq.cqe = 64;
        req->create_cq.nchunks = 2;
        req->create_cq.reserved = (variant & 2 ? PVRDMA_EXT_OBJ_RING : 0) |
                                  (variant & 4 ? PVRDMA_EXT_CQ_STAMPS : 0);
        break;
    case PVRDMA_CMD_CREATE_QP:
        testdev_qp_req(td, &req->create_qp, pd, cq);
        req->create_qp.pdir_dma = pool;
        req->create_qp.qp_type = variant & 1 ? PVRDMA_QPT_GSI : PVRDMA_QPT_RC;
        if (variant & 2) {
            req->create_qp.reserved[0] = PVRDMA_EXT_OBJ_RING;
            req->create_qp.max_inline_data = variant / 4 % 49;
        }
        if (variant & 128) {
            req->create_qp.is_srq = 1;
            req->create_qp.srq_handle = srq;
            req->create_qp.total_chunks--;
        }
        break;
    case PVRDMA_CMD_CREATE_SRQ:
        req->create_srq.pdir_dma = pool;
        req->create_srq.pd_handle = pd;
        req->create_srq.nchunks = 2;
        req->create_srq.attrs.max_wr = 64;
        req->create_srq.attrs.max_sge = 1;
        req->create_srq.reserved[0] = variant & 2 ? PVRDMA_EXT_OBJ_RING : 0;
        break;
    case PVRDMA_CMD_MODIFY_SRQ:
        req->modify_srq.srq_handle = srq;
        req->modify_srq.attr_mask = PVRDMA_SRQ_LIMIT;
        req->modify_srq.attrs.srq_limit = variant;
        break;
    case PVRDMA_CMD_CREATE_UC_EXT:
        fill_ext_uc((struct pvrdma_ext_cmd_uc *)(void *)req, variant);
        break;
    case PVRDMA_CMD_ADD_VECTOR:
        memcpy((uint8_t *)req + offsetof(struct pvrdma_ext_cmd_vector, pdir_dma), &pool,
               sizeof(pool));
        memcpy((uint8_t *)req + offsetof(struct pvrdma_ext_cmd_vector, npages),
               (uint32_t[]){4, variant % 4}, 8);
        break;
    case PVRDMA_CMD_MODIFY_QP:
        fill_modify(&req->modify_qp, variant);
        break;
    case PVRDMA_CMD_CREATE_UC:
        req->create_uc.pfn = TESTDEV_UAR_PFN + 1 + variant;
        break;
    case PVRDMA_CMD_CREATE_BIND:
        req->create_bind.vlan = 0xfff;
        req->create_bind.gid = gid;
        req->create_bind.gid_type = PVRDMA_GID_TYPE_ROCE_V2;
        req->create_bind.index = variant % 4;
        break;
    case PVRDMA_CMD_DESTROY_BIND:
        req->destroy_bind.gid = gid;
        req->destroy_bind.index = variant % 4;
        break;
    default: /* one handle */
        req->handle.handle = op == PVRDMA_CMD_DESTROY_PD   ? pd
                             : op == PVRDMA_CMD_DESTROY_MR ? mr
                             : op == PVRDMA_CMD_DESTROY_MW ? mw
                             : op == PVRDMA_CMD_DESTROY_CQ ? cq
                             : op == PVRDMA_CMD_DESTROY_UC ? uctx
                             : op == PVRDMA_CMD_DESTROY_SRQ || op == PVRDMA_CMD_QUERY_SRQ
                                 ? srq
                                 : qp;
    }
}

/* ---- steps ---- */

static void run_command(union pvrdma_cmd_req *req)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);
    uint32_t op = req->hdr.cmd;

    if (testdev_command(td, op, req, sizeof(*req)) != 0) {
        return;
    }
    if (op != PVRDMA_CMD_MODIFY_QP || resp->hdr.err == 0) {
        done[op % N_COMMANDS]++;
    }
    switch (op) {
    case PVRDMA_CMD_CREATE_UC:
    case PVRDMA_CMD_CREATE_UC_EXT:
        uctx = resp->handle.handle;
        break;
    case PVRDMA_CMD_CREATE_PD:
        pd = resp->handle.handle;
        break;
    case PVRDMA_CMD_CREATE_MR:
        mr = resp->create_mr.mr_handle;
        break;
    case PVRDMA_CMD_CREATE_MW:
        mw = resp->create_mr.mr_handle;
        break;
    case PVRDMA_CMD_CREATE_CQ:
        cq = resp->create_cq.cq_handle;
        CHECK(resp->create_cq.cqe == req->create_cq.cqe);
        CHECK(cq != 0 && cq < td->vm.cfg->max_cq);
        stamped = stamped || req->create_cq.reserved & PVRDMA_EXT_CQ_STAMPS;
        break;
    case PVRDMA_CMD_CREATE_QP:
        qp = resp->create_qp.qp_handle;
        qpn = resp->create_qp.qpn;
        CHECK(qp != 0 && qp < td->vm.cfg->max_qp);
        break;
    case PVRDMA_CMD_CREATE_SRQ:
        srq = resp->handle.handle;
        CHECK(srq != 0 && srq < td->vm.cfg->max_srq);
        break;
    default:
        break;
    }
}

static void step_raw(struct fuzz_input *in)
{
    union pvrdma_cmd_req req;
    uint32_t op = take_int(in, 1);

    memset(&req, 0, sizeof(req));
    take(in, (uint8_t *)&req + 16, take_int(in, 1) % (sizeof(req) - 15));
    req.hdr.cmd = op % 48;
    run_command(&req);
}

static void step_template(struct fuzz_input *in)
{
    uint32_t op = take_int(in, 1) % (PVRDMA_CMD_MODERATE_CQ + 1);
    uint8_t variant = take_int(in, 1);
    unsigned patches = take_int(in, 1) % 4;
    union pvrdma_cmd_req req;

    fill_template(&req, op, variant);
    while (patches--) {
        unsigned offset = 16 + take_int(in, 1) % (sizeof(req) - 16 - 8);
        unsigned size = 1u << take_int(in, 1) % 4;
        uint64_t value = take_int(in, size);

        memcpy((uint8_t *)&req + offset, &value, size);
    }
    req.hdr.cmd = op;
    run_command(&req);
}

/* One after the other; each takes the handles of those before. */
static void make_program(void)
{
    static const struct {
        uint32_t op;
        uint8_t variant;
    } part[] = {
        {PVRDMA_CMD_CREATE_UC_EXT, 1}, {PVRDMA_CMD_CREATE_PD, 1},
        {PVRDMA_CMD_CREATE_MR, 3},     {PVRDMA_CMD_CREATE_MW, 0},
        {PVRDMA_CMD_CREATE_CQ, 3},     {PVRDMA_CMD_CREATE_SRQ, 2},
        {PVRDMA_CMD_CREATE_QP, 2},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(part); i++) {
        union pvrdma_cmd_req req;

        fill_template(&req, part[i].op, part[i].variant);
        req.hdr.cmd = part[i].op;
        run_command(&req);
    }
}

/* A store of the guest: page tables, rings, DSR, anything. */
static void step_store(struct fuzz_input *in)
{
    uint64_t offset = take_int(in, 3) & ~7ull;
    uint64_t value = take_int(in, 8);

    if (offset <= td->next - TESTDEV_GPA) {
        memcpy(td->ram + offset, &value, sizeof(value));
    }
}

static void step_event(struct fuzz_input *in)
{
    uint32_t what = take_int(in, 1), info = take_int(in, 4);

    for (unsigned i = 0; i <= what / 4 * 16; i++) {
        switch (what % 4) {
        case 0:
            event_async(&td->vm.guest, PVRDMA_EVENT_QP_FATAL, info);
            break;
        case 1:
            event_cq_notify(&td->vm.guest, info + i, what / 4 % 4);
            break;
        case 2:
            event_cq_retry(&td->vm.guest);
            break;
        default:
            datapath_ring(&td->vm, 1 + info % 16);
        }
    }
}

/* The VMM takes memory away and gives it back, as a whole or in part. */
static void step_map(struct fuzz_input *in)
{
    uint64_t size = TESTDEV_RAM_SIZE;

    guest_mem_unmap(&td->vm.guest.mem, 0, 0, true);
    if (take_int(in, 1) & 1) {
        size = (1 + take_int(in, 1)) * 4096ull;
    }
    guest_mem_map(&td->vm.guest.mem, td->ram_fd, 0, TESTDEV_GPA, size, 3);
}

static void write_dsr(void)
{
    testdev_set_dsr(td);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
}

static void step(struct fuzz_input *in)
{
    uint32_t kind = take_int(in, 1);

    if (kind == PROGRAM) {
        make_program();
        return;
    }
    switch (kind % 12) {
    case 0:
        step_raw(in);
        break;
    case 1: {
        uint64_t reg = take_int(in, 1) * 4;

        testdev_write(td, reg, take_int(in, 4));
        break;
    }
    case 2: {
        uint64_t offset = take_int(in, 3);

        device_doorbell(td->vm.dev, offset, take_int(in, 4), true);
        break;
    }
    case 3:
        device_doorbell(td->vm.dev, take_int(in, 1) % 3 * 4096 + 4,
                        take_int(in, 1) << 24 | cq, true);
        break;
    case 4:
        step_store(in);
        break;
    case 5:
        step_event(in);
        break;
    case 6:
        device_set_bus_master(td->vm.dev, take_int(in, 1) & 1);
        break;
    case 7:
        step_map(in);
        break;
    case 8:
        write_dsr();
        break;
    default:
        step_template(in);
    }
}

/* ---- one input ---- */

static uint64_t make_pool(void)
{
    uint64_t page[POOL_ENTRIES], first = testdev_pages(td, POOL_PAGES);

    for (unsigned i = 0; i < POOL_ENTRIES; i++) {
        page[i] = first + i % POOL_PAGES * PVRDMA_PAGE_SIZE;
    }
    return testdev_pdir(td, page, POOL_ENTRIES);
}

static void begin(void)
{
    memset(td->ram, 0, td->next - TESTDEV_GPA);
    td->next = TESTDEV_GPA;
    device_set_bus_master(td->vm.dev, true);
    testdev_fill_dsr(td);
    pool = make_pool();
    uctx = pd = mr = mw = cq = qp = qpn = srq = 0;
    write_dsr();
    CHECK(testdev_read(td, PVRDMA_REG_ERR) == 0);
}

static void end(void)
{
    struct objects_stats st;

    device_reset(td->vm.dev);
    st = testdev_stats(td);
    CHECK(!(st.uctx | st.pd | st.mr | st.cq | st.qp | st.srq | st.gid | st.pages));
    guest_mem_unmap(&td->vm.guest.mem, 0, 0, true);
    CHECK(guest_mem_map(&td->vm.guest.mem, td->ram_fd, 0, TESTDEV_GPA, TESTDEV_RAM_SIZE,
                        3) == 0);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        testdev_irqs(td, i);
    }
}

bool fuzz_reached_all(void)
{
    static const uint8_t op[] = {
        PVRDMA_CMD_QUERY_PORT,        PVRDMA_CMD_QUERY_PKEY,  PVRDMA_CMD_CREATE_PD,
        PVRDMA_CMD_DESTROY_PD,        PVRDMA_CMD_CREATE_MR,   PVRDMA_CMD_DESTROY_MR,
        PVRDMA_CMD_CREATE_CQ,         PVRDMA_CMD_DESTROY_CQ,  PVRDMA_CMD_CREATE_QP,
        PVRDMA_CMD_MODIFY_QP,         PVRDMA_CMD_QUERY_QP,    PVRDMA_CMD_DESTROY_QP,
        PVRDMA_CMD_CREATE_UC,         PVRDMA_CMD_DESTROY_UC,  PVRDMA_CMD_CREATE_BIND,
        PVRDMA_CMD_DESTROY_BIND,      PVRDMA_CMD_CREATE_SRQ,  PVRDMA_CMD_MODIFY_SRQ,
        PVRDMA_CMD_QUERY_SRQ,         PVRDMA_CMD_DESTROY_SRQ, PVRDMA_CMD_CREATE_UC_EXT,
        PVRDMA_CMD_CREATE_MW,         PVRDMA_CMD_DESTROY_MW,  PVRDMA_CMD_REREG_MR,
        PVRDMA_CMD_MOVE_CQ,           PVRDMA_CMD_ADD_VECTOR,  PVRDMA_CMD_QUERY_COUNTERS,
        PVRDMA_CMD_QUERY_QP_COUNTERS, PVRDMA_CMD_QUERY_CLOCK, PVRDMA_CMD_MODERATE_CQ,
    };
    bool all = true;

    for (unsigned i = 0; i < G_N_ELEMENTS(op); i++) {
        if (!done[op[i]]) {
            printf("command %u never succeeds\n", op[i]);
            all = false;
        }
    }
    if (!stamped) {
        printf("CREATE_CQ never succeeds with time stamps\n");
        all = false;
    }
    return all;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};

    if (!td) {
        testdev_start();
        td = testdev_new_with("fuzz", "addresses", "any", "max-qp", "64", "max-cq", "64",
                              "max-srq", "64", "max-mr", "64", "max-pd", "64",
                              "max-mr-pages", "4096", NULL);
    }
    begin();
    for (unsigned n = 0; n < MAX_STEPS && in.left; n++) {
        step(&in);
    }
    end();
    return 0;
}
