/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * main() of a fuzz target without a fuzzer: feed it each file of the given
 * folders once.  What the fuzzer found stays found, with any compiler.
 * Exit status: 77 (skipped) if there was no file; 1 if the target says that the corpus
 * does not get it to what it is there for.
 */
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
/* Of the target, if it has one: has all been reached?  Prints what has not. */
bool fuzz_reached_all(void) __attribute__((weak));

static unsigned replay_dir(const char *path)
{
    GDir *dir = g_dir_open(path, 0, NULL);
    const char *name;
    unsigned n = 0;

    while (dir && (name = g_dir_read_name(dir))) {
        g_autofree char *file = g_build_filename(path, name, NULL);
        g_autofree char *data = NULL;
        gsize size;

        if (g_file_get_contents(file, &data, &size, NULL)) {
            LLVMFuzzerTestOneInput((const uint8_t *)data, size);
            n++;
        }
    }
    if (dir) {
        g_dir_close(dir);
    }
    return n;
}

int main(int argc, char **argv)
{
    unsigned n = 0;

    for (int i = 1; i < argc; i++) {
        n += replay_dir(argv[i]);
    }
    printf("%u inputs replayed\n", n);
    if (!n) {
        return 77;
    }
    return fuzz_reached_all && !fuzz_reached_all();
}
