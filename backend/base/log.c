/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Logging.
 *
 * One message is one line.  With a terminal the line begins with a time and level;
 * otherwise with the syslog priority "<N>" that the journal understands.
 *
 * The ring.  stderr may be a pipe that nobody reads, and neither traffic nor
 * commands may wait for it.  So lines go into a ring of bytes, and the log thread
 * writes them.  `head` is where the next line goes, `tail` where the thread goes on;
 * both only grow, and head - tail is at most RING_SIZE.  Writers share ring_lock and
 * hold it for a copy of one line, never across a system call that can wait; the
 * thread takes no lock, so it cannot hold up a writer of higher priority.  A line
 * that finds no room is counted in `lost`, which is said in its place as soon as
 * there is room.  Lines about VMs leave the last quarter to those of log_msg().
 *
 * The limits.  Messages about a VM are caused by guests and VMMs at will:
 * LIMIT_PER_SECOND for each, LIMIT_ALL for all of them together; what is more is
 * only counted, and said with the next message that passes.  A VM that has said
 * nothing for QUIET_US may also use LIMIT_QUIET, so that noisy ones do not hide
 * what happens to the others.  The sum stays below what the journal takes from a
 * service (10,000 messages in 30 s).  limit_lock protects every log_subject.
 */
#include "log.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "thread.h"

#define LIMIT_PER_SECOND 10u
#define LIMIT_ALL        150u /* of all subjects, in a second */
#define LIMIT_QUIET      50u  /* more, for those that were quiet */
#define QUIET_US         (10 * G_USEC_PER_SEC)
#define LINE_MAX_BYTES   1024

#define RING_SIZE (256u << 10) /* a power of two */
#define RESERVE   (RING_SIZE / 4)
/* Written at a time: what a pipe that poll() calls writable takes without waiting. */
#define CHUNK   4096u
#define STOP_MS 1000u

static _Atomic int current_level = LOG_LVL_INFO;
static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    int64_t window; /* start of the current second */
    unsigned count, quiet;
} all; /* under limit_lock */

/* Who writes a line. */
enum mode { MODE_DIRECT, MODE_THREAD, MODE_DEAF };

static _Atomic int mode = MODE_DIRECT;
static bool terminal; /* of the log thread; isatty() once */
static pthread_mutex_t ring_lock = PTHREAD_MUTEX_INITIALIZER;
static char ring[RING_SIZE];
static _Atomic uint64_t head, tail;
static _Atomic uint64_t lost;
static pthread_t thread;
static sem_t news; /* posted for each line */
static _Atomic bool ending;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
/* LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG of syslog(3) */
static const int level_priority[] = {3, 4, 6, 7};

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, level);
}

const char *log_level_name(enum log_level level)
{
    return level_names[level];
}

bool log_parse_level(const char *text, enum log_level *level)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *level = i;
            return true;
        }
    }
    return false;
}

/* Control characters could forge lines or drive a terminal. */
static size_t escape_into(char *dst, size_t room, const char *src)
{
    static const char hex[] = "0123456789abcdef";
    size_t n = 0;

    for (; *src; src++) {
        unsigned char c = *src;

        if (c >= 0x20 && c != 0x7f) {
            if (n + 1 > room) {
                break;
            }
            dst[n++] = c;
        } else {
            if (n + 4 > room) {
                break;
            }
            dst[n++] = '\\';
            dst[n++] = 'x';
            dst[n++] = hex[c >> 4];
            dst[n++] = hex[c & 15];
        }
    }
    return n;
}

/* ---- the ring ---- */

/* Copy @n bytes of a line to @at.  Under ring_lock, and there is room. */
static void ring_put(uint64_t at, const char *line, size_t n)
{
    size_t pos = at % RING_SIZE;
    size_t first = MIN(n, RING_SIZE - pos);

    memcpy(ring + pos, line, first);
    memcpy(ring, line + first, n - first);
}

static size_t lost_line(char *line, size_t room, uint64_t n)
{
    const char *start = terminal ? "" : "<4>";

    return (size_t)snprintf(line, room, "%s%llu messages lost: stderr was not read\n",
                            start, (unsigned long long)n);
}

static void ring_add(const char *line, size_t n, bool reserve)
{
    uint64_t at, room, missed;
    char notice[96];
    size_t extra = 0;

    pthread_mutex_lock(&ring_lock);
    at = atomic_load_explicit(&head, memory_order_relaxed);
    room = RING_SIZE - (at - atomic_load_explicit(&tail, memory_order_acquire));
    missed = atomic_load(&lost);
    if (missed) {
        extra = lost_line(notice, sizeof(notice), missed);
    }
    if (n + extra + (reserve ? 0 : RESERVE) > room) {
        atomic_fetch_add(&lost, 1);
        pthread_mutex_unlock(&ring_lock);
        return;
    }
    /* The thread may have said it meanwhile. */
    if (missed && atomic_compare_exchange_strong(&lost, &missed, 0)) {
        ring_put(at, notice, extra);
        at += extra;
    }
    ring_put(at, line, n);
    atomic_store_explicit(&head, at + n, memory_order_release);
    pthread_mutex_unlock(&ring_lock);
    sem_post(&news);
}

/* Write some of what waits; false: there is nothing. */
static bool write_some(int timeout_ms)
{
    uint64_t from = atomic_load_explicit(&tail, memory_order_relaxed);
    uint64_t to = atomic_load_explicit(&head, memory_order_acquire);
    struct pollfd pfd = {.fd = STDERR_FILENO, .events = POLLOUT};
    size_t pos = from % RING_SIZE;
    size_t n = MIN(MIN(to - from, CHUNK), RING_SIZE - pos);
    ssize_t done;

    if (from == to) {
        return false;
    }
    if (poll(&pfd, 1, timeout_ms) <= 0) {
        return true;
    }
    done = write(STDERR_FILENO, ring + pos, n);
    if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true;
    }
    /* Nobody is left to tell when stderr fails. */
    atomic_store_explicit(&tail, from + (done > 0 ? (size_t)done : n),
                          memory_order_release);
    return true;
}

static void *log_thread(void *unused)
{
    for (;;) {
        while (write_some(-1)) {
        }
        if (atomic_load(&lost)) {
            uint64_t missed = atomic_exchange(&lost, 0);
            char notice[96];
            size_t n = lost_line(notice, sizeof(notice), missed);

            /* All before it is written, so is the place for it. */
            if (missed && write(STDERR_FILENO, notice, n) < 0) {
                continue;
            }
        }
        if (atomic_load(&ending)) {
            return NULL;
        }
        while (sem_wait(&news) < 0) {
        }
    }
}

bool log_start(GError **errp)
{
    int err;

    terminal = isatty(STDERR_FILENO);
    atomic_store(&ending, false);
    sem_init(&news, 0, 0);
    err = thread_create(&thread, NULL, log_thread, NULL);
    if (err) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(err), "log thread: %s",
                    g_strerror(err));
        return false;
    }
    pthread_setname_np(thread, "log");
    atomic_store(&mode, MODE_THREAD);
    return true;
}

bool log_drain(unsigned ms)
{
    uint64_t to = atomic_load(&head);
    gint64 end = g_get_monotonic_time() + (gint64)ms * 1000;

    if (atomic_load(&mode) != MODE_THREAD) {
        return atomic_load(&mode) == MODE_DIRECT;
    }
    while (atomic_load(&tail) < to) {
        if (g_get_monotonic_time() >= end) {
            return false;
        }
        g_usleep(1000);
    }
    return true;
}

bool log_stop(void)
{
    struct timespec until;

    if (atomic_load(&mode) != MODE_THREAD) {
        return atomic_load(&mode) == MODE_DIRECT;
    }
    atomic_store(&ending, true);
    sem_post(&news);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_MS / 1000;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0) {
        /* It hangs in poll() or write(), and ends with the process. */
        atomic_store(&mode, MODE_DEAF);
        return false;
    }
    atomic_store(&mode, MODE_DIRECT);
    return true;
}

void log_panic(void)
{
    if (atomic_load(&mode) != MODE_THREAD) {
        return;
    }
    for (unsigned i = 0; i < 2 * RING_SIZE / CHUNK && write_some(0); i++) {
    }
}

/* ---- lines ---- */

static void emit(enum log_level level, const struct log_subject *who, const char *text)
{
    int m = atomic_load(&mode);
    char line[LINE_MAX_BYTES];
    size_t n;

    if (m == MODE_DEAF) {
        return;
    }
    if (m == MODE_THREAD ? terminal : isatty(STDERR_FILENO)) {
        struct timespec now;
        struct tm tm;

        clock_gettime(CLOCK_REALTIME, &now);
        localtime_r(&now.tv_sec, &tm);
        n = strftime(line, sizeof(line), "%H:%M:%S", &tm);
        n += snprintf(line + n, sizeof(line) - n, ".%03ld %-5s ", now.tv_nsec / 1000000,
                      level_names[level]);
    } else {
        n = snprintf(line, sizeof(line), "<%d>", level_priority[level]);
    }
    if (who) {
        n += snprintf(line + n, sizeof(line) - n, "%s %s: ", who->kind ? who->kind : "vm",
                      who->name);
    }
    n += escape_into(line + n, sizeof(line) - 1 - n, text);
    line[n++] = '\n';
    if (m == MODE_THREAD) {
        ring_add(line, n, !who);
    } else if (write(STDERR_FILENO, line, n) < 0) {
        return; /* nobody is left to tell */
    }
}

void log_msg(enum log_level level, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES];
    va_list ap;

    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed)) {
        return;
    }
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    emit(level, NULL, text);
}

/* Is there room for one more among the messages of all?  Under limit_lock. */
static bool limit_all(int64_t now, bool quiet)
{
    if (all.window == 0 || now - all.window >= G_USEC_PER_SEC) {
        all.window = now;
        all.count = 0;
        all.quiet = 0;
    }
    if (all.count < LIMIT_ALL) {
        all.count++;
        return true;
    }
    return quiet && all.quiet++ < LIMIT_QUIET;
}

/*
 * May a message about @l be written now?  If so, *@missed is what has been
 * suppressed since the last one.
 */
static bool limit_pass(struct log_subject *l, uint64_t *missed)
{
    int64_t now = g_get_monotonic_time();
    bool pass, quiet;

    pthread_mutex_lock(&limit_lock);
    quiet = l->window == 0 || now - l->window >= QUIET_US;
    if (l->window == 0 || now - l->window >= G_USEC_PER_SEC) {
        l->window = now;
        l->count = 0;
    }
    pass = l->count < LIMIT_PER_SECOND && limit_all(now, quiet);
    if (pass) {
        l->count++;
        *missed = l->suppressed;
        l->suppressed = 0;
    } else {
        l->suppressed++;
    }
    pthread_mutex_unlock(&limit_lock);
    return pass;
}

static void say_missed(const struct log_subject *who, uint64_t missed)
{
    char text[64];

    if (missed) {
        snprintf(text, sizeof(text), "%llu messages suppressed",
                 (unsigned long long)missed);
        emit(LOG_LVL_WARN, who, text);
    }
}

void log_about(enum log_level level, struct log_subject *who, const char *fmt, ...)
{
    char text[LINE_MAX_BYTES];
    uint64_t missed = 0;
    va_list ap;

    if ((int)level > atomic_load_explicit(&current_level, memory_order_relaxed)) {
        return;
    }
    if (!limit_pass(who, &missed)) {
        return;
    }
    say_missed(who, missed);
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    emit(level, who, text);
}

void log_flush(struct log_subject *who)
{
    uint64_t missed;

    pthread_mutex_lock(&limit_lock);
    missed = who->suppressed;
    who->suppressed = 0;
    pthread_mutex_unlock(&limit_lock);
    say_missed(who, missed);
}
