/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What each VM may have of something that there is so much of for all; see share.c. */
#ifndef PVRDMAD_IWARP_SHARE_H
#define PVRDMAD_IWARP_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* VMs that a quarter is kept for, in equal parts: as many as there can be. */
#define SHARE_PARTS 1024u

/* For all of them. */
struct share_pool {
    uint32_t max;
    uint32_t beyond; /* what VMs have beyond their parts, together */
};

/* A VM's. */
struct share {
    struct share_pool *pool;
    uint32_t n;
};

/* One more.  False: it has its share. */
bool share_take(struct share *s);
void share_give(struct share *s);

/* What there is for connections, as the kernel says now. */
uint32_t share_of_descriptors(void);
uint32_t share_of_ports(void);

#endif /* PVRDMAD_IWARP_SHARE_H */
