/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pvrdmad: options, start and stop, main loop - nothing else.
 *
 * Start: configuration, process-wide handlers, worker threads, the VMs'
 * sockets, the admin socket, "ready".  Stop is the reverse (SIGINT; SIGTERM, unless the
 * VMs can be left to the next daemon, leave.c).
 * No privilege is needed; all it takes is write access to the socket directory.
 */
#include <errno.h>
#include <glib-unix.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/coro.h"
#include "base/grace.h"
#include "base/log.h"
#include "base/thread.h"
#include "config/config.h"
#include "control/control.h"
#include "control/registry.h"
#include "control/reload.h"
#include "control/restart/restart.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/frontend.h"
#include "guest/budget.h"
#include "guest/mem.h"
#include "guest/reaper.h"
#include "handover/manager.h"
#include "transport/iwarp/iwarp.h"
#include "transport/link/addresses.h"
#include "transport/link/datagrams.h"
#include "transport/link/peer.h"
#include "transport/rnic/nic.h"
#include "transport/rnic/pair.h"
#include "vm/attach.h"

/*
 * What a VM takes as a rule: its socket, connection, doorbells, ten interrupts (hw/'s
 * default; 34 is the most), two files of memory.  And the daemon itself, with its
 * workers, clients and what is on its way.
 */
#define FDS_PER_VM 17u
#define FDS_DAEMON 128u
/* A peer: its link, and one that is about to take its place. */
#define FDS_PER_PEER 2u
/* For others: addresses to listen on, and connections that nobody knows. */
#define FDS_HOSTS 80u

#define DEFAULT_CONFIG PVRDMA_SYSCONFDIR "/pvrdma/pvrdmad.conf"

struct options {
    char *config, *socket_dir, *control_socket, *workers, *worker_priority, *poll_us,
        *log_level, *can_adopt;
    gboolean version, check, dumpable;
};

static bool parse_options(struct options *o, int *argc, char ***argv, GError **errp)
{
    const GOptionEntry entries[] = {
        {"config", 'c', 0, G_OPTION_ARG_FILENAME, &o->config,
         "Key file (default: " DEFAULT_CONFIG ", if it exists)", "FILE"},
        {"socket-dir", 0, 0, G_OPTION_ARG_FILENAME, &o->socket_dir,
         "Where the VMs' sockets are made", "DIR"},
        {"control-socket", 0, 0, G_OPTION_ARG_FILENAME, &o->control_socket,
         "Socket for pvrdmactl (default: DIR/control)", "PATH"},
        {"workers", 0, 0, G_OPTION_ARG_STRING, &o->workers, "Data path threads", "N"},
        {"worker-priority", 0, 0, G_OPTION_ARG_STRING, &o->worker_priority,
         "auto, normal, nice:N, fifo:N or rr:N", "CLASS"},
        {"poll-us", 0, 0, G_OPTION_ARG_STRING, &o->poll_us,
         "How long a worker polls before it sleeps, in microseconds", "N"},
        {"log-level", 0, 0, G_OPTION_ARG_STRING, &o->log_level,
         "error, warn, info or debug", "LEVEL"},
        {"check-config", 0, 0, G_OPTION_ARG_NONE, &o->check,
         "Report errors in the key file and exit", NULL},
        {"can-adopt", 0, G_OPTION_FLAG_HIDDEN, G_OPTION_ARG_STRING, &o->can_adopt,
         "For a daemon that is about to be replaced: report what can be taken over", "N"},
        {"dumpable", 0, 0, G_OPTION_ARG_NONE, &o->dumpable,
         "Let the daemon's user trace it and take core dumps", NULL},
        {"version", 0, 0, G_OPTION_ARG_NONE, &o->version, "Show the version", NULL},
        {NULL},
    };
    g_autoptr(GOptionContext) ctx = g_option_context_new("- RDMA for virtual machines");

    g_option_context_add_main_entries(ctx, entries, NULL);
    if (!g_option_context_parse(ctx, argc, argv, errp)) {
        return false;
    }
    if (*argc > 1) {
        g_set_error(errp, PVRDMA_ERROR, 0, "unexpected argument \"%s\"", (*argv)[1]);
        return false;
    }
    return true;
}

static void free_options(struct options *o)
{
    g_free(o->config);
    g_free(o->socket_dir);
    g_free(o->control_socket);
    g_free(o->workers);
    g_free(o->worker_priority);
    g_free(o->poll_us);
    g_free(o->log_level);
    g_free(o->can_adopt);
}

/* Command line first, since it wins over the file. */
static bool configure(struct daemon_config *cfg, const struct options *o, GError **errp)
{
    const struct {
        const char *key, *value;
    } given[] = {
        {"socket-dir", o->socket_dir}, {"control-socket", o->control_socket},
        {"workers", o->workers},       {"worker-priority", o->worker_priority},
        {"poll-us", o->poll_us},       {"log-level", o->log_level},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(given); i++) {
        if (given[i].value &&
            !config_set(cfg, given[i].key, given[i].value, true, errp)) {
            g_prefix_error(errp, "--");
            return false;
        }
    }
    if (o->config) {
        return config_load(cfg, o->config, errp);
    }
    return config_load_default(cfg, DEFAULT_CONFIG, errp);
}

/*
 * Guests' memory is mapped here.  Whatever else runs as the daemon's user, a VMM for
 * instance, must not get at it with ptrace() or through /proc, nor a core file.  The
 * daemon's own looks into /proc/self are not affected.
 */
static void close_to_others(void)
{
#ifndef __SANITIZE_ADDRESS__ /* whose search for leaks traces the process */
    if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) {
        log_msg(LOG_LVL_WARN, "PR_SET_DUMPABLE: %s", g_strerror(errno));
    }
#endif
}

/* A VM takes a few descriptors for its memory, doorbells and interrupts. */
static void raise_fd_limit(void)
{
    struct rlimit rl;

    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
        rl.rlim_cur = rl.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &rl) < 0) {
            log_msg(LOG_LVL_WARN, "RLIMIT_NOFILE: %s", g_strerror(errno));
        }
    }
}

static gboolean on_watchdog(gpointer unused)
{
    manager_notify("WATCHDOG=1", false);
    return G_SOURCE_CONTINUE;
}

/*
 * If the service manager wants to know that the main loop turns: tell it, twice in the
 * time that it allows, and now, as a daemon that was replaced in the same process may
 * have said nothing yet.  The source's id, or 0.
 */
static guint start_watchdog(void)
{
    guint64 us = manager_watchdog_us();

    if (us) {
        on_watchdog(NULL);
    }
    return us ? g_timeout_add((guint)MAX(us / 2000, 1), on_watchdog, NULL) : 0;
}

/* GLib's own complaints go the way of all messages, so they do not block either. */
static void on_glib_message(const char *domain, GLogLevelFlags flags, const char *text,
                            gpointer unused)
{
    bool bad = flags & (G_LOG_LEVEL_ERROR | G_LOG_LEVEL_CRITICAL);

    if (flags & (G_LOG_LEVEL_MESSAGE | G_LOG_LEVEL_INFO | G_LOG_LEVEL_DEBUG)) {
        return;
    }
    log_msg(bad ? LOG_LVL_ERROR : LOG_LVL_WARN, "%s-%s **: %s",
            domain ? domain : "pvrdmad",
            flags & G_LOG_LEVEL_ERROR      ? "ERROR"
            : flags & G_LOG_LEVEL_CRITICAL ? "CRITICAL"
                                           : "WARNING",
            text);
    if (flags & G_LOG_FLAG_FATAL) {
        log_drain(1000);
    }
}

/* A failed assertion, or the service manager's watchdog: what led to it must be seen. */
static void on_abort(int sig)
{
    log_panic();
    raise(sig); /* SA_RESETHAND: now as it would be without us */
}

static bool start_log(GError **errp)
{
    struct sigaction sa = {.sa_handler = on_abort, .sa_flags = SA_RESETHAND | SA_NODEFER};

    g_log_set_default_handler(on_glib_message, NULL);
    sigaction(SIGABRT, &sa, NULL);
    return log_start(errp);
}

static gboolean on_signal(gpointer loop)
{
    g_main_loop_quit(loop);
    return G_SOURCE_CONTINUE;
}

/* To the service manager's keeping, or, if it does not keep it, to nobody. */
static void leave_coro(void *loop)
{
    restart_leave();
    g_main_loop_quit(loop);
}

/* The second time it is meant without delay. */
static gboolean on_term(gpointer loop)
{
    static bool leaving;

    if (leaving) {
        g_main_loop_quit(loop);
    } else {
        leaving = true;
        coro_run(leave_coro, loop);
    }
    return G_SOURCE_CONTINUE;
}

/* Are there enough descriptors for the declared VMs? */
static void check_fd_limit(const struct daemon_config *cfg)
{
    unsigned n = registry_count() + g_list_length(registry_failed());
    unsigned hosts =
        cfg->n_listen ? FDS_HOSTS + g_list_length(cfg->peers) * FDS_PER_PEER : 0;
    unsigned need = FDS_DAEMON + n * FDS_PER_VM + hosts;
    struct rlimit rl;

    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < need) {
        log_msg(LOG_LVL_WARN,
                "%llu descriptors (RLIMIT_NOFILE) are not enough for %u VM(s): about %u "
                "are needed",
                (unsigned long long)rl.rlim_cur, n, need);
    }
}

static void say_vms(const struct daemon_config *cfg)
{
    if (!registry_count()) {
        log_msg(LOG_LVL_WARN, "no VM is declared: %s %s", cfg->path,
                cfg->no_file ? "does not exist" : "has none that can be served");
    }
    check_fd_limit(cfg);
}

static void reload_coro(void *unused)
{
    reload_run(NULL, NULL);
}

/* If it cannot be had now, what the key file says is not to wait for that. */
static void restart_coro(void *unused)
{
    restart_run(-1, NULL);
    reload_run(NULL, NULL);
}

static gboolean on_restart(gpointer unused)
{
    coro_run(restart_coro, NULL);
    return G_SOURCE_CONTINUE;
}

static gboolean on_hangup(gpointer unused)
{
    coro_run(reload_coro, NULL);
    return G_SOURCE_CONTINUE;
}

/* Those that were held back while this daemon took another one's place. */
static void allow_signals(void)
{
    sigset_t ours;

    thread_main_signals(&ours);
    pthread_sigmask(SIG_UNBLOCK, &ours, NULL);
}

static void serve(struct daemon_config *cfg)
{
    g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);
    guint term = g_unix_signal_add(SIGTERM, on_term, loop);
    guint intr = g_unix_signal_add(SIGINT, on_signal, loop);
    guint hup = g_unix_signal_add(SIGHUP, on_hangup, NULL);
    guint usr2 = g_unix_signal_add(SIGUSR2, on_restart, NULL);
    guint watchdog = start_watchdog();

    adopt_finish();
    say_vms(cfg);
    log_msg(LOG_LVL_INFO, "ready: %u VM(s), %u worker(s), control socket %s",
            registry_count(), cfg->workers, cfg->control_socket);
    manager_notify("READY=1", true);
    allow_signals();
    g_main_loop_run(loop);
    log_msg(LOG_LVL_INFO, "stopping");
    manager_notify("STOPPING=1", true);
    g_source_remove(term);
    g_source_remove(intr);
    g_source_remove(hup);
    g_source_remove(usr2);
    restart_stop();
    if (watchdog) {
        g_source_remove(watchdog);
    }
}

static bool serve_vms(struct daemon_config *cfg, GError **errp)
{
    bool ok = false;

    if (g_mkdir_with_parents(cfg->socket_dir, 0755) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "%s: %s", cfg->socket_dir, g_strerror(errno));
        return false;
    }
    guest_mem_init_process();
    budget_set_daemon(cfg->max_mapped);
    budget_set_objects(cfg->max_objects);
    directory_init();
    directory_set_max_hold(cfg->hold_timeout * UINT64_C(1000000000));
    directory_set_moved(vm_has_moved);
    if (!grace_start(errp)) {
        goto out_directory;
    }
    if (!reaper_start(errp)) {
        goto out_grace;
    }
    if (!registry_start(errp)) {
        goto out_reaper;
    }
    datapath_set_priority(&cfg->worker_priority);
    if (!datapath_start(cfg->workers, cfg->poll_us, errp)) {
        goto out_vm;
    }
    if (!tcp_open(cfg->local_path != CONFIG_PATH_AUTO, errp)) {
        goto out_tcp;
    }
    tcp_use(cfg);
    /* The control socket first: it tells a second daemon to keep off. */
    if (!control_listen(cfg, errp)) {
        goto out_tcp;
    }
    rnic_pairs_start(cfg, cfg->local_path == CONFIG_PATH_RNIC);
    rnic_nics_start(cfg);
    reload_start(cfg);
    if (!claims_start(cfg->host_name, cfg->peer_timeout, errp)) {
        goto out_control;
    }
    ud_start();
    peers_start(cfg);
    serve(cfg);
    ok = true;
    ud_stop();
out_control:
    reload_stop();
    control_close();
    registry_remove_all("the daemon ends");
    /* Behind the VMs: others hear that their addresses are gone. */
    claims_stop();
    rnic_pairs_stop();
    peers_stop();
out_tcp:
    tcp_close();
    datapath_stop();
    rnic_nics_stop();
out_vm:
    registry_stop();
out_reaper:
    reaper_stop();
out_grace:
    grace_stop();
out_directory:
    coro_fini();
    directory_fini();
    return ok;
}

/* For an administrator who is about to start or reload the daemon. */
static bool check_config(const struct daemon_config *cfg)
{
    for (GList *l = cfg->warnings; l; l = l->next) {
        fprintf(stderr, "%s: %s\n", cfg->path, (const char *)l->data);
    }
    for (GList *l = cfg->problems; l; l = l->next) {
        const struct config_problem *p = l->data;

        fprintf(stderr, "%s: %s\n", cfg->path, p->why);
    }
    printf("%s: %u VM(s), %u group(s) with errors\n", cfg->path, g_list_length(cfg->vms),
           g_list_length(cfg->problems));
    return cfg->problems == NULL;
}

/* False without *errp: nobody reads stderr. */
static bool run(struct daemon_config *cfg, GError **errp)
{
    bool ok;

    signal(SIGPIPE, SIG_IGN);
    if (!start_log(errp)) {
        return false;
    }
    for (GList *l = cfg->warnings; l; l = l->next) {
        log_msg(LOG_LVL_WARN, "%s: %s", cfg->path, (const char *)l->data);
    }
    raise_fd_limit(); /* before descriptors come */
    ok = adopt_open(errp) && serve_vms(cfg, errp);
    if (!log_stop()) {
        g_clear_error(errp);
    }
    return ok;
}

int main(int argc, char **argv)
{
    struct daemon_config *cfg = config_new();
    struct options o = {0};
    g_autoptr(GError) err = NULL;
    bool ok;

    setlocale(LC_ALL, "");
    restart_init(argv);
    adopt_init();
    ok = parse_options(&o, &argc, &argv, &err);
    if (ok && o.version) {
        printf("pvrdmad %s\n", PVRDMA_PROJECT_VERSION);
    } else if (ok) {
        ok = configure(cfg, &o, &err);
        if (ok && o.can_adopt) {
            ok = adopt_answer(o.can_adopt, &err);
        } else if (ok && o.check) {
            ok = check_config(cfg);
        } else if (ok) {
            log_set_level(cfg->log_level);
            if (!o.dumpable) {
                close_to_others();
            }
            ok = run(cfg, &err);
        }
    }
    if (err) {
        fprintf(stderr, "pvrdmad: %s\n", err->message);
    }
    free_options(&o);
    config_free(cfg);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
