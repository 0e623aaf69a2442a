/* SPDX-License-Identifier: GPL-2.0-or-later */
/* die() of programs that only say what has failed, and errno. */
#ifndef TESTS_VM_DIE_H
#define TESTS_VM_DIE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "die_if.h"

/* It cannot go on; errno says why. */
static inline void die(const char *what)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
    exit(1);
}

#endif /* TESTS_VM_DIE_H */
