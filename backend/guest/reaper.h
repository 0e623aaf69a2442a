/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The reaper: unmaps guest memory where nobody waits for it.  reaper.c */
#ifndef PVRDMAD_GUEST_REAPER_H
#define PVRDMAD_GUEST_REAPER_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

struct budget;

/* Unmapped in one go, if pages are not larger. */
#define REAPER_PIECE (UINT64_C(64) << 20)

/*
 * Unmap [base, base + len), pages of @page bytes, which no thread uses any more and
 * no guard (sigbus.h) covers, and give it and one mapping back to @b, which was
 * told that it is retired.  Then close @fd, which asks no file system; -1: nothing.
 * Main thread.  Without reaper_start(): at once.
 */
void reaper_unmap(void *base, uint64_t len, uint64_t page, struct budget *b, int fd);

/* Is all of it unmapped?  Any thread. */
bool reaper_is_idle(void);

/*
 * Start the thread; false with errp.  Stopping does not wait for what is left to
 * unmap: the process ends.  Main thread.
 */
bool reaper_start(GError **errp);
void reaper_stop(void);

#endif /* PVRDMAD_GUEST_REAPER_H */
