/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", what each VM may have of what is everybody's: connections, which are
 * descriptors of the daemon, and ports towards another host.
 *
 * A quarter of a pool is kept for SHARE_PARTS VMs, in equal parts: that much each VM can
 * have whatever others take.  The rest is common, and a VM may have as much of it as it
 * leaves free: one alone half of it, each of two a third or, if the first came long
 * before, a quarter.  So one that takes all that it can get leaves others as much, and
 * where few want something there is enough for each.
 *
 * Threads: the main thread.
 */
#include "transport/iwarp/share.h"

#include <stdio.h>
#include <sys/resource.h>

/* Without /proc: the kernel's default. */
#define PORTS 28232u

static uint32_t share_part(const struct share_pool *p)
{
    return p->max / 4 / SHARE_PARTS;
}

bool share_take(struct share *s)
{
    struct share_pool *p = s->pool;
    uint32_t own = share_part(p), common = p->max - own * SHARE_PARTS;

    if (s->n >= own) {
        if (p->beyond >= common || s->n - own >= common - p->beyond) {
            return false;
        }
        p->beyond++;
    }
    s->n++;
    return true;
}

void share_give(struct share *s)
{
    s->n--;
    if (s->n >= share_part(s->pool)) {
        s->pool->beyond--;
    }
}

/*
 * Half of those that the daemon may have: the others are for VMs, their memory, and
 * links.
 */
uint32_t share_of_descriptors(void)
{
    struct rlimit rl;

    return getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur / 2 < UINT32_MAX
               ? (uint32_t)(rl.rlim_cur / 2)
               : UINT32_MAX;
}

/* Between two addresses, towards one port. */
uint32_t share_of_ports(void)
{
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    unsigned first, last;
    uint32_t n = PORTS;

    if (f) {
        if (fscanf(f, "%u %u", &first, &last) == 2 && first <= last &&
            last <= UINT16_MAX) {
            n = last - first + 1;
        }
        fclose(f);
    }
    return n;
}
