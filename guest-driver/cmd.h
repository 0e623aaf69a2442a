/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The commands, typed: which opcode, request and response belong together is
 * said here and nowhere else.  All may sleep; for what they return see
 * pvrdma_cmd().  Commands that end an object are pvrdma_cmd_destroy().
 */
#ifndef PVRDMA_CMD_H
#define PVRDMA_CMD_H

#include "pvrdma.h"

/*
 * pvrdma_cmd_NAME(dev, req, resp), which runs PVRDMA_CMD_OP with a struct pvrdma_REQUEST
 * and a struct pvrdma_RESPONSE.
 */
#define DEFINE_PVRDMA_CMD(name, op, request, response)                         \
	static inline int pvrdma_cmd_##name(struct pvrdma_dev *dev,            \
					    struct pvrdma_##request *req,      \
					    struct pvrdma_##response *resp)    \
	{                                                                      \
		return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp), \
				  PVRDMA_CMD_##op);                            \
	}

/* The same for a command without response. */
#define DEFINE_PVRDMA_CMD_NORESP(name, op, request)                            \
	static inline int pvrdma_cmd_##name(struct pvrdma_dev *dev,            \
					    struct pvrdma_##request *req)      \
	{                                                                      \
		return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,             \
				  PVRDMA_CMD_##op);                            \
	}

DEFINE_PVRDMA_CMD(query_port, QUERY_PORT, cmd_query_port, resp_query_port)
DEFINE_PVRDMA_CMD(query_pkey, QUERY_PKEY, cmd_query_pkey, resp_query_pkey)
DEFINE_PVRDMA_CMD(query_counters, QUERY_COUNTERS, cmd_handle, ext_resp_counters)
DEFINE_PVRDMA_CMD(query_clock, QUERY_CLOCK, cmd_handle, ext_resp_clock)
DEFINE_PVRDMA_CMD(query_qp_counters, QUERY_QP_COUNTERS, cmd_handle, ext_resp_qp_counters)
DEFINE_PVRDMA_CMD_NORESP(add_vector, ADD_VECTOR, ext_cmd_vector)
DEFINE_PVRDMA_CMD_NORESP(create_bind, CREATE_BIND, cmd_create_bind)
DEFINE_PVRDMA_CMD_NORESP(destroy_bind, DESTROY_BIND, cmd_destroy_bind)
DEFINE_PVRDMA_CMD(create_uc, CREATE_UC, cmd_create_uc, resp_handle)
DEFINE_PVRDMA_CMD(create_uc_ext, CREATE_UC_EXT, ext_cmd_uc, ext_resp_uc)
DEFINE_PVRDMA_CMD(create_pd, CREATE_PD, cmd_create_pd, resp_handle)
DEFINE_PVRDMA_CMD(create_mr, CREATE_MR, cmd_create_mr, resp_create_mr)
DEFINE_PVRDMA_CMD(rereg_mr, REREG_MR, ext_cmd_rereg_mr, resp_create_mr)
DEFINE_PVRDMA_CMD(create_mw, CREATE_MW, ext_cmd_create_mw, resp_create_mr)
DEFINE_PVRDMA_CMD(create_cq, CREATE_CQ, cmd_create_cq, resp_create_cq)
DEFINE_PVRDMA_CMD(move_cq, MOVE_CQ, ext_cmd_move_cq, resp_create_cq)
DEFINE_PVRDMA_CMD_NORESP(moderate_cq, MODERATE_CQ, ext_cmd_moderate_cq)
DEFINE_PVRDMA_CMD(create_qp, CREATE_QP, cmd_create_qp, resp_create_qp)
DEFINE_PVRDMA_CMD(modify_qp, MODIFY_QP, cmd_modify_qp, resp_hdr)
DEFINE_PVRDMA_CMD(query_qp, QUERY_QP, cmd_handle, resp_query_qp)
DEFINE_PVRDMA_CMD(create_srq, CREATE_SRQ, cmd_create_srq, resp_handle)
DEFINE_PVRDMA_CMD_NORESP(modify_srq, MODIFY_SRQ, cmd_modify_srq)
DEFINE_PVRDMA_CMD(query_srq, QUERY_SRQ, cmd_handle, resp_query_srq)

#endif /* PVRDMA_CMD_H */
