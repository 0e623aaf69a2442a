/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What exec.c writes and adopt.c reads; steps of exec.c that leave.c takes too. */
#ifndef PVRDMAD_CONTROL_RESTART_INTERNAL_H
#define PVRDMAD_CONTROL_RESTART_INTERNAL_H

#include <glib.h>
#include <signal.h>
#include <stdbool.h>

#include "base/state_stream.h"
#include "handover/handover.h"

/* Where the number of the memfd is, for the new program. */
#define RESTART_ENV "PVRDMAD_HANDOVER"

/* When it began, and who waits for the answer; once, first. */
#define RESTART_HEAD STATE_TAG('H', 'E', 'A', 'D')
/* A listening socket. */
#define RESTART_SOCKET STATE_TAG('S', 'O', 'C', 'K')
/* A VM, with or without a VMM. */
#define RESTART_VM STATE_TAG('V', 'M', ' ', ' ')

/*
 * Descriptors that wait to be closed, behind all VMs; only by execve(), which would close
 * them and wait for that.
 */
#define RESTART_CLOSING STATE_TAG('C', 'L', 'O', 'S')

/* Of all four. */
#define RESTART_SECTION_VERSION 1u

/* By this name the service manager keeps what is left to it. */
#define RESTART_KEPT_NAME "pvrdmad-state"

/* So much of streams of migrations goes along. */
extern uint64_t restart_max_streams;

/* So long it does not begin for memory that is being freed. */
extern gint64 restart_memory_us;
/* So long a VM may have a command in work while all others go on. */
extern gint64 restart_late_us;

/* ---- steps, in a coroutine ---- */

/*
 * For one that ends: a restart that is under way has given up, and no other, nor a
 * reload, begins until restart_end_leaving().  False: the daemon ends already.
 */
bool restart_begin_leaving(void);
void restart_end_leaving(void);
/* Whoever waits gives up. */
bool restart_stopping(void);

/*
 * Can the program that is installed now take over from this one?  It says which sections
 * it reads, in lines, and all that this one writes must be among them.
 */
bool restart_check_program(GError **errp);
/*
 * Let all VMs stand still, since *since: with vm->ops of each, which nobody does of two,
 * nothing is read from its client, and it is paused.  Those that cannot be handed over,
 * or do not come to rest, lose their VMM, or are not among @frozen in the end; but if
 * @all have to go along they make it fail: none stands still then.
 */
bool restart_freeze_all(GPtrArray *frozen, bool all, gint64 *since, GError **errp);
/* @frozen is empty then. */
void restart_thaw_all(GPtrArray *frozen, bool paused);
/* Are there any that got a fault since, that restart_save() will not have? */
bool restart_leave_faulted_out(GPtrArray *frozen);
/* The state of all as a memfd, or -1 with errp; @h is to be cleared in any case. */
int restart_save(GPtrArray *frozen, struct handover_out *h, gint64 since, int client,
                 GError **errp);
void restart_hold_signals(sigset_t *old);

#endif /* PVRDMAD_CONTROL_RESTART_INTERNAL_H */
