/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What handover.c and socket.c share. */
#ifndef PVRDMAD_HANDOVER_INTERNAL_H
#define PVRDMAD_HANDOVER_INTERNAL_H

#include "handover.h"

#define HANDOVER_ERROR g_quark_from_static_string("pvrdma")

struct handover_fd {
    int name; /* its number where it was left */
    int fd;   /* here, or -1: it did not come */
    bool taken;
};

struct handover_in {
    void *data; /* mapped */
    size_t len;
    int memfd;
    struct handover_fd *fd; /* in the order of the list; by name once they are sorted */
    uint32_t n;
    struct state_in stream;
    char error[STATE_ERROR_MAX];
};

/* Take @memfd over and read its list: nobody has any of the descriptors yet.  After a
 * failure, here and in handover_refuse(), it is the caller's. */
struct handover_in *handover_map(int memfd, GError **errp);
/* False: one is there twice. */
bool handover_sort(struct handover_in *h);
/* The end of it, for @why unless it has a reason already. */
void handover_refuse(struct handover_in *h, const char *why, GError **errp);

#endif /* PVRDMAD_HANDOVER_INTERNAL_H */
