/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the parts of the benchmark share: placement of threads, statistics,
 * posting at full speed, and the peers they are compared with.
 */
#ifndef BENCH_H
#define BENCH_H

#include "vgtest.h"

#define SLICE 65536u
#define MIB   (1u << 20)

/* Seconds per figure (-t). */
extern double seconds;
/* The daemon's transport (-p). */
extern const char *path;

static inline double now_us(void)
{
    return vg_now_ns() / 1000.0;
}

static inline bool time_left(int64_t start)
{
    return vg_now_ns() - start < (int64_t)(seconds * 1e9);
}

/*
 * The worker has the first processor and the virtual guests the second; peers
 * are measured where what they stand for runs.
 */
enum { CPU_WORKER, CPU_GUEST };
void pin_self(unsigned cpu);
void unpin_self(void);
/* All but the daemon's main thread run on CPU_WORKER. */
void pin_daemon(const struct vg_daemon *d, unsigned main_cpu);

/* ---- common.c ---- */

struct figures {
    double p50, p99, p999;
};

/* Of doubles; frees @a. */
struct figures percentiles(GArray *a);
double median(double *v, unsigned n);
void print_latency(const char *what, struct figures f);

/* @n consecutive pages from @gpa, in random order if @r; to be freed. */
uint64_t *page_list(uint64_t gpa, uint32_t n, GRand *r);

/* Take what completions are there, at most 64, and check them. */
unsigned reap(struct vg_cq *cq);
/* Wait for one, as a program that wants latency does. */
void spin_cqe(struct vg_cq *cq);

/* Times of @count 8-byte operations, one at a time, post to completion: of a
 * SEND at the receiver's CQ, else at the sender's. */
struct figures op_latency(struct vgt_pair *p, uint32_t opcode, unsigned count);

/* A dirty log of all the memory that @g may ever have. */
void start_log(struct vguest *g);

/* ---- peers.c ---- */

/* There and back between two threads through one cache line, us. */
double cache_line_us(void);

/*
 * GB/s of memcpy of @len bytes between the guests' buffers, walking @span bytes
 * of both, on the worker's processor.
 */
double memcpy_rate(struct vgt_pair *p, uint32_t len, uint64_t span);

/* Which of those below are not installed, so that nothing is said of them; to stdout. */
void say_missing_peers(void);

/* A run of ucx_perftest over shared memory ("posix") or "tcp"; all 0 if it is missing. */
struct ucx {
    bool ok;
    double us, gbs, rate; /* median latency; GB/s; messages a second */
};
struct ucx ucx_run(const char *transport, const char *test, uint32_t bytes,
                   unsigned count);

/*
 * One stream of iperf3 over loopback, @bytes a write, sent by processor @cpu and received
 * by 0; all 0 if it is missing.
 */
struct iperf {
    double gbs, cpu_s; /* GB/s; processor time of both processes for a GB, s */
};
struct iperf iperf_run(uint32_t bytes, unsigned secs, unsigned cpu);

/* ---- throughput.c ---- */

/* GB/s of @len-byte operations, 16 in flight, that walk @span bytes of both buffers. */
double stream_rate(struct vgt_pair *p, uint32_t opcode, uint32_t len, uint64_t span);
/* Messages of 8 bytes a second, on one QP of @type. */
double message_rate(uint8_t type, uint32_t opcode);

/* ---- network.c ---- */

/* Processor time that the daemon has had, s. */
double daemon_cpu(void);

/* ---- parts ---- */

void part_latency(void);
void part_rate(void);
void part_qps(void);
void part_bandwidth(void);
void part_isolation(void);
void part_idle(void);
void part_connections(void);
void part_keys(void);
void part_network_bulk(void);
void part_network_small(void);
void part_network_active(void);
void part_network_connections(void);
void part_regions(void);
void part_dirty_log(void);
void part_migration(void);
void part_restart(void);

#endif /* BENCH_H */
