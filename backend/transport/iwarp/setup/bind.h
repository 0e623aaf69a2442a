/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files that get connections their streams call of each other: bind.c (who
 * connects, by what, and when), handshake.c (MPA's startup frames), peer_moves.c (peers
 * that move) and local.c (both ends in this daemon).  The main thread's, all of it.
 */
#ifndef PVRDMAD_IWARP_SETUP_BIND_H
#define PVRDMAD_IWARP_SETUP_BIND_H

#include "transport/iwarp/deferred.h"
#include "transport/iwarp/poll.h"

/* ns: of the startup frames. */
#define SETUP_FRAMES_NS 5000000000u

/* ---- bind.c, for the files of a connection ---- */

/* A stream is wanted.  Any thread with the token. */
void setup_ask(struct conn *c);
/*
 * Is that still to be looked at, behind others, or something deferred, or is a stream
 * that is there being taken?  Then no time of a try runs.  Any thread with the token.
 */
bool setup_waits(struct conn *c);
/* Its queue pair is there, and goes.  Main thread. */
void setup_know(struct conn *c);
void setup_forget(struct conn *c);
/* A VM's shares; it has no connection when they end.  Main thread. */
void setup_begin_shares(struct tcp_vm *net);
void setup_end_shares(struct tcp_vm *net);

/* ---- bind.c, for those of this folder ---- */

/* What was asked for is there, or is wanted no more. */
void setup_ask_over(struct conn *c);
/* The try has failed: start() is to say so. */
void setup_try_failed(struct conn *c);
/* What the peer awaits came to nothing, which is no try: ask it anew. */
void setup_try_again(struct conn *c);
/* Of channels: @p's state is another. */
void setup_pair_changed(struct rnic_pair *p);
/* The initiator @c has a stream.  If it goes by TCP a channel may have come up since it
 * was looked for, or may be wanted again: of that only those are told that have one.
 * Token held. */
void setup_is_up(struct conn *c);
/* What was asked for and what is awaited: nothing of it any more, nor its port. */
void setup_drop(struct conn *c);
/* Is the queue pair one that could take messages, or has to say why it does not? */
bool setup_is_ready(const struct conn *c);
/*
 * The daemon that has @c's peer; NULL without links.  False: it is not known, and asked
 * for.
 */
bool setup_peer_of(const struct conn *c, struct peer **peer);
/* Who awaits a connection that shows @token; NULL: nobody. */
struct conn *setup_awaited(const uint64_t token[2]);
/* It has come: no other is awaited. */
void setup_arrived(struct conn *c);
void setup_bind_came(struct peer *from, const struct peer_bind *b);
void setup_answer_came(struct peer *from, const struct peer_bind_answer *a);

/* ---- handshake.c ---- */

/* The responder, of this daemon or of @peer, awaits us by TCP. */
void handshake_connect(struct conn *c, struct peer *peer);
/* The same by a flow of @p's channel; by TCP if there is none any more, or it takes none.
 */
void handshake_join(struct conn *c, struct rnic_pair *p);
/* News of a flow that is no stream's, and what was said with them: @what, of enum
 * flow_news. */
void handshake_flow(struct flow *f, unsigned what, const uint8_t *said, size_t len);
/* A connection has come, from @from, NULL: from this daemon. */
void handshake_accepted(int fd, const struct sockaddr_storage *from);
/* What is under way is wanted no more. */
void handshake_cancel(struct conn *c);
/* No pacing: for a socket within this host, before connect() and listen(). */
void handshake_dont_pace(int fd);
void handshake_close(void);

/*
 * What is deferred (deferred.c): the Request is sent; its Reply makes a stream; so does
 * another's Request that is answered.  Token and qp->lock held; true: the worker is to
 * look at once.
 */
bool handshake_do_hello(struct conn *c);
bool handshake_do_stream(struct conn *c);
bool handshake_do_request(struct conn *c);

/* ---- peer_moves.c ---- */

void moves_add(struct conn *c);
void moves_remove(struct conn *c);
/* Is the peer still where all of @c belongs to? */
bool moves_is_current(const struct conn *c);
/* From now on all of it belongs to where the peer is now. */
void moves_catch_up(struct conn *c);
/* A host that is no peer any more has no say in guests' memory. */
void moves_drop_former_peers(void);
/*
 * @peer hears us by its link again, or has a new one: whoever waits for a stream there
 * asks for one now, and streams that are silent are made anew.
 */
void moves_peer_heard(struct peer *peer);
/*
 * Are there streams between @p's VMs, of initiators here?  If it has a channel
 * now, those that go by TCP are made anew.
 */
bool moves_to_channel(const struct rnic_pair *p);
void moves_open(void);
void moves_close(void);

/* ---- local.c ---- */

extern struct sockaddr_storage loop_address;

bool loop_open(GError **errp);
void loop_close(void);
void loop_send_bind(const struct peer_bind *b);
void loop_send_answer(const struct peer_bind_answer *a);

#endif /* PVRDMAD_IWARP_SETUP_BIND_H */
