/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device that has all there is (fulldev.h), and one in reset of the same limits,
 * paused: for the tests of what goes from one to the other by way of a stream.
 */
#ifndef TESTS_VM_PAIR_H
#define TESTS_VM_PAIR_H

#include "fulldev.h"

extern struct testdev *from, *to;

/* A case: both are made before it, and taken down behind it. */
void pair_add(const char *path, void (*test)(void));

/* Into @to: is it taken? */
bool pair_load(const GByteArray *stream);
bool pair_load_bytes(const uint8_t *data, size_t len);
/* The guest's memory goes its own way, before or after. */
void pair_move_memory(void);
/* @to is in reset, with nothing of what was read. */
void pair_assert_reset(void);
/* It refuses that, for that reason, and is in reset. */
void pair_assert_refused(const GByteArray *stream, const char *why);

/* Where the content of section @tag begins, and its length in *len. */
uint8_t *pair_section(GByteArray *bytes, const char *tag, uint64_t *len);
/* Without what differs each time: the owner's number of moves, the clock. */
void pair_make_comparable(GByteArray *bytes);
/* The same but for that; it is taken out of both. */
void pair_assert_equal(GByteArray *a, GByteArray *b);

#endif /* TESTS_VM_PAIR_H */
