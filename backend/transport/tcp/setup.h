/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files that get connections their streams call of each other: setup.c (who
 * connects, and when), startup.c (MPA's startup frames), follow.c (peers that move),
 * announce.c, park.c and take.c (connections that are made in advance) and loop.c (both
 * ends in this daemon).  The main thread's, all of it.
 */
#ifndef PVRDMAD_TCP_SETUP_H
#define PVRDMAD_TCP_SETUP_H

#include "transport/tcp/conn.h"
#include "transport/tcp/park.h"

/* ns: of the startup frames. */
#define SETUP_FRAMES_NS 5000000000u

/* ---- setup.c ---- */

/* What was asked for is there, or is wanted no more. */
void setup_ask_over(struct conn *c);
/* The try was in vain: start() is to say so. */
void setup_in_vain(struct conn *c);
/* What was asked for and what is awaited: nothing of it any more, nor its port. */
void setup_drop(struct conn *c);
/* Is the queue pair one that could take messages, or has to say why it does not? */
bool setup_is_ready(const struct conn *c);
/*
 * The daemon that has @c's peer; NULL without links.  False: it is not known, and asked
 * for.
 */
bool setup_peer_of(const struct conn *c, struct peer **peer);
/* Which two queue pairs @c connects, without a token. */
void setup_bind_of(const struct conn *c, struct peer_bind *b);
/* A number that nobody can guess. */
void setup_random_token(uint64_t token[2]);
/* Something is asked for by that number, for so long.  False: somebody has it already. */
bool setup_asks(struct conn *c, const uint64_t token[2], uint64_t ns);
/* Who has asked; NULL: nobody. */
struct conn *setup_asked(const uint64_t token[2]);
/*
 * May the queue pair that @b is about be connected with @from's?  @a is the answer.
 * Returns its connection if that is OK, or BUSY since it is the initiator's; else NULL.
 */
struct conn *setup_check_bind(struct peer *from, const struct peer_bind *b,
                              struct peer_bind_answer *a);
/* @c waits in @list; so many there do no longer. */
void setup_wait_in(struct conn *c, struct ask_list *list);
void setup_go_on(struct ask_list *list, unsigned n);
bool setup_has_some(struct ask_list *list);
void setup_wait_no_more(struct conn *c);
/* Who awaits a connection that shows @token; NULL: nobody. */
struct conn *setup_awaited(const uint64_t token[2]);
/* It has come: no other is awaited. */
void setup_arrived(struct conn *c);
void setup_bind_came(struct peer *from, const struct peer_bind *b);
void setup_answer_came(struct peer *from, const struct peer_bind_answer *a);

/* ---- startup.c ---- */

/* The responder awaits us; from @from (may be NULL). */
void startup_connect(struct conn *c, const struct sockaddr_storage *to,
                     const struct sockaddr_storage *from);
/* A connection has come, from @from, NULL: from this daemon. */
void startup_accepted(int fd, const struct sockaddr_storage *from);
/* What is under way is wanted no more. */
void startup_cancel(struct conn *c);
/* ... nor the peer's Request that is to be answered. */
void startup_arrived_no_more(struct conn *c);
/* No pacing: for a socket within this host, before connect() and listen(). */
void startup_dont_pace(int fd);
void startup_close(void);

/* Does @c mean to send READs or atomics? */
bool startup_wants_reads(const struct conn *c);
/* Does a peer of @c's service say that, with that token?  It is in @peer then. */
bool startup_hears(const struct conn *c, const uint8_t *in, size_t len,
                   const uint64_t token[2], struct hello *peer);
/*
 * The responder's side: what it says to an initiator that says @peer.  False: there is to
 * be no stream.  Token and qp->lock held.
 */
bool startup_agree(struct conn *c, const struct hello *peer, struct hello *own);
/* The initiator's: there is none, maybe because the peer's queue pair has failed. */
void startup_refused(struct conn *c, const struct hello *peer);
/*
 * What is owed (owed.c): the Request is sent; its Reply makes a stream; so does another's
 * Request that is answered.  Token and qp->lock held; true: the worker is to look at
 * once.
 */
bool startup_pay_hello(struct conn *c);
bool startup_pay_stream(struct conn *c);
bool startup_pay_request(struct conn *c);
/* Make one that is to be parked; announce_made() tells.  False: that cannot be. */
bool startup_park(struct parked *p, const struct sockaddr_storage *to,
                  const struct sockaddr_storage *from);
void startup_cancel_parking(struct parked *p);

/* ---- announce.c ---- */

/*
 * Connections that nobody takes: so many of a peer's announcements, and one more each
 * ANNOUNCE_VAIN_NS.  Whoever says ANNOUNCE again and again takes little time of this
 * host's, and few of its ports.
 */
#define ANNOUNCE_VAIN_MAX (2 * PARK_MAX_OF_PEER)
#define ANNOUNCE_VAIN_NS  (1000000000u / 64)

/* May another be made for @h at @now (ns)?  It is paid for then. */
bool announce_pay(struct park_host *h, uint64_t now);
/* @p is there, or if not @ok, will not be: it is free then. */
void announce_made(struct parked *p, bool ok);
void announce_came(struct peer *from, const struct peer_announce *a);
/* Go on making what @h wants. */
void announce_make(struct park_host *h);
/* A queue pair has @p's connection, which was not made in vain. */
void announce_taken(struct parked *p);
void announce_link_up(struct peer *peer);
void announce_open(void);
void announce_close(void);

/* ---- take.c ---- */

/* If there is one for @c, ask for that, and send no BIND.  False: there is none. */
bool take_begin(struct conn *c, struct peer *peer);
/* Has it asked, or is it about to? */
bool take_is_going_on(const struct conn *c);
/* The peer says by MPA what it has said by TAKE: that is no more. */
void take_attach_no_more(struct conn *c);
/*
 * What is owed (owed.c): to say TAKE; its TAKEN makes a stream; so does another's TAKE
 * that is answered.  Token and qp->lock held; true: the worker is to look at once.
 */
bool take_pay(struct conn *c);
bool take_pay_taken(struct conn *c);
bool take_pay_attach(struct conn *c);
/* @c wants none any more, nor are others' awaited. */
void take_cancel(struct conn *c);
void take_came(struct peer *from, const struct peer_take *t);
void take_answered(struct peer *from, const struct peer_taken *t);
/* Nothing is taken from @peer any more; who waits for that asks for another one. */
void take_give_up(struct peer *peer);
void take_close(void);

/* ---- follow.c ---- */

void follow_know(struct conn *c);
void follow_forget(struct conn *c);
/* How many are connected to that address, whose own is another? */
unsigned follow_count(const struct route *route);
/* Is the peer still where all of @c belongs to? */
bool follow_is_there(const struct conn *c);
/* From now on all of it belongs to where the peer is now. */
void follow_catch_up(struct conn *c);
/* A host that is no peer any more has no say in guests' memory. */
void follow_leave_the_gone(void);
void follow_open(void);
void follow_close(void);

/* ---- loop.c ---- */

extern struct sockaddr_storage loop_address;

bool loop_open(GError **errp);
void loop_close(void);
void loop_send_bind(const struct peer_bind *b);
void loop_send_answer(const struct peer_bind_answer *a);

#endif /* PVRDMAD_TCP_SETUP_H */
