/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How much memory a test's doings take, allocator's overhead included: for the bounds
 * that docs/hosts.md states.  And as many descriptors as may be had.
 */
#ifndef TESTS_HEAP_H
#define TESTS_HEAP_H

#include <glib.h>
#include <malloc.h>
#include <stdbool.h>
#include <sys/resource.h>

/* Bytes that are allocated now; 0, always, where a sanitizer has its own allocator. */
static inline size_t heap_used(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 0;
#else
    struct mallinfo2 m = mallinfo2();

    return m.uordblks + m.hblkhd;
#endif
}

/* @n of something have come since @before: no more than @most bytes each. */
static inline void heap_assert_each(const char *what, size_t before, size_t n,
                                    size_t most)
{
    size_t now = heap_used(), each = (MAX(now, before) - before) / n;

    g_test_message("%s: %zu bytes each", what, each);
    g_assert_cmpuint(each, <=, most);
}

/* False: @n descriptors are more than this process may have, and the test is skipped. */
static inline bool heap_have_descriptors(rlim_t n)
{
    struct rlimit r;

    g_assert_cmpint(getrlimit(RLIMIT_NOFILE, &r), ==, 0);
    if (r.rlim_max < n) {
        g_test_skip("too few descriptors");
        return false;
    }
    r.rlim_cur = r.rlim_max;
    g_assert_cmpint(setrlimit(RLIMIT_NOFILE, &r), ==, 0);
    return true;
}

#endif /* TESTS_HEAP_H */
