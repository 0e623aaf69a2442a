/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A verbs device by its name. */
#ifndef TESTS_VM_DEVICE_H
#define TESTS_VM_DEVICE_H

#include <infiniband/verbs.h>
#include <string.h>

/* @name: NULL for the first.  NULL: there is none, or it cannot be opened. */
static inline struct ibv_context *device_open(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *ctx = NULL;

    for (int i = 0; list && list[i]; i++) {
        if (!name || !strcmp(ibv_get_device_name(list[i]), name)) {
            ctx = ibv_open_device(list[i]);
            break;
        }
    }
    if (list) {
        ibv_free_device_list(list);
    }
    return ctx;
}

#endif /* TESTS_VM_DEVICE_H */
