/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Datagrams from and to VMs of other hosts; see datagrams.c. */
#ifndef PVRDMAD_LINK_DATAGRAMS_H
#define PVRDMAD_LINK_DATAGRAMS_H

#include "datapath/engine.h"

/*
 * Bytes of one VM's that wait for links, and that wait for a VM's worker, at most; and
 * of management datagrams, which are apart, the latter.
 */
#define UD_VM_OUT     (1u << 20)
#define UD_VM_IN      (1u << 20)
#define UD_VM_IN_MADS (256u << 10)

/*
 * Carry @op, a datagram to an address that no VM of this host holds; @route: of that
 * address, or NULL.  As transport_ops.datagram.
 */
struct outcome ud_carry(struct qp *qp, struct send_op *op, const struct route *route);

/* @vm has left its worker.  Main thread. */
void ud_vm_gone(struct vm *vm);

/* Take datagrams off links / do not.  Main thread. */
void ud_start(void);
void ud_stop(void);

/* What came from other hosts since the start.  Main thread. */
struct ud_stats {
    uint64_t received;   /* and passed to a VM's worker */
    uint64_t bad_source; /* the peer that sent it has not claimed its source */
    uint64_t nobody;     /* no VM of this host holds the address */
};
void ud_get_stats(struct ud_stats *st);

#endif /* PVRDMAD_LINK_DATAGRAMS_H */
