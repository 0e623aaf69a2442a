/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * capscheck: what ibv_query_device_ex announces beside what can be had.
 *
 *   capscheck -d DEVICE -g GID_INDEX
 *
 * Of each "at most": so much works, one more is refused.  Of objects that many can be
 * made, but for one of the guest's kernel and handle 0, which is never given out (FEWER);
 * then one more is refused, and when they are gone as many can be made again.
 * What is announced as not there is refused.  For a VM of which a few dozen objects are
 * all that it may have.  One thread; nobody else may use the device meanwhile.  Prints
 * "N checks, N errors", fails if there are errors.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "device.h"
#include "options.h"
#include "rcqp.h"

#define FEWER 2
#define MANY  4096 /* objects are not counted beyond */

static struct {
    struct ibv_context *ctx;
    struct ibv_device_attr_ex dev;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    int gid_index;
    unsigned checks, errors;
    char *page;
} s;

#define A s.dev.orig_attr

static void open_device(const char *name)
{
    s.ctx = device_open(name);
    s.page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DIE_IF(!s.ctx || s.page == MAP_FAILED || ibv_query_device_ex(s.ctx, NULL, &s.dev),
           name);
}

/* ---- how many ---------------------------------------------------------------------- */

struct kind {
    const char *name;
    int max;
    void *(*make)(void);
    int (*end)(void *object);
    int have; /* of this program's already */
};

static void *make_pd(void)
{
    return ibv_alloc_pd(s.ctx);
}

static int end_pd(void *o)
{
    return ibv_dealloc_pd(o);
}

static void *make_mr(void)
{
    return ibv_reg_mr(s.pd, s.page, 4096, IBV_ACCESS_LOCAL_WRITE);
}

static int end_mr(void *o)
{
    return ibv_dereg_mr(o);
}

static void *make_mw(void)
{
    return ibv_alloc_mw(s.pd, IBV_MW_TYPE_1);
}

static int end_mw(void *o)
{
    return ibv_dealloc_mw(o);
}

static void *make_cq(void)
{
    return ibv_create_cq(s.ctx, 1, NULL, NULL, 0);
}

static int end_cq(void *o)
{
    return ibv_destroy_cq(o);
}

static struct ibv_srq *srq_of(uint32_t wr, uint32_t sge)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = wr, .max_sge = sge}};

    return ibv_create_srq(s.pd, &init);
}

static void *make_srq(void)
{
    return srq_of(1, 1);
}

static int end_srq(void *o)
{
    return ibv_destroy_srq(o);
}

static struct ibv_qp *qp_of(enum ibv_qp_type type, uint32_t send_wr, uint32_t recv_wr,
                            uint32_t send_sge, uint32_t recv_sge)
{
    struct ibv_qp_init_attr init = {
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .cap = {.max_send_wr = send_wr,
                .max_recv_wr = recv_wr,
                .max_send_sge = send_sge,
                .max_recv_sge = recv_sge},
        .qp_type = type,
    };

    return ibv_create_qp(s.pd, &init);
}

static void *make_qp(void)
{
    return qp_of(IBV_QPT_RC, 1, 1, 1, 1);
}

static int end_qp(void *o)
{
    return ibv_destroy_qp(o);
}

static void count(const struct kind *k)
{
    static void *made[MANY + 2];
    int first = 0, n, err;

    if (k->max < 1 || k->max > MANY) {
        CHECK(false, "%d %ss, more than this counts", k->max, k->name);
        return;
    }
    for (unsigned round = 0; round < 2; round++) {
        for (n = 0; n <= k->max && (made[n] = k->make()); n++) {
        }
        err = errno;
        CHECK(n < k->max && n + k->have >= k->max - FEWER, "%d %ss of %d", n + k->have,
              k->name, k->max);
        CHECK(n > k->max || err == ENOMEM || err == ENOSPC, "%s %d: %s", k->name, n,
              strerror(err));
        CHECK(!round || n == first, "%d %ss, then %d", first, k->name, n);
        first = n;
        while (n) {
            err = k->end(made[--n]);
            CHECK(!err, "%s %d: %s", k->name, n, strerror(err));
        }
    }
    printf("%s: %d of %d\n", k->name, first + k->have, k->max);
}

static void check_counts(void)
{
    const struct kind kinds[] = {
        {"pd", A.max_pd, make_pd, end_pd, 1},     {"mr", A.max_mr, make_mr, end_mr, 0},
        {"mw", A.max_mw, make_mw, end_mw, 0},     {"cq", A.max_cq, make_cq, end_cq, 1},
        {"srq", A.max_srq, make_srq, end_srq, 0}, {"qp", A.max_qp, make_qp, end_qp, 0},
    };

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        count(&kinds[i]);
    }
}

/* ---- how large --------------------------------------------------------------------- */

#define WORKS(made, end)                  \
    do {                                  \
        void *o_ = (made);                \
        CHECK(o_, "%s", strerror(errno)); \
        if (o_) {                         \
            end(o_);                      \
        }                                 \
    } while (0)

#define REFUSED(made, end)                                       \
    do {                                                         \
        void *o_ = (errno = 0, made);                            \
        int err_ = errno;                                        \
        CHECK(!o_ && err_, "%s", o_ ? "made" : "without errno"); \
        if (o_) {                                                \
            end(o_);                                             \
        }                                                        \
    } while (0)

static void check_sizes(void)
{
    const uint32_t wr = (uint32_t)A.max_qp_wr, sge = (uint32_t)A.max_sge;
    const uint32_t srq_wr = (uint32_t)A.max_srq_wr, srq_sge = (uint32_t)A.max_srq_sge;
    void *much;

    WORKS(qp_of(IBV_QPT_RC, wr, 1, 1, 1), end_qp);
    WORKS(qp_of(IBV_QPT_RC, 1, wr, 1, 1), end_qp);
    WORKS(qp_of(IBV_QPT_RC, 1, 1, sge, sge), end_qp);
    WORKS(qp_of(IBV_QPT_UD, 1, 1, sge, sge), end_qp);
    REFUSED(qp_of(IBV_QPT_RC, wr + 1, 1, 1, 1), end_qp);
    REFUSED(qp_of(IBV_QPT_RC, 1, wr + 1, 1, 1), end_qp);
    REFUSED(qp_of(IBV_QPT_RC, 1, 1, sge + 1, 1), end_qp);
    REFUSED(qp_of(IBV_QPT_RC, 1, 1, 1, sge + 1), end_qp);
    CHECK(A.max_sge_rd == A.max_sge, "%d", A.max_sge_rd);
    WORKS(ibv_create_cq(s.ctx, A.max_cqe, NULL, NULL, 0), end_cq);
    REFUSED(ibv_create_cq(s.ctx, A.max_cqe + 1, NULL, NULL, 0), end_cq);
    REFUSED(ibv_create_cq(s.ctx, 1, NULL, NULL, s.ctx->num_comp_vectors), end_cq);
    WORKS(srq_of(srq_wr, 1), end_srq);
    WORKS(srq_of(1, srq_sge), end_srq);
    REFUSED(srq_of(srq_wr + 1, 1), end_srq);
    REFUSED(srq_of(1, srq_sge + 1), end_srq);

    much = mmap(NULL, A.max_mr_size + 4096, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    DIE_IF(much == MAP_FAILED, "mmap");
    /* Some of what programs say of their memory is a hint that nobody needs. */
    WORKS(
        ibv_reg_mr(s.pd, s.page, 4096, IBV_ACCESS_HUGETLB | IBV_ACCESS_RELAXED_ORDERING),
        end_mr);
    /* The rings of what is there count, too: not quite all of it can be one region. */
    WORKS(ibv_reg_mr(s.pd, much, A.max_mr_size / 8 * 7, 0), end_mr);
    errno = 0;
    CHECK(!ibv_reg_mr(s.pd, much, A.max_mr_size + 4096, 0) && errno == EINVAL, "%s",
          strerror(errno));
    munmap(much, A.max_mr_size + 4096);
}

/* The state machine's part: RDs in flight, IBV_DEVICE_CURR_QP_STATE_MOD. */
static void check_connection(void)
{
    struct ibv_qp *qp = make_qp();
    struct ibv_qp_attr rtr = {.path_mtu = IBV_MTU_1024,
                              .min_rnr_timer = 1,
                              .ah_attr = {.is_global = 1, .port_num = 1}};
    const int rtr_mask = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    struct ibv_qp_attr rts = {.timeout = 14, .retry_cnt = 7};
    const int rts_mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                         IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

    DIE_IF(!qp || rcqp_to_init(qp, 0), "QP");
    rtr.dest_qp_num = qp->qp_num;
    rtr.ah_attr.grh.hop_limit = 1;
    rtr.ah_attr.grh.sgid_index = (uint8_t)s.gid_index;
    DIE_IF(ibv_query_gid(s.ctx, 1, s.gid_index, &rtr.ah_attr.grh.dgid), "GID");
    rtr.max_dest_rd_atomic = (uint8_t)(A.max_qp_rd_atom + 1);
    CHECK(rcqp_modify(qp, IBV_QPS_RTR, rtr, rtr_mask), "responder");
    rtr.max_dest_rd_atomic = (uint8_t)A.max_qp_rd_atom;
    CHECK(!rcqp_modify(qp, IBV_QPS_RTR, rtr, rtr_mask), "responder");
    rts.max_rd_atomic = (uint8_t)(A.max_qp_init_rd_atom + 1);
    CHECK(rcqp_modify(qp, IBV_QPS_RTS, rts, rts_mask), "requester");
    rts.max_rd_atomic = (uint8_t)A.max_qp_init_rd_atom;
    CHECK(!rcqp_modify(qp, IBV_QPS_RTS, rts, rts_mask), "requester");
    CHECK(A.max_res_rd_atom == A.max_qp * A.max_qp_rd_atom, "%d", A.max_res_rd_atom);

    rts.cur_qp_state = IBV_QPS_SQD;
    CHECK(rcqp_modify(qp, IBV_QPS_RTS, rts, IBV_QP_CUR_STATE), "of another state");
    rts.cur_qp_state = IBV_QPS_RTS;
    CHECK(!rcqp_modify(qp, IBV_QPS_RTS, rts, IBV_QP_CUR_STATE), "of its state");
    ibv_destroy_qp(qp);
}

/* ---- what is not there ------------------------------------------------------------- */

#define NONE(field)                                                               \
    do {                                                                          \
        static const char zero_[sizeof(field)];                                   \
        CHECK(!memcmp(&(field), zero_, sizeof(field)), "what is there of that?"); \
    } while (0)

static int end_dm(void *o)
{
    return ibv_free_dm(o);
}

static int end_xrcd(void *o)
{
    return ibv_close_xrcd(o);
}

static int end_wq(void *o)
{
    return ibv_destroy_wq(o);
}

static int end_flow(void *o)
{
    return ibv_destroy_flow(o);
}

static void check_nothing(void)
{
    struct ibv_alloc_dm_attr dm = {.length = 64};
    struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD |
                                                   IBV_XRCD_INIT_ATTR_OFLAGS,
                                      .fd = -1,
                                      .oflags = 0100};
    struct ibv_wq_init_attr wq = {
        .wq_type = IBV_WQT_RQ, .max_wr = 1, .max_sge = 1, .pd = s.pd, .cq = s.cq};
    struct ibv_srq_init_attr_ex tag = {.attr = {.max_wr = 1, .max_sge = 1},
                                       .comp_mask =
                                           IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
                                           IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_TM,
                                       .srq_type = IBV_SRQT_TM,
                                       .pd = s.pd,
                                       .cq = s.cq,
                                       .tm_cap = {.max_num_tags = 1, .max_ops = 1}};
    struct ibv_qp_init_attr_ex tso = {
        .send_cq = s.cq,
        .recv_cq = s.cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_UD,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER,
        .pd = s.pd,
        .max_tso_header = 64};
    struct ibv_flow_attr flow = {
        .type = IBV_FLOW_ATTR_ALL_DEFAULT, .size = sizeof(flow), .port = 1};
    union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 1}};
    struct ibv_qp *ud = qp_of(IBV_QPT_UD, 1, 1, 1, 1);
    struct ibv_srq_attr more = {.max_wr = 64};
    struct ibv_srq *srq = make_srq();

    if (!ud || !srq ||
        rcqp_modify(ud, IBV_QPS_INIT, (struct ibv_qp_attr){.port_num = 1, .qkey = 1},
                    IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY)) {
        die("datagrams, or an SRQ");
    }
    NONE(s.dev.odp_caps);
    NONE(s.dev.xrc_odp_caps);
    REFUSED(ibv_reg_mr(s.pd, s.page, 4096, IBV_ACCESS_ON_DEMAND), end_mr);
    NONE(s.dev.tso_caps);
    REFUSED(ibv_create_qp_ex(s.ctx, &tso), end_qp);
    NONE(s.dev.rss_caps);
    NONE(s.dev.max_wq_type_rq);
    REFUSED(ibv_create_wq(s.ctx, &wq), end_wq);
    NONE(s.dev.packet_pacing_caps);
    NONE(s.dev.raw_packet_caps);
    NONE(A.max_raw_ethy_qp);
    NONE(A.max_raw_ipv6_qp);
    REFUSED(qp_of(IBV_QPT_RAW_PACKET, 1, 1, 1, 1), end_qp);
    REFUSED(ibv_create_flow(ud, &flow), end_flow);
    NONE(s.dev.tm_caps);
    REFUSED(ibv_create_srq_ex(s.ctx, &tag), end_srq);
    NONE(s.dev.max_dm_size);
    REFUSED(ibv_alloc_dm(s.ctx, &dm), end_dm);
    NONE(s.dev.pci_atomic_caps);
    NONE(A.max_mcast_grp);
    NONE(A.max_mcast_qp_attach);
    NONE(A.max_total_mcast_qp_attach);
    CHECK(ibv_attach_mcast(ud, &group, 0), "a multicast group");
    NONE(A.max_ee);
    NONE(A.max_rdd);
    NONE(A.max_ee_rd_atom);
    NONE(A.max_ee_init_rd_atom);
    NONE(A.max_fmr);
    NONE(A.max_map_per_fmr);
    /* IBV_DEVICE_XRC, _SRQ_RESIZE: not among the flags. */
    REFUSED(ibv_open_xrcd(s.ctx, &xrcd), end_xrcd);
    CHECK(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR), "an SRQ of another size");
    ibv_destroy_srq(srq);
    ibv_destroy_qp(ud);
}

/* ---- the rest ---------------------------------------------------------------------- */

/* What there is a test of, here or elsewhere. */
#define FLAGS                                                   \
    (IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_SYS_IMAGE_GUID | \
     IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT | \
     IBV_DEVICE_MEM_MGT_EXTENSIONS | IBV_DEVICE_MEM_WINDOW |    \
     IBV_DEVICE_MEM_WINDOW_TYPE_2B)

static void check_rest(void)
{
    struct ibv_port_attr port;
    struct ibv_mw *mw;
    __be16 pkey = 0;

    CHECK(A.device_cap_flags == FLAGS, "%#x, not %#x", A.device_cap_flags, FLAGS);
    CHECK((s.dev.device_cap_flags_ex & UINT32_MAX) == FLAGS, "%#llx",
          (unsigned long long)s.dev.device_cap_flags_ex);
    mw = ibv_alloc_mw(s.pd, IBV_MW_TYPE_2);
    CHECK(mw && !ibv_dealloc_mw(mw), "a window of type 2B");
    CHECK(A.node_guid && A.node_guid == ibv_get_device_guid(s.ctx->device), "GUID");
    CHECK(A.sys_image_guid == A.node_guid, "GUID of the system");
    CHECK(A.fw_ver[0] && A.hw_ver == 1, "%s, %u", A.fw_ver, A.hw_ver);
    CHECK(A.vendor_id == 0x15ad && A.vendor_part_id == 0x0820, "%#x %#x", A.vendor_id,
          A.vendor_part_id);
    CHECK(A.page_size_cap == 4096, "%#llx", (unsigned long long)A.page_size_cap);
    CHECK(A.atomic_cap == IBV_ATOMIC_HCA, "%d", A.atomic_cap);
    CHECK(A.phys_port_cnt == 1 && s.dev.phys_port_cnt_ex == 1, "%u", A.phys_port_cnt);
    CHECK(ibv_query_port(s.ctx, 2, &port), "port 2");
    CHECK(!ibv_query_port(s.ctx, 1, &port), "port 1");
    CHECK(A.max_pkeys == 1 && port.pkey_tbl_len == 1, "%u", A.max_pkeys);
    CHECK(!ibv_query_pkey(s.ctx, 1, 0, &pkey) && pkey == 0xffff, "%#x", pkey);
    CHECK(ibv_query_pkey(s.ctx, 1, 1, &pkey), "P_Key 1");
}

int main(int argc, char **argv)
{
    struct options o = {0};

    if (!options_read(&o, argc, argv, 0, 0) || !o.device) {
        fputs("usage: capscheck -d DEVICE -g GID_INDEX\n", stderr);
        return 2;
    }
    s.gid_index = o.gid_index;
    open_device(o.device);
    s.pd = ibv_alloc_pd(s.ctx);
    s.cq = ibv_create_cq(s.ctx, 16, NULL, NULL, 0);
    DIE_IF(!s.pd || !s.cq, "objects");
    check_rest();
    check_counts();
    check_sizes();
    check_connection();
    check_nothing();
    printf("%u checks, %u errors\n", s.checks, s.errors);
    return s.errors != 0;
}
