/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a NIC does by itself, with nothing of the daemon's: the figures of sends.h between
 * two RC queue pairs on one device, connected to each other, by libibverbs alone.  One
 * thread drives both, as one worker does that serves both VMs.
 *
 *   bench-verbs [-t SECONDS] DEVICE ADDRESS     SECONDS of each figure, by default 0.5
 *
 * ADDRESS is an IPv4 or IPv6 address of the device's network interface.  Not for iWARP,
 * whose queue pairs only the connection manager can connect.  Memory is locked: as root,
 * or with `ulimit -l unlimited`.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sends.h"

#define CQ_ENTRIES (2 * SENDS_DEPTH)
#define RETRIES    7

struct end {
    struct ibv_qp *qp;
    struct ibv_cq *scq, *rcq;
    struct ibv_mr *mr;
    uint8_t *buf;
    uint32_t most_inline;
};

/* Where the device has the address. */
struct port {
    uint8_t number;
    struct ibv_gid_entry gid;
    enum ibv_mtu mtu;
};

static void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

static void fail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "bench-verbs: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

/* ---- the device ---- */

static struct ibv_context *open_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    struct ibv_context *ctx;
    unsigned i = 0;

    while (list && list[i] && strcmp(ibv_get_device_name(list[i]), name) != 0) {
        i++;
    }
    if (!list || !list[i]) {
        fail("there is no device %s", name);
    }
    if (list[i]->transport_type != IBV_TRANSPORT_IB) {
        fail("%s is not for RoCE", name);
    }
    ctx = ibv_open_device(list[i]);
    if (!ctx) {
        fail("%s cannot be opened: %s", name, strerror(errno));
    }
    ibv_free_device_list(list);
    return ctx;
}

static union ibv_gid gid_of(const char *address)
{
    union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};

    if (inet_pton(AF_INET, address, &gid.raw[12]) != 1 &&
        inet_pton(AF_INET6, address, gid.raw) != 1) {
        fail("%s is not an address", address);
    }
    return gid;
}

static struct port find_port(struct ibv_context *ctx, const char *address)
{
    union ibv_gid gid = gid_of(address);
    struct ibv_device_attr attr;

    if (ibv_query_device(ctx, &attr)) {
        fail("the device cannot be asked");
    }
    for (uint8_t number = 1; number <= attr.phys_port_cnt; number++) {
        struct ibv_port_attr pa;

        if (ibv_query_port(ctx, number, &pa)) {
            continue;
        }
        for (int i = 0; i < pa.gid_tbl_len; i++) {
            struct port p = {.number = number, .mtu = pa.active_mtu};

            if (ibv_query_gid_ex(ctx, number, (uint32_t)i, &p.gid, 0) == 0 &&
                p.gid.gid_type == IBV_GID_TYPE_ROCE_V2 &&
                memcmp(&p.gid.gid, &gid, sizeof(gid)) == 0) {
                return p;
            }
        }
    }
    fail("%s is no address of the device", address);
}

/* ---- queue pairs ---- */

static void end_open(struct end *e, struct ibv_pd *pd)
{
    size_t len = (size_t)SENDS_SLOTS * SENDS_BYTES;
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = SENDS_DEPTH,
                .max_recv_wr = SENDS_DEPTH,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = SENDS_SMALL},
    };

    e->buf = aligned_alloc(4096, len);
    e->mr = e->buf ? ibv_reg_mr(pd, e->buf, len, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!e->mr) {
        fail("memory cannot be registered: %s", strerror(errno));
    }
    memset(e->buf, 1, len);
    init.send_cq = e->scq = ibv_create_cq(pd->context, CQ_ENTRIES, NULL, NULL, 0);
    init.recv_cq = e->rcq = ibv_create_cq(pd->context, CQ_ENTRIES, NULL, NULL, 0);
    e->qp = e->scq && e->rcq ? ibv_create_qp(pd, &init) : NULL;
    if (!e->qp) {
        fail("no queue pair: %s", strerror(errno));
    }
    e->most_inline = init.cap.max_inline_data;
}

static void modify(struct end *e, struct ibv_qp_attr attr, int mask)
{
    int err = ibv_modify_qp(e->qp, &attr, mask | IBV_QP_STATE);

    if (err) {
        fail("a queue pair does not get into state %d: %s", attr.qp_state, strerror(err));
    }
}

static void end_connect(struct end *e, const struct port *p, uint32_t peer)
{
    modify(e, (struct ibv_qp_attr){.qp_state = IBV_QPS_INIT, .port_num = p->number},
           IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    modify(e,
           (struct ibv_qp_attr){
               .qp_state = IBV_QPS_RTR,
               .path_mtu = p->mtu,
               .dest_qp_num = peer,
               .min_rnr_timer = 1,
               .ah_attr = {.is_global = 1,
                           .port_num = p->number,
                           .grh = {.dgid = p->gid.gid,
                                   .sgid_index = (uint8_t)p->gid.gid_index,
                                   .hop_limit = 64}},
           },
           IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    modify(e,
           (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                                .timeout = 14,
                                .retry_cnt = RETRIES,
                                .rnr_retry = RETRIES},
           IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
               IBV_QP_MAX_QP_RD_ATOMIC);
}

/* ---- what sends.h asks for ---- */

static struct ibv_sge slot_of(const struct end *e, unsigned slot, uint32_t len)
{
    return (struct ibv_sge){(uintptr_t)e->buf + (uintptr_t)slot * SENDS_BYTES, len,
                            e->mr->lkey};
}

static void send_some(void *end, unsigned n, uint32_t len, unsigned slot)
{
    struct end *e = end;
    struct ibv_sge sge = slot_of(e, slot, len);
    struct ibv_send_wr wr[SENDS_BATCH], *bad;
    int err;

    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct ibv_send_wr){
            .next = i + 1 < n ? &wr[i + 1] : NULL,
            .sg_list = &sge,
            .num_sge = 1,
            .opcode = IBV_WR_SEND,
            .send_flags = (len <= e->most_inline ? IBV_SEND_INLINE : 0) |
                          (i + 1 == n ? IBV_SEND_SIGNALED : 0),
        };
    }
    err = ibv_post_send(e->qp, wr, &bad);
    if (err) {
        fail("SENDs cannot be posted: %s", strerror(abs(err)));
    }
}

static void receive_some(void *end, unsigned n, unsigned slot)
{
    struct end *e = end;
    struct ibv_sge sge = slot_of(e, slot, SENDS_BYTES);
    struct ibv_recv_wr wr[SENDS_BATCH], *bad;
    int err;

    for (unsigned i = 0; i < n; i++) {
        wr[i] = (struct ibv_recv_wr){
            .next = i + 1 < n ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
    }
    err = ibv_post_recv(e->qp, wr, &bad);
    if (err) {
        fail("receives cannot be posted: %s", strerror(abs(err)));
    }
}

static unsigned take(struct ibv_cq *cq)
{
    struct ibv_wc wc[SENDS_BATCH];
    int n = ibv_poll_cq(cq, SENDS_BATCH, wc);

    if (n < 0) {
        fail("a completion queue cannot be polled");
    }
    for (int i = 0; i < n; i++) {
        if (wc[i].status != IBV_WC_SUCCESS) {
            fail("a completion says: %s", ibv_wc_status_str(wc[i].status));
        }
    }
    return (unsigned)n;
}

static unsigned sent(void *end)
{
    return take(((struct end *)end)->scq);
}

static unsigned received(void *end)
{
    return take(((struct end *)end)->rcq);
}

static const struct sends_ops ops = {send_some, receive_some, sent, received};

int main(int argc, char **argv)
{
    double seconds = 0.5;
    struct ibv_context *ctx;
    struct end e[2];
    struct ibv_pd *pd;
    struct port port;
    int opt;

    while ((opt = getopt(argc, argv, "t:")) != -1) {
        seconds = opt == 't' ? atof(optarg) : 0;
        if (seconds <= 0) {
            break;
        }
    }
    if (seconds <= 0 || argc - optind != 2) {
        fprintf(stderr, "usage: bench-verbs [-t SECONDS] DEVICE ADDRESS\n");
        return 2;
    }
    ctx = open_device(argv[optind]);
    port = find_port(ctx, argv[optind + 1]);
    pd = ibv_alloc_pd(ctx);
    if (!pd) {
        fail("no protection domain: %s", strerror(errno));
    }
    for (unsigned i = 0; i < 2; i++) {
        end_open(&e[i], pd);
    }
    for (unsigned i = 0; i < 2; i++) {
        end_connect(&e[i], &port, e[1 - i].qp->qp_num);
    }
    sends_measure(&ops, &e[0], &e[1], seconds);
    return 0; /* the kernel takes it all apart */
}
