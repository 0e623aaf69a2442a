/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: `pvrdmactl nic list`, of a daemon without RDMA devices, and of one over
 * NICs in memory (tests/softnic) whose links go and come, and which is replaced.
 */
#include "keeper.h"
#include "vgtest.h"

#include <glib/gstdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char *folder; /* of softnic */

static struct vg_daemon *start(bool softnic, const char *groups)
{
    struct vg_daemon_opts o = {.n_vms = 1, .poll_us = -1, .vm_keys = groups};
    g_autofree char *before = g_strdup(g_getenv("PVRDMAD"));
    struct vg_daemon *d;

    if (softnic) {
        folder = g_dir_make_tmp("nics-XXXXXX", NULL);
        g_setenv("PVRDMA_SOFTNIC", folder, TRUE);
        g_setenv("PVRDMA_SOFTNIC_DO", "add soft0 10.9.0.1;add soft1 10.9.0.2 iwarp",
                 TRUE);
        g_setenv("PVRDMAD", PVRDMAD_SOFTNIC, TRUE);
    } else {
        g_setenv("PVRDMAD", PVRDMAD, TRUE);
    }
    d = vg_daemon_start(&o);
    if (before) {
        g_setenv("PVRDMAD", before, TRUE);
    } else {
        g_unsetenv("PVRDMAD");
    }
    return d;
}

static void stop(struct vg_daemon *d)
{
    g_autofree char *ctl =
        folder ? g_strdup_printf("%s/ctl-%d", folder, (int)d->pid) : NULL;

    vg_daemon_stop(d);
    if (folder) {
        g_unlink(ctl);
        g_rmdir(folder);
        g_clear_pointer(&folder, g_free);
        g_unsetenv("PVRDMA_SOFTNIC");
        g_unsetenv("PVRDMA_SOFTNIC_DO");
    }
}

/* A command of softnic.h. */
static void soft(const struct vg_daemon *d, const char *command)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    g_snprintf(a.sun_path, sizeof(a.sun_path), "%s/ctl-%d", folder, (int)d->pid);
    g_assert_cmpint(
        sendto(fd, command, strlen(command), 0, (struct sockaddr *)&a, sizeof(a)), ==,
        (ssize_t)strlen(command));
    close(fd);
}

static char *list(const struct vg_daemon *d)
{
    char *text = NULL;

    g_assert_cmpint(vg_ctl(d, &text, "nic list"), ==, 0);
    return text;
}

/* The row of @name, to be freed with *node; NULL: there is none. */
static JsonObject *row(const struct vg_daemon *d, const char *name, JsonNode **node)
{
    JsonArray *rows;

    *node = vg_ctl_json(d, "nic list");
    rows = json_object_get_array_member(json_node_get_object(*node), "nics");
    for (guint i = 0; i < json_array_get_length(rows); i++) {
        JsonObject *o = json_array_get_object_element(rows, i);

        if (strcmp(json_object_get_string_member(o, "name"), name) == 0) {
            return o;
        }
    }
    return NULL;
}

static bool is(const struct vg_daemon *d, const char *name, const char *state,
               const char *reason)
{
    g_autoptr(JsonNode) node = NULL;
    JsonObject *o = row(d, name, &node);

    return o && strcmp(json_object_get_string_member(o, "state"), state) == 0 &&
           strstr(json_object_get_string_member(o, "reason"), reason);
}

static bool there(const struct vg_daemon *d, const char *name)
{
    g_autoptr(JsonNode) node = NULL;

    return row(d, name, &node) != NULL;
}

/* ---- tests ---- */

static void test_no_group(void)
{
    struct vg_daemon *d = start(false, NULL);
    g_autofree char *text = list(d);

    g_assert_nonnull(strstr(text, "the key file has no [nic NAME] group"));
    stop(d);
}

static void test_no_device(void)
{
    struct vg_daemon *d = start(false, "[nic rail0]\ndevice=no-such\naddress=10.9.0.1\n"
                                       "[nic bad]\ndevice=no-such\n");
    const char *why = g_file_test("/dev/infiniband", G_FILE_TEST_EXISTS)
                          ? "there is no"
                          : "no /dev/infiniband: is the module ib_uverbs loaded?";
    g_autofree char *text = NULL;

    vgt_await(is(d, "rail0", "absent", why));
    text = list(d);
    g_assert_nonnull(strstr(text, why));
    g_assert_nonnull(strstr(text, "[nic bad] address: is missing"));
    stop(d);
}

#define RAIL0                                                                    \
    "[nic rail0]\ndevice=soft0\naddress=10.9.0.1\nfabric=blue\nnetworks=lan;x\n" \
    "max-requests=99\n"

static void test_links(void)
{
    struct vg_daemon *d =
        start(true, RAIL0 "[nic rail1]\ndevice=soft1\naddress=10.9.0.2\n");
    g_autoptr(JsonNode) node = NULL;
    g_autofree char *text = NULL;
    JsonObject *o;

    vgt_await(is(d, "rail0", "up", "") && is(d, "rail1", "up", ""));
    o = row(d, "rail0", &node);
    g_assert_cmpstr(json_object_get_string_member(o, "kind"), ==, "RoCE");
    g_assert_cmpstr(json_object_get_string_member(o, "address"), ==, "10.9.0.1");
    g_assert_cmpstr(json_object_get_string_member(o, "fabric"), ==, "blue");
    g_assert_cmpuint(json_array_get_length(json_object_get_array_member(o, "networks")),
                     ==, 2);
    g_assert_cmpint(json_object_get_int_member(o, "mtu"), ==, 4096);
    g_assert_cmpint(json_object_get_int_member(o, "mbit_s"), ==, 100000);
    g_assert_cmpint(json_object_get_int_member(o, "max_in_flight"), ==, 1250000);
    g_assert_cmpint(json_object_get_int_member(o, "max_requests"), ==, 99);
    text = list(d);
    g_assert_true(g_regex_match_simple("rail0 +soft0 +RoCE +10.9.0.1 +blue +up +[0-9.]+s "
                                       "+100G +4096 no +0 +0 +lan,x +-\n"
                                       "rail1 +soft1 +iWARP +10.9.0.2 +default +up ",
                                       text, 0, 0));
    soft(d, "down soft0");
    vgt_await(is(d, "rail0", "down", "port 1 is down"));
    soft(d, "up soft0");
    vgt_await(is(d, "rail0", "up", ""));
    soft(d, "remove soft0");
    vgt_await(is(d, "rail0", "absent", "there is no device soft0, but soft1"));
    soft(d, "add soft0 10.9.0.7");
    vgt_await(is(d, "rail0", "down", "address 10.9.0.1 is not on it"));
    soft(d, "unplug soft0");
    vgt_await(is(d, "rail0", "absent", "there is no device soft0, but soft1"));
    soft(d, "add soft0 10.9.0.1");
    vgt_await(is(d, "rail0", "up", ""));
    soft(d, "unplug soft0");
    vgt_await(is(d, "rail0", "resting", "failed twice in a minute"));
    g_assert_true(is(d, "rail1", "up", ""));
    stop(d);
}

/* The next daemon opens them anew; a reload closes them. */
static void test_restart(void)
{
    struct vg_daemon *d = start(true, RAIL0);
    g_autofree char *text = NULL, *end = NULL;
    char *group;

    vgt_await(is(d, "rail0", "up", ""));
    g_assert_cmpint(vg_ctl(d, NULL, "restart"), ==, 0);
    vgt_await(is(d, "rail0", "up", ""));
    soft(d, "down soft0");
    vgt_await(is(d, "rail0", "down", "port 1 is down"));
    g_assert_true(g_file_get_contents(d->log, &text, NULL, NULL));
    g_assert_nonnull(strstr(text, "is closing: the daemon is being replaced"));

    g_assert_true(g_file_get_contents(d->config, &end, NULL, NULL));
    group = strstr(end, "[nic rail0]");
    g_assert_nonnull(group);
    *group = 0;
    g_assert_true(g_file_set_contents(d->config, end, -1, NULL));
    g_clear_pointer(&text, g_free);
    g_assert_cmpint(vg_ctl(d, &text, "reload"), ==, 0);
    g_assert_nonnull(strstr(text, "NIC rail0: removed"));
    vgt_await(!there(d, "rail0"));
    stop(d);
}

/* A call does not come back: when the daemon is to end it hands no VM over, as its own
 * end would wait for the call, and the VMs with it. */
static void test_stuck(void)
{
    struct keeper *keeper = keeper_start();
    struct vg_daemon *d = start(true, RAIL0), *shared = vgt_daemon;
    struct vguest *g = vguest_new(d, 0, NULL);

    vgt_daemon = d;
    vgt_await(is(d, "rail0", "up", ""));
    soft(d, "delay close_device 1 60000000");
    vg_daemon_end(d);
    vgt_wait_logged("no VM is handed over to the next daemon: NIC rail0 does not close");
    g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
    vguest_crash(g);
    keeper_wait_empty(keeper);
    vg_daemon_again(d, NULL, 0, NULL);
    stop(d);
    vgt_daemon = shared;
    keeper_stop(keeper);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/nics/no-group", test_no_group);
    g_test_add_func("/nics/no-device", test_no_device);
    g_test_add_func("/nics/links", test_links);
    g_test_add_func("/nics/restart", test_restart);
    g_test_add_func("/nics/stuck", test_stuck);
    return g_test_run();
}
