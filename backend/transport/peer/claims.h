/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The directory's messages on links to peers.  Main thread. */
#ifndef PVRDMAD_PEER_CLAIMS_H
#define PVRDMAD_PEER_CLAIMS_H

#include <glib.h>
#include <stdbool.h>

/*
 * Before peers_start() / after peers_stop().  @host: this host's name, @timeout: seconds
 * after which a peer whose link is lost has nothing any more.
 */
bool claims_start(const char *host, unsigned timeout, GError **errp);
void claims_stop(void);

#endif /* PVRDMAD_PEER_CLAIMS_H */
