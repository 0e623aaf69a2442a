/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The service manager that has started the daemon, systemd as a rule: what it is told
 * (sd_notify(3)), whether it watches the daemon (sd_watchdog_enabled(3)), and the
 * descriptors that it keeps from one daemon to the next (sd_pid_notify_with_fds(3),
 * sd_listen_fds_with_names(3)).  Main thread.
 */
#ifndef PVRDMAD_HANDOVER_MANAGER_H
#define PVRDMAD_HANDOVER_MANAGER_H

#include <glib.h>
#include <stdbool.h>

/* Is there one that listens? */
bool manager_there(void);

/* Tell it @state; waits for room in its queue only if @wait. */
void manager_notify(const char *state, bool wait);

/* The same with @fd, which stays the caller's.  0 or an errno; EAGAIN: no room now. */
int manager_send_fd(const char *state, int fd);

/* How often it wants to hear from the daemon, in us; 0: not at all. */
guint64 manager_watchdog_us(void);

/*
 * Once, at the start of the process: the descriptors of this name that were kept for it,
 * to be unref-ed when they are closed or taken.  Others are closed.
 */
GArray *manager_kept(const char *name);

/* The places of @name in a list of @n names as LISTEN_FDNAMES has it: one bool each. */
bool *manager_find_names(const char *names, unsigned n, const char *name);

#endif /* PVRDMAD_HANDOVER_MANAGER_H */
