/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * bigcheck: one large memory region, or one of a DMA buffer.
 *
 *   bigcheck -d DEVICE -g GIDINDEX -m MIB      of ordinary memory in 4 KiB pages
 *   bigcheck -d DEVICE -g GIDINDEX -m MIB -u   of a udmabuf over a memfd
 *
 * Two QPs of the device, connected to each other, write into and read from the region
 * at its beginning, across its middle and every GiB, and at its very end; the program
 * looks at the bytes itself.  One byte behind the end is refused, and with -u what is no
 * DMA buffer or goes beyond it.
 *
 * Prints "region of N MiB: N places, N errors, registered in N ms"; exits 0 only
 * without errors.  Where there is no /dev/udmabuf, -u says so and exits with 77.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "die.h"
#include "options.h"

#define MIB     (1ull << 20)
#define GIB     (1ull << 30)
#define LEN     9001u
#define LIMIT_S 200
#define ACCESS  (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static struct {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp[2]; /* [0] sends, [1] is the region's */
    struct ibv_mr *mr, *big;
    uint8_t *buf, *mem;
    uint64_t size;
    union ibv_gid gid;
    int gid_index;
    unsigned places, errors;
} s;

static void wrong(const char *what, uint64_t place)
{
    if (s.errors++ < 20) {
        fprintf(stderr, "bigcheck: %s at %llu\n", what, (unsigned long long)place);
    }
}

static void check_errno(int err, const char *what)
{
    errno = err;
    DIE_IF(err, what);
}

static void open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    for (unsigned i = 0; list && list[i] && !s.ctx; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), name)) {
            s.ctx = ibv_open_device(list[i]);
        }
    }
    DIE_IF(!s.ctx || ibv_query_gid(s.ctx, 1, s.gid_index, &s.gid),
           "no such device or GID");
    ibv_free_device_list(list);
}

static void modify(struct ibv_qp *qp, struct ibv_qp_attr attr, int mask)
{
    check_errno(ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE), "ibv_modify_qp");
}

static struct ibv_qp *make_qp(void)
{
    struct ibv_qp_init_attr attr = {
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(s.pd, &attr);

    DIE_IF(!qp, "ibv_create_qp");
    return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
    modify(qp, (struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, 0);
    modify(qp,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT,
                                .port_num = 1,
                                .qp_access_flags = ACCESS & ~IBV_ACCESS_LOCAL_WRITE},
           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(qp,
           (struct ibv_qp_attr){
               .qp_state = IBV_QPS_RTR,
               .path_mtu = IBV_MTU_1024,
               .dest_qp_num = peer,
               .max_dest_rd_atomic = 1,
               .min_rnr_timer = 1,
               .ah_attr = {.is_global = 1,
                           .port_num = 1,
                           .grh = {.dgid = s.gid,
                                   .sgid_index = (uint8_t)s.gid_index,
                                   .hop_limit = 1}},
           },
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(qp,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = 7,
                                .rnr_retry = 7,
                                .max_rd_atomic = 1},
           IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
               IBV_QP_MAX_QP_RD_ATOMIC);
}

static void make_objects(void)
{
    s.pd = ibv_alloc_pd(s.ctx);
    s.cq = ibv_create_cq(s.ctx, 16, NULL, NULL, 0);
    s.buf = malloc(LEN);
    DIE_IF(!s.pd || !s.cq || !s.buf, "set-up");
    s.mr = ibv_reg_mr(s.pd, s.buf, LEN, IBV_ACCESS_LOCAL_WRITE);
    DIE_IF(!s.mr, "ibv_reg_mr of the small one");
    s.qp[0] = make_qp();
    s.qp[1] = make_qp();
}

static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, uint64_t place,
                                   uint32_t len)
{
    struct ibv_sge sge = {(uintptr_t)s.buf, len, s.mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = opcode,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {.remote_addr = (uintptr_t)s.mem + place, .rkey = s.big->rkey},
    };
    struct ibv_send_wr *bad;
    struct ibv_wc wc;
    int n;

    check_errno(ibv_post_send(s.qp[0], &wr, &bad), "ibv_post_send");
    do {
        n = ibv_poll_cq(s.cq, 1, &wc);
    } while (n == 0);
    DIE_IF(n < 0, "ibv_poll_cq");
    return wc.status;
}

static void fill(uint8_t *p, uint64_t seed)
{
    for (unsigned i = 0; i < LEN; i++) {
        p[i] = (uint8_t)((seed + i) * 0x9e3779b97f4a7c15ull >> 56);
    }
}

static void check_place(uint64_t place)
{
    uint8_t want[LEN];

    fill(want, place + 1);
    memcpy(s.buf, want, LEN);
    if (transfer(IBV_WR_RDMA_WRITE, place, LEN) != IBV_WC_SUCCESS) {
        wrong("WRITE failed", place);
        return;
    }
    if (memcmp(s.mem + place, want, LEN)) {
        wrong("written bytes are not there", place);
    }
    fill(want, place + 2);
    memcpy(s.mem + place, want, LEN);
    if (transfer(IBV_WR_RDMA_READ, place, LEN) != IBV_WC_SUCCESS) {
        wrong("READ failed", place);
        return;
    }
    if (memcmp(s.buf, want, LEN)) {
        wrong("other bytes were read", place);
    }
    s.places++;
}

static void check_places(void)
{
    check_place(0);
    check_place(s.size / 2 - 5000);
    for (uint64_t at = GIB; at < s.size; at += GIB) {
        check_place(at - LEN / 2);
    }
    check_place(s.size - LEN);
    if (transfer(IBV_WR_RDMA_WRITE, s.size - LEN + 1, LEN) == IBV_WC_SUCCESS) {
        wrong("WRITE behind the end", s.size);
    }
}

static double now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Each page for itself, wherever the kernel finds one. */
static void register_memory(void)
{
    s.mem =
        mmap(NULL, s.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DIE_IF(s.mem == MAP_FAILED, "mmap");
    madvise(s.mem, s.size, MADV_NOHUGEPAGE);
    memset(s.mem, 1, s.size);
    s.big = ibv_reg_mr(s.pd, s.mem, s.size, ACCESS);
}

static void register_dmabuf(void)
{
    struct udmabuf_create create = {.flags = UDMABUF_FLAGS_CLOEXEC, .size = s.size};
    int fd = memfd_create("bigcheck", MFD_ALLOW_SEALING), dev, buf;

    DIE_IF(fd < 0 || ftruncate(fd, (off_t)s.size) ||
               fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK),
           "memfd");
    s.mem = mmap(NULL, s.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    DIE_IF(s.mem == MAP_FAILED, "mmap");
    if (ibv_reg_dmabuf_mr(s.pd, 0, s.size, (uintptr_t)s.mem, fd, ACCESS)) {
        wrong("a region of a file that is no DMA buffer", 0);
    }
    dev = open("/dev/udmabuf", O_RDWR);
    if (dev < 0) {
        printf("no /dev/udmabuf in this kernel\n");
        exit(s.errors ? 1 : 77);
    }
    create.memfd = (uint32_t)fd;
    buf = ioctl(dev, UDMABUF_CREATE, &create);
    DIE_IF(buf < 0, "UDMABUF_CREATE");
    if (ibv_reg_dmabuf_mr(s.pd, 4096, s.size, (uintptr_t)s.mem, buf, ACCESS)) {
        wrong("a region beyond the buffer", s.size);
    }
    s.big = ibv_reg_dmabuf_mr(s.pd, 0, s.size, (uintptr_t)s.mem, buf, ACCESS);
    close(buf); /* the region keeps it */
    close(fd);
    close(dev);
}

int main(int argc, char **argv)
{
    struct ibv_device_attr attr;
    struct options o = {0};
    double began;

    if (!options_read(&o, argc, argv, 'm', 'u') || !o.device || !o.number) {
        fprintf(stderr, "usage: bigcheck -d DEVICE -g GIDINDEX -m MIB [-u]\n");
        return 2;
    }
    s.gid_index = o.gid_index;
    s.size = o.number * MIB;
    alarm(LIMIT_S);
    open_device(o.device);
    check_errno(ibv_query_device(s.ctx, &attr), "ibv_query_device");
    printf("max_mr_size %llu MiB\n", (unsigned long long)(attr.max_mr_size / MIB));
    make_objects();
    began = now_ms();
    if (o.flag) {
        register_dmabuf();
    } else {
        register_memory();
    }
    DIE_IF(!s.big, "registration");
    began = now_ms() - began;
    for (unsigned round = 0; round < 2; round++) {
        connect_qp(s.qp[0], s.qp[1]->qp_num);
        connect_qp(s.qp[1], s.qp[0]->qp_num);
        check_places();
    }
    if (ibv_dereg_mr(s.big) || ibv_destroy_qp(s.qp[0]) || ibv_destroy_qp(s.qp[1]) ||
        ibv_destroy_cq(s.cq) || ibv_dereg_mr(s.mr) || ibv_dealloc_pd(s.pd) ||
        ibv_close_device(s.ctx)) {
        wrong("tear-down", 0);
    }
    printf("region of %llu MiB: %u places, %u errors, registered in %.0f ms\n",
           (unsigned long long)(s.size / MIB), s.places, s.errors, began);
    return s.errors ? 1 : 0;
}
