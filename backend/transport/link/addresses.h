/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The directory's messages on links to peers.  Main thread. */
#ifndef PVRDMAD_LINK_ADDRESSES_H
#define PVRDMAD_LINK_ADDRESSES_H

#include <glib.h>
#include <stdbool.h>

/*
 * Before peers_start() / after peers_stop().  @host: this host's name, @timeout: seconds
 * after which a peer whose link is lost has nothing any more.
 */
bool claims_start(const char *host, unsigned timeout, GError **errp);
void claims_stop(void);

/*
 * What was said of this host's addresses so far is to be known at all peers with a link,
 * as far as they answer in time.  In a coroutine.
 */
void claims_be_heard(void);
/* This daemon has taken another one's place: links to all peers were lost. */
void claims_expect_back(void);

#endif /* PVRDMAD_LINK_ADDRESSES_H */
