/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The command line of programs that run in guests. */
#ifndef TESTS_VM_OPTIONS_H
#define TESTS_VM_OPTIONS_H

#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

struct options {
    const char *device; /* -d; NULL: not given */
    int gid_index;      /* -g */
    unsigned long long number;
    bool flag;
};

/*
 * -d DEVICE, -g GIDINDEX, perhaps a number after -@number, and then perhaps -@flag (0:
 * there is no such letter).  What is not given stays as it is.  False: there is something
 * else.
 */
static inline bool options_read(struct options *o, int argc, char **argv, char number,
                                char flag)
{
    const char letters[] = {'d', ':', 'g', ':', number, ':', flag, 0};
    int opt;

    while ((opt = getopt(argc, argv, letters)) != -1) {
        if (opt == 'd') {
            o->device = optarg;
        } else if (opt == 'g') {
            o->gid_index = atoi(optarg);
        } else if (opt == number) {
            o->number = strtoull(optarg, NULL, 0);
        } else if (flag && opt == flag) {
            o->flag = true;
        } else {
            return false;
        }
    }
    return true;
}

#endif /* TESTS_VM_OPTIONS_H */
