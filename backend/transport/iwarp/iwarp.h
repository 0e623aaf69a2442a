/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Transport "tcp", as the rest of the daemon sees it; transports.h has its operations. */
#ifndef PVRDMAD_IWARP_H
#define PVRDMAD_IWARP_H

#include <glib.h>
#include <stdbool.h>

#include "config/config.h"

struct peer;
struct vm;

/*
 * Make connections, and take those that come to the daemon's port.  @forced: to queue
 * pairs of this host, too, by a port of the loopback interface.  Main thread, before any
 * VM is served.
 */
bool tcp_open(bool forced, GError **errp);
/*
 * The connections of queue pairs that are made from now on may lead to other hosts, if
 * @cfg has any (or it is forced).
 */
void tcp_use(const struct daemon_config *cfg);
/* After all VMs have gone. */
void tcp_close(void);

#endif /* PVRDMAD_IWARP_H */
