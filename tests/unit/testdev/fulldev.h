/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device with several of everything that the state stream has, and streams of it: for
 * the tests and the fuzzer of backend/vm/save.c.
 */
#ifndef TESTS_FULLDEV_H
#define TESTS_FULLDEV_H

#include "testdev.h"

/* Number of the queue pair that has bound the windows, and the last byte of their keys.
 */
#define FULLDEV_BINDER     0x10007u
#define FULLDEV_WINDOW_KEY 0xabu

/* Attached, with nothing in it.  Two with the same name have equal limits. */
struct testdev *fulldev_new(const char *name);
/* Make it all, the same at each time; the data path is paused from then on. */
void fulldev_fill(struct testdev *td);
/* What vm_save() makes of it. */
GByteArray *fulldev_save(struct testdev *td);

#endif /* TESTS_FULLDEV_H */
