/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The command channel: one command at a time, run to its end on the main
 * thread while the guest's REQUEST write waits.
 *
 * The request is copied once; nothing reads the slot again.  A command either
 * succeeds (ERR 0; if it has one, the response is written and then vector 0
 * raised) or fails (ERR is an errno, the guest's memory is not touched, no
 * interrupt).  MODIFY_QP alone reports its failure in the response header,
 * because that is where the driver looks.
 *
 * Commands without a response must not raise vector 0: the late interrupt would
 * end the driver's wait for its next command.
 */
#include <errno.h>

#include "datapath/datapath.h"
#include "device/device.h"
#include "verbs/verbs.h"

struct command {
    const char *name;
    /* 0 or an errno; resp is zeroed, its header filled in. */
    int (*run)(struct vm *vm, const union pvrdma_cmd_req *req,
               union pvrdma_cmd_resp *resp);
    uint32_t resp_size; /* 0: no response */
    bool err_in_resp;
};

static int run_query_port(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_query_port(vm, &req->query_port, &resp->query_port);
}

static int run_query_pkey(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_query_pkey(vm, &req->query_pkey, &resp->query_pkey);
}

static int run_create_pd(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_pd(vm, &req->create_pd, &resp->handle);
}

static int run_destroy_pd(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_pd(vm, req->handle.handle);
}

static int run_create_mr(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_mr(vm, &req->create_mr, &resp->create_mr);
}

static int run_destroy_mr(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_mr(vm, req->handle.handle);
}

static int run_create_cq(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_cq(vm, &req->create_cq, &resp->create_cq);
}

static int run_destroy_cq(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_cq(vm, req->handle.handle);
}

static int run_create_qp(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_qp(vm, &req->create_qp, &resp->create_qp);
}

static int run_modify_qp(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_modify_qp(vm, &req->modify_qp);
}

static int run_query_qp(struct vm *vm, const union pvrdma_cmd_req *req,
                        union pvrdma_cmd_resp *resp)
{
    return verbs_query_qp(vm, req->handle.handle, req->handle.arg, &resp->query_qp);
}

static int run_destroy_qp(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_qp(vm, req->handle.handle);
}

static int run_create_srq(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_create_srq(vm, &req->create_srq, &resp->handle);
}

static int run_modify_srq(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_modify_srq(vm, &req->modify_srq);
}

static int run_query_srq(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_query_srq(vm, req->handle.handle, &resp->query_srq);
}

static int run_destroy_srq(struct vm *vm, const union pvrdma_cmd_req *req,
                           union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_srq(vm, req->handle.handle);
}

static int run_create_uc(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_uc(vm, &req->create_uc, &resp->handle);
}

static int run_destroy_uc(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_uc(vm, req->handle.handle);
}

static int run_create_bind(struct vm *vm, const union pvrdma_cmd_req *req,
                           union pvrdma_cmd_resp *resp)
{
    return verbs_create_bind(vm, &req->create_bind);
}

static int run_destroy_bind(struct vm *vm, const union pvrdma_cmd_req *req,
                            union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_bind(vm, &req->destroy_bind);
}

static int run_create_uc_ext(struct vm *vm, const union pvrdma_cmd_req *req,
                             union pvrdma_cmd_resp *resp)
{
    return verbs_create_uc_ext(vm, (const struct pvrdma_ext_cmd_uc *)(const void *)req,
                               (struct pvrdma_ext_resp_uc *)(void *)resp);
}

static int run_query_counters(struct vm *vm, const union pvrdma_cmd_req *req,
                              union pvrdma_cmd_resp *resp)
{
    return verbs_query_counters(vm, (struct pvrdma_ext_resp_counters *)(void *)resp);
}

static int run_query_clock(struct vm *vm, const union pvrdma_cmd_req *req,
                           union pvrdma_cmd_resp *resp)
{
    ((struct pvrdma_ext_resp_clock *)(void *)resp)->ns = datapath_clock(vm);
    return 0;
}

static int run_query_qp_counters(struct vm *vm, const union pvrdma_cmd_req *req,
                                 union pvrdma_cmd_resp *resp)
{
    return verbs_query_qp_counters(vm, req->handle.handle,
                                   (struct pvrdma_ext_resp_qp_counters *)(void *)resp);
}

static int run_add_vector(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return device_add_vector(vm->dev,
                             (const struct pvrdma_ext_cmd_vector *)(const void *)req);
}

static int run_create_mw(struct vm *vm, const union pvrdma_cmd_req *req,
                         union pvrdma_cmd_resp *resp)
{
    return verbs_create_mw(vm, (const struct pvrdma_ext_cmd_create_mw *)(const void *)req,
                           &resp->create_mr);
}

static int run_destroy_mw(struct vm *vm, const union pvrdma_cmd_req *req,
                          union pvrdma_cmd_resp *resp)
{
    return verbs_destroy_mw(vm, req->handle.handle);
}

static int run_rereg_mr(struct vm *vm, const union pvrdma_cmd_req *req,
                        union pvrdma_cmd_resp *resp)
{
    return verbs_rereg_mr(vm, (const struct pvrdma_ext_cmd_rereg_mr *)(const void *)req,
                          &resp->create_mr);
}

static int run_move_cq(struct vm *vm, const union pvrdma_cmd_req *req,
                       union pvrdma_cmd_resp *resp)
{
    return verbs_move_cq(vm, (const struct pvrdma_ext_cmd_move_cq *)(const void *)req,
                         &resp->create_cq);
}

static int run_moderate_cq(struct vm *vm, const union pvrdma_cmd_req *req,
                           union pvrdma_cmd_resp *resp)
{
    return verbs_moderate_cq(
        vm, (const struct pvrdma_ext_cmd_moderate_cq *)(const void *)req);
}

#define RESP(type) sizeof(struct pvrdma_resp_##type)

/* Not here: RESIZE_CQ, which no driver sends. */
static const struct command commands[PVRDMA_CMD_MAX] = {
    [PVRDMA_CMD_QUERY_PORT] = {"QUERY_PORT", run_query_port, RESP(query_port)},
    [PVRDMA_CMD_QUERY_PKEY] = {"QUERY_PKEY", run_query_pkey, RESP(query_pkey)},
    [PVRDMA_CMD_CREATE_PD] = {"CREATE_PD", run_create_pd, RESP(handle)},
    [PVRDMA_CMD_DESTROY_PD] = {"DESTROY_PD", run_destroy_pd, 0},
    [PVRDMA_CMD_CREATE_MR] = {"CREATE_MR", run_create_mr, RESP(create_mr)},
    [PVRDMA_CMD_DESTROY_MR] = {"DESTROY_MR", run_destroy_mr, 0},
    [PVRDMA_CMD_CREATE_CQ] = {"CREATE_CQ", run_create_cq, RESP(create_cq)},
    [PVRDMA_CMD_DESTROY_CQ] = {"DESTROY_CQ", run_destroy_cq, 0},
    [PVRDMA_CMD_CREATE_QP] = {"CREATE_QP", run_create_qp, RESP(create_qp)},
    [PVRDMA_CMD_MODIFY_QP] = {"MODIFY_QP", run_modify_qp, RESP(hdr), true},
    [PVRDMA_CMD_QUERY_QP] = {"QUERY_QP", run_query_qp, RESP(query_qp)},
    [PVRDMA_CMD_DESTROY_QP] = {"DESTROY_QP", run_destroy_qp, 0},
    [PVRDMA_CMD_CREATE_UC] = {"CREATE_UC", run_create_uc, RESP(handle)},
    [PVRDMA_CMD_DESTROY_UC] = {"DESTROY_UC", run_destroy_uc, 0},
    [PVRDMA_CMD_CREATE_BIND] = {"CREATE_BIND", run_create_bind, 0},
    [PVRDMA_CMD_DESTROY_BIND] = {"DESTROY_BIND", run_destroy_bind, 0},
    [PVRDMA_CMD_CREATE_SRQ] = {"CREATE_SRQ", run_create_srq, RESP(handle)},
    [PVRDMA_CMD_MODIFY_SRQ] = {"MODIFY_SRQ", run_modify_srq, 0},
    [PVRDMA_CMD_QUERY_SRQ] = {"QUERY_SRQ", run_query_srq, RESP(query_srq)},
    [PVRDMA_CMD_DESTROY_SRQ] = {"DESTROY_SRQ", run_destroy_srq, 0},
};

_Static_assert(sizeof(struct pvrdma_ext_resp_qp_counters) <=
                   sizeof(union pvrdma_cmd_resp),
               "the union has room for the largest response");

/* ext.h */
#define EXT(cmd) [(cmd)-PVRDMA_CMD_CREATE_UC_EXT]
static const struct command ext_commands[] = {
    EXT(PVRDMA_CMD_CREATE_UC_EXT) = {"CREATE_UC_EXT", run_create_uc_ext,
                                     sizeof(struct pvrdma_ext_resp_uc)},
    EXT(PVRDMA_CMD_QUERY_COUNTERS) = {"QUERY_COUNTERS", run_query_counters,
                                      sizeof(struct pvrdma_ext_resp_counters)},
    EXT(PVRDMA_CMD_CREATE_MW) = {"CREATE_MW", run_create_mw, RESP(create_mr)},
    EXT(PVRDMA_CMD_DESTROY_MW) = {"DESTROY_MW", run_destroy_mw, 0},
    EXT(PVRDMA_CMD_MOVE_CQ) = {"MOVE_CQ", run_move_cq, RESP(create_cq)},
    EXT(PVRDMA_CMD_QUERY_CLOCK) = {"QUERY_CLOCK", run_query_clock,
                                   sizeof(struct pvrdma_ext_resp_clock)},
    EXT(PVRDMA_CMD_ADD_VECTOR) = {"ADD_VECTOR", run_add_vector, 0},
    EXT(PVRDMA_CMD_MODERATE_CQ) = {"MODERATE_CQ", run_moderate_cq, 0},
    EXT(PVRDMA_CMD_QUERY_QP_COUNTERS) = {"QUERY_QP_COUNTERS", run_query_qp_counters,
                                         sizeof(struct pvrdma_ext_resp_qp_counters)},
    EXT(PVRDMA_CMD_REREG_MR) = {"REREG_MR", run_rereg_mr, RESP(create_mr)},
};

static const struct command *command_find(uint32_t opcode)
{
    const struct command *cmd = NULL;

    if (opcode < PVRDMA_CMD_MAX) {
        cmd = &commands[opcode];
    } else if (opcode >= PVRDMA_CMD_CREATE_UC_EXT &&
               opcode - PVRDMA_CMD_CREATE_UC_EXT < G_N_ELEMENTS(ext_commands)) {
        cmd = &ext_commands[opcode - PVRDMA_CMD_CREATE_UC_EXT];
    }
    return cmd && cmd->run ? cmd : NULL;
}

/* Run it and deliver the response.  0 or an errno for ERR. */
static int command_run(struct device *dev, const struct command *cmd,
                       const union pvrdma_cmd_req *req)
{
    struct vm *vm = dev->vm;
    union pvrdma_cmd_resp resp;
    int err;

    /* All of it: an initializer need not clear what the first member does not cover. */
    memset(&resp, 0, sizeof(resp));
    resp.hdr.response = req->hdr.response;
    resp.hdr.ack = PVRDMA_CMD_RESP(req->hdr.cmd);
    /* First, so that no object is made that the guest never hears of. */
    if (cmd->resp_size &&
        !guest_ptr(&vm->guest.mem, dev->resp_slot, cmd->resp_size, true)) {
        return EFAULT;
    }
    err = cmd->run(vm, req, &resp);
    if (err && cmd->err_in_resp) {
        resp.hdr.err = MIN(err, UINT8_MAX);
    } else if (err) {
        return err;
    }
    if (cmd->resp_size) {
        guest_write(&vm->guest.mem, dev->resp_slot, &resp, cmd->resp_size);
        irq_raise(&vm->guest.irq, PVRDMA_VEC_CMD);
    }
    if (err) {
        dev->failed_commands++;
        log_vm(LOG_LVL_DEBUG, vm, "%s: %s", cmd->name, g_strerror(err));
    }
    return 0;
}

uint32_t command_execute(struct device *dev)
{
    struct vm *vm = dev->vm;
    union pvrdma_cmd_req req;
    const struct command *cmd;
    int err;

    dev->commands++;
    if (!dev->dsr_valid || !dev->active || !dev->bus_master) {
        dev->failed_commands++;
        return ENODEV;
    }
    device_go_on(dev);
    if (!guest_read(&vm->guest.mem, dev->cmd_slot, &req, sizeof(req))) {
        dev->failed_commands++;
        return EFAULT;
    }
    cmd = command_find(req.hdr.cmd);
    err = cmd ? command_run(dev, cmd, &req) : ENOTSUP;
    if (err) {
        dev->failed_commands++;
        log_vm(LOG_LVL_DEBUG, vm, "command %u (%s): %s", req.hdr.cmd,
               cmd ? cmd->name : "unknown", g_strerror(err));
    }
    return err;
}
