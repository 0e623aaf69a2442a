/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Links to other daemons, as the rest of the daemon sees them: who there is, what to
 * send them, and whom to call when something comes.
 *
 * A struct peer is one [peer NAME] group.  It exists until peers_stop(), also when its
 * group has gone (it is never up again then): a pointer to it may be kept.
 *
 * Main thread, but for what says otherwise.
 */
#ifndef PVRDMAD_LINK_PEER_H
#define PVRDMAD_LINK_PEER_H

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "config/config.h"
#include "transport/link/msg.h"

struct peer;

/* ---- who is told ---- */

/* Connections'.  Any may be NULL. */
struct peer_ops {
    void (*bind)(struct peer *from, const struct peer_bind *bind);
    void (*bind_answer)(struct peer *from, const struct peer_bind_answer *answer);
    /* Its link is up, or was silent and is so no more. */
    void (*heard)(struct peer *peer);
    /*
     * A connection that begins as iWARP does.  Nothing was read from it; it does not
     * block, and is the callee's.  Its address is one of the peers'.
     */
    void (*accepted)(int fd, const struct sockaddr_storage *from);
};

/* The directory's.  Any may be NULL. */
struct peer_claim_ops {
    void (*ask)(struct peer *from, const struct peer_claim *what);
    void (*claim)(struct peer *from, const struct peer_claim *claim);
    void (*unclaim)(struct peer *from, const struct peer_claim *claim);
    void (*hold)(struct peer *from, const struct peer_claim *claim);
    void (*proved)(struct peer *from, const struct peer_claim *claim);
    void (*link_up)(struct peer *peer);
    void (*link_down)(struct peer *peer);
};

/* Channels'.  All are there.  link_down() is called for a peer whose group goes while it
 * has no link, too. */
struct peer_channel_ops {
    void (*nic)(struct peer *from, const struct peer_nic *nic);
    void (*channel)(struct peer *from, const struct peer_channel *channel);
    void (*answer)(struct peer *from, const struct peer_channel_answer *answer);
    void (*link_up)(struct peer *peer);
    void (*link_down)(struct peer *peer);
};

/* @ops stay valid; NULL: nobody. */
void peer_set_ops(const struct peer_ops *ops);
void peer_set_claim_ops(const struct peer_claim_ops *ops);
void peer_set_channel_ops(const struct peer_channel_ops *ops);
/* @datagram and its data hold until @fn returns. */
void peer_set_datagram(void (*fn)(struct peer *from,
                                  const struct peer_datagram *datagram));

/* ---- peers ---- */

/* By name; NULL: there is no such group. */
struct peer *peer_find(const char *name);
/* The one after @peer, NULL: the first; NULL: there are no more.  Gone ones are not
 * among them. */
struct peer *peer_next(struct peer *peer);

/* Any thread. */
const char *peer_name(const struct peer *peer);
/* Any thread; it may change at once. */
bool peer_is_up(const struct peer *peer);
/* Its link is up, and not silent: what is sent by it is heard in time. */
bool peer_hears(const struct peer *peer);
/* Its link goes down now, but for another one to the same daemon. */
bool peer_is_replaced(const struct peer *peer);
/* It has said that it ends, or its group has gone: it will not be back in a moment. */
bool peer_has_ended(const struct peer *peer);

/* Of the daemon that the link leads to, or led to last: a random number. */
#define PEER_INSTANCE_LEN 16u
const uint8_t *peer_instance(const struct peer *peer);

/* Where it listens. */
const struct sockaddr_storage *peer_address(const struct peer *peer);
/* To bind() to before connect(): the port is 0.  AF_UNSPEC: whatever the kernel takes. */
const struct sockaddr_storage *peer_own_address(const struct peer *peer);
/* How much of either is used. */
socklen_t peer_address_len(const struct sockaddr_storage *address);
/*
 * By @fd something passes each minute, so that no firewall or NAT between the hosts
 * forgets it, and one that is gone is seen within two.  For queue pairs' connections;
 * links have PING.
 */
void peer_keep_alive(int fd);
/*
 * Is what was sent by @fd not acknowledged, and does TCP wait for long before it tries
 * again?  It waits ever longer, and sees late that the network is back: whoever needs
 * that sooner connects anew.  That something comes says nothing: it is the other way.
 * (Nor does how often it was sent: after a cut of some seconds TCP takes these for a
 * round trip, and waits for such a time before the first.)  Any thread.
 */
bool peer_fd_is_silent(int fd);

/* End the link, and connect anew: what came by it makes no sense. */
void peer_reset(struct peer *peer, const char *why);

/*
 * Has it read all that it was sent before?  It is asked; due until it has said so or the
 * link is down.
 */
void peer_ask_echo(struct peer *peer);
bool peer_echo_is_due(const struct peer *peer);

/* ---- sending ---- */

/* What may wait besides datagrams, for each peer. */
#define PEER_MAX_CONTROL (1u << 20)

/* False: the link is down, or too much waits for it. */
bool peer_send_bind(struct peer *peer, const struct peer_bind *bind);
bool peer_send_bind_answer(struct peer *peer, const struct peer_bind_answer *answer);
/* @type: PEER_MSG_ASK, _CLAIM, _UNCLAIM, _HOLD or _PROVED. */
bool peer_send_claim(struct peer *peer, enum peer_msg_type type,
                     const struct peer_claim *claim);

/* It has a link, with a peer that knows them. */
bool peer_knows_channels(const struct peer *peer);
/* Of channels; false, too, if the peer does not know them. */
bool peer_send_nic(struct peer *peer, const struct peer_nic *nic);
bool peer_send_channel(struct peer *peer, const struct peer_channel *channel);
bool peer_send_channel_answer(struct peer *peer,
                              const struct peer_channel_answer *answer);

/* Management datagrams that may wait, for each peer and of each account. */
#define PEER_MAX_MADS    (256u << 10)
#define PEER_MAX_MADS_OF (128u << 10)

/* What a VM has on its way to peers; it may be gone before that is. */
struct peer_account {
    _Atomic unsigned refs;
    _Atomic uint64_t queued, queued_mads; /* bytes */
    uint64_t max;                         /* of @queued */
};

/* Any thread, like all that follows. */
struct peer_account *peer_account_new(uint64_t max);
void peer_account_unref(struct peer_account *account);

/* A message to be sent, with how it counts. */
struct peer_out {
    struct peer_out *next;
    struct peer_account *account;
    uint32_t len;
    bool mad; /* a datagram for a connection manager and its like, of QP 1 */
    uint8_t bytes[];
};

/* @m encoded.  If @m is a datagram without data, that room is at the end. */
struct peer_out *peer_out_new(const struct peer_msg *m);
void peer_out_free(struct peer_out *out);

/*
 * Send @out, a datagram, which is no longer the caller's.  False: it was dropped, as the
 * link is down, or @account has too much that waits, of what the peer may have
 * (max-queued) or of all.
 */
bool peer_send_datagram(struct peer *peer, struct peer_account *account,
                        struct peer_out *out);

/* ---- start, stop ---- */

/*
 * Listen and connect, if the key file says so.  An address that cannot be had yet is
 * tried again, and reported.
 */
void peers_start(const struct daemon_config *cfg);
void peers_stop(void);

/*
 * The peers of @cfg from now on; a link whose group has changed begins anew.  @say (may
 * be NULL) gets a line about each change, to be freed.
 */
void peers_reload(const struct daemon_config *cfg, void (*say)(void *opaque, char *line),
                  void *opaque);

/* ---- reports ---- */

struct peer_report {
    const char *name, *state, *last_error; /* last_error: "" if there was none */
    char address[CONFIG_ADDRESS_STRLEN];
    bool up, silent;       /* the link is silent: see hosts.md */
    bool initiator;        /* we have called */
    unsigned version;      /* of the protocol; 0: the link is down */
    uint64_t since_ms;     /* so long in this state */
    uint64_t rtt_us;       /* of the last ping; 0: none yet */
    uint64_t queued_bytes; /* datagrams and the rest that wait */
    uint64_t sent_bytes, received_bytes;
    uint64_t sent_messages, received_messages;
    uint64_t dropped;  /* ours that did not fit, or waited when the link broke */
    uint64_t refused;  /* its messages that nobody here takes, or made no sense */
    uint64_t links;    /* how often the link was up */
    uint64_t failures; /* attempts of either side that came to nothing */
    uint64_t silences; /* how often a link was silent */
};

struct peers_report {
    const char *host_name;
    unsigned n_peers, n_up;
    uint64_t strangers;   /* connections from addresses that no peer has */
    uint64_t turned_away; /* those that were garbage, silent, or too many at a time */
    unsigned undecided;   /* connections of which it is not known who it is */
};

void peer_report(struct peer *peer, struct peer_report *r);
void peers_report(struct peers_report *r);
/* An address to listen on, from 0; false: there are no more.  @error: NULL if it is. */
bool peers_report_listen(unsigned i, char text[CONFIG_ADDRESS_STRLEN],
                         const char **error);

#endif /* PVRDMAD_LINK_PEER_H */
