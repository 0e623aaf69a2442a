/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: what pvrdma-client.c and
 * pvrdma-connect.c share, and nobody else.
 */
#ifndef HW_RDMA_PVRDMA_CLIENT_INT_H
#define HW_RDMA_PVRDMA_CLIENT_INT_H

#include "pvrdma-client.h"

typedef struct Pending {
    uint16_t id;
    uint16_t command;
} Pending;

struct PVRDMAClient {
    int fd;                 /* -1: the daemon's end is closed */
    char *name;             /* of the device */
    char *path;             /* of the socket, or what else it is called */
    char *reason;           /* why the connection was lost, or NULL */
    guint watch;            /* GSource that looks at @fd, or 0 */
    PVRDMALostFn *lost_fn;
    void *lost_opaque;
    PVRDMAAnswerFn *answer_fn; /* until the answer to VERSION is there */
    void *answer_opaque;
    bool busy;              /* VERSION's answer: the VM has another client */
    unsigned transactions;  /* pvrdma_client_begin() without _end() */
    int64_t patience_us;    /* what is left of the time for waiting */
    uint16_t next_id;
    size_t max_fds;
    uint32_t max_data;
    /* Requests that were sent and not collected, oldest at @head. */
    Pending pending[PVRDMA_CLIENT_PIPELINE];
    size_t head;
    size_t count;
};

#endif
