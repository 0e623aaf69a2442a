/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NICs: found, opened, watched.
 *
 * A NIC has one coroutine, keep(), which alone changes what the NIC is: it looks at the
 * device, sleeps until the next look or until it is kicked, and closes.  All verbs are
 * called by jobs on the NIC's lane RNIC_MAKE; a job has all it needs, and all it finds,
 * in a struct look of its own, since it may outlive the NIC (control.h).
 *
 * The device is looked at once a second, and when it has an event of its own or of a
 * port; those of queues, which guests and peers may cause, are not about the NIC.  To be
 * opened it is searched for in libibverbs' list.  While it is open the folder of its
 * device file in sysfs is asked for, which the kernel removes first: the list is made
 * with a lock that all NICs share, and libibverbs writes to stderr about each device of
 * the host that it has no driver for.  Nothing reports that a device comes or goes to
 * everybody who may run this daemon: sysfs raises no inotify events; /dev may be the
 * service's own; uevents do not reach other network namespaces, and come before udev has
 * set the rights; RDMA netlink has notifications in the newest kernels only.  And drivers
 * without disassociation (rxe, siw) raise no event when their device is removed: the
 * removal waits until this process has closed it, so a device that is not there is
 * closed.
 *
 * What fails is a device that is there: it cannot be opened or asked, or raises
 * DEVICE_FATAL.  A port that goes down, or rights that are missing, are no failures; nor
 * is it another one that it cannot be opened for some seconds after, while its driver
 * recovers.
 *
 * Events are acknowledged at once: closing waits for that.
 */
#include "transport/rnic/nic.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/fdwatch.h"
#include "base/log.h"

/* Entries of a device's GID table, of all its ports: what fits in an attribute of the
 * kernel's, whose length has 16 bits. */
#define MAX_GIDS (UINT16_MAX / (unsigned)sizeof(struct ibv_gid_entry))

/* Between two looks, however many events there are. */
#define GAP_MS 100u
/* Events that are read at once: a device must not keep the main thread. */
#define MAX_EVENTS 64u

unsigned rnic_look_ms = RNIC_LOOK_MS, rnic_rest_ms = RNIC_REST_MS,
         rnic_same_ms = RNIC_SAME_MS, rnic_late_ms = RNIC_LATE_MS,
         rnic_close_ms = RNIC_CLOSE_MS;

/* A job.  Lane RNIC_MAKE; before and afterwards the main thread. */
struct look {
    char name[CONFIG_MAX_DEVICE + 1];
    struct pvrdma_gid address;
    struct rnic_device dev; /* as it was, and as it is */
    enum rnic_state state;
    bool failed, gone; /* gone: its device, behind a failure */
    char reason[RNIC_REASON_LEN];
};

static GPtrArray *nics;
static const struct rnic_nic_ops *ops;
static bool suspended, stopping;

/* ---- on the lane ---- */

static void say(struct look *l, enum rnic_state state, const char *fmt, ...)
    G_GNUC_PRINTF(3, 4);

static void say(struct look *l, enum rnic_state state, const char *fmt, ...)
{
    va_list ap;

    l->state = state;
    va_start(ap, fmt);
    g_vsnprintf(l->reason, sizeof(l->reason), fmt, ap);
    va_end(ap);
}

static void say_failed(struct look *l, const char *what, int err)
{
    l->failed = true;
    say(l, RNIC_NIC_ABSENT, "%s: %s", what, g_strerror(err));
}

/* There is none of its name in @list, of @n, which may be NULL, with @err. */
static void say_missing(struct look *l, struct ibv_device **list, int n, int err)
{
    g_autoptr(GString) others = g_string_new(NULL);

    for (int i = 0; list && i < n; i++) {
        g_string_append_printf(others, "%s%s", i ? ", " : "",
                               rnic_verbs->get_device_name(list[i]));
    }
    if (others->len) {
        say(l, RNIC_NIC_ABSENT, "there is no device %s, but %s", l->name, others->str);
    } else if (!list && err != ENOSYS && err != ENOENT) {
        say(l, RNIC_NIC_ABSENT, "devices cannot be listed: %s", g_strerror(err));
    } else if (!list || access("/dev/infiniband", F_OK) < 0) {
        say(l, RNIC_NIC_ABSENT, "no /dev/infiniband: is the module ib_uverbs loaded?");
    } else {
        say(l, RNIC_NIC_ABSENT,
            "there is no RDMA device for which libibverbs has a driver "
            "(ibverbs-providers)");
    }
}

static void say_not_opened(struct look *l, int err)
{
    if (err == EACCES || err == EPERM) {
        say(l, RNIC_NIC_ABSENT,
            "permission denied: DeviceAllow= of the unit, or the rights of "
            "/dev/infiniband/uverbs*");
    } else if (err == ENOENT) {
        say(l, RNIC_NIC_ABSENT,
            "no device file in /dev/infiniband: PrivateDevices= of the unit, or udev");
    } else if (err == ENODEV || err == ENXIO) {
        say(l, RNIC_NIC_ABSENT, "it has just been removed");
    } else {
        say_failed(l, "cannot be opened", err);
    }
}

static const char *kind_of(const struct ibv_device *dev, const struct ibv_port_attr *port)
{
    return dev->transport_type == IBV_TRANSPORT_IWARP    ? "iWARP"
           : dev->transport_type != IBV_TRANSPORT_IB     ? "other"
           : port->link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE"
                                                         : "InfiniBand";
}

static uint64_t speed_of(const struct ibv_port_attr *port)
{
    /* By bit: of one lane, in 100 Mbit/s, and how many there are. */
    static const unsigned speed[8] = {25, 50, 100, 100, 140, 250, 500, 1000};
    static const unsigned width[5] = {1, 4, 8, 12, 2};
    unsigned s = port->active_speed, w = port->active_width;
    uint64_t lane = s ? speed[g_bit_nth_lsf(s, -1)] : 0;
    int lanes = w ? g_bit_nth_lsf(w, -1) : 5;

    return lanes < 5 ? lane * 100 * width[lanes] : 0;
}

/* The port whose GID table has the address; 0: none has, or a negative errno. */
static int port_with_address(struct look *l)
{
    g_autofree struct ibv_gid_entry *e = g_new(struct ibv_gid_entry, MAX_GIDS);
    ssize_t n = rnic_verbs->query_gid_table(l->dev.ctx, e, MAX_GIDS, 0);

    if (n < 0) {
        return (int)n;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (e[i].gid_type == IBV_GID_TYPE_ROCE_V2 &&
            memcmp(&e[i].gid, &l->address, sizeof(l->address)) == 0) {
            return (int)e[i].port_num;
        }
    }
    return 0;
}

/*
 * What its port is like.  Where the GIDs are no addresses of IP (iWARP, InfiniBand) the
 * address cannot be looked for.
 */
static void look_at_port(struct look *l)
{
    struct ibv_port_attr attr;
    int err, found = l->dev.ethernet ? port_with_address(l) : 1;

    memset(&attr, 0, sizeof(attr));
    l->dev.port = (unsigned)MAX(found, 1);
    err = rnic_verbs->query_port(l->dev.ctx, (uint8_t)l->dev.port, &attr);
    if (err) {
        say_failed(l, "its port cannot be asked", ABS(err));
        return;
    }
    l->dev.mtu = attr.active_mtu ? 128u << attr.active_mtu : 0;
    l->dev.mbit_s = speed_of(&attr);
    if (attr.state != IBV_PORT_ACTIVE) {
        say(l, RNIC_NIC_DOWN, "its port %u is down", l->dev.port);
    } else if (found < 0) { /* it may be too long */
        say(l, RNIC_NIC_DOWN, "its GID table cannot be read: %s", g_strerror(-found));
    } else if (!found) {
        char text[CONFIG_GID_STRLEN];

        config_format_gid(&l->address, text);
        say(l, RNIC_NIC_DOWN, "address %s is not on it", text);
    } else {
        say(l, RNIC_NIC_UP, "%s", "");
    }
}

/* What does not change while it is open.  False: with @l's state, and its kind not known:
 * then the main thread must not read events either, which might block. */
static bool ask(struct look *l, struct ibv_device *dev)
{
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    int err;

    memset(&attr, 0, sizeof(attr));
    memset(&port, 0, sizeof(port));
    err = fcntl(l->dev.ctx->async_fd, F_SETFL,
                fcntl(l->dev.ctx->async_fd, F_GETFL) | O_NONBLOCK) < 0
              ? errno
              : 0;
    err = err ? err : rnic_verbs->query_device(l->dev.ctx, &attr);
    err = err ? err : rnic_verbs->query_port(l->dev.ctx, 1, &port);
    if (err) {
        say_failed(l, "cannot be asked", ABS(err));
        return false;
    }
    l->dev.kind = kind_of(dev, &port);
    l->dev.ethernet = strcmp(l->dev.kind, "RoCE") == 0;
    l->dev.atomics = attr.atomic_cap != IBV_ATOMIC_NONE;
    l->dev.max_reads = (unsigned)MAX(attr.max_qp_rd_atom, 0);
    return true;
}

/* The folder of its device file; 0: it is not seen, and the list has to tell. */
static ino_t folder_of(const struct ibv_device *dev)
{
    /* libibverbs knows the path only if it did not learn of the device by netlink. */
    g_autofree char *path =
        *dev->dev_path ? g_strdup(dev->dev_path)
                       : g_strdup_printf("/sys/class/infiniband_verbs/%s", dev->dev_name);
    struct stat st;

    return stat(path, &st) == 0 ? st.st_ino : 0;
}

/* Of one that is open: it was seen, and is not any more. */
static bool is_gone(const struct rnic_device *dev)
{
    return dev->folder && folder_of(dev->ctx->device) != dev->folder;
}

/* In the list it is there: open it, if it is not, and look at it. */
static void look_at_device(struct look *l, struct ibv_device *dev)
{
    if (l->dev.ctx && l->dev.ctx->device != dev) { /* this one has the name now */
        say(l, RNIC_NIC_ABSENT, "it has just been removed");
        return;
    }
    if (!l->dev.ctx) {
        errno = 0;
        l->dev.ctx = rnic_verbs->open_device(dev);
        if (!l->dev.ctx) {
            say_not_opened(l, errno);
            return;
        }
        l->dev.folder = folder_of(dev);
        if (!ask(l, dev)) {
            return; /* the main thread has it closed */
        }
    }
    look_at_port(l);
}

static void look(void *arg)
{
    struct look *l = arg;
    struct ibv_device **list, *dev = NULL;
    int n = 0, err;

    rnic_control_assert();
    if (l->dev.folder && !is_gone(&l->dev)) {
        look_at_port(l);
        l->gone = l->failed && is_gone(&l->dev);
        return;
    }
    list = rnic_verbs->get_device_list(&n);
    err = errno;
    for (int i = 0; list && i < n && !dev; i++) {
        dev = strcmp(rnic_verbs->get_device_name(list[i]), l->name) == 0 ? list[i] : NULL;
    }
    if (dev) {
        look_at_device(l, dev);
    } else {
        say_missing(l, list, n, err);
    }
    if (list) {
        rnic_verbs->free_device_list(list);
    }
}

static void close_device(void *arg)
{
    struct look *l = arg;

    rnic_control_assert();
    rnic_verbs->close_device(l->dev.ctx); /* of a device that is gone: EIO */
}

/* ---- the coroutine ---- */

const char *rnic_state_name(enum rnic_state state)
{
    static const char *const names[] = {
        [RNIC_NIC_ABSENT] = "absent",   [RNIC_NIC_OPENING] = "opening",
        [RNIC_NIC_UP] = "up",           [RNIC_NIC_DOWN] = "down",
        [RNIC_NIC_RESTING] = "resting", [RNIC_NIC_CLOSING] = "closing",
    };

    return names[state];
}

static void set_state(struct rnic_nic *nic, enum rnic_state state, const char *reason)
{
    bool bad =
        state == RNIC_NIC_ABSENT || state == RNIC_NIC_DOWN || state == RNIC_NIC_RESTING;

    if (state == nic->state && strcmp(reason, nic->reason) == 0) {
        return;
    }
    if (state != nic->state) {
        nic->since = g_get_monotonic_time();
    }
    nic->state = state;
    g_strlcpy(nic->reason, reason, sizeof(nic->reason));
    log_about(bad ? LOG_LVL_WARN : LOG_LVL_INFO, &nic->log, "%s is %s%s%s",
              nic->cfg->device, rnic_state_name(state), *reason ? ": " : "", reason);
}

static void kick(struct rnic_nic *nic)
{
    struct coro *c = nic->nap;

    nic->kicked = true;
    if (c) {
        nic->nap = NULL;
        coro_wake_later(c);
    }
}

static gboolean on_nap_over(gpointer opaque)
{
    struct rnic_nic *nic = opaque;

    nic->nap_timer = 0;
    kick(nic);
    return G_SOURCE_REMOVE;
}

/* @ms, or until it is kicked; 0: until then. */
static void nap(struct rnic_nic *nic, unsigned ms)
{
    if (!nic->kicked) {
        nic->nap_timer = ms ? g_timeout_add(ms, on_nap_over, nic) : 0;
        nic->nap = coro_self();
        coro_yield();
        g_clear_handle_id(&nic->nap_timer, g_source_remove);
    }
    nic->kicked = false;
}

/* It is not looked at for so long, but it is closed if need be. */
static void leave_alone(struct rnic_nic *nic, unsigned ms)
{
    nic->not_before = MAX(nic->not_before, g_get_monotonic_time() + (gint64)ms * 1000);
}

/* Twice in a minute: it is left alone.  @opening: it was not open. */
static void fail(struct rnic_nic *nic, bool opening, const char *reason)
{
    gint64 now = g_get_monotonic_time(), rest = (gint64)rnic_rest_ms * 1000;

    if (opening && nic->failed_at && now - nic->failed_at < (gint64)rnic_same_ms * 1000) {
        set_state(nic, RNIC_NIC_ABSENT, reason); /* it is still the last one */
        return;
    }
    nic->failures++;
    if (nic->failed_at && now - nic->failed_at < rest) {
        g_autofree char *text =
            g_strdup_printf("failed twice in a minute, at last: %s", reason);

        leave_alone(nic, rnic_rest_ms);
        set_state(nic, RNIC_NIC_RESTING, text);
    } else {
        set_state(nic, RNIC_NIC_ABSENT, reason);
    }
    nic->failed_at = now;
}

static void unwatch(struct rnic_nic *nic)
{
    fdwatch_remove(nic->watch);
    nic->watch = 0;
}

static void take_event(struct rnic_nic *nic, enum ibv_event_type type)
{
    nic->events++;
    switch (type) {
    case IBV_EVENT_DEVICE_FATAL:
        nic->fatal = true;
        /* fall through */
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_GID_CHANGE:
        kick(nic);
        break;
    default:
        break;
    }
}

/* Each is acknowledged. */
static void take_events(struct rnic_nic *nic)
{
    struct ibv_async_event event;

    for (unsigned i = 0; i < MAX_EVENTS; i++) {
        if (rnic_verbs->get_async_event(nic->dev.ctx, &event) != 0) {
            if (errno != EAGAIN && errno != EINTR) {
                unwatch(nic); /* it would be ready for ever */
                nic->fatal = true;
                kick(nic);
            }
            return;
        }
        take_event(nic, event.event_type);
        rnic_verbs->ack_async_event(&event);
    }
}

static gboolean on_event(gint fd, GIOCondition cond, gpointer nic)
{
    take_events(nic);
    return G_SOURCE_CONTINUE;
}

/* The state stays as it is: nothing is known. */
static gboolean on_late(gpointer opaque)
{
    struct rnic_nic *nic = opaque;

    nic->late_timer = 0;
    g_snprintf(nic->reason, sizeof(nic->reason),
               "a call has not come back from the kernel for %.0f s", rnic_late_ms / 1e3);
    log_about(LOG_LVL_WARN, &nic->log, "%s", nic->reason);
    return G_SOURCE_REMOVE;
}

static gboolean on_late_end(gpointer opaque)
{
    struct rnic_nic *nic = opaque;

    nic->late_timer = 0;
    log_about(LOG_LVL_WARN, &nic->log, "its channels are not taken apart after %.0f s",
              rnic_late_ms / 1e3);
    return G_SOURCE_REMOVE;
}

/* False: the control threads were given up. */
static bool run(struct rnic_nic *nic, void (*fn)(void *arg), struct look *l)
{
    int err;

    nic->busy = true;
    nic->late_timer = g_timeout_add(rnic_late_ms, on_late, nic);
    err = rnic_control_run(nic->control, RNIC_MAKE, 0, fn, l);
    g_clear_handle_id(&nic->late_timer, g_source_remove);
    nic->busy = false;
    if (err && err != -EINPROGRESS) {
        g_free(l);
    }
    return err == 0;
}

/* @gone: there is no such device any more. */
static bool shut(struct rnic_nic *nic, bool gone)
{
    struct look *l = g_new0(struct look, 1);

    if (ops) {
        nic->late_timer = g_timeout_add(rnic_late_ms, on_late_end, nic);
        ops->give_up(nic, gone);
        g_clear_handle_id(&nic->late_timer, g_source_remove);
    }
    l->dev = nic->dev;
    unwatch(nic); /* its descriptor is closed with it */
    if (!run(nic, close_device, l)) {
        return false;
    }
    g_free(l);
    nic->dev = (struct rnic_device){0};
    nic->fatal = false;
    return true;
}

static bool look_again(struct rnic_nic *nic)
{
    struct look *l = g_new0(struct look, 1);
    bool opening = !nic->dev.ctx, fatal;

    g_strlcpy(l->name, nic->cfg->device, sizeof(l->name));
    l->address = nic->cfg->address;
    l->dev = nic->dev;
    if (!run(nic, look, l)) {
        return false;
    }
    if (l->dev.kind && !nic->dev.kind) {
        nic->watch = fdwatch_add(l->dev.ctx->async_fd, G_IO_IN, on_event, nic);
    }
    nic->dev = l->dev;
    if (nic->watch) { /* it may be gone because it has failed */
        take_events(nic);
    }
    fatal = nic->fatal && l->state == RNIC_NIC_ABSENT;
    if (l->state == RNIC_NIC_ABSENT && nic->dev.ctx &&
        !shut(nic, !l->failed || l->gone)) {
        g_free(l);
        return false;
    }
    if (fatal || l->failed) {
        fail(nic, opening && !fatal, fatal ? "the device has failed" : l->reason);
    } else {
        set_state(nic, l->state, l->reason);
    }
    g_free(l);
    if (ops) {
        ops->seen(nic);
    }
    return true;
}

static void look_for(void *arg)
{
    struct look *l = arg;

    rnic_control_assert();
    l->gone = is_gone(&l->dev);
}

/* Has the device of one that has failed gone, too?  False: given up. */
static bool ask_gone(struct rnic_nic *nic, bool *gone)
{
    struct look *l = g_new0(struct look, 1);

    l->dev = nic->dev;
    if (!run(nic, look_for, l)) {
        return false;
    }
    *gone = l->gone;
    g_free(l);
    return true;
}

/* Close it, if it should not be open, or not as it is.  False: given up. */
static bool settle(struct rnic_nic *nic)
{
    const char *why = stopping     ? "the daemon ends"
                      : nic->gone  ? "its group was removed"
                      : suspended  ? "the daemon is being replaced"
                      : nic->next  ? "its group has changed"
                      : nic->fatal ? "the device has failed"
                                   : NULL;
    bool fatal = nic->fatal, gone = false;

    if (why && nic->dev.ctx) {
        set_state(nic, RNIC_NIC_CLOSING, why);
        if ((fatal && !ask_gone(nic, &gone)) || !shut(nic, gone)) {
            return false;
        }
    }
    if (fatal) {
        fail(nic, false, "the device has failed");
        leave_alone(nic, rnic_look_ms); /* its driver may still list it */
    }
    if (nic->next) {
        config_nic_free(nic->cfg);
        nic->cfg = g_steal_pointer(&nic->next);
        nic->log.name = nic->cfg->name;
        nic->failed_at = nic->not_before = 0;
    }
    return true;
}

static void nic_free(struct rnic_nic *nic)
{
    g_ptr_array_remove(nics, nic);
    unwatch(nic); /* it is still open, if it was given up */
    g_free(nic->held);
    if (nic->control) {
        rnic_control_free(nic->control);
    }
    log_flush(&nic->log);
    config_nic_free(nic->cfg);
    config_nic_free(nic->next);
    g_free(nic);
}

static void keep(void *opaque)
{
    struct rnic_nic *nic = opaque;
    bool ok;

    while ((ok = settle(nic)) && !nic->gone) {
        gint64 rest = nic->not_before - g_get_monotonic_time();

        if (suspended) {
            nap(nic, 0);
            continue;
        }
        if (rest > 0) {
            nap(nic, (unsigned)(rest / 1000) + 1);
            continue;
        }
        if (nic->state == RNIC_NIC_CLOSING || nic->state == RNIC_NIC_RESTING) {
            set_state(nic, RNIC_NIC_OPENING, "");
        }
        ok = look_again(nic);
        if (!ok) {
            break;
        }
        leave_alone(nic, MIN(GAP_MS, rnic_look_ms));
        nap(nic, rnic_look_ms);
    }
    if (!ok) {
        log_msg(LOG_LVL_ERROR, "NIC %s is left behind: a call does not come back",
                nic->cfg->name);
    }
    nic_free(nic);
}

/* In a coroutine of its own, whoever has asked for it. */
static gboolean begin(gpointer nic)
{
    coro_run(keep, nic);
    return G_SOURCE_REMOVE;
}

/* ---- what is configured ---- */

struct rnic_nic *rnic_nic_next(struct rnic_nic *nic)
{
    guint i = 0;

    if (!nics || (nic && !g_ptr_array_find(nics, nic, &i))) {
        return NULL;
    }
    i += nic != NULL;
    return i < nics->len ? nics->pdata[i] : NULL;
}

static struct rnic_nic *find(const char *name)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        if (strcmp(nic->cfg->name, name) == 0) {
            return nic;
        }
    }
    return NULL;
}

static void kick_all(void)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        kick(nic);
    }
}

static void add(struct nic_config *cfg)
{
    struct rnic_nic *nic = g_new0(struct rnic_nic, 1);
    g_autoptr(GError) err = NULL;

    nic->cfg = cfg;
    nic->log = (struct log_subject){.name = cfg->name, .kind = "NIC"};
    nic->since = g_get_monotonic_time();
    nic->state = RNIC_NIC_OPENING;
    g_ptr_array_add(nics, nic);
    nic->control = rnic_control_new(&err);
    if (nic->control) {
        g_idle_add_full(G_PRIORITY_DEFAULT, begin, nic, NULL);
    } else {
        log_msg(LOG_LVL_ERROR, "NIC %s is not used: %s", cfg->name, err->message);
        nic_free(nic);
    }
}

void rnic_nics_set_ops(const struct rnic_nic_ops *to)
{
    ops = to;
}

void rnic_nics_start(struct daemon_config *cfg)
{
    nics = g_ptr_array_new();
    suspended = stopping = false;
    rnic_nics_reload(cfg, NULL, NULL);
}

static void say_line(void (*say)(void *opaque, char *line), void *opaque,
                     const char *name, const char *what)
{
    if (say) {
        say(opaque, g_strdup_printf("NIC %s: %s", name, what));
    }
}

static bool in_list(const GList *configs, const char *name)
{
    for (const GList *l = configs; l; l = l->next) {
        if (strcmp(((const struct nic_config *)l->data)->name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* What it is to be, whether or not it is being closed. */
static const struct nic_config *wanted(const struct rnic_nic *nic)
{
    return nic->next ? nic->next : nic->cfg;
}

/* One that has this address and stays though its group is invalid; NULL: there is none.
 * The key file alone does not show it. */
static const struct rnic_nic *find_holder(const struct daemon_config *cfg,
                                          const struct pvrdma_gid *address)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        if (!nic->gone && config_has_problem(cfg, "nic", nic->cfg->name) &&
            memcmp(&wanted(nic)->address, address, sizeof(*address)) == 0) {
            return nic;
        }
    }
    return NULL;
}

void rnic_nics_reload(struct daemon_config *cfg, void (*say)(void *opaque, char *line),
                      void *opaque)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        if (!nic->gone && !in_list(cfg->nics, nic->cfg->name) &&
            !config_has_problem(cfg, "nic", nic->cfg->name)) {
            nic->gone = true;
            kick(nic);
            say_line(say, opaque, nic->cfg->name, "removed");
        }
    }
    while (cfg->nics) {
        struct nic_config *c = cfg->nics->data;
        struct rnic_nic *nic = find(c->name);

        cfg->nics = g_list_delete_link(cfg->nics, cfg->nics);
        if (find_holder(cfg, &c->address)) {
            say_line(say, opaque, c->name,
                     "not changed: its address belongs to a NIC whose group is invalid");
            config_nic_free(c);
        } else if (!nic) {
            say_line(say, opaque, c->name, "added");
            add(c);
        } else if (nic->gone || !config_nic_same(wanted(nic), c)) {
            say_line(say, opaque, c->name, nic->gone ? "added" : "changed");
            nic->gone = false;
            config_nic_free(nic->next);
            nic->next = c;
            kick(nic);
        } else {
            config_nic_free(c);
        }
    }
}

/* ---- stop, restart ---- */

/* How long all may take to close. */
struct patience {
    gint64 until, at_most; /* us */
    unsigned seen;
};

static unsigned progress(void)
{
    unsigned n = 0;

    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic && ops;
         nic = rnic_nic_next(nic)) {
        n += ops->progress(nic);
    }
    return n;
}

static void patience_begin(struct patience *t, bool none)
{
    t->until = g_get_monotonic_time() + (none ? 0 : (gint64)rnic_close_ms * 1000);
    t->at_most = none ? 0 : t->until + (gint64)rnic_close_ms * (RNIC_CLOSES - 1) * 1000;
    t->seen = progress();
}

static bool patience_ends(struct patience *t)
{
    gint64 now = g_get_monotonic_time();
    unsigned n = progress();

    if (n != t->seen) {
        t->seen = n;
        t->until = MIN(now + (gint64)rnic_close_ms * 1000, t->at_most);
    }
    return now >= t->until;
}

void rnic_nics_stop(void)
{
    struct patience t;
    bool given_up = false;

    if (!nics) {
        return;
    }
    patience_begin(&t, suspended); /* they had their time */
    stopping = true;
    for (guint i = 0; i < nics->len; i++) {
        ((struct rnic_nic *)nics->pdata[i])->gone = true;
    }
    kick_all();
    while (nics->len) {
        if (!given_up && patience_ends(&t)) {
            given_up = true;
            for (guint i = 0; i < nics->len; i++) {
                rnic_control_give_up(((struct rnic_nic *)nics->pdata[i])->control);
            }
        }
        if (!g_main_context_iteration(NULL, FALSE)) {
            g_usleep(1000);
        }
    }
    g_clear_pointer(&nics, g_ptr_array_unref);
}

/* One that is open, or about to be; NULL: all are closed. */
static const struct rnic_nic *find_open(void)
{
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        if (nic->dev.ctx || nic->busy) {
            return nic;
        }
    }
    return NULL;
}

bool rnic_nics_suspend(bool (*at_once)(void), GError **errp)
{
    const struct rnic_nic *nic;
    struct patience t;

    patience_begin(&t, false);
    suspended = true;
    kick_all();
    while ((nic = find_open())) {
        if (patience_ends(&t) || at_once()) {
            g_set_error(errp, PVRDMA_ERROR, 0, "NIC %s does not close", nic->cfg->name);
            return false;
        }
        coro_sleep(1);
    }
    return true;
}

void rnic_nics_resume(void)
{
    suspended = false;
    kick_all();
}
