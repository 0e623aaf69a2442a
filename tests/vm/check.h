/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What programs have alike that check a device in a guest: CHECK() counts in the
 * program's own state `s`, which has `checks` and `errors`.
 */
#ifndef TESTS_VM_CHECK_H
#define TESTS_VM_CHECK_H

#include <stdio.h>

#include "die.h"

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

#endif /* TESTS_VM_CHECK_H */
