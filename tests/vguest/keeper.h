/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A service manager, as far as it keeps descriptors for a daemon: a thread of the test
 * that reads NOTIFY_SOCKET.
 */
#ifndef VGUEST_KEEPER_H
#define VGUEST_KEEPER_H

#include <stdbool.h>

struct keeper;

/* Its socket is in the environment of daemons that are started from now on. */
struct keeper *keeper_start(void);
void keeper_stop(struct keeper *k);

enum keeper_does {
    KEEPER_KEEPS,
    KEEPER_DROPS, /* it reads and closes what comes, as without a store */
    KEEPER_SLEEPS /* it does not read */
};
void keeper_do(struct keeper *k, enum keeper_does what);
/* It does not read: until it does again, there is no room for anything more. */
void keeper_fill(struct keeper *k);

/* What it has, @max at most, for the next daemon; both have it then. */
unsigned keeper_lend(struct keeper *k, int *fds, unsigned max);
void keeper_forget(struct keeper *k);
/* It was told to, or never had anything. */
void keeper_wait_empty(struct keeper *k);

#endif /* VGUEST_KEEPER_H */
