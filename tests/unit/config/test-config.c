/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The key file and its values: what is taken, what is refused and how the error
 * names the place.
 */
#include <glib/gstdio.h>
#include <string.h>
#include <unistd.h>

#include "config/config.h"

static bool load(struct daemon_config *cfg, const char *text, GError **errp)
{
    g_autofree char *path = NULL;
    int fd = g_file_open_tmp("pvrdma-config-XXXXXX", &path, NULL);
    bool ok;

    g_assert_cmpint(fd, >=, 0);
    close(fd);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
    ok = config_load(cfg, path, errp);
    g_unlink(path);
    return ok;
}

static void test_full(void)
{
    static const char text[] = "# comment\n"
                               "[vm first]\n"
                               "addresses = 10.0.0.1; fe80::1 ;52:54:00:12:34:56;\n"
                               "network=blue\n"
                               "mac=52:54:00:aB:Cd:eF\n"
                               "max-qp=2\n"
                               "max-cq=65535\n"
                               "max-srq=77\n"
                               "max-mr=1048576\n"
                               "max-pd=17\n"
                               "max-mr-pages=4294967295\n"
                               "max-memory=64T\n"
                               "max-files=1024\n"
                               "[vm second]\n"
                               "addresses=any\n"
                               "socket=/tmp/second.sock\n"
                               "require-sealed=false\n"
                               "[daemon]\n"
                               "socket-dir=/tmp/dir\n"
                               "max-mapped=1024g\n"
                               "max-objects=1g\n"
                               "workers=64\n"
                               "worker-priority=nice:-5\n"
                               "poll-us=0\n"
                               "log-level=debug\n";
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;
    struct vm_config *vm;
    struct pvrdma_gid gid;

    g_assert_true(load(cfg, text, &err));
    g_assert_no_error(err);
    g_assert_cmpstr(cfg->socket_dir, ==, "/tmp/dir");
    g_assert_cmpstr(cfg->control_socket, ==, "/tmp/dir/control");
    g_assert_cmpuint(cfg->workers, ==, 64);
    g_assert_cmpint(cfg->worker_priority.class, ==, PRIORITY_NICE);
    g_assert_cmpint(cfg->worker_priority.level, ==, -5);
    g_assert_cmpuint(cfg->poll_us, ==, 0);
    g_assert_cmpint(cfg->log_level, ==, LOG_LVL_DEBUG);
    g_assert_true(cfg->require_sealed);
    g_assert_cmpuint(cfg->max_mapped, ==, UINT64_C(1) << 40);
    g_assert_cmpuint(cfg->max_objects, ==, UINT64_C(1) << 30);
    g_assert_cmpuint(g_list_length(cfg->vms), ==, 2);

    vm = cfg->vms->data;
    g_assert_cmpstr(vm->name, ==, "first");
    /* The default follows [daemon] although that comes later in the file. */
    g_assert_cmpstr(vm->socket, ==, "/tmp/dir/first.sock");
    g_assert_cmpstr(vm->network, ==, "blue");
    g_assert_false(vm->any_address);
    g_assert_cmpuint(vm->n_addresses, ==, 3);
    g_assert_true(config_parse_gid("fe80::5054:ff:fe12:3456", &gid));
    g_assert_cmpmem(&vm->addresses[2], 16, &gid, 16);
    g_assert_true(vm->has_mac);
    g_assert_cmpmem(vm->mac, 6, "\x52\x54\x00\xab\xcd\xef", 6);
    g_assert_cmpuint(vm->max_qp, ==, 2);
    g_assert_cmpuint(vm->max_cq, ==, 65535);
    g_assert_cmpuint(vm->max_srq, ==, 77);
    g_assert_cmpuint(vm->max_mr, ==, 1048576);
    g_assert_cmpuint(vm->max_pd, ==, 17);
    g_assert_cmpuint(vm->max_mr_pages, ==, UINT32_MAX);
    g_assert_cmpuint(vm->max_memory, ==, UINT64_C(1) << 46);
    g_assert_cmpuint(vm->max_files, ==, 1024);
    g_assert_true(vm->require_sealed);

    vm = cfg->vms->next->data;
    g_assert_cmpstr(vm->socket, ==, "/tmp/second.sock");
    g_assert_true(vm->any_address);
    g_assert_cmpuint(vm->n_addresses, ==, 0);
    g_assert_false(vm->has_mac);
    g_assert_cmpuint(vm->max_qp, ==, 16384);
    g_assert_cmpuint(vm->max_cq, ==, 16384);
    g_assert_cmpuint(vm->max_mr, ==, 65536);
    g_assert_cmpuint(vm->max_pd, ==, 8192);
    g_assert_cmpuint(vm->max_mr_pages, ==, 16u << 20);
    g_assert_cmpuint(vm->max_memory, ==, UINT64_C(4) << 40);
    g_assert_cmpuint(vm->max_files, ==, 64);
    g_assert_false(vm->require_sealed);
    config_free(cfg);
}

static void test_bad_files(void)
{
    /* Text, and what the error must name. */
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"[daemon]\nworkers=0\n", "[daemon] workers"},
        {"[daemon]\nworkers=65\n", "[daemon] workers"},
        {"[daemon]\nworkers=-1\n", "[daemon] workers"},
        {"[daemon]\nworkers=1x\n", "[daemon] workers"},
        {"[daemon]\nworkers=\n", "[daemon] workers"},
        {"[daemon]\nworkers=0x2\n", "[daemon] workers"},
        {"[daemon]\nworkers=99999999999999999999\n", "[daemon] workers"},
        {"[daemon]\npoll-us=100000001\n", "[daemon] poll-us"},
        {"[daemon]\nworker-priority=\n", "[daemon] worker-priority"},
        {"[daemon]\nworker-priority=high\n", "[daemon] worker-priority"},
        {"[daemon]\nworker-priority=fifo:0\n", "[daemon] worker-priority"},
        {"[daemon]\nlog-level=loud\n", "[daemon] log-level"},
        {"[daemon]\nrequire-sealed=maybe\n", "[daemon] require-sealed"},
        {"[daemon]\nsocket-dir=\n", "[daemon] socket-dir"},
        {"[daemon]\nmax-mapped=1048576K0\n", "[daemon] max-mapped"},
        {"[daemon]\nmax-mapped=1023M\n", "[daemon] max-mapped"},
        {"[daemon]\nmax-objects=15M\n", "[daemon] max-objects"},
        {"[daemon]\nmax-objects=1537M\n", "[daemon] max-objects"},
        {"[daemon]\nmax-mapped=113T\n", "[daemon] max-mapped"},
        {"[daemon]\nmax-mapped=T\n", "[daemon] max-mapped"},
        {"[daemon]\nmax-mapped=\n", "[daemon] max-mapped"},
        {"[daemon]\nlisten=host\n", "[daemon] listen"},
        {"[daemon]\nlisten=fe80::1\n", "[daemon] listen"},
        {"[daemon]\nlisten=1.2.3.4:0\n", "[daemon] listen"},
        {"[daemon]\nlisten=::1;::2;::3;::4;::5;::6;::7;::8;::9\n", "[daemon] listen"},
        {"[daemon]\nhost-name=a b\n", "[daemon] host-name"},
        {"[daemon]\nhost-name=\n", "[daemon] host-name"},
        {"[daemon]\npeer-timeout=0\n", "[daemon] peer-timeout"},
        {"[daemon]\npeer-timeout=3601\n", "[daemon] peer-timeout"},
        {"[daemon]\nhold-timeout=0\n", "[daemon] hold-timeout"},
        {"[daemon]\nhold-timeout=601\n", "[daemon] hold-timeout"},
        {"[daemon]\ncolour=red\n", "[daemon] colour"},
        {"[daemon]\nnonsense\n", "nonsense"},
        {"[daemon]\n[vm a]\n[daemon]\n",
         "[daemon] appears twice, at line 1 and at line 3"},
        {"key=outside\n", "group"},
        {"[daemon\n", "line 1: \"[daemon\" has no ]"},
        {"[daemon]\n\nlisten=host\n", "(line 3)"},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct daemon_config *cfg = config_new();
        g_autoptr(GError) err = NULL;

        g_test_message("%s", cases[i].text);
        g_assert_false(load(cfg, cases[i].text, &err));
        g_assert_nonnull(err);
        g_assert_nonnull(strstr(err->message, cases[i].word));
        config_free(cfg);
    }
}

/* What is wrong with a VM costs that VM, not its neighbours. */
static void test_bad_groups(void)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"[vm a]\nmax-qp=1\n", "[vm a] max-qp"},
        {"[vm a]\nmax-qp=65536\n", "[vm a] max-qp"},
        {"[vm a]\nmax-mr=1048577\n", "[vm a] max-mr"},
        {"[vm a]\nmax-mr-pages=4294967296\n", "[vm a] max-mr-pages"},
        {"[vm a]\nmax-memory=1023k\n", "[vm a] max-memory"},
        {"[vm a]\nmax-memory=65T\n", "[vm a] max-memory"},
        {"[vm a]\nmax-memory=18446744073709551615T\n", "[vm a] max-memory"},
        {"[vm a]\nmax-memory=-1G\n", "[vm a] max-memory"},
        {"[vm a]\nmax-memory=1.5T\n", "[vm a] max-memory"},
        {"[vm a]\nmax-files=0\n", "[vm a] max-files"},
        {"[vm a]\nmax-files=1025\n", "[vm a] max-files"},
        {"[vm a]\naddresses=10.0.0.256\n", "[vm a] addresses"},
        {"[vm a]\naddresses=any;10.0.0.1\n", "[vm a] addresses"},
        {"[vm a]\nmac=53:54:00:00:00:01\n", "[vm a] mac"},
        {"[vm a]\nmac=10.0.0.1\n", "[vm a] mac"},
        {"[vm a]\nmac=\n", "[vm a] mac"},
        {"[vm a]\nnetwork=a/b\n", "[vm a] network"},
        {"[vm a]\nnetwork=\n", "[vm a] network"},
        {"[vm a]\nmax-qps=3\n", "[vm a] max-qps"},
        {"[vm ..]\n", "[vm ..]"},
        {"[vm a/b]\n", "[vm a/b]"},
        {"[vm ]\n", "[vm ]"},
        {"[machine a]\n", "[machine a]"},
        {"[vm a]\nuid=nobody-of-this-name\n", "[vm a] uid"},
        {"[vm a]\nuid=4294967295\n", "[vm a] uid"},
        {"[vm a]\nuid=\n", "[vm a] uid"},
        {"[vm a]\nthis is no key\n", "[vm a] "},
        {"[vm a]\nsocket=/tmp/good.sock\n[vm x]\nsocket=/tmp/good.sock\n",
         "[vm x] socket: /tmp/good.sock belongs to VM a"},
        {"[vm a]\nsocket=/run/pvrdma/control\n", "[vm a] socket"},
        {"[vm a\n", "line 2: \"[vm a\" has no ]"},
        {"[vm a]\n#\nmax-qp=7\nmax-cq=0\n", "(line 5)"},
        {"[peer a\n", "line 2: \"[peer a\" has no ]"},
        {"[vm a] x\n", "[vm a"},
        {"[vm a]\nworker=1\n", "[vm a] worker: there is no worker 1: the daemon has 1"},
        {"[vm a]\nworker=63\n", "[vm a] worker: there is no worker 63"},
        {"[vm a]\nworker=64\n", "[vm a] worker"},
        {"[vm a]\nworker=-1\n", "[vm a] worker"},
        {"[vm a]\nworker=\n", "[vm a] worker: names no worker"},
        {"[vm a]\nworker=0;any\n", "[vm a] worker"},
        {"[vm a]\nnic-rate=1023K\n", "[vm a] nic-rate"},
        {"[vm a]\nnic-rate=0\n", "[vm a] nic-rate"},
        {"[vm a]\nnic-rate=1025G\n", "[vm a] nic-rate"},
        {"[vm a]\nnic-rate=fast\n", "[vm a] nic-rate"},
        {"[vm a]\nnic-dscp=64\n", "[vm a] nic-dscp"},
        {"[vm a]\nnic-dscp=ef\n", "[vm a] nic-dscp"},
        {"[network a]\nnic-rate=0\n", "[network a] nic-rate"},
        {"[network a]\nnic-dscp=64\n", "[network a] nic-dscp"},
        {"[network a]\nworker=1\n", "[network a] worker: there is no worker 1"},
        {"[network a]\nworker=x\n", "[network a] worker"},
        {"[network a]\nmax-qp=5\n", "[network a] max-qp: unknown key"},
        {"[network a]\nworker\n", "[network a] "},
        {"[network a]\n[network a]\n", "[network a] appears twice"},
        {"[network a/b]\n", "[network a/b] network: the name must be"},
        {"[network ]\n", "[network ] network: the name must be"},
        {"[network a\n", "[network a"},
        {"[network]\n", "[network] unknown group"},
        {"[vm \xff\xfe]\n", "[vm "},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        struct daemon_config *cfg = config_new();
        g_autofree char *text =
            g_strdup_printf("[vm before]\n%s[vm after]\nmax-qp=7\n", cases[i].text);
        g_autoptr(GError) err = NULL;
        g_autofree char *shown = g_strescape(cases[i].text, "\n\"");
        struct config_problem *p;
        struct vm_config *vm;

        g_test_message("%s", shown);
        g_assert_true(load(cfg, text, &err));
        g_assert_no_error(err);
        g_assert_cmpuint(g_list_length(cfg->problems), ==, 1);
        p = cfg->problems->data;
        g_assert_nonnull(strstr(p->why, cases[i].word));
        g_assert_true(g_utf8_validate(p->name, -1, NULL));
        if (strcmp(cases[i].text, "[vm a\n") == 0) {
            g_assert_cmpstr(p->name, ==, "a"); /* whose VM is kept (reload.c) */
        }
        vm = cfg->vms->data;
        g_assert_cmpstr(vm->name, ==, "before");
        vm = g_list_last(cfg->vms)->data;
        g_assert_cmpstr(vm->name, ==, "after");
        g_assert_cmpuint(vm->max_qp, ==, 7);
        config_free(cfg);
    }
}

/* Two groups of one name: not merged, and both places are named. */
static void test_duplicate(void)
{
    struct daemon_config *cfg = config_new();
    struct config_problem *p;
    struct vm_config *vm;

    g_assert_true(load(cfg,
                       "# two\n[vm a]\nmax-qp=5\n\n[vm b]\n"
                       "  [vm a]\nmax-cq=6\nmax-qp=9\n",
                       NULL));
    g_assert_cmpuint(g_list_length(cfg->vms), ==, 2);
    vm = cfg->vms->data;
    g_assert_cmpuint(vm->max_qp, ==, 5);
    g_assert_cmpuint(vm->max_cq, ==, 16384);
    g_assert_cmpuint(g_list_length(cfg->problems), ==, 1);
    p = cfg->problems->data;
    g_assert_cmpstr(p->name, ==, "a");
    g_assert_cmpstr(p->why, ==, "[vm a] appears twice, at line 2 and at line 6");
    config_free(cfg);
}

static void test_uid(void)
{
    struct daemon_config *cfg = config_new();
    struct vm_config *vm = config_vm_new(cfg, "a", NULL);

    g_assert_true(config_vm_uid_ok(vm, 0));
    g_assert_true(config_vm_uid_ok(vm, 12345));
    g_assert_true(config_vm_set(vm, "uid", "17; root,4294967294;", NULL));
    g_assert_true(config_vm_uid_ok(vm, 0));
    g_assert_true(config_vm_uid_ok(vm, 17));
    g_assert_true(config_vm_uid_ok(vm, 4294967294u));
    g_assert_false(config_vm_uid_ok(vm, 18));
    /* What the kernel says of a user from outside the namespace is nobody's. */
    g_assert_false(config_vm_uid_ok(vm, UINT32_MAX));
    g_assert_false(config_vm_set(vm, "uid", "17;18;nobody-of-this-name", NULL));
    g_assert_false(config_vm_uid_ok(vm, 18));
    g_assert_true(config_vm_set(vm, "uid", "any", NULL));
    g_assert_true(config_vm_uid_ok(vm, 18));
    config_vm_free(vm);
    config_free(cfg);
}

/* The last one counts, and that is said. */
static void test_key_twice(void)
{
    struct daemon_config *cfg = config_new();
    struct vm_config *vm;

    g_assert_true(load(cfg,
                       "[daemon]\nworkers=2\n# workers=3\n\n  workers =4\n"
                       "[vm a]\nmax-qp=7\nmax-cq=8\nmax-qp=9\n",
                       NULL));
    vm = cfg->vms->data;
    g_assert_cmpuint(cfg->workers, ==, 4);
    g_assert_cmpuint(vm->max_qp, ==, 9);
    g_assert_null(cfg->problems);
    g_assert_cmpuint(g_list_length(cfg->warnings), ==, 2);
    g_assert_true(g_str_has_prefix(
        cfg->warnings->data, "[daemon] workers is set twice, at line 2 and at line 5:"));
    g_assert_true(
        g_str_has_prefix(cfg->warnings->next->data,
                         "[vm a] max-qp is set twice, at line 7 and at line 9:"));
    config_free(cfg);
}

/* Users of the files that there are, the first one's first. */
static void test_user_files(void)
{
    g_autofree char *dir = g_dir_make_tmp("pvrdma-test-XXXXXX", NULL);
    g_autofree char *path = g_build_filename(dir, "passwd", NULL);
    const char *before = config_user_files[1];
    struct daemon_config *cfg = config_new();
    struct vm_config *vm = config_vm_new(cfg, "a", NULL);

    g_assert_true(g_file_set_contents(path,
                                      "root:x:7:7::/:/bin/sh\n"
                                      "pvrdma-test-qemu:x:1234567:7::/:/bin/sh\n",
                                      -1, NULL));
    g_assert_false(config_vm_set(vm, "uid", "pvrdma-test-qemu", NULL));
    config_user_files[1] = path;
    g_assert_true(config_vm_set(vm, "uid", "pvrdma-test-qemu;root", NULL));
    g_assert_true(config_vm_uid_ok(vm, 1234567));
    g_assert_true(config_vm_uid_ok(vm, 0));
    g_assert_false(config_vm_uid_ok(vm, 7));
    config_user_files[1] = before;
    g_unlink(path);
    g_rmdir(dir);
    config_vm_free(vm);
    config_free(cfg);
}

/* What the first release took: a VM with such a value comes from it. */
static void test_ranges(void)
{
    static const char *const of[][3] = {
        {"max-qp", "2", "65535"},      {"max-cq", "2", "65535"},
        {"max-srq", "2", "65535"},     {"max-mr", "2", "1048576"},
        {"max-pd", "2", "65535"},      {"max-mr-pages", "1", "4294967295"},
        {"shares", "1", "10000"},      {"max-memory", "1048576", "70368744177664"},
        {"max-files", "1", "1024"},    {"require-sealed", "true", "false"},
        {"uid", "0", "4294967294"},    {"worker", "any", "0"},
        {"addresses", "any", "10::1"}, {"mac", "52:54:00:00:00:01", "02:00:00:00:00:00"},
    };
    struct daemon_config *cfg = config_new();
    struct vm_config *vm = config_vm_new(cfg, "a", NULL);

    for (unsigned i = 0; i < G_N_ELEMENTS(of); i++) {
        g_assert_true(config_vm_set(vm, of[i][0], of[i][1], NULL));
        g_assert_true(config_vm_set(vm, of[i][0], of[i][2], NULL));
    }
    config_vm_free(vm);
    config_free(cfg);
}

static void test_diff(void)
{
    static const char *const changes[][2] = {
        {"socket", "/tmp/x"},      {"uid", "5"},
        {"network", "other"},      {"mac", "52:54:00:00:00:01"},
        {"addresses", "10.0.0.1"}, {"max-qp", "3"},
        {"max-cq", "3"},           {"max-srq", "3"},
        {"max-mr", "3"},           {"max-pd", "3"},
        {"max-mr-pages", "3"},     {"require-sealed", "false"},
        {"worker", "3"},           {"nic-rate", "3M"},
        {"nic-dscp", "3"},
    };
    struct daemon_config *cfg = config_new();
    struct vm_config *a = config_vm_new(cfg, "a", NULL);

    for (unsigned i = 0; i < G_N_ELEMENTS(changes); i++) {
        struct vm_config *b = config_vm_new(cfg, "a", NULL);
        g_autofree char *diff = NULL;

        g_assert_null(config_vm_diff(a, b));
        g_assert_true(config_vm_set(b, changes[i][0], changes[i][1], NULL));
        diff = config_vm_diff(a, b);
        g_assert_cmpstr(diff, ==, changes[i][0]);
        config_vm_free(b);
    }
    config_vm_free(a);
    config_free(cfg);
}

static const struct vm_config *vm_named(const struct daemon_config *cfg, const char *name)
{
    for (GList *l = cfg->vms; l; l = l->next) {
        if (strcmp(((const struct vm_config *)l->data)->name, name) == 0) {
            return l->data;
        }
    }
    return NULL;
}

/* A VM's own key goes before its network's, wherever that group stands. */
static void test_worker(void)
{
    static const char text[] = "[vm none]\n"
                               "[vm own]\nworker=63\n"
                               "[vm some]\nworker= 0; 2,5;\n"
                               "[vm blue]\nnetwork=blue\n"
                               "[vm blue-own]\nnetwork=blue\nworker=7\n"
                               "[vm blue-any]\nnetwork=blue\nworker=any\n"
                               "[vm empty]\nnetwork=empty\n"
                               "[network blue]\nworker=1;3\n"
                               "[network empty]\n"
                               "[daemon]\nworkers=64\n";
    struct daemon_config *cfg = config_new();
    struct vm_config *late;
    g_autoptr(GError) err = NULL;

    g_assert_true(load(cfg, text, &err));
    g_assert_no_error(err);
    g_assert_null(cfg->problems);
    g_assert_cmpuint(vm_named(cfg, "none")->workers, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "own")->workers, ==, UINT64_C(1) << 63);
    g_assert_cmpuint(vm_named(cfg, "some")->workers, ==, 0x25);
    g_assert_cmpuint(vm_named(cfg, "blue")->workers, ==, 0xa);
    g_assert_cmpuint(vm_named(cfg, "blue-own")->workers, ==, 0x80);
    g_assert_cmpuint(vm_named(cfg, "blue-any")->workers, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "empty")->workers, ==, 0);
    g_assert_cmpuint(config_network_workers(cfg), ==, 0xa);

    late = config_vm_new(cfg, "late", NULL); /* as by pvrdmactl vm add */
    g_assert_true(config_vm_set(late, "network", "blue", NULL));
    g_assert_true(config_vm_finish(cfg, late, &err));
    g_assert_cmpuint(late->workers, ==, 0xa);
    config_vm_free(late);
    config_free(cfg);
}

/* Likewise, of what they send by NICs. */
static void test_network_nics(void)
{
    static const char text[] = "[vm none]\n"
                               "[vm own]\nnic-rate=1M\nnic-dscp=63\n"
                               "[vm blue]\nnetwork=blue\n"
                               "[vm blue-own]\nnetwork=blue\nnic-rate=1T\nnic-dscp=0\n"
                               "[vm blue-none]\nnetwork=blue\nnic-rate=none\n"
                               "[network blue]\nnic-rate=125000000\nnic-dscp=46\n";
    struct daemon_config *cfg = config_new(), *other = config_new();
    struct vm_config *late;
    g_autoptr(GError) err = NULL;

    g_assert_true(load(cfg, text, &err));
    g_assert_null(cfg->problems);
    g_assert_cmpuint(vm_named(cfg, "none")->nic_rate, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "none")->nic_dscp, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "own")->nic_rate, ==, 1u << 20);
    g_assert_cmpuint(vm_named(cfg, "own")->nic_dscp, ==, 63);
    g_assert_cmpuint(vm_named(cfg, "blue")->nic_rate, ==, 125000000);
    g_assert_cmpuint(vm_named(cfg, "blue")->nic_dscp, ==, 46);
    g_assert_cmpuint(vm_named(cfg, "blue-own")->nic_rate, ==, UINT64_C(1) << 40);
    g_assert_cmpuint(vm_named(cfg, "blue-own")->nic_dscp, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "blue-none")->nic_rate, ==, 0);
    g_assert_cmpuint(vm_named(cfg, "blue-none")->nic_dscp, ==, 46);
    late = config_vm_new(cfg, "late", NULL);
    g_assert_true(config_vm_set(late, "network", "blue", NULL));
    g_assert_true(config_vm_finish(cfg, late, &err));
    g_assert_cmpuint(late->nic_rate, ==, 125000000);
    /* The file is read again. */
    g_assert_true(load(other, "[network blue]\nnic-dscp=1\n", &err));
    config_vm_follow(other, late);
    g_assert_cmpuint(late->nic_rate, ==, 0);
    g_assert_cmpuint(late->nic_dscp, ==, 1);
    config_vm_free(late);
    config_free(cfg);
    config_free(other);
}

/* Who would have needed what a wrong group says is not put just anywhere. */
static void test_wrong_network(void)
{
    struct daemon_config *cfg = config_new();
    const struct config_problem *p;
    g_autoptr(GError) err = NULL;

    g_assert_true(load(cfg,
                       "[daemon]\nworkers=2\n[vm a]\nnetwork=blue\n"
                       "[vm b]\nnetwork=blue\nworker=1\n[vm c]\n"
                       "[network blue]\nworker=2\n",
                       &err));
    g_assert_cmpuint(g_list_length(cfg->vms), ==, 2);
    g_assert_cmpuint(vm_named(cfg, "b")->workers, ==, 2);
    g_assert_nonnull(vm_named(cfg, "c"));
    g_assert_cmpuint(config_network_workers(cfg), ==, 0);
    g_assert_cmpuint(g_list_length(cfg->problems), ==, 2);
    p = cfg->problems->data;
    g_assert_cmpstr(p->name, ==, "network blue");
    g_assert_cmpstr(p->why, ==,
                    "[network blue] worker: there is no worker 2: the daemon has 2, "
                    "numbered from 0");
    p = cfg->problems->next->data;
    g_assert_cmpstr(p->name, ==, "a");
    g_assert_cmpstr(p->why, ==, "[vm a] network: there is an error in [network blue]");
    config_free(cfg);
}

/* The file of the running daemon, read again. */
static void test_reload(void)
{
    struct daemon_config *cfg = config_new(), *new;
    g_autofree char *path = NULL;
    GString *notes = g_string_new(NULL);
    g_autoptr(GError) err = NULL;
    struct vm_config *vm;

    close(g_file_open_tmp("pvrdma-config-XXXXXX", &path, NULL));
    g_assert_true(config_set(cfg, "poll-us", "7", true, NULL));
    g_assert_true(g_file_set_contents(
        path, "[daemon]\nsocket-dir=/tmp/a\nworkers=2\npoll-us=9\n[vm a]\n", -1, NULL));
    g_assert_true(config_load(cfg, path, NULL));

    new = config_reload(cfg, notes, &err);
    g_assert_no_error(err);
    g_assert_cmpstr(notes->str, ==, "");
    config_free(new);

    g_assert_true(g_file_set_contents(path,
                                      "[daemon]\nsocket-dir=/tmp/b\nworkers=3\n"
                                      "poll-us=10\nlog-level=debug\n[vm b]\n",
                                      -1, NULL));
    new = config_reload(cfg, notes, &err);
    g_assert_no_error(err);
    g_assert_nonnull(strstr(notes->str, "socket-dir is still /tmp/a:"));
    g_assert_nonnull(strstr(notes->str, "workers is still 2:"));
    g_assert_null(strstr(notes->str, "poll-us"));
    g_assert_cmpint(new->log_level, ==, LOG_LVL_DEBUG);
    vm = new->vms->data;
    g_assert_cmpstr(vm->socket, ==, "/tmp/a/b.sock");
    config_free(new);

    g_assert_true(g_file_set_contents(path, "[daemon]\nworkers=x\n[vm b]\n", -1, NULL));
    g_assert_null(config_reload(cfg, notes, &err));
    g_assert_nonnull(strstr(err->message, "[daemon] workers"));
    g_clear_error(&err);
    g_unlink(path);
    g_assert_null(config_reload(cfg, notes, &err));
    g_assert_nonnull(strstr(err->message, path));
    g_string_free(notes, TRUE);
    config_free(cfg);
}

/* No file is a daemon without VMs; one that cannot be read is an error. */
static void test_default_file(void)
{
    g_autofree char *dir = g_dir_make_tmp("pvrdma-config-XXXXXX", NULL);
    g_autofree char *file = g_build_filename(dir, "file", NULL);
    g_autofree char *loop = g_build_filename(dir, "loop", NULL);
    g_autofree char *beyond = g_build_filename(loop, "file", NULL);
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;

    g_assert_true(config_load_default(cfg, file, &err));
    g_assert_true(cfg->no_file);
    g_assert_cmpstr(cfg->path, ==, file);
    g_assert_nonnull(cfg->control_socket);
    /* Stands for all errors but "not there": root is refused nothing. */
    g_assert_cmpint(symlink(loop, loop), ==, 0);
    g_assert_false(config_load_default(cfg, loop, &err));
    g_clear_error(&err);
    g_assert_false(config_load_default(cfg, beyond, &err));
    g_clear_error(&err);
    if (geteuid() != 0) {
        g_assert_true(g_file_set_contents(file, "[vm a]\n", -1, NULL));
        g_assert_cmpint(g_chmod(file, 0), ==, 0);
        g_assert_false(config_load_default(cfg, file, &err));
        g_unlink(file);
    }
    config_free(cfg);
    g_unlink(loop);
    g_rmdir(dir);
}

static void test_missing_file(void)
{
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;

    g_assert_false(config_load(cfg, "/nonexistent/pvrdmad.conf", &err));
    g_assert_nonnull(strstr(err->message, "/nonexistent/pvrdmad.conf"));
    config_free(cfg);
}

/* The command line wins, and VM defaults see it. */
static void test_override(void)
{
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;
    struct vm_config *vm;

    g_assert_true(config_set(cfg, "socket-dir", "/tmp/mine", true, &err));
    g_assert_true(config_set(cfg, "workers", "3", true, &err));
    g_assert_true(load(cfg,
                       "[daemon]\nsocket-dir=/tmp/theirs\nworkers=5\npoll-us=7\n"
                       "[vm x]\n",
                       &err));
    g_assert_no_error(err);
    vm = cfg->vms->data;
    g_assert_cmpstr(vm->socket, ==, "/tmp/mine/x.sock");
    g_assert_cmpstr(cfg->control_socket, ==, "/tmp/mine/control");
    g_assert_cmpuint(cfg->workers, ==, 3);
    g_assert_cmpuint(cfg->poll_us, ==, 7);
    config_free(cfg);
}

static void test_paths(void)
{
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;
    g_autofree char *cwd = g_get_current_dir();
    g_autofree char *want = g_build_filename(cwd, "here", NULL);
    char longer[300];

    g_assert_true(config_set(cfg, "socket-dir", "here", false, &err));
    g_assert_cmpstr(cfg->socket_dir, ==, want);

    memset(longer, 'a', sizeof(longer));
    longer[0] = '/';
    longer[sizeof(longer) - 1] = 0;
    g_assert_false(config_set(cfg, "socket-dir", longer, false, &err));
    g_clear_error(&err);

    /* A directory that fits, but not with the VM's name behind it. */
    longer[100] = 0;
    g_assert_true(config_set(cfg, "socket-dir", longer, false, &err));
    g_assert_null(config_vm_new(cfg, "a-rather-long-name", &err));
    g_assert_nonnull(err);
    config_free(cfg);
}

static void test_names(void)
{
    char name[80];

    g_assert_true(config_valid_name("a"));
    g_assert_true(config_valid_name("A-b_c.9"));
    g_assert_false(config_valid_name(""));
    g_assert_false(config_valid_name("."));
    g_assert_false(config_valid_name(".."));
    g_assert_false(config_valid_name("a b"));
    g_assert_false(config_valid_name("a/b"));
    g_assert_false(config_valid_name("\xc3\xa4"));
    memset(name, 'x', 64);
    name[64] = 0;
    g_assert_false(config_valid_name(name));
    name[63] = 0;
    g_assert_true(config_valid_name(name));
}

static void assert_gid(const char *text, const char *hex)
{
    struct pvrdma_gid gid;
    char got[33];

    g_assert_true(config_parse_gid(text, &gid));
    for (unsigned i = 0; i < 16; i++) {
        g_snprintf(got + 2 * i, 3, "%02x", gid.raw[i]);
    }
    g_assert_cmpstr(got, ==, hex);
}

static void test_gid(void)
{
    static const char *const bad[] = {
        "",
        "any",
        "10.0.0",
        "10.0.0.1.1",
        "10.0.0.256",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "ff02::1",
        "fe80::1%eth0",
        "fe80::1/64",
        "01:00:5e:00:00:01",
        "ff:ff:ff:ff:ff:ff",
        "52:54:00:12:34",
        "52-54-00-12-34-56",
        "52:54:00:12:34:5g",
        "52:54:00:12:34:567",
        " 10.0.0.1",
        "hostname",
    };
    char text[CONFIG_GID_STRLEN];
    struct pvrdma_gid gid;

    assert_gid("10.0.0.1", "00000000000000000000ffff0a000001");
    assert_gid("192.168.255.254", "00000000000000000000ffffc0a8fffe");
    assert_gid("fe80::1", "fe800000000000000000000000000001");
    assert_gid("2001:db8:0:1::ab", "20010db80000000100000000000000ab");
    assert_gid("::ffff:10.0.0.1", "00000000000000000000ffff0a000001");
    /* The universal/local bit flips: 52 becomes 50, 02 becomes 00. */
    assert_gid("52:54:00:12:34:56", "fe80000000000000505400fffe123456");
    assert_gid("02:AA:bb:Cc:00:ff", "fe8000000000000000aabbfffecc00ff");
    for (unsigned i = 0; i < G_N_ELEMENTS(bad); i++) {
        g_test_message("\"%s\"", bad[i]);
        g_assert_false(config_parse_gid(bad[i], &gid));
    }
    g_assert_true(config_parse_gid("10.1.2.3", &gid));
    config_format_gid(&gid, text);
    g_assert_cmpstr(text, ==, "10.1.2.3");
    g_assert_true(config_parse_gid("FE80:0::1", &gid));
    config_format_gid(&gid, text);
    g_assert_cmpstr(text, ==, "fe80::1");
}

/* A list is replaced as a whole, and a bad one changes nothing. */
static void test_addresses(void)
{
    struct daemon_config *cfg = config_new();
    g_autoptr(GError) err = NULL;
    g_autoptr(GString) many = g_string_new(NULL);
    struct vm_config *vm = config_vm_new(cfg, "a", &err);

    g_assert_true(config_vm_set(vm, "addresses", "10.0.0.1;10.0.0.2", &err));
    g_assert_cmpuint(vm->n_addresses, ==, 2);
    g_assert_false(config_vm_set(vm, "addresses", "10.0.0.3;bad", &err));
    g_clear_error(&err);
    g_assert_cmpuint(vm->n_addresses, ==, 2);
    g_assert_true(config_vm_set(vm, "addresses", "any", &err));
    g_assert_true(vm->any_address);
    g_assert_true(config_vm_set(vm, "addresses", "", &err));
    g_assert_false(vm->any_address);
    g_assert_cmpuint(vm->n_addresses, ==, 0);

    for (unsigned i = 0; i < CONFIG_MAX_ADDRESSES; i++) {
        g_string_append_printf(many, "10.0.1.%u;", i);
    }
    g_assert_true(config_vm_set(vm, "addresses", many->str, &err));
    g_assert_cmpuint(vm->n_addresses, ==, CONFIG_MAX_ADDRESSES);
    g_string_append(many, "10.0.2.1");
    g_assert_false(config_vm_set(vm, "addresses", many->str, &err));
    config_vm_free(vm);
    config_free(cfg);
}

/* ---- [peer NAME] ---- */

static char *secret_file(const char *text, int mode)
{
    char *path = NULL;
    int fd = g_file_open_tmp("pvrdma-secret-XXXXXX", &path, NULL);

    g_assert_cmpint(fd, >=, 0);
    close(fd);
    g_assert_true(g_file_set_contents(path, text, -1, NULL));
    g_assert_cmpint(g_chmod(path, mode), ==, 0);
    return path;
}

static void test_peers(void)
{
    g_autofree char *secret = secret_file("0123456789abcdef\n", 0600);
    g_autofree char *text = g_strdup_printf(
        "[peer b]\naddress=10.0.0.2\nsecret-file=%s\n"
        "[daemon]\nlisten=10.0.0.1;[fd00::1]:99 127.0.0.1:1,\nhost-name=a\n"
        "peer-timeout=7\nhold-timeout=9\n"
        "[peer c.example]\naddress=[fd00::3]:65535\nsecret-file=%s\nmax-queued=64K\n",
        secret, secret);
    struct daemon_config *cfg = config_new();
    char address[CONFIG_ADDRESS_STRLEN];
    const struct peer_config *peer;
    g_autoptr(GError) err = NULL;

    g_assert_true(load(cfg, text, &err));
    g_assert_no_error(err);
    g_assert_null(cfg->problems);
    g_assert_cmpstr(cfg->host_name, ==, "a");
    g_assert_cmpuint(cfg->peer_timeout, ==, 7);
    g_assert_cmpuint(cfg->hold_timeout, ==, 9);
    g_assert_cmpuint(cfg->n_listen, ==, 3);
    config_format_address(&cfg->listen[0], address);
    g_assert_cmpstr(address, ==, "10.0.0.1:14820");
    config_format_address(&cfg->listen[1], address);
    g_assert_cmpstr(address, ==, "[fd00::1]:99");
    g_assert_cmpuint(g_list_length(cfg->peers), ==, 2);
    peer = cfg->peers->data;
    g_assert_cmpstr(peer->name, ==, "b");
    g_assert_cmpuint(peer->max_queued, ==, 4 << 20);
    /* Without the end of its line. */
    g_assert_cmpmem(peer->secret, peer->secret_len, "0123456789abcdef", 16);
    peer = cfg->peers->next->data;
    g_assert_cmpstr(peer->name, ==, "c.example");
    config_format_address(&peer->address, address);
    g_assert_cmpstr(address, ==, "[fd00::3]:65535");
    g_assert_cmpuint(peer->max_queued, ==, 65536);
    config_free(cfg);
    g_unlink(secret);
}

static void test_no_peers(void)
{
    struct daemon_config *cfg = config_new();

    g_assert_true(load(cfg, "[daemon]\nlisten=\n", NULL));
    g_assert_cmpuint(cfg->n_listen, ==, 0);
    g_assert_cmpuint(cfg->peer_timeout, ==, 5);
    g_assert_cmpuint(cfg->hold_timeout, ==, 600);
    g_assert_cmpstr(cfg->host_name, ==, g_get_host_name());
    config_free(cfg);
}

/* The daemon is served all the same, and the reason names group and key. */
static void test_bad_peers(void)
{
    static const struct {
        const char *daemon, *group, *word;
    } cases[] = {
        {"listen=1.2.3.4", "[peer b]\nsecret-file=GOOD\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\n", "[peer b] secret-file"},
        {"", "[peer b]\naddress=1.2.3.5\nsecret-file=GOOD\n", "[peer b] listen"},
        {"listen=1.2.3.4\nhost-name=b", "[peer b]\naddress=1.2.3.5\nsecret-file=GOOD\n",
         "[peer b] name"},
        {"listen=1.2.3.4", "[peer b]\naddress=host\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=0.0.0.0\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=239.0.0.1\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5:0\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5:65536\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5:\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=[fd00::1\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=[fd00::1]x\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=[1.2.3.4]:5\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=ff02::1\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b]\naddress=fe80::1\n", "link-local"},
        {"listen=1.2.3.4", "[peer b]\naddress=::ffff:1.2.3.5\n", "[peer b] address"},
        {"listen=1.2.3.4", "[peer b/c]\n", "[peer b/c]"},
        {"listen=1.2.3.4", "[peer b]\ncolour=red\n", "[peer b] colour"},
        {"listen=1.2.3.4", "[peer b]\nmax-queued=1K\n", "[peer b] max-queued"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\nsecret-file=/dev/zero\n",
         "is not a file"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\nsecret-file=/no/such/file\n",
         "[peer b] secret-file"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\nsecret-file=OPEN\n", "mode 644"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\nsecret-file=SHORT\n",
         "16 to 4096"},
        {"listen=1.2.3.4", "[peer b]\naddress=1.2.3.5\nsecret-file=LONG\n", "16 to 4096"},
        {"listen=1.2.3.4",
         "[peer c]\naddress=1.2.3.5\nsecret-file=GOOD\n"
         "[peer b]\naddress=1.2.3.5\nsecret-file=GOOD\n",
         "belongs to [peer c]"},
        {"listen=1.2.3.4",
         "[peer b]\naddress=1.2.3.5\nsecret-file=GOOD\n[peer b]\naddress=1.2.3.6\n",
         "[peer b] appears twice"},
    };
    g_autofree char *many = g_strnfill(CONFIG_MAX_SECRET + 1, 'x');
    const struct {
        const char *word;
        char *path;
    } files[] = {
        {"GOOD", secret_file("0123456789abcdef", 0640)},
        {"OPEN", secret_file("0123456789abcdef", 0644)},
        {"SHORT", secret_file("0123456789abcde\n", 0600)},
        {"LONG", secret_file(many, 0600)},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strdup_printf("[daemon]\nhost-name=a\n%s\n%s",
                                                cases[i].daemon, cases[i].group);
        g_autoptr(GString) s = g_string_new(text);
        struct daemon_config *cfg = config_new();
        g_autoptr(GError) err = NULL;
        const struct config_problem *p;

        for (unsigned f = 0; f < G_N_ELEMENTS(files); f++) {
            g_string_replace(s, files[f].word, files[f].path, 0);
        }
        g_test_message("%s", s->str);
        g_assert_true(load(cfg, s->str, &err));
        g_assert_cmpuint(g_list_length(cfg->problems), ==, 1);
        p = cfg->problems->data;
        g_assert_nonnull(strstr(p->why, cases[i].word));
        g_assert_true(g_str_has_prefix(p->name, "peer b"));
        config_free(cfg);
    }
    for (unsigned f = 0; f < G_N_ELEMENTS(files); f++) {
        g_unlink(files[f].path);
        g_free(files[f].path);
    }
}

/* ---- [nic NAME] ---- */

static void test_nics(void)
{
    struct daemon_config *cfg = config_new();
    const struct nic_config *nic;
    g_autoptr(GError) err = NULL;

    g_assert_true(load(cfg,
                       "[nic rail0]\ndevice=mlx5_0\naddress=10.0.0.1\n"
                       "[nic rail1]\ndevice=rxe0\naddress=fd00::1\nfabric=blue\n"
                       "networks= a; b ;\nmax-in-flight=64K\nmax-requests=16\n",
                       &err));
    g_assert_null(cfg->problems);
    g_assert_cmpuint(g_list_length(cfg->nics), ==, 2);
    nic = cfg->nics->data;
    g_assert_cmpstr(nic->name, ==, "rail0");
    g_assert_cmpstr(nic->device, ==, "mlx5_0");
    g_assert_cmpstr(nic->fabric, ==, "default");
    g_assert_null(nic->networks);
    g_assert_cmpuint(nic->max_in_flight, ==, 0);
    g_assert_cmpuint(nic->max_requests, ==, 1024);
    g_assert_cmphex(nic->address.raw[10], ==, 0xff);
    g_assert_cmphex(nic->address.raw[15], ==, 1);
    nic = cfg->nics->next->data;
    g_assert_cmpstr(nic->fabric, ==, "blue");
    g_assert_cmpuint(nic->max_in_flight, ==, 65536);
    g_assert_cmpuint(nic->max_requests, ==, 16);
    g_assert_cmpstr(nic->networks[0], ==, "a");
    g_assert_cmpstr(nic->networks[1], ==, "b");
    g_assert_null(nic->networks[2]);
    g_assert_cmphex(nic->address.raw[0], ==, 0xfd);
    config_free(cfg);
}

static void test_bad_nics(void)
{
    static const struct {
        const char *keys, *word;
    } cases[] = {
        {"", "device"},
        {"address=1.2.3.4\n", "device"},
        {"device=x\n", "address"},
        {"device=\naddress=1.2.3.4\n", "device"},
        {"device=a/b\naddress=1.2.3.4\n", "device"},
        {"device=a b\naddress=1.2.3.4\n", "device"},
        {"device="
         "1234567890123456789012345678901234567890123456789012345678901234\n",
         "device"},
        {"device=x\naddress=host\n", "address"},
        {"device=x\naddress=0.0.0.0\n", "address"},
        {"device=x\naddress=239.0.0.1\n", "address"},
        {"device=x\naddress=1.2.3.4:5\n", "address"},
        {"device=x\naddress=fe80::1\n", "link-local"},
        {"device=x\naddress=52:54:00:00:00:01\n", "address"},
        {"device=x\naddress=::\n", "address"},
        {"device=x\naddress=1.2.3.4\nfabric=a b\n", "fabric"},
        {"device=x\naddress=1.2.3.4\nnetworks=\n", "networks"},
        {"device=x\naddress=1.2.3.4\nnetworks=;\n", "networks"},
        {"device=x\naddress=1.2.3.4\nnetworks=a;b c\n", "networks"},
        {"device=x\naddress=1.2.3.4\ncolour=red\n", "colour"},
        {"device=x\naddress=1.2.3.4\nmax-in-flight=63K\n", "max-in-flight"},
        {"device=x\naddress=1.2.3.4\nmax-in-flight=1025M\n", "max-in-flight"},
        {"device=x\naddress=1.2.3.4\nmax-requests=15\n", "max-requests"},
        {"device=x\naddress=1.2.3.4\nmax-requests=1048577\n", "max-requests"},
        {"device=x\naddress=9.9.9.9\n", "belongs to [nic first]"},
        {"device=x\naddress=1.2.3.4\n[nic b]\n", "appears twice"},
    };
    g_autoptr(GString) many = g_string_new(NULL);
    struct daemon_config *cfg;
    g_autoptr(GError) err = NULL;

    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree char *text = g_strdup_printf(
            "[nic first]\ndevice=x\naddress=9.9.9.9\n[nic b]\n%s", cases[i].keys);
        const struct config_problem *p;

        g_test_message("%s", text);
        cfg = config_new();
        g_assert_true(load(cfg, text, &err));
        g_assert_cmpuint(g_list_length(cfg->problems), ==, 1);
        p = cfg->problems->data;
        g_assert_cmpstr(p->name, ==, "nic b");
        g_assert_nonnull(strstr(p->why, cases[i].word));
        g_assert_true(config_has_problem(cfg, "nic", "b"));
        g_assert_false(config_has_problem(cfg, "nic", "first"));
        g_assert_cmpstr(((struct nic_config *)cfg->nics->data)->name, ==, "first");
        config_free(cfg);
    }
    for (unsigned i = 0; i <= CONFIG_MAX_NICS; i++) {
        g_string_append_printf(many, "[nic n%u]\ndevice=x\naddress=1.2.3.%u\n", i, i + 1);
    }
    cfg = config_new();
    g_assert_true(load(cfg, many->str, &err));
    g_assert_cmpuint(g_list_length(cfg->nics), ==, CONFIG_MAX_NICS);
    g_assert_cmpuint(g_list_length(cfg->problems), ==, 1);
    config_free(cfg);
}

/* What makes a reload close and open it again. */
static void test_same_nics(void)
{
    static const char *const groups[] = {
        "device=x\naddress=1.2.3.4\n",
        "device=y\naddress=1.2.3.4\n",
        "device=x\naddress=1.2.3.5\n",
        "device=x\naddress=1.2.3.4\nfabric=f\n",
        "device=x\naddress=1.2.3.4\nnetworks=a\n",
        "device=x\naddress=1.2.3.4\nnetworks=a;b\n",
        "device=x\naddress=1.2.3.4\nmax-in-flight=1M\n",
        "device=x\naddress=1.2.3.4\nmax-requests=16\n",
    };
    struct daemon_config *cfg[2 * G_N_ELEMENTS(groups)];

    for (unsigned i = 0; i < G_N_ELEMENTS(cfg); i++) {
        g_autofree char *text =
            g_strconcat("[nic a]\n", groups[i % G_N_ELEMENTS(groups)], NULL);

        cfg[i] = config_new();
        g_assert_true(load(cfg[i], text, NULL));
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(cfg); i++) {
        for (unsigned k = 0; k < G_N_ELEMENTS(cfg); k++) {
            g_assert_true(config_nic_same(cfg[i]->nics->data, cfg[k]->nics->data) ==
                          (i % G_N_ELEMENTS(groups) == k % G_N_ELEMENTS(groups)));
        }
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(cfg); i++) {
        config_free(cfg[i]);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/config/full", test_full);
    g_test_add_func("/config/bad-files", test_bad_files);
    g_test_add_func("/config/bad-groups", test_bad_groups);
    g_test_add_func("/config/duplicate", test_duplicate);
    g_test_add_func("/config/uid", test_uid);
    g_test_add_func("/config/worker", test_worker);
    g_test_add_func("/config/network-nics", test_network_nics);
    g_test_add_func("/config/wrong-network", test_wrong_network);
    g_test_add_func("/config/diff", test_diff);
    g_test_add_func("/config/reload", test_reload);
    g_test_add_func("/config/default-file", test_default_file);
    g_test_add_func("/config/missing-file", test_missing_file);
    g_test_add_func("/config/override", test_override);
    g_test_add_func("/config/paths", test_paths);
    g_test_add_func("/config/names", test_names);
    g_test_add_func("/config/gid", test_gid);
    g_test_add_func("/config/addresses", test_addresses);
    g_test_add_func("/config/key-twice", test_key_twice);
    g_test_add_func("/config/user-files", test_user_files);
    g_test_add_func("/config/ranges", test_ranges);
    g_test_add_func("/config/peers", test_peers);
    g_test_add_func("/config/no-peers", test_no_peers);
    g_test_add_func("/config/bad-peers", test_bad_peers);
    g_test_add_func("/config/nics", test_nics);
    g_test_add_func("/config/bad-nics", test_bad_nics);
    g_test_add_func("/config/same-nics", test_same_nics);
    return g_test_run();
}
