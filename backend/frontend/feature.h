/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * DEVICE_FEATURE, private to frontend/: feature.c takes the message apart, each feature
 * has a handler.  Main thread, with vm->ops.
 */
#ifndef PVRDMAD_FEATURE_H
#define PVRDMAD_FEATURE_H

#include "frontend/conn.h"

/* A request. */
struct vfu_feature {
    struct vfio_user_device_feature head;
    const uint8_t *data; /* behind the head */
    uint32_t len;
};

/*
 * A reply: the head and @echoed bytes of the request's data, then @added bytes, zeroed,
 * at *more (may be NULL).  0, EINVAL if the client has no room for it, or ENOMEM.
 */
int feature_reply(const struct vfu_feature *f, uint32_t echoed, uint32_t added,
                  struct vfu_reply *r, uint8_t **more);
/* One of the head and @len bytes at @data. */
int feature_answer(const struct vfu_feature *f, const void *data, uint32_t len,
                   struct vfu_reply *r);

/* Carry out DEVICE_FEATURE. */
vfu_handler feature_request;

/* Handlers; they make the reply.  dirty_log.c */
int dma_log_start(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r);
int dma_log_share(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r);
int dma_log_stop(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r);
int dma_log_report(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r);

#endif /* PVRDMAD_FEATURE_H */
