/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * DMA_LOGGING_*: the dirty log (guest/dirty.h) as the VMM asks for it.
 *
 * The log is kept by pages of 4 KiB, whatever page size is asked for; a report may be by
 * larger ones.  A report takes the marks: what is stored from then on is in the next one.
 * The log lives until it is stopped or the VMM leaves; a reset of the device, which a
 * guest may cause at any time, leaves it alone.
 *
 * A report is bounded, by its length too, since all the log's words for it are looked at
 * in one go.
 *
 * A client that knows the feature of ours gets the log itself, in a file
 * (pvrdma/dirty.h). The connection keeps the descriptor while a reply may wait that names
 * it; one at a time, so such a client has to read its replies first.
 *
 * Main thread.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "frontend/feature.h"
#include "guest/dirty.h"
#include "vm/attach.h"

/* As much memory as the largest message has bits for. */
#define REPORT_MAX_BYTES ((uint64_t)VFIO_USER_MAX_DATA * 8 * PVRDMA_PAGE_SIZE)

static bool page_size_ok(uint64_t size)
{
    return size != 0 && (size & (size - 1)) == 0;
}

/* The ranges of a request, and how many; the reply is made.  0 or an errno. */
static int take_start(const struct vfu_feature *f, struct vfu_reply *r,
                      struct dirty_span span[DIRTY_MAX_RANGES], unsigned *count)
{
    uint64_t page_size = PVRDMA_PAGE_SIZE;
    struct vfio_user_log_start req;
    unsigned n;
    int err;

    if (f->len < sizeof(req)) {
        return EINVAL;
    }
    memcpy(&req, f->data, sizeof(req));
    if (!page_size_ok(req.page_size) || req.num_ranges > DIRTY_MAX_RANGES ||
        f->len - sizeof(req) != req.num_ranges * sizeof(struct vfio_user_log_range)) {
        return EINVAL;
    }
    for (n = 0; n < req.num_ranges; n++) {
        struct vfio_user_log_range range;

        memcpy(&range, f->data + sizeof(req) + n * sizeof(range), sizeof(range));
        span[n] = (struct dirty_span){range.iova, range.length};
    }
    err = feature_reply(f, f->len, 0, r, NULL);
    if (err) {
        return err;
    }
    /* The first field of the data: the page size that counts. */
    memcpy(r->data + sizeof(f->head), &page_size, sizeof(page_size));
    *count = n;
    return 0;
}

int dma_log_start(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r)
{
    struct dirty_span span[DIRTY_MAX_RANGES] = {{0, DIRTY_MAX_BYTES}};
    unsigned n;
    int err = take_start(f, r, span, &n);

    return err ? err : guest_dirty_start(&c->vm->guest.mem, span, MAX(n, 1u));
}

int dma_log_share(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r)
{
    struct dirty_span span[DIRTY_MAX_RANGES];
    unsigned n;
    int fd = -1, err = take_start(f, r, span, &n);

    if (err) {
        return err;
    }
    if (c->client.max_msg_fds == 0) {
        return ENOTSUP;
    }
    if (!g_queue_is_empty(&c->queue)) {
        return EBUSY;
    }
    err = guest_dirty_share(&c->vm->guest.mem, span, n, &fd);
    if (!err) {
        conn_keep_log(c, fd);
        r->fd = fd;
    }
    return err;
}

int dma_log_stop(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r)
{
    if (!atomic_load(&c->vm->guest.mem.dirty)) {
        return EINVAL;
    }
    guest_dirty_stop(&c->vm->guest.mem);
    if (g_queue_is_empty(&c->queue)) { /* else a reply may name it yet */
        conn_keep_log(c, -1);
    }
    return feature_reply(f, f->len, 0, r, NULL);
}

/* A report in the making. */
struct report {
    uint64_t iova;
    unsigned shift; /* of its pages */
    uint8_t *bits;
};

static void put_page(void *opaque, uint64_t gpa)
{
    struct report *to = opaque;
    uint64_t page = (gpa - to->iova) >> to->shift;

    /* Little-endian words: so bytes in order. */
    to->bits[page / 8] |= (uint8_t)(1u << page % 8);
}

int dma_log_report(struct vfu_conn *c, const struct vfu_feature *f, struct vfu_reply *r)
{
    struct vfio_user_log_report req;
    struct report to;
    uint64_t pages;
    int err;

    if (f->len < sizeof(req)) {
        return EINVAL;
    }
    memcpy(&req, f->data, sizeof(req));
    if (!page_size_ok(req.page_size) || req.page_size < PVRDMA_PAGE_SIZE ||
        req.length == 0 || (req.iova | req.length) & (req.page_size - 1)) {
        return EINVAL;
    }
    if (req.length > REPORT_MAX_BYTES) {
        return E2BIG;
    }
    to.iova = req.iova;
    to.shift = (unsigned)__builtin_ctzll(req.page_size);
    pages = req.length >> to.shift;
    err = feature_reply(f, sizeof(req), (uint32_t)((pages + 63) / 64 * 8), r, &to.bits);
    if (!err && guest_dirty_collect(&c->vm->guest.mem, req.iova, req.length, put_page,
                                    &to) != 0) {
        err = EINVAL; /* there is no log, or the range is not within one of its own */
    }
    /* A page of the log itself may be gone, with the marks in it. */
    return !err && guest_faulted(&c->vm->guest) ? EIO : err;
}
