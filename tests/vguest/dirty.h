/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A daemon in this process, which sees each store of it to guest memory, and whether the
 * dirty log has it.
 *
 * The daemon runs on a thread of its own, with VMs vm0 and vm1, and virtual guests are
 * its clients as ever (vgt_daemon).  They store through their mapping of the RAM, it
 * through its own.  The environment's VGUEST_PATH is its key `path`; with
 * VGUEST_SHARED_LOG the log is one that is shared with the client, who takes the marks by
 * itself.
 */
#ifndef DIRTY_H
#define DIRTY_H

#include "vgtest.h"

#define DIRTY_RAM (8u << 20) /* of each of a guest's two regions */

/* Whoever calls them has no other use for SIGSEGV and SIGTRAP. */
void dirty_begin(void);
void dirty_end(void);

/* All of the memory of @g, which is attached, from now on. */
void dirty_watch(const struct vguest *g);
void dirty_unwatch(void); /* of all */

/*
 * The daemon stands still: the test fails unless all of what it stored since the last
 * check is marked.  What was stored then, and marked, is forgotten.
 */
void dirty_check(const char *what);
/* Before the last check: did the daemon store to this page, or to one of @b from @first
 * on?  And was it marked? */
bool dirty_stored(const struct vguest *g, uint64_t gpa);
bool dirty_any_stored(const struct vguest *g, const struct vg_buf *b, unsigned first);
bool dirty_marked(const struct vguest *g, uint64_t gpa);

/*
 * Off: stores are not seen, only marks.  For what the kernel stores on the daemon's
 * behalf: it has no handler, and finds read-only memory to be none.
 */
void dirty_see(bool on);

/* All workers have parked the watched VMs and sleep: they have stored what they tell a
 * guest before that. */
void dirty_await_sleep(void);

#endif /* DIRTY_H */
