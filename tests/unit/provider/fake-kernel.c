/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* See fake-kernel.h. */
#include <glib.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake-kernel.h"

struct fake fake;
static int file = -1;

void verbs_register_driver(const struct verbs_device_ops *ops)
{
    fake.dev_ops = ops;
}

void verbs_set_ops(struct verbs_context *vctx, const struct verbs_context_ops *ops)
{
    fake.ops = ops;
}

void *_verbs_init_and_alloc_context(struct ibv_device *device, int cmd_fd,
                                    size_t alloc_size, struct verbs_context *offset,
                                    uint32_t driver_id)
{
    char *p = calloc(1, alloc_size);
    struct verbs_context *v = (struct verbs_context *)(p + (uintptr_t)offset);

    v->context.device = device;
    v->context.cmd_fd = cmd_fd;
    return p;
}

void verbs_uninit_context(struct verbs_context *context)
{
}

int ibv_dontfork_range(void *base, size_t size)
{
    return fake.no_fork ? -1 : 0;
}

int ibv_dofork_range(void *base, size_t size)
{
    return 0;
}

void __verbs_log(struct verbs_context *ctx, uint32_t level, const char *format, ...)
{
    __atomic_add_fetch(&fake.logged[level], 1, __ATOMIC_RELAXED);
}

int ibv_cmd_get_context(struct verbs_context *context, struct ibv_get_context *cmd,
                        size_t cmd_size,
#if IBVERBS_PABI_VERSION >= 57
                        struct ibv_fd_arr *fds,
#endif
                        struct ib_uverbs_get_context_resp *resp, size_t resp_size)
{
    struct pv_cmd_ucontext *in = (struct pv_cmd_ucontext *)cmd;
    struct pv_cmd_ucontext_resp *out = (struct pv_cmd_ucontext_resp *)resp;

    fake.contexts++;
    if (cmd_size == sizeof(*cmd)) {
        memset(&fake.ucontext, 0, sizeof(fake.ucontext));
        if (resp_size != sizeof(*resp) + 8) {
            abort();
        }
        out->drv_payload.qp_tab_size = 1024;
        return 0;
    }
    if (fake.strict) {
        out->drv_payload.magic = PVRDMA_EXT_MAGIC; /* what a failed call leaves */
        return EOPNOTSUPP;
    }
    fake.ucontext = in->drv_payload;
    out->drv_payload.qp_tab_size = 1024;
    if (fake.grant && in->drv_payload.magic == PVRDMA_EXT_MAGIC) {
        out->drv_payload.magic = PVRDMA_EXT_MAGIC;
        out->drv_payload.features = in->drv_payload.features;
        out->drv_payload.max_inline = PVRDMA_EXT_MAX_INLINE;
    }
    return 0;
}

static int take_failure(void)
{
    return __atomic_exchange_n(&fake.fail, 0, __ATOMIC_RELAXED);
}

int ibv_cmd_alloc_pd(struct ibv_context *context, struct ibv_pd *pd,
                     struct ibv_alloc_pd *cmd, size_t cmd_size,
                     struct ib_uverbs_alloc_pd_resp *resp, size_t resp_size)
{
    pd->context = context;
    pd->handle = 1;
    ((struct pv_cmd_alloc_pd_resp *)resp)->drv_payload.pdn = 7;
    return take_failure();
}

int ibv_cmd_dealloc_pd(struct ibv_pd *pd)
{
    return 0;
}

int ibv_cmd_create_cq(struct ibv_context *context, int cqe,
                      struct ibv_comp_channel *channel, int comp_vector,
                      struct ibv_cq *cq, struct ibv_create_cq *cmd, size_t cmd_size,
                      struct ib_uverbs_create_cq_resp *resp, size_t resp_size)
{
    if (fake.strict && cmd_size > sizeof(struct pv_cmd_create_cq) - 8) {
        return EOPNOTSUPP;
    }
    fake.cq = ((struct pv_cmd_create_cq *)cmd)->drv_payload;
    ((struct pv_cmd_create_cq_resp *)resp)->drv_payload.cqn = 3;
    cq->context = context;
    cq->cqe = cqe;
    return take_failure();
}

int ibv_cmd_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr,
                      struct ibv_modify_cq *cmd, size_t cmd_size)
{
    fake.moderate = attr->moderate;
    return take_failure();
}

/* As the device does it: the arm word goes along. */
int ibv_cmd_resize_cq(struct ibv_cq *cq, int cqe, struct ibv_resize_cq *cmd,
                      size_t cmd_size, struct ib_uverbs_resize_cq_resp *resp,
                      size_t resp_size)
{
    const struct pvrdma_uverbs_resize_cq *req =
        &((struct pv_cmd_resize_cq *)cmd)->drv_payload;
    struct pvrdma_ext_ring *old = (void *)(uintptr_t)fake.cq.buf_addr;
    struct pvrdma_ext_ring *new = (void *)(uintptr_t)req->buf_addr;
    int err = take_failure();

    if (cmd_size != sizeof(struct pv_cmd_resize_cq) || resp_size != sizeof(*resp) ||
        req->buf_size < 4096 + cqe * sizeof(struct pvrdma_cqe)) {
        abort();
    }
    if (err) {
        return err;
    }
    if (fake.moving) {
        fake.moving(true);
    }
    new->arm.value =
        __atomic_exchange_n(&old->arm.value, PVRDMA_EXT_ARM_NONE, __ATOMIC_SEQ_CST);
    fake.cq.buf_addr = req->buf_addr;
    fake.cq.buf_size = req->buf_size;
    cq->cqe = cqe;
    if (fake.moving) {
        fake.moving(false);
    }
    return 0;
}

int ibv_cmd_destroy_cq(struct ibv_cq *cq)
{
    return 0;
}

int ibv_cmd_create_qp_ex(struct ibv_context *context, struct verbs_qp *qp,
                         struct ibv_qp_init_attr_ex *attr, struct ibv_create_qp *cmd,
                         size_t cmd_size, struct ib_uverbs_create_qp_resp *resp,
                         size_t resp_size)
{
    uint32_t handle = fake.next_handle;
    struct fake_qp *f;
    int err = take_failure();

    if (err) {
        return err;
    }
    while (fake.pick_handles) {
        uint32_t used = __atomic_load_n(&fake.used, __ATOMIC_ACQUIRE);

        handle = (uint32_t)__builtin_ctz(~(used | 1));
        if (handle >= G_N_ELEMENTS(fake.qp)) {
            return ENOMEM;
        }
        if (!(__atomic_fetch_or(&fake.used, 1u << handle, __ATOMIC_ACQ_REL) &
              1u << handle)) {
            break;
        }
    }
    f = &fake.qp[handle];
    if (fake.strict && cmd_size > sizeof(struct pv_cmd_create_qp) - 8) {
        return EOPNOTSUPP;
    }
    f->req = ((struct pv_cmd_create_qp *)cmd)->drv_payload;
    f->cap = attr->cap;
    f->handle = handle;
    qp->qp.context = context;
    qp->qp.qp_num =
        100 + f->handle + 16 * __atomic_fetch_add(&fake.made, 1, __ATOMIC_RELAXED);
    qp->qp.qp_type = attr->qp_type;
    qp->qp.send_cq = attr->send_cq;
    qp->qp.recv_cq = attr->recv_cq;
    qp->qp.pd = attr->pd;
    qp->qp.state = IBV_QPS_RESET;
    /* Each libibverbs clears comp_mask where it knows it. */
    if (IBVERBS_PABI_VERSION == 34 && fake.old_layout) {
        memset(&qp->qp_ex.wr_flush, 0, sizeof(uint32_t));
    } else {
        qp->comp_mask = 0;
    }
    ((struct pv_cmd_create_qp_resp *)resp)->drv_payload.qpn = qp->qp.qp_num;
    ((struct pv_cmd_create_qp_resp *)resp)->drv_payload.qp_handle = f->handle;
    return 0;
}

int ibv_cmd_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                      struct ibv_modify_qp *cmd, size_t cmd_size)
{
    qp->state = attr->qp_state;
    return 0;
}

int ibv_cmd_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
                     struct ibv_qp_init_attr *init_attr, struct ibv_query_qp *cmd,
                     size_t cmd_size)
{
    memset(attr, 0, sizeof(*attr));
    memset(init_attr, 0, sizeof(*init_attr));
    return 0;
}

int ibv_cmd_destroy_qp(struct ibv_qp *qp)
{
    int err = take_failure();

    if (!err && fake.pick_handles) {
        __atomic_fetch_and(&fake.used, ~(1u << to_pv_qp(qp)->handle), __ATOMIC_ACQ_REL);
    }
    if (!err && fake.destroying) {
        fake.destroying(qp);
    }
    return err;
}

int ibv_cmd_create_srq(struct ibv_pd *pd, struct ibv_srq *srq,
                       struct ibv_srq_init_attr *attr, struct ibv_create_srq *cmd,
                       size_t cmd_size, struct ib_uverbs_create_srq_resp *resp,
                       size_t resp_size)
{
    struct pv_cmd_create_srq *c = (struct pv_cmd_create_srq *)cmd;

    fake.srq_flags = cmd_size == sizeof(*c) ? c->drv_payload.ext.flags : 0;
    srq->context = pd->context;
    ((struct pv_cmd_create_srq_resp *)resp)->drv_payload.srqn = 9;
    return take_failure();
}

int ibv_cmd_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask,
                       struct ibv_modify_srq *cmd, size_t cmd_size)
{
    return 0;
}

int ibv_cmd_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr,
                      struct ibv_query_srq *cmd, size_t cmd_size)
{
    return 0;
}

int ibv_cmd_destroy_srq(struct ibv_srq *srq)
{
    return 0;
}

int ibv_cmd_reg_mr(struct ibv_pd *pd, void *addr, size_t length, uint64_t hca_va,
                   int access, struct verbs_mr *vmr, struct ibv_reg_mr *cmd,
                   size_t cmd_size, struct ib_uverbs_reg_mr_resp *resp, size_t resp_size)
{
    vmr->ibv_mr.context = pd->context;
    return take_failure();
}

int ibv_cmd_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length,
                          uint64_t iova, int fd, int access, struct verbs_mr *vmr,
                          struct ibv_command_buffer *driver)
{
    vmr->ibv_mr.context = pd->context;
    return take_failure();
}

int ibv_cmd_rereg_mr(struct verbs_mr *vmr, uint32_t flags, void *addr, size_t length,
                     uint64_t hca_va, int access, struct ibv_pd *pd,
                     struct ibv_rereg_mr *cmd, size_t cmd_sz,
                     struct ib_uverbs_rereg_mr_resp *resp, size_t resp_sz)
{
    fake.rereg_va = hca_va;
    return take_failure();
}

int ibv_cmd_dereg_mr(struct verbs_mr *vmr)
{
    return 0;
}

int ibv_cmd_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw *mw,
                     struct ibv_alloc_mw *cmd, size_t cmd_size,
                     struct ib_uverbs_alloc_mw_resp *resp, size_t resp_size)
{
    mw->context = pd->context;
    mw->pd = pd;
    mw->rkey = 0x5ff;
    mw->type = type;
    return take_failure();
}

int ibv_cmd_dealloc_mw(struct ibv_mw *mw)
{
    return take_failure();
}

int ibv_cmd_query_device_any(struct ibv_context *context,
                             const struct ibv_query_device_ex_input *input,
                             struct ibv_device_attr_ex *attr, size_t attr_size,
                             struct ib_uverbs_ex_query_device_resp *resp,
                             size_t *resp_size)
{
    resp->base.fw_ver = 0x000100020003;
    if (attr_size == sizeof(*attr)) {
        attr->completion_timestamp_mask = fake.clock ? PVRDMA_EXT_STAMP_MASK : 0;
    }
    if (*resp_size == sizeof(struct pv_cmd_query_device_resp)) {
        struct pv_cmd_query_device_resp *out = (struct pv_cmd_query_device_resp *)resp;

        if (!fake.clock) {
            return EINVAL;
        }
        out->drv_payload.ns = fake.clock;
    }
    return 0;
}

int ibv_cmd_query_port(struct ibv_context *context, uint8_t port,
                       struct ibv_port_attr *attr, struct ibv_query_port *cmd,
                       size_t cmd_size)
{
    return 0;
}

#undef ibv_query_port
int ibv_query_port(struct ibv_context *context, uint8_t port,
                   struct _compat_ibv_port_attr *attr)
{
    ((struct ibv_port_attr *)attr)->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}

int ibv_resolve_eth_l2_from_gid(struct ibv_context *context, struct ibv_ah_attr *attr,
                                uint8_t mac[ETHERNET_LL_SIZE], uint16_t *vid)
{
    memset(mac, 0xaa, ETHERNET_LL_SIZE);
    return 0;
}

static struct ibv_context *open_fake(bool grant, bool strict)
{
    size_t size = (1 + PVRDMA_EXT_PAGES) * PVRDMA_PAGE_SIZE;
    const struct verbs_device_ops *ops = fake.dev_ops;
    struct verbs_context *v;
    char *map;

    memset(&fake, 0, sizeof(fake));
    fake.dev_ops = ops;
    fake.grant = grant;
    fake.strict = strict;
    fake.next_handle = 1;
    file = memfd_create("uverbs", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, size)) {
        abort();
    }
    map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) {
        abort();
    }
    fake.uar = (uint32_t *)map;
    fake.ext = (struct pvrdma_ext_mem *)(map + PVRDMA_PAGE_SIZE);
    v = ops->alloc_context(&fake.ibdev, file, NULL);
    return v ? &v->context : NULL;
}

struct ibv_context *fake_open(bool grant)
{
    return open_fake(grant, false);
}

struct ibv_context *fake_open_strict(void)
{
    return open_fake(false, true);
}

void fake_close(struct ibv_context *context)
{
    fake.ops->free_context(context);
    munmap(fake.uar, (1 + PVRDMA_EXT_PAGES) * PVRDMA_PAGE_SIZE);
    close(file);
}
