/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the parts of bench-tenancy share.
 */
#ifndef TENANCY_H
#define TENANCY_H

#include "bench.h"
#include "flood.h"

/* Who is who; VMs from VM_IDLE on are the idle ones. */
enum { VM_VICTIM, VM_VICTIM_PEER, VM_AGGRESSOR, VM_AGGRESSOR_PEER, VM_IDLE };

/* What a victim saw, us. */
struct tail {
    double p50, p99, p999, max;
    unsigned n;
};

struct tail tail_of(GArray *us); /* of doubles; frees @us */

/*
 * A row of a table: something that one VM (pair) does to the others.  Only one is
 * open at a time, so each keeps what it needs in static variables.
 */
struct aggressor {
    const char *name, *what;
    bool only_long;
    unsigned idle_vms;               /* VMs to declare besides the four */
    const struct flood_shape *shape; /* a plain flood, or NULL */
    bool loopback;                   /* the flood's VM sends to itself */
    bool idle;                       /* does nothing, so the aim is to cost nothing */
    bool apart;                      /* see tenancy-commands.c */
    unsigned pause_us;               /* that the victim makes between operations */
    void (*open)(const struct aggressor *a);
    void (*close)(void);
    /* In the victim's thread, between its operations, at most every @tick_us; @part:
     * of the window that has gone. */
    void (*tick)(double part);
    unsigned tick_us;
    /* In a thread of its own until tenancy_stop; may block. */
    void (*run)(void);
};

extern volatile gint tenancy_stop;
extern bool tenancy_long;
/* Memory of the VM that exits. */
#define TENANCY_MAX_GIB 64u
extern unsigned tenancy_exit_gib;
extern struct flood tenancy_flood; /* the open aggressor's, if it has one */

static inline bool go_on(void)
{
    return !g_atomic_int_get(&tenancy_stop);
}

/* Open with its flood, if it has one; and close. */
void aggressor_open(const struct aggressor *a);
void aggressor_close(const struct aggressor *a);

/* What the aggressor's VMs were charged for and carried. */
struct charge {
    int64_t at, worker_ns, messages, bytes; /* -1: the daemon does not tell */
};
void charge_now(struct charge *c);
/* "62 % of a worker, 1.2 M/s, 3.4 GB/s" */
char *charge_text(const struct charge *from, const struct charge *to);

/* A daemon with @idle_vms besides the four, threads placed. */
void tenancy_daemon(unsigned idle_vms, const char *const *keys);

void part_data(const char *const *names, unsigned n_names, uint32_t opcode);
void part_commands(const char *const *names, unsigned n_names);
void part_shares(void);
/* Was the row asked for, by its name, its part's, or by nobody? */
bool row_wanted(const struct aggressor *a, const char *part, const char *const *names,
                unsigned n_names);
void list_rows(const char *part, const struct aggressor *a, unsigned n);
void data_list(void);
void commands_list(void);

#endif /* TENANCY_H */
