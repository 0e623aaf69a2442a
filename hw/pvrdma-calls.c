/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: typed calls.
 *
 * The checks here are those of the protocol: lengths, echoed fields, descriptor
 * counts, capability lists.  Whether a region suits the device is decided in
 * pvrdma.c.  An answer that contradicts itself ends the connection; an answer
 * that is merely not what we need is the caller's error.
 *
 * Specification: docs/interop/vfio-user.rst of QEMU >= 10.1.
 */
#include "qemu/osdep.h"
#include <linux/vfio.h>
#include "pvrdma-calls.h"

/* Room for a region's capabilities; ours have 16 bytes each. */
#define REGION_REPLY_MAX 1024
#define REGION_MAX_CAPS  8

bool pvrdma_call_device_info(PVRDMAClient *c, struct vfio_user_device_info *out,
                             Error **errp)
{
    struct vfio_user_device_info req = { .argsz = sizeof(req) };
    struct iovec iov = { &req, sizeof(req) };
    PVRDMAReply reply = { .data = out, .max = sizeof(*out) };
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_GET_INFO, &iov, 1,
                                    NULL, 0, &reply);

    if (ret == 0 && reply.len != sizeof(*out)) {
        pvrdma_client_fail(c, "short reply to GET_INFO");
        ret = -EIO;
    }
    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot get device information");
        return false;
    }
    return true;
}

/*
 * Walk the capability list of a region reply of @len bytes.  Offsets are only
 * followed inside the reply, and only REGION_MAX_CAPS times.
 */
static const char *parse_caps(const uint8_t *buf, size_t len, uint32_t offset,
                              PVRDMARegion *region)
{
    struct vfio_user_cap cap;
    int i;

    for (i = 0; offset != 0; i++) {
        if (i == REGION_MAX_CAPS) {
            return "endless or too long capability list";
        }
        if (offset < sizeof(struct vfio_user_region_info) || offset > len ||
            len - offset < sizeof(cap)) {
            return "capability outside of the reply";
        }
        memcpy(&cap, buf + offset, sizeof(cap));
        if (cap.id == VFIO_REGION_INFO_CAP_TYPE) {
            struct vfio_user_cap_type type;

            if (len - offset < sizeof(type)) {
                return "truncated type capability";
            }
            memcpy(&type, buf + offset, sizeof(type));
            region->type = type.type;
            region->subtype = type.subtype;
        } else if (cap.id == VFIO_REGION_INFO_CAP_SPARSE_MMAP) {
            struct vfio_user_cap_sparse sparse;

            if (len - offset < sizeof(sparse)) {
                return "truncated sparse capability";
            }
            memcpy(&sparse, buf + offset, sizeof(sparse));
            if ((len - offset - sizeof(sparse)) / 16 < sparse.nr_areas) {
                return "more sparse areas than fit in the reply";
            }
            region->sparse = true;
        }
        offset = cap.next;
    }
    return NULL;
}

/* Check a region reply; returns what is wrong with it, or NULL. */
static const char *parse_region(const uint8_t *buf, const PVRDMAReply *reply,
                                uint32_t index, PVRDMARegion *region)
{
    struct vfio_user_region_info info;
    size_t want_fds;

    if (reply->len < sizeof(info)) {
        return "short reply";
    }
    memcpy(&info, buf, sizeof(info));
    if (info.index != index) {
        return "reply for another region";
    }
    if (info.argsz > REGION_REPLY_MAX) {
        return "too many capabilities";
    }
    want_fds = info.flags & VFIO_REGION_INFO_FLAG_MMAP ? 1 : 0;
    if (reply->nfds != want_fds) {
        return "wrong number of file descriptors";
    }
    region->flags = info.flags;
    region->size = info.size;
    region->offset = info.offset;
    if (!(info.flags & VFIO_REGION_INFO_FLAG_CAPS)) {
        return NULL;
    }
    if (info.cap_offset == 0) {
        return "no capability list where one was announced";
    }
    return parse_caps(buf, reply->len, info.cap_offset, region);
}

bool pvrdma_call_region_info(PVRDMAClient *c, uint32_t index,
                             PVRDMARegion *region, Error **errp)
{
    struct vfio_user_region_info req = {
        .argsz = REGION_REPLY_MAX,
        .index = index,
    };
    struct iovec iov = { &req, sizeof(req) };
    uint8_t buf[REGION_REPLY_MAX];
    PVRDMAReply reply = {
        .data = buf, .max = sizeof(buf), .max_fds = VFIO_USER_MAX_FDS
    };
    const char *problem;
    size_t i;
    int ret;

    *region = (PVRDMARegion) { .fd = -1 };
    ret = pvrdma_client_request(c, VFIO_USER_DEVICE_GET_REGION_INFO, &iov, 1,
                                NULL, 0, &reply);
    if (ret == 0) {
        problem = parse_region(buf, &reply, index, region);
        if (!problem && reply.nfds == 1) {
            region->fd = reply.fds[0];
            return true;
        }
        for (i = 0; i < reply.nfds; i++) {
            close(reply.fds[i]);
        }
        if (!problem) {
            return true;
        }
        pvrdma_client_fail(c, "region %u: %s", index, problem);
        ret = -EIO;
    }
    pvrdma_client_error(c, ret, errp, "cannot get region information");
    return false;
}

int64_t pvrdma_call_irq_count(PVRDMAClient *c, uint32_t index, Error **errp)
{
    struct vfio_user_irq_info info = {
        .argsz = sizeof(info),
        .index = index,
    };
    struct iovec iov = { &info, sizeof(info) };
    PVRDMAReply reply = { .data = &info, .max = sizeof(info) };
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_GET_IRQ_INFO, &iov, 1,
                                    NULL, 0, &reply);

    if (ret == 0 && (reply.len != sizeof(info) || info.index != index)) {
        pvrdma_client_fail(c, "malformed reply to GET_IRQ_INFO");
        ret = -EIO;
    }
    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot get interrupt information");
        return -1;
    }
    return info.count;
}

int pvrdma_call_io_fd(PVRDMAClient *c, uint32_t region, Error **errp)
{
    struct {
        struct vfio_user_region_io_fds head;
        struct vfio_user_io_fd entry;
    } buf = {
        .head.argsz = sizeof(buf),
        .head.index = region,
    };
    struct iovec iov = { &buf.head, sizeof(buf.head) };
    PVRDMAReply reply = { .data = &buf, .max = sizeof(buf), .max_fds = 1 };
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_GET_REGION_IO_FDS,
                                    &iov, 1, NULL, 0, &reply);

    if (ret == 0) {
        if (reply.len == sizeof(buf) && reply.nfds == 1 &&
            buf.head.index == region && buf.head.count == 1 &&
            buf.entry.fd_index == 0 &&
            buf.entry.type == VFIO_USER_IO_FD_IOEVENTFD) {
            return reply.fds[0];
        }
        if (reply.nfds) {
            close(reply.fds[0]);
        }
        pvrdma_client_fail(c, "malformed reply to GET_REGION_IO_FDS");
        ret = -EIO;
    }
    pvrdma_client_error(c, ret, errp, "cannot get the doorbell eventfd");
    return -1;
}

bool pvrdma_call_region_read(PVRDMAClient *c, uint32_t region, uint64_t offset,
                             void *data, uint32_t count, Error **errp)
{
    struct vfio_user_region_rw rw = {
        .offset = offset, .region = region, .count = count
    };
    struct {
        struct vfio_user_region_rw rw;
        uint8_t data[8];
    } buf;
    struct iovec iov = { &rw, sizeof(rw) };
    PVRDMAReply reply = { .data = &buf, .max = sizeof(rw) + count };
    int ret;

    g_assert(count <= sizeof(buf.data));
    ret = pvrdma_client_request(c, VFIO_USER_REGION_READ, &iov, 1, NULL, 0,
                                &reply);
    if (ret == 0 &&
        (reply.len != sizeof(rw) + count || buf.rw.count != count ||
         buf.rw.region != region || buf.rw.offset != offset)) {
        pvrdma_client_fail(c, "malformed reply to REGION_READ");
        ret = -EIO;
    }
    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot read a register");
        return false;
    }
    memcpy(data, buf.data, count);
    return true;
}

bool pvrdma_call_region_write(PVRDMAClient *c, uint32_t region, uint64_t offset,
                              const void *data, uint32_t count, Error **errp)
{
    struct vfio_user_region_rw rw = {
        .offset = offset, .region = region, .count = count
    };
    struct vfio_user_region_rw done;
    struct iovec iov[] = { { &rw, sizeof(rw) }, { (void *)data, count } };
    PVRDMAReply reply = { .data = &done, .max = sizeof(done) };
    int ret = pvrdma_client_request(c, VFIO_USER_REGION_WRITE, iov, 2, NULL, 0,
                                    &reply);

    if (ret == 0 &&
        (reply.len != sizeof(done) || done.count != count ||
         done.region != region || done.offset != offset)) {
        pvrdma_client_fail(c, "malformed reply to REGION_WRITE");
        ret = -EIO;
    }
    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot write a register");
        return false;
    }
    return true;
}

void pvrdma_call_region_post(PVRDMAClient *c, uint32_t region, uint64_t offset,
                             const void *data, uint32_t count)
{
    struct vfio_user_region_rw rw = {
        .offset = offset, .region = region, .count = count
    };
    struct iovec iov[] = { { &rw, sizeof(rw) }, { (void *)data, count } };

    pvrdma_client_post(c, VFIO_USER_REGION_WRITE, iov, 2);
}

bool pvrdma_call_reset(PVRDMAClient *c, Error **errp)
{
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_RESET, NULL, 0, NULL,
                                    0, NULL);

    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot reset the device");
    }
    return ret == 0;
}

static bool set_irqs(PVRDMAClient *c, uint32_t data, uint32_t start,
                     uint32_t count, const int *fds, size_t nfds, Error **errp)
{
    struct vfio_user_irq_set set = {
        .argsz = sizeof(set),
        .flags = data | VFIO_IRQ_SET_ACTION_TRIGGER,
        .index = VFIO_PCI_MSIX_IRQ_INDEX,
        .start = start,
        .count = count,
    };
    struct iovec iov = { &set, sizeof(set) };
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_SET_IRQS, &iov, 1, fds,
                                    nfds, NULL);

    if (ret < 0) {
        pvrdma_client_error(c, ret, errp, "cannot set up interrupts");
    }
    return ret == 0;
}

bool pvrdma_call_set_irqs(PVRDMAClient *c, const int *fds, size_t nfds,
                          Error **errp)
{
    size_t start = 0;
    bool ok = true;

    pvrdma_client_begin(c);
    while (ok && start < nfds) {
        size_t n = MIN(nfds - start, pvrdma_client_max_fds(c));

        ok = set_irqs(c, VFIO_IRQ_SET_DATA_EVENTFD, start, n, fds + start, n,
                      errp);
        start += n;
    }
    pvrdma_client_end(c);
    return ok;
}

bool pvrdma_call_disable_irqs(PVRDMAClient *c, Error **errp)
{
    return set_irqs(c, VFIO_IRQ_SET_DATA_NONE, 0, 0, NULL, 0, errp);
}
