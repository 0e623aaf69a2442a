/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The part of libibverbs and of the kernel that the provider calls, faked, with
 * a device that the test plays by hand.  The uverbs file is a memfd whose first
 * page is the doorbell page and whose next ones are the extension memory.
 */
#ifndef FAKE_KERNEL_H
#define FAKE_KERNEL_H

#include "pvrdma.h"

struct fake_qp {
    struct pvrdma_uverbs_qp req;
    struct ibv_qp_cap cap;
    uint32_t handle;
};

struct fake {
    bool grant;      /* our driver (true) or the in-tree one */
    bool strict;     /* one that refuses what it does not know */
    bool old_layout; /* libibverbs 44's struct verbs_qp */
    int fail;        /* errno for the next create call */
    bool no_fork;    /* memory cannot be kept from children */
    uint32_t next_handle;
    bool pick_handles;                     /* the lowest free one, not next_handle */
    uint32_t used;                         /* bit mask of the handles in use then */
    uint32_t made;                         /* QPs */
    void (*destroying)(struct ibv_qp *qp); /* called when the QP is gone */
    uint64_t clock;                        /* the device's; 0: it has none */
    unsigned contexts;                     /* requests for one */
    unsigned logged[5];                    /* messages by level */
    struct pvrdma_ext_ucontext_req ucontext;
    struct pvrdma_uverbs_cq cq;
    struct ibv_moderate_cq moderate;
    void (*moving)(bool begin); /* called before and after a CQ gets another ring */
    uint32_t srq_flags;         /* of the last one */
    uint64_t rereg_va;          /* likewise */
    struct fake_qp qp[8];       /* by handle */
    const struct verbs_device_ops *dev_ops;
    const struct verbs_context_ops *ops;
    uint32_t *uar;
    struct pvrdma_ext_mem *ext;
    struct ibv_device ibdev;
};

extern struct fake fake;

/* Opens a context through the registered provider. */
struct ibv_context *fake_open(bool grant);
struct ibv_context *fake_open_strict(void);
void fake_close(struct ibv_context *context);

#endif
