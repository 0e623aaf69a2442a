/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * RDMA NICs in memory: a table of verbs (backend/transport/rnic/verbs.h) for tests.
 * A program that links these files has it in place of the libraries' before main().
 *
 * NICs join QPs of one process and, by UNIX sockets in a folder, of several.  Nothing is
 * executed within a post: a thread of softnic does it, or a poll_cq() that finds its
 * queue empty.  Shared memory that is registered may be unmapped.  Where real NICs
 * differ, softnic does what is harder for its user: keys do not repeat, a completion with
 * an error has rubbish in the fields that do not count, a send queue has room again only
 * when a later completion was polled, receives that are posted in state ERR never come
 * back, arming says nothing about what is already there, events must be acknowledged
 * before what they are about can be destroyed, a cm id has a context of its own, private
 * data come padded, seven retries never end, and a responder says nothing of a QP that is
 * gone.
 *
 * Commands, for softnic_do(), for PVRDMA_SOFTNIC_DO (several, with ';' between them) and
 * for datagrams to the socket DIR/ctl-PID:
 *
 *   add NIC ADDRESS[,ADDRESS...] [FLAG...]
 *                      a NIC with these IPv4 addresses, in the place of one of this name
 *                      that is in state fatal
 *       iwarp          no atomics, no word when the peer is lost, exact private data
 *       noimm          posts of immediate data return EINVAL
 *       early          sends and writes complete before the peer has them (iWARP)
 *       negative       posts return negative errnos
 *       siw            the four above; rights of a QP, and that to read, do not count; no
 *                      receive is solicited; sends posted in state ERR stay; a connect
 *                      fails at once where nothing listens
 *       qpevents       errors of QPs raise events (HCAs; rxe has none)
 *       flush2         each flushed work request completes twice
 *       lateflush      receives posted in state ERR are flushed (HCAs)
 *       sge=N inline=N ord=N maxmsg=N wr=N
 *                      limits
 *   down NIC           the port: events GID_CHANGE and PORT_ERR
 *   up NIC             event PORT_ACTIVE
 *   gids NIC           event GID_CHANGE
 *   event NIC N        the ibv_event_type N, which is not one of a QP or CQ
 *   fatal NIC [silent] event DEVICE_FATAL; then EIO, or with silent posts that vanish
 *   unplug NIC         the same, and it is gone; ids get DEVICE_REMOVAL
 *   remove NIC         it is gone without an event, but ends only when its last
 *                      context is closed, or the context's cmd_fd is (as rxe)
 *   cut NIC N [before|after|answer]
 *                      the N-th request packet (1: the next) to arrive at its QPs, or
 *                      answer to them, is the last on its connection, and is not
 *                      executed, or is and its answer is lost, or is itself lost
 *   strike NIC [STATUS]
 *                      all its QPs in RTS fail with that ibv_wc_status (flush if none)
 *   lose NIC N         the N-th completion is lost
 *   fail ENTRY N ERRNO the N-th call of the entry (its name in struct rnic_verbs, or
 *                      any) fails; N 0: each call
 *   delay ENTRY N US   the N-th call is delayed; N 0: each call
 *   hold N             N more packets, then nothing moves; hold -1: all move again
 *   clear              no fail, delay, cut, lose, hold; what is delayed goes on
 *
 * PVRDMA_SOFTNIC=DIR: the folder for several processes.  NIC addresses are the fabric:
 * a process with NIC address A has the socket DIR/A.  Without it a process is alone.
 *
 * One of several says on stderr "rule: ENTRY" for each call that fails or is delayed; and,
 * as it ends, how many objects are left and how often a receiver was not ready, if that
 * is not 0.
 */
#ifndef SOFTNIC_H
#define SOFTNIC_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/rnic/verbs.h"

extern const struct rnic_verbs softnic_verbs;

/* A command, as printf(); aborts if there is no such command or NIC. */
void softnic_do(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * What has been counted since the beginning: "rnr NIC" (receiver not ready, at the
 * responder), "packets NIC" (request packets that arrived), "contexts NIC" (open now),
 * "calls ENTRY" (that have begun), "lost NIC", "overruns NIC", "tos NIC" (that of its QP
 * connected last), "objects" (PDs, MRs, CQs, channels, QPs, ids there now).  -1: no such
 * NIC.
 */
int64_t softnic_count(const char *what, const char *name);

/* Waits until nothing is on its way in this process. */
void softnic_settle(void);

#endif /* SOFTNIC_H */
