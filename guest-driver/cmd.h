/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The commands, typed: which opcode, request and response belong together is
 * said here and nowhere else.  All may sleep; for what they return see
 * pvrdma_cmd().  Commands that end an object are pvrdma_cmd_destroy().
 */
#ifndef PVRDMA_CMD_H
#define PVRDMA_CMD_H

#include "pvrdma.h"

static inline int
pvrdma_cmd_query_port(struct pvrdma_dev *dev, struct pvrdma_cmd_query_port *req,
		      struct pvrdma_resp_query_port *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_PORT);
}

static inline int
pvrdma_cmd_query_pkey(struct pvrdma_dev *dev, struct pvrdma_cmd_query_pkey *req,
		      struct pvrdma_resp_query_pkey *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_PKEY);
}

static inline int
pvrdma_cmd_query_counters(struct pvrdma_dev *dev, struct pvrdma_cmd_handle *req,
			  struct pvrdma_ext_resp_counters *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_COUNTERS);
}

static inline int
pvrdma_cmd_query_clock(struct pvrdma_dev *dev, struct pvrdma_cmd_handle *req,
		       struct pvrdma_ext_resp_clock *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_CLOCK);
}

static inline int
pvrdma_cmd_query_qp_counters(struct pvrdma_dev *dev,
			     struct pvrdma_cmd_handle *req,
			     struct pvrdma_ext_resp_qp_counters *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_QP_COUNTERS);
}

static inline int
pvrdma_cmd_add_vector(struct pvrdma_dev *dev, struct pvrdma_ext_cmd_vector *req)
{
	return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,
			  PVRDMA_CMD_ADD_VECTOR);
}

static inline int
pvrdma_cmd_create_bind(struct pvrdma_dev *dev,
		       struct pvrdma_cmd_create_bind *req)
{
	return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,
			  PVRDMA_CMD_CREATE_BIND);
}

static inline int
pvrdma_cmd_destroy_bind(struct pvrdma_dev *dev,
			struct pvrdma_cmd_destroy_bind *req)
{
	return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,
			  PVRDMA_CMD_DESTROY_BIND);
}

static inline int
pvrdma_cmd_create_uc(struct pvrdma_dev *dev, struct pvrdma_cmd_create_uc *req,
		     struct pvrdma_resp_handle *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_UC);
}

static inline int
pvrdma_cmd_create_uc_ext(struct pvrdma_dev *dev, struct pvrdma_ext_cmd_uc *req,
			 struct pvrdma_ext_resp_uc *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_UC_EXT);
}

static inline int
pvrdma_cmd_create_pd(struct pvrdma_dev *dev, struct pvrdma_cmd_create_pd *req,
		     struct pvrdma_resp_handle *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_PD);
}

static inline int
pvrdma_cmd_create_mr(struct pvrdma_dev *dev, struct pvrdma_cmd_create_mr *req,
		     struct pvrdma_resp_create_mr *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_MR);
}

static inline int
pvrdma_cmd_rereg_mr(struct pvrdma_dev *dev, struct pvrdma_ext_cmd_rereg_mr *req,
		    struct pvrdma_resp_create_mr *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_REREG_MR);
}

static inline int
pvrdma_cmd_create_mw(struct pvrdma_dev *dev,
		     struct pvrdma_ext_cmd_create_mw *req,
		     struct pvrdma_resp_create_mr *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_MW);
}

static inline int
pvrdma_cmd_create_cq(struct pvrdma_dev *dev, struct pvrdma_cmd_create_cq *req,
		     struct pvrdma_resp_create_cq *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_CQ);
}

static inline int
pvrdma_cmd_move_cq(struct pvrdma_dev *dev, struct pvrdma_ext_cmd_move_cq *req,
		   struct pvrdma_resp_create_cq *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_MOVE_CQ);
}

static inline int
pvrdma_cmd_moderate_cq(struct pvrdma_dev *dev,
		       struct pvrdma_ext_cmd_moderate_cq *req)
{
	return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,
			  PVRDMA_CMD_MODERATE_CQ);
}

static inline int
pvrdma_cmd_create_qp(struct pvrdma_dev *dev, struct pvrdma_cmd_create_qp *req,
		     struct pvrdma_resp_create_qp *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_QP);
}

static inline int
pvrdma_cmd_modify_qp(struct pvrdma_dev *dev, struct pvrdma_cmd_modify_qp *req,
		     struct pvrdma_resp_hdr *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_MODIFY_QP);
}

static inline int
pvrdma_cmd_query_qp(struct pvrdma_dev *dev, struct pvrdma_cmd_handle *req,
		    struct pvrdma_resp_query_qp *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_QP);
}

static inline int
pvrdma_cmd_create_srq(struct pvrdma_dev *dev, struct pvrdma_cmd_create_srq *req,
		      struct pvrdma_resp_handle *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_CREATE_SRQ);
}

static inline int
pvrdma_cmd_modify_srq(struct pvrdma_dev *dev, struct pvrdma_cmd_modify_srq *req)
{
	return pvrdma_cmd(dev, req, sizeof(*req), NULL, 0,
			  PVRDMA_CMD_MODIFY_SRQ);
}

static inline int
pvrdma_cmd_query_srq(struct pvrdma_dev *dev, struct pvrdma_cmd_handle *req,
		     struct pvrdma_resp_query_srq *resp)
{
	return pvrdma_cmd(dev, req, sizeof(*req), resp, sizeof(*resp),
			  PVRDMA_CMD_QUERY_SRQ);
}

#endif /* PVRDMA_CMD_H */
