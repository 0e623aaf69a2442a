/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The daemon is replaced by a new one under running VMs, in the same process or, with the
 * help of the service manager, in another one.  exec.c and leave.c are what the old
 * one does, adopt.c the new one's.  Main thread.
 */
#ifndef PVRDMAD_CONTROL_RESTART_H
#define PVRDMAD_CONTROL_RESTART_H

#include <glib.h>
#include <stdbool.h>

#include "config/config.h"

/* ---- the old one ---- */

/* Remember how this daemon was started: once, before anything of that changes. */
void restart_init(char **argv);
/* None begins any more; the main loop turns until one that is under way has given up. */
void restart_stop(void);

/*
 * Hand everything over to the program that is installed where this one was.  Returns only
 * if that fails, with errp, which is logged as well: everything is as it was.  @client
 * is a descriptor that the new one answers on, as control.h says, or -1.  In a coroutine.
 */
void restart_run(int client, GError **errp);
/*
 * The daemon is told to end: leave everything to the service manager's keeping, for the
 * next one, and end the process.  Returns if there is no such manager, or it cannot be
 * done; what is wrong then is logged.  In a coroutine.
 */
void restart_leave(void);
/* VMs are not to be added, changed or removed. */
bool restart_under_way(void);

/* ---- the new one ---- */

/*
 * For a daemon that is about to be replaced, and leaves @version ("1"): prints what this
 * program reads of that, or false with errp.
 */
bool adopt_answer(const char *version, GError **errp);
/*
 * The sections, keys of VMs and features of which a handover may have some, a line each.
 */
char *restart_sections(void);

/* At the start of the process, before it has other threads or opens anything. */
void adopt_init(void);
/*
 * Was anything left for this process?  Takes its listening sockets (sockfile.h).
 * False with errp: it was restarted, and cannot go on.  What the service manager has kept
 * is dropped if it is no use, with a message.
 */
bool adopt_open(GError **errp);
/* Declare and attach the VMs that there were; true: it was a restart. */
bool adopt_vms(const struct daemon_config *cfg);
/* All is up: the VMs go on, and whoever asked for it is told. */
void adopt_finish(void);

#endif /* PVRDMAD_CONTROL_RESTART_H */
