/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Device match, contexts and their mode, device and port queries.
 *
 * This library stands in the place of rdma-core's own vmw_pvrdma provider,
 * because two registered providers for one device cannot be ordered.  So it
 * matches the same devices and must serve the in-tree driver as well as ours:
 * the request for extensions is sent behind the (empty) stock request, where
 * the in-tree driver does not look, and the grant is found behind the stock
 * response, which starts out zeroed.  No magic there: stock mode.  A kernel that
 * does look, and refuses what it does not know, is asked again without.
 *
 * PVRDMA_STOCK=1 in the environment asks for no extensions.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "pvrdma.h"

static void pv_free_context(struct ibv_context *context);

/* @size is rounded up to whole pages; the memory is zero.  0 or an errno. */
int pv_buf_alloc(struct pv_buf *buf, size_t size)
{
	buf->length = (size + PVRDMA_PAGE_SIZE - 1) &
		      ~(size_t)(PVRDMA_PAGE_SIZE - 1);
	buf->addr = mmap(NULL, buf->length, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (buf->addr == MAP_FAILED) {
		buf->addr = NULL;
		return errno;
	}
	/* Not an errno: it returns -1, or what madvise() did. */
	if (ibv_dontfork_range(buf->addr, buf->length)) {
		munmap(buf->addr, buf->length);
		buf->addr = NULL;
		return ENOMEM;
	}
	return 0;
}

void pv_buf_free(struct pv_buf *buf)
{
	if (!buf->addr)
		return;
	ibv_dofork_range(buf->addr, buf->length);
	munmap(buf->addr, buf->length);
	buf->addr = NULL;
}

static int pv_query_device(struct ibv_context *context,
			   const struct ibv_query_device_ex_input *input,
			   struct ibv_device_attr_ex *attr, size_t attr_size)
{
	struct ib_uverbs_ex_query_device_resp resp = {};
	size_t resp_size = sizeof(resp);
	uint64_t fw;
	int ret;

	ret = ibv_cmd_query_device_any(context, input, attr, attr_size, &resp,
				       &resp_size);
	if (ret)
		return ret;
	/* In stock mode there is no CQ that could have stamps. */
	if (!to_pv_ctx(context)->ext &&
	    attr_size >= offsetof(struct ibv_device_attr_ex, hca_core_clock))
		attr->completion_timestamp_mask = 0;
	fw = resp.base.fw_ver;
	snprintf(attr->orig_attr.fw_ver, sizeof(attr->orig_attr.fw_ver),
		 "%u.%u.%03u", (unsigned int)(fw >> 32) & 0xffff,
		 (unsigned int)(fw >> 16) & 0xffff, (unsigned int)fw & 0xffff);
	return 0;
}

/*
 * The clock of time stamps.  The kernel has the device read it, so it is that of some
 * moment within this call.
 */
static int pv_query_rt_values(struct ibv_context *context,
			      struct ibv_values_ex *values)
{
	struct pv_context *ctx = to_pv_ctx(context);
	struct pv_cmd_query_device_resp resp = {};
	size_t resp_size = sizeof(resp);
	struct ibv_device_attr_ex attr;
	int ret;

	if (values->comp_mask & ~IBV_VALUES_MASK_RAW_CLOCK) {
		pv_err(ctx, "values %#x are not known", values->comp_mask);
		return EINVAL;
	}
	if (!values->comp_mask)
		return 0;
	ret = ibv_cmd_query_device_any(context, NULL, &attr, sizeof(attr),
				       &resp.ibv_resp, &resp_size);
	if (ret || !attr.completion_timestamp_mask) {
		pv_err(ctx, "the driver or the device has no clock");
		return ret && ret != EINVAL ? ret : EOPNOTSUPP;
	}
	values->raw_clock.tv_sec = 0;
	values->raw_clock.tv_nsec = resp.drv_payload.ns &
				    attr.completion_timestamp_mask;
	return 0;
}

static int pv_query_port(struct ibv_context *context, uint8_t port,
			 struct ibv_port_attr *attr)
{
	struct ibv_query_port cmd;

	return ibv_cmd_query_port(context, port, attr, &cmd, sizeof(cmd));
}

static const struct verbs_context_ops pv_context_ops = {
	.alloc_mw = pv_alloc_mw,
	.alloc_parent_domain = pv_alloc_parent_domain,
	.alloc_pd = pv_alloc_pd,
	.alloc_td = pv_alloc_td,
	.bind_mw = pv_bind_mw,
	.create_ah = pv_create_ah,
	.create_cq = pv_create_cq,
	.create_cq_ex = pv_create_cq_ex,
	.resize_cq = pv_resize_cq,
	.create_qp = pv_create_qp,
	.create_qp_ex = pv_create_qp_ex,
	.create_srq = pv_create_srq,
	.dealloc_mw = pv_dealloc_mw,
	.dealloc_pd = pv_dealloc_pd,
	.dealloc_td = pv_dealloc_td,
	.dereg_mr = pv_dereg_mr,
	.destroy_ah = pv_destroy_ah,
	.destroy_cq = pv_destroy_cq,
	.destroy_qp = pv_destroy_qp,
	.destroy_srq = pv_destroy_srq,
	.free_context = pv_free_context,
	.modify_cq = pv_modify_cq,
	.modify_qp = pv_modify_qp,
	.modify_srq = pv_modify_srq,
	.poll_cq = pv_poll_cq,
	.post_recv = pv_post_recv,
	.post_send = pv_post_send,
	.post_srq_recv = pv_post_srq_recv,
	.query_device_ex = pv_query_device,
	.query_port = pv_query_port,
	.query_qp = pv_query_qp,
	.query_rt_values = pv_query_rt_values,
	.query_srq = pv_query_srq,
	.reg_dmabuf_mr = pv_reg_dmabuf_mr,
	.reg_mr = pv_reg_mr,
	.req_notify_cq = pv_req_notify_cq,
	.rereg_mr = pv_rereg_mr,
};

/* Extended QPs need the doorbell maps; anything less is stock mode. */
static bool pv_granted(const struct pvrdma_ext_ucontext_resp *resp)
{
	const uint32_t need = PVRDMA_EXT_FEAT_DOORBELL | PVRDMA_EXT_FEAT_RING;

	return resp->magic == PVRDMA_EXT_MAGIC &&
	       (resp->features & need) == need;
}

static void *pv_map(int fd, size_t pages, int prot, unsigned int page_offset)
{
	void *p = mmap(NULL, pages * PVRDMA_PAGE_SIZE, prot, MAP_SHARED, fd,
		       (off_t)page_offset * PVRDMA_PAGE_SIZE);

	return p == MAP_FAILED ? NULL : p;
}

/* rdma-core has had another argument there since 57: files to hand over. */
static int pv_get_context(struct pv_context *ctx, struct pv_cmd_ucontext *cmd,
			  size_t cmd_size, struct pv_cmd_ucontext_resp *resp,
			  size_t resp_size)
{
	return ibv_cmd_get_context(&ctx->vctx, &cmd->ibv_cmd, cmd_size,
#if IBVERBS_PABI_VERSION >= 57
				   NULL,
#endif
				   &resp->ibv_resp, resp_size);
}

/* 0 or an errno; @resp is the kernel's answer, zero where it gave none. */
static int pv_alloc_ucontext(struct pv_context *ctx,
			     struct pv_cmd_ucontext_resp *resp)
{
	const char *stock = getenv("PVRDMA_STOCK");
	struct pv_cmd_ucontext cmd = {};
	int ret;

	if (!stock || !strcmp(stock, "0") || !*stock) {
		cmd.drv_payload.magic = PVRDMA_EXT_MAGIC;
		cmd.drv_payload.features = PVRDMA_EXT_FEAT_DOORBELL |
					   PVRDMA_EXT_FEAT_RING |
					   PVRDMA_EXT_FEAT_INLINE |
					   PVRDMA_EXT_FEAT_MEMWIN;
		ret = pv_get_context(ctx, &cmd, sizeof(cmd), resp,
				     sizeof(*resp));
		if (ret != EINVAL && ret != EOPNOTSUPP)
			return ret;
		pv_debug(ctx, "kernel refuses the query for extensions: %s",
			 strerror(ret));
		memset(&cmd, 0, sizeof(cmd));
		memset(resp, 0, sizeof(*resp));
	}
	return pv_get_context(ctx, &cmd, sizeof(cmd.ibv_cmd), resp,
			      offsetof(struct pv_cmd_ucontext_resp,
				       drv_payload.magic));
}

static void pv_unmap_context(struct pv_context *ctx)
{
	if (ctx->ext)
		munmap(ctx->ext, sizeof(*ctx->ext));
	if (ctx->uar)
		munmap(ctx->uar, PVRDMA_PAGE_SIZE);
	free(ctx->qp_tbl);
}

/* 0 or an errno. */
static int pv_init_context(struct pv_context *ctx, int cmd_fd)
{
	struct pv_cmd_ucontext_resp resp = {};
	int ret = pv_alloc_ucontext(ctx, &resp);

	if (ret) {
		pv_debug(ctx, "kernel refuses a context: %s", strerror(ret));
		return ret;
	}
	ctx->qp_tbl = calloc(PV_QP_TABLE, sizeof(*ctx->qp_tbl));
	ctx->uar = pv_map(cmd_fd, 1, PROT_WRITE, PVRDMA_EXT_MMAP_UAR);
	if (!ctx->qp_tbl || !ctx->uar) {
		ret = errno;
		pv_err(ctx, "no memory, or the doorbell page cannot be mapped: %s",
		       strerror(ret));
		goto err;
	}
	if (pv_granted(&resp.drv_payload)) {
		ctx->ext = pv_map(cmd_fd, PVRDMA_EXT_PAGES,
				  PROT_READ | PROT_WRITE, PVRDMA_EXT_MMAP_MEM);
		if (!ctx->ext) {
			ret = errno;
			pv_err(ctx, "the extension memory cannot be mapped: %s",
			       strerror(ret));
			goto err;
		}
		ctx->memwin = resp.drv_payload.features &
			      PVRDMA_EXT_FEAT_MEMWIN;
		if (resp.drv_payload.features & PVRDMA_EXT_FEAT_INLINE)
			ctx->max_inline = resp.drv_payload.max_inline;
		if (ctx->max_inline > PVRDMA_EXT_MAX_INLINE)
			ctx->max_inline = PVRDMA_EXT_MAX_INLINE;
	}
	pthread_mutex_init(&ctx->qp_lock, NULL);
	verbs_set_ops(&ctx->vctx, &pv_context_ops);
	return 0;

err:
	pv_unmap_context(ctx);
	return ret;
}

static struct verbs_context *pv_alloc_context(struct ibv_device *ibdev,
					      int cmd_fd, void *private_data)
{
	struct pv_context *ctx;
	int ret;

	ctx = verbs_init_and_alloc_context(ibdev, cmd_fd, ctx, vctx,
					   RDMA_DRIVER_VMW_PVRDMA);
	if (!ctx)
		return NULL;
	ret = pv_init_context(ctx, cmd_fd);
	if (ret) {
		verbs_uninit_context(&ctx->vctx);
		free(ctx);
		errno = ret;
		return NULL;
	}
	return &ctx->vctx;
}

static void pv_free_context(struct ibv_context *context)
{
	struct pv_context *ctx = to_pv_ctx(context);

	pv_unmap_context(ctx);
	pthread_mutex_destroy(&ctx->qp_lock);
	verbs_uninit_context(&ctx->vctx);
	free(ctx);
}

static struct verbs_device *pv_alloc_device(struct verbs_sysfs_dev *sysfs_dev)
{
	struct pv_device *dev = calloc(1, sizeof(*dev));

	return dev ? &dev->vdev : NULL;
}

static void pv_uninit_device(struct verbs_device *vdev)
{
	free(container_of(vdev, struct pv_device, vdev));
}

static const struct verbs_match_ent pv_match[] = {
	VERBS_DRIVER_ID(RDMA_DRIVER_VMW_PVRDMA),
	VERBS_PCI_MATCH(PVRDMA_PCI_VENDOR, PVRDMA_PCI_DEVICE, NULL),
	{}
};

static const struct verbs_device_ops pv_device_ops = {
	.name = "pvrdma",
	.match_min_abi_version = PVRDMA_UVERBS_ABI,
	.match_max_abi_version = PVRDMA_UVERBS_ABI,
	.match_table = pv_match,
	.alloc_device = pv_alloc_device,
	.uninit_device = pv_uninit_device,
	.alloc_context = pv_alloc_context,
};
PROVIDER_DRIVER(vmw_pvrdma, pv_device_ops);
