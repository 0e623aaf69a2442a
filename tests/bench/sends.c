/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Rate, latency and bandwidth of SENDs; see sends.h. */
#include "sends.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WARM_S  0.1
#define TRIPS   1000000u           /* at most */
#define LIMIT_S 60.0               /* without anything that completes */
#define SMALL   (8u * SENDS_BATCH) /* short messages under way */

struct direction {
    const struct sends_ops *ops;
    void *from, *to;
    uint64_t posted, sent;    /* SENDs, and those known to be complete */
    uint64_t ready, received; /* receives, and those that were used */
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void give_up(void)
{
    fprintf(stderr, "nothing has completed for %.0f s\n", LIMIT_S);
    exit(1);
}

/* Receives for @most messages more than have come. */
static void make_ready(struct direction *d, unsigned batch, unsigned most)
{
    while (d->ready < d->received + most) {
        d->ops->receive(d->to, batch, d->ready / batch % SENDS_SLOTS);
        d->ready += batch;
    }
}

static bool look(struct direction *d, unsigned batch)
{
    unsigned sent = d->ops->sent(d->from), received = d->ops->received(d->to);

    d->sent += (uint64_t)sent * batch;
    d->received += received;
    return sent || received;
}

/* Until all that was posted has come, and is known to have. */
static void drain(struct direction *d, unsigned batch)
{
    double last = now_s();

    while (d->sent < d->posted || d->received < d->posted) {
        if (look(d, batch)) {
            last = now_s();
        } else if (now_s() - last > LIMIT_S) {
            give_up();
        }
    }
}

/* Messages a second, @batch at a time, @window under way. */
static double stream(struct direction *d, uint32_t len, unsigned batch, unsigned window,
                     double seconds)
{
    double start = now_s(), warm = start + WARM_S, last = start, now, rate;
    uint64_t first = 0;

    do {
        make_ready(d, batch, window + batch);
        while (d->posted + batch <= d->sent + window && d->posted + batch <= d->ready) {
            d->ops->send(d->from, batch, len, d->posted / batch % SENDS_SLOTS);
            d->posted += batch;
        }
        now = now_s();
        if (look(d, batch)) {
            last = now;
        } else if (now - last > LIMIT_S) {
            give_up();
        }
        if (warm > 0 && now >= warm) {
            start = now;
            first = d->received;
            warm = 0;
        }
    } while (warm > 0 || now - start < seconds || d->received == first);
    rate = (double)(d->received - first) / (now - start);
    drain(d, batch);
    return rate;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One message, until the other end has it. */
static void pass(struct direction *d)
{
    double last = now_s();

    d->ops->send(d->from, 1, SENDS_SMALL, 0);
    d->posted++;
    for (unsigned n = 0; d->received < d->posted; n++) {
        d->received += d->ops->received(d->to);
        if (n % 65536 == 65535 && now_s() - last > LIMIT_S) {
            give_up();
        }
    }
}

/* Half of the median round trip, us. */
static double latency(struct direction d[2], double seconds)
{
    static double trip[TRIPS];
    double start = now_s();
    unsigned n = 0;

    do {
        double t;

        make_ready(&d[0], 1, 2);
        make_ready(&d[1], 1, 2);
        t = now_s();
        pass(&d[0]);
        pass(&d[1]);
        trip[n] = now_s() - t;
        drain(&d[0], 1);
        drain(&d[1], 1);
        n += t > start + WARM_S;
    } while (n < TRIPS && (!n || now_s() - start < WARM_S + seconds));
    qsort(trip, n, sizeof(*trip), compare);
    return trip[n / 2] * 1e6 / 2;
}

void sends_measure(const struct sends_ops *ops, void *a, void *b, double seconds)
{
    struct direction d[2] = {{ops, a, b, 0, 0, 0, 0}, {ops, b, a, 0, 0, 0, 0}};

    printf("latency %.2f\n", latency(d, seconds));
    fflush(stdout);
    printf("rate %.0f\n", stream(&d[0], SENDS_SMALL, SENDS_BATCH, SMALL, seconds));
    fflush(stdout);
    printf("bandwidth %.1f\n",
           stream(&d[0], SENDS_BYTES, 1, SENDS_SLOTS, seconds) * SENDS_BYTES / 1e6);
    fflush(stdout);
}
