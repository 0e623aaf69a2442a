/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Logging to stderr (journal-friendly "<N>" prefixes when it is not a
 * terminal).  Safe from all threads; not from signal handlers.  Messages that
 * an outsider can cause have a subject, a VM, and are rate-limited per VM (10 a second,
 * then a count of what was suppressed).
 */
#ifndef PVRDMAD_LOG_H
#define PVRDMAD_LOG_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* Somebody about whom an outsider can cause messages.  All but name is log.c's. */
struct log_subject {
    const char *name;
    int64_t window;      /* start of the current second, monotonic us */
    unsigned count;      /* messages in it */
    uint64_t suppressed; /* not reported yet */
};

enum log_level { LOG_LVL_ERROR, LOG_LVL_WARN, LOG_LVL_INFO, LOG_LVL_DEBUG };

void log_set_level(enum log_level level);
bool log_parse_level(const char *text, enum log_level *level);
void log_msg(enum log_level level, const char *fmt, ...) G_GNUC_PRINTF(2, 3);

/* Control characters in the result are escaped. */
void log_about(enum log_level level, struct log_subject *who, const char *fmt, ...)
    G_GNUC_PRINTF(3, 4);

/* Report what is still suppressed; the subject is about to be forgotten. */
void log_flush(struct log_subject *who);

#endif /* PVRDMAD_LOG_H */
