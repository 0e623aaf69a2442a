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

/* A command's request, and its response: those of abi.h, or one of ext.h's. */
union verbs_req {
    union pvrdma_cmd_req abi;
    struct pvrdma_ext_cmd_uc uc;
    struct pvrdma_ext_cmd_vector vector;
    struct pvrdma_ext_cmd_move_cq move_cq;
    struct pvrdma_ext_cmd_moderate_cq moderate_cq;
    struct pvrdma_ext_cmd_create_mw create_mw;
    struct pvrdma_ext_cmd_rereg_mr rereg_mr;
};
union verbs_resp {
    union pvrdma_cmd_resp abi;
    struct pvrdma_ext_resp_uc uc;
    struct pvrdma_ext_resp_clock clock;
    struct pvrdma_ext_resp_counters counters;
    struct pvrdma_ext_resp_qp_counters qp_counters;
};

/*
 * One function per command; req is the daemon's own copy, resp is zeroed and
 * has its header filled in.  Return 0 or a positive errno (any non-zero value
 * becomes ERR).  DESTROY_*: after return the data path does not touch the
 * object or its guest memory, and no CQE of it appears.  EBUSY: still in use.
 * REREG_MR that is refused changes nothing; EBUSY: windows are bound to it.
 */
typedef int verbs_command(struct vm *vm, const union verbs_req *req,
                          union verbs_resp *resp);

verbs_command verbs_query_port, verbs_query_pkey, verbs_query_counters, verbs_query_clock;
verbs_command verbs_create_uc, verbs_create_uc_ext, verbs_destroy_uc;
verbs_command verbs_create_pd, verbs_destroy_pd;
verbs_command verbs_create_mr, verbs_rereg_mr, verbs_destroy_mr;
verbs_command verbs_create_mw, verbs_destroy_mw;
verbs_command verbs_create_cq, verbs_move_cq, verbs_moderate_cq, verbs_destroy_cq;
verbs_command verbs_create_qp, verbs_modify_qp, verbs_query_qp, verbs_query_qp_counters,
    verbs_destroy_qp;
verbs_command verbs_create_srq, verbs_modify_srq, verbs_query_srq, verbs_destroy_srq;
verbs_command verbs_create_bind, verbs_destroy_bind;

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
