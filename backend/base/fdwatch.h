/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Watching descriptors from the main loop, by the thousand.  As g_unix_fd_add(), with
 * the same callbacks, but a turn of the loop costs what is ready, not what is
 * watched.  Main thread only.
 */
#ifndef PVRDMAD_BASE_FDWATCH_H
#define PVRDMAD_BASE_FDWATCH_H

#include <glib-unix.h>
#include <stdbool.h>

/*
 * Call @fn(@fd, what is ready, @opaque) while @fd is ready for any of @cond, until it
 * returns G_SOURCE_REMOVE.  @cond may have POLLRDHUP as well.  A descriptor may be
 * watched several times.  Returns an id that is never 0.
 *
 * The watch must be removed before @fd is closed.  @fn may do so itself, whatever it
 * returns then; removing what is not there does nothing.
 */
guint fdwatch_add(int fd, GIOCondition cond, GUnixFDSourceFunc fn, gpointer opaque);
void fdwatch_remove(guint id);

/*
 * Work for later in the same turn: behind the callbacks that run now, before the loop
 * asks for other descriptors.  It may ask for itself again.
 */
struct fdwatch_later {
    void (*fn)(void);
    bool queued;
    struct fdwatch_later *next;
};

/* Nothing, if it is asked for already. */
void fdwatch_later(struct fdwatch_later *later);
/* It is not wanted any more. */
void fdwatch_not_later(struct fdwatch_later *later);

/* Is any watched descriptor ready?  For work that would let the loop turn then. */
bool fdwatch_ready(void);

#endif /* PVRDMAD_BASE_FDWATCH_H */
