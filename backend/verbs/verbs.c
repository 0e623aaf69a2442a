/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The device's capabilities, what is taken from a VM's limits, and the objects that
 * carry no data: port, P_Key, user contexts and protection domains.
 *
 * Everything here runs on the main thread.  Objects refer to their parents and
 * count in parent->refs; a parent in use cannot be destroyed, but for a context, which
 * takes along what it has.  So no pointer between objects ever dangles, whatever order a
 * guest destroys them in.
 */
#include "verbs/verbs_internal.h"

#include <errno.h>

#include "base/coro.h"
#include "guest/budget.h"
#include "guest/pagedir.h"
#include "guest/pagelist.h"

/* Values of the verbs API that the ABI passes through. */
#define CAP_CURR_QP_STATE_MOD (1u << 7)
#define CAP_SYS_IMAGE_GUID    (1u << 11)
#define CAP_RC_RNR_NAK_GEN    (1u << 12)
#define WIDTH_4X              2u
#define SPEED_EDR             32u

#define MAX_AH             65536u
#define LOCAL_CA_ACK_DELAY 15u /* 4.096 us * 2^15 */

/* What they take of the daemon's memory. */
static uint64_t pages_bytes(uint64_t n, size_t own)
{
    return n * sizeof(uint64_t) + own;
}

int verbs_pages_charge(struct vm *vm, uint64_t n, size_t own)
{
    uint64_t limit = vm->cfg->max_mr_pages;

    if (vm->objects.pages_used > limit || n > limit - vm->objects.pages_used) {
        return ENOSPC;
    }
    if (!budget_take_objects(vm->guest.mem.budget, pages_bytes(n, own))) {
        log_vm(LOG_LVL_WARN, vm,
               "no more objects: those of all VMs have as much memory as the daemon's "
               "max-objects");
        return ENOMEM;
    }
    vm->objects.pages_used += n;
    return 0;
}

void verbs_pages_refund(struct vm *vm, uint64_t n, size_t own)
{
    budget_give_objects(vm->guest.mem.budget, pages_bytes(n, own));
    vm->objects.pages_used -= n;
}

int verbs_pages_read(struct vm *vm, uint64_t pdir_dma, uint32_t n, bool write,
                     uint64_t *page)
{
    int err = pagedir_read(&vm->guest.mem, pdir_dma, n, page);

    return err ? err : pagedir_check(&vm->guest.mem, page, n, write);
}

int verbs_ring_init(struct vm *vm, struct ring_mem *mem, size_t own, uint64_t pdir_dma,
                    uint32_t n)
{
    int err;

    if (n == 0 || n > PVRDMA_PDIR_MAX_PAGES) {
        return EINVAL;
    }
    err = verbs_pages_charge(vm, n, own);
    if (err) {
        return err;
    }
    mem->own = own;
    mem->npages = n;
    mem->page = pagelist_alloc(n * sizeof(mem->page[0]));
    err = mem->page ? verbs_pages_read(vm, pdir_dma, n, true, mem->page) : ENOMEM;
    if (err) {
        verbs_ring_fini(vm, mem);
    }
    return err;
}

void verbs_ring_fini(struct vm *vm, struct ring_mem *mem)
{
    struct ring_mem old = *mem;

    mem->page = NULL;
    mem->npages = 0;
    mem->own = 0;
    verbs_pages_refund(vm, old.npages, old.own);
    pagelist_free(old.page, old.npages * sizeof(old.page[0]));
}

/*
 * A GUID that stays the same for a VM wherever it runs: a hash of its network
 * and name, marked as locally administered.
 */
static uint64_t node_guid(const struct vm_config *cfg)
{
    GChecksum *sum = g_checksum_new(G_CHECKSUM_SHA256);
    uint8_t digest[32];
    gsize len = sizeof(digest);
    uint64_t guid;

    /* With the NUL, so that ("a", "bc") and ("ab", "c") differ. */
    g_checksum_update(sum, (const guchar *)(cfg->network ? cfg->network : ""),
                      cfg->network ? strlen(cfg->network) + 1 : 1);
    g_checksum_update(sum, (const guchar *)cfg->name, strlen(cfg->name));
    g_checksum_get_digest(sum, digest, &len);
    g_checksum_free(sum);

    digest[0] = (digest[0] | 2) & ~1;
    memcpy(&guid, digest, sizeof(guid));
    return guid;
}

void verbs_fill_caps(struct objects *v, struct pvrdma_caps *caps)
{
    const struct vm_config *cfg = v->vm->cfg;

    *caps = (struct pvrdma_caps){
        .fw_ver = 1ull << 16, /* 0.1.0: major << 32 | minor << 16 | sub */
        .node_guid = node_guid(cfg),
        .max_mr_size =
            MIN(VERBS_MAX_MR_SIZE, (uint64_t)cfg->max_mr_pages << PVRDMA_PAGE_SHIFT),
        .page_size_cap = PVRDMA_PAGE_SIZE,
        .atomic_arg_sizes = sizeof(uint64_t),
        .vendor_id = PVRDMA_PCI_VENDOR,
        .vendor_part_id = PVRDMA_PCI_DEVICE,
        .hw_ver = 1,
        .max_qp = cfg->max_qp,
        .max_qp_wr = VERBS_MAX_QP_WR,
        .device_cap_flags =
            CAP_CURR_QP_STATE_MOD | CAP_SYS_IMAGE_GUID | CAP_RC_RNR_NAK_GEN,
        .max_sge = VERBS_MAX_SGE,
        .max_sge_rd = VERBS_MAX_SGE,
        .max_cq = cfg->max_cq,
        .max_cqe = VERBS_MAX_CQE,
        .max_mr = cfg->max_mr,
        .max_mw = cfg->max_mr, /* they share their handles */
        .max_pd = cfg->max_pd,
        .max_qp_rd_atom = VERBS_MAX_RD_ATOM,
        .max_res_rd_atom = VERBS_MAX_RD_ATOM * cfg->max_qp,
        .max_qp_init_rd_atom = VERBS_MAX_RD_ATOM,
        .max_ah = MAX_AH,
        .max_srq = cfg->max_srq,
        .max_srq_wr = VERBS_MAX_QP_WR,
        .max_srq_sge = VERBS_MAX_SGE,
        .max_uar = VERBS_MAX_UAR,
        .gid_tbl_len = VERBS_GID_TBL_LEN,
        .max_pkeys = 1,
        .local_ca_ack_delay = LOCAL_CA_ACK_DELAY,
        .phys_port_cnt = 1,
        .mode = 0, /* RoCE */
        .atomic_ops = PVRDMA_ATOMIC_OP_CAS | PVRDMA_ATOMIC_OP_FAA,
        .bmme_flags =
            PVRDMA_BMME_LOCAL_INV | PVRDMA_BMME_REMOTE_INV | PVRDMA_BMME_FAST_REG,
        .gid_types = PVRDMA_GID_TYPE_ROCE_V2,
        .max_fast_reg_page_list_len = PVRDMA_MAX_FAST_REG_PAGES,
    };
    caps->sys_image_guid = caps->node_guid;
}

int verbs_query_port(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    if (req->abi.query_port.port_num != 1) {
        return EINVAL;
    }
    resp->abi.query_port.attrs = (struct pvrdma_port_attr){
        .state = PVRDMA_PORT_ACTIVE,
        .max_mtu = PVRDMA_MTU_4096,
        .active_mtu = PVRDMA_MTU_4096,
        .gid_tbl_len = VERBS_GID_TBL_LEN,
        .max_msg_sz = VERBS_MAX_MSG_SZ,
        .qkey_viol_cntr = (uint32_t)MIN(
            atomic_load(&vm->dp.datagrams_dropped[DATAGRAM_QKEY]), UINT32_MAX),
        .pkey_tbl_len = 1,
        .max_vl_num = 1,
        .active_width = WIDTH_4X,
        .active_speed = SPEED_EDR,
        .phys_state = PVRDMA_PHYS_LINK_UP,
    };
    return 0;
}

int verbs_query_pkey(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    if (req->abi.query_pkey.port_num != 1 || req->abi.query_pkey.index != 0) {
        return EINVAL;
    }
    resp->abi.query_pkey.pkey = VERBS_PKEY;
    return 0;
}

static void uctx_destroy(struct vm *vm, struct uctx *uctx)
{
    uctx_empty(vm, uctx);
    if (uctx->ext.npages) {
        datapath_ext_remove(vm, &uctx->ext);
        verbs_ring_fini(vm, &uctx->ext);
    }
    vm->objects.uar_used[uctx->uar_page] = 0;
    id_table_release(&vm->objects.uctx, uctx->handle);
    g_free(uctx);
}

/* The guest has given the page to another context: the one that had it is gone. */
static void uctx_of_page_end(struct vm *vm, uint64_t page)
{
    struct id_table *t = &vm->objects.uctx;

    for (uint32_t i = 1; vm->objects.uar_used[page] && i < t->size; i++) {
        struct uctx *uctx = id_table_get(t, i);

        if (uctx && uctx->uar_page == page) {
            uctx_destroy(vm, uctx);
        }
    }
}

/* A context with the UAR page @pfn.  0 or an errno. */
static int uctx_create(struct vm *vm, uint64_t pfn, struct uctx **out)
{
    struct objects *v = &vm->objects;
    uint64_t page = pfn - v->uar_pfn;
    struct uctx *uctx;
    uint32_t handle;

    /* Page 0 is the guest kernel's. */
    if (pfn < v->uar_pfn || page == 0 || page >= VERBS_MAX_UAR) {
        return EINVAL;
    }
    uctx_of_page_end(vm, page);
    uctx = g_try_new0(struct uctx, 1);
    if (!uctx) {
        return ENOMEM;
    }
    handle = id_table_reserve(&v->uctx);
    if (!handle) {
        g_free(uctx);
        return ENOSPC;
    }
    uctx->handle = handle;
    uctx->uar_page = page;
    v->uar_used[page] = 1;
    id_table_publish(&v->uctx, handle, uctx);
    *out = uctx;
    return 0;
}

int verbs_create_uc(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct uctx *uctx;
    int err = uctx_create(vm, req->abi.create_uc.pfn, &uctx);

    if (!err) {
        resp->abi.handle.handle = uctx->handle;
    }
    return err;
}

int verbs_destroy_uc(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct uctx *uctx = id_table_get(&vm->objects.uctx, req->abi.handle.handle);

    if (!uctx) {
        return ENOENT;
    }
    uctx_destroy(vm, uctx);
    return 0;
}

/* Page 0: the guest kernel's own context, which has no handle. */
static int create_kernel_ext(struct vm *vm, const struct pvrdma_ext_cmd_uc *req)
{
    struct ring_mem *mem = &vm->objects.kernel_ext;
    int err;

    if (mem->npages) {
        return EBUSY;
    }
    err = verbs_ring_init(vm, mem, 0, req->pdir_dma, PVRDMA_EXT_PAGES);
    if (!err) {
        datapath_ext_add(vm, mem);
    }
    return err;
}

int verbs_create_uc_ext(struct vm *vm, const union verbs_req *cmd, union verbs_resp *resp)
{
    const struct pvrdma_ext_cmd_uc *req = &cmd->uc;
    struct uctx *uctx;
    int err;

    resp->uc.features = req->features & PVRDMA_EXT_CONTEXT_FEATURES;
    if (!(req->features & PVRDMA_EXT_FEAT_DOORBELL) || req->npages != PVRDMA_EXT_PAGES) {
        return EINVAL;
    }
    if (req->pfn == vm->objects.uar_pfn) {
        return create_kernel_ext(vm, req);
    }
    err = uctx_create(vm, req->pfn, &uctx);
    if (err) {
        return err;
    }
    err = verbs_ring_init(vm, &uctx->ext, sizeof(*uctx), req->pdir_dma, PVRDMA_EXT_PAGES);
    if (err) {
        uctx_destroy(vm, uctx);
        return err;
    }
    datapath_ext_add(vm, &uctx->ext);
    resp->uc.ctx_handle = uctx->handle;
    return 0;
}

int verbs_query_clock(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    resp->clock.ns = datapath_clock(vm);
    return 0;
}

int verbs_query_counters(struct vm *vm, const union verbs_req *req,
                         union verbs_resp *resp)
{
    const struct vm_datapath *dp = &vm->dp;
    uint64_t *counter = resp->counters.counter;

    counter[PVRDMA_EXT_CNT_TX_MSGS] = atomic_load(&dp->tx_msgs);
    counter[PVRDMA_EXT_CNT_TX_BYTES] = atomic_load(&dp->tx_bytes);
    counter[PVRDMA_EXT_CNT_RX_MSGS] = atomic_load(&dp->rx_msgs);
    counter[PVRDMA_EXT_CNT_RX_BYTES] = atomic_load(&dp->rx_bytes);
    counter[PVRDMA_EXT_CNT_ERRORS] = atomic_load(&dp->errors);
    counter[PVRDMA_EXT_CNT_RNR_WAITS] = atomic_load(&dp->rnr_waits);
    counter[PVRDMA_EXT_CNT_RETRIES] = atomic_load(&dp->retries);
    counter[PVRDMA_EXT_CNT_INTERRUPTS] = atomic_load(&dp->interrupts);
    return 0;
}

int verbs_create_pd(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct objects *v = &vm->objects;
    uint32_t ctx = req->abi.create_pd.ctx_handle, handle;
    struct uctx *uctx = id_table_get(&v->uctx, ctx);
    struct pd *pd;

    if (ctx && !uctx) {
        return ENOENT;
    }
    pd = g_try_new0(struct pd, 1);
    if (!pd) {
        return ENOMEM;
    }
    handle = id_table_reserve(&v->pd);
    if (!handle) {
        g_free(pd);
        return ENOSPC;
    }
    pd->handle = handle;
    pd->uctx = uctx;
    if (uctx) {
        uctx->refs++;
    }
    id_table_publish(&v->pd, handle, pd);
    resp->abi.handle.handle = handle;
    return 0;
}

void pd_destroy(struct vm *vm, struct pd *pd)
{
    if (pd->uctx) {
        pd->uctx->refs--;
    }
    id_table_release(&vm->objects.pd, pd->handle);
    g_free(pd);
}

int verbs_destroy_pd(struct vm *vm, const union verbs_req *req, union verbs_resp *resp)
{
    struct pd *pd = id_table_get(&vm->objects.pd, req->abi.handle.handle);

    if (!pd) {
        return ENOENT;
    }
    if (pd->refs) {
        return EBUSY;
    }
    pd_destroy(vm, pd);
    return 0;
}
