/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user wire formats: what the VMM and pvrdmad exchange.
 *
 * Source: the vfio-user protocol specification (QEMU >= 10.1,
 * docs/interop/vfio-user.rst).  All fields are in host byte order; messages are
 * a 16-byte header and a body of `size - 16` bytes without padding.  Offsets
 * given for payloads count from the end of the header.  No logic here.
 */
#ifndef PVRDMA_VFIO_USER_H
#define PVRDMA_VFIO_USER_H

#include <stdint.h>

/* What both sides propose in VERSION. */
#define VFIO_USER_MAJOR 0
#define VFIO_USER_MINOR 0

/* Largest count of REGION_READ/WRITE data, and fds per message, we take. */
#define VFIO_USER_MAX_DATA 1048576u
#define VFIO_USER_MAX_FDS  16u

enum vfio_user_command {
    VFIO_USER_VERSION = 1,
    VFIO_USER_DMA_MAP = 2,
    VFIO_USER_DMA_UNMAP = 3,
    VFIO_USER_DEVICE_GET_INFO = 4,
    VFIO_USER_DEVICE_GET_REGION_INFO = 5,
    VFIO_USER_DEVICE_GET_REGION_IO_FDS = 6,
    VFIO_USER_DEVICE_GET_IRQ_INFO = 7,
    VFIO_USER_DEVICE_SET_IRQS = 8,
    VFIO_USER_REGION_READ = 9,
    VFIO_USER_REGION_WRITE = 10,
    VFIO_USER_DMA_READ = 11,
    VFIO_USER_DMA_WRITE = 12,
    VFIO_USER_DEVICE_RESET = 13,
    VFIO_USER_DIRTY_PAGES = 14, /* left the specification; never answered */
    VFIO_USER_DEVICE_FEATURE = 16,
    VFIO_USER_MIG_DATA_READ = 17,
    VFIO_USER_MIG_DATA_WRITE = 18,
};

/* Header flags. */
#define VFIO_USER_TYPE_MASK    0xfu
#define VFIO_USER_TYPE_COMMAND 0u
#define VFIO_USER_TYPE_REPLY   1u
#define VFIO_USER_NO_REPLY     0x10u
#define VFIO_USER_ERROR        0x20u

struct vfio_user_hdr {
    uint16_t id;      /* chosen by the sender, echoed in the reply */
    uint16_t command;
    uint32_t size;    /* whole message, header included */
    uint32_t flags;
    uint32_t error;   /* errno of an error reply */
};

struct vfio_user_version {
    uint16_t major;
    uint16_t minor;
    /* followed by JSON text and its NUL */
};

/* DMA_MAP flags. */
#define VFIO_USER_DMA_READ_FLAG  1u /* the device may read */
#define VFIO_USER_DMA_WRITE_FLAG 2u /* the device may write */

struct vfio_user_dma_map {
    uint32_t argsz;
    uint32_t flags;
    uint64_t offset; /* in the file that came along */
    uint64_t addr;   /* guest-physical */
    uint64_t size;   /* bytes */
};

/* DMA_UNMAP flag: everything (addr and size 0). */
#define VFIO_USER_DMA_UNMAP_ALL 2u

struct vfio_user_dma_unmap {
    uint32_t argsz;
    uint32_t flags;
    uint64_t addr;
    uint64_t size;
};

#define VFIO_USER_DEVICE_FLAG_RESET 1u
#define VFIO_USER_DEVICE_FLAG_PCI   2u

struct vfio_user_device_info {
    uint32_t argsz;
    uint32_t flags;
    uint32_t num_regions;
    uint32_t num_irqs;
};

enum vfio_user_region {
    VFIO_USER_REGION_BAR0 = 0,
    VFIO_USER_REGION_BAR1 = 1,
    VFIO_USER_REGION_BAR2 = 2,
    VFIO_USER_REGION_ROM = 6,
    VFIO_USER_REGION_CONFIG = 7,
    VFIO_USER_REGION_VGA = 8,
    VFIO_USER_REGION_DEVICE = 9, /* device-specific regions from here */
};

#define VFIO_USER_REGION_FLAG_READ  1u
#define VFIO_USER_REGION_FLAG_WRITE 2u
#define VFIO_USER_REGION_FLAG_MMAP  4u
#define VFIO_USER_REGION_FLAG_CAPS  8u

struct vfio_user_region_info {
    uint32_t argsz;
    uint32_t flags;
    uint32_t index;
    uint32_t cap_offset; /* from the start of this structure */
    uint64_t size;
    uint64_t offset; /* in the file that comes along */
};

#define VFIO_USER_CAP_SPARSE_MMAP 1u
#define VFIO_USER_CAP_TYPE        2u

struct vfio_user_cap {
    uint16_t id;
    uint16_t version;
    uint32_t next; /* same base as cap_offset; 0 ends the list */
};

struct vfio_user_cap_type {
    struct vfio_user_cap head;
    uint32_t type;
    uint32_t subtype;
};

struct vfio_user_cap_sparse {
    struct vfio_user_cap head;
    uint32_t nr_areas;
    uint32_t reserved;
    /* followed by nr_areas times {u64 offset, u64 size} */
};

struct vfio_user_region_io_fds {
    uint32_t argsz;
    uint32_t flags;
    uint32_t index;
    uint32_t count;
    /* a reply is followed by `count` entries */
};

#define VFIO_USER_IO_FD_IOEVENTFD 0u

struct vfio_user_io_fd {
    uint64_t offset;
    uint64_t size;
    uint32_t fd_index;
    uint32_t type;
    uint32_t flags;
    uint32_t pad;
    uint64_t datamatch;
};

enum vfio_user_irq {
    VFIO_USER_IRQ_INTX = 0,
    VFIO_USER_IRQ_MSI = 1,
    VFIO_USER_IRQ_MSIX = 2,
    VFIO_USER_IRQ_ERR = 3,
    VFIO_USER_IRQ_REQ = 4,
};

#define VFIO_USER_IRQ_FLAG_EVENTFD 1u

struct vfio_user_irq_info {
    uint32_t argsz;
    uint32_t flags;
    uint32_t index;
    uint32_t count;
};

#define VFIO_USER_IRQ_DATA_NONE      0x01u
#define VFIO_USER_IRQ_DATA_BOOL      0x02u
#define VFIO_USER_IRQ_DATA_EVENTFD   0x04u
#define VFIO_USER_IRQ_DATA_MASK      0x07u
#define VFIO_USER_IRQ_ACTION_MASK    0x08u
#define VFIO_USER_IRQ_ACTION_UNMASK  0x10u
#define VFIO_USER_IRQ_ACTION_TRIGGER 0x20u
#define VFIO_USER_IRQ_ACTIONS        0x38u

struct vfio_user_irq_set {
    uint32_t argsz;
    uint32_t flags;
    uint32_t index;
    uint32_t start;
    uint32_t count;
    /* BOOL: followed by `count` bytes */
};

/* REGION_READ request and reply head; REGION_WRITE likewise. */
struct vfio_user_region_rw {
    uint64_t offset;
    uint32_t region;
    uint32_t count;
    /* data */
};

/*
 * DEVICE_FEATURE: a head, then the feature's data.  GET and SET answer with what was
 * asked and, GET, the data; PROBE asks whether all the methods named along with it are
 * there.
 */
enum vfio_user_feature {
    VFIO_USER_FEATURE_MIGRATION = 1,          /* GET */
    VFIO_USER_FEATURE_MIG_DEVICE_STATE = 2,   /* GET, SET */
    VFIO_USER_FEATURE_DMA_LOGGING_START = 6,  /* SET */
    VFIO_USER_FEATURE_DMA_LOGGING_STOP = 7,   /* SET, no data */
    VFIO_USER_FEATURE_DMA_LOGGING_REPORT = 8, /* GET, with data in the request */
    VFIO_USER_FEATURE_MIG_DATA_SIZE = 9,      /* GET */
};

/*
 * Ours, which are numbered far behind; dirty.h has the other one.  SET, no data, in
 * RESUMING: what comes was saved (a snapshot, or a file), and is not the VM's state on the
 * way from one place to another, so that the peers of its connections have gone on.
 */
#define PVRDMA_FEATURE_PUT_BACK 0x8002u

#define VFIO_USER_FEATURE_MASK  0xffffu
#define VFIO_USER_FEATURE_GET   0x10000u
#define VFIO_USER_FEATURE_SET   0x20000u
#define VFIO_USER_FEATURE_PROBE 0x40000u

struct vfio_user_device_feature {
    uint32_t argsz;
    uint32_t flags;
    /* data */
};

#define VFIO_USER_MIGRATION_STOP_COPY 1u
#define VFIO_USER_MIGRATION_P2P       2u
#define VFIO_USER_MIGRATION_PRE_COPY  4u

struct vfio_user_migration {
    uint64_t flags;
};

enum vfio_user_mig_state {
    VFIO_USER_MIG_ERROR = 0,
    VFIO_USER_MIG_STOP = 1,
    VFIO_USER_MIG_RUNNING = 2,
    VFIO_USER_MIG_STOP_COPY = 3,
    VFIO_USER_MIG_RESUMING = 4,
    VFIO_USER_MIG_RUNNING_P2P = 5, /* 5 to 7: not used */
    VFIO_USER_MIG_PRE_COPY = 6,
    VFIO_USER_MIG_PRE_COPY_P2P = 7,
};

struct vfio_user_mig_device_state {
    uint32_t device_state;
    int32_t data_fd; /* of kernels; -1 */
};

struct vfio_user_mig_data_size {
    uint64_t stop_copy_length; /* estimate of what STOP_COPY would give */
};

struct vfio_user_log_range {
    uint64_t iova;
    uint64_t length;
};

struct vfio_user_log_start {
    uint64_t page_size;  /* reply: the one that counts */
    uint32_t num_ranges; /* 0: everything */
    uint32_t reserved;
    /* followed by num_ranges times struct vfio_user_log_range */
};

/* Tells what was written in the range since the last report, or the start. */
struct vfio_user_log_report {
    uint64_t iova;
    uint64_t length;
    uint64_t page_size; /* one bit each */
    /* reply: words of 64 bits; page p is bit p % 64 of word p / 64 */
};

/* MIG_DATA_READ: request without data, reply with; MIG_DATA_WRITE: request with. */
struct vfio_user_mig_data {
    uint32_t argsz; /* with this structure */
    uint32_t size;  /* of the data; READ: less than asked for is the end */
    /* data */
};

_Static_assert(sizeof(struct vfio_user_hdr) == 16, "header");
_Static_assert(sizeof(struct vfio_user_version) == 4, "version");
_Static_assert(sizeof(struct vfio_user_dma_map) == 32, "dma_map");
_Static_assert(sizeof(struct vfio_user_dma_unmap) == 24, "dma_unmap");
_Static_assert(sizeof(struct vfio_user_device_info) == 16, "device_info");
_Static_assert(sizeof(struct vfio_user_region_info) == 32, "region_info");
_Static_assert(sizeof(struct vfio_user_cap_type) == 16, "cap_type");
_Static_assert(sizeof(struct vfio_user_cap_sparse) == 16, "cap_sparse");
_Static_assert(sizeof(struct vfio_user_region_io_fds) == 16, "io_fds");
_Static_assert(sizeof(struct vfio_user_io_fd) == 40, "io_fd");
_Static_assert(sizeof(struct vfio_user_irq_info) == 16, "irq_info");
_Static_assert(sizeof(struct vfio_user_irq_set) == 20, "irq_set");
_Static_assert(sizeof(struct vfio_user_region_rw) == 16, "region_rw");
_Static_assert(sizeof(struct vfio_user_device_feature) == 8, "device_feature");
_Static_assert(sizeof(struct vfio_user_mig_device_state) == 8, "mig_device_state");
_Static_assert(sizeof(struct vfio_user_mig_data_size) == 8, "mig_data_size");
_Static_assert(sizeof(struct vfio_user_log_start) == 16, "log_start");
_Static_assert(sizeof(struct vfio_user_log_range) == 16, "log_range");
_Static_assert(sizeof(struct vfio_user_log_report) == 24, "log_report");
_Static_assert(sizeof(struct vfio_user_mig_data) == 8, "mig_data");

#endif /* PVRDMA_VFIO_USER_H */
