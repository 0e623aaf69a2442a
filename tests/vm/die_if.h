/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Programs that run in guests end by their die() where they cannot go on. */
#ifndef TESTS_VM_DIE_IF_H
#define TESTS_VM_DIE_IF_H

/* What follows @condition is die()'s, and evaluated only if that is true. */
#define DIE_IF(condition, ...) \
    do {                       \
        if (condition) {       \
            die(__VA_ARGS__);  \
        }                      \
    } while (0)

#endif /* TESTS_VM_DIE_IF_H */
