/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: the table, the faults of its entries, and the commands of a test.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <arpa/inet.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/thread.h"
#include "entries.h"
#include "internal.h"

const struct rnic_verbs softnic_verbs = {
    .get_device_list = soft_get_device_list,
    .free_device_list = soft_free_device_list,
    .get_device_name = soft_get_device_name,
    .get_device_guid = soft_get_device_guid,
    .open_device = soft_open_device,
    .close_device = soft_close_device,
    .query_device = soft_query_device,
    .query_port = soft_query_port,
    .query_gid_table = soft_query_gid_table,
    .get_async_event = soft_get_async_event,
    .ack_async_event = soft_ack_async_event,
    .alloc_pd = soft_alloc_pd,
    .dealloc_pd = soft_dealloc_pd,
    .reg_mr = soft_reg_mr,
    .dereg_mr = soft_dereg_mr,
    .create_comp_channel = soft_create_comp_channel,
    .destroy_comp_channel = soft_destroy_comp_channel,
    .create_cq = soft_create_cq,
    .destroy_cq = soft_destroy_cq,
    .poll_cq = soft_poll_cq,
    .req_notify_cq = soft_req_notify_cq,
    .get_cq_event = soft_get_cq_event,
    .ack_cq_events = soft_ack_cq_events,
    .modify_qp = soft_modify_qp,
    .query_qp = soft_query_qp,
    .post_send = soft_post_send,
    .post_recv = soft_post_recv,
    .cm_get_devices = soft_cm_get_devices,
    .cm_free_devices = soft_cm_free_devices,
    .cm_create_event_channel = soft_cm_create_event_channel,
    .cm_destroy_event_channel = soft_cm_destroy_event_channel,
    .cm_create_id = soft_cm_create_id,
    .cm_destroy_id = soft_cm_destroy_id,
    .cm_bind_addr = soft_cm_bind_addr,
    .cm_resolve_addr = soft_cm_resolve_addr,
    .cm_resolve_route = soft_cm_resolve_route,
    .cm_set_option = soft_cm_set_option,
    .cm_create_qp = soft_cm_create_qp,
    .cm_destroy_qp = soft_cm_destroy_qp,
    .cm_listen = soft_cm_listen,
    .cm_connect = soft_cm_connect,
    .cm_accept = soft_cm_accept,
    .cm_reject = soft_cm_reject,
    .cm_disconnect = soft_cm_disconnect,
    .cm_get_event = soft_cm_get_event,
    .cm_ack_event = soft_cm_ack_event,
};

void soft_bug(const char *what)
{
    fprintf(stderr, "softnic: %s\n", what);
    abort();
}

/* ---- entries ---- */

/* A call that is to fail or wait.  The lock is for these and for the list of entries. */
struct rule {
    struct rule *next;
    char entry[32];
    uint64_t n; /* calls until then; 0: each */
    int err;
    useconds_t us;
};

static pthread_mutex_t rules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule *rules;
static _Atomic bool has_rules;
static _Atomic unsigned cleared;   /* how often: ends delays */
static struct soft_entry *entries; /* that were called */

/* How long it waits, and what fails. */
struct fault {
    int err;
    useconds_t us;
    unsigned cleared; /* as that was */
};

static struct fault apply_rules(const char *entry)
{
    struct fault f = {0};

    pthread_mutex_lock(&rules_lock);
    f.cleared = cleared;
    for (struct rule **at = &rules, *r; (r = *at);) {
        if (strcmp(r->entry, entry) && strcmp(r->entry, "any")) {
            at = &r->next;
            continue;
        }
        if (r->n > 1) {
            r->n--;
            at = &r->next;
            continue;
        }
        f.err = r->err ? r->err : f.err;
        f.us = r->us ? r->us : f.us;
        if (soft.dir) {
            fprintf(stderr, "rule: %s\n", entry);
        }
        if (r->n) {
            *at = r->next;
            g_free(r);
        } else {
            at = &r->next;
        }
    }
    has_rules = rules;
    pthread_mutex_unlock(&rules_lock);
    return f;
}

static void wait_for(const struct fault *f)
{
    for (useconds_t us = f->us, step; us && f->cleared == cleared; us -= step) {
        step = MIN(us, 10000);
        usleep(step);
    }
}

int soft_enter_at(struct soft_entry *e)
{
    struct fault f = has_rules ? apply_rules(e->name) : (struct fault){0};

    if (!e->calls++) {
        pthread_mutex_lock(&rules_lock);
        e->next = entries;
        entries = e;
        pthread_mutex_unlock(&rules_lock);
    }
    wait_for(&f);
    pthread_mutex_lock(&soft.lock);
    return f.err;
}

void soft_leave(void)
{
    pthread_mutex_unlock(&soft.lock);
}

static void rule_add(const char *entry, uint64_t n, int err, useconds_t us)
{
    struct rule *r = g_new0(struct rule, 1);

    g_strlcpy(r->entry, entry, sizeof(r->entry));
    r->n = n;
    r->err = err;
    r->us = us;
    pthread_mutex_lock(&rules_lock);
    r->next = rules;
    rules = r;
    has_rules = true;
    pthread_mutex_unlock(&rules_lock);
}

static void rules_clear(void)
{
    pthread_mutex_lock(&rules_lock);
    while (rules) {
        struct rule *r = rules;

        rules = r->next;
        g_free(r);
    }
    cleared++;
    has_rules = false;
    pthread_mutex_unlock(&rules_lock);
}

/* ---- commands ---- */

static int errno_of(const char *text)
{
    static const struct {
        const char *name;
        int err;
    } known[] = {{"EIO", EIO},       {"ENOMEM", ENOMEM}, {"EINVAL", EINVAL},
                 {"EAGAIN", EAGAIN}, {"ENODEV", ENODEV}, {"EPERM", EPERM},
                 {"EBUSY", EBUSY},   {"EINTR", EINTR}};

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        if (!strcmp(text, known[i].name)) {
            return known[i].err;
        }
    }
    return isdigit((unsigned char)*text) ? atoi(text) : 0;
}

static void kick_all(struct softdev *dev)
{
    for (unsigned i = 0; i < soft.wires->len; i++) {
        struct wire *w = soft.wires->pdata[i];

        if (!dev || w->dev == dev || (w->peer && w->peer->dev == dev)) {
            soft_kick(w);
        }
    }
}

static void tell_peers(struct softdev *dev, enum packet_kind kind)
{
    for (unsigned i = 0; i < soft.wires->len; i++) {
        struct wire *w = soft.wires->pdata[i];

        if (w->dev == dev && w->fd >= 0) {
            soft_send_plain(w, kind);
        }
    }
    kick_all(dev);
}

static void port(struct softdev *dev, bool up)
{
    if (dev->up == up) {
        return;
    }
    dev->up = up;
    tell_peers(dev, up ? PKT_UP : PKT_DOWN);
    if (!up) {
        soft_async(dev, IBV_EVENT_GID_CHANGE);
    }
    soft_async(dev, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

/* The list has it no more; contexts of it may still be open. */
static void gone(struct softdev *dev)
{
    if (!dev->gone) {
        dev->gone = true;
        soft_unlisten(dev);
        rmdir(dev->ibv.dev_path);
        tell_peers(dev, PKT_DOWN);
        dev->up = false;
        soft_dev_put(dev);
    }
}

static void add(char **word)
{
    struct softdev *dev = g_new0(struct softdev, 1), *old = soft_find(word[1]);
    char **addresses;

    soft_start();
    if (old && old->fatal) { /* in its place */
        gone(old);
    }
    g_strlcpy(dev->ibv.name, word[1], sizeof(dev->ibv.name));
    dev->ibv.node_type = IBV_NODE_CA;
    dev->ibv.transport_type = IBV_TRANSPORT_IB;
    dev->refs = 1;
    dev->up = true;
    dev->sge = 16;
    dev->inline_data = 256;
    dev->ord = 16;
    dev->wr = 16384;
    dev->maxmsg = 1u << 30;
    dev->guid =
        ((uint64_t)soft.next_qpn << 40) + (uint64_t)getpid() * 4096 + ++soft.n_devs;
    addresses = g_strsplit(word[2], ",", SOFT_ADDRESSES + 1);
    for (char **a = addresses; *a; a++) {
        if (dev->n_addresses == SOFT_ADDRESSES ||
            inet_pton(AF_INET, *a, &dev->address[dev->n_addresses++]) != 1) {
            soft_bug("a NIC's addresses");
        }
    }
    g_strfreev(addresses);
    for (char **f = word + 3; *f; f++) {
        const char *value = strchr(*f, '=');
        unsigned long long n = value ? strtoull(value + 1, NULL, 0) : 0;

        if (!strcmp(*f, "iwarp") || !strcmp(*f, "siw")) {
            dev->iwarp = true;
            if (!strcmp(*f, "siw")) {
                dev->siw = dev->early = dev->noimm = dev->negative = true;
                dev->sge = 6;
            }
            dev->ibv.node_type = IBV_NODE_RNIC;
            dev->ibv.transport_type = IBV_TRANSPORT_IWARP;
        } else if (!strcmp(*f, "noimm")) {
            dev->noimm = true;
        } else if (!strcmp(*f, "early")) {
            dev->early = true;
        } else if (!strcmp(*f, "negative")) {
            dev->negative = true;
        } else if (!strcmp(*f, "qpevents")) {
            dev->qpevents = true;
        } else if (!strcmp(*f, "flush2")) {
            dev->flush2 = true;
        } else if (!strcmp(*f, "lateflush")) {
            dev->lateflush = true;
        } else if (g_str_has_prefix(*f, "sge=") && n <= SOFT_MAX_SGE) {
            dev->sge = (uint32_t)n;
        } else if (g_str_has_prefix(*f, "inline=")) {
            dev->inline_data = (uint32_t)n;
        } else if (g_str_has_prefix(*f, "ord=")) {
            dev->ord = (uint32_t)n;
        } else if (g_str_has_prefix(*f, "wr=")) {
            dev->wr = (uint32_t)n;
        } else if (g_str_has_prefix(*f, "maxmsg=")) {
            dev->maxmsg = n;
        } else {
            soft_bug("a NIC's flags");
        }
    }
    /* In place of sysfs: the folders of the character device and of the device. */
    snprintf(dev->ibv.dev_name, sizeof(dev->ibv.dev_name), "uverbs%u", soft.n_devs);
    snprintf(dev->ibv.dev_path, sizeof(dev->ibv.dev_path), "%s/%d-%u.verbs", soft.sysfs,
             getpid(), soft.n_devs);
    snprintf(dev->ibv.ibdev_path, sizeof(dev->ibv.ibdev_path), "%s/%d-%u", soft.sysfs,
             getpid(), soft.n_devs);
    mkdir(dev->ibv.dev_path, 0700);
    mkdir(dev->ibv.ibdev_path, 0700);
    g_ptr_array_add(soft.devs, dev);
    soft_listen(dev);
}

static void fatal(struct softdev *dev, bool silent)
{
    dev->fatal = true;
    dev->silent = silent;
    dev->up = false;
    soft_unlisten(dev);
    tell_peers(dev, PKT_DOWN);
    soft_async(dev, IBV_EVENT_DEVICE_FATAL);
}

static void strike(struct softdev *dev, enum ibv_wc_status status)
{
    for (unsigned i = 0; i < soft.qps->len; i++) {
        struct softqp *qp = soft.qps->pdata[i];

        if (qp->ctx->dev == dev && qp->state == IBV_QPS_RTS) {
            soft_qp_fail(qp, status);
        }
    }
}

static void clear(void)
{
    rules_clear();
    soft.hold = -1;
    for (unsigned i = 0; i < soft.devs->len; i++) {
        struct softdev *dev = soft.devs->pdata[i];

        dev->cut_at = dev->lose_at = 0;
    }
    kick_all(NULL);
    soft_wake();
}

/* Whether it is one; with the lock. */
static bool command(char **word)
{
    unsigned n = g_strv_length(word);
    const char *what = n ? word[0] : "";
    struct softdev *dev = n > 1 ? soft_find(word[1]) : NULL;
    int64_t number = n > 2 ? strtoll(word[2], NULL, 0) : 0;

    if (!strcmp(what, "add") && n > 2) {
        add(word);
    } else if (!strcmp(what, "fail") && n == 4 && errno_of(word[3])) {
        rule_add(word[1], (uint64_t)number, errno_of(word[3]), 0);
    } else if (!strcmp(what, "delay") && n == 4) {
        rule_add(word[1], (uint64_t)number, 0, (useconds_t)atoi(word[3]));
    } else if (!strcmp(what, "clear")) {
        clear();
    } else if (!strcmp(what, "hold") && n == 2) {
        soft.hold = strtoll(word[1], NULL, 0);
        soft_wake();
    } else if (!dev) {
        return false;
    } else if (!strcmp(what, "down")) {
        port(dev, false);
    } else if (!strcmp(what, "up")) {
        port(dev, true);
    } else if (!strcmp(what, "gids")) {
        soft_async(dev, IBV_EVENT_GID_CHANGE);
    } else if (!strcmp(what, "event") && n == 3) {
        soft_async(dev, (enum ibv_event_type)number);
    } else if (!strcmp(what, "fatal")) {
        fatal(dev, n > 2);
    } else if (!strcmp(what, "unplug")) {
        fatal(dev, false);
        soft_cm_removed(dev);
        gone(dev);
    } else if (!strcmp(what, "remove")) {
        gone(dev);
    } else if (!strcmp(what, "strike")) {
        strike(dev, n > 2 ? (enum ibv_wc_status)number : IBV_WC_WR_FLUSH_ERR);
    } else if (!strcmp(what, "lose") && n == 3) {
        dev->lose_at = (uint64_t)number;
    } else if (!strcmp(what, "cut") && n > 2) {
        dev->cut_at = (uint64_t)number;
        dev->cut_how = n > 3 && !strcmp(word[3], "after")    ? CUT_AFTER
                       : n > 3 && !strcmp(word[3], "answer") ? CUT_ANSWER
                                                             : CUT_BEFORE;
    } else {
        return false;
    }
    return true;
}

static void commands(const char *text)
{
    char **list = g_strsplit(text, ";", 0);

    for (char **c = list; *c; c++) {
        char **word;

        g_strstrip(*c);
        if (!**c) {
            continue;
        }
        word = g_strsplit(*c, " ", 0);
        pthread_mutex_lock(&soft.lock);
        if (!command(word)) {
            fprintf(stderr, "softnic: %s\n", *c);
            soft_bug("not a command, or no such NIC");
        }
        pthread_mutex_unlock(&soft.lock);
        g_strfreev(word);
    }
    g_strfreev(list);
}

void softnic_do(const char *fmt, ...)
{
    va_list ap;
    char *text;

    va_start(ap, fmt);
    text = g_strdup_vprintf(fmt, ap);
    va_end(ap);
    commands(text);
    g_free(text);
}

int64_t softnic_count(const char *what, const char *name)
{
    int64_t n = -1;
    struct softdev *dev;

    if (!strcmp(what, "calls")) {
        pthread_mutex_lock(&rules_lock);
        n = 0;
        for (struct soft_entry *e = entries; e; e = e->next) {
            n += strcmp(e->name, name) ? 0 : e->calls;
        }
        pthread_mutex_unlock(&rules_lock);
        return n;
    }
    pthread_mutex_lock(&soft.lock);
    dev = name ? soft_find(name) : NULL;
    if (!strcmp(what, "objects")) {
        n = soft.objects;
    } else if (dev) {
        n = !strcmp(what, "rnr")        ? dev->rnr
            : !strcmp(what, "packets")  ? dev->packets
            : !strcmp(what, "contexts") ? soft_contexts(dev)
            : !strcmp(what, "lost")     ? dev->lost
            : !strcmp(what, "overruns") ? dev->overruns
            : !strcmp(what, "tos")      ? dev->tos
                                        : -1;
    }
    pthread_mutex_unlock(&soft.lock);
    return n;
}

void softnic_settle(void)
{
    bool busy = true;

    while (busy) {
        pthread_mutex_lock(&soft.lock);
        while (soft_run(64)) {
        }
        busy = soft.timer_at <= soft_now(); /* flushes are the thread's */
        pthread_mutex_unlock(&soft.lock);
        if (busy) {
            usleep(100);
        }
    }
}

/* ---- start and end of the process ---- */

static void *control_main(void *arg)
{
    int fd = GPOINTER_TO_INT(arg);
    char text[1024];
    ssize_t n;

    while ((n = recv(fd, text, sizeof(text) - 1, 0)) >= 0) {
        text[n] = 0;
        commands(text);
    }
    return NULL;
}

static void control_open(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    pthread_t thread;

    if (snprintf(a.sun_path, sizeof(a.sun_path), "%s/ctl-%d", soft.dir, getpid()) >=
        (int)sizeof(a.sun_path)) {
        soft_bug("the folder's name is too long");
    }
    unlink(a.sun_path); /* that of the program before execve() */
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof(a)) ||
        thread_create(&thread, NULL, control_main, GINT_TO_POINTER(fd))) {
        soft_bug("the control socket");
    }
    pthread_detach(thread);
}

__attribute__((constructor)) static void softnic_init(void)
{
    const char *dir = getenv("PVRDMA_SOFTNIC"), *first = getenv("PVRDMA_SOFTNIC_DO");
    uint32_t random[3];

    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        soft_bug("getrandom");
    }
    soft.key_mask = random[0];
    soft.next_key = random[1];
    soft.next_qpn = random[2] & 0xffffff;
    soft.devs = g_ptr_array_new();
    soft.ctxs = g_ptr_array_new();
    soft.wires = g_ptr_array_new();
    soft.qps = g_ptr_array_new();
    soft.ids = g_ptr_array_new();
    soft.lkeys = g_hash_table_new(NULL, NULL);
    soft.rkeys = g_hash_table_new(NULL, NULL);
    soft.dir = g_strdup(dir);
    soft.sysfs = dir ? g_strdup(dir) : g_dir_make_tmp("softnic-XXXXXX", NULL);
    rnic_verbs = &softnic_verbs;
    if (first) {
        commands(first);
    }
    if (dir) {
        control_open();
    }
}

__attribute__((destructor)) static void softnic_exit(void)
{
    pthread_mutex_lock(&soft.lock);
    if (soft.dir && soft.objects) {
        fprintf(stderr, "softnic: %" PRId64 " objects are left\n", soft.objects);
    }
    for (unsigned i = 0; i < soft.devs->len; i++) {
        struct softdev *dev = soft.devs->pdata[i];

        if (soft.dir && dev->rnr) {
            fprintf(stderr, "softnic: a receiver was not ready %" PRId64 " times\n",
                    dev->rnr);
        }
        rmdir(dev->ibv.dev_path);
        rmdir(dev->ibv.ibdev_path);
    }
    if (!soft.dir) {
        rmdir(soft.sysfs);
    }
    pthread_mutex_unlock(&soft.lock);
}
