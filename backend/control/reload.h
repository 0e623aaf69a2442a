/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The key file's VMs: at start, and when the file is read again.  Main thread.
 */
#ifndef PVRDMAD_RELOAD_H
#define PVRDMAD_RELOAD_H

#include <glib.h>
#include <stdbool.h>

#include "config/config.h"

/*
 * Declare the VMs of @cfg, which the following calls refer to as well.  One that cannot
 * be had is reported and left out.
 */
void reload_start(struct daemon_config *cfg);
/* Until reload_unlock() there is no reload; none is under way either.  In a coroutine. */
void reload_lock(void);
void reload_unlock(void);
/* No reload_run() any more; the main loop turns until there is none.  Outside coroutines.
 */
void reload_stop(void);

/*
 * Read the key file again and make the VMs what it says; also log-level and the
 * default of require-sealed.  What happened is logged and, as members of an object
 * of JSON, added to @s (may be NULL).  False with errp, which is logged as well:
 * nothing was changed.  May let the main loop turn.
 */
bool reload_run(GString *s, GError **errp);

#endif /* PVRDMAD_RELOAD_H */
