// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory windows of programs, of types 1 and 2B: made and ended here, bound and
 * invalidated by work requests that the kernel does not see.  A region that has
 * windows cannot be deregistered (mr.c).
 *
 * Only registered with a device that offers PVRDMA_EXT_FEAT_MEMWIN, as is
 * changing regions.
 */
#include "cmd.h"
#include "pvrdma.h"
#include "uabi.h"

static int pvrdma_alloc_mw(struct ib_mw *ibmw, struct ib_udata *udata)
{
	struct pvrdma_ext_cmd_create_mw req = {
		.pd_handle = to_pvpd(ibmw->pd)->handle,
		.type = ibmw->type == IB_MW_TYPE_1 ? PVRDMA_EXT_MW_TYPE_1 :
						     PVRDMA_EXT_MW_TYPE_2B,
	};
	struct pvrdma_resp_create_mr resp;
	int ret;

	ret = pvrdma_uabi_none(ibmw->device, udata);
	if (ret)
		return ret;
	if (ibmw->type != IB_MW_TYPE_1 && ibmw->type != IB_MW_TYPE_2)
		return pvrdma_refuse(ibmw->device, -EINVAL, "type %d",
				     ibmw->type);
	ret = pvrdma_cmd_create_mw(to_pvdev(ibmw->device), &req, &resp);
	if (ret)
		return ret;
	to_pvmw(ibmw)->handle = resp.mr_handle;
	ibmw->rkey = resp.rkey;
	return 0;
}

static int pvrdma_dealloc_mw(struct ib_mw *ibmw)
{
	pvrdma_cmd_destroy(to_pvdev(ibmw->device), PVRDMA_CMD_DESTROY_MW,
			   to_pvmw(ibmw)->handle);
	return 0;
}

const struct ib_device_ops pvrdma_memwin_ops = {
	.alloc_mw = pvrdma_alloc_mw,
	.dealloc_mw = pvrdma_dealloc_mw,
	.rereg_user_mr = pvrdma_rereg_mr,

	INIT_RDMA_OBJ_SIZE(ib_mw, pvrdma_mw, ibmw),
};
