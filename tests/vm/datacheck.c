/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * datacheck: moves known patterns with every operation of connected QPs and compares
 * each byte that arrives.  Plain libibverbs, so it runs on any RDMA device.  Datagrams
 * have a program of their own, udcheck.
 *
 *   datacheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] [-xrl]             server
 *   datacheck -d DEVICE -g GIDINDEX [-p PORT] [-n ROUNDS] [-xrl] SERVER-IP   client
 *
 * Both ends run the same program and exchange addresses over TCP.  A check is
 * one message: its completion, length, immediate data, every byte of it and the
 * bytes around it.  Parts:
 *
 *   sizes   SEND, SEND_IMM, WRITE, WRITE_IMM, READ around page and 64 KiB
 *           limits, source and destination unaligned
 *   sge     many SGEs of random lengths at both ends
 *   atomic  compare-and-swap, fetch-and-add
 *   srq     sizes, and many messages at once, over RC QPs that share an SRQ
 *   uc      sizes over UC QPs
 *   inline  inline data, over all of these QPs
 *   mw      windows of both types, bound, used and invalidated (datacheck-mw.c)
 *   both    all operations on 16 QPs, both directions at once
 *
 * In every step one end acts (posts operations), and the other prepares and
 * verifies memory; then the roles change.  TCP messages order the steps: "ready"
 * (buffers are filled, receives posted) and "done" (completions seen).
 *
 * -x posts each request by ibv_wr_*(); exit status 3 if these are not there.
 *
 * -r leaves UC out, where messages of it may be lost.
 *
 * -l adds solicited SENDs that come before their receives, and at the end a WRITE that is
 * refused.
 *
 * SRQs, UC, inline data and windows are left out where one of the ends has none.  Prints
 * "parts: rc srq uc inline mw", those that it had, and "N checks, N errors"; exits 0 only
 * without errors.  Fast registration is not here: programs have none.
 */
#include "datacheck.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- one message, one end acting ---- */

struct op {
    const char *name;
    enum ibv_wr_opcode opcode;
    bool recv, imm, rdma, read;
};

static const struct op ops[] = {
    {"send", IBV_WR_SEND, true, false, false, false},
    {"send-imm", IBV_WR_SEND_WITH_IMM, true, true, false, false},
    {"write", IBV_WR_RDMA_WRITE, false, false, true, false},
    {"write-imm", IBV_WR_RDMA_WRITE_WITH_IMM, true, true, true, false},
    {"read", IBV_WR_RDMA_READ, false, false, true, true},
};
#define NOPS (sizeof(ops) / sizeof(ops[0]))

static enum ibv_wc_opcode expected_wc(const struct op *o)
{
    return o->read ? IBV_WC_RDMA_READ : o->rdma ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
}

static void check_recv_wc(const struct op *o, const struct ibv_wc *wc, uint32_t len,
                          uint32_t imm)
{
    check(wc->opcode == (o->rdma ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV),
          "%s: receive opcode %d", o->name, wc->opcode);
    check(wc->byte_len == len, "%s: byte_len %u, not %u", o->name, wc->byte_len, len);
    if (o->imm) {
        check((wc->wc_flags & IBV_WC_WITH_IMM) && wc->imm_data == htonl(imm),
              "%s: immediate data %x, not %x", o->name, ntohl(wc->imm_data), imm);
    }
}

/*
 * Actor: source at @src of its source area (for READ: where the data goes, in
 * its destination area).  Target: data at @dst of its destination area (READ:
 * taken from its source area).
 */
static void one_message(bool actor, int q, const struct op *o, unsigned flags,
                        uint32_t len, uint32_t src, uint32_t dst, uint32_t seed)
{
    uint64_t from = GUARD + src, to = AREA + GUARD + dst;
    uint64_t local = o->read ? to : from, remote = o->read ? from : to;

    if (actor == o->read) {
        spoil(s.buf + to, len);
    } else {
        fill(s.buf + from, len, seed);
    }
    if (!actor && o->recv) {
        struct ibv_sge e = sge_at(o->rdma ? 0 : to, o->rdma ? 0 : len);

        post_recv(q, seed, &e, o->rdma || !len ? 0 : 1);
    }
    barrier('R');
    if (actor) {
        struct ibv_sge e = sge_at(local, len);
        struct ibv_send_wr wr = {.wr_id = seed,
                                 .sg_list = &e,
                                 .num_sge = len ? 1 : 0,
                                 .opcode = o->opcode,
                                 .send_flags = flags | IBV_SEND_SIGNALED,
                                 .imm_data = htonl(seed)};
        struct ibv_wc wc;

        wr.wr.rdma.remote_addr = s.other.addr + remote;
        wr.wr.rdma.rkey = s.other.rkey;
        post_send(q, &wr);
        if (flags & IBV_SEND_INLINE) {
            memset(s.buf + local, 0x5a, len); /* it is ours again at once */
        }
        wc = wait_wc(s.scq, o->name);
        check(wc.wr_id == seed, "%s: wr_id", o->name);
        check(wc.opcode == expected_wc(o), "%s: opcode %d", o->name, wc.opcode);
        if (o->read) {
            verify(o->name, s.buf + to, len, seed);
        }
    } else if (o->recv) {
        struct ibv_wc wc = wait_wc(s.rcq, o->name);

        check(wc.wr_id == seed, "%s: receive wr_id", o->name);
        check_recv_wc(o, &wc, len, seed);
    }
    barrier('D');
    if (!actor && !o->read) {
        /* What it wrote by UC may be on its way, though it is complete. */
        for (int i = 0; is_uc(q) && i < 5000 && differs(s.buf + to, len, seed) < len;
             i++) {
            usleep(1000);
        }
        verify(o->name, s.buf + to, len, seed);
    }
}

/* Over @n QPs from number @first, and not with the last @without of the operations. */
static void part_sizes(bool actor, uint32_t round, int first, int n, unsigned noffs,
                       unsigned without)
{
    static const uint32_t sizes[] = {
        0,    1,    7,    8,     63,    64,    65,    1023,   1024,   1025,   4095,
        4096, 4097, 8192, 12289, 65535, 65536, 65537, 131071, 131072, 131073, 1000003};
    static const uint32_t offs[][2] = {{0, 0}, {1, 3}, {4031, 1}, {63, 4095}};
    uint32_t seed = 1000 + round * 100000 + (actor == !s.server) * 50000;

    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (unsigned k = 0; k < noffs; k++) {
            for (unsigned o = 0; o < NOPS - without; o++) {
                one_message(actor, first + (int)(seed % (unsigned)n), &ops[o], 0,
                            sizes[i], offs[k % 4][0], offs[k % 4][1], seed);
                seed++;
            }
        }
    }
}

/* Each length of inline data that both ends grant, over each kind of QP. */
static void part_inline(bool actor, uint32_t round)
{
    const int qps[] = {round % NQP, NQP, NQP + NSRQ};
    uint32_t max =
        s.me.max_inline < s.other.max_inline ? s.me.max_inline : s.other.max_inline;

    for (uint32_t len = 0; max && len <= max; len++) {
        for (unsigned i = 0; i < sizeof(qps) / sizeof(qps[0]); i++) {
            const struct op *o = &ops[(len + i) % (NOPS - 1)]; /* no READ */

            if (has_qp(qps[i])) {
                one_message(actor, qps[i], o, IBV_SEND_INLINE, len, len % 7, len % 5,
                            5000000u + round * 1000 + len);
            }
        }
    }
}

#define SLOT (AREA / NQP / 4) /* 32 KiB */

static uint32_t rnd(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

/* ---- one SRQ for several QPs ---- */

/*
 * As many messages as the SRQ has receives, on its QPs in random order, all posted
 * before the other end looks.  Which receive a message takes is the device's choice; the
 * immediate data tell which message it is, and those of one QP come in order.
 */
static void part_srq(bool actor, uint32_t round)
{
    uint32_t x = 99 + round;

    for (uint32_t k = 0; k < 20; k++) {
        uint32_t seed = 9000000u + (round * 20 + k) * 100, last[NSRQ] = {0};
        uint32_t len[NQP];

        for (uint32_t i = 0; i < NQP; i++) {
            struct ibv_sge e = sge_at(AREA + i * SLOT + GUARD, SLOT - 2 * GUARD);

            len[i] = 1 + rnd(&x) % (k & 1 ? SLOT - 2 * GUARD - 1 : 200);
            if (actor) {
                fill(s.buf + i * SLOT, len[i], seed + i);
            } else {
                spoil(s.buf + AREA + i * SLOT + GUARD, SLOT - 2 * GUARD);
                post_recv(NQP, i, &e, 1);
            }
        }
        barrier('R');
        for (uint32_t i = 0; i < NQP; i++) {
            int q = NQP + (int)(rnd(&x) % NSRQ);
            struct ibv_sge e = sge_at(i * SLOT, len[i]);
            struct ibv_send_wr wr = {.wr_id = i,
                                     .sg_list = &e,
                                     .num_sge = 1,
                                     .opcode = IBV_WR_SEND_WITH_IMM,
                                     .send_flags = IBV_SEND_SIGNALED,
                                     .imm_data = htonl(i)};

            if (actor) {
                post_send(q, &wr);
            }
        }
        for (uint32_t i = 0; i < NQP; i++) {
            struct ibv_wc wc = wait_wc(actor ? s.scq : s.rcq, "srq");
            uint32_t which = ntohl(wc.imm_data), q = 0;
            const uint8_t *at = s.buf + AREA + wc.wr_id * SLOT + GUARD;

            if (actor) {
                continue;
            }
            while (q < NSRQ && s.me.qpn[NQP + q] != wc.qp_num) {
                q++;
            }
            DIE_IF(which >= NQP || wc.wr_id >= NQP || q == NSRQ,
                   "srq: message %u in receive %llu of QP %u", which,
                   (unsigned long long)wc.wr_id, wc.qp_num);
            check(which >= last[q], "srq: message %u of QP %u after %u", which, q,
                  last[q]);
            last[q] = which;
            check(wc.byte_len == len[which], "srq: byte_len %u, not %u", wc.byte_len,
                  len[which]);
            check(differs(at, len[which], seed + which) == len[which] && at[-1] == 0xa5 &&
                      at[len[which]] == 0xa5,
                  "srq: %u bytes: they or those around differ", len[which]);
        }
        barrier('D');
    }
}

/* ---- scatter and gather ---- */

/* Cut @len into nsge pieces at @base, each in a stripe of its own. */
static void cut(struct ibv_sge *sge, uint64_t base, uint32_t len, uint32_t *x)
{
    uint32_t stripe = AREA / MAX_SGE / 2, left = len;

    for (uint32_t i = 0; i < s.nsge; i++) {
        uint32_t part = rnd(x) % (stripe / 2);

        part = i + 1 == s.nsge || part > left ? left : part;
        sge[i] = sge_at(base + (uint64_t)i * 2 * stripe + rnd(x) % 4096, part);
        left -= part;
    }
}

static void gather(const struct ibv_sge *sge, uint8_t *flat, bool store)
{
    for (uint32_t i = 0; i < s.nsge; i++) {
        uint8_t *p = (uint8_t *)(uintptr_t)sge[i].addr;

        if (store) {
            memcpy(p, flat, sge[i].length);
        } else {
            memcpy(flat, p, sge[i].length);
        }
        flat += sge[i].length;
    }
}

static void part_sge(bool actor, uint32_t round)
{
    uint8_t *flat = malloc(AREA);
    uint32_t x = 77 + round + (actor == !s.server) * 1000;

    for (uint32_t i = 0; i < 200 && flat; i++) {
        struct ibv_sge src[MAX_SGE], dst[MAX_SGE];
        uint32_t len = rnd(&x) % (i & 1 ? 60000 : 300), at;

        cut(src, 0, len, &x);
        cut(dst, AREA, len, &x);
        if (actor) {
            fill(flat, len, i);
            gather(src, flat, true);
        } else {
            memset(s.buf + AREA, 0, AREA);
            post_recv(3, i, dst, (int)s.nsge);
        }
        barrier('R');
        if (actor) {
            struct ibv_send_wr wr = {.wr_id = i,
                                     .sg_list = src,
                                     .num_sge = (int)s.nsge,
                                     .opcode = IBV_WR_SEND,
                                     .send_flags = IBV_SEND_SIGNALED};

            post_send(3, &wr);
            wait_wc(s.scq, "sge");
        } else {
            struct ibv_wc wc = wait_wc(s.rcq, "sge");

            check(wc.byte_len == len, "sge: byte_len %u, not %u", wc.byte_len, len);
            gather(dst, flat, false);
            at = differs(flat, len, i);
            check(at == len, "sge: %u bytes in %u pieces: byte %u differs", len, s.nsge,
                  at);
        }
        barrier('D');
    }
    free(flat);
}

/* ---- atomics ---- */

static uint64_t atomic(enum ibv_wr_opcode opcode, uint64_t a, uint64_t swap)
{
    struct ibv_sge e = sge_at(64, 8);
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &e,
                             .num_sge = 1,
                             .opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED};
    uint64_t old;

    wr.wr.atomic.remote_addr = s.other.addr + AREA + 256;
    wr.wr.atomic.rkey = s.other.rkey;
    wr.wr.atomic.compare_add = a;
    wr.wr.atomic.swap = swap;
    post_send(5, &wr);
    wait_wc(s.scq, "atomic");
    memcpy(&old, s.buf + 64, 8);
    return old;
}

static void part_atomic(bool actor)
{
    volatile uint64_t *word = (volatile uint64_t *)(void *)(s.buf + AREA + 256);
    uint64_t sum = 5;

    if (!actor) {
        *word = 5;
    }
    barrier('R');
    if (actor) {
        for (uint64_t i = 1; i <= 200; i++) {
            uint64_t old = atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, i * 0x100000001ull, 0);

            check(old == sum, "fetch-and-add: %llx, not %llx", (unsigned long long)old,
                  (unsigned long long)sum);
            sum += i * 0x100000001ull;
        }
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, sum + 1, 9) == sum, "compare, unequal");
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, sum, 4711) == sum, "compare, equal");
        check(atomic(IBV_WR_ATOMIC_CMP_AND_SWP, 4711, 4712) == 4711, "swapped value");
    }
    barrier('D');
    if (!actor) {
        check(*word == 4712, "atomics left %llx", (unsigned long long)*word);
    }
    barrier('D');
}

/* ---- everything at once ---- */

/* Step @k of QP @q, from the end with direction @dir. */
static uint32_t both_seed(int dir, int q, uint32_t k)
{
    return 7000000u + ((k * NQP + (uint32_t)q) * 2 + (uint32_t)dir);
}

static const struct op *both_op(int q, uint32_t k)
{
    return &ops[(k + (uint32_t)q) % NOPS];
}

static void both_post(int dir, uint32_t k)
{
    for (int q = 0; q < NQP; q++) {
        uint32_t seed = both_seed(dir, q, k);
        const struct op *o = both_op(q, k);
        /* A READ takes what the other end sends in a step of another operation. */
        uint32_t data = o->read ? both_seed(!dir, q, k) : seed, x = data;
        uint32_t len = rnd(&x) % (SLOT - 4 * GUARD);
        uint64_t off = (uint64_t)q * SLOT + GUARD + data % 61;
        struct ibv_sge e = sge_at(o->read ? AREA + off : off, len);
        struct ibv_send_wr wr = {.wr_id = seed,
                                 .sg_list = &e,
                                 .num_sge = 1,
                                 .opcode = o->opcode,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .imm_data = htonl(seed)};

        wr.wr.rdma.remote_addr = s.other.addr + (o->read ? off : AREA + off);
        wr.wr.rdma.rkey = s.other.rkey;
        post_send(q, &wr);
    }
}

/* Fill what we send, spoil what arrives, post receives, for step @k. */
static void both_prepare(int dir, uint32_t k)
{
    for (int q = 0; q < NQP; q++) {
        uint32_t seed = both_seed(dir, q, k), in = both_seed(!dir, q, k), x = seed,
                 y = in;
        const struct op *o = both_op(q, k);
        uint32_t len = rnd(&y) % (SLOT - 4 * GUARD);
        uint64_t off = (uint64_t)q * SLOT + GUARD + in % 61;
        struct ibv_sge e = sge_at(AREA + off, len);

        fill(s.buf + (uint64_t)q * SLOT + GUARD + seed % 61, rnd(&x) % (SLOT - 4 * GUARD),
             seed);
        spoil(s.buf + AREA + off, len);
        if (o->recv) {
            post_recv(q, in, &e, o->rdma ? 0 : 1);
        }
    }
}

static void both_collect(int dir, uint32_t k)
{
    int recvs = 0;

    for (int q = 0; q < NQP; q++) {
        struct ibv_wc wc = wait_wc(s.scq, "both");

        check(wc.wr_id >= both_seed(dir, 0, k) && wc.wr_id <= both_seed(dir, NQP - 1, k),
              "both: wr_id of a send");
        recvs += both_op(q, k)->recv;
    }
    while (recvs--) {
        struct ibv_wc wc = wait_wc(s.rcq, "both");
        uint32_t in = (uint32_t)wc.wr_id, x = in;
        const struct op *o = both_op((int)((in - 7000000u) / 2 % NQP), k);

        check_recv_wc(o, &wc, rnd(&x) % (SLOT - 4 * GUARD), in);
    }
}

static void part_both(uint32_t round)
{
    int dir = s.server ? 1 : 0;

    for (uint32_t k = round * 100; k < round * 100 + 60; k++) {
        both_prepare(dir, k);
        barrier('R');
        both_post(dir, k);
        both_collect(dir, k);
        barrier('D'); /* plain WRITEs and READs of the peer are complete as well */
        for (int q = 0; q < NQP; q++) {
            uint32_t in = both_seed(!dir, q, k), x = in;

            verify(both_op(q, k)->name,
                   s.buf + AREA + (uint64_t)q * SLOT + GUARD + in % 61,
                   rnd(&x) % (SLOT - 4 * GUARD), in);
        }
    }
}

/* ---- what goes wrong on purpose ---- */

#define LATES   4
#define LATE_US 20000

static void part_late(bool actor)
{
    for (uint32_t i = 0; i < LATES; i++) {
        uint32_t seed = 11000000u + i, len = 1 + 3000 * i;
        struct ibv_sge e = sge_at(actor ? GUARD : AREA + GUARD, len);
        struct ibv_send_wr wr = {.wr_id = seed,
                                 .sg_list = &e,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED};

        if (actor) {
            fill(s.buf + GUARD, len, seed);
            post_send((int)i, &wr);
            barrier('L');
            wait_wc(s.scq, "late");
        } else {
            struct ibv_wc wc;

            spoil(s.buf + AREA + GUARD, len);
            barrier('L');
            usleep(LATE_US);
            post_recv((int)i, seed, &e, 1);
            wc = wait_wc(s.rcq, "late");
            check(wc.byte_len == len, "late: byte_len %u, not %u", wc.byte_len, len);
            verify("late", s.buf + AREA + GUARD, len, seed);
        }
        barrier('D');
    }
}

/* By a key that is none; the queue pair is of no more use. */
static void part_refused(bool actor)
{
    struct ibv_sge e = sge_at(GUARD, 64);
    struct ibv_send_wr wr = {.sg_list = &e,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED};

    if (actor) {
        struct ibv_wc wc;

        wr.wr.rdma.remote_addr = s.other.addr;
        wr.wr.rdma.rkey = ~s.other.rkey;
        post_send(0, &wr);
        wc = wait_any(s.scq, "refused");
        check(wc.status == IBV_WC_REM_ACCESS_ERR, "refused: %s",
              ibv_wc_status_str(wc.status));
    }
    barrier('D');
}

int main(int argc, char **argv)
{
    unsigned long other[2];
    bool late = false;
    int opt;

    while ((opt = getopt(argc, argv, "d:g:p:n:xrl")) != -1) {
        switch (opt) {
        case 'd':
            s.dev = optarg;
            break;
        case 'g':
            s.gid_index = atoi(optarg);
            break;
        case 'p':
            s.port = atoi(optarg);
            break;
        case 'n':
            s.rounds = atoi(optarg);
            break;
        case 'x':
            s.ex = true;
            break;
        case 'r':
            s.reliable = true;
            break;
        case 'l':
            late = true;
            break;
        default:
            fprintf(stderr, "usage: datacheck -d DEVICE -g GIDINDEX [-p PORT] "
                            "[-n ROUNDS] [-x] [-r] [-l] [SERVER-IP]\n");
            return 2;
        }
    }
    s.server = argv[optind];
    open_device();
    create_objects();
    tcp_open();
    exchange();
    for (uint32_t r = 0; r < (uint32_t)s.rounds; r++) {
        for (int half = 0; half < 2; half++) {
            bool actor = (half == 0) == (s.server != NULL);

            part_sizes(actor, r, 0, NQP, 4, 0);
            part_sge(actor, r);
            part_atomic(actor);
            if (has_qp(NQP)) {
                part_sizes(actor, r, NQP, NSRQ, 1, 0);
                part_srq(actor, r);
            }
            if (has_qp(NQP + NSRQ)) {
                part_sizes(actor, r, NQP + NSRQ, NUC, 1, 1); /* no READ */
            }
            part_inline(actor, r);
            if (has_qp(MW_QP)) {
                part_mw(actor, r);
            }
            if (late) {
                part_late(actor);
            }
        }
        part_both(r);
    }
    if (late) {
        part_refused(s.server);
    }
    /* Either end's errors fail both. */
    sock_write(&s.errors, sizeof(s.errors));
    sock_read(&other[0], sizeof(other[0]));
    printf("parts: rc%s%s%s%s\n", has_qp(NQP) ? " srq" : "",
           has_qp(NQP + NSRQ) ? " uc" : "",
           s.me.max_inline && s.other.max_inline ? " inline" : "",
           has_qp(MW_QP) ? " mw" : "");
    close_all();
    printf("%lu checks, %lu errors\n", s.checks, s.errors + other[0]);
    return s.errors || other[0] ? 1 : 0;
}
