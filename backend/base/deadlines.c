/* SPDX-License-Identifier: GPL-2.0-or-later */
/* See deadlines.h. */
#include "deadlines.h"

#include <stdlib.h>

static void put(struct deadlines *h, uint32_t i, struct deadline *d)
{
    h->heap[i] = d;
    d->pos = i;
}

/* The one in place @i may be out of order. */
static void fix(struct deadlines *h, uint32_t i)
{
    struct deadline *d = h->heap[i];

    while (i > 1 && h->heap[i / 2]->when > d->when) {
        put(h, i, h->heap[i / 2]);
        i /= 2;
    }
    for (uint32_t c; (c = 2 * i) <= h->n; i = c) {
        if (c < h->n && h->heap[c + 1]->when < h->heap[c]->when) {
            c++;
        }
        if (h->heap[c]->when >= d->when) {
            break;
        }
        put(h, i, h->heap[c]);
    }
    put(h, i, d);
}

bool deadlines_init(struct deadlines *h, uint32_t max)
{
    h->n = 0;
    h->heap = calloc((size_t)max + 1, sizeof(h->heap[0]));
    return h->heap != NULL;
}

void deadlines_fini(struct deadlines *h)
{
    free(h->heap);
    h->heap = NULL;
}

void deadline_add(struct deadlines *h, struct deadline *d, uint64_t when)
{
    d->when = when;
    h->heap[++h->n] = d;
    fix(h, h->n);
}

void deadline_remove(struct deadlines *h, struct deadline *d)
{
    uint32_t i = d->pos;
    struct deadline *last;

    if (!i) {
        return;
    }
    d->pos = 0;
    last = h->heap[h->n--];
    if (last != d) {
        put(h, i, last);
        fix(h, i);
    }
}
