/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VMs with pairs, over softnic, for tests: of a VM there is what pairs use of it, and its
 * turns are taken by a thread of its own, as a worker would.  Flows carry bytes that
 * count up, both ways.
 */
#ifndef PAIRFIX_H
#define PAIRFIX_H

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/coro.h"
#include "base/log.h"
#include "datapath/datapath.h"
#include "softnic.h"
#include "transport/rnic/pair_internal.h"

#define WAIT_US   (20 * G_USEC_PER_SEC)
#define MAX_FLOWS 64u

struct fixvm;

/* Under the token. */
struct fixflow {
    struct rnic_flow f; /* first */
    struct fixvm *vm;
    struct rnic_pair *pair;
    bool used, opened, refused, lost;
    uint64_t sent, taken, to_send;
};

struct fixvm {
    struct vm vm; /* first */
    struct vm_config cfg;
    struct rnic_vm *rv;
    pthread_t thread;
    bool has_thread;
    _Atomic bool stop, standing; /* its worker is to end; takes no turns, for no reason */
    /* Under the token. */
    struct fixflow flow[MAX_FLOWS];
    unsigned broken;
    uint64_t taken;         /* bytes, of all flows there were */
    struct rnic_pair *last; /* that a flow was opened in */
    bool refuses;
    /* Main thread. */
    bool wants_all; /* each pair that changed */
    unsigned changes;
};

static struct daemon_config *fix_cfg;
/* Of VMs that are made. */
static uint32_t fix_dscp, fix_shares = VM_SHARES_DEFAULT;
static uint64_t fix_rate;
static pthread_t fix_main;

static inline uint64_t fix_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline struct fixvm *fix_vm_of(struct rnic_pair *p)
{
    return (struct fixvm *)(void *)rnic_vm_of(rnic_pair_vm(p));
}

/* ---- flows ---- */

static inline struct fixflow *fix_flow_new(struct fixvm *v, struct rnic_pair *p)
{
    for (unsigned i = 0; i < MAX_FLOWS; i++) {
        if (!v->flow[i].used) {
            v->flow[i] = (struct fixflow){.used = true, .vm = v, .pair = p};
            return &v->flow[i];
        }
    }
    g_error("no flow is left");
}

static inline void fix_flow_end(struct fixflow *x)
{
    rnic_flow_close(&x->f);
    x->used = false;
}

static inline void fix_push(struct fixflow *x)
{
    uint8_t bytes[997];

    while (x->opened && x->sent < x->to_send) {
        size_t n = MIN(sizeof(bytes), x->to_send - x->sent);
        ssize_t done;

        for (size_t i = 0; i < n; i++) {
            bytes[i] = (uint8_t)(x->sent + i);
        }
        done = rnic_flow_send(&x->f, bytes, n);
        if (done < 0) {
            return;
        }
        x->sent += (uint64_t)done;
        if ((size_t)done < n) {
            rnic_flow_want(&x->f, true);
            return;
        }
    }
}

static inline bool fix_take(struct rnic_flow *f, const uint8_t *bytes, size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;

    /* Nothing is executed by the main thread, or for a VM that stands still. */
    g_assert_false(pthread_equal(pthread_self(), fix_main));
    g_assert_false(atomic_load(&x->vm->vm.dp.paused));
    for (size_t i = 0; i < len; i++) {
        g_assert_cmpuint(bytes[i], ==, (uint8_t)(x->taken + i));
    }
    x->taken += len;
    x->vm->taken += len;
    return true;
}

static inline void fix_writable(struct rnic_flow *f)
{
    fix_push((struct fixflow *)(void *)f);
}

static inline void fix_overrun(struct rnic_flow *f)
{
    ((struct fixflow *)(void *)f)->lost = true;
}

static inline bool fix_open(struct rnic_pair *p, uint32_t peer_index,
                            const uint8_t *bytes, size_t len)
{
    struct fixvm *v = fix_vm_of(p);
    struct fixflow *x;

    v->last = p;
    g_assert_nonnull(rnic_pair_channel(p)); /* also if nobody has told that it is up */
    if (v->refuses) {
        rnic_flow_refuse(rnic_pair_channel(p), peer_index, (const uint8_t *)"no", 2);
        return true;
    }
    x = fix_flow_new(v, p);
    g_assert_true(rnic_flow_accept(rnic_pair_channel(p), &x->f, peer_index, bytes, len));
    x->opened = true;
    x->to_send = len ? strtoull((const char *)bytes, NULL, 10) : 0;
    return true;
}

static inline bool fix_opened(struct rnic_flow *f, bool accepted, const uint8_t *bytes,
                              size_t len)
{
    struct fixflow *x = (struct fixflow *)(void *)f;

    if (!accepted) {
        x->refused = true;
        fix_flow_end(x);
        return true;
    }
    x->opened = true;
    fix_push(x);
    return true;
}

static inline void fix_closed(struct rnic_flow *f)
{
    fix_flow_end((struct fixflow *)(void *)f);
}

static inline void fix_broken(struct rnic_pair *p, struct rnic_channel *ch, bool all)
{
    struct fixvm *v = fix_vm_of(p);

    v->broken++;
    for (unsigned i = 0; i < MAX_FLOWS; i++) {
        if (v->flow[i].used && v->flow[i].f.channel == ch) {
            fix_flow_end(&v->flow[i]);
        }
    }
}

static inline void fix_changed(struct rnic_pair *p)
{
    g_assert_true(pthread_equal(pthread_self(), fix_main));
    fix_vm_of(p)->changes++;
    if (fix_vm_of(p)->wants_all && rnic_pair_state(p) == RNIC_PAIR_NONE) {
        rnic_pair_want(rnic_pair_vm(p), rnic_pair_peer(p), rnic_pair_owner(p),
                       fix_vm_of(p)->cfg.network);
    }
}

static const struct rnic_pair_ops fix_ops = {
    fix_take,   fix_writable, fix_overrun, fix_open,
    fix_opened, fix_closed,   fix_broken,  fix_changed,
};

/* ---- VMs ---- */

/* One turn, if the VM may run. */
static inline void fix_turn(struct fixvm *v)
{
    struct vm *vm = &v->vm;

    if (atomic_load(&vm->dp.token_waiters) || pthread_mutex_trylock(&vm->dp.token) != 0) {
        return;
    }
    if (!atomic_load(&vm->dp.paused) && !atomic_load(&v->standing)) {
        uint64_t now = fix_now();

        if (rnic_vm_peek(v->rv) || rnic_vm_due(v->rv) <= now) {
            rnic_vm_look(v->rv, now);
        }
        for (unsigned i = 0; i < MAX_FLOWS; i++) {
            if (v->flow[i].used && !v->flow[i].f.wants) {
                fix_push(&v->flow[i]);
            }
        }
        rnic_vm_flush(v->rv);
    }
    pthread_mutex_unlock(&vm->dp.token);
}

static inline void *fix_worker(void *opaque)
{
    struct fixvm *v = opaque;

    while (!atomic_load(&v->stop)) {
        fix_turn(v);
        g_usleep(50);
    }
    return NULL;
}

static inline struct fixvm *fix_vm(const char *network, uint64_t owner)
{
    static uint64_t serial;
    struct fixvm *v = g_new0(struct fixvm, 1);

    v->cfg.network = g_strdup(network);
    v->cfg.shares = fix_shares;
    v->cfg.nic_rate = fix_rate;
    v->cfg.nic_dscp = fix_dscp;
    v->vm.cfg = &v->cfg;
    v->vm.serial = ++serial;
    v->vm.identity.owner[0] = 7;
    v->vm.identity.owner[1] = owner;
    v->vm.guest.log = (struct log_subject){.name = "vm"};
    pthread_mutex_init(&v->vm.dp.token, NULL);
    g_assert_nonnull((v->rv = rnic_vm_new(&v->vm)));
    pthread_create(&v->thread, NULL, fix_worker, v);
    return v;
}

static inline void fix_set_owner(struct fixvm *v, uint64_t owner)
{
    v->vm.identity.owner[1] = owner;
}

/* It takes no turns any more, and then has no flows and goes. */
static inline void fix_vm_free(struct fixvm *v)
{
    atomic_store(&v->stop, true);
    pthread_join(v->thread, NULL);
    for (unsigned i = 0; i < MAX_FLOWS; i++) {
        if (v->flow[i].used) {
            fix_flow_end(&v->flow[i]);
        }
    }
    rnic_vm_free(v->rv);
    pthread_mutex_destroy(&v->vm.dp.token);
    memset(&v->vm, 0xa5, sizeof(v->vm)); /* nobody looks at it any more */
    g_free(v->cfg.network);
    g_free(v);
}

static inline void fix_lock(struct fixvm *v)
{
    atomic_fetch_add(&v->vm.dp.token_waiters, 1);
    pthread_mutex_lock(&v->vm.dp.token);
}

static inline void fix_unlock(struct fixvm *v)
{
    pthread_mutex_unlock(&v->vm.dp.token);
    atomic_fetch_sub(&v->vm.dp.token_waiters, 1);
}

static inline void fix_pause(struct fixvm *v, bool paused)
{
    fix_lock(v);
    v->vm.pauses = paused;
    atomic_store(&v->vm.dp.paused, paused);
    fix_unlock(v);
}

static inline struct rnic_pair *fix_want(struct fixvm *a, struct fixvm *b)
{
    return rnic_pair_want(a->rv, NULL, b->vm.identity.owner, a->cfg.network);
}

/* ---- the main loop ---- */

static inline void fix_iterate(gint64 end, const char *what)
{
    if (g_get_monotonic_time() > end) {
        g_error("it takes too long: %s", what);
    }
    if (!g_main_context_iteration(NULL, FALSE)) {
        g_usleep(100);
    }
}

#define UNTIL(what)                                          \
    do {                                                     \
        gint64 until_end = g_get_monotonic_time() + WAIT_US; \
                                                             \
        while (!(what)) {                                    \
            fix_iterate(until_end, #what);                   \
        }                                                    \
    } while (0)

/* For some time, in which something must not happen. */
static inline void fix_let_turn(unsigned ms)
{
    gint64 until = g_get_monotonic_time() + (gint64)ms * 1000;

    while (g_get_monotonic_time() < until) {
        fix_iterate(INT64_MAX, "");
    }
}

static inline void fix_expect(struct rnic_pair *p, enum rnic_pair_state state)
{
    UNTIL(rnic_pair_state(p) == state);
}

/* What is made of channels: not what NICs have in any case. */
static inline unsigned fix_ends(void)
{
    struct rnic_cm *cm;
    unsigned n = 0;

    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        n += cm->n_ends;
    }
    return n;
}

static inline unsigned fix_nics_open(void)
{
    struct rnic_cm *cm;
    unsigned n = 0;

    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        n += cm->open && !cm->over;
    }
    return n;
}

/* ---- flows, from outside ---- */

/* A flow from @a's end of @p that sends @there bytes and gets @back. */
static inline struct fixflow *fix_begin(struct fixvm *a, struct rnic_pair *p,
                                        uint64_t there, uint64_t back)
{
    struct rnic_channel *ch;
    struct fixflow *x = NULL;
    char text[24];

    fix_lock(a);
    ch = rnic_pair_channel(p);
    if (ch) {
        x = fix_flow_new(a, p);
        x->to_send = there;
        g_snprintf(text, sizeof(text), "%" PRIu64, back);
        if (!rnic_flow_begin(ch, &x->f, (uint8_t *)text, strlen(text) + 1)) {
            x->used = false;
            x = NULL;
        }
    }
    fix_unlock(a);
    return x;
}

static inline uint64_t fix_taken(struct fixvm *v, const struct fixflow *x)
{
    uint64_t n;

    fix_lock(v);
    n = x->taken;
    fix_unlock(v);
    return n;
}

static inline uint64_t fix_all_taken(struct fixvm *v)
{
    uint64_t n;

    fix_lock(v);
    n = v->taken;
    fix_unlock(v);
    return n;
}

static inline unsigned fix_broken_of(struct fixvm *v)
{
    unsigned n;

    fix_lock(v);
    n = v->broken;
    fix_unlock(v);
    return n;
}

static inline unsigned fix_used(struct fixvm *v)
{
    unsigned n = 0;

    fix_lock(v);
    for (unsigned i = 0; i < MAX_FLOWS; i++) {
        n += v->flow[i].used;
    }
    fix_unlock(v);
    return n;
}

/* Bytes go both ways through @p, of which @b has the other end. */
static inline void fix_traffic(struct fixvm *a, struct rnic_pair *p, struct fixvm *b)
{
    uint64_t had = fix_all_taken(b);
    struct fixflow *x = fix_begin(a, p, 30000, 20000);

    g_assert_nonnull(x);
    UNTIL(fix_taken(a, x) == 20000 && fix_all_taken(b) >= had + 30000);
    fix_lock(a);
    fix_flow_end(x);
    fix_unlock(a);
    UNTIL(!fix_used(a) || a == b);
    UNTIL(!fix_used(b));
}

/* ---- the daemon ---- */

static inline void fix_group(const char *name, const char *device, const char *address,
                             const char *networks)
{
    struct nic_config *nic = config_nic_new(name, NULL);

    g_assert_true(config_nic_set(nic, "device", device, NULL));
    g_assert_true(config_nic_set(nic, "address", address, NULL));
    g_assert_true(!networks || config_nic_set(nic, "networks", networks, NULL));
    g_assert_true(config_nic_finish(fix_cfg, nic, NULL));
    fix_cfg->nics = g_list_append(fix_cfg->nics, nic);
}

static inline void fix_start_as(bool local)
{
    rnic_look_ms = 5;
    rnic_same_ms = 0;
    rnic_close_ms = 60000;
    rnic_late_ms = RNIC_LATE_MS;
    rnic_make_ms = 20000;
    rnic_token_ms = 20000;
    rnic_idle_ms = RNIC_IDLE_MS;
    rnic_linger_ms = RNIC_LINGER_MS;
    rnic_honest_ms = RNIC_HONEST_MS;
    rnic_vm_channels = RNIC_VM_CHANNELS;
    rnic_pair_rest_ms = RNIC_PAIR_REST_MS;
    fix_main = pthread_self();
    fix_cfg = config_new();
    rnic_pair_set_ops(&fix_ops);
    rnic_pairs_start(fix_cfg, local);
}

static inline void fix_start(void)
{
    fix_start_as(true);
}

static inline void fix_nics(void)
{
    unsigned n = g_list_length(fix_cfg->nics);

    rnic_nics_start(fix_cfg);
    UNTIL(fix_nics_open() == n);
}

/* Nothing is left. */
static inline void fix_stop(void)
{
    softnic_do("clear");
    rnic_pairs_stop();
    rnic_nics_stop();
    g_assert_true(TAILQ_EMPTY(&rnic_cms));
    g_assert_cmpint(softnic_count("objects", NULL), ==, 0);
    config_free(fix_cfg);
}

#endif /* PAIRFIX_H */
