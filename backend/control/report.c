/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about itself and its VMs, as JSON.
 *
 * Main thread.  Objects are made and destroyed by this thread, so their pointers hold
 * still; what workers change is an atomic counter, or read under locks (report_qps.c).
 * Looking must not hold up traffic or commands: in a coroutine the main loop turns
 * between VMs (coro_breathe).
 */
#include "base/coro.h"
#include "control/control.h"
#include "control/json.h"
#include "control/registry.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "directory/directory.h"
#include "frontend/frontend.h"
#include "guest/budget.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "transport/link/peer.h"
#include "transport/link/datagrams.h"
#include "vm/attach.h"

/* ---- the process ---- */

static unsigned count_dir(const char *path)
{
    DIR *dir = opendir(path);
    unsigned n = 0;

    if (!dir) {
        return 0;
    }
    for (struct dirent *e = readdir(dir); e; e = readdir(dir)) {
        n += e->d_name[0] != '.';
        coro_breathe();
    }
    closedir(dir);
    return n;
}

/* A "Name:  123 kB" line of /proc/self/status. */
static uint64_t proc_kb(const char *status, const char *name)
{
    const char *line = strstr(status, name);
    unsigned long long kb = 0;

    if (!line || sscanf(line + strlen(name), " %llu", &kb) != 1) {
        return 0;
    }
    return kb;
}

static void report_process(GString *s)
{
    g_autofree char *status = NULL;

    g_file_get_contents("/proc/self/status", &status, NULL, NULL);
    json_begin(s, "process", '{');
    /* Not counted: the descriptor of this very look. */
    json_int(s, "fds", count_dir("/proc/self/fd") - 1);
    json_int(s, "threads", count_dir("/proc/self/task"));
    json_int(s, "mappings_kb", proc_kb(status ? status : "", "VmSize:"));
    json_int(s, "rss_kb", proc_kb(status ? status : "", "VmRSS:"));
    json_int(s, "rss_anon_kb", proc_kb(status ? status : "", "RssAnon:"));
    json_end(s, '}');
}

/* Did the workers get a processor when they wanted one? */
static void report_workers(GString *s)
{
    g_autofree char *granted = NULL;
    struct cpu_usage u;
    pid_t tid;

    json_begin(s, "worker_threads", '[');
    for (unsigned i = 0; datapath_worker_usage(i, &tid, &granted, &u); i++) {
        json_begin(s, NULL, '{');
        json_int(s, "thread", tid);
        json_str(s, "priority", granted);
        json_int(s, "ran_us", u.ran_ns / 1000);
        json_int(s, "waited_us", u.waited_ns / 1000);
        json_int(s, "lost_processor", u.lost);
        json_end(s, '}');
        g_clear_pointer(&granted, g_free);
    }
    json_end(s, ']');
}

/* Guests' memory in this process's address space. */
static void report_mapped(GString *s)
{
    struct budget_stats st;

    budget_get_daemon(&st);
    json_begin(s, "guest_memory", '{');
    json_int(s, "bytes", st.bytes);
    json_int(s, "max_bytes", st.max_bytes);
    json_int(s, "mappings", st.mappings);
    json_int(s, "max_mappings", st.max_mappings);
    json_int(s, "unmapping_bytes", st.pending);
    json_end(s, '}');
}

/* VMs' objects in this process's memory. */
static void report_all_objects(GString *s)
{
    struct budget_objects st;

    budget_get_daemon_objects(&st);
    json_begin(s, "objects", '{');
    json_int(s, "bytes", st.bytes);
    json_int(s, "max_bytes", st.max_bytes);
    json_int(s, "refused", st.refused);
    json_end(s, '}');
}

/* What is known of other hosts' addresses, and what came from there. */
static void report_directory(GString *s)
{
    struct directory_stats d;
    struct ud_stats u;

    directory_get_stats(&d);
    ud_get_stats(&u);
    json_begin(s, "directory", '{');
    json_str(s, "engine", d.engine ? d.engine : "none");
    json_int(s, "remote_gids", d.remote);
    json_int(s, "left_gids", d.left);
    json_int(s, "waiting_gids", d.waiting);
    json_int(s, "asked_gids", d.asked);
    json_int(s, "questions", d.asks);
    json_int(s, "claims_refused", d.refused);
    json_int(s, "too_many", d.too_many);
    json_end(s, '}');
    json_begin(s, "remote_datagrams", '{');
    json_int(s, "received", u.received);
    json_int(s, "bad_source", u.bad_source);
    json_int(s, "to_nobody", u.nobody);
    json_end(s, '}');
}

void report_status(GString *s, const struct daemon_config *cfg)
{
    json_str(s, "version", PVRDMA_PROJECT_VERSION);
    json_int(s, "pid", getpid());
    json_str(s, "socket_dir", cfg->socket_dir);
    json_int(s, "workers", cfg->workers);
    json_int(s, "poll_us", cfg->poll_us);
    json_int(s, "directory_gids", directory_count());
    report_directory(s);
    report_process(s);
    report_workers(s);
    report_mapped(s);
    report_all_objects(s);
}

/* ---- a VM ---- */

void report_objects(GString *s, struct vm *vm)
{
    struct objects_stats st = {0};
    struct budget_objects b;

    budget_get_objects(vm->guest.mem.budget, &b);
    if (vm->attached) {
        objects_get_stats(&vm->objects, &st);
    }
    json_begin(s, "objects", '{');
    json_int(s, "contexts", st.uctx);
    json_int(s, "pds", st.pd);
    json_int(s, "mrs", st.mr);
    json_int(s, "cqs", st.cq);
    json_int(s, "qps", st.qp);
    json_int(s, "srqs", st.srq);
    json_int(s, "gids", st.gid);
    json_int(s, "pages", st.pages);
    json_int(s, "bytes", b.bytes);
    json_int(s, "no_memory", b.refused);
    json_end(s, '}');
}

void report_memory(GString *s, struct vm *vm)
{
    struct guest_mem_stats st;

    guest_mem_get_stats(&vm->guest.mem, &st);
    json_begin(s, "memory", '{');
    json_int(s, "regions", st.regions);
    json_int(s, "files", st.files);
    json_int(s, "ram_bytes", st.ram);
    json_int(s, "bytes", st.bytes);
    json_int(s, "unmapping_bytes", st.pending);
    json_int(s, "refused", st.refused);
    json_end(s, '}');
}

void report_failed(GString *s)
{
    json_begin(s, "failed", '[');
    for (GList *l = registry_failed(); l; l = l->next) {
        const struct registry_failed *f = l->data;

        json_begin(s, NULL, '{');
        json_str(s, "name", f->name);
        json_str(s, "reason", f->why);
        json_end(s, '}');
    }
    json_end(s, ']');
}

void report_all(GString *s, void (*report)(GString *s, struct vm *vm))
{
    g_autoptr(GPtrArray) names = registry_names();

    json_begin(s, "vms", '[');
    for (guint i = 0; i < names->len; i++) {
        struct vm *vm = registry_find(names->pdata[i]);

        if (vm) {
            report(s, vm);
        }
        coro_breathe();
    }
    json_end(s, ']');
}

static void report_addresses(GString *s, const struct vm_config *cfg)
{
    char text[CONFIG_GID_STRLEN];

    json_begin(s, "addresses", '[');
    if (cfg->any_address) {
        json_str(s, NULL, "any");
    }
    for (unsigned i = 0; i < cfg->n_addresses; i++) {
        config_format_gid(&cfg->addresses[i], text);
        json_str(s, NULL, text);
    }
    json_end(s, ']');
}

static void report_gids(GString *s, struct vm *vm)
{
    char text[CONFIG_GID_STRLEN];

    json_begin(s, "bound_gids", '[');
    for (unsigned i = 0; vm->attached && i < VERBS_GID_TBL_LEN; i++) {
        if (gid_is_held(&vm->objects.gid[i])) {
            config_format_gid(&vm->objects.gid[i].gid, text);
            json_str(s, NULL, text);
        }
    }
    json_end(s, ']');
    json_begin(s, "waiting_gids", '[');
    for (unsigned i = 0; vm->attached && i < VERBS_GID_TBL_LEN; i++) {
        const struct gid_entry *entry = &vm->objects.gid[i];

        if (entry->waiting) {
            char holder[DIRECTORY_HOLDER_LEN];

            config_format_gid(&entry->gid, text);
            directory_holder_text(vm->cfg->network, &entry->gid, holder);
            json_begin(s, NULL, '{');
            json_str(s, "gid", text);
            json_str(s, "holder", holder);
            json_end(s, '}');
        }
    }
    json_end(s, ']');
}

/* Those that may serve it; empty: any. */
static void report_named_workers(GString *s, const struct vm_config *cfg)
{
    json_begin(s, "named_workers", '[');
    for (uint64_t left = cfg->workers; left; left &= left - 1) {
        json_int(s, NULL, __builtin_ctzll(left));
    }
    json_end(s, ']');
}

void report_vm(GString *s, struct vm *vm)
{
    const struct vm_config *cfg = vm->cfg;

    json_begin(s, NULL, '{');
    json_str(s, "name", cfg->name);
    json_str(s, "socket", cfg->socket);
    json_str(s, "network", cfg->network);
    report_addresses(s, cfg);
    if (cfg->has_mac) {
        char mac[18];

        g_snprintf(mac, sizeof(mac), "%02x:%02x:%02x:%02x:%02x:%02x", cfg->mac[0],
                   cfg->mac[1], cfg->mac[2], cfg->mac[3], cfg->mac[4], cfg->mac[5]);
        json_str(s, "mac", mac);
    }
    json_bool(s, "connected", vm->conn != NULL);
    json_bool(s, "attached", vm->attached);
    json_bool(s, "active", vm->attached && vm->dev->active);
    json_bool(s, "paused", vm->attached && atomic_load(&vm->dp.paused));
    json_bool(s, "admin_paused", vm->admin_paused);
    if (vm->attached) {
        json_int(s, "worker", datapath_vm_worker(vm));
    }
    report_named_workers(s, cfg);
    if (vm->retiring || vm->next_cfg) {
        g_autofree char *what =
            vm->next_cfg ? config_vm_diff(vm->cfg, vm->next_cfg) : NULL;

        json_str(s, "pending", vm->retiring ? "removal" : what ? what : "-");
    }
    json_int(s, "attaches", vm->attaches);
    json_int(s, "faults", vm->faults);
    report_gids(s, vm);
    report_objects(s, vm);
    report_memory(s, vm);
    json_begin(s, "limits", '{');
    json_int(s, "max_qp", cfg->max_qp);
    json_int(s, "max_cq", cfg->max_cq);
    json_int(s, "max_srq", cfg->max_srq);
    json_int(s, "max_mr", cfg->max_mr);
    json_int(s, "max_pd", cfg->max_pd);
    json_int(s, "max_mr_pages", cfg->max_mr_pages);
    json_int(s, "shares", cfg->shares);
    json_int(s, "max_memory", cfg->max_memory);
    json_int(s, "max_files", cfg->max_files);
    json_int(s, "nic_rate", cfg->nic_rate); /* 0: no limit */
    json_int(s, "nic_dscp", cfg->nic_dscp);
    json_end(s, '}');
    json_end(s, '}');
}
