/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The main loop runs for a while, for what the directory does later. */
#ifndef TESTS_TURN_H
#define TESTS_TURN_H

#include <glib.h>

static inline void turn(unsigned ms)
{
    gint64 until = g_get_monotonic_time() + ms * 1000;

    do {
        while (g_main_context_iteration(NULL, FALSE)) {
        }
        g_usleep(500);
    } while (g_get_monotonic_time() < until);
    while (g_main_context_iteration(NULL, FALSE)) {
    }
}

#endif /* TESTS_TURN_H */
