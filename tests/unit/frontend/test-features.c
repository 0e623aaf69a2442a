/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * DEVICE_FEATURE: which features there are, with every method and argsz; the log of
 * stores, with what a hostile client may ask of it.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/dirty.h"
#include "pvrdma/dirty.h"

#define GET     VFIO_USER_FEATURE_GET
#define SET     VFIO_USER_FEATURE_SET
#define PROBE   VFIO_USER_FEATURE_PROBE
#define START   VFIO_USER_FEATURE_DMA_LOGGING_START
#define STOP    VFIO_USER_FEATURE_DMA_LOGGING_STOP
#define REPORT  VFIO_USER_FEATURE_DMA_LOGGING_REPORT
#define MAX_LEN 512u

static struct reply last;

static void setup(struct fixture *f, gconstpointer arg)
{
    fixture_setup(f, arg);
    client_attach(f);
}

/* With @argsz as it is; 0 or the errno, and `last`. */
static int ask(struct fixture *f, uint32_t flags, uint32_t argsz, const void *data,
               uint32_t len)
{
    struct vfio_user_device_feature head = {argsz, flags};
    uint8_t msg[sizeof(head) + MAX_LEN];

    g_assert_cmpuint(len, <=, MAX_LEN);
    memcpy(msg, &head, sizeof(head));
    if (len) { /* else there may be none */
        memcpy(msg + sizeof(head), data, len);
    }
    return client_call(f->cl, VFIO_USER_DEVICE_FEATURE, msg, (uint32_t)sizeof(head) + len,
                       NULL, 0, &last);
}

static void check_head(uint32_t flags, uint32_t len)
{
    struct vfio_user_device_feature head;

    g_assert_cmpuint(last.len, ==, len);
    memcpy(&head, last.body, sizeof(head));
    g_assert_cmpuint(head.argsz, ==, len);
    g_assert_cmphex(head.flags, ==, flags);
}

static void test_methods(struct fixture *f, gconstpointer arg)
{
    static const uint32_t has[] = {[VFIO_USER_FEATURE_MIGRATION] = GET,
                                   [VFIO_USER_FEATURE_MIG_DEVICE_STATE] = GET | SET,
                                   [START] = SET,
                                   [STOP] = SET,
                                   [REPORT] = GET,
                                   [VFIO_USER_FEATURE_MIG_DATA_SIZE] = GET};

    for (uint32_t n = 0; n <= 0xffff; n = n < 20 ? n + 1 : n * 2 - 1) {
        uint32_t methods = n < G_N_ELEMENTS(has) ? has[n] : 0;

        for (uint32_t m = 0; m <= (GET | SET); m += GET) {
            int want = !methods ? ENOTTY : m & ~methods ? EINVAL : 0;

            g_assert_cmpint(ask(f, n | m | PROBE, 8, NULL, 0), ==, want);
            if (!want) {
                check_head(n | m | PROBE, 8);
            }
            /* None, or both; or flags that are none. */
            if (m == 0 || m == (GET | SET)) {
                g_assert_cmpint(ask(f, n | m, 8, NULL, 0), ==, methods ? EINVAL : ENOTTY);
            }
            g_assert_cmpint(ask(f, n | m | PROBE | PROBE << 1, 8, NULL, 0), ==, EINVAL);
        }
        g_assert_cmpint(ask(f, n | PROBE, 7, NULL, 0), ==, EINVAL);
    }
    /* Shorter than its head. */
    client_refused(f->cl, VFIO_USER_DEVICE_FEATURE, "\10\0\0\0", 4);
}

/* ---- the log ---- */

struct start {
    struct vfio_user_log_start head;
    struct vfio_user_log_range range[DIRTY_MAX_RANGES + 1];
};

static int start(struct fixture *f, uint64_t page_size, uint32_t n,
                 const struct vfio_user_log_range *range)
{
    struct start req = {.head = {.page_size = page_size, .num_ranges = n}};

    for (uint32_t i = 0; i < n && i < G_N_ELEMENTS(req.range); i++) {
        req.range[i] = range[i];
    }
    return ask(f, START | SET, MAX_LEN, &req,
               (uint32_t)(sizeof(req.head) +
                          MIN(n, G_N_ELEMENTS(req.range)) * sizeof(req.range[0])));
}

static int stop(struct fixture *f)
{
    return ask(f, STOP | SET, 8, NULL, 0);
}

static int report(struct fixture *f, uint64_t iova, uint64_t length, uint64_t page_size,
                  uint32_t argsz)
{
    struct vfio_user_log_report req = {iova, length, page_size};

    return ask(f, REPORT | GET, argsz, &req, sizeof(req));
}

static uint64_t word(unsigned i)
{
    uint64_t w;

    g_assert_cmpuint(32 + 8 * (i + 1), <=, last.len);
    memcpy(&w, last.body + 32 + 8 * i, sizeof(w));
    return w;
}

static void mark(struct fixture *f, uint64_t gpa, uint64_t len)
{
    guest_mark_dirty(&f->vm->guest.mem, gpa, len);
}

static void test_start(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_range range[DIRTY_MAX_RANGES + 1];
    struct vfio_user_log_start echo;
    struct start req = {.head = {.page_size = PG, .num_ranges = 2}};

    for (unsigned i = 0; i < G_N_ELEMENTS(range); i++) {
        range[i] = (struct vfio_user_log_range){i * 8 * PG, 4 * PG};
    }
    g_assert_cmpint(stop(f), ==, EINVAL);
    /* Any page size that is one; the log has its own. */
    for (unsigned shift = 0; shift < 64; shift += 21) {
        g_assert_cmpint(start(f, 1ull << shift, 0, NULL), ==, 0);
        check_head(START | SET, 8 + sizeof(echo));
        memcpy(&echo, last.body + 8, sizeof(echo));
        g_assert_cmpuint(echo.page_size, ==, PG);
        g_assert_cmpuint(echo.num_ranges, ==, 0);
        g_assert_cmpint(start(f, PG, 0, NULL), ==, EBUSY);
        g_assert_cmpint(stop(f), ==, 0);
        check_head(STOP | SET, 8);
        g_assert_cmpint(stop(f), ==, EINVAL);
    }
    g_assert_cmpint(start(f, 0, 0, NULL), ==, EINVAL);
    g_assert_cmpint(start(f, 3 * PG, 0, NULL), ==, EINVAL);
    g_assert_cmpint(start(f, PG, DIRTY_MAX_RANGES + 1, range), ==, EINVAL);
    g_assert_cmpint(start(f, PG, UINT32_MAX, range), ==, EINVAL);
    g_assert_cmpint(start(f, PG, DIRTY_MAX_RANGES, range), ==, 0);
    g_assert_cmpint(stop(f), ==, 0);
    /* Fewer than it says, more, none of it. */
    for (uint32_t len = 0; len < sizeof(req.head) + 3 * sizeof(range[0]); len++) {
        bool whole = len == sizeof(req.head) + 2 * sizeof(range[0]);

        memcpy(req.range, range, 3 * sizeof(range[0]));
        g_assert_cmpint(ask(f, START | SET, MAX_LEN, &req, len), ==, whole ? 0 : EINVAL);
        if (whole) {
            g_assert_cmpint(stop(f), ==, 0);
        }
    }
    /* Ranges that are none: what dirty.c refuses comes through. */
    range[0].length = 0;
    g_assert_cmpint(start(f, PG, 1, range), ==, EINVAL);
    range[0].length = PG + 1;
    g_assert_cmpint(start(f, PG, 1, range), ==, EINVAL);
    range[0].length = UINT64_MAX - PG + 1;
    g_assert_cmpint(start(f, PG, 1, range), ==, EINVAL);
    range[1].iova = range[2].iova;
    g_assert_cmpint(start(f, PG, 3, range), ==, EINVAL);
    /* One is left to whoever detaches. */
    g_assert_cmpint(start(f, PG, 0, NULL), ==, 0);
}

static void test_report(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_range range[2] = {{0x100000, 200 * PG}, {0x10000000, PG}};

    g_assert_cmpint(report(f, 0x100000, PG, PG, MAX_LEN), ==, EINVAL);
    g_assert_cmpint(start(f, PG, 2, range), ==, 0);
    mark(f, 0x100000 - 1, 2); /* one page before it, and its first */
    mark(f, 0x100000 + 64 * PG - 1, 2);
    mark(f, 0x100000 + 199 * PG, 5 * PG);
    g_assert_cmpint(report(f, 0x100000, 200 * PG, PG, MAX_LEN), ==, 0);
    check_head(REPORT | GET, 8 + 24 + 4 * 8);
    g_assert_cmphex(word(0), ==, 1 | 1ull << 63);
    g_assert_cmphex(word(1), ==, 1);
    g_assert_cmphex(word(2), ==, 0);
    g_assert_cmphex(word(3), ==, 1ull << (199 - 192));
    /* It was taken. */
    g_assert_cmpint(report(f, 0x100000, 200 * PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(0) | word(1) | word(2) | word(3), ==, 0);

    /* A part of a range; and what is not in it stays. */
    mark(f, 0x100000, 4 * PG);
    g_assert_cmpint(report(f, 0x100000 + PG, 2 * PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(0), ==, 3);
    g_assert_cmpint(report(f, 0x100000, 8 * PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(0), ==, 1 | 1 << 3);

    /* By larger pages. */
    mark(f, 0x100000 + 5 * PG, 1);
    mark(f, 0x100000 + 16 * PG, 1);
    g_assert_cmpint(report(f, 0x100000, 192 * PG, 16 * PG, MAX_LEN), ==, 0);
    check_head(REPORT | GET, 8 + 24 + 8);
    g_assert_cmphex(word(0), ==, 3);

    /* A reset leaves it. */
    mark(f, 0x10000000, 1);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    g_assert_cmpint(report(f, 0x10000000, PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(0), ==, 1);
}

/* There may have been marks in a page of the log that is gone. */
static void test_fault(struct fixture *f, gconstpointer arg)
{
    g_assert_cmpint(start(f, PG, 0, NULL), ==, 0);
    mark(f, 0, 1);
    atomic_store(&f->vm->guest.fault, "a fault of the test");
    g_assert_cmpint(report(f, 0, PG, PG, MAX_LEN), ==, EIO);
    client_dropped(f);
    client_attach(f);
}

static void test_bad_reports(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_report req = {0, PG, PG};
    uint64_t most = (uint64_t)VFIO_USER_MAX_DATA * 8 * PG;
    uint32_t argsz = 8 + 24 + VFIO_USER_MAX_DATA;

    g_assert_cmpint(start(f, PG, 0, NULL), ==, 0);
    for (uint32_t len = 0; len < sizeof(req); len++) {
        g_assert_cmpint(ask(f, REPORT | GET, MAX_LEN, &req, len), ==, EINVAL);
    }
    mark(f, 0, 1);
    for (uint32_t room = 0; room < 8 + 24 + 8; room++) {
        g_assert_cmpint(report(f, 0, PG, PG, room), ==, EINVAL);
    }
    /* A refusal takes nothing. */
    g_assert_cmpint(report(f, 0, PG, PG, 8 + 24 + 8), ==, 0);
    g_assert_cmphex(word(0), ==, 1);
    g_assert_cmpint(report(f, 0, PG, 0, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, 0, PG, PG / 2, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, 0, 3 * PG, 3 * PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, 0, 0, PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, PG, 2 * PG, 2 * PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, 1, PG, PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, 0, most + PG, PG, UINT32_MAX), ==, E2BIG);
    g_assert_cmpint(report(f, 0, 1ull << 45, 1ull << 40, UINT32_MAX), ==, E2BIG);
    g_assert_cmpint(report(f, DIRTY_MAX_BYTES, PG, PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, UINT64_MAX - PG + 1, PG, PG, argsz), ==, EINVAL);
    g_assert_cmpint(report(f, UINT64_MAX - PG + 1, 2 * PG, PG, argsz), ==, EINVAL);
    /* The largest. */
    mark(f, most - 1, 1);
    g_assert_cmpint(report(f, 0, most, PG, argsz), ==, 0);
    check_head(REPORT | GET, argsz);
    g_assert_cmphex(word(VFIO_USER_MAX_DATA / 8 - 1), ==, 1ull << 63);
}

/* ---- the log that is shared ---- */

#define SHARE PVRDMA_FEATURE_DIRTY_LOG

/* 0: and `last` has the file. */
static int share(struct fixture *f, uint32_t n, const struct vfio_user_log_range *range)
{
    struct start req = {.head = {.page_size = PG, .num_ranges = n}};
    uint32_t len = (uint32_t)(sizeof(req.head) + n * sizeof(req.range[0]));
    int err;

    g_assert_cmpuint(n, <=, G_N_ELEMENTS(req.range));
    if (n) {
        memcpy(req.range, range, n * sizeof(req.range[0]));
    }
    err = ask(f, SHARE | SET, MAX_LEN, &req, len);
    g_assert_cmpuint(last.nfds, ==, err ? 0 : 1);
    if (!err) {
        check_head(SHARE | SET, 8 + len);
    }
    return err;
}

static _Atomic uint64_t *map_log(uint64_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, last.fds[0], 0);

    g_assert_true(p != MAP_FAILED);
    return p;
}

/* Two ranges: the second has its bits behind whole pages for the first. */
static void test_share(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_range range[2] = {{0x100000, 200 * PG},
                                           {0x10000000, 40000 * PG}};
    const unsigned second = PG / 8;
    _Atomic uint64_t *bits;
    struct stat st;
    int fd;

    g_assert_cmpint(ask(f, SHARE | SET | PROBE, 8, NULL, 0), ==, 0);
    g_assert_cmpint(ask(f, SHARE | GET | PROBE, 8, NULL, 0), ==, EINVAL);
    g_assert_cmpint(share(f, 2, range), ==, 0);
    fd = last.fds[0];
    g_assert_cmpint(fstat(fd, &st), ==, 0);
    g_assert_cmpint(st.st_size, ==, PG + 2 * PG);
    g_assert_cmpint(fcntl(fd, F_GET_SEALS), ==,
                    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    bits = map_log(3 * PG);
    close(fd);
    g_assert_cmpint(share(f, 2, range), ==, EBUSY);
    g_assert_cmpint(start(f, PG, 2, range), ==, EBUSY);

    mark(f, 0x100000 + 64 * PG - 1, 2);
    mark(f, 0x10000000 + 39999 * PG, 9 * PG);
    g_assert_cmphex(atomic_exchange(&bits[0], 0), ==, 1ull << 63);
    g_assert_cmphex(atomic_exchange(&bits[second + 39999 / 64], 0), ==, 1ull << 63);
    /* What is taken is in no report, and the other way round. */
    g_assert_cmpint(report(f, 0x100000, 200 * PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(0), ==, 0);
    g_assert_cmphex(word(1), ==, 1);
    g_assert_cmphex(atomic_load(&bits[1]), ==, 0);

    /* A client that plays with it has its own log wrong, and nothing more. */
    memset((void *)bits, 0xff, 3 * PG);
    g_assert_cmpint(report(f, 0x100000, 200 * PG, PG, MAX_LEN), ==, 0);
    g_assert_cmphex(word(3), ==, 0xff);
    munmap((void *)bits, 3 * PG);

    g_assert_cmpint(stop(f), ==, 0);
    g_assert_cmpint(share(f, 1, range), ==, 0); /* another one, of which nothing is set */
    bits = map_log(PG);
    g_assert_cmphex(atomic_load(&bits[0]) | atomic_load(&bits[3]), ==, 0);
    /* Its pages are freed, and cannot be taken away. */
    mark(f, 0x100000, 1);
    g_assert_cmpint(
        fallocate(last.fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PG), ==, 0);
    g_assert_cmpint(ftruncate(last.fds[0], 0), ==, -1);
    mark(f, 0x100000 + PG, 1);
    g_assert_cmphex(atomic_load(&bits[0]), ==, 2);
    close(last.fds[0]);
    munmap((void *)bits, PG);
    /* It is left to whoever detaches. */
}

static void test_bad_share(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_range range[2] = {{0, PVRDMA_DIRTY_MAX_BYTES}, {1ull << 50, PG}};

    g_assert_cmpint(share(f, 0, NULL), ==, EINVAL);
    g_assert_cmpint(share(f, 2, range), ==, EFBIG);
    range[1].iova = PG;
    g_assert_cmpint(share(f, 2, range), ==, EINVAL);
    range[0].length = PG + 1;
    g_assert_cmpint(share(f, 1, range), ==, EINVAL);
    g_assert_cmpint(stop(f), ==, EINVAL); /* none of these is a log */
    range[0].length = PVRDMA_DIRTY_MAX_BYTES;
    g_assert_cmpint(share(f, 1, range), ==, 0);
    close(last.fds[0]);
}

/* Who does not read its replies gets no second file: one of them may name the first. */
static void test_share_unread(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_log_report most = {0, (uint64_t)VFIO_USER_MAX_DATA * 8 * PG / 2, PG};
    struct {
        struct vfio_user_device_feature head;
        struct start req;
    } ask_share = {
        {MAX_LEN, SHARE | SET},
        {.head = {.page_size = PG, .num_ranges = 1}, .range = {{0, 1ull << 40}}}};
    struct {
        struct vfio_user_device_feature head;
        struct vfio_user_log_report req;
    } ask_report = {{8 + 24 + VFIO_USER_MAX_DATA, REPORT | GET}, most};
    struct vfio_user_device_feature ask_stop = {8, STOP | SET};
    uint32_t len = 8 + sizeof(ask_share.req.head) + sizeof(ask_share.req.range[0]);
    unsigned waiting = 3; /* of half a MiB: more than a socket takes */

    client_send(f->cl, VFIO_USER_DEVICE_FEATURE, 0, &ask_share, len, NULL, 0);
    for (unsigned i = 0; i < waiting; i++) {
        client_send(f->cl, VFIO_USER_DEVICE_FEATURE, 0, &ask_report, sizeof(ask_report),
                    NULL, 0);
    }
    client_send(f->cl, VFIO_USER_DEVICE_FEATURE, 0, &ask_stop, sizeof(ask_stop), NULL, 0);
    client_send(f->cl, VFIO_USER_DEVICE_FEATURE, 0, &ask_share, len, NULL, 0);
    pump();
    client_recv(f->cl, &last);
    g_assert_cmpuint(last.hdr.error, ==, 0);
    g_assert_cmpuint(last.nfds, ==, 1);
    close(last.fds[0]);
    for (unsigned i = 0; i < waiting + 1; i++) {
        client_recv(f->cl, &last);
        g_assert_cmpuint(last.hdr.error, ==, 0);
        g_assert_cmpuint(last.nfds, ==, 0);
    }
    client_recv(f->cl, &last);
    g_assert_cmpuint(last.hdr.error, ==, EBUSY);
    g_assert_cmpint(share(f, 1, ask_share.req.range), ==, 0);
    close(last.fds[0]);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(path, fn) \
    g_test_add("/features/" path, struct fixture, NULL, setup, fn, fixture_teardown)
    ADD("methods", test_methods);
    ADD("log/start", test_start);
    ADD("log/report", test_report);
    ADD("log/fault", test_fault);
    ADD("log/bad-reports", test_bad_reports);
    ADD("shared/share", test_share);
    ADD("shared/bad", test_bad_share);
    ADD("shared/unread", test_share_unread);
    return g_test_run();
}
