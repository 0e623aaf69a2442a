/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VMs that wait for an address that another one has: it moves from guest to guest, and
 * the new one claims it before the former lets go (VRRP), or the former is just ending.
 *
 * They wait in the order of their coming.  Whenever something has become of the address
 * the main loop's next turn gives it to the first who may have it by the rules of any
 * bind; so it has one holder at any time, and to wait gives no right but that.  While
 * other hosts are asked who has it (as they are when one that had it lets go, and when
 * this daemon has just begun), or cannot be asked yet, it is given to nobody.
 *
 * Other hosts do not know of who waits, so each has its own order.  Of two that have
 * such VMs each asks the other before it gives the address to one.  So the later of them
 * hears of the other's claim, or that the other asks; then the one whose name comes first
 * has it, and the other leaves it to that for a while.
 *
 * A VM waits once at most for each entry of its GID table, which bounds all this.
 *
 * Main thread.
 */
#include "directory/entry.h"

#include <errno.h>
#include <glib.h>

#include "objects/vm.h"

struct waiter {
    struct vm *vm;
    unsigned index;
    uint64_t since;
    struct waiting *at;
    void (*granted)(struct vm *vm, unsigned index);
    TAILQ_ENTRY(waiter) link;
};

/* Those who wait for an address: one at least. */
struct waiting {
    struct entry *entry;
    TAILQ_HEAD(waiters, waiter) all; /* in their order; each is one of the entry's refs */
    bool due;                        /* it is to be looked who may have it */
    uint64_t leave_until;            /* ns: until then it is left to another host; 0: it
                                        was not yet, since somebody had it */
    TAILQ_ENTRY(waiting) of_due;
};

/*
 * So long it is left to another host, once each time that it is let go: who asks may only
 * have something to send there.
 */
#define LEAVE_NS 500000000u
#define LATER_MS 20u
/* Addresses that are looked at in one turn of the main loop. */
#define DUE_TURN 64u

static TAILQ_HEAD(, waiting) due = TAILQ_HEAD_INITIALIZER(due);
static unsigned n_due, n_waiting;
static unsigned due_left; /* so many of @due, from the first, are to be looked at now */
static guint due_source, later_source;

static void add_due(struct waiting *at)
{
    if (!at->due) {
        TAILQ_INSERT_TAIL(&due, at, of_due);
        n_due++;
        at->due = true;
    }
}

static void not_due(struct waiting *at)
{
    if (at->due) {
        TAILQ_REMOVE(&due, at, of_due);
        n_due--;
        at->due = false;
    }
}

void directory_wait_over(struct waiter *w)
{
    struct waiting *at = w->at;
    struct entry *e = at->entry;

    TAILQ_REMOVE(&at->all, w, link);
    n_waiting--;
    g_free(w);
    if (TAILQ_EMPTY(&at->all)) {
        not_due(at);
        e->waiting = NULL;
        g_free(at);
    }
    route_put(&e->route);
}

static gboolean on_due(gpointer unused);

static void look_soon(void)
{
    due_left = n_due;
    if (!due_source) {
        due_source = g_idle_add_full(G_PRIORITY_DEFAULT, on_due, NULL, NULL);
    }
}

static gboolean on_later(gpointer unused)
{
    later_source = 0;
    look_soon();
    return G_SOURCE_REMOVE;
}

/* No event says when. */
static void look_later(struct waiting *at)
{
    add_due(at);
    if (!later_source) {
        later_source = g_timeout_add(LATER_MS, on_later, NULL);
    }
}

/* To the first who may have it.  A VM whose addresses have moved has gone on elsewhere.
 */
static struct waiter *next_granted(const struct entry *e)
{
    struct waiter *w = NULL;

    if (e->waiting) {
        TAILQ_FOREACH(w, &e->waiting->all, link)
        {
            if (directory_may_run(w->vm) && entry_may_bind(e, w->vm)) {
                break;
            }
        }
    }
    return w;
}

/* ... and more than once if that has several entries for it. */
static void grant(struct entry *e)
{
    struct waiter *w;

    while ((w = next_granted(e))) {
        void (*granted)(struct vm * vm, unsigned index) = w->granted;
        struct vm *vm = w->vm;
        unsigned index = w->index;

        entry_bind_one(e, vm);
        directory_wait_over(w);
        granted(vm, index);
    }
}

/* If it is asked for, the answer is told, or that there is none. */
static void look(struct waiting *at)
{
    struct entry *e = at->entry;

    not_due(at);
    if (remote_is_asked(e)) {
        if (e->ask_later) {
            look_later(at);
        }
    } else if (at->leave_until > now_ns()) {
        look_later(at); /* it may become another host's */
    } else {
        e->refs++;
        grant(e);
        route_put(&e->route);
    }
}

static gboolean on_due(gpointer unused)
{
    struct waiting *at;

    for (unsigned n = DUE_TURN; n > 0 && due_left && (at = TAILQ_FIRST(&due)); n--) {
        due_left--;
        look(at);
    }
    if (due_left && n_due) {
        return G_SOURCE_CONTINUE;
    }
    due_source = 0;
    return G_SOURCE_REMOVE;
}

void directory_settle(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(network, gid);

    if (e && e->waiting && e->waiting->due) {
        look(e->waiting);
    }
}

static bool somebody_has(const struct entry *e)
{
    struct claim c;

    return moves_claim(e, &c);
}

void waiting_look(struct entry *e)
{
    if (e->waiting) {
        if (somebody_has(e)) {
            e->waiting->leave_until = 0;
        }
        add_due(e->waiting);
        look_soon();
    }
}

void directory_leave(const char *network, const struct pvrdma_gid *gid)
{
    struct entry *e = entry_find(network, gid);

    /* While somebody has it, that may be over here before it is there. */
    if (e && e->waiting && (!e->waiting->leave_until || somebody_has(e))) {
        e->waiting->leave_until = now_ns() + LEAVE_NS;
    }
}

int directory_bind_in_turn(struct vm *vm, const struct pvrdma_gid *gid)
{
    const struct entry *e = entry_find(vm->cfg->network, gid);

    if (e && atomic_load(&e->route.vm) != vm && e->waiting) {
        return EADDRINUSE;
    }
    return directory_bind(vm, gid);
}

struct waiter *directory_wait(struct vm *vm, unsigned index, const struct pvrdma_gid *gid,
                              uint64_t waited,
                              void (*granted)(struct vm *vm, unsigned index))
{
    struct entry *e = (struct entry *)(void *)route_get(vm->cfg->network, gid);
    struct waiter *w = g_new0(struct waiter, 1), *before;
    uint64_t now = now_ns(), since = now - MIN(now, waited);

    if (!e->waiting) {
        e->waiting = g_new0(struct waiting, 1);
        e->waiting->entry = e;
        TAILQ_INIT(&e->waiting->all);
    }
    *w = (struct waiter){vm, index, since, e->waiting, granted};
    TAILQ_FOREACH_REVERSE(before, &e->waiting->all, waiters, link)
    {
        if (before->since <= since) {
            break;
        }
    }
    if (before) {
        TAILQ_INSERT_AFTER(&e->waiting->all, before, w, link);
    } else {
        TAILQ_INSERT_HEAD(&e->waiting->all, w, link);
    }
    n_waiting++;
    e->ask_later = true; /* on the account of all that wait: whatever @vm has asked for */
    remote_is_asked(e);
    waiting_look(e);
    return w;
}

uint64_t directory_waited(const struct waiter *w)
{
    return now_ns() - w->since;
}

void directory_holder_text(const char *network, const struct pvrdma_gid *gid,
                           char text[DIRECTORY_HOLDER_LEN])
{
    const struct entry *e = entry_find(network, gid);
    const struct vm *vm = e ? atomic_load(&e->route.vm) : NULL;
    const char *host = e ? remote_name(e) : NULL;

    if (vm) {
        g_snprintf(text, DIRECTORY_HOLDER_LEN, "VM %s", vm->cfg->name);
    } else if (e && e->left_until) {
        g_strlcpy(text, "a VM that has left and may continue elsewhere",
                  DIRECTORY_HOLDER_LEN);
    } else if (e && atomic_load(&e->route.remote)) {
        g_snprintf(text, DIRECTORY_HOLDER_LEN, "a VM of host %s",
                   host ? host : "that has no link");
    } else {
        g_strlcpy(text, "nobody", DIRECTORY_HOLDER_LEN);
    }
}

unsigned waiting_count(void)
{
    return n_waiting;
}

void waiting_fini(void)
{
    if (due_source) {
        g_source_remove(due_source);
        due_source = 0;
    }
    if (later_source) {
        g_source_remove(later_source);
        later_source = 0;
    }
}
