/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: both ends of a TCP connection in one daemon (path=tcp), when that has no
 * descriptors left.
 */
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "vgtest.h"

/* The listener looks again twice a second. */
#define LOOKS_A_SECOND 2
#define WORDS          "cannot accept connections: Too many open files"

static bool has_descriptor(unsigned fd)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/fd/%u", (int)vgt_daemon->pid, fd);

    return faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The daemon may have @n more descriptors; its limit until then. */
static rlim_t leave_descriptors(unsigned n)
{
    struct rlimit rl;
    unsigned fd = 0;
    rlim_t was;

    for (unsigned found = 0; found <= n; fd++) {
        found += !has_descriptor(fd);
    }
    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, NULL, &rl), ==, 0);
    was = rl.rlim_cur;
    rl.rlim_cur = fd - 1;
    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, &rl, NULL), ==, 0);
    return was;
}

static void limit_descriptors(rlim_t n)
{
    struct rlimit rl;

    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, NULL, &rl), ==, 0);
    rl.rlim_cur = n;
    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, &rl, NULL), ==, 0);
}

static unsigned times_logged(void)
{
    g_autofree char *log = NULL;
    unsigned n = 0;

    g_assert_true(g_file_get_contents(vgt_daemon->log, &log, NULL, NULL));
    for (const char *p = log; (p = strstr(p, WORDS)); p += strlen(WORDS)) {
        n++;
    }
    return n;
}

/*
 * There is a descriptor for one end only: the other one waits, and is looked for now and
 * then, not all the time.  When there are some again, the connection is made.
 */
static void test_no_descriptors(void)
{
    const struct vg_conn conn = {.timeout = 18, .retry_cnt = 7};
    struct vgt_opts o = {.conn = conn};
    struct vgt_pair first, p;
    int64_t start;
    unsigned n;
    rlim_t was;

    /* With one connection each VM has all else that it needs. */
    vgt_pair_open(&first, 0, 1, &o);
    vgt_write_once(&first, 1);
    p = first;
    for (unsigned i = 0; i < 2; i++) {
        p.s[i].qp = vg_qp_new(p.s[i].pd, p.s[i].scq, p.s[i].rcq, &o.qp);
    }
    was = leave_descriptors(1);
    start = vg_now_ns();
    vg_qp_connect(p.s[0].qp, p.s[1].qp, &conn);
    while (!(n = times_logged())) {
        g_assert_cmpint(vg_now_ns() - start, <, VGT_WAIT_MS * 1000000ll);
        g_usleep(10000);
    }
    start = vg_now_ns();
    g_usleep(1200000);
    n = times_logged() - n;
    g_assert_cmpuint(
        n, <=, (vg_now_ns() - start) * LOOKS_A_SECOND / 1000000000 + LOOKS_A_SECOND);
    limit_descriptors(was);
    vgt_write_once(&p, 2);
    vgt_write_once(&first, 3);
    for (unsigned i = 0; i < 2; i++) {
        vg_qp_free(p.s[i].qp);
    }
    vgt_pair_close(&first);
}

int main(int argc, char **argv)
{
    const struct vg_daemon_opts o = {
        .n_vms = 2, .poll_us = -1, .daemon_keys = "path=tcp"};

    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(&o);
    g_test_add_func("/loop/no-descriptors", test_no_descriptors);
    return vgt_run();
}
