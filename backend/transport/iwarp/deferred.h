/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What is owed to a connection by the main thread; see deferred.c. */
#ifndef PVRDMAD_IWARP_DEFERRED_H
#define PVRDMAD_IWARP_DEFERRED_H

#include "transport/iwarp/conn.h"

/* What a connection is owed by the main thread, with the VM's token: deferred.c. */
enum owed {
    OWED_FOLLOW = 1 << 0,    /* conn_follow() */
    OWED_GONE = 1 << 1,      /* its host is no longer a peer */
    OWED_REACHABLE = 1 << 2, /* conn_reachable() */
    OWED_ANEW = 1 << 3,      /* ... at another place */
    OWED_FAILURE = 1 << 4,   /* the peer's queue pair has failed: @heard */
    OWED_NOT_NOW = 1 << 5,   /* there is no try */
    OWED_IN_VAIN = 1 << 6,   /* it was in vain */
    OWED_HELLO = 1 << 7,     /* the Request is to be sent: @setup */
    OWED_STREAM = 1 << 8,    /* the Reply has come: @setup */
    OWED_REQUEST = 1 << 9,   /* a Request has come: @arrived */
    OWED_SILENT = 1 << 10,   /* conn_leave_silent() */
};

/* @c is owed that, of enum owed, and has it later, when there is the token.  Main
 * thread. */
void conn_owe(struct conn *c, unsigned what);
/* That is of no use any more. */
void conn_owe_no_more(struct conn *c, unsigned what);
/* @net goes, and has no connection any more. */
void owed_vm_gone(struct tcp_vm *net);
void owed_close(void);

#endif /* PVRDMAD_IWARP_DEFERRED_H */
