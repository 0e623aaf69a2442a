/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What programs have alike that check a device in a guest: CHECK() counts in the
 * program's own state `s`, which has `checks` and `errors`.
 */
#ifndef TESTS_VM_CHECK_H
#define TESTS_VM_CHECK_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond, ...)                                       \
    do {                                                       \
        s.checks++;                                            \
        if (!(cond)) {                                         \
            s.errors++;                                        \
            fprintf(stderr, "line %d: %s: ", __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                      \
            fprintf(stderr, "\n");                             \
        }                                                      \
    } while (0)

/* It cannot go on; errno says why. */
static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

#endif /* TESTS_VM_CHECK_H */
