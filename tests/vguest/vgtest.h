/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the vguest tests share: a pair of connected virtual guests, data
 * patterns, expected completions, and a pipelined, checksummed traffic engine.
 *
 * Everything here aborts the test on a surprise.
 */
#ifndef VGTEST_H
#define VGTEST_H

#include <inttypes.h>

#include "vguest.h"

/* Memory growth is judged in plain builds; sanitizers judge leaks themselves. */
#ifdef VGT_SANITIZED
#define VGT_PLAIN_BUILD false
#else
#define VGT_PLAIN_BUILD true
#endif

/*
 * Are times judged?  In a plain build with VGUEST_JUDGE=1: nothing runs beside the
 * program then (suite soak-quiet).  What they belong to runs in any case.
 */
bool vgt_judges(void);

#define vgt_assert_shorter(time, limit)            \
    do {                                           \
        if (vgt_judges()) {                        \
            g_assert_cmpfloat((time), <, (limit)); \
        }                                          \
    } while (0)

/* For what must come, however slow the machine: a minute of the kernel's clock. */
#define VGT_WAIT_MS vg_patience(60000)
/* Until it is true, so long at most.  Looks at longer and longer intervals, as to look
 * may be a program (pvrdmactl). */
#define vgt_await(condition)                                              \
    do {                                                                  \
        int64_t until_ = vg_now_ns() + VGT_WAIT_MS * 1000000ll;           \
                                                                          \
        for (gulong us_ = 500; !(condition); us_ = MIN(2 * us_, 16000)) { \
            g_assert_cmpint(vg_now_ns(), <, until_);                      \
            g_usleep(us_);                                                \
        }                                                                 \
    } while (0)
/*
 * How long nothing may come that would at once: so many milliseconds of the kernel's
 * clock, as the daemon computes by that, and more where a sanitizer makes it slow.
 */
#define VGT_QUIET_MS(ms) vg_patience(VGT_PLAIN_BUILD ? (ms) : 2 * (ms))

/*
 * How often to repeat what only some rounds show: @n times, but with sanitizers,
 * which look at what is done and not how often, a tenth of it, and @n times FACTOR
 * with VGUEST_SOAK=FACTOR in the environment (`make soak`).
 */
unsigned vgt_rounds(unsigned n);

/* g_test_init, and a watchdog that ends a program that hangs (@seconds). */
void vgt_init(int *argc, char ***argv, unsigned seconds);

/* Tests that run twice, as /PREFIX/NAME/stock and /PREFIX/NAME/extended. */
enum vgt_style { VGT_STOCK, VGT_EXTENDED };
struct vgt_both {
    const char *name;
    void (*run)(gconstpointer style);
};
void vgt_add_both(const char *prefix, const struct vgt_both *tests, unsigned n);

/* The program's daemon, shared by its tests; stopped by vgt_run. */
extern struct vg_daemon *vgt_daemon;
/* g_test_run, then stop vgt_daemon and judge it: one that resets connections
 * (tests/reset) has done so. */
int vgt_run(void);
/* The last part of it: the daemons have been stopped; @ret is g_test_run()'s, and what
 * main() returns. */
int vgt_judged(int ret);
/* vgt_init, and vgt_daemon serves @n_vms VMs with two workers. */
void vgt_start(int *argc, char ***argv, unsigned seconds, unsigned n_vms);
/* Do connections within a daemon go by streams (VGUEST_PATH): tcp, or rnic? */
bool vgt_by_streams(void);
/* What @vm's channels have carried counts for vgt_run(), which asks for some (VGUEST_PATH
 * rnic), and else sees what daemons say at their end. */
void vgt_note_channels(const char *vm);
/* They do so on purpose: how many streams there are by each way says nothing. */
void vgt_channels_break(void);
/* Are the connections of what runs reset? */
bool vgt_resets(void);

/* One end of a connection with its own PD, CQs, and one MR with all rights. */
struct vgt_side {
    struct vguest *g;
    struct vg_pd *pd;
    struct vg_cq *scq, *rcq;
    struct vg_qp *qp;
    struct vg_mr *mr;
};

struct vgt_pair {
    struct vgt_side s[2];
};

struct vgt_opts {
    struct vg_opts guest[2];
    struct vg_qp_opts qp;
    struct vg_conn conn;
    uint32_t cqe;      /* 0: 256 */
    uint32_t cq_flags; /* as vg_cq_new_flags() takes them */
    uint64_t mr_len;   /* 0: 1 MiB */
    bool unconnected;  /* leave the QPs in RESET */
    bool kernel;       /* objects of the guest's kernel */
    /* Where each side's VM is; NULL: vgt_daemon. */
    struct vg_daemon *daemon[2];
};

/* Those of a test that runs in @style, for both guests. */
struct vgt_opts vgt_opts_of(gconstpointer style);

/* Attach VMs @a and @b and connect them; @a == @b: both sides in one VM. */
void vgt_pair_open(struct vgt_pair *p, unsigned a, unsigned b,
                   const struct vgt_opts *opts);
/* VMs 0 and 1 of a test that runs in @style; the guest of side 0. */
struct vguest *vgt_pair_of(struct vgt_pair *p, gconstpointer style);
void vgt_pair_close(struct vgt_pair *p);
void vgt_side_open(struct vgt_side *s, unsigned vm, const struct vgt_opts *o,
                   unsigned which);
void vgt_side_close(struct vgt_side *s);
/* Reset both QPs, empty their CQs and connect again. */
void vgt_pair_reconnect(struct vgt_pair *p, const struct vg_conn *c);

/* `pvrdmactl vm VERB vmI`, which succeeds. */
void vgt_vm(const struct vg_daemon *d, const char *verb, unsigned i);
/* By an administrator's command; how long all stood still, us. */
int64_t vgt_restart(const struct vg_daemon *d);

/* Fail unless the daemon holds no object of VM @vm but what attach made. */
void vgt_assert_no_objects(const char *vm);

/* `pvrdmactl counters`: one of @group ("datapath", "device", ...) of VM @vm. */
int64_t vgt_counter(const char *vm, const char *group, const char *name);
/* Wait until it is at least @n. */
/* How many addresses it waits for, as others have them. */
unsigned vgt_waiting_gids(const char *vm);
void vgt_await_counter(const char *vm, const char *group, const char *name, int64_t n);

/* What the daemon holds once it has stopped changing for 400 ms; and wait until
 * it holds no more descriptors, guest mappings and threads than that. */
void vgt_usage_settled(struct vg_usage *u);
void vgt_usage_returns(const struct vg_usage *want);

/* The worker that serves VM @vm, which is attached. */
unsigned vgt_worker_of(unsigned vm);
/*
 * Worker @i of vgt_daemon stands still, as in a page fault, until vgt_worker_go() with
 * what is returned; 0: it cannot be, and the test is skipped.  By one thread.
 */
pid_t vgt_worker_stop(unsigned i);
void vgt_worker_go(pid_t tid);

/* Data patterns: byte i depends on @seed and i. */
void vgt_fill(void *buf, size_t len, uint64_t seed);
void vgt_check(const void *buf, size_t len, uint64_t seed);
bool vgt_matches(const void *buf, size_t len, uint64_t seed);

/* The next completion; checks wr_id and status. */
struct pvrdma_cqe vgt_expect(struct vg_cq *cq, uint64_t wr_id,
                             enum pvrdma_wc_status status);
/* This event comes. */
void vgt_expect_event(struct vguest *g, uint32_t type, uint32_t info);
/* No completion for @ms milliseconds. */
void vgt_expect_none(struct vg_cq *cq, int ms);

/* Private memory of vgt_daemon when that does not grow any more; KiB. */
long vgt_settled_kib(void);
/* Is it all by TCP, and by a daemon that loses nothing and is not hindered? */
bool vgt_tcp_undisturbed(void);

/* Short forms for one WR with at most one SGE. */
void vgt_send(struct vgt_side *s, uint64_t wr_id, uint32_t opcode, uint32_t flags,
              uint64_t off, uint32_t len, const struct vgt_side *peer,
              uint64_t remote_off);
/* vgt_send(), signaled, and its completion, which says SUCCESS. */
void vgt_complete(struct vgt_side *s, uint64_t wr_id, uint32_t opcode, uint64_t off,
                  uint32_t len, const struct vgt_side *peer, uint64_t remote_off);
/* Adds 1 to the first 8 bytes of @peer's memory; what they were comes to @off. */
void vgt_count(struct vgt_side *s, uint64_t wr_id, uint64_t off,
               const struct vgt_side *peer);
void vgt_recv(struct vgt_side *s, uint64_t wr_id, uint64_t off, uint32_t len);
#define VGT_SIG PVRDMA_SEND_SIGNALED
/* 8 bytes from side 0 to side 1 of a connected pair, and the completion. */
void vgt_write_once(struct vgt_pair *p, uint64_t wr_id);
/* The same without the completion, by another QP of side 0; false: its queue is full. */
bool vgt_post_write(const struct vgt_pair *p, struct vg_qp *qp, uint64_t wr_id);

/* ---- traffic ---- */

#define VGT_MAX_QPS 64

/* One direction of one QP. */
struct vgt_lane {
    struct vg_qp *tx, *rx;
    uint64_t src, dst;          /* offsets in the sides' MRs */
    uint64_t next, sent, recvd; /* operations posted, completed, checked */
    uint64_t count;             /* what the counter was before its last one */
};

struct vgt_traffic {
    struct vgt_side s[2]; /* qp is not used */
    unsigned nqp, depth;
    uint32_t slot; /* bytes per operation at most */
    struct vg_qp *qp[2][VGT_MAX_QPS];
    struct vgt_lane lane[2][VGT_MAX_QPS];
    GRand *rand;
    GArray *latency; /* of double, us; of operations with depth 1 */
    uint64_t ops, bytes;
    int64_t still_ns; /* the longest time in which nothing came */
    struct {
        uint64_t n, sum; /* those that were added, and what they returned */
    } counted[2];
    int64_t *posted_at;
};

/*
 * @nqp QPs between VMs @a and @b, both directions at once, @depth operations in
 * flight each: SEND, SEND_IMM, WRITE, WRITE_IMM, READ, FAA and CAS with random sizes up
 * to @slot, every byte checked on arrival, and FAA of one counter for all QPs: it is what
 * the successes are, and each returned another number.
 */
void vgt_traffic_open(struct vgt_traffic *t, unsigned a, unsigned b, unsigned nqp,
                      unsigned depth, uint32_t slot, const struct vgt_opts *opts);
/* Run until each lane has done @ops more operations. */
void vgt_traffic_run(struct vgt_traffic *t, uint64_t ops);
/* Until each has begun so many more: the last of them are under way on return. */
void vgt_traffic_push(struct vgt_traffic *t, uint64_t ops);
/* Operations that were posted, and whose completion was not seen yet. */
uint64_t vgt_traffic_under_way(const struct vgt_traffic *t);
void vgt_traffic_close(struct vgt_traffic *t);
/* Wait until the daemon's log, which a thread of its own writes, has these words. */
void vgt_wait_logged(const char *words);
/* How much there is; and the same behind so much. */
size_t vgt_log_length(void);
void vgt_wait_logged_after(size_t from, const char *words);

/* Percentile (0..100) of the latencies since the last clear, us. */
double vgt_percentile(GArray *values, double percent);

#endif /* VGTEST_H */
