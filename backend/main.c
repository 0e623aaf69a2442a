/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * pvrdmad: options, start and stop, main loop - nothing else.
 *
 * Start: configuration, process-wide handlers, worker threads, the VMs'
 * sockets, the admin socket, "ready".  Stop (SIGTERM, SIGINT) is the reverse.
 * No privilege is needed; all it takes is write access to the socket directory.
 */
#include <errno.h>
#include <glib-unix.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "config.h"
#include "control/control.h"
#include "control/registry.h"
#include "coro.h"
#include "datapath/datapath.h"
#include "directory/directory.h"
#include "frontend/frontend.h"
#include "grace.h"
#include "guest/budget.h"
#include "guest/mem.h"
#include "guest/reaper.h"
#include "log.h"

#define DEFAULT_CONFIG PVRDMA_SYSCONFDIR "/pvrdma/pvrdmad.conf"

struct options {
    char *config, *socket_dir, *control_socket, *workers, *worker_priority, *poll_us,
        *log_level;
    gboolean version;
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
    if (access(DEFAULT_CONFIG, F_OK) == 0) {
        return config_load(cfg, DEFAULT_CONFIG, errp);
    }
    config_complete(cfg);
    return true;
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

/* Tell the service manager, if one waits (sd_notify(3) protocol). */
static void notify_manager(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    socklen_t len;
    int s;

    if (!path || (path[0] != '/' && path[0] != '@') ||
        strlen(path) >= sizeof(addr.sun_path)) {
        return;
    }
    strcpy(addr.sun_path, path);
    len = offsetof(struct sockaddr_un, sun_path) + strlen(path);
    if (path[0] == '@') {
        addr.sun_path[0] = 0;
    }
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0) {
        return;
    }
    if (sendto(s, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&addr, len) <
        0) {
        log_msg(LOG_LVL_WARN, "NOTIFY_SOCKET: %s", g_strerror(errno));
    }
    close(s);
}

static gboolean on_signal(gpointer loop)
{
    g_main_loop_quit(loop);
    return G_SOURCE_CONTINUE;
}

static bool add_vms(struct daemon_config *cfg, GError **errp)
{
    while (cfg->vms) {
        struct vm_config *vm = cfg->vms->data;

        cfg->vms = g_list_delete_link(cfg->vms, cfg->vms);
        if (g_strcmp0(vm->socket, cfg->control_socket) == 0) {
            g_set_error(errp, PVRDMA_ERROR, 0, "VM %s: its socket is the control socket",
                        vm->name);
            config_vm_free(vm);
            return false;
        }
        if (!registry_add(vm, errp)) {
            return false;
        }
    }
    return true;
}

static void serve(struct daemon_config *cfg)
{
    g_autoptr(GMainLoop) loop = g_main_loop_new(NULL, FALSE);
    guint term = g_unix_signal_add(SIGTERM, on_signal, loop);
    guint intr = g_unix_signal_add(SIGINT, on_signal, loop);

    log_msg(LOG_LVL_INFO, "ready: %u VM(s), %u worker(s), control socket %s",
            g_list_length(registry_all()), cfg->workers, cfg->control_socket);
    notify_manager("READY=1");
    g_main_loop_run(loop);
    log_msg(LOG_LVL_INFO, "stopping");
    notify_manager("STOPPING=1");
    g_source_remove(term);
    g_source_remove(intr);
}

static bool run(struct daemon_config *cfg, GError **errp)
{
    bool ok = false;

    if (g_mkdir_with_parents(cfg->socket_dir, 0755) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "%s: %s", cfg->socket_dir, g_strerror(errno));
        return false;
    }
    signal(SIGPIPE, SIG_IGN);
    raise_fd_limit();
    guest_mem_init_process();
    budget_set_daemon(cfg->max_mapped);
    directory_init();
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
    /* The control socket first: it tells a second daemon to keep off. */
    if (!control_listen(cfg, errp)) {
        goto out_datapath;
    }
    ok = add_vms(cfg, errp);
    if (ok) {
        serve(cfg);
    }
    control_close();
    registry_remove_all("the daemon ends");
out_datapath:
    datapath_stop();
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

int main(int argc, char **argv)
{
    struct daemon_config *cfg = config_new();
    struct options o = {0};
    g_autoptr(GError) err = NULL;
    bool ok;

    setlocale(LC_ALL, "");
    ok = parse_options(&o, &argc, &argv, &err);
    if (ok && o.version) {
        printf("pvrdmad %s\n", PVRDMA_PROJECT_VERSION);
    } else if (ok) {
        ok = configure(cfg, &o, &err);
        if (ok) {
            log_set_level(cfg->log_level);
            ok = run(cfg, &err);
        }
    }
    if (!ok) {
        fprintf(stderr, "pvrdmad: %s\n", err ? err->message : "failed");
    }
    free_options(&o);
    config_free(cfg);
    return ok ? EXIT_SUCCESS : EXIT_FAILURE;
}
