/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Accepting connections from the main loop: some per turn, and none for a while when the
 * process or the machine has no room for more.  Main thread only.
 */
#ifndef PVRDMAD_BASE_ACCEPTOR_H
#define PVRDMAD_BASE_ACCEPTOR_H

#include <glib.h>
#include <stdbool.h>
#include <sys/socket.h>

struct acceptor {
    int fd;         /* listens, without blocking; to be closed after acceptor_stop() */
    unsigned batch; /* so many are accepted per turn */
    /* Called with @opaque; each of them may pause or stop the acceptor. */
    bool (*may)(void *opaque); /* is the next one accepted?  NULL: always */
    /* @fd is taken over; it does not block, and is closed by an exec. */
    void (*accepted)(void *opaque, int fd, const struct sockaddr_storage *from);
    void (*no_room)(void *opaque, int err); /* @err, a pause follows */
    void *opaque;

    guint watch, pause; /* one of them, or none: it is stopped */
};

/* Accept, unless it pauses. */
void acceptor_start(struct acceptor *a);
/* Accept again in @ms milliseconds, or when the pause ends that there is. */
void acceptor_pause(struct acceptor *a, guint ms);
void acceptor_stop(struct acceptor *a);

#endif /* PVRDMAD_BASE_ACCEPTOR_H */
