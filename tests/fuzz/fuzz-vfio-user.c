/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzz target: the stream of one vfio-user client, descriptors included,
 * against the real server, device and a running worker.
 *
 * The input is a list of steps.  A step begins with a byte; its low three bits
 * say what to do:
 *
 *   0     n, n bytes               send these bytes as they are
 *   1..4  command, flags, fds, n, n bytes   send a well-formed message
 *   5     offset (16 bits), n, n bytes      write to the client's memory
 *   6     let the server work, read and check its replies
 *   7     hang up and connect anew
 *
 * Bit 3 of a message's step prefixes a plausible fixed part for the command, so
 * that the fuzzer does not have to guess 64-bit numbers.  A connection begins
 * with a VERSION of ours unless bit 3 of the step before says otherwise.
 *
 * Checked besides crashes: replies are well-formed, no descriptor is leaked.
 */
#include <fcntl.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "control/registry.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "fuzz.h"
#include "pvrdma/dirty.h"
#include "pvrdma/vfio_user.h"
#include "vm/attach.h"

#define RAM_SIZE 0x20000u
#define RAM_BASE 0x100000u

static struct vm vm;
static int client = -1;
static int ram_fd, kinds[4]; /* descriptors to send */
static uint8_t *ram;

/* What is left of the input. */
static const uint8_t *in;
static size_t in_len;

static uint8_t take8(void)
{
    if (in_len == 0) {
        return 0;
    }
    in_len--;
    return *in++;
}

/* A length byte and that many bytes, or what there is of them. */
static const uint8_t *take_bytes(size_t *n)
{
    const uint8_t *p;

    *n = take8();
    *n = MIN(*n, in_len);
    p = in;
    in += *n;
    in_len -= *n;
    return p;
}

static int probe_fd(void)
{
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);

    close(fd);
    return fd;
}

static void init(void)
{
    struct daemon_config *cfg = config_new();

    log_set_level(LOG_LVL_ERROR);
    config_complete(cfg);
    vm.cfg = config_vm_new(cfg, "fuzz", NULL);
    config_free(cfg);
    config_vm_set(vm.cfg, "addresses", "any", NULL);
    config_vm_set(vm.cfg, "max-qp", "64", NULL);
    config_vm_set(vm.cfg, "max-cq", "64", NULL);
    config_vm_set(vm.cfg, "max-mr", "64", NULL);
    config_vm_set(vm.cfg, "max-pd", "64", NULL);
    guest_mem_init_process();
    directory_init();
    if (!registry_start(NULL) || !datapath_start(1, 0, NULL)) {
        abort();
    }
    ram_fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (ftruncate(ram_fd, RAM_SIZE) < 0 ||
        fcntl(ram_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0) {
        abort();
    }
    ram = mmap(NULL, RAM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, ram_fd, 0);
    kinds[0] = ram_fd;
    kinds[1] = eventfd(0, EFD_CLOEXEC);
    kinds[2] = memfd_create("unsealed", MFD_CLOEXEC);
    kinds[3] = open("/dev/null", O_RDWR | O_CLOEXEC);
}

static void work(void)
{
    for (int i = 0; i < 1000 && g_main_context_iteration(NULL, FALSE); i++) {
    }
}

/* Receive up to @len bytes, dropping descriptors. */
static ssize_t receive(void *buf, size_t len)
{
    uint8_t control[CMSG_SPACE(sizeof(int) * 16)];
    struct iovec iov = {buf, len};
    struct msghdr mh = {
        .msg_iov = &iov,
        .msg_iovlen = 1,
        .msg_control = control,
        .msg_controllen = sizeof(control),
    };
    ssize_t n = recvmsg(client, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

    for (struct cmsghdr *cm = CMSG_FIRSTHDR(&mh); n > 0 && cm;
         cm = CMSG_NXTHDR(&mh, cm)) {
        int fd;

        for (size_t o = 0; o + CMSG_LEN(sizeof(fd)) <= cm->cmsg_len; o += sizeof(fd)) {
            memcpy(&fd, CMSG_DATA(cm) + o, sizeof(fd));
            close(fd);
        }
    }
    return n;
}

static void read_replies(void)
{
    static uint8_t body[VFIO_USER_MAX_DATA + 64];
    struct vfio_user_hdr h;

    work();
    while (receive(&h, sizeof(h)) == sizeof(h)) {
        uint32_t got = 0, len = h.size - (uint32_t)sizeof(h);
        bool error = h.flags & VFIO_USER_ERROR;

        if ((h.flags & ~VFIO_USER_ERROR) != VFIO_USER_TYPE_REPLY || h.size < sizeof(h) ||
            len > sizeof(body) || error != (h.error != 0) || (error && len) ||
            h.error > 4095) {
            abort();
        }
        while (got < len) {
            ssize_t n = receive(body, len - got);

            if (n == 0) {
                return;
            }
            if (n < 0) {
                work();
                continue;
            }
            got += (uint32_t)n;
        }
    }
}

static void send_bytes(const void *buf, size_t len, const int *fds, unsigned nfds)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * 4)];
    } control = {0};
    struct iovec iov = {(void *)buf, len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};

    if (nfds && len) {
        mh.msg_control = &control;
        mh.msg_controllen = CMSG_SPACE(sizeof(int) * nfds);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int) * nfds);
        memcpy(CMSG_DATA(&control.head), fds, sizeof(int) * nfds);
    }
    if (sendmsg(client, &mh, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        read_replies(); /* full: make room, and do without this one */
    }
}

/* The usual fixed part of a command, to be altered by the input. */
static size_t plausible(unsigned command, uint8_t variant, uint8_t *out)
{
    struct vfio_user_dma_map map = {32, 3, 0, RAM_BASE, RAM_SIZE};
    struct vfio_user_dma_unmap un = {24, variant & 2, 0, 0};
    struct vfio_user_region_info info = {.argsz = 64, .index = variant % 11};
    struct vfio_user_irq_set set = {20, variant & 0x3f, 2, 0, 1 + (variant >> 6)};
    struct vfio_user_region_rw rw = {(variant >> 4) * 4u, variant % 10, 4};
    struct vfio_user_mig_data data = {8 + 64 * (variant & 3u), 64 * (variant >> 2 & 3u)};
    struct {
        struct vfio_user_device_feature head;
        uint64_t data[4];
    } feature = {{256, variant % 10 | (variant >> 4 & 7u) << 16},
                 {RAM_BASE, RAM_SIZE, PVRDMA_PAGE_SIZE}};

    if (!(variant & 2)) {
        un.addr = RAM_BASE;
        un.size = RAM_SIZE;
    }
    switch (command) {
#define PART(v) memcpy(out, &(v), sizeof(v)), sizeof(v)
    case VFIO_USER_DMA_MAP:
        return PART(map);
    case VFIO_USER_DMA_UNMAP:
        return PART(un);
    case VFIO_USER_DEVICE_GET_INFO:
    case VFIO_USER_DEVICE_GET_IRQ_INFO:
    case VFIO_USER_DEVICE_GET_REGION_IO_FDS:
        info.flags = 0;
        memcpy(out, &info, 16);
        return 16;
    case VFIO_USER_DEVICE_GET_REGION_INFO:
        return PART(info);
    case VFIO_USER_DEVICE_SET_IRQS:
        return PART(set);
    case VFIO_USER_REGION_READ:
    case VFIO_USER_REGION_WRITE:
        return PART(rw);
    case VFIO_USER_DEVICE_FEATURE:
        if (variant % 10 == VFIO_USER_FEATURE_DMA_LOGGING_START) {
            feature.data[0] = PVRDMA_PAGE_SIZE;
            feature.data[1] = 0; /* all of memory */
            memcpy(out, &feature, 24);
            return 24;
        }
        if (variant % 10 == 9) { /* all of memory, shared */
            feature.head.flags += PVRDMA_FEATURE_DIRTY_LOG - 9;
            feature.data[0] = PVRDMA_PAGE_SIZE;
            feature.data[1] = 1;
            feature.data[2] = RAM_BASE;
            feature.data[3] = RAM_SIZE;
            return PART(feature);
        }
        if (variant % 10 == 3) {
            feature.head.flags += PVRDMA_FEATURE_PUT_BACK - 3;
            memcpy(out, &feature, 8);
            return 8;
        }
        if (variant % 10 == VFIO_USER_FEATURE_MIG_DEVICE_STATE) {
            memcpy(out, &feature, 8); /* the state is the input's */
            return 8;
        }
        memcpy(out, &feature, sizeof(feature.head) + 24);
        return sizeof(feature.head) + 24;
    case VFIO_USER_MIG_DATA_READ:
        return PART(data);
#undef PART
    default:
        return 0;
    }
}

static void send_message(bool prefix)
{
    uint8_t command = take8() % 20, flags = take8(), fd_spec = take8();
    unsigned nfds = fd_spec & 3;
    uint8_t msg[sizeof(struct vfio_user_hdr) + 64 + 256];
    struct vfio_user_hdr h = {.command = command};
    size_t len = sizeof(h), n;
    const uint8_t *bytes;
    int fds[3];

    for (unsigned i = 0; i < nfds; i++) {
        fds[i] = kinds[fd_spec >> (2 + 2 * i) & 3];
    }
    if (prefix) {
        len += plausible(command, take8(), msg + len);
    }
    bytes = take_bytes(&n);
    memcpy(msg + len, bytes, n);
    len += n;
    h.size = (uint32_t)len;
    h.flags = flags & VFIO_USER_NO_REPLY;
    memcpy(msg, &h, sizeof(h));
    send_bytes(msg, len, fds, nfds);
}

static void hang_up(void)
{
    if (client >= 0) {
        close(client);
        client = -1;
        work();
    }
    if (vm.conn || vm.attached) {
        abort();
    }
}

static void connect_anew(bool version)
{
    static const char json[] = "{\"capabilities\":{\"max_msg_fds\":16}}";
    struct vfio_user_version v = {0, 0};
    struct vfio_user_hdr h = {
        .command = VFIO_USER_VERSION,
        .size = sizeof(h) + sizeof(v) + sizeof(json),
    };
    uint8_t msg[sizeof(h) + sizeof(v) + sizeof(json)];
    int pair[2];

    hang_up();
    while (discard_full(vm.discard)) {
        usleep(100);
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0) {
        abort();
    }
    client = pair[0];
    if (!frontend_adopt(&vm, pair[1])) {
        abort();
    }
    if (version) {
        memcpy(msg, &h, sizeof(h));
        memcpy(msg + sizeof(h), &v, sizeof(v));
        memcpy(msg + sizeof(h) + sizeof(v), json, sizeof(json));
        send_bytes(msg, sizeof(msg), NULL, 0);
    }
}

static void step(void)
{
    uint8_t op = take8();
    const uint8_t *bytes;
    size_t n, at;

    switch (op & 7) {
    case 0:
        bytes = take_bytes(&n);
        send_bytes(bytes, n, NULL, 0);
        break;
    case 5:
        at = take8();
        at |= (size_t)take8() << 8;
        bytes = take_bytes(&n);
        memcpy(ram + at, bytes, n); /* at + n < RAM_SIZE */
        break;
    case 6:
        read_replies();
        break;
    case 7:
        connect_anew(!(op & 8));
        break;
    default:
        send_message(op & 8);
        break;
    }
}

static void run(const uint8_t *data, size_t size)
{
    in = data;
    in_len = size;
    memset(ram, 0, RAM_SIZE);
    connect_anew(size == 0 || data[0] < 0xf0);
    while (in_len) {
        step();
    }
    read_replies();
    hang_up();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool ready;
    int lowest_fd;

    if (!ready) {
        ready = true;
        init();
        /* GET_REGION_INFO, for what is made at first use and stays. */
        run((const uint8_t *)"\x09\x05\0\0\1\0\x06", 7);
    }
    lowest_fd = probe_fd();
    run(data, size);
    /* Some are closed by threads; one that leaked stays. */
    for (unsigned i = 0; probe_fd() != lowest_fd; i++) {
        if (i == 100000) {
            abort();
        }
        usleep(100);
    }
    return 0;
}
