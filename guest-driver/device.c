// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The adapter as a whole: its attributes, its port and its GIDs; in sysfs those three
 * files that programs (ibstat, ibv_devinfo) look for in every device.
 *
 * The GID table belongs to ib_core, which fills it from the paired interface;
 * the device is told of each entry and may refuse it.
 */
#include <linux/if_vlan.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_smi.h>

#include "cmd.h"
#include "pvrdma.h"
#include "pvrdma/uverbs.h"

#define BIND_NO_VLAN 0xfff
#define BIND_MTU     1024

static int give_clock(struct pvrdma_dev *dev, struct ib_udata *udata)
{
	struct pvrdma_cmd_handle req = {};
	struct pvrdma_uverbs_clock out;
	struct pvrdma_ext_resp_clock resp;
	int ret;

	ret = pvrdma_cmd_query_clock(dev, &req, &resp);
	if (ret)
		return ret;
	out.ns = resp.ns;
	return ib_copy_to_udata(udata, &out, sizeof(out));
}

static int pvrdma_query_device(struct ib_device *ibdev,
			       struct ib_device_attr *attr,
			       struct ib_udata *udata)
{
	const struct pvrdma_caps *caps = &to_pvdev(ibdev)->caps;
	u8 both = PVRDMA_ATOMIC_OP_CAS | PVRDMA_ATOMIC_OP_FAA;
	bool timed = to_pvdev(ibdev)->ext.features & PVRDMA_EXT_FEAT_CQ_TIME;
	bool clock = udata && udata->outlen >= sizeof(struct pvrdma_uverbs_clock);

	if (udata && (udata->inlen || (udata->outlen && !(clock && timed))))
		return pvrdma_refuse(ibdev, -EINVAL, "private data");
	attr->fw_ver = caps->fw_ver;
	attr->sys_image_guid = (__force __be64)caps->sys_image_guid;
	attr->max_mr_size = pvrdma_max_mr_size(to_pvdev(ibdev));
	attr->page_size_cap = caps->page_size_cap;
	attr->vendor_id = caps->vendor_id;
	attr->vendor_part_id = to_pvdev(ibdev)->pdev->device;
	attr->hw_ver = caps->hw_ver;
	attr->max_qp = caps->max_qp;
	attr->max_qp_wr = caps->max_qp_wr;
	/* Not what this driver has no verbs for, or only with extensions. */
	attr->device_cap_flags = caps->device_cap_flags &
				 ~(u64)(IB_DEVICE_MEM_MGT_EXTENSIONS |
					IB_DEVICE_MEM_WINDOW |
					IB_DEVICE_MEM_WINDOW_TYPE_2A |
					IB_DEVICE_MEM_WINDOW_TYPE_2B |
					IB_DEVICE_XRC);
	attr->max_fast_reg_page_list_len = pvrdma_fast_reg_max(to_pvdev(ibdev));
	if (attr->max_fast_reg_page_list_len)
		attr->device_cap_flags |= IB_DEVICE_MEM_MGT_EXTENSIONS;
	if (to_pvdev(ibdev)->ext.features & PVRDMA_EXT_FEAT_MEMWIN) {
		attr->max_mw = caps->max_mw;
		attr->device_cap_flags |= IB_DEVICE_MEM_WINDOW |
					  IB_DEVICE_MEM_WINDOW_TYPE_2B;
	}
	attr->device_cap_flags |= IB_DEVICE_PORT_ACTIVE_EVENT |
				  IB_DEVICE_RC_RNR_NAK_GEN;
	attr->max_send_sge = caps->max_sge;
	attr->max_recv_sge = caps->max_sge;
	attr->max_sge_rd = caps->max_sge_rd;
	attr->max_cq = caps->max_cq;
	attr->max_cqe = caps->max_cqe;
	attr->max_srq = caps->max_srq;
	attr->max_srq_wr = caps->max_srq_wr;
	attr->max_srq_sge = caps->max_srq_sge;
	attr->max_mr = caps->max_mr;
	attr->max_pd = caps->max_pd;
	attr->max_qp_rd_atom = caps->max_qp_rd_atom;
	attr->max_res_rd_atom = caps->max_res_rd_atom;
	attr->max_qp_init_rd_atom = caps->max_qp_init_rd_atom;
	attr->max_ah = caps->max_ah;
	attr->max_pkeys = caps->max_pkeys;
	attr->local_ca_ack_delay = caps->local_ca_ack_delay;
	attr->atomic_cap = (caps->atomic_ops & both) == both ? IB_ATOMIC_HCA :
							       IB_ATOMIC_NONE;
	if (timed) {
		attr->timestamp_mask = PVRDMA_EXT_STAMP_MASK;
		attr->hca_core_clock = PVRDMA_EXT_CLOCK_KHZ;
		attr->cq_caps.max_cq_moderation_count = PVRDMA_EXT_MODERATE_MAX;
		attr->cq_caps.max_cq_moderation_period = PVRDMA_EXT_MODERATE_MAX;
	}
	return clock ? give_clock(to_pvdev(ibdev), udata) : 0;
}

static void pvrdma_get_fw_str(struct ib_device *ibdev, char *str)
{
	u64 ver = to_pvdev(ibdev)->caps.fw_ver;

	snprintf(str, IB_FW_VERSION_NAME_MAX, "%u.%u.%u",
		 (u16)(ver >> 32), (u16)(ver >> 16), (u16)ver);
}

static ssize_t hw_rev_show(struct device *device, struct device_attribute *attr,
			   char *buf)
{
	struct pvrdma_dev *dev =
		rdma_device_to_drv_device(device, struct pvrdma_dev, ibdev);

	return sysfs_emit(buf, "%u\n", dev->caps.hw_ver);
}
static DEVICE_ATTR_RO(hw_rev);

static ssize_t hca_type_show(struct device *device,
			     struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "PVRDMA\n");
}
static DEVICE_ATTR_RO(hca_type);

/* There is one board; the in-tree driver says 1, too. */
static ssize_t board_id_show(struct device *device,
			     struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "1\n");
}
static DEVICE_ATTR_RO(board_id);

static struct attribute *device_files[] = {
	&dev_attr_hw_rev.attr,
	&dev_attr_hca_type.attr,
	&dev_attr_board_id.attr,
	NULL,
};

static const struct attribute_group device_group = {
	.attrs = device_files,
};

/**
 * pvrdma_query_port_attr() - ask the device for its port
 * @dev: device
 * @attr: gets the answer
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_query_port_attr(struct pvrdma_dev *dev, struct pvrdma_port_attr *attr)
{
	struct pvrdma_cmd_query_port req = { .port_num = PVRDMA_PORT };
	struct pvrdma_resp_query_port resp;
	int ret;

	ret = pvrdma_cmd_query_port(dev, &req, &resp);
	if (!ret)
		*attr = resp.attrs;
	return ret;
}

/* A device that is gone has a port still: it is down. */
static void port_dead(const struct pvrdma_dev *dev,
		      struct pvrdma_port_attr *attr)
{
	*attr = (struct pvrdma_port_attr){
		.state = PVRDMA_PORT_DOWN,
		.max_mtu = PVRDMA_MTU_4096,
		.active_mtu = PVRDMA_MTU_1024,
		.gid_tbl_len = dev->caps.gid_tbl_len,
		.pkey_tbl_len = dev->caps.max_pkeys,
		.active_width = IB_WIDTH_1X,
		.active_speed = IB_SPEED_SDR,
		.phys_state = IB_PORT_PHYS_STATE_DISABLED,
	};
}

static int pvrdma_query_port(struct ib_device *ibdev, u32 port,
			     struct ib_port_attr *props)
{
	struct pvrdma_dev *dev = to_pvdev(ibdev);
	struct pvrdma_port_attr attr;
	int ret = pvrdma_query_port_attr(dev, &attr);

	if (ret && pvrdma_dead(dev))
		port_dead(dev, &attr);
	else if (ret)
		return ret;
	props->state = attr.state;
	props->phys_state = attr.phys_state;
	if (!READ_ONCE(dev->port.link)) {
		props->state = IB_PORT_DOWN;
		props->phys_state = IB_PORT_PHYS_STATE_DISABLED;
	}
	props->max_mtu = attr.max_mtu;
	props->active_mtu = attr.active_mtu;
	props->gid_tbl_len = dev->caps.gid_tbl_len;
	props->ip_gids = true;
	props->port_cap_flags = attr.port_cap_flags | IB_PORT_CM_SUP;
	props->max_msg_sz = attr.max_msg_sz;
	props->bad_pkey_cntr = attr.bad_pkey_cntr;
	props->qkey_viol_cntr = attr.qkey_viol_cntr;
	props->pkey_tbl_len = dev->caps.max_pkeys;
	props->max_vl_num = attr.max_vl_num;
	props->subnet_timeout = attr.subnet_timeout;
	props->init_type_reply = attr.init_type_reply;
	props->active_width = attr.active_width;
	props->active_speed = attr.active_speed;
	return 0;
}

static int pvrdma_port_immutable(struct ib_device *ibdev, u32 port,
				 struct ib_port_immutable *imm)
{
	const struct pvrdma_caps *caps = &to_pvdev(ibdev)->caps;

	imm->pkey_tbl_len = caps->max_pkeys;
	imm->gid_tbl_len = caps->gid_tbl_len;
	imm->max_mad_size = IB_MGMT_MAD_SIZE;
	if (caps->gid_types & PVRDMA_GID_TYPE_ROCE_V2)
		imm->core_cap_flags |= RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	if (caps->gid_types & PVRDMA_GID_TYPE_ROCE_V1)
		imm->core_cap_flags |= RDMA_CORE_PORT_IBA_ROCE;
	return 0;
}

static enum rdma_link_layer pvrdma_link_layer(struct ib_device *ibdev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int pvrdma_query_pkey(struct ib_device *ibdev, u32 port, u16 index,
			     u16 *pkey)
{
	struct pvrdma_dev *dev = to_pvdev(ibdev);
	struct pvrdma_cmd_query_pkey req = { .port_num = port,
					     .index = index };
	struct pvrdma_resp_query_pkey resp;
	int ret;

	if (index >= dev->caps.max_pkeys || index > U8_MAX)
		return pvrdma_refuse(ibdev, -EINVAL, "index %u", index);
	if (pvrdma_dead(dev)) {
		*pkey = IB_DEFAULT_PKEY_FULL;
		return 0;
	}
	ret = pvrdma_cmd_query_pkey(dev, &req, &resp);
	if (!ret)
		*pkey = resp.pkey;
	return ret;
}

static int pvrdma_add_gid(const struct ib_gid_attr *attr, void **context)
{
	struct pvrdma_cmd_create_bind req = {
		.mtu = BIND_MTU,
		.vlan = BIND_NO_VLAN,
		.index = attr->index,
		.gid_type = attr->gid_type == IB_GID_TYPE_ROCE_UDP_ENCAP ?
				    PVRDMA_GID_TYPE_ROCE_V2 :
				    PVRDMA_GID_TYPE_ROCE_V1,
	};
	u16 vlan;

	/* Its traffic would leave the host untagged, for another network. */
	if (!rdma_read_gid_l2_fields(attr, &vlan, NULL) && vlan < VLAN_N_VID)
		return pvrdma_refuse(attr->device, -EOPNOTSUPP,
				     "%pI6 is of VLAN %u", attr->gid.raw, vlan);
	memcpy(req.gid.raw, attr->gid.raw, sizeof(req.gid.raw));
	return pvrdma_cmd_create_bind(to_pvdev(attr->device), &req);
}

static int pvrdma_del_gid(const struct ib_gid_attr *attr, void **context)
{
	struct pvrdma_dev *dev = to_pvdev(attr->device);
	struct pvrdma_cmd_destroy_bind req = { .index = attr->index };
	int ret;

	memcpy(req.gid.raw, attr->gid.raw, sizeof(req.gid.raw));
	ret = pvrdma_cmd_destroy_bind(dev, &req);
	return pvrdma_dead(dev) ? 0 : ret;
}

const struct ib_device_ops pvrdma_dev_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_VMW_PVRDMA,
	.uverbs_abi_ver = PVRDMA_UVERBS_ABI,

	.query_device = pvrdma_query_device,
	.get_dev_fw_str = pvrdma_get_fw_str,
	.device_group = &device_group,
	.query_port = pvrdma_query_port,
	.get_port_immutable = pvrdma_port_immutable,
	.get_link_layer = pvrdma_link_layer,
	.get_netdev = pvrdma_get_netdev,
	.query_pkey = pvrdma_query_pkey,
	.add_gid = pvrdma_add_gid,
	.del_gid = pvrdma_del_gid,
	PVRDMA_COMPAT_PORT_OPS

	.alloc_ucontext = pvrdma_alloc_ucontext,
	.dealloc_ucontext = pvrdma_dealloc_ucontext,
	.disassociate_ucontext = pvrdma_disassociate_ucontext,
	.mmap = pvrdma_mmap,
	.alloc_pd = pvrdma_alloc_pd,
	.dealloc_pd = pvrdma_dealloc_pd,

	.get_dma_mr = pvrdma_get_dma_mr,
	PVRDMA_COMPAT_REG_MR_OPS,
	.dereg_mr = pvrdma_dereg_mr,
	.alloc_mr = pvrdma_alloc_mr,
	.map_mr_sg = pvrdma_map_mr_sg,

	.create_ah = pvrdma_create_ah,
	.create_user_ah = pvrdma_create_ah,
	.destroy_ah = pvrdma_destroy_ah,

	PVRDMA_COMPAT_CREATE_CQ_OPS,
	.destroy_cq = pvrdma_destroy_cq,
	PVRDMA_COMPAT_RESIZE_CQ_OPS,
	.poll_cq = pvrdma_poll_cq,
	.req_notify_cq = pvrdma_req_notify_cq,

	.create_srq = pvrdma_create_srq,
	.modify_srq = pvrdma_modify_srq,
	.query_srq = pvrdma_query_srq,
	.destroy_srq = pvrdma_destroy_srq,
	.post_srq_recv = pvrdma_post_srq_recv,

	.create_qp = pvrdma_create_qp,
	.modify_qp = pvrdma_modify_qp,
	.query_qp = pvrdma_query_qp,
	.destroy_qp = pvrdma_destroy_qp,
	.post_send = pvrdma_post_send,
	.post_recv = pvrdma_post_recv,

	.fill_res_qp_entry = pvrdma_fill_res_qp,
	.fill_res_cq_entry = pvrdma_fill_res_cq,
	.fill_res_mr_entry = pvrdma_fill_res_mr,
	PVRDMA_COMPAT_RES_SRQ_OPS

	INIT_RDMA_OBJ_SIZE(ib_ah, pvrdma_ah, ibah),
	INIT_RDMA_OBJ_SIZE(ib_cq, pvrdma_cq, ibcq),
	INIT_RDMA_OBJ_SIZE(ib_pd, pvrdma_pd, ibpd),
	INIT_RDMA_OBJ_SIZE(ib_qp, pvrdma_qp, ibqp),
	INIT_RDMA_OBJ_SIZE(ib_srq, pvrdma_srq, ibsrq),
	INIT_RDMA_OBJ_SIZE(ib_ucontext, pvrdma_ucontext, ibctx),
};
