/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The commands: create, modify, query and destroy the objects of one VM, on the
 * main thread.  They check what the guest says, ask the rooms below, and know
 * nothing of registers or of the command channel.
 */
#ifndef PVRDMAD_VERBS_H
#define PVRDMAD_VERBS_H

#include "objects/objects.h"
#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

struct vm;

/* Destroy all objects in dependency order; one quiescence for all. */
void verbs_reset(struct objects *v);

void verbs_fill_caps(struct objects *v, struct pvrdma_caps *caps);

/*
 * One function per command; req is the daemon's own copy, resp is zeroed and
 * has its header filled in.  Return 0 or a positive errno (any non-zero value
 * becomes ERR).  DESTROY_*: after return the data path does not touch the
 * object or its guest memory, and no CQE of it appears.  EBUSY: still in use.
 */
int verbs_query_port(struct vm *vm, const struct pvrdma_cmd_query_port *req,
                     struct pvrdma_resp_query_port *resp);
int verbs_query_pkey(struct vm *vm, const struct pvrdma_cmd_query_pkey *req,
                     struct pvrdma_resp_query_pkey *resp);
int verbs_create_uc(struct vm *vm, const struct pvrdma_cmd_create_uc *req,
                    struct pvrdma_resp_handle *resp);
int verbs_destroy_uc(struct vm *vm, uint32_t handle);
int verbs_create_uc_ext(struct vm *vm, const struct pvrdma_ext_cmd_uc *req,
                        struct pvrdma_ext_resp_uc *resp);
int verbs_query_counters(struct vm *vm, struct pvrdma_ext_resp_counters *resp);
int verbs_create_pd(struct vm *vm, const struct pvrdma_cmd_create_pd *req,
                    struct pvrdma_resp_handle *resp);
int verbs_destroy_pd(struct vm *vm, uint32_t handle);
int verbs_create_mr(struct vm *vm, const struct pvrdma_cmd_create_mr *req,
                    struct pvrdma_resp_create_mr *resp);
int verbs_destroy_mr(struct vm *vm, uint32_t handle);
/* Refused, it changes nothing.  EBUSY: windows are bound to it. */
int verbs_rereg_mr(struct vm *vm, const struct pvrdma_ext_cmd_rereg_mr *req,
                   struct pvrdma_resp_create_mr *resp);
int verbs_create_mw(struct vm *vm, const struct pvrdma_ext_cmd_create_mw *req,
                    struct pvrdma_resp_create_mr *resp);
int verbs_destroy_mw(struct vm *vm, uint32_t handle);
int verbs_create_cq(struct vm *vm, const struct pvrdma_cmd_create_cq *req,
                    struct pvrdma_resp_create_cq *resp);
int verbs_move_cq(struct vm *vm, const struct pvrdma_ext_cmd_move_cq *req,
                  struct pvrdma_resp_create_cq *resp);
int verbs_moderate_cq(struct vm *vm, const struct pvrdma_ext_cmd_moderate_cq *req);
int verbs_destroy_cq(struct vm *vm, uint32_t handle);
int verbs_create_qp(struct vm *vm, const struct pvrdma_cmd_create_qp *req,
                    struct pvrdma_resp_create_qp *resp);
int verbs_modify_qp(struct vm *vm, const struct pvrdma_cmd_modify_qp *req);
int verbs_query_qp(struct vm *vm, uint32_t handle, uint32_t attr_mask,
                   struct pvrdma_resp_query_qp *resp);
int verbs_query_qp_counters(struct vm *vm, uint32_t handle,
                            struct pvrdma_ext_resp_qp_counters *resp);
int verbs_destroy_qp(struct vm *vm, uint32_t handle);
int verbs_create_srq(struct vm *vm, const struct pvrdma_cmd_create_srq *req,
                     struct pvrdma_resp_handle *resp);
int verbs_modify_srq(struct vm *vm, const struct pvrdma_cmd_modify_srq *req);
int verbs_query_srq(struct vm *vm, uint32_t handle, struct pvrdma_resp_query_srq *resp);
int verbs_destroy_srq(struct vm *vm, uint32_t handle);
int verbs_create_bind(struct vm *vm, const struct pvrdma_cmd_create_bind *req);
int verbs_destroy_bind(struct vm *vm, const struct pvrdma_cmd_destroy_bind *req);

/*
 * Parts of the state stream, in the order in which they are loaded, into a device that
 * is in reset, with the data path paused.  What was loaded until one of them failed is
 * taken down by verbs_reset().
 */
void contexts_save(struct vm *vm, struct state_out *s);
void contexts_load(struct vm *vm, struct state_in *s);
void pds_save(struct vm *vm, struct state_out *s);
void pds_load(struct vm *vm, struct state_in *s);
void mrs_save(struct vm *vm, struct state_out *s);
void mrs_load(struct vm *vm, struct state_in *s);
/* Loaded, they are nobody's claims before gids_claim(). */
void gids_save(struct vm *vm, struct state_out *s);
void gids_load(struct vm *vm, struct state_in *s);
/* The link is up but if the guest says otherwise; what is down is saved. */
void verbs_set_link(struct vm *vm, bool up);
void link_save(struct vm *vm, struct state_out *s);
void link_load(struct vm *vm, struct state_in *s);
void gids_waiting_save(struct vm *vm, struct state_out *s);
void gids_waiting_load(struct vm *vm, struct state_in *s);
/* What it says of how long they have waited is not believed: behind who waits here. */
void gids_wait_anew(struct vm *vm);
void cqs_save(struct vm *vm, struct state_out *s);
void cqs_load(struct vm *vm, struct state_in *s);
void srqs_save(struct vm *vm, struct state_out *s);
void srqs_load(struct vm *vm, struct state_in *s);
void qps_save(struct vm *vm, struct state_out *s);
void qps_load(struct vm *vm, struct state_in *s);
/* What those failed for that have for a message of their peers'. */
void qps_failed_save(struct vm *vm, struct state_out *s);
void qps_failed_load(struct vm *vm, struct state_in *s);

/* They will be claimed: who has them elsewhere says so. */
void gids_look(struct vm *vm);
/* Claim all that were loaded; 0, or EADDRINUSE and none is. */
int gids_claim(struct vm *vm);

#endif /* PVRDMAD_VERBS_H */
