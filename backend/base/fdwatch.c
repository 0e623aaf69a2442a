/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watching descriptors from the main loop, by the thousand.
 *
 * GLib asks poll() about every descriptor in every turn, which for 1,024 VMs took
 * longer than most of what the turn was for.  Here they are in an epoll set, and the
 * set is the one thing that GLib polls.
 *
 * A descriptor is in the set once, whoever and how many watch it; `fds` finds it.
 * Callbacks may add and remove any watch: those of a descriptor are looked up by id,
 * and a descriptor by number, after each call.  A number that was closed and is used
 * again within one turn gets at worst a call with nothing ready, which callbacks with
 * non-blocking descriptors take.
 *
 * One thing leads to another, most of all where both ends of a socket are here: so the
 * set is asked again before GLib has the loop, while that takes no longer than
 * ROUNDS_US.  What was put off (fdwatch_later()) runs between two such rounds, or as an
 * idle source if none is going on.
 *
 * GLib takes the descriptors of a source out of its poll() while that runs, and puts
 * them back, each with a write to its own eventfd; not so if the source says that it may
 * recurse.  This one may: a nested loop finds watches as they are then.
 *
 * Main thread only.  The set exists while something is watched.
 */
#include "fdwatch.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <unistd.h>

/* Ready descriptors taken in a turn; the others' come first in the next. */
#define BATCH 64

/* Rounds in a turn, and when there is no other one, us since it began. */
#define ROUNDS    8u
#define ROUNDS_US 100
/* In a round: one puts off another. */
#define LATER_PASSES 8u

struct watch {
    guint id;
    int fd;
    GIOCondition cond;
    GUnixFDSourceFunc fn;
    gpointer opaque;
};

struct watched {
    GSList *watches; /* of struct watch */
    guint32 events;  /* as the set has them */
};

static int set = -1;
static guint set_source;
static GHashTable *fds, *by_id; /* of struct watched, by descriptor; of struct watch */
static guint last_id;

static struct fdwatch_later *first_later, **last_later = &first_later;
static guint later_idle;
static unsigned rounds; /* of dispatching, one within the other */

static void watched_free(gpointer p)
{
    struct watched *w = p;

    g_slist_free(w->watches);
    g_free(w);
}

/* ---- the set ---- */

static struct watched *find(int fd)
{
    return fds ? g_hash_table_lookup(fds, GINT_TO_POINTER(fd)) : NULL;
}

/* GIOCondition and epoll have poll()'s numbers. */
G_STATIC_ASSERT(G_IO_IN == (int)EPOLLIN && G_IO_OUT == (int)EPOLLOUT &&
                G_IO_ERR == (int)EPOLLERR && G_IO_HUP == (int)EPOLLHUP &&
                POLLRDHUP == (int)EPOLLRDHUP);

static void set_events(int fd, struct watched *w, int op)
{
    struct epoll_event ev = {.data.fd = fd};

    for (GSList *l = w->watches; l; l = l->next) {
        ev.events |= ((struct watch *)l->data)->cond;
    }
    if (op == EPOLL_CTL_MOD && ev.events == w->events) {
        return;
    }
    if (epoll_ctl(set, op, fd, &ev) < 0) {
        g_error("epoll_ctl: %s", g_strerror(errno));
    }
    w->events = ev.events;
}

/* Call those who watch @fd for any of @events. */
static void dispatch_fd(int fd, guint32 events)
{
    g_autoptr(GArray) ids = g_array_new(FALSE, FALSE, sizeof(guint));
    struct watched *w = find(fd);

    for (GSList *l = w ? w->watches : NULL; l; l = l->next) {
        g_array_append_val(ids, ((struct watch *)l->data)->id);
    }
    for (guint i = 0; i < ids->len; i++) {
        guint id = g_array_index(ids, guint, i);
        struct watch *watch =
            by_id ? g_hash_table_lookup(by_id, GUINT_TO_POINTER(id)) : NULL;
        GIOCondition ready;

        if (!watch) {
            continue;
        }
        /* As GLib: errors and hang-ups reach everybody. */
        ready = events & (watch->cond | G_IO_ERR | G_IO_HUP);
        if (ready && watch->fn(fd, ready, watch->opaque) == G_SOURCE_REMOVE) {
            fdwatch_remove(id);
        }
    }
}

/* ---- put off ---- */

static struct fdwatch_later *later_pop(void)
{
    struct fdwatch_later *l = first_later;

    first_later = l->next;
    if (!first_later) {
        last_later = &first_later;
    }
    l->queued = false;
    return l;
}

/* All that is there, and what they put off in turn, until @until (us) or so. */
static void run_later(gint64 until)
{
    if (rounds > 1) {
        return; /* a loop within a callback: the outer one does it */
    }
    for (unsigned pass = 0; first_later && pass < LATER_PASSES; pass++) {
        struct fdwatch_later mark = {.fn = NULL};

        fdwatch_later(&mark);
        for (struct fdwatch_later *l; (l = later_pop()) != &mark;) {
            l->fn();
        }
        if (first_later && g_get_monotonic_time() >= until) {
            break;
        }
    }
}

static gboolean on_later(gpointer unused)
{
    rounds++;
    run_later(g_get_monotonic_time() + ROUNDS_US);
    rounds--;
    if (first_later) {
        return G_SOURCE_CONTINUE;
    }
    later_idle = 0;
    return G_SOURCE_REMOVE;
}

static void see_to_the_rest(void)
{
    if (first_later && !later_idle) {
        later_idle = g_idle_add_full(G_PRIORITY_DEFAULT, on_later, NULL, NULL);
    }
}

void fdwatch_later(struct fdwatch_later *l)
{
    if (l->queued) {
        return;
    }
    l->queued = true;
    l->next = NULL;
    *last_later = l;
    last_later = &l->next;
    if (!rounds) {
        see_to_the_rest();
    }
}

void fdwatch_not_later(struct fdwatch_later *l)
{
    struct fdwatch_later **at = &first_later;

    if (!l->queued) {
        return;
    }
    while (*at != l) {
        at = &(*at)->next;
    }
    *at = l->next;
    if (!*at) {
        last_later = at;
    }
    l->queued = false;
    if (!first_later && later_idle) {
        g_source_remove(later_idle);
        later_idle = 0;
    }
}

/* ---- the turn ---- */

static gboolean on_ready(gint unused_fd, GIOCondition unused, gpointer opaque)
{
    gint64 until = g_get_monotonic_time() + ROUNDS_US;
    struct epoll_event ev[BATCH];
    int n;

    rounds++;
    for (unsigned i = 0; i < ROUNDS && set >= 0; i++) {
        n = epoll_wait(set, ev, BATCH, 0);
        for (int k = 0; k < n; k++) {
            dispatch_fd(ev[k].data.fd, ev[k].events);
        }
        run_later(until);
        if (n <= 0 || g_get_monotonic_time() >= until) {
            break;
        }
    }
    rounds--;
    see_to_the_rest();
    /* If the last watch has gone, so has this source. */
    return G_SOURCE_CONTINUE;
}

bool fdwatch_ready(void)
{
    struct pollfd pfd = {.fd = set, .events = POLLIN};

    return set >= 0 && poll(&pfd, 1, 0) > 0;
}

static void open_set(void)
{
    GSource *source;

    set = epoll_create1(EPOLL_CLOEXEC);
    if (set < 0) {
        g_error("epoll_create1: %s", g_strerror(errno));
    }
    fds = g_hash_table_new_full(NULL, NULL, NULL, watched_free);
    by_id = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    source = g_unix_fd_source_new(set, G_IO_IN);
    g_source_set_callback(source, G_SOURCE_FUNC(on_ready), NULL, NULL);
    g_source_set_can_recurse(source, TRUE);
    set_source = g_source_attach(source, NULL);
    g_source_unref(source);
}

static void close_set(void)
{
    g_source_remove(set_source);
    close(set);
    set = -1;
    g_clear_pointer(&fds, g_hash_table_unref);
    g_clear_pointer(&by_id, g_hash_table_unref);
}

/* ---- watches ---- */

guint fdwatch_add(int fd, GIOCondition cond, GUnixFDSourceFunc fn, gpointer opaque)
{
    struct watch *watch = g_new(struct watch, 1);
    struct watched *w;
    bool new;

    if (set < 0) {
        open_set();
    }
    do {
        last_id++;
    } while (!last_id || g_hash_table_contains(by_id, GUINT_TO_POINTER(last_id)));
    *watch = (struct watch){last_id, fd, cond, fn, opaque};
    g_hash_table_insert(by_id, GUINT_TO_POINTER(last_id), watch);
    w = find(fd);
    new = !w;
    if (new) {
        w = g_new0(struct watched, 1);
        g_hash_table_insert(fds, GINT_TO_POINTER(fd), w);
    }
    w->watches = g_slist_prepend(w->watches, watch);
    set_events(fd, w, new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD);
    return watch->id;
}

void fdwatch_remove(guint id)
{
    struct watch *watch = by_id ? g_hash_table_lookup(by_id, GUINT_TO_POINTER(id)) : NULL;
    struct watched *w;
    int fd;

    if (!watch) {
        return;
    }
    fd = watch->fd;
    w = find(fd);
    w->watches = g_slist_remove(w->watches, watch);
    if (w->watches) {
        set_events(fd, w, EPOLL_CTL_MOD);
    } else {
        epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
        g_hash_table_remove(fds, GINT_TO_POINTER(fd));
    }
    g_hash_table_remove(by_id, GUINT_TO_POINTER(id));
    if (!g_hash_table_size(by_id)) {
        close_set();
    }
}
