/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzz target: lines of the admin socket.  A request is parsed; settings of
 * vm-add go through the configuration's setters; everything but vm-add (which
 * would make sockets at the fuzzer's choice) is executed, with no VM declared.
 */
#include <stddef.h>

#include "base/log.h"
#include "config/config.h"
#include "control/control.h"
#include "fuzz.h"

static void try_settings(const struct daemon_config *cfg,
                         const struct control_request *req)
{
    struct vm_config *vm = config_vm_new(cfg, req->name, NULL);

    if (!vm) {
        return;
    }
    for (unsigned i = 0; i < req->n_set; i++) {
        g_autoptr(GError) err = NULL;

        /* A refusal without a reason would leave the client in the dark. */
        if (!config_vm_set(vm, req->key[i], req->value[i], &err) && !err) {
            abort();
        }
    }
    if (vm->max_qp < 2 || vm->max_qp > 65535 || vm->max_mr > 1u << 20 ||
        vm->n_addresses > CONFIG_MAX_ADDRESSES) {
        abort();
    }
    config_vm_free(vm);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct daemon_config *cfg;
    struct control_request *req;
    g_autoptr(GError) err = NULL;

    if (!cfg) {
        cfg = config_new();
        config_complete(cfg);
        log_set_level(LOG_LVL_ERROR);
    }
    req = control_request_parse((const char *)data, size, &err);
    if (!req) {
        if (!err) {
            abort();
        }
        return 0;
    }
    if (req->cmd == CONTROL_VM_ADD) {
        try_settings(cfg, req);
    } else {
        g_autofree char *answer = control_handle(cfg, (const char *)data, size);
        size_t len = strlen(answer);

        if (len == 0 || memchr(answer, '\n', len) != answer + len - 1) {
            abort();
        }
    }
    control_request_free(req);
    return 0;
}
