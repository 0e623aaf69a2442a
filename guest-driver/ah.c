// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Address handles: the address vector that datagrams carry.  The device keeps
 * none, so there is no command; a program's provider makes its own.
 */
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>

#include "pvrdma.h"
#include "uabi.h"

/**
 * pvrdma_create_ah() - verb
 * @ibah: to be made
 * @init: destination; must carry a global route
 * @udata: a program's call, or NULL
 *
 * Return: 0, -EINVAL for a destination that is no unicast GID on Ethernet, or
 * -EOPNOTSUPP.
 */
int pvrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init,
		     struct ib_udata *udata)
{
	const struct rdma_ah_attr *attr = init->ah_attr;
	struct pvrdma_av *av = &to_pvah(ibah)->av;
	const struct ib_global_route *grh;
	u32 port = rdma_ah_get_port_num(attr);
	int ret;

	ret = pvrdma_uabi_none(ibah->device, udata);
	if (ret)
		return ret;
	if (!(rdma_ah_get_ah_flags(attr) & IB_AH_GRH) ||
	    attr->type != RDMA_AH_ATTR_TYPE_ROCE)
		return pvrdma_refuse(ibah->device, -EINVAL, "no global route");
	grh = rdma_ah_read_grh(attr);
	if (rdma_is_multicast_addr((struct in6_addr *)grh->dgid.raw))
		return pvrdma_refuse(ibah->device, -EINVAL, "%pI6 is multicast",
				     grh->dgid.raw);
	av->port_pd = to_pvpd(ibah->pd)->handle | port << 24;
	av->sl_tclass_flowlabel = (u32)grh->traffic_class << 20 |
				  (grh->flow_label & 0xfffff);
	memcpy(av->dgid, grh->dgid.raw, sizeof(av->dgid));
	av->src_path_bits = rdma_ah_get_path_bits(attr) | 0x80;
	av->stat_rate = rdma_ah_get_static_rate(attr);
	av->hop_limit = grh->hop_limit;
	av->gid_index = grh->sgid_index;
	memcpy(av->dmac, attr->roce.dmac, sizeof(av->dmac));
	return 0;
}

/**
 * pvrdma_destroy_ah() - verb
 * @ibah: address handle
 * @flags: not used
 *
 * Return: 0.
 */
int pvrdma_destroy_ah(struct ib_ah *ibah, u32 flags)
{
	return 0;
}
