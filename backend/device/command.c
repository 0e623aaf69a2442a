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

#include "device/device.h"

struct command {
    const char *name;
    verbs_command *run; /* resp is zeroed, its header filled in */
    uint32_t resp_size; /* 0: no response */
    bool err_in_resp;
};

/* The table has the commands of ext.h behind those of abi.h. */
#define EXT_INDEX(cmd) ((cmd)-PVRDMA_CMD_CREATE_UC_EXT + PVRDMA_CMD_MAX)

#define COMMAND(NAME, ...)     [PVRDMA_CMD_##NAME] = {#NAME, __VA_ARGS__}
#define EXT_COMMAND(NAME, ...) [EXT_INDEX(PVRDMA_CMD_##NAME)] = {#NAME, __VA_ARGS__}
#define RESP(type)             sizeof(struct pvrdma_resp_##type)
#define EXT_RESP(type)         sizeof(struct pvrdma_ext_resp_##type)

/* Not here: RESIZE_CQ, which no driver sends. */
static const struct command commands[] = {
    COMMAND(QUERY_PORT, verbs_query_port, RESP(query_port)),
    COMMAND(QUERY_PKEY, verbs_query_pkey, RESP(query_pkey)),
    COMMAND(CREATE_PD, verbs_create_pd, RESP(handle)),
    COMMAND(DESTROY_PD, verbs_destroy_pd, 0),
    COMMAND(CREATE_MR, verbs_create_mr, RESP(create_mr)),
    COMMAND(DESTROY_MR, verbs_destroy_mr, 0),
    COMMAND(CREATE_CQ, verbs_create_cq, RESP(create_cq)),
    COMMAND(DESTROY_CQ, verbs_destroy_cq, 0),
    COMMAND(CREATE_QP, verbs_create_qp, RESP(create_qp)),
    COMMAND(MODIFY_QP, verbs_modify_qp, RESP(hdr), true),
    COMMAND(QUERY_QP, verbs_query_qp, RESP(query_qp)),
    COMMAND(DESTROY_QP, verbs_destroy_qp, 0),
    COMMAND(CREATE_UC, verbs_create_uc, RESP(handle)),
    COMMAND(DESTROY_UC, verbs_destroy_uc, 0),
    COMMAND(CREATE_BIND, verbs_create_bind, 0),
    COMMAND(DESTROY_BIND, verbs_destroy_bind, 0),
    COMMAND(CREATE_SRQ, verbs_create_srq, RESP(handle)),
    COMMAND(MODIFY_SRQ, verbs_modify_srq, 0),
    COMMAND(QUERY_SRQ, verbs_query_srq, RESP(query_srq)),
    COMMAND(DESTROY_SRQ, verbs_destroy_srq, 0),
    EXT_COMMAND(CREATE_UC_EXT, verbs_create_uc_ext, EXT_RESP(uc)),
    EXT_COMMAND(QUERY_COUNTERS, verbs_query_counters, EXT_RESP(counters)),
    EXT_COMMAND(CREATE_MW, verbs_create_mw, RESP(create_mr)),
    EXT_COMMAND(DESTROY_MW, verbs_destroy_mw, 0),
    EXT_COMMAND(MOVE_CQ, verbs_move_cq, RESP(create_cq)),
    EXT_COMMAND(QUERY_CLOCK, verbs_query_clock, EXT_RESP(clock)),
    EXT_COMMAND(ADD_VECTOR, device_add_vector, 0),
    EXT_COMMAND(MODERATE_CQ, verbs_moderate_cq, 0),
    EXT_COMMAND(QUERY_QP_COUNTERS, verbs_query_qp_counters, EXT_RESP(qp_counters)),
    EXT_COMMAND(REREG_MR, verbs_rereg_mr, RESP(create_mr)),
};

static const struct command *command_find(uint32_t opcode)
{
    uint32_t i = opcode;

    if (opcode >= PVRDMA_CMD_MAX) {
        if (opcode < PVRDMA_CMD_CREATE_UC_EXT) {
            return NULL;
        }
        i = EXT_INDEX(opcode);
    }
    return i < G_N_ELEMENTS(commands) && commands[i].run ? &commands[i] : NULL;
}

/* Run it and deliver the response.  0 or an errno for ERR. */
static int command_run(struct device *dev, const struct command *cmd,
                       const union verbs_req *req)
{
    struct vm *vm = dev->vm;
    union verbs_resp resp;
    int err;

    /* All of it: an initializer need not clear what the first member does not cover. */
    memset(&resp, 0, sizeof(resp));
    resp.abi.hdr.response = req->abi.hdr.response;
    resp.abi.hdr.ack = PVRDMA_CMD_RESP(req->abi.hdr.cmd);
    /* First, so that no object is made that the guest never hears of. */
    if (cmd->resp_size &&
        !guest_ptr(&vm->guest.mem, dev->resp_slot, cmd->resp_size, true)) {
        return EFAULT;
    }
    err = cmd->run(vm, req, &resp);
    if (err && cmd->err_in_resp) {
        resp.abi.hdr.err = MIN(err, UINT8_MAX);
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
    union verbs_req req;
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
    cmd = command_find(req.abi.hdr.cmd);
    err = cmd ? command_run(dev, cmd, &req) : ENOTSUP;
    if (err) {
        dev->failed_commands++;
        log_vm(LOG_LVL_DEBUG, vm, "command %u (%s): %s", req.abi.hdr.cmd,
               cmd ? cmd->name : "unknown", g_strerror(err));
    }
    return err;
}
