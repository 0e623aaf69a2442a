/* SPDX-License-Identifier: GPL-2.0-or-later */
/* How TCP connections end that this host has made; see linger.c.  The main thread's, but
 * for linger_is_reset(). */
#ifndef PVRDMAD_IWARP_LINGER_H
#define PVRDMAD_IWARP_LINGER_H

#include <stdbool.h>

struct tcp_vm;

/* From now on close(@fd) resets the connection; or it does not. */
void linger_set_reset(int fd, bool on);
/* Does it? */
bool linger_is_reset(int fd);
/* Has the peer's kernel all that was sent?  Any thread. */
bool linger_all_acked(int fd);
/* @fd, which nobody watches, is closed when the peer has all, at the expense of @net. */
void linger_add(struct tcp_vm *net, int fd);
/* @net goes. */
void linger_vm_gone(struct tcp_vm *net);
void linger_close(void);

#endif /* PVRDMAD_IWARP_LINGER_H */
