/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What the main thread defers until it has a VM's token; see deferred.c. */
#ifndef PVRDMAD_IWARP_DEFERRED_H
#define PVRDMAD_IWARP_DEFERRED_H

#include "transport/iwarp/conn.h"

/* What the main thread has to do for a connection, with the VM's token. */
enum deferred_work {
    DEFERRED_MOVED = 1 << 0,      /* conn_moved() */
    DEFERRED_GONE = 1 << 1,       /* its host is no longer a peer */
    DEFERRED_REACHABLE = 1 << 2,  /* conn_reachable() */
    DEFERRED_ANEW = 1 << 3,       /* ... at another place */
    DEFERRED_FAILURE = 1 << 4,    /* the peer's queue pair has failed: @heard */
    DEFERRED_NOT_NOW = 1 << 5,    /* there is no try */
    DEFERRED_TRY_FAILED = 1 << 6, /* the try has failed */
    DEFERRED_HELLO = 1 << 7,      /* the Request is to be sent: @setup */
    DEFERRED_STREAM = 1 << 8,     /* the Reply has come: @setup */
    DEFERRED_REQUEST = 1 << 9,    /* a Request has come: @arrived */
    DEFERRED_SILENT = 1 << 10,    /* conn_break_silent() */
    DEFERRED_CHANNEL = 1 << 11,   /* conn_leave_socket() */
};

/* Do that (of enum deferred_work) for @c when there is the token.  Main thread. */
void conn_defer(struct conn *c, unsigned what);
/* That is of no use any more. */
void conn_defer_no_more(struct conn *c, unsigned what);
/* @net goes, and has no connection any more. */
void deferred_vm_gone(struct tcp_vm *net);
void deferred_close(void);

#endif /* PVRDMAD_IWARP_DEFERRED_H */
