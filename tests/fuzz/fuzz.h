/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the fuzz targets share: what they are called by, and how they read their inputs.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* If a target has it: has all been reached?  Prints what has not. */
bool fuzz_reached_all(void);

/* In a build without asserts, too. */
#define CHECK(condition) ((condition) ? (void)0 : abort())

struct fuzz_input {
    const uint8_t *data;
    size_t left;
};

/* The next @bytes, four at most, or as many as there are. */
static inline uint32_t fuzz_take(struct fuzz_input *in, unsigned bytes)
{
    uint32_t v = 0;
    size_t n = MIN(bytes, in->left);

    memcpy(&v, in->data, n);
    in->data += n;
    in->left -= n;
    return v;
}

struct fuzz_reached {
    const char *what;
    bool is;
};

/* For fuzz_reached_all(). */
static inline bool fuzz_all_reached(const struct fuzz_reached *all, unsigned n)
{
    bool ok = true;

    for (unsigned i = 0; i < n; i++) {
        if (!all[i].is) {
            printf("%s never comes about\n", all[i].what);
            ok = false;
        }
    }
    return ok;
}

#endif /* FUZZ_H */
