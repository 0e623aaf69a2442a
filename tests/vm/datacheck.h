/* SPDX-License-Identifier: GPL-2.0-or-later */
/* datacheck's state and what its parts share, see datacheck.c. */
#ifndef DATACHECK_H
#define DATACHECK_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "die_if.h"

/* QPs by number: RC with receive queues of their own, RC with one SRQ, UC, RC for
 * memory windows. */
#define NQP     16
#define NSRQ    4
#define NUC     2
#define MW_QP   (NQP + NSRQ + NUC)
#define NQPS    (MW_QP + 1)
#define MAX_SGE 8
#define AREA    (2u << 20) /* each of the two areas of a side's buffer */
#define GUARD   64u

struct peer {
    uint32_t qpn[NQPS]; /* 0: not offered here */
    uint32_t psn[NQPS];
    uint32_t rkey;
    uint32_t max_sge;
    uint32_t max_inline; /* of each QP; 0: none */
    uint64_t addr;
    union ibv_gid gid;
};

struct datacheck {
    const char *dev;
    int gid_index, port, rounds;
    const char *server;
    bool ex;       /* requests go by ibv_wr_*() */
    bool reliable; /* no UC */
    int sock;
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *scq, *rcq;
    struct ibv_mr *mr;
    struct ibv_srq *srq;
    struct ibv_qp *qp[NQPS];
    struct ibv_mw *mw[2]; /* of type 1 and 2, or none at all */
    struct peer me, other;
    uint32_t nsge;
    uint8_t *buf; /* [source area][destination area] */
    unsigned long checks, errors;
};

extern struct datacheck s;

static inline bool is_srq(int qp)
{
    return qp >= NQP && qp < NQP + NSRQ;
}

static inline bool is_uc(int qp)
{
    return qp >= NQP + NSRQ && qp < MW_QP;
}

void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void check(bool ok, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void fill(uint8_t *p, uint32_t len, uint32_t seed);
/* First byte that differs, or @len. */
uint32_t differs(const uint8_t *p, uint32_t len, uint32_t seed);
/* Surround [p, p + len) with guard bytes and spoil it. */
void spoil(uint8_t *p, uint32_t len);
/* The pattern is there and the guard bytes are. */
void verify(const char *what, const uint8_t *p, uint32_t len, uint32_t seed);

void tcp_open(void);
void sock_write(const void *p, size_t len);
void sock_read(void *p, size_t len);
/* Both ends have come here. */
void barrier(char tag);

void open_device(void);
void create_objects(void);
void exchange(void);
void close_all(void);
/* From RESET, or from an error, to RTS; what is left in the CQs is thrown away. */
void qp_connect(int qp);
/* Both ends have this QP. */
bool has_qp(int qp);
struct ibv_sge sge_at(uint64_t off, uint32_t len);
/* To the QP's own queue or to its SRQ. */
void post_recv(int qp, uint64_t id, struct ibv_sge *sge, int n);
void post_send(int qp, struct ibv_send_wr *wr);
/* The next completion, which must come in WAIT_S seconds. */
struct ibv_wc wait_any(struct ibv_cq *cq, const char *what);
/* It must be a success as well. */
struct ibv_wc wait_wc(struct ibv_cq *cq, const char *what);

/* datacheck-mw.c */
void part_mw(bool actor, uint32_t round);

#endif
