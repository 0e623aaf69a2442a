/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: typed calls of migration.
 *
 * DEVICE_FEATURE in its forms, and the data of a device's state.  As in
 * pvrdma-calls.c, an answer that contradicts itself ends the connection: wrong
 * lengths, another feature than the one asked for, more bytes than were.  Data
 * that a daemon hands out as its state is not looked at: only a daemon can.
 *
 * All under the BQL.
 */
#include "qemu/osdep.h"
#include "pvrdma-calls.h"
#include "pvrdma/dirty.h"

/*
 * One feature: @len bytes of @data go there, @out_len come back, which with SET
 * and PROBE is what went there; and a descriptor if @fd is not NULL.  Returns
 * 0, the daemon's errno or -EIO.
 */
static int feature_with_fd(PVRDMAClient *c, uint32_t flags, const void *data,
                           size_t len, void *out, size_t out_len, int *fd)
{
    struct vfio_user_device_feature head = {
        .argsz = sizeof(head) + MAX(len, out_len),
        .flags = flags,
    };
    struct iovec iov[] = { { &head, sizeof(head) }, { (void *)data, len } };
    g_autofree uint8_t *buf = g_malloc0(sizeof(head) + out_len);
    PVRDMAReply reply = {
        .data = buf, .max = sizeof(head) + out_len, .max_fds = fd ? 1 : 0
    };
    int ret = pvrdma_client_request(c, VFIO_USER_DEVICE_FEATURE, iov, 2, NULL,
                                    0, &reply);

    if (ret < 0) {
        return ret;
    }
    memcpy(&head, buf, sizeof(head));
    if (reply.len != reply.max || head.flags != flags ||
        reply.nfds != reply.max_fds) {
        if (reply.nfds) {
            close(reply.fds[0]);
        }
        pvrdma_client_fail(c, "malformed reply to DEVICE_FEATURE %u",
                           flags & VFIO_USER_FEATURE_MASK);
        return -EIO;
    }
    if (out_len) {
        memcpy(out, buf + sizeof(head), out_len);
    }
    if (fd) {
        *fd = reply.fds[0];
    }
    return 0;
}

static int feature(PVRDMAClient *c, uint32_t flags, const void *data,
                   size_t len, void *out, size_t out_len)
{
    return feature_with_fd(c, flags, data, len, out, out_len, NULL);
}

int pvrdma_call_probe(PVRDMAClient *c, uint32_t which)
{
    return feature(c, which | VFIO_USER_FEATURE_PROBE, NULL, 0, NULL, 0);
}

int pvrdma_call_migration(PVRDMAClient *c, uint64_t *flags)
{
    return feature(c, VFIO_USER_FEATURE_MIGRATION | VFIO_USER_FEATURE_GET,
                   NULL, 0, flags, sizeof(*flags));
}

int pvrdma_call_data_size(PVRDMAClient *c, uint64_t *size)
{
    struct vfio_user_mig_data_size data = { 0 };
    int ret = feature(c, VFIO_USER_FEATURE_MIG_DATA_SIZE |
                      VFIO_USER_FEATURE_GET, NULL, 0, &data, sizeof(data));

    *size = ret < 0 ? 0 : data.stop_copy_length;
    return ret;
}

int pvrdma_call_get_state(PVRDMAClient *c, uint32_t *state)
{
    struct vfio_user_mig_device_state data;
    int ret = feature(c, VFIO_USER_FEATURE_MIG_DEVICE_STATE |
                      VFIO_USER_FEATURE_GET, NULL, 0, &data, sizeof(data));

    *state = ret < 0 ? VFIO_USER_MIG_ERROR : data.device_state;
    return ret;
}

int pvrdma_call_set_state(PVRDMAClient *c, uint32_t state)
{
    struct vfio_user_mig_device_state data = {
        .device_state = state, .data_fd = -1
    };
    int ret = feature(c, VFIO_USER_FEATURE_MIG_DEVICE_STATE |
                      VFIO_USER_FEATURE_SET, &data, sizeof(data), &data,
                      sizeof(data));

    if (ret == 0 && data.device_state != state) {
        pvrdma_client_fail(c, "pvrdmad entered device state %u instead of %u",
                           data.device_state, state);
        ret = -EIO;
    }
    return ret;
}

int pvrdma_call_put_back(PVRDMAClient *c)
{
    return feature(c, PVRDMA_FEATURE_PUT_BACK | VFIO_USER_FEATURE_SET, NULL, 0,
                   NULL, 0);
}

static int log_start(PVRDMAClient *c, uint32_t which, uint64_t page_size,
                     const struct vfio_user_log_range *ranges, uint32_t n,
                     int *fd)
{
    struct vfio_user_log_start head = {
        .page_size = page_size, .num_ranges = n
    };
    size_t len = sizeof(head) + n * sizeof(ranges[0]);
    g_autofree uint8_t *buf = g_malloc(len);
    int ret;

    memcpy(buf, &head, sizeof(head));
    memcpy(buf + sizeof(head), ranges, n * sizeof(ranges[0]));
    ret = feature_with_fd(c, which | VFIO_USER_FEATURE_SET, buf, len, buf, len,
                          fd);
    memcpy(&head, buf, sizeof(head));
    if (ret == 0 && head.page_size != page_size) {
        if (fd) {
            close(*fd);
        }
        pvrdma_client_fail(c, "pvrdmad logs pages of %" PRIu64 " bytes",
                           head.page_size);
        ret = -EIO;
    }
    return ret;
}

int pvrdma_call_log_start(PVRDMAClient *c, uint64_t page_size,
                          const struct vfio_user_log_range *ranges,
                          uint32_t n)
{
    return log_start(c, VFIO_USER_FEATURE_DMA_LOGGING_START, page_size, ranges,
                     n, NULL);
}

int pvrdma_call_log_share(PVRDMAClient *c, uint64_t page_size,
                          const struct vfio_user_log_range *ranges,
                          uint32_t n, int *fd)
{
    return log_start(c, PVRDMA_FEATURE_DIRTY_LOG, page_size, ranges, n, fd);
}

int pvrdma_call_log_stop(PVRDMAClient *c)
{
    return feature(c, VFIO_USER_FEATURE_DMA_LOGGING_STOP |
                   VFIO_USER_FEATURE_SET, NULL, 0, NULL, 0);
}

int pvrdma_call_log_report(PVRDMAClient *c, uint64_t addr, uint64_t size,
                           uint64_t page_size, uint64_t *bits)
{
    struct vfio_user_log_report head = {
        .iova = addr, .length = size, .page_size = page_size
    };
    size_t words = DIV_ROUND_UP(size / page_size, 64);
    size_t len = sizeof(head) + words * sizeof(*bits);
    g_autofree uint8_t *buf = g_malloc(len);
    int ret = feature(c, VFIO_USER_FEATURE_DMA_LOGGING_REPORT |
                      VFIO_USER_FEATURE_GET, &head, sizeof(head), buf, len);

    if (ret < 0) {
        return ret;
    }
    if (memcmp(buf, &head, sizeof(head)) != 0) {
        pvrdma_client_fail(c, "pvrdmad reported other memory");
        return -EIO;
    }
    memcpy(bits, buf + sizeof(head), words * sizeof(*bits));
    return 0;
}

ssize_t pvrdma_call_state_read(PVRDMAClient *c, void *data, uint32_t max)
{
    struct vfio_user_mig_data head = {
        .argsz = sizeof(head) + max, .size = max
    };
    struct iovec iov = { &head, sizeof(head) };
    g_autofree uint8_t *buf = g_malloc0(sizeof(head) + max);
    PVRDMAReply reply = { .data = buf, .max = sizeof(head) + max };
    int ret = pvrdma_client_request(c, VFIO_USER_MIG_DATA_READ, &iov, 1, NULL,
                                    0, &reply);

    if (ret < 0) {
        return ret;
    }
    memcpy(&head, buf, sizeof(head));
    if (reply.len < sizeof(head) || head.size != reply.len - sizeof(head)) {
        pvrdma_client_fail(c, "malformed reply to MIG_DATA_READ");
        return -EIO;
    }
    memcpy(data, buf + sizeof(head), head.size);
    return head.size;
}

int pvrdma_call_state_write(PVRDMAClient *c, const void *data, uint32_t size)
{
    struct vfio_user_mig_data head = {
        .argsz = sizeof(head) + size, .size = size
    };
    struct iovec iov[] = { { &head, sizeof(head) }, { (void *)data, size } };

    return pvrdma_client_request(c, VFIO_USER_MIG_DATA_WRITE, iov, 2, NULL, 0,
                                 NULL);
}
