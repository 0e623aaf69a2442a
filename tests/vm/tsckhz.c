/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * tsckhz: print how often this processor's time stamp counter counts in a ms.
 *
 * Guests under TCG read the host's counter.  Their kernels measure it at boot by
 * emulated timers, which on a loaded host are late, and then their clocks run at
 * another speed than the world's: this is measured outside and given to them.
 */
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define SAMPLES  200
#define DELAY_US 50000

struct moment {
    uint64_t ns, ticks;
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* Both clocks at one moment: of many pairs, the one read in the shortest time. */
static struct moment sample(void)
{
    struct moment best = {0};
    uint64_t shortest = UINT64_MAX;

    for (unsigned i = 0; i < SAMPLES; i++) {
        uint64_t before = __rdtsc(), ns = now_ns(), took = __rdtsc() - before;

        if (took < shortest) {
            shortest = took;
            best = (struct moment){ns, before + took / 2};
        }
    }
    return best;
}

int main(void)
{
    struct moment a = sample(), b;

    usleep(DELAY_US);
    b = sample();
    printf("%llu\n", (unsigned long long)((b.ticks - a.ticks) * 1000000 / (b.ns - a.ns)));
    return 0;
}
