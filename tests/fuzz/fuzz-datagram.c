/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of datagrams that come from other hosts, from the message to the guest.
 *
 * One VM with a queue pair for datagrams, and two peers.  An input is a row of steps: a
 * byte that says what and by which peer, and its arguments.
 *
 *   datagram  the message's body, longer by so many zeroes, so many times
 *   claim     the peer has an address, which stands still or not
 *   unclaim   or has it no longer
 *   hold      the VM stands still, or runs again
 *   receive   one is posted, of that length
 *   settle    its worker delivers what waits
 *
 * While one comes so many times the worker does nothing: what waits has to be bounded.
 * The number 2 stands for the queue pair's own, which differs.  What no receive covers
 * must be as it was, and in the end nothing waits.
 *
 * The corpus has to get to each fate of a datagram (fuzz_reached_all).
 */
#include <unistd.h>

#include "datapath/engine.h"
#include "fuzz.h"
#include "testdev.h"
#include "transport/link/datagrams.h"
#include "transport/link/internal.h"

#define QKEY      0x11111111u
#define WR        64u
#define MR_PAGES  4u
#define MR_VA     0x7f0000010080ull
#define MR_LEN    (MR_PAGES * 4096u - 0x100u)
#define CANARY    0xc3
#define OWN_QPN   2u
#define MAX_STEPS 64u
/* What the VM counts; behind that what datagrams.c counts, and what is delivered. */
#define N_FATES (DATAGRAM_DROPS + 3u)

static struct testdev *td;
static struct peer hosts[2];
static uint64_t qp_pdir, qp_first, cq_pdir, cq_first, mr_pdir, mr_first;
static uint32_t pd, mr, cq, qp, qpn, key;
static uint64_t delivered;
static uint32_t longest; /* of the receives that were posted, in bytes */

static const struct pvrdma_gid own = {.raw = {0xfe, 0x80, [15] = 1}};

/* ---- the directory ---- */

static bool asked(const char *network, const struct pvrdma_gid *gid)
{
    (void)network;
    (void)gid;
    return true;
}

static void told(const char *network, const struct pvrdma_gid *gid)
{
    (void)network;
    (void)gid;
}

static void bound(const struct vm *vm, const char *network, const struct pvrdma_gid *gid)
{
    (void)vm;
    told(network, gid);
}

static void held(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
    (void)until;
    told(network, gid);
}

static const struct directory_engine engine = {
    .name = "fuzz",
    .ask = asked,
    .call = told,
    .give_up = told,
    .bound = bound,
    .unbound = told,
    .held = held,
};

/* ---- the VM ---- */

static void command(uint32_t op, void *req, size_t size)
{
    CHECK(testdev_command(td, op, req, size) == 0);
    testdev_irqs(td, PVRDMA_VEC_CMD);
}

static void start(void)
{
    struct pvrdma_cmd_create_bind bind = {.gid = own, .vlan = 0xfff};

    testdev_start();
    log_set_level(LOG_LVL_ERROR);
    CHECK(directory_set_engine(&engine) == 0);
    ud_start();
    td = testdev_new("fuzz");
    testdev_up(td);
    bind.gid_type = ((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->caps.gid_types;
    command(PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind));
    mr_pdir = testdev_new_pdir(td, MR_PAGES, &mr_first);
    qp_pdir = testdev_new_pdir(td, 4, &qp_first);
    cq_pdir = testdev_new_pdir(td, 2, &cq_first);
}

static void modify(uint32_t state, uint32_t mask)
{
    struct pvrdma_cmd_modify_qp req = {
        .qp_handle = qp,
        .attr_mask = PVRDMA_QP_STATE | mask,
        .attrs = {.qp_state = state, .port_num = 1, .qkey = QKEY}};

    command(PVRDMA_CMD_MODIFY_QP, &req, sizeof(req));
}

static void create(void)
{
    const union pvrdma_cmd_resp *resp = testdev_ptr(td, td->resp);
    struct pvrdma_cmd_create_cq c = {.pdir_dma = cq_pdir, .cqe = WR, .nchunks = 2};
    struct pvrdma_cmd_create_qp q = {.pdir_dma = qp_pdir,
                                     .max_send_wr = WR,
                                     .max_recv_wr = WR,
                                     .max_send_sge = 1,
                                     .max_recv_sge = 1,
                                     .total_chunks = 4,
                                     .send_chunks = 2,
                                     .qp_type = PVRDMA_QPT_UD,
                                     .access_flags = PVRDMA_ACCESS_LOCAL_WRITE};
    struct pvrdma_cmd_create_mr m = {.start = MR_VA,
                                     .length = MR_LEN,
                                     .pdir_dma = mr_pdir,
                                     .access_flags = 0x1f,
                                     .nchunks = MR_PAGES};

    pd = m.pd_handle = q.pd_handle = testdev_pd(td, 0);
    command(PVRDMA_CMD_CREATE_MR, &m, sizeof(m));
    mr = resp->create_mr.mr_handle;
    key = resp->create_mr.lkey;
    memset(testdev_ptr(td, mr_first), CANARY, MR_PAGES * 4096);
    longest = 0;
    memset(testdev_ptr(td, qp_first), 0, 4 * 4096);
    memset(testdev_ptr(td, cq_first), 0, 2 * 4096);
    command(PVRDMA_CMD_CREATE_CQ, &c, sizeof(c));
    cq = q.send_cq_handle = q.recv_cq_handle = resp->create_cq.cq_handle;
    command(PVRDMA_CMD_CREATE_QP, &q, sizeof(q));
    qp = resp->create_qp.qp_handle;
    qpn = resp->create_qp.qpn;
    modify(PVRDMA_QPS_INIT, PVRDMA_QP_PKEY_INDEX | PVRDMA_QP_QKEY | PVRDMA_QP_PORT);
    modify(PVRDMA_QPS_RTR, 0);
}

static void post_recv(uint32_t len)
{
    struct pvrdma_ring_state *st = testdev_ptr(td, qp_first);
    uint32_t tail = st->rx.prod_tail;
    uint8_t *wqe = testdev_ptr(td, qp_first + 3 * 4096 + pvrdma_idx_slot(tail, WR) * 32);
    struct pvrdma_rq_wqe_hdr h = {.wr_id = tail, .num_sge = 1};
    struct pvrdma_sge s = {.addr = MR_VA, .length = len, .lkey = key};

    if (((tail - st->rx.cons_head) & (2 * WR - 1)) < WR) {
        memcpy(wqe, &h, sizeof(h));
        memcpy(wqe + sizeof(h), &s, sizeof(s));
        st->rx.prod_tail = pvrdma_idx_next(tail, WR);
        longest = MAX(longest, len);
    }
}

static void poll_cq(void)
{
    struct pvrdma_ring_state *st = testdev_ptr(td, cq_first);
    uint32_t head = st->rx.cons_head;

    for (unsigned n = 0; head != st->rx.prod_tail && n < WR; n++) {
        const struct pvrdma_cqe *c =
            testdev_ptr(td, cq_first + 4096 + pvrdma_idx_slot(head, WR) * sizeof(*c));

        CHECK(c->qp == qp && c->status <= PVRDMA_WC_GENERAL_ERR);
        CHECK(c->status || (c->byte_len >= PVRDMA_GRH_SIZE &&
                            c->byte_len <= PEER_MAX_DATA + PVRDMA_GRH_SIZE));
        delivered += c->status == PVRDMA_WC_SUCCESS;
        head = pvrdma_idx_next(head, WR);
    }
    st->rx.cons_head = head;
}

/* ---- steps ---- */

/* All that waits is delivered, or dropped. */
static void settle(void)
{
    uint64_t end = now_ns() + 20000000000u;

    while (atomic_load(&td->vm.dp.inbound)) {
        CHECK(now_ns() < end);
        usleep(1);
    }
    grace_wait(); /* ... and the worker is through with it */
    vm_token_take(&td->vm);
    vm_token_release(&td->vm);
    poll_cq();
}

static void datagram(struct fuzz_input *in, struct peer *from)
{
    uint32_t longer = fuzz_take(in, 2) % (PEER_MAX_DATA + 200),
             times = 1 + fuzz_take(in, 1);
    uint32_t named = fuzz_take(in, 1), len = (uint32_t)MIN(named, in->left);
    uint32_t body = len + longer;
    uint8_t *bytes = g_malloc0(PEER_MSG_HEADER + body); /* ASan sees its end */
    struct peer_msg m;
    size_t size;

    bytes[1] = PEER_MSG_DATAGRAM;
    bytes[6] = (uint8_t)(body >> 8);
    bytes[7] = (uint8_t)body;
    memcpy(bytes + PEER_MSG_HEADER, in->data, len);
    in->data += len;
    in->left -= len;
    if (peer_msg_get(bytes, PEER_MSG_HEADER + body, PEER_MSG_MAX_BODY, &m, &size) ==
        PEER_MSG_OK) {
        m.datagram.dqpn = m.datagram.dqpn == OWN_QPN ? qpn : m.datagram.dqpn;
        vm_token_take(&td->vm);
        for (uint32_t i = 0; i < times; i++) {
            peers_self.datagram(from, &m.datagram);
            CHECK(atomic_load(&td->vm.dp.inbound) <= UD_VM_IN);
        }
        vm_token_release(&td->vm);
    }
    g_free(bytes);
}

static void step(struct fuzz_input *in)
{
    const char *network = td->vm.objects.network;
    uint32_t what = fuzz_take(in, 1);
    struct peer *from = &hosts[what >> 7];
    struct pvrdma_gid gid = {.raw = {0xfe, 0x80, [14] = 1}};
    struct claim claim = {.owner = {7, 1}, .generation = 1};

    switch (what % 6) {
    case 0:
        datagram(in, from);
        break;
    case 1:
        gid.raw[15] = (uint8_t)fuzz_take(in, 1);
        claim.owner[0] += gid.raw[15];
        directory_claim(from, network, &gid, &claim, what & 64 ? 1000000 : 0);
        break;
    case 2:
        gid.raw[15] = (uint8_t)fuzz_take(in, 1);
        directory_unclaim(from, network, &gid);
        break;
    case 3:
        directory_hold(&td->vm, what & 64 ? DIRECTORY_MAX_HOLD_NS : 0);
        break;
    case 4:
        post_recv(fuzz_take(in, 2) % (MR_LEN + 1));
        break;
    default:
        settle();
        break;
    }
}

/* How many had which fate. */
static void fates(uint64_t n[N_FATES])
{
    struct ud_stats st;

    for (unsigned i = 0; i < DATAGRAM_DROPS; i++) {
        n[i] = atomic_load(&td->vm.dp.datagrams_dropped[i]);
    }
    ud_get_stats(&st);
    n[DATAGRAM_DROPS] = st.bad_source;
    n[DATAGRAM_DROPS + 1] = st.nobody;
    n[DATAGRAM_DROPS + 2] = delivered;
}

bool fuzz_reached_all(void)
{
    static const struct {
        const char *what;
        unsigned which;
    } fate[] = {
        {"is delivered", DATAGRAM_DROPS + 2},
        {"has a source that its host has not claimed", DATAGRAM_DROPS},
        {"is for an address that no VM has", DATAGRAM_DROPS + 1},
        {"is for a VM that stands still", DATAGRAM_HELD},
        {"is one too many", DATAGRAM_TOO_MANY},
        {"is for no queue pair", DATAGRAM_NO_QP},
        {"has another Q_Key", DATAGRAM_QKEY},
        {"finds no receive", DATAGRAM_NO_RECEIVE},
        {"is too long for its receive", DATAGRAM_TOO_LONG},
    };
    uint64_t n[N_FATES];
    bool all = true;

    fates(n);
    for (unsigned i = 0; i < G_N_ELEMENTS(fate); i++) {
        if (!n[fate[i].which]) {
            printf("no datagram %s\n", fate[i].what);
            all = false;
        }
    }
    return all;
}

/* Receives begin where the MR does, within its first page. */
static void check_beside(void)
{
    const uint8_t *p = testdev_ptr(td, mr_first);
    uint32_t first = MR_VA & 4095;

    for (uint32_t i = 0; i < MR_PAGES * 4096; i++) {
        CHECK(p[i] == CANARY || (i >= first && i - first < longest));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};

    if (!td) {
        start();
    }
    create();
    for (unsigned n = 0; in.left && n < MAX_STEPS; n++) {
        step(&in);
    }
    settle();
    directory_hold(&td->vm, 0);
    for (unsigned i = 0; i < 2; i++) {
        directory_forget(&hosts[i], false, NULL, NULL);
    }
    check_beside();
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_QP, qp) == 0);
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_CQ, cq) == 0);
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_MR, mr) == 0);
    CHECK(testdev_handle(td, PVRDMA_CMD_DESTROY_PD, pd) == 0);
    CHECK(atomic_load(&td->vm.guest.fault) == NULL);
    return 0;
}
