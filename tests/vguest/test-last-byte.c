/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the last byte of a WRITE is stored last.  Programs poll it instead
 * of a completion queue, and hardware that they were written on keeps to this.
 *
 * /last-byte/watched proves it for every size: the daemon's worker runs with a
 * hardware watchpoint on the last byte, so it stops at the instruction that stores
 * it, and at that point all bytes before must be there.  A second watchpoint is on
 * the last byte of the cache line before: one instruction that stores both is not
 * one store for a reader.  What it cannot see is a processor that reorders stores
 * by itself; x86 does so for non-temporal and string stores only.  A hypervisor may
 * lose a debug exception (rarely: not once in most runs), so a WRITE with a store
 * that nobody was seen to make is repeated; a wrong order is never forgiven.
 *
 * /last-byte/raced does what such a program does, poll and read.  Few rounds in
 * thousands can meet a wrong order between two stores that are nanoseconds apart,
 * so that it passes proves little, but that it fails needs no further argument.
 */
#include "vgtest.h"

#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>

#define EVERY_SIZE  4096u
#define MAX_SIZE    70000u
#define LINE        64u
#define BUFFER      (128u << 10)
#define MAX_INLINE  128u
#define RACE_ROUNDS 400u
#define TRIES       3u /* of a WRITE with a store that was not seen */

static const uint32_t larger[] = {4097,  4160,  6000,  8191,  8192,
                                  12345, 16384, 32768, 40001, 65535,
                                  65536, 65537, 65600, 69632, MAX_SIZE};

static struct vgt_pair pair;

static void setup(void)
{
    struct vgt_opts o = {.guest = {{.db = VG_DB_EXT}, {.db = VG_DB_EXT}},
                         .qp = {.max_inline = MAX_INLINE},
                         .mr_len = BUFFER};

    vgt_pair_open(&pair, 0, 1, &o);
}

/* ---- one WRITE, and what it must look like ---- */

struct write_case {
    uint32_t size;
    uint64_t src, dst; /* offsets in the sides' buffers */
    bool is_inline;
    uint64_t seed;
};

static uint8_t *dst_of(const struct write_case *w)
{
    return VG_MR_HOST(pair.s[1].mr, w->dst);
}

/* New source bytes; each byte of the destination differs from what comes. */
static void prepare(const struct write_case *w)
{
    uint8_t *src = VG_MR_HOST(pair.s[0].mr, w->src), *dst = dst_of(w);

    vgt_fill(src, w->size, w->seed);
    for (uint32_t i = 0; i < w->size; i++) {
        dst[i] = ~src[i];
    }
}

static void post(const struct write_case *w)
{
    struct vgt_side *s = &pair.s[0], *far = &pair.s[1];
    struct pvrdma_sge sge = vg_sge(s->mr, w->src, w->size);
    struct vg_wr wr = vg_wr_to(w->seed, PVRDMA_WR_RDMA_WRITE, PVRDMA_SEND_SIGNALED, &sge,
                               far->mr, w->dst);

    if (w->is_inline) {
        wr.flags |= PVRDMA_SEND_INLINE;
        wr.inline_data = VG_MR_HOST(s->mr, w->src);
        wr.inline_len = w->size;
    }
    g_assert_cmpuint(vg_post_send(s->qp, &wr, 1), ==, 1);
}

/* ---- watchpoints ---- */

#define MAX_THREADS 80u
#define DR7_BOTH    (1u << 0 | 1u << 2 | 1u << 16 | 1u << 20) /* stores to one byte */

#ifdef __x86_64__

static pid_t thread[MAX_THREADS];
static unsigned n_threads;

static bool set_dr(pid_t tid, unsigned n, unsigned long value)
{
    return ptrace(PTRACE_POKEUSER, tid, offsetof(struct user, u_debugreg[n]), value) == 0;
}

static unsigned long get_dr(pid_t tid, unsigned n)
{
    return ptrace(PTRACE_PEEKUSER, tid, offsetof(struct user, u_debugreg[n]), NULL);
}

/* All threads but the main one, which moves no data. */
static bool trace_threads(void)
{
    g_autofree char *path = g_strdup_printf("/proc/%d/task", (int)vgt_daemon->pid);
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;
    bool ok = true;

    g_assert_nonnull(dir);
    while (ok && (name = g_dir_read_name(dir))) {
        pid_t tid = atoi(name);

        if (tid != vgt_daemon->pid) {
            g_assert_cmpuint(n_threads, <, MAX_THREADS);
            ok = ptrace(PTRACE_SEIZE, tid, NULL, NULL) == 0;
            thread[n_threads] = tid;
            n_threads += ok;
        }
    }
    g_dir_close(dir);
    return ok;
}

/* Wait for a thread's stop; signals that arrive meanwhile are passed on. */
static void stop_thread(pid_t tid)
{
    int64_t deadline = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    int status;

    g_assert_cmpint(ptrace(PTRACE_INTERRUPT, tid, NULL, NULL), ==, 0);
    for (;;) {
        pid_t got = waitpid(tid, &status, __WALL | WNOHANG);

        if (got == tid) {
            g_assert_true(WIFSTOPPED(status));
            if (status >> 16 == PTRACE_EVENT_STOP) {
                return;
            }
            ptrace(PTRACE_CONT, tid, NULL,
                   WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status));
        }
        g_assert_cmpint(vg_now_ns(), <, deadline);
        sched_yield();
    }
}

static void untrace_threads(void)
{
    for (unsigned i = 0; i < n_threads; i++) {
        stop_thread(thread[i]);
        set_dr(thread[i], 7, 0);
        g_assert_cmpint(ptrace(PTRACE_DETACH, thread[i], NULL, NULL), ==, 0);
    }
    n_threads = 0;
}

/* Watch two bytes; 0: none. */
static bool watch(uint64_t last, uint64_t before)
{
    bool ok = true;

    for (unsigned i = 0; i < n_threads; i++) {
        unsigned long control = last ? DR7_BOTH : 0;

        if (!before) {
            control &= ~(1ul << 2 | 1ul << 20);
        }
        stop_thread(thread[i]);
        ok &= set_dr(thread[i], 7, 0) && set_dr(thread[i], 0, last) &&
              set_dr(thread[i], 1, before) && set_dr(thread[i], 6, 0) &&
              set_dr(thread[i], 7, control);
        g_assert_cmpint(ptrace(PTRACE_CONT, thread[i], NULL, NULL), ==, 0);
    }
    return ok;
}

/* Where the daemon sees byte @off of @b: it maps a VM's memfd as a whole. */
static uint64_t daemon_address(const struct vg_buf *b, uint64_t off)
{
    static ino_t inode;
    static uint64_t base;
    uint64_t in_pages = (b->va & (PVRDMA_PAGE_SIZE - 1)) + off;
    uint64_t gpa = b->page[in_pages / PVRDMA_PAGE_SIZE] + in_pages % PVRDMA_PAGE_SIZE;
    struct stat st;

    g_assert_cmpint(fstat(b->g->memfd, &st), ==, 0);
    if (inode != st.st_ino) {
        g_autofree char *path = g_strdup_printf("/proc/%d/maps", (int)vgt_daemon->pid);
        g_autofree char *text = NULL;
        g_auto(GStrv) line = NULL;

        inode = base = 0;
        g_assert_true(g_file_get_contents(path, &text, NULL, NULL));
        line = g_strsplit(text, "\n", -1);
        for (unsigned i = 0; line[i]; i++) {
            unsigned long start, file_off, ino;

            if (sscanf(line[i], "%lx-%*x %*s %lx %*s %lu", &start, &file_off, &ino) ==
                    3 &&
                ino == st.st_ino && !base) {
                base = start - file_off;
            }
        }
        g_assert_cmpuint(base, !=, 0);
        inode = st.st_ino;
    }
    return base + ((uint8_t *)vg_ptr(b->g, gpa) - b->g->ram);
}

enum verdict { IN_ORDER, TOO_EARLY, ONE_STORE, NOT_SEEN };

/* Post it and judge the moment when its last byte appears. */
static enum verdict watched_write(const struct write_case *w)
{
    const struct vg_buf *b = pair.s[1].mr->buf;
    const uint8_t *src = VG_MR_HOST(pair.s[0].mr, w->src), *dst = dst_of(w);
    uint64_t end = w->dst + w->size - 1, last = daemon_address(b, end);
    uint64_t to_line = end - end % LINE; /* the buffer begins with a page */
    uint64_t before = to_line > w->dst ? daemon_address(b, to_line - 1) : 0;
    int64_t deadline = vg_now_ns() + VGT_WAIT_MS * 1000000ll;
    bool seen_before = !before, seen_last = false;
    enum verdict v = IN_ORDER;
    struct pvrdma_cqe cqe;

    prepare(w);
    g_assert_true(watch(last, before));
    post(w);
    while (vg_cq_poll(pair.s[0].scq, &cqe, 1) == 0) {
        for (unsigned i = 0; i < n_threads; i++) {
            int status, sig;
            unsigned long hit;

            if (waitpid(thread[i], &status, __WALL | WNOHANG) != thread[i]) {
                continue;
            }
            g_assert_true(WIFSTOPPED(status));
            sig = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
            hit = sig ? 0 : get_dr(thread[i], 6) & 3;
            if (hit & 1 && !seen_last) {
                seen_last = true;
                /* The same value once more is not the store that counts. */
                if (memcmp(dst, src, w->size - 1)) {
                    v = TOO_EARLY;
                } else if (!seen_before) {
                    v = hit & 2 ? ONE_STORE : NOT_SEEN;
                }
            }
            seen_before |= (hit & 2) != 0;
            set_dr(thread[i], 6, 0);
            if (seen_last) {
                set_dr(thread[i], 7, 0);
            }
            ptrace(PTRACE_CONT, thread[i], NULL, sig);
        }
        g_assert_cmpint(vg_now_ns(), <, deadline);
        sched_yield();
    }
    g_assert_cmpuint(cqe.status, ==, PVRDMA_WC_SUCCESS);
    g_assert_cmpint(memcmp(dst, src, w->size), ==, 0);
    return seen_last ? v : NOT_SEEN;
}

static unsigned judged[3], first_bad, unseen;

static void watch_sizes(uint32_t size, uint64_t seed)
{
    /* To the end of a page, to no boundary at all, and from a line's beginning. */
    uint64_t dst[] = {(-size) % PVRDMA_PAGE_SIZE, (37 * size + 13) % PVRDMA_PAGE_SIZE,
                      size % 64 * LINE};

    for (unsigned i = 0; i < G_N_ELEMENTS(dst); i++) {
        for (unsigned in = 0; in < 1 + (size <= MAX_INLINE); in++) {
            struct write_case w = {.size = size,
                                   .src = (uint64_t)i * 1021 % PVRDMA_PAGE_SIZE,
                                   .dst = dst[i],
                                   .is_inline = in,
                                   .seed = seed * 16 + i * 2 + in};
            enum verdict v = NOT_SEEN;

            for (unsigned try = 0; v == NOT_SEEN; try++) {
                if (try == TRIES) {
                    g_error("%u bytes at 0x%" PRIx64 ": nobody was seen to store the "
                            "last one, or the one before its line",
                            size, w.dst);
                }
                v = watched_write(&w);
                unseen += v == NOT_SEEN;
            }
            if (v != IN_ORDER && !judged[TOO_EARLY] && !judged[ONE_STORE]) {
                first_bad = size;
            }
            judged[v]++;
        }
    }
}

static void test_watched(void)
{
    struct write_case trial = {.size = 100, .seed = 1};

    setup();
    /* A virtual machine may take the registers and never stop for them. */
    if (!trace_threads() || !watch(daemon_address(pair.s[1].mr->buf, 0), 0) ||
        watched_write(&trial) == NOT_SEEN) {
        untrace_threads();
        vgt_pair_close(&pair);
        g_test_skip("no right, or no hardware, to set watchpoints in the daemon");
        return;
    }
    memset(judged, 0, sizeof(judged));
    unseen = 0;
    for (uint32_t size = 1; size <= EVERY_SIZE; size++) {
        watch_sizes(size, size);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(larger); i++) {
        watch_sizes(larger[i], larger[i]);
    }
    untrace_threads();
    vgt_pair_close(&pair);
    g_test_message("%u WRITEs in order; %u with the last byte too early, %u in one "
                   "instruction with the line before; %u repeated",
                   judged[IN_ORDER], judged[TOO_EARLY], judged[ONE_STORE], unseen);
    if (judged[TOO_EARLY] || judged[ONE_STORE]) {
        g_error("the last byte is not always stored last (first at %u bytes; %u too "
                "early, %u with the line before)",
                first_bad, judged[TOO_EARLY], judged[ONE_STORE]);
    }
}

#else

static void test_watched(void)
{
    g_test_skip("watchpoints are set for x86-64 only");
}

#endif

/* ---- the race itself ---- */

/* Poll the last byte, then at once read one other first; true: it was there. */
static bool raced_write(const struct write_case *w, uint32_t probe)
{
    const uint8_t *src = VG_MR_HOST(pair.s[0].mr, w->src);
    const volatile uint8_t *dst = dst_of(w);
    uint8_t want, got;
    int64_t deadline = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    prepare(w);
    want = src[w->size - 1];
    post(w);
    for (unsigned spin = 1; __atomic_load_n(&dst[w->size - 1], __ATOMIC_ACQUIRE) != want;
         spin++) {
        if (spin % 4096 == 0) {
            g_assert_cmpint(vg_now_ns(), <, deadline);
            sched_yield();
        }
    }
    got = __atomic_load_n(&dst[probe], __ATOMIC_ACQUIRE);
    vgt_expect(pair.s[0].scq, w->seed, PVRDMA_WC_SUCCESS);
    return got == src[probe];
}

static void test_raced(void)
{
    static const uint32_t sizes[] = {
        9,    12,   16,   24,   32,   48,   64,   65,    96,    100,     128,
        129,  200,  256,  257,  384,  512,  513,  1000,  1024,  1500,    2048,
        2049, 3000, 4000, 4096, 4097, 8192, 9000, 16384, 65536, MAX_SIZE};
    uint64_t seed = 1;
    unsigned rounds = 0, bad = 0, bad_sizes = 0;

    setup();
    for (unsigned k = 0; k < G_N_ELEMENTS(sizes); k++) {
        unsigned here = 0;

        for (unsigned i = 0; i < vgt_rounds(RACE_ROUNDS); i++) {
            uint32_t size = sizes[k];
            /* The last byte alone in its line, or with a few before it. */
            uint64_t end = LINE * (1 + i % 61) + (i & 1 ? 1 : i % LINE + 1);
            struct write_case w = {.size = size,
                                   .src = i * 8 % PVRDMA_PAGE_SIZE,
                                   .dst = (end + 2 * PVRDMA_PAGE_SIZE - size % 4096) %
                                          PVRDMA_PAGE_SIZE,
                                   .seed = seed++};
            /* The beginning, the middle, a line or two before the end. */
            uint32_t probe[] = {0, size / 2, size - 1 - MIN(size - 1, 64),
                                size - 1 - MIN(size - 1, 130), i * 97 % (size - 1)};

            here += !raced_write(&w, probe[i % G_N_ELEMENTS(probe)]);
            rounds++;
        }
        bad += here;
        bad_sizes += here > 0;
    }
    vgt_pair_close(&pair);
    g_test_message("%u of %u rounds, at %u of %zu sizes, saw the last byte before "
                   "another",
                   bad, rounds, bad_sizes, G_N_ELEMENTS(sizes));
    g_assert_cmpuint(bad, ==, 0);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 170);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_func("/last-byte/watched", test_watched);
    g_test_add_func("/last-byte/raced", test_raced);
    return vgt_run();
}
