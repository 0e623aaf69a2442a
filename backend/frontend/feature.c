/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * DEVICE_FEATURE: which features there are, and what may be done with them.
 *
 * A request names one feature and GET, SET, or PROBE; PROBE asks whether the methods
 * named along with it are there, and changes nothing.  A reply repeats the request, and
 * GET puts data behind it.  argsz counts the payload: what the client has room for.
 *
 * Main thread.
 */
#include <errno.h>
#include <string.h>

#include "frontend/feature.h"
#include "frontend/migration.h"
#include "pvrdma/dirty.h"

#define METHODS (VFIO_USER_FEATURE_GET | VFIO_USER_FEATURE_SET | VFIO_USER_FEATURE_PROBE)

int feature_reply(const struct vfu_feature *f, uint32_t echoed, uint32_t added,
                  struct vfu_reply *r, uint8_t **more)
{
    struct vfio_user_device_feature head = f->head;
    uint8_t *out;

    head.argsz = (uint32_t)sizeof(head) + echoed + added;
    if (added && head.argsz > f->head.argsz) {
        return EINVAL;
    }
    out = vfu_reply_alloc(r, head.argsz);
    if (!out) {
        return ENOMEM;
    }
    memcpy(out, &head, sizeof(head));
    if (echoed) {
        memcpy(out + sizeof(head), f->data, echoed);
    }
    if (more) {
        *more = out + sizeof(head) + echoed;
    }
    return 0;
}

int feature_answer(const struct vfu_feature *f, const void *data, uint32_t len,
                   struct vfu_reply *r)
{
    uint8_t *out;
    int err = feature_reply(f, 0, len, r, &out);

    if (!err) {
        memcpy(out, data, len);
    }
    return err;
}

static int get_migration(struct vfu_conn *c, const struct vfu_feature *f,
                         struct vfu_reply *r)
{
    struct vfio_user_migration data = {.flags = VFIO_USER_MIGRATION_STOP_COPY};

    return feature_answer(f, &data, sizeof(data), r);
}

typedef int feature_fn(struct vfu_conn *c, const struct vfu_feature *f,
                       struct vfu_reply *r);

struct methods {
    feature_fn *get, *set;
};

static const struct methods features[] = {
    [VFIO_USER_FEATURE_MIGRATION] = {.get = get_migration},
    [VFIO_USER_FEATURE_MIG_DEVICE_STATE] = {migration_get_state, migration_set_state},
    [VFIO_USER_FEATURE_DMA_LOGGING_START] = {.set = dma_log_start},
    [VFIO_USER_FEATURE_DMA_LOGGING_STOP] = {.set = dma_log_stop},
    [VFIO_USER_FEATURE_DMA_LOGGING_REPORT] = {.get = dma_log_report},
    [VFIO_USER_FEATURE_MIG_DATA_SIZE] = {.get = migration_get_size},
};

/* Features that are ours are numbered far behind. */
static const struct methods *methods_of(uint32_t n)
{
    static const struct methods dirty_log = {.set = dma_log_share};
    static const struct methods put_back = {.set = migration_put_back}, none;

    if (n == PVRDMA_FEATURE_DIRTY_LOG) {
        return &dirty_log;
    }
    if (n == PVRDMA_FEATURE_PUT_BACK) {
        return &put_back;
    }
    return n < G_N_ELEMENTS(features) ? &features[n] : &none;
}

int feature_request(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    const struct methods *has;
    struct vfu_feature f;
    uint32_t methods;
    bool get, set;

    memcpy(&f.head, m->body, sizeof(f.head));
    f.data = m->body + sizeof(f.head);
    f.len = m->len - (uint32_t)sizeof(f.head);
    has = methods_of(f.head.flags & VFIO_USER_FEATURE_MASK);
    methods = f.head.flags & METHODS;
    get = methods & VFIO_USER_FEATURE_GET;
    set = methods & VFIO_USER_FEATURE_SET;
    if (f.head.argsz < sizeof(f.head) ||
        f.head.flags & ~(VFIO_USER_FEATURE_MASK | METHODS)) {
        return EINVAL;
    }
    if (!has->get && !has->set) {
        return ENOTTY; /* what the kernel says to a feature it does not know */
    }
    if ((get && !has->get) || (set && !has->set)) {
        return EINVAL;
    }
    if (methods & VFIO_USER_FEATURE_PROBE) {
        return feature_reply(&f, f.len, 0, r, NULL);
    }
    if (get == set) {
        return EINVAL;
    }
    return get ? has->get(c, &f, r) : has->set(c, &f, r);
}
