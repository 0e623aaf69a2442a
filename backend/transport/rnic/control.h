/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The control threads of a NIC, on which the calls of verbs.h run that block.  control.c
 *
 * Each NIC has three, a lane each: registrations take long and are many, making waits for
 * the peer's daemon and for firmware, and what protects a guest's memory (queue pairs to
 * ERR, rights, dereg) must not wait behind either.
 *
 * Main thread, but for what says otherwise.
 */
#ifndef PVRDMAD_RNIC_CONTROL_H
#define PVRDMAD_RNIC_CONTROL_H

#include <glib.h>
#include <stdint.h>

struct rnic_control;

enum rnic_lane { RNIC_REGISTER, RNIC_MAKE, RNIC_BREAK, RNIC_LANES };

/* Jobs of one VM that may wait on a lane, beside the one that runs. */
#define RNIC_CONTROL_WAITING 64u

/* Starts the threads; NULL with errp. */
struct rnic_control *rnic_control_new(GError **errp);

/*
 * Run @fn(@arg) on @lane's thread, and wait for its end: in a coroutine the main loop
 * turns meanwhile, outside of one the thread waits.  Jobs of a VM run in order; on each
 * lane VMs take turns.  @vm: its serial number; 0: the NIC's own.
 *
 * 0: it has run.  Otherwise it has not, and will not: -EBUSY, RNIC_CONTROL_WAITING jobs
 * of this VM wait there; -ENODEV, the threads were given up.  Or, -EINPROGRESS, they were
 * while it ran: it may run for ever.  @arg, which g_malloc() has made, is the lane's
 * then, that g_free()s it when @fn returns.
 */
int rnic_control_run(struct rnic_control *c, enum rnic_lane lane, uint64_t vm,
                     void (*fn)(void *arg), void *arg);

/* The kernel does not come back: whoever waits goes on, and nothing runs any more. */
void rnic_control_give_up(struct rnic_control *c);

/*
 * Ends the threads; nobody waits any more.  Of threads that were given up those that
 * still stand in the kernel are left there.
 */
void rnic_control_free(struct rnic_control *c);

/* The caller may block in verbs: it is a control thread.  Any thread. */
void rnic_control_assert(void);

#endif /* PVRDMAD_RNIC_CONTROL_H */
