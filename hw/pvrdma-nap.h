/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Naps of a vCPU that polls for nothing on a processor that others want.
 */
#ifndef HW_RDMA_PVRDMA_NAP_H
#define HW_RDMA_PVRDMA_NAP_H

/*
 * The calling vCPU's guest polled a CQ in vain; @idle: for several microseconds
 * already (PVRDMA_EXT_UAR_CQ_IDLE).
 */
void pvrdma_nap_polled(bool idle);

/* It rang another doorbell: it has work, and its polling begins anew. */
void pvrdma_nap_worked(void);

#endif
