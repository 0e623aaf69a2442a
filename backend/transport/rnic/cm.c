/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The connection manager's part of each NIC that is up: a listener at the NIC's address,
 * and all events of it and of the channels' ids, which share one event channel.
 *
 * A struct rnic_cm lives as long as its coroutine, live(): from when the NIC is seen up
 * until it is down, absent or closed, and everything that was made on it is taken apart.
 * nic.c waits for that before it closes the device.  A NIC that comes back has another.
 *
 * All calls run on the NIC's lanes: librdmacm asks the kernel in each of them, and makes
 * queue pairs ready when an event is taken.  An event is acknowledged only when the main
 * thread has looked at it: until then what it is about cannot be destroyed, so the id,
 * and the end that is its context, are there.
 *
 * librdmacm has a context of its own of each device, which it keeps open when nothing
 * uses it any more.  Drivers that cannot be parted from a device that is in use (rxe,
 * siw) wait for that to be closed when the device is removed, so its descriptors are
 * closed here, under the library: /dev/null takes their place.  The NIC holds that
 * context from its first listener on until its device is closed, since there may be no
 * listener when that is found to be gone: the NIC is down, or the manager has told of it
 * first.
 *
 * A request of whoever connects is believed if it shows a token that the link has agreed
 * on (end.c).  Others wait until all that has come is taken, so that they do not delay
 * what is ours, and are refused one after the other.
 *
 * Threads: the main thread, and the jobs.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "base/log.h"
#include "transport/rnic/pair_internal.h"

#define BACKLOG 128
/* Ends that are taken apart at once: each has a coroutine, with a stack. */
#define AT_ONCE 1024
/* Events that could not be taken for want of memory are tried again. */
#define AGAIN_MS 10u

struct rnic_cms rnic_cms = TAILQ_HEAD_INITIALIZER(rnic_cms);

/* ---- coroutines ---- */

struct start {
    void (*fn)(void *opaque);
    void *opaque;
};

static gboolean on_start(gpointer opaque)
{
    struct start s = *(struct start *)opaque;

    g_free(opaque);
    coro_run(s.fn, s.opaque);
    return G_SOURCE_REMOVE;
}

/* Whoever asks may be in one, and it is not to wait. */
void rnic_cm_begin(void (*fn)(void *opaque), void *opaque)
{
    struct start *s = g_new(struct start, 1);

    *s = (struct start){fn, opaque};
    g_idle_add_full(G_PRIORITY_DEFAULT, on_start, s, NULL);
}

/* ---- jobs ---- */

/* A call stands in the kernel, or so many are to be made that it comes to the same. */
static bool is_late(const struct rnic_cm *cm)
{
    const struct rnic_wait *first = TAILQ_FIRST(&cm->waits);

    return first && g_get_monotonic_time() - first->since > (gint64)rnic_late_ms * 1000;
}

int rnic_cm_run(struct rnic_cm *cm, enum rnic_lane lane, uint64_t vm,
                void (*fn)(void *arg), struct rnic_job *j, bool *mine)
{
    struct rnic_wait wait = {.since = g_get_monotonic_time()};
    bool was_late;
    int err;

    TAILQ_INSERT_TAIL(&cm->waits, &wait, link);
    err = cm->lost ? -ENODEV : rnic_control_run(cm->control, lane, vm, fn, j);
    while (err == -EBUSY && lane == RNIC_BREAK && !cm->lost) {
        coro_sleep(1); /* what is to be taken apart has to be */
        err = rnic_control_run(cm->control, lane, vm, fn, j);
    }
    cm->n_taken_apart += lane == RNIC_BREAK;
    was_late = is_late(cm);
    TAILQ_REMOVE(&cm->waits, &wait, link);
    if (was_late && !is_late(cm)) {
        rnic_pairs_nics_changed(); /* it serves again */
    }
    *mine = err != -EINPROGRESS;
    if (err == -ENODEV || err == -EINPROGRESS) {
        cm->lost = cm->over = true;
        rnic_cm_kick(cm);
    }
    return err ? -err : j->err;
}

void rnic_cm_sockaddr(const struct pvrdma_gid *address, uint16_t port,
                      struct sockaddr_storage *out)
{
    static const uint8_t mapped[12] = {[10] = 0xff, 0xff};
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)out;

    memset(out, 0, sizeof(*out));
    if (memcmp(address->raw, mapped, sizeof(mapped)) == 0) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        memcpy(&v4->sin_addr, address->raw + 12, 4);
    } else {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        memcpy(&v6->sin6_addr, address->raw, 16);
    }
}

static int fail(struct rnic_job *j, int result)
{
    j->err = !result ? 0 : errno ? errno : EIO;
    return j->err;
}

static void close_listener(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    if (j->id) {
        rnic_verbs->cm_destroy_id(j->id);
    }
    if (j->events) {
        rnic_verbs->cm_destroy_event_channel(j->events);
    }
}

/*
 * The library looks what devices there are, and forgets those that have gone.  @name: it
 * is to keep the context of this one until what is returned is freed by
 * cm_free_devices().  NULL: there is none, or @name is.
 */
static struct ibv_context **sync_devices(const char *name)
{
    int n;
    struct ibv_context **list = rnic_verbs->cm_get_devices(&n), **held = NULL;

    for (int i = 0; name && list && i < n && !held; i++) {
        if (strcmp(rnic_verbs->get_device_name(list[i]->device), name) == 0) {
            held = g_new0(struct ibv_context *, 2); /* as the library's: by malloc() */
            held[0] = list[i];
            list[i] = list[n - 1];
            list[n - 1] = NULL;
        }
    }
    if (list) {
        rnic_verbs->cm_free_devices(list);
    }
    return held;
}

static void open_listener(void *arg)
{
    struct rnic_job *j = arg;
    int flags;

    rnic_control_assert();
    j->held = sync_devices(*j->device ? j->device : NULL);
    errno = 0;
    j->events = rnic_verbs->cm_create_event_channel();
    if (!j->events) {
        fail(j, -1);
        return;
    }
    flags = fcntl(j->events->fd, F_GETFL);
    if (!fail(j, fcntl(j->events->fd, F_SETFL, flags | O_NONBLOCK)) &&
        !fail(j, rnic_verbs->cm_create_id(j->events, &j->id, NULL, RDMA_PS_TCP)) &&
        !fail(j, rnic_verbs->cm_bind_addr(j->id, (struct sockaddr *)&j->src)) &&
        !fail(j, rnic_verbs->cm_listen(j->id, BACKLOG))) {
        j->ctx = j->id->verbs;
        j->port = ntohs(rdma_get_src_port(j->id));
        j->err = j->ctx && j->port ? 0 : EADDRNOTAVAIL;
    }
    if (j->err) {
        close_listener(j);
    }
}

/* Nothing of ours is on the device; n: it has gone. */
static void let_go(void *arg)
{
    struct rnic_job *j = arg;
    int null = j->n ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;

    rnic_control_assert();
    if (null >= 0) {
        dup3(null, j->held[0]->cmd_fd, O_CLOEXEC);
        dup3(null, j->held[0]->async_fd, O_CLOEXEC);
        close(null);
    }
    rnic_verbs->cm_free_devices(j->held);
    if (j->n) {
        sync_devices(NULL);
    }
}

static void take_event(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    pthread_mutex_lock(j->qps);
    errno = 0;
    fail(j, rnic_verbs->cm_get_event(j->events, &j->event));
    pthread_mutex_unlock(j->qps);
}

/* Whose request it was is not waited for. */
static void reject(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    rnic_verbs->cm_reject(j->id, NULL, 0);
    rnic_verbs->cm_destroy_id(j->id);
}

/* ---- events ---- */

/* One that nobody has asked for. */
static bool is_stranger(struct rnic_cm *cm, const struct rdma_cm_event *event)
{
    uint64_t token[2];

    return cm->over ||
           !rnic_end_token(event->param.conn.private_data,
                           event->param.conn.private_data_len, token) ||
           !rnic_end_expected(cm, token, event->id);
}

static void got_event(struct rnic_cm *cm, struct rdma_cm_event *event)
{
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
        if (is_stranger(cm, event)) {
            g_queue_push_tail(&cm->strangers, event->id);
        }
    } else if (event->id->context) {
        rnic_end_event(event->id->context, event->event);
    } else if (event->id == cm->listener &&
               event->event == RDMA_CM_EVENT_DEVICE_REMOVAL) {
        cm->over = true;
        rnic_cm_kick(cm);
    }
}

/* The next event; 0, or an errno. */
static int pump_one(struct rnic_cm *cm)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;
    int err;

    j->events = cm->events;
    j->qps = cm->qps;
    err = rnic_cm_run(cm, RNIC_MAKE, 0, take_event, j, &mine);
    if (!err) {
        got_event(cm, j->event);
        rnic_verbs->cm_ack_event(j->event);
    }
    if (mine) {
        g_free(j);
    }
    return err;
}

/* The one that has waited longest. */
static void reject_one(struct rnic_cm *cm)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;

    j->id = g_queue_pop_head(&cm->strangers);
    rnic_cm_run(cm, RNIC_BREAK, 0, reject, j, &mine);
    if (mine) {
        g_free(j);
    }
}

static gboolean on_event(gint fd, GIOCondition cond, gpointer cm);

static void pump(void *opaque)
{
    struct rnic_cm *cm = opaque;
    int err;

    do {
        err = pump_one(cm);
        if (!g_queue_is_empty(&cm->strangers) &&
            (err || g_queue_get_length(&cm->strangers) >= BACKLOG)) {
            reject_one(cm);
            err = 0; /* what has come meanwhile */
        }
    } while (!err);
    if (err == ENOMEM || err == EBUSY) { /* it is there yet */
        coro_sleep(AGAIN_MS);
    } else if (err != EAGAIN && err != EINTR && !cm->over) {
        log_about(LOG_LVL_WARN, &cm->nic->log, "no events of the connection manager: %s",
                  g_strerror(err));
        cm->over = true;
    }
    cm->pumping = false;
    if (cm->over) {
        rnic_cm_kick(cm);
    } else {
        cm->watch = fdwatch_add(cm->events->fd, G_IO_IN, on_event, cm);
    }
}

/* It stays readable until the lane has read it. */
static gboolean on_event(gint fd, GIOCondition cond, gpointer opaque)
{
    struct rnic_cm *cm = opaque;

    fdwatch_remove(cm->watch);
    cm->watch = 0;
    cm->pumping = true;
    rnic_cm_begin(pump, cm);
    return G_SOURCE_REMOVE;
}

/* ---- a NIC ---- */

bool rnic_cm_serves(const struct rnic_cm *cm, const char *network)
{
    return cm->open && !cm->over && !is_late(cm) &&
           (!cm->networks || g_strv_contains((const char *const *)cm->networks, network));
}

struct rnic_cm *rnic_cm_find(const struct pvrdma_gid *address)
{
    struct rnic_cm *cm;

    TAILQ_FOREACH(cm, &rnic_cms, link)
    {
        if (cm->open && !cm->over &&
            memcmp(&cm->address, address, sizeof(*address)) == 0) {
            return cm;
        }
    }
    return NULL;
}

void rnic_cm_kick(struct rnic_cm *cm)
{
    struct coro *c = cm->coro;

    if (c) {
        cm->coro = NULL;
        coro_wake_later(c);
    }
}

static void nap(struct rnic_cm *cm)
{
    cm->coro = coro_self();
    coro_yield();
}

static bool begin(struct rnic_cm *cm)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;
    int err;

    rnic_cm_sockaddr(&cm->address, 0, &j->src);
    if (!cm->nic->held) {
        g_strlcpy(j->device, cm->nic->cfg->device, sizeof(j->device));
    }
    err = rnic_cm_run(cm, RNIC_MAKE, 0, open_listener, j, &mine);
    if (mine && j->held) {
        cm->nic->held = j->held;
    }
    if (!err) {
        cm->events = j->events;
        cm->listener = j->id;
        cm->ctx = j->ctx;
        cm->port = j->port;
        cm->watch = fdwatch_add(cm->events->fd, G_IO_IN, on_event, cm);
        cm->nic->cm_failed = false;
    } else if (!cm->nic->cm_failed) { /* it is tried again each second */
        cm->nic->cm_failed = true;
        log_about(LOG_LVL_WARN, &cm->nic->log, "channels cannot be made: %s",
                  g_strerror(err));
    }
    if (mine) {
        g_free(j);
    }
    return !err;
}

static void end_listener(struct rnic_cm *cm)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;

    j->id = cm->listener;
    j->events = cm->events;
    rnic_cm_run(cm, RNIC_BREAK, 0, close_listener, j, &mine);
    if (mine) {
        g_free(j);
    }
}

/* Until nothing of it is left. */
static void take_apart(struct rnic_cm *cm)
{
    struct rnic_share *sh, *next;
    struct rnic_end *e;

    while (cm->n_ends || cm->pumping) {
        unsigned n = 0;

        LIST_FOREACH(e, &cm->ends, of_cm)
        {
            if (n++ < AT_ONCE) {
                rnic_end_go(e, "its NIC is not up any more", false);
            }
        }
        nap(cm);
    }
    /* Nobody waits for events any more; a pump would run while the listener goes. */
    if (cm->watch) {
        fdwatch_remove(cm->watch);
        cm->watch = 0;
    }
    for (sh = LIST_FIRST(&cm->shares); sh; sh = next) {
        next = LIST_NEXT(sh, of_cm);
        rnic_share_settle(sh);
    }
    while (!LIST_EMPTY(&cm->shares)) {
        nap(cm);
    }
}

static void live(void *opaque)
{
    struct rnic_cm *cm = opaque;
    struct coro *giver;

    if (begin(cm)) {
        cm->open = true;
        rnic_pairs_nics_changed();
        while (!cm->over) {
            nap(cm);
        }
        cm->open = false;
        rnic_fair_close(&cm->fair);
        rnic_pairs_nics_changed();
        take_apart(cm);
        end_listener(cm);
    }
    TAILQ_REMOVE(&rnic_cms, cm, link);
    cm->nic->cm = NULL;
    giver = cm->giver;
    if (!cm->lost) { /* else somebody may hold it for ever */
        pthread_mutex_destroy(cm->qps);
        g_free(cm->qps);
    }
    rnic_fair_fini(&cm->fair);
    g_strfreev(cm->networks);
    g_free(cm->fabric);
    g_free(cm->name);
    g_free(cm);
    if (giver) {
        coro_wake_later(giver);
    }
}

void rnic_nic_usage(const struct rnic_nic *nic, struct rnic_nic_usage *u)
{
    *u = (struct rnic_nic_usage){0};
    if (nic->cm && nic->cm->open) {
        rnic_fair_usage(&nic->cm->fair, u);
    }
}

/* ---- of nic.c ---- */

static void nic_seen(struct rnic_nic *nic)
{
    struct rnic_cm *cm = nic->cm;

    if (cm && nic->state != RNIC_NIC_UP) {
        cm->over = true;
        rnic_cm_kick(cm);
    } else if (!cm && nic->state == RNIC_NIC_UP) {
        cm = g_new0(struct rnic_cm, 1);
        cm->qps = g_new(pthread_mutex_t, 1);
        pthread_mutex_init(cm->qps, NULL);
        cm->nic = nic;
        cm->control = nic->control;
        cm->name = g_strdup(nic->cfg->name);
        cm->fabric = g_strdup(nic->cfg->fabric);
        cm->networks = g_strdupv(nic->cfg->networks);
        cm->address = nic->cfg->address;
        rnic_fair_init(&cm->fair,
                       nic->cfg->max_in_flight ? nic->cfg->max_in_flight
                                               : rnic_fair_default(nic->dev.mbit_s),
                       nic->cfg->max_requests, nic->dev.mbit_s);
        LIST_INIT(&cm->ends);
        TAILQ_INIT(&cm->waits);
        nic->cm = cm;
        TAILQ_INSERT_TAIL(&rnic_cms, cm, link);
        rnic_cm_begin(live, cm);
    }
}

/* Two groups may name one device. */
static bool is_used(struct ibv_context *ctx)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        if (nic->cm && nic->held && nic->held[0] == ctx) {
            return true;
        }
    }
    return false;
}

static void nic_give_up(struct rnic_nic *nic, bool gone)
{
    struct rnic_cm *cm = nic->cm;
    struct rnic_job *j;

    if (cm) {
        cm->over = true;
        cm->giver = coro_self();
        rnic_cm_kick(cm);
        coro_yield();
    }
    if (nic->held) {
        j = g_new0(struct rnic_job, 1);
        j->held = g_steal_pointer(&nic->held);
        j->n = gone && !is_used(j->held[0]);
        if (rnic_control_run(nic->control, RNIC_BREAK, 0, let_go, j) != -EINPROGRESS) {
            g_free(j);
        }
    }
}

static unsigned nic_progress(const struct rnic_nic *nic)
{
    return nic->cm ? nic->cm->n_taken_apart : 0;
}

static const struct rnic_nic_ops nic_ops = {nic_seen, nic_give_up, nic_progress};

void rnic_cm_start(void)
{
    rnic_nics_set_ops(&nic_ops);
}
