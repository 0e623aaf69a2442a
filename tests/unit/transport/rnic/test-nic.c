/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * NICs over softnic: which state they have and why, when devices come, go, fail and are
 * refused, when the key file changes, and when the daemon is replaced or ends.
 */
#include "transport/rnic/nic.h"

#include <errno.h>
#include <string.h>

#include "base/coro.h"
#include "softnic.h"

#define WAIT_US (20 * G_USEC_PER_SEC)

static struct daemon_config *cfg;
static GString *said; /* by a reload */

/* ---- steps ---- */

static void group(const char *name, const char *device, const char *address)
{
    struct nic_config *nic = config_nic_new(name, NULL);

    g_assert_true(config_nic_set(nic, "device", device, NULL));
    g_assert_true(config_nic_set(nic, "address", address, NULL));
    g_assert_true(config_nic_finish(cfg, nic, NULL));
    cfg->nics = g_list_append(cfg->nics, nic);
}

/* NULL: there is none of this name. */
static struct rnic_nic *nic_of(const char *name)
{
    struct rnic_nic *nic = rnic_nic_next(NULL);

    while (nic && strcmp(nic->cfg->name, name) != 0) {
        nic = rnic_nic_next(nic);
    }
    return nic;
}

/* Turn until NIC "a" is in @state, with a reason that has @reason in it. */
static void expect(enum rnic_state state, const char *reason)
{
    gint64 end = g_get_monotonic_time() + WAIT_US;
    const struct rnic_nic *nic = nic_of("a");

    while (nic->state != state || !strstr(nic->reason, reason) ||
           (!*reason && *nic->reason)) {
        if (g_get_monotonic_time() > end) {
            g_error("%s (%s), and not %s (%s)", rnic_state_name(nic->state), nic->reason,
                    rnic_state_name(state), reason);
        }
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_true((nic->dev.ctx != NULL) ==
                  (state == RNIC_NIC_UP || state == RNIC_NIC_DOWN));
}

static void expect_contexts(const char *device, int64_t n)
{
    gint64 end = g_get_monotonic_time() + WAIT_US;

    while (softnic_count("contexts", device) != n) {
        g_assert_cmpint(g_get_monotonic_time(), <, end);
        g_main_context_iteration(NULL, FALSE);
        g_usleep(100);
    }
}

/* Turn for as long as @looks of the NIC take. */
static void let_it_look(unsigned looks)
{
    int64_t until = softnic_count("calls", "get_device_list") +
                    softnic_count("calls", "query_gid_table") + looks;

    while (softnic_count("calls", "get_device_list") +
               softnic_count("calls", "query_gid_table") <
           until) {
        g_main_context_iteration(NULL, TRUE);
    }
}

/* For as long as some looks would take, if there were any. */
static void let_it_turn(void)
{
    for (unsigned i = 0; i < 30; i++) {
        g_main_context_iteration(NULL, FALSE);
        g_usleep(1000);
    }
}

static void say(void *opaque, char *line)
{
    g_string_append_printf(said, "%s\n", line);
    g_free(line);
}

static void begin(void)
{
    rnic_look_ms = 5;
    rnic_rest_ms = RNIC_REST_MS;
    rnic_same_ms = 0;
    rnic_late_ms = RNIC_LATE_MS;
    rnic_close_ms = 60000;
    cfg = config_new();
    said = g_string_new(NULL);
}

static void end(void)
{
    rnic_nics_stop();
    g_assert_null(rnic_nic_next(NULL));
    softnic_do("clear");
    config_free(cfg);
    g_string_free(said, TRUE);
}

/* ---- tests ---- */

/* Without a group nothing is looked for. */
static void test_none(void)
{
    int64_t before = softnic_count("calls", "get_device_list");

    begin();
    rnic_nics_start(cfg);
    let_it_turn();
    g_assert_null(rnic_nic_next(NULL));
    g_assert_cmpint(softnic_count("calls", "get_device_list"), ==, before);
    end();
}

static void test_up(void)
{
    const struct rnic_nic *nic;
    int64_t lists;

    begin();
    softnic_do("add up0 10.1.0.1");
    softnic_do("fail get_device_list 0 ENOMEM");
    group("a", "up0", "10.1.0.1");
    rnic_nics_start(cfg);
    g_assert_cmpint(nic_of("a")->state, ==, RNIC_NIC_OPENING);
    expect(RNIC_NIC_ABSENT, "devices cannot be listed: ");
    softnic_do("clear");
    expect(RNIC_NIC_UP, "");
    nic = nic_of("a");
    g_assert_cmpstr(nic->dev.kind, ==, "RoCE");
    g_assert_cmpuint(nic->dev.mtu, ==, 4096);
    g_assert_cmpuint(nic->dev.mbit_s, ==, 100000);
    g_assert_cmpuint(nic->dev.port, ==, 1);
    g_assert_cmpuint(nic->dev.max_reads, >, 0);
    g_assert_false(nic->dev.atomics);
    /* While it is open no list of all devices is made. */
    lists = softnic_count("calls", "get_device_list");
    let_it_look(3);
    g_assert_cmpint(softnic_count("calls", "get_device_list"), ==, lists);
    end();
    g_assert_cmpint(softnic_count("contexts", "up0"), ==, 0);
    softnic_do("remove up0");
}

/* A call takes long: it is said, until it comes back. */
static void test_late(void)
{
    begin();
    softnic_do("add la0 10.1.0.20");
    group("a", "la0", "10.1.0.20");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    rnic_late_ms = 20;
    softnic_do("delay query_port 0 300000");
    expect(RNIC_NIC_UP, "a call has not come back");
    rnic_late_ms = RNIC_LATE_MS;
    softnic_do("clear");
    expect(RNIC_NIC_UP, "");
    end();
    softnic_do("remove la0");
}

/* Its GIDs are no addresses of IP. */
static void test_iwarp(void)
{
    begin();
    softnic_do("add iw0 10.1.0.2 iwarp");
    group("a", "iw0", "10.1.0.99");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    g_assert_cmpstr(nic_of("a")->dev.kind, ==, "iWARP");
    end();
    softnic_do("remove iw0");
}

static void test_link(void)
{
    int64_t acked = softnic_count("calls", "ack_async_event");

    begin();
    softnic_do("add link0 10.1.0.3");
    rnic_look_ms = 1000000; /* events alone */
    group("a", "link0", "10.1.0.3");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    softnic_do("down link0");
    expect(RNIC_NIC_DOWN, "port 1 is down");
    softnic_do("up link0");
    expect(RNIC_NIC_UP, "");
    g_assert_cmpuint(nic_of("a")->events, ==, 3);
    g_assert_cmpint(softnic_count("calls", "ack_async_event") - acked, ==, 3);
    g_assert_cmpuint(nic_of("a")->failures, ==, 0);
    /* It stayed open all the time. */
    g_assert_cmpint(softnic_count("contexts", "link0"), ==, 1);
    end();
    softnic_do("remove link0");
}

/* Turn until it has had so many events, and for as long as a look takes. */
static void take_events(uint32_t n)
{
    while (nic_of("a")->events < n) {
        g_main_context_iteration(NULL, TRUE);
    }
    let_it_turn();
}

/* Events of queues are acknowledged, no more; of those of ports many have one look. */
static void test_storm(void)
{
    gint64 since;
    int64_t looks;

    begin();
    softnic_do("add ev0 10.1.0.18");
    rnic_look_ms = 1000000; /* events alone */
    group("a", "ev0", "10.1.0.18");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    looks = softnic_count("calls", "query_port");
    softnic_do("event ev0 %d", IBV_EVENT_SRQ_LIMIT_REACHED);
    take_events(1);
    g_assert_cmpint(softnic_count("calls", "query_port"), ==, looks);
    since = g_get_monotonic_time();
    for (unsigned i = 2; i < 12; i++) {
        softnic_do("gids ev0");
        take_events(i);
    }
    looks += 2 + (g_get_monotonic_time() - since) / 100000;
    g_assert_cmpint(softnic_count("calls", "query_port"), <=, looks);
    softnic_do("down ev0");
    expect(RNIC_NIC_DOWN, "port 1 is down");
    end();
    softnic_do("remove ev0");
}

/* As rxe: nothing is said, and the removal waits for us. */
static void test_removed(void)
{
    begin();
    softnic_do("add rx0 10.1.0.4");
    group("a", "rx0", "10.1.0.4");
    rnic_nics_start(cfg);
    for (unsigned i = 0; i < 4; i++) { /* that is no failure */
        expect(RNIC_NIC_UP, "");
        softnic_do("remove rx0");
        expect(RNIC_NIC_ABSENT, "no ");
        g_assert_cmpint(softnic_count("contexts", "rx0"), <=, 0);
        softnic_do("add rx0 10.1.0.4");
    }
    expect(RNIC_NIC_UP, "");
    g_assert_cmpuint(nic_of("a")->failures, ==, 0);
    end();
    softnic_do("remove rx0");
}

/* Another one has its name before we have looked. */
static void test_replaced(void)
{
    gint64 end_at = g_get_monotonic_time() + WAIT_US;

    begin();
    softnic_do("add rp0 10.1.0.24");
    group("a", "rp0", "10.1.0.24");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    softnic_do("remove rp0;add rp0 10.1.0.24");
    while (softnic_count("contexts", "rp0") != 1) {
        g_assert_cmpint(g_get_monotonic_time(), <, end_at);
        g_main_context_iteration(NULL, TRUE);
    }
    expect(RNIC_NIC_UP, "");
    g_assert_cmpuint(nic_of("a")->failures, ==, 0);
    end();
    softnic_do("remove rp0");
}

/* It opens, and answers nothing: its events are not read, which would block. */
static void test_unasked(void)
{
    int64_t reads = softnic_count("calls", "get_async_event");

    begin();
    rnic_look_ms = 100;
    softnic_do("add un0 10.1.0.16");
    softnic_do("fail query_device 1 EIO");
    group("a", "un0", "10.1.0.16");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_ABSENT, "cannot be asked: ");
    g_assert_cmpint(softnic_count("calls", "get_async_event"), ==, reads);
    expect(RNIC_NIC_UP, "");
    end();
    softnic_do("remove un0");
}

/* As an HCA: DEVICE_FATAL, everything fails, and it is back.  The second time it rests.
 */
static void test_fatal(void)
{
    begin();
    softnic_do("add hca0 10.1.0.5");
    group("a", "hca0", "10.1.0.5");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    softnic_do("unplug hca0");
    expect(RNIC_NIC_ABSENT, "no ");
    softnic_do("add hca0 10.1.0.5");
    expect(RNIC_NIC_UP, "");
    g_assert_cmpuint(nic_of("a")->failures, ==, 1);
    softnic_do("unplug hca0");
    expect(RNIC_NIC_RESTING, "failed twice in a minute, at last: the device has failed");
    softnic_do("add hca0 10.1.0.5");
    let_it_turn();
    g_assert_cmpint(nic_of("a")->state, ==, RNIC_NIC_RESTING);
    g_assert_cmpint(softnic_count("contexts", "hca0"), ==, 0);
    end();
    softnic_do("remove hca0");
}

/* It is listed while its driver recovers, and cannot be opened: that is one failure. */
static void test_recovers(void)
{
    int64_t opened;

    begin();
    rnic_same_ms = 60000;
    softnic_do("add rc0 10.1.0.19");
    group("a", "rc0", "10.1.0.19");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    opened = softnic_count("calls", "open_device");
    softnic_do("fail open_device 1 EIO");
    softnic_do("fail open_device 2 EAGAIN");
    softnic_do("fail open_device 3 ENODEV");
    rnic_look_ms = 1000000;
    softnic_do("event rc0 %d", IBV_EVENT_DEVICE_FATAL);
    expect(RNIC_NIC_ABSENT, "the device has failed");
    let_it_turn();
    g_assert_cmpint(softnic_count("calls", "open_device"), ==, opened);
    rnic_look_ms = 5;
    nic_of("a")->not_before = 0;
    rnic_nics_resume();
    expect(RNIC_NIC_ABSENT, "it has just been removed");
    expect(RNIC_NIC_UP, "");
    g_assert_cmpuint(nic_of("a")->failures, ==, 1);
    end();
    softnic_do("remove rc0");
}

static void test_rests(void)
{
    begin();
    softnic_do("add bad0 10.1.0.6");
    softnic_do("fail open_device 1 EIO");
    softnic_do("fail open_device 2 EIO");
    group("a", "bad0", "10.1.0.6");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_RESTING, "cannot be opened: ");
    g_assert_cmpuint(nic_of("a")->failures, ==, 2);
    let_it_turn();
    g_assert_cmpint(nic_of("a")->state, ==, RNIC_NIC_RESTING);
    /* The time is over. */
    nic_of("a")->not_before = nic_of("a")->failed_at = 1;
    rnic_nics_resume();
    expect(RNIC_NIC_UP, "");
    /* One that cannot be asked is closed again. */
    softnic_do("fail query_port 1 EIO");
    expect(RNIC_NIC_ABSENT, "port cannot be asked: ");
    expect(RNIC_NIC_UP, "");
    g_assert_cmpint(softnic_count("contexts", "bad0"), ==, 1);
    end();
    softnic_do("remove bad0");
}

static void test_refused(void)
{
    begin();
    softnic_do("add no0 10.1.0.7");
    softnic_do("fail open_device 0 %d", EACCES);
    group("a", "no0", "10.1.0.7");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_ABSENT, "permission denied: DeviceAllow=");
    let_it_look(3);
    g_assert_cmpuint(nic_of("a")->failures, ==, 0); /* so it does not rest */
    softnic_do("clear");
    expect(RNIC_NIC_UP, "");
    end();
    softnic_do("remove no0");
}

static void test_address(void)
{
    begin();
    softnic_do("add ad0 10.1.0.8,10.1.0.9");
    group("a", "ad0", "10.1.0.10");
    group("b", "other0", "10.1.0.11");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_DOWN, "address 10.1.0.10 is not on it");
    while (nic_of("b")->state == RNIC_NIC_OPENING) {
        g_main_context_iteration(NULL, TRUE);
    }
    g_assert_cmpstr(nic_of("b")->reason, ==, "there is no device other0, but ad0");
    /* That cannot be found out: the NIC stays open. */
    softnic_do("fail query_gid_table 0 EINVAL");
    expect(RNIC_NIC_DOWN, "its GID table cannot be read: ");
    softnic_do("clear");
    g_assert_cmpuint(nic_of("a")->failures, ==, 0);
    /* The group is corrected. */
    group("a", "ad0", "10.1.0.9");
    rnic_nics_reload(cfg, say, NULL);
    g_assert_cmpstr(said->str, ==, "NIC b: removed\nNIC a: changed\n");
    expect(RNIC_NIC_UP, "");
    end();
    softnic_do("remove ad0");
}

static void test_reload(void)
{
    struct config_problem wrong = {.name = (char *)"nic b", .why = (char *)"wrong"};

    begin();
    softnic_do("add re0 10.1.0.12");
    softnic_do("add re1 10.1.0.13");
    group("a", "re0", "10.1.0.12");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    /* Added, and nothing changes for the other. */
    group("a", "re0", "10.1.0.12");
    group("b", "re1", "10.1.0.13");
    rnic_nics_reload(cfg, say, NULL);
    g_assert_cmpstr(said->str, ==, "NIC b: added\n");
    expect_contexts("re1", 1);
    /* Wrong: it stays. */
    group("a", "re0", "10.1.0.12");
    cfg->problems = g_list_append(NULL, &wrong);
    g_string_truncate(said, 0);
    rnic_nics_reload(cfg, say, NULL);
    g_clear_list(&cfg->problems, NULL);
    g_assert_cmpstr(said->str, ==, "");
    let_it_look(4);
    g_assert_cmpint(softnic_count("contexts", "re1"), ==, 1);
    g_assert_cmpint(softnic_count("calls", "open_device"), >, 0);
    /* Nor is its address had by another one. */
    group("a", "re0", "10.1.0.13");
    cfg->problems = g_list_append(NULL, &wrong);
    rnic_nics_reload(cfg, say, NULL);
    g_clear_list(&cfg->problems, NULL);
    g_assert_nonnull(strstr(said->str, "NIC a: not changed: "));
    g_assert_null(nic_of("a")->next);
    g_string_truncate(said, 0);
    /* Removed and, before it was closed, there again on the other device. */
    softnic_do("remove re0");
    rnic_nics_reload(cfg, say, NULL);
    group("a", "re1", "10.1.0.13");
    rnic_nics_reload(cfg, say, NULL);
    g_assert_cmpstr(said->str, ==, "NIC a: removed\nNIC b: removed\nNIC a: added\n");
    while (strcmp(nic_of("a")->cfg->device, "re1") != 0 || nic_of("b")) {
        g_main_context_iteration(NULL, TRUE);
    }
    expect(RNIC_NIC_UP, "");
    g_assert_cmpint(softnic_count("contexts", "re1"), ==, 1);
    end();
    softnic_do("remove re1");
}

struct step {
    bool ok, done;
    char *error;
};

static bool stops;

static bool at_once(void)
{
    return stops;
}

static void run_suspend(void *opaque)
{
    struct step *s = opaque;
    g_autoptr(GError) err = NULL;

    s->ok = rnic_nics_suspend(at_once, &err);
    s->error = err ? g_strdup(err->message) : NULL;
    s->done = true;
}

static struct step suspend_all(void)
{
    struct step s = {0};

    coro_run(run_suspend, &s);
    while (!s.done) {
        g_main_context_iteration(NULL, TRUE);
    }
    return s;
}

/* All are closed, and stay so until they are to go on. */
static void test_suspend(void)
{
    struct step s;

    begin();
    softnic_do("add su0 10.1.0.14");
    group("a", "su0", "10.1.0.14");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    s = suspend_all();
    g_assert_true(s.ok);
    g_assert_cmpint(softnic_count("contexts", "su0"), ==, 0);
    let_it_turn();
    g_assert_cmpint(softnic_count("contexts", "su0"), ==, 0);
    rnic_nics_resume();
    expect(RNIC_NIC_UP, "");
    /* One that does not let itself be closed in time; or there is none. */
    for (unsigned i = 0; i < 2; i++) {
        rnic_close_ms = i ? 60000 : 5;
        stops = i;
        softnic_do("delay close_device 1 300000");
        s = suspend_all();
        g_assert_false(s.ok);
        g_assert_cmpstr(s.error, ==, "NIC a does not close");
        g_free(s.error);
        expect_contexts("su0", 0);
        let_it_turn();
        g_assert_cmpint(softnic_count("contexts", "su0"), ==, 0);
        rnic_nics_resume();
        expect(RNIC_NIC_UP, "");
    }
    stops = false;
    rnic_close_ms = 60000;
    end();
    softnic_do("remove su0");
}

/* The end does not wait for a call that does not come back. */
static void test_left_behind(void)
{
    int64_t looks = softnic_count("calls", "get_device_list");

    begin();
    rnic_close_ms = 0;
    softnic_do("add lb0 10.1.0.15");
    softnic_do("delay open_device 1 2000000");
    group("a", "lb0", "10.1.0.15");
    rnic_nics_start(cfg);
    while (softnic_count("calls", "get_device_list") == looks) {
        g_main_context_iteration(NULL, FALSE);
    }
    rnic_nics_stop();
    g_assert_null(rnic_nic_next(NULL));
    g_assert_cmpint(softnic_count("contexts", "lb0"), ==, 0); /* it stands there still */
    expect_contexts("lb0", 1);
    softnic_do("clear");
    config_free(cfg);
    g_string_free(said, TRUE);
}

/* Nor are events read of one that is left behind while it is open. */
static void test_left_open(void)
{
    int64_t reads, looks;

    begin();
    rnic_close_ms = 0;
    softnic_do("add lo0 10.1.0.17");
    group("a", "lo0", "10.1.0.17");
    rnic_nics_start(cfg);
    expect(RNIC_NIC_UP, "");
    softnic_do("delay query_port 0 500000");
    looks = softnic_count("calls", "query_gid_table"); /* which comes before */
    while (softnic_count("calls", "query_gid_table") < looks + 2) {
        g_main_context_iteration(NULL, FALSE);
    }
    rnic_nics_stop();
    g_assert_cmpint(softnic_count("contexts", "lo0"), ==, 1);
    reads = softnic_count("calls", "get_async_event");
    softnic_do("gids lo0");
    let_it_turn();
    g_assert_cmpint(softnic_count("calls", "get_async_event"), ==, reads);
    softnic_do("clear");
    config_free(cfg);
    g_string_free(said, TRUE);
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rnic-nic/none", test_none);
    g_test_add_func("/rnic-nic/up", test_up);
    g_test_add_func("/rnic-nic/late", test_late);
    g_test_add_func("/rnic-nic/iwarp", test_iwarp);
    g_test_add_func("/rnic-nic/link", test_link);
    g_test_add_func("/rnic-nic/removed", test_removed);
    g_test_add_func("/rnic-nic/replaced", test_replaced);
    g_test_add_func("/rnic-nic/storm", test_storm);
    g_test_add_func("/rnic-nic/unasked", test_unasked);
    g_test_add_func("/rnic-nic/fatal", test_fatal);
    g_test_add_func("/rnic-nic/recovers", test_recovers);
    g_test_add_func("/rnic-nic/rests", test_rests);
    g_test_add_func("/rnic-nic/refused", test_refused);
    g_test_add_func("/rnic-nic/address", test_address);
    g_test_add_func("/rnic-nic/reload", test_reload);
    g_test_add_func("/rnic-nic/suspend", test_suspend);
    g_test_add_func("/rnic-nic/left-behind", test_left_behind);
    g_test_add_func("/rnic-nic/left-open", test_left_open);
    ret = g_test_run();
    coro_fini();
    return ret;
}
