/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Protection domains, thread and parent domains, memory regions, address
 * handles: what has no data path of its own.
 *
 * A parent domain with a thread domain is the program's promise that the queues
 * made in it are used by one thread at a time; they go without locks.
 */
#include <arpa/inet.h>

#include "pvrdma.h"

struct ibv_pd *pv_alloc_pd(struct ibv_context *context)
{
	struct ibv_alloc_pd cmd;
	struct pv_cmd_alloc_pd_resp resp = {};
	struct pv_pd *pd = calloc(1, sizeof(*pd));
	int ret;

	if (!pd)
		return NULL;
	ret = ibv_cmd_alloc_pd(context, &pd->ibv_pd, &cmd, sizeof(cmd),
			       &resp.ibv_resp, sizeof(resp));
	if (ret) {
		pv_debug(to_pv_ctx(context), "kernel refuses a PD: %s",
			 strerror(ret));
		free(pd);
		errno = ret;
		return NULL;
	}
	pd->pdn = resp.drv_payload.pdn;
	return &pd->ibv_pd;
}

/* Both kinds; EBUSY while a parent domain is around it. */
int pv_dealloc_pd(struct ibv_pd *ibpd)
{
	struct pv_pd *pd = to_pv_pd(ibpd);
	int ret;

	if (__atomic_load_n(&pd->refs, __ATOMIC_ACQUIRE)) {
		pv_err(to_pv_ctx(ibpd->context),
		       "the PD is in a parent domain");
		return EBUSY;
	}
	if (pd->inner) {
		__atomic_sub_fetch(&pd->inner->refs, 1, __ATOMIC_RELEASE);
		if (pd->td)
			__atomic_sub_fetch(&pd->td->refs, 1, __ATOMIC_RELEASE);
	} else {
		ret = ibv_cmd_dealloc_pd(ibpd);
		if (ret) {
			pv_debug(to_pv_ctx(ibpd->context),
				 "kernel does not free PD %u: %s", pd->pdn,
				 strerror(ret));
			return ret;
		}
	}
	free(pd);
	return 0;
}

struct ibv_td *pv_alloc_td(struct ibv_context *context,
			   struct ibv_td_init_attr *attr)
{
	struct pv_td *td;

	if (attr->comp_mask) {
		pv_err(to_pv_ctx(context), "thread domain attributes %#x are not known",
		       attr->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	td = calloc(1, sizeof(*td));
	if (!td)
		return NULL;
	td->ibv_td.context = context;
	return &td->ibv_td;
}

int pv_dealloc_td(struct ibv_td *ibtd)
{
	struct pv_td *td = to_pv_td(ibtd);

	if (__atomic_load_n(&td->refs, __ATOMIC_ACQUIRE)) {
		pv_err(to_pv_ctx(ibtd->context),
		       "the thread domain is in a parent domain");
		return EBUSY;
	}
	free(td);
	return 0;
}

struct ibv_pd *pv_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr)
{
	struct pv_pd *pd;

	if (ibv_check_alloc_parent_domain(attr)) {
		pv_err(to_pv_ctx(context), "a parent domain needs a PD");
		errno = EINVAL;
		return NULL;
	}
	/* Allocators of the program's own are not supported. */
	if (attr->comp_mask) {
		pv_err(to_pv_ctx(context), "parent domain attributes %#x are not known",
		       attr->comp_mask);
		errno = EOPNOTSUPP;
		return NULL;
	}
	pd = calloc(1, sizeof(*pd));
	if (!pd)
		return NULL;
	pd->inner = to_pv_pd(attr->pd);
	if (pd->inner->inner)
		pd->inner = pd->inner->inner;
	pd->pdn = pd->inner->pdn;
	__atomic_add_fetch(&pd->inner->refs, 1, __ATOMIC_RELAXED);
	if (attr->td) {
		pd->td = to_pv_td(attr->td);
		__atomic_add_fetch(&pd->td->refs, 1, __ATOMIC_RELAXED);
	}
	ibv_initialize_parent_domain(&pd->ibv_pd, &pd->inner->ibv_pd);
	return &pd->ibv_pd;
}

/*
 * @hca_va is the region's address in work requests.  The in-tree driver ignores
 * it and takes the program's; with that driver another wish is an error, because
 * every access would silently go elsewhere.  Only in extended mode is it known
 * that the driver is ours.
 */
struct ibv_mr *pv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			 uint64_t hca_va, int access)
{
	struct ib_uverbs_reg_mr_resp resp;
	struct ibv_reg_mr cmd;
	struct pv_context *ctx = to_pv_ctx(pd->context);
	struct verbs_mr *vmr;
	int ret;

	if (hca_va != (uintptr_t)addr && !ctx->ext) {
		pv_err(ctx, "the in-tree driver cannot register a region with another address");
		errno = EOPNOTSUPP;
		return NULL;
	}
	vmr = calloc(1, sizeof(*vmr));
	if (!vmr)
		return NULL;
	ret = ibv_cmd_reg_mr(pd, addr, length, hca_va, access, vmr, &cmd,
			     sizeof(cmd), &resp, sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses a region of %zu bytes, access %#x: %s",
			 length, access, strerror(ret));
		free(vmr);
		errno = ret;
		return NULL;
	}
	return &vmr->ibv_mr;
}

/*
 * The in-tree driver has no such regions: the kernel says so.  Before release 56
 * libibverbs' function had no last argument, which it does not miss on the stack.
 */
struct ibv_mr *pv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				size_t length, uint64_t iova, int fd, int access)
{
	struct verbs_mr *vmr = calloc(1, sizeof(*vmr));
	int ret;

	if (!vmr)
		return NULL;
	ret = ibv_cmd_reg_dmabuf_mr(pd, offset, length, iova, fd, access, vmr,
				    NULL);
	if (ret) {
		pv_debug(to_pv_ctx(pd->context),
			 "kernel refuses a region of %zu bytes of a DMA buffer, access %#x: %s",
			 length, access, strerror(ret));
		free(vmr);
		errno = ret;
		return NULL;
	}
	return &vmr->ibv_mr;
}

/*
 * The region's address in work requests becomes that of the memory; keys stay.  The
 * in-tree driver cannot.
 */
int pv_rereg_mr(struct verbs_mr *vmr, int flags, struct ibv_pd *pd, void *addr,
		size_t length, int access)
{
	struct ib_uverbs_rereg_mr_resp resp;
	struct ibv_rereg_mr cmd;
	int ret = ibv_cmd_rereg_mr(vmr, flags, addr, length, (uintptr_t)addr,
				   access, pd, &cmd, sizeof(cmd), &resp,
				   sizeof(resp));

	if (ret)
		pv_debug(to_pv_ctx(vmr->ibv_mr.context),
			 "kernel does not change region %#x, flags %#x: %s",
			 vmr->ibv_mr.lkey, flags, strerror(ret));
	return ret;
}

int pv_dereg_mr(struct verbs_mr *vmr)
{
	int ret = ibv_cmd_dereg_mr(vmr);

	if (ret) {
		pv_debug(to_pv_ctx(vmr->ibv_mr.context),
			 "kernel does not free region %#x: %s", vmr->ibv_mr.lkey,
			 strerror(ret));
		return ret;
	}
	free(vmr);
	return 0;
}

/* As IPv6 or as IPv4, which has a MAC address of its own kind, too. */
static bool pv_gid_is_multicast(const union ibv_gid *gid)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	return gid->raw[0] == 0xff ||
	       (!memcmp(gid->raw, mapped, sizeof(mapped)) &&
		(gid->raw[12] & 0xf0) == 0xe0);
}

/*
 * The destination's MAC, as for a packet of the paired interface, for any GID that is
 * an IP address; the stock provider does not try that with IPv6 ones.  0 or an errno.
 */
static int pv_resolve(struct ibv_context *context, struct ibv_ah_attr *attr,
		      uint8_t *mac)
{
	struct ibv_port_attr port;
	int ret = ibv_query_port(context, attr->port_num, &port);

	if (ret) {
		pv_err(to_pv_ctx(context), "port %u: %s", attr->port_num,
		       strerror(ret));
		return ret;
	}
	if (port.link_layer != IBV_LINK_LAYER_ETHERNET) {
		pv_err(to_pv_ctx(context), "port %u is not Ethernet", attr->port_num);
		return EINVAL;
	}
	/* A negative errno; it sets errno, too, or not, or to something else. */
	ret = -ibv_resolve_eth_l2_from_gid(context, attr, mac, NULL);
	if (ret)
		pv_err(to_pv_ctx(context),
		       "no MAC address for the GID, from source GID %u: %s",
		       attr->grh.sgid_index, strerror(ret));
	return ret;
}

/*
 * Address handles live in the program only.  The device carries no multicast, and finds
 * its peers by their GIDs.  That it is one that uses no MAC address is known in
 * extended mode only; else one is resolved, which takes milliseconds, and seconds where
 * nobody answers.
 */
struct ibv_ah *pv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct pv_context *ctx = to_pv_ctx(pd->context);
	struct pv_ah *ah;
	int ret = 0;

	if (!attr->is_global || pv_gid_is_multicast(&attr->grh.dgid)) {
		pv_err(ctx, "an address handle needs a GID that is not multicast");
		errno = EINVAL;
		return NULL;
	}
	if (attr->port_num != 1) {
		pv_err(ctx, "port %u: the device has one port", attr->port_num);
		errno = EINVAL;
		return NULL;
	}
	ah = calloc(1, sizeof(*ah));
	if (!ah)
		return NULL;
	ah->av.port_pd = to_pv_pd(pd)->pdn | (uint32_t)attr->port_num << 24;
	ah->av.sl_tclass_flowlabel =
		(uint32_t)attr->grh.traffic_class << 20 |
		(attr->grh.flow_label & 0xfffff);
	memcpy(ah->av.dgid, attr->grh.dgid.raw, sizeof(ah->av.dgid));
	ah->av.src_path_bits = attr->src_path_bits | 0x80;
	ah->av.gid_index = attr->grh.sgid_index;
	ah->av.stat_rate = attr->static_rate;
	ah->av.hop_limit = attr->grh.hop_limit;
	if (!ctx->ext)
		ret = pv_resolve(pd->context, attr, ah->av.dmac);
	if (ret) {
		free(ah);
		errno = ret;
		return NULL;
	}
	return &ah->ibv_ah;
}

int pv_destroy_ah(struct ibv_ah *ah)
{
	free(to_pv_ah(ah));
	return 0;
}
