/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Logging.
 *
 * One message is one line and one write() to stderr, so lines of different
 * threads do not mix.  With a terminal the line begins with a time and level;
 * otherwise with the syslog priority "<N>" that the journal understands.
 *
 * Messages about a VM pass a rate limit, because a guest or VMM can cause them
 * at will: LIMIT_PER_SECOND, then they are only counted, and the count is said
 * with the next message that passes.  limit_lock protects every log_subject.
 */
#include "log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_PER_SECOND 10u
#define LINE_MAX_BYTES   1024

static _Atomic int current_level = LOG_LVL_INFO;
static pthread_mutex_t limit_lock = PTHREAD_MUTEX_INITIALIZER;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
/* LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG of syslog(3) */
static const int level_priority[] = {3, 4, 6, 7};

void log_set_level(enum log_level level)
{
    atomic_store(&current_level, level);
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

static void emit(enum log_level level, const char *who, const char *text)
{
    char line[LINE_MAX_BYTES];
    size_t n;

    if (isatty(STDERR_FILENO)) {
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
        n += snprintf(line + n, sizeof(line) - n, "vm %s: ", who);
    }
    n += escape_into(line + n, sizeof(line) - 1 - n, text);
    line[n++] = '\n';
    /* Nobody is left to tell when stderr fails. */
    if (write(STDERR_FILENO, line, n) < 0) {
        return;
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

/*
 * May a message about @vm be written now?  If so, *@missed is what has been
 * suppressed since the last one.
 */
static bool limit_pass(struct log_subject *l, uint64_t *missed)
{
    int64_t now = g_get_monotonic_time();
    bool pass;

    pthread_mutex_lock(&limit_lock);
    if (l->window == 0 || now - l->window >= G_USEC_PER_SEC) {
        l->window = now;
        l->count = 0;
    }
    pass = l->count < LIMIT_PER_SECOND;
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
        emit(LOG_LVL_WARN, who->name, text);
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
    emit(level, who->name, text);
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
