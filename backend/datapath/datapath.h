/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The data path: worker threads that find doorbells, fetch and check WQEs,
 * order them, carry them through a transport and complete them.
 *
 * This header is what the rest of the daemon calls (main thread); what
 * transports call is in engine.h.
 */
#ifndef PVRDMAD_DATAPATH_H
#define PVRDMAD_DATAPATH_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/priority.h"
#include "base/state_stream.h"
#include "objects/vm.h"

/* Start / stop the threads.  poll_us: how long a worker spins when idle. */
bool datapath_start(unsigned workers, unsigned poll_us, GError **errp);
void datapath_stop(void);

/* The class of workers that are started from now on.  PRIORITY_AUTO unless set. */
void datapath_set_priority(const struct priority *p);

/*
 * What worker @i got and used, and its thread; *granted is to be freed.  False: there
 * is none.
 */
bool datapath_worker_usage(unsigned i, pid_t *tid, char **granted, struct cpu_usage *u);

/*
 * Give the VM to a worker / take it away (waits).  Of the workers that its
 * configuration names, or else of those that no VM's or network's names, or if there
 * are none of all: the one with the fewest VMs.
 */
int datapath_vm_init(struct vm *vm);
void datapath_vm_fini(struct vm *vm);

/* Have @named asked which workers are named by anybody, a bit each; NULL: none are. */
void datapath_set_named(uint64_t (*named)(void));

/* The number of an attached VM's worker. */
unsigned datapath_vm_worker(const struct vm *vm);

/*
 * In a coroutine the main loop may turn before take returns: what was looked up
 * before must be the caller's (vm->ops).  Outside of one it blocks, for as long as a
 * worker needs for a page fault: only where no VM is served.
 */
void vm_token_take(struct vm *vm);
void vm_token_release(struct vm *vm);
/* The same, by who has left nothing for its worker to do: that is not woken. */
void vm_token_return(struct vm *vm);
/*
 * For who must not wait: ask for it, and its worker takes it no more; ask and try, for
 * some microseconds; try once more, after either.  True: it is had, as by
 * vm_token_take().  Who does not get it tries again or gives up.
 */
void vm_token_ask(struct vm *vm);
bool vm_token_try(struct vm *vm);
bool vm_token_try_again(struct vm *vm);
void vm_token_give_up(struct vm *vm);
/* qp->lock, with the VM's token held; in a coroutine that may be let go meanwhile. */
void vm_qp_lock(struct qp *qp);
/* cq->lock, with (@token) or without the VM's token; likewise. */
void vm_cq_lock(struct cq *cq, bool token);

/*
 * Stop the VM's data path at a slice border / let it go on.  Main thread.  Calls
 * are counted, since there is more than one reason to stop a VM; both do nothing
 * while the VM is detached.
 */
void datapath_pause(struct vm *vm);
void datapath_resume(struct vm *vm);
/*
 * The same for who stops many, in two steps that do not wait: it has begun; and a grace
 * period has gone by since, which may take long.  From each of them on peers wait for @ns
 * at most, not for hold-timeout, if that is longer (one that stands still already is
 * waited for as it was).  Resume undoes both.
 */
void datapath_pause_begin(struct vm *vm, uint64_t ns);
void datapath_pause_end(struct vm *vm, uint64_t ns);
/*
 * Is its worker in a turn of this VM's that began before the grace period @since, which
 * is not over?  For who wants to know what that stands in.
 */
bool datapath_in_turn(struct vm *vm, uint64_t since);

/* Object life, called by verbs/ on the main thread. */

/* A new QP, CQ or SRQ was published: set owner words, clear stale doorbells. */
void datapath_qp_created(struct qp *qp, uint32_t uar_page);
void datapath_cq_created(struct cq *cq, uint32_t uar_page);
void datapath_srq_created(struct srq *srq, uint32_t uar_page);

/*
 * A context brought or takes away its extension memory (ext.h): @mem has
 * PVRDMA_EXT_PAGES pages and stays valid until removed.  Waits for quiescence.
 */
void datapath_ext_add(struct vm *vm, struct ring_mem *mem);
void datapath_ext_remove(struct vm *vm, struct ring_mem *mem);
void datapath_ext_clear(struct vm *vm); /* all of them */
/*
 * All contexts and their extension memory were loaded from a state stream: look at them
 * from now on.  What that memory has may come later.
 */
void datapath_ext_load(struct vm *vm);

/*
 * The QP's state or attributes changed (token and qp->lock are held by the
 * caller): reset clears rings and cursors, RTR initialises the responder and
 * binds the transport, RTS the requester, ERR flushes.
 */
void datapath_qp_modified(struct qp *qp, uint32_t old_state, uint32_t attr_mask);

/*
 * The QP leaves: token held.  Cuts peers' pointers to it, takes it off queues.
 * The caller unpublishes it before and quiesces and frees after.
 */
void datapath_qp_destroyed(struct qp *qp);
void datapath_cq_destroyed(struct cq *cq);
void datapath_srq_destroyed(struct srq *srq);

/*
 * A GID was unbound: connections that use it lose their path.  Takes the token, many
 * times if there are many QPs.
 */
void datapath_gid_unbound(struct vm *vm, unsigned index);
/* It has a new one, or its link is up or down: those that are connected work or not. */
void datapath_addresses_changed(struct vm *vm);

/*
 * The VM is of another time than its peers: connected QPs go to ERR, with an event.  As
 * above; the data path is paused.
 */
void datapath_connections_lost(struct vm *vm);

/* The guest's clock (ns) when the data path was last stopped. */
uint64_t datapath_stopped_clock(const struct vm *vm);

/* What is left of the tries of the next message: unanswered, receiver not ready. */
void requester_tries_left(const struct qp *qp, uint32_t *retries, uint32_t *rnr);

/* Make the VM's worker look at this QP's send and receive queues.  Any
 * thread. */
void datapath_ring(struct vm *vm, uint32_t qp_handle);
/* Wake the worker of the VM if it sleeps.  Any thread. */
void datapath_wake(struct vm *vm);
/*
 * Have the VM's worker run @n.  Any thread that may use @vm (grace.h).  How many there
 * may be while the VM is paused is the caller's affair.
 */
void vm_post(struct vm *vm, struct note *n);

/*
 * A request for a completion event that came as a message (D6, "forwarded
 * ARM"): stores the arm word.  @posted: the guest does not wait until that is done;
 * fires at once if a completion that counts lies beyond the guest's cons_head; if a
 * worker has the CQ, soon.  Main thread, never waits for that.
 */
void datapath_cq_arm(struct vm *vm, uint32_t cq_handle, bool solicited, bool posted);

/*
 * The guest's clock: ns, from 0 when its VMM attached.  A clock of its own, so that it
 * can go on elsewhere, and tells no guest how long the host runs or who shares it.  Any
 * thread.
 */
uint64_t datapath_clock(const struct vm *vm);

/*
 * The clock and the statistics in a state stream.  To load is to look at them, and times
 * in what is loaded next count from then on.  When all was loaded, and only then, the
 * same is read once more and both go on from there.  Main thread; the data path stands
 * still.
 */
void datapath_save(struct vm *vm, struct state_out *s);
void datapath_load(struct vm *vm, struct state_in *s);
void datapath_go_on(struct vm *vm, struct state_in s);

/*
 * Hold the CQ's events back until there are @count completions (0: however many) or
 * @period_us have passed since the first of them (0: PVRDMA_EXT_MODERATE_MAX); 0, 0: do
 * not.  One that is held now is told.  Main thread.
 */
void datapath_cq_moderate(struct cq *cq, uint32_t count, uint32_t period_us);

/*
 * An extended CQ gets the ring of @ncqe entries in @mem, and @mem what it had, which is
 * complete then and may be freed after a grace period.  False: one of them is unusable;
 * nothing has changed.  Main thread.
 */
bool datapath_cq_move(struct cq *cq, struct ring_mem *mem, uint32_t ncqe);

/* ---- the state stream (save_queues.c, save_qp.c) ---- */

/*
 * Main thread, with vm->ops; the data path is paused.  What is saved does not change.  An
 * object that is loaded is made and published, as one that is created; instead of
 * datapath_*_created() there is datapath_*_load().  If that fails the object can be
 * destroyed and nothing else.
 */
void datapath_cq_save(struct cq *cq, struct state_out *s);
void datapath_cq_load(struct cq *cq, uint32_t uar_page, struct state_in *s);
void datapath_srq_save(struct srq *srq, struct state_out *s);
void datapath_srq_load(struct srq *srq, uint32_t uar_page, struct state_in *s);
void datapath_qp_save(struct qp *qp, struct state_out *s);
void datapath_qp_load(struct qp *qp, uint32_t uar_page, struct state_in *s);
/* What it failed for, if it has for a message of its peer's: nothing is saved if not. */
void datapath_failure_save(struct qp *qp, struct state_out *s);
void datapath_failure_load(struct qp *qp, struct state_in *s);
/* All is loaded: everything is looked at once the data path goes on. */
void datapath_loaded(struct vm *vm);

#endif /* PVRDMAD_DATAPATH_H */
