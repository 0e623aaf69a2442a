/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: guest memory by the gigabyte, and by the terabyte of what is not
 * there.  What one VM does to the daemon's address space, others must not notice.
 *
 * Latencies are printed; asserted is only that nothing stands still.
 */
#include "vgtest.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define GIB           (1ull << 30)
#define TIB           (1ull << 40)
#define BIG_GPA       (1ull << 42)
#define STANDSTILL_US 200000.0

static uint64_t mem_available(void)
{
    char *text = NULL;
    const char *line;
    unsigned long long kb = 0;

    g_assert_true(g_file_get_contents("/proc/meminfo", &text, NULL, NULL));
    line = strstr(text, "MemAvailable:");
    if (line) {
        g_assert_cmpint(sscanf(line, "MemAvailable: %llu", &kb), ==, 1);
    }
    g_free(text);
    return kb << 10;
}

/*
 * As much as takes a tenth of a second and more to free, if there is room (0: there is
 * not).  Where no time is judged, less: sanitizers shadow all of it.
 */
static uint64_t big_size(void)
{
    return mem_available() < 4 * GIB ? 0 : vgt_judges() ? 2 * GIB : GIB / 4;
}

static int sealed(uint64_t size)
{
    int fd = memfd_create("vguest-big", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, (off_t)size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==,
                    0);
    return fd;
}

/* @size bytes of memory that are really there. */
static int filled(uint64_t size)
{
    int fd = sealed(size);
    uint8_t *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    g_assert_true(p != MAP_FAILED);
    for (uint64_t i = 0; i < size; i += 4096) {
        p[i] = 1;
    }
    munmap(p, size);
    return fd;
}

/* ... which only the daemon still has. */
static int give_big(struct vguest *g, uint64_t size)
{
    int fd = filled(size), err;

    err = vg_dma_map(g, fd, 0, BIG_GPA, size, VG_DMA_RW);
    close(fd);
    return err;
}

/*
 * What a bystander may wait, us: STANDSTILL_US, but far less than it takes to free @size,
 * or nobody would see that he waited for that.  As long as it takes here.
 */
static double limit_us(uint64_t size)
{
    int fd = filled(size);
    int64_t begun = vg_now_ns();
    double us;

    close(fd);
    us = (double)(vg_now_ns() - begun) / 1000;
    g_test_message("%u MiB are freed in %.0f us", (unsigned)(size >> 20), us);
    return MIN(STANDSTILL_US, us / 2);
}

static int64_t vm_memory(const char *vm, const char *name)
{
    return vg_status_int(vgt_daemon, vm, "memory", name);
}

static int64_t all_memory(const char *name)
{
    return vg_status_int(vgt_daemon, NULL, "guest_memory", name);
}

/* How long a thread was ready to run and had no processor, in ns; 0: nobody counts. */
static int64_t waited_for_cpu(const char *schedstat)
{
    char *text = NULL;
    unsigned long long ran, waited = 0;

    if (g_file_get_contents(schedstat, &text, NULL, NULL) &&
        sscanf(text, "%llu %llu", &ran, &waited) != 2) {
        waited = 0;
    }
    g_free(text);
    return (int64_t)waited;
}

/*
 * Commands of a bystander for @ms milliseconds; adds what each took to @us, but for the
 * time in which this thread or the daemon's that runs commands waited for a processor:
 * how busy the machine is says nothing about who is held up by whom.
 */
static void run_commands(struct vguest *g, int ms, GArray *us)
{
    int64_t end = vg_now_ns() + ms * 1000000ll;
    g_autofree char *daemon = g_strdup_printf("/proc/%d/task/%d/schedstat",
                                              (int)vgt_daemon->pid, (int)vgt_daemon->pid);
    const char *const thread[] = {"/proc/thread-self/schedstat", daemon};

    while (vg_now_ns() < end) {
        struct pvrdma_port_attr attr;
        int64_t begin, ns, waited[2];
        double took;

        for (unsigned i = 0; i < 2; i++) {
            waited[i] = waited_for_cpu(thread[i]);
        }
        begin = vg_now_ns();
        g_assert_cmpint(vg_query_port(g, 1, &attr), ==, 0);
        ns = vg_now_ns() - begin;
        for (unsigned i = 0; i < 2; i++) {
            ns -= waited_for_cpu(thread[i]) - waited[i];
        }
        took = (double)MAX(ns, 0) / 1000;
        g_array_append_val(us, took);
        g_usleep(200);
    }
}

/* Until the reaper is through; should it never be, the program's limit ends this. */
static void wait_until_gone(const char *what)
{
    while (all_memory(what) != 0) {
        g_usleep(20000);
    }
}

static gpointer crash_thread(gpointer g)
{
    vguest_crash(g);
    return NULL;
}

/* A large guest ends under another's commands. */
static void test_exit(void)
{
    uint64_t size = big_size();
    GArray *quiet = g_array_new(FALSE, FALSE, sizeof(double));
    GArray *busy = g_array_new(FALSE, FALSE, sizeof(double));
    struct vguest *big, *other;
    GThread *t;
    double limit;

    if (!size) {
        g_test_skip("too little memory is free");
        g_array_unref(quiet);
        g_array_unref(busy);
        return;
    }
    limit = limit_us(size);
    big = vguest_new(vgt_daemon, 0, NULL);
    other = vguest_new(vgt_daemon, 1, NULL);
    g_assert_cmpint(give_big(big, size), ==, 0);
    run_commands(other, 500, quiet);
    t = g_thread_new("crash", crash_thread, big);
    run_commands(other, 3000, busy);
    g_thread_join(t);
    g_test_message("commands of another VM while a guest of %u GiB ends: p50 %.0f us, "
                   "p99 %.0f, longest %.0f (quiet: %.0f, %.0f, %.0f)",
                   (unsigned)(size / GIB), vgt_percentile(busy, 50),
                   vgt_percentile(busy, 99), vgt_percentile(busy, 100),
                   vgt_percentile(quiet, 50), vgt_percentile(quiet, 99),
                   vgt_percentile(quiet, 100));
    vgt_assert_shorter(vgt_percentile(busy, 100), limit);
    vguest_free(other);
    wait_until_gone("bytes");
    g_array_unref(quiet);
    g_array_unref(busy);
}

/* How a descriptor comes that nobody wants. */
enum unwanted { REFUSED, ONE_TOO_MANY, IN_THE_MIDDLE };

/* The daemon stands still meanwhile; @fd is closed before it sees the message. */
static void send_unwanted(struct vguest *g, enum unwanted how, int fd)
{
    struct vfio_user_dma_map m = {.argsz = sizeof(m), .flags = VG_DMA_RW, .size = 1};
    struct vfio_user_hdr hdr = {.command = VFIO_USER_DMA_MAP,
                                .size = sizeof(hdr) + sizeof(m),
                                .flags = VFIO_USER_NO_REPLY};
    int fds[VFIO_USER_MAX_FDS + 1];

    g_assert_cmpint(kill(vgt_daemon->pid, SIGSTOP), ==, 0);
    for (unsigned i = 0; i < VFIO_USER_MAX_FDS; i++) {
        fds[i] = eventfd(0, EFD_CLOEXEC);
    }
    fds[VFIO_USER_MAX_FDS] = fd;
    if (how == IN_THE_MIDDLE) {
        g_assert_cmpint(vg_raw_send(g->sock, &hdr, sizeof(hdr), NULL, 0), ==, 0);
        g_assert_cmpint(vg_raw_send(g->sock, &m, sizeof(m), &fd, 1), ==, 0);
    } else if (how == ONE_TOO_MANY) {
        g_assert_cmpint(vg_raw_send(g->sock, &hdr, sizeof(hdr), fds, G_N_ELEMENTS(fds)),
                        ==, 0);
    } else {
        g_assert_cmpint(vg_request(g, VFIO_USER_DMA_MAP, VFIO_USER_NO_REPLY, &m,
                                   sizeof(m), &fd, 1, NULL),
                        ==, 0);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        close(fds[i]);
    }
    g_assert_cmpint(kill(vgt_daemon->pid, SIGCONT), ==, 0);
}

/* A descriptor that is not taken, and has its last reference in the daemon. */
static void test_unwanted_descriptor(gconstpointer arg)
{
    enum unwanted how = GPOINTER_TO_INT(arg);
    GArray *busy = g_array_new(FALSE, FALSE, sizeof(double));
    uint64_t size = big_size();
    struct vguest *big, *other;
    double limit;
    int fd;

    if (!size) {
        g_test_skip("too little memory is free");
        g_array_unref(busy);
        return;
    }
    limit = limit_us(size);
    big = vguest_new(vgt_daemon, 0, NULL);
    other = vguest_new(vgt_daemon, 1, NULL);
    fd = filled(size);
    send_unwanted(big, how, fd);
    g_usleep(1000);
    run_commands(other, 2000, busy);
    g_test_message("commands of another VM while refused memory is let go: p99 %.0f us, "
                   "longest %.0f",
                   vgt_percentile(busy, 99), vgt_percentile(busy, 100));
    vgt_assert_shorter(vgt_percentile(busy, 100), limit);
    if (how == REFUSED) {
        vguest_free(big);
    } else { /* the VMM's fault */
        g_assert_true(vg_wait_closed(big, VGT_WAIT_MS));
        vguest_crash(big);
    }
    vguest_free(other);
    g_array_unref(busy);
}

/*
 * A VM that comes and goes with gigabytes has a bounded amount in the daemon.  Where
 * nothing is judged it is only about what sanitizers report.
 */
static void test_come_and_go(void)
{
    uint64_t before = mem_available(), least = before;
    uint64_t size = vgt_judges() ? 2 * GIB : GIB / 8;
    int64_t most = 0;

    if (before < (vgt_judges() ? 16 : 4) * GIB) {
        g_test_skip("too little memory is free");
        return;
    }
    for (unsigned i = 0; i < 6; i++) {
        struct vguest *g = vguest_new(vgt_daemon, 0, NULL);

        if (give_big(g, size) == ENOSPC) {
            g_test_message("round %u is refused", i);
        }
        least = MIN(least, mem_available());
        vguest_crash(g);
        most = MAX(most, vm_memory("vm0", "unmapping_bytes"));
    }
    g_test_message("%u MiB, 6 times: at most %u MiB are being unmapped, %u MiB less "
                   "memory is free",
                   (unsigned)(size >> 20), (unsigned)(most >> 20),
                   (unsigned)((before - least) >> 20));
    g_assert_cmpint(most, <=, (int64_t)(9 * GIB));
    g_assert_cmpuint(before - least, <, 12 * GIB);
    wait_until_gone("unmapping_bytes");
}

static bool log_says(const char *what)
{
    char *text = NULL;
    bool res;

    g_assert_true(g_file_get_contents(vgt_daemon->log, &text, NULL, NULL));
    res = strstr(text, what) != NULL;
    g_free(text);
    return res;
}

/* 32 VMMs ask for the whole address space, 4 TiB each. */
static void test_sparse(void)
{
    enum { N = 32 };
    struct vg_daemon_opts o = {.n_vms = N + 2, .poll_us = -1};
    struct vg_daemon *saved = vgt_daemon;
    struct vguest *hostile[N], *early, *late;
    struct vgt_traffic traffic;
    unsigned mapped = 0;
    GArray *us;

    if (!VGT_PLAIN_BUILD) {
        g_test_skip("sanitizers want most of the address space themselves");
        return;
    }
    us = g_array_new(FALSE, FALSE, sizeof(double));
    vgt_daemon = vg_daemon_start(&o);
    early = vguest_new(vgt_daemon, N, NULL);
    for (unsigned i = 0; i < N; i++) {
        int fd = sealed(4 * TIB), err;

        hostile[i] = vguest_open(vgt_daemon, i, NULL);
        g_assert_cmpint(vg_connect(hostile[i]), ==, 0);
        g_assert_cmpint(vg_version(hostile[i]), ==, 0);
        err = vg_dma_map(hostile[i], fd, 0, BIG_GPA, 4 * TIB, VG_DMA_RW);
        close(fd);
        g_assert_true(err == 0 || err == ENOSPC);
        mapped += err == 0;
        /* What is refused once is refused in many pieces, too. */
        for (unsigned k = 0; err && k < 64; k++) {
            fd = sealed(64 * GIB);
            vg_dma_map(hostile[i], fd, 0, BIG_GPA + k * TIB, 64 * GIB, VG_DMA_RW);
            close(fd);
        }
    }
    g_test_message("%u of %u VMs have 4 TiB mapped; the daemon has %u GiB of at most %u",
                   mapped, N, (unsigned)(all_memory("bytes") / (int64_t)GIB),
                   (unsigned)(all_memory("max_bytes") / (int64_t)GIB));
    g_assert_cmpuint(mapped, >, 0);
    g_assert_cmpuint(mapped, <, N);
    g_assert_cmpint(all_memory("bytes"), <=, all_memory("max_bytes"));
    g_assert_true(log_says("max-mapped"));
    g_assert_cmpint(vm_memory("vm31", "refused"), >, 0);

    /* Another VM's commands are answered, and a new one can come. */
    run_commands(early, 200, us);
    vgt_assert_shorter(vgt_percentile(us, 100), STANDSTILL_US);
    late = vguest_new(vgt_daemon, N + 1, NULL);
    run_commands(late, 200, us);
    vguest_free(late);
    vguest_free(early);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "vm add late addresses=10.9.9.9"), ==, 0);
    vgt_traffic_open(&traffic, N, N + 1, 1, 4, 65536, NULL);
    vgt_traffic_run(&traffic, 200);
    vgt_traffic_close(&traffic);
    for (unsigned i = 0; i < N; i++) {
        vguest_crash(hostile[i]);
    }
    wait_until_gone("bytes");
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = saved;
    g_array_unref(us);
}

/* The lowest descriptor that the daemon has free. */
static unsigned free_descriptor(void)
{
    for (unsigned fd = 0;; fd++) {
        g_autofree char *path =
            g_strdup_printf("/proc/%d/fd/%u", (int)vgt_daemon->pid, fd);

        if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) < 0) {
            return fd;
        }
    }
}

/* Leave the daemon the descriptors below @n. */
static void limit_descriptors(rlim_t n)
{
    struct rlimit rl;

    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, NULL, &rl), ==, 0);
    rl.rlim_cur = MIN(n, rl.rlim_max);
    g_assert_cmpint(prlimit(vgt_daemon->pid, RLIMIT_NOFILE, &rl, NULL), ==, 0);
}

static int assign(struct vguest *g, unsigned n)
{
    int efd[32], err;

    g_assert_cmpuint(n, <=, G_N_ELEMENTS(efd));
    for (unsigned i = 0; i < n; i++) {
        efd[i] = eventfd(0, EFD_CLOEXEC);
    }
    err = vg_set_irqs(g, VG_IRQ_EVENTFDS, 0, n, efd, n);
    for (unsigned i = 0; i < n; i++) {
        close(efd[i]);
    }
    return err;
}

static int control_client(void)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    g_strlcpy(sa.sun_path, vgt_daemon->control, sizeof(sa.sun_path));
    g_assert_cmpint(connect(s, (struct sockaddr *)&sa, sizeof(sa)), ==, 0);
    return s;
}

/*
 * The daemon has no descriptors left: a VM that sends some is refused them, but lives,
 * and has its way when there are some again.  The VM is one whose log lines the tests
 * before have not used up.
 */
static void test_no_descriptors(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 1, NULL);
    struct vg_usage before;
    GArray *us = g_array_new(FALSE, FALSE, sizeof(double));
    int fd = sealed(1 << 20), admin;

    g_assert_cmpint(vg_dma_map(g, fd, 0, BIG_GPA, 1 << 20, VG_DMA_RW), ==, 0);
    g_assert_cmpint(vg_dma_unmap(g, BIG_GPA, 1 << 20), ==, 0);
    vgt_usage_settled(&before); /* what is closed is closed by a thread */

    limit_descriptors(free_descriptor());
    g_assert_cmpint(vg_dma_map(g, fd, 0, BIG_GPA, 1 << 20, VG_DMA_RW), ==, EMFILE);
    g_assert_cmpint(assign(g, PVRDMA_NUM_VEC), ==, EMFILE);
    limit_descriptors(free_descriptor() + 1); /* one of them arrives */
    g_assert_cmpint(assign(g, PVRDMA_NUM_VEC), ==, EMFILE);
    vgt_wait_logged("no descriptors left");

    /* Nor is anybody held up by an administrator who cannot come in. */
    limit_descriptors(free_descriptor());
    admin = control_client();
    run_commands(g, 200, us);
    vgt_assert_shorter(vgt_percentile(us, 50), 5000);
    close(admin);

    limit_descriptors(RLIM_INFINITY);
    g_assert_cmpint(vg_dma_map(g, fd, 0, BIG_GPA, 1 << 20, VG_DMA_RW), ==, 0);
    g_assert_cmpint(vg_dma_unmap(g, BIG_GPA, 1 << 20), ==, 0);
    g_assert_cmpint(vg_ctl(vgt_daemon, NULL, "status"), ==, 0);
    vgt_usage_returns(&before);

    /* More than a message may have are the VMM's fault. */
    g_assert_cmpint(assign(g, VFIO_USER_MAX_FDS + 1), <, 0);
    g_assert_true(vg_wait_closed(g, VGT_WAIT_MS));
    vguest_crash(g);
    close(fd);
    g_array_unref(us);
}

/* ---- memory for objects ---- */

static int64_t all_objects(const char *name)
{
    return vg_status_int(vgt_daemon, NULL, "objects", name);
}

/* What one VM may have costs it nothing: one page, over and over. */
#define LIST_PAGES 65536u
#define MAX_LISTS  128u

/* Until there is no room for the smallest either. */
static unsigned take_lists(struct vguest *g, struct vg_pd *pd, uint64_t pdir,
                           uint32_t *mr)
{
    unsigned n = 0;

    for (uint32_t pages = LIST_PAGES; pages; pages /= 2) {
        struct pvrdma_cmd_create_mr req = {
            .start = 0x10000000,
            .length = (uint64_t)pages * PVRDMA_PAGE_SIZE,
            .pd_handle = pd->handle,
            .access_flags = VG_ACCESS_ALL,
            .nchunks = pages,
            .pdir_dma = pdir,
        };
        struct pvrdma_resp_create_mr resp;
        int err;

        while ((err = vg_create_mr(g, &req, &resp)) == 0) {
            g_assert_cmpuint(n, <, MAX_LISTS);
            mr[n++] = resp.mr_handle;
        }
        g_assert_cmpint(err, ==, ENOMEM);
    }
    return n;
}

/*
 * One VM takes all that there is for objects: it is told so, and others have their
 * shares.  With what was let have it a VM comes along when the daemon is replaced, by one
 * with less as well.
 */
static void test_objects(void)
{
    struct vg_daemon_opts o = {
        .n_vms = 3, .poll_us = -1, .daemon_keys = "max-objects=32M\nmax-mapped=8G"};
    int fd = memfd_create("wide", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct vg_daemon *saved = vgt_daemon;
    g_autofree char *text = NULL;
    uint32_t mr[2 * MAX_LISTS];
    struct vgt_traffic t;
    struct vg_buf *buf;
    struct vguest *g;
    struct vg_pd *pd;
    uint64_t pdir;
    unsigned n;

    vgt_daemon = vg_daemon_start(&o);
    g_assert_cmpint(all_objects("max_bytes"), ==, 32 << 20);
    g = vguest_new(vgt_daemon, 0, NULL);
    g_assert_cmpint(ftruncate(fd, 3ll << 30), ==, 0); /* of which nothing is used */
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), ==, 0);
    g_assert_cmpint(vg_dma_map(g, fd, 0, BIG_GPA, 3ull << 30, VG_DMA_RW), ==, 0);
    close(fd);
    pd = vg_pd_new(g);
    buf = vg_buf_new_alias(g, 0x10000000, (uint64_t)LIST_PAGES * PVRDMA_PAGE_SIZE, 1);
    pdir = vg_pdir_new(g, buf->page, LIST_PAGES);
    n = take_lists(g, pd, pdir, mr);
    g_assert_cmpuint(n, >, 16);
    g_assert_cmpint(all_objects("refused"), >, 1);
    g_assert_cmpint(all_objects("refused"), ==,
                    vgt_counter("vm0", "objects", "no_memory"));
    g_assert_cmpint(all_objects("bytes"), <=, 32 << 20);
    vgt_wait_logged("max-objects");

    vgt_traffic_open(&t, 1, 2, 1, 4, 1000, NULL);
    vgt_traffic_run(&t, 100);

    g_assert_true(g_file_get_contents(vgt_daemon->config, &text, NULL, NULL));
    memcpy(strstr(text, "=32M"), "=16M", 4);
    memcpy(strstr(text, "=8G"), "=1G", 3);
    g_assert_true(g_file_set_contents(vgt_daemon->config, text, -1, NULL));
    vgt_restart(vgt_daemon);
    g_assert_cmpint(all_objects("max_bytes"), ==, 16 << 20);
    g_assert_cmpint(all_objects("bytes"), >, 16 << 20);
    vgt_traffic_run(&t, 100);
    vgt_traffic_close(&t);

    g_assert_cmpuint(take_lists(g, pd, pdir, mr + n), ==, 0);
    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, mr[i]), ==, 0);
    }
    n = take_lists(g, pd, pdir, mr);
    g_assert_cmpuint(n, >, 8);
    g_assert_cmpint(all_objects("bytes"), <=, 16 << 20);
    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(vg_destroy(g, PVRDMA_CMD_DESTROY_MR, mr[i]), ==, 0);
    }
    vg_pdir_free(g, pdir, LIST_PAGES);
    vg_buf_free(buf);
    vg_pd_free(pd);
    vguest_free(g);
    g_assert_cmpint(all_objects("bytes"), ==, 0);
    vg_daemon_stop(vgt_daemon);
    vgt_daemon = saved;
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 400);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_func("/memory/exit", test_exit);
    g_test_add_data_func("/memory/unwanted-descriptor/refused", GINT_TO_POINTER(REFUSED),
                         test_unwanted_descriptor);
    g_test_add_data_func("/memory/unwanted-descriptor/one-too-many",
                         GINT_TO_POINTER(ONE_TOO_MANY), test_unwanted_descriptor);
    g_test_add_data_func("/memory/unwanted-descriptor/in-the-middle",
                         GINT_TO_POINTER(IN_THE_MIDDLE), test_unwanted_descriptor);
    g_test_add_func("/memory/come-and-go", test_come_and_go);
    g_test_add_func("/memory/sparse", test_sparse);
    g_test_add_func("/memory/objects", test_objects);
    g_test_add_func("/memory/no-descriptors", test_no_descriptors);
    return vgt_run();
}
