/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Logging to stderr (journal-friendly "<N>" prefixes when it is not a
 * terminal).  Safe from all threads; not from signal handlers.  Messages that
 * an outsider can cause have a subject, a VM or another daemon, and are rate-limited: for
 * each (10 a second, then a count of what was suppressed) and over all of them.
 *
 * Between log_start() and log_stop() nobody waits for whoever reads stderr: a thread
 * writes, and what it cannot get rid of in time is lost and counted.
 */
#ifndef PVRDMAD_BASE_LOG_H
#define PVRDMAD_BASE_LOG_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Somebody about whom an outsider can cause messages.  The rest is log.c's. */
struct log_subject {
    const char *name;
    const char *kind;    /* what it is; NULL: a VM */
    int64_t window;      /* start of the current second, monotonic us */
    unsigned count;      /* messages in it */
    uint64_t suppressed; /* not reported yet */
};

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

void log_set_level(enum log_level level);
bool log_parse_level(const char *text, enum log_level *level);
const char *log_level_name(enum log_level level);

/* About what the administrator or the daemon does: not limited, only bounded. */
void log_msg(enum log_level level, const char *fmt, ...) G_GNUC_PRINTF(2, 3);

/* Control characters in the result are escaped. */
void log_about(enum log_level level, struct log_subject *who, const char *fmt, ...)
    G_GNUC_PRINTF(3, 4);

/* Report what is still suppressed; the subject is about to be forgotten. */
void log_flush(struct log_subject *who);

/*
 * Messages from now on are written by a thread; until then, and if it cannot be
 * made, by their callers.  Once; main thread.
 */
bool log_start(GError **errp);

/* Wait until what was said so far is written, at most @ms.  False: it is not. */
bool log_drain(unsigned ms);

/*
 * Write what waits, for at most a second, and end the thread.  False: stderr does not
 * take it; then later messages are dropped, and the caller should write nothing
 * there either.
 */
bool log_stop(void);

/*
 * The process is about to die by a signal: write what waits, as far as that goes at
 * once.  From signal handlers; a line may come twice.
 */
void log_panic(void);

#endif /* PVRDMAD_BASE_LOG_H */
