/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One connection, as link.c and handshake.c see it. */
#ifndef PVRDMAD_LINK_H
#define PVRDMAD_LINK_H

#include "transport/link/internal.h"

#define BATCH 16u
/* What we say before the link is up: the magic, HELLO and AUTH, once. */
#define EARLY_SIZE 512u

struct peer_link {
    struct peer_stream stream;
    struct peer *peer; /* NULL: not known yet */
    enum peer_role role;
    enum link_state state;
    struct sockaddr_storage from;     /* of a responder's initiator */
    struct peer_place place;          /* the same, not up yet */
    LIST_ENTRY(peer_link) is_early;   /* likewise */
    struct peer_hello_bytes hello[2]; /* by role */
    struct peer_hello other;
    bool magic;   /* the other side's was there */
    bool crossed; /* another link is wanted in its place */
    bool dead;    /* closed; memory goes when nobody is at work with it */
    unsigned busy;

    uint8_t *in;
    size_t in_len, in_size;
    uint8_t early[EARLY_SIZE];
    size_t early_len, early_pos;
    struct peer_out *sending[BATCH];
    unsigned n_sending;
    size_t sending_pos; /* in the first */

    guint watch, timer;
    guint look;     /* runs while the other end has not all that was written */
    uint64_t acked; /* bytes, at the last look */
    unsigned looks; /* since when that was another number */
    bool silent;    /* it does not hear us, as of the last look */
    guint again;    /* messages are left of the last turn; nothing is read before */
    GIOCondition watched;
    gint64 heard;  /* us: when something came last */
    gint64 ticked; /* when the timer ran last */
    gint64 pinged; /* stamp of the last PING; 0: answered */
};

/* ---- link.c, for handshake.c ---- */

/* Send this, before the link is up: EARLY_SIZE bytes in all. */
void link_say(struct peer_link *l, const void *bytes, size_t len);
/* The greeting has ended well. */
void link_be_up(struct peer_link *l);
/* The other side broke the rules. */
void link_refuse(struct peer_link *l, const char *why);
/* It said CLOSE. */
void link_closed(struct peer_link *l, const struct peer_msg *m);

/* ---- handshake.c, for link.c ---- */

/* Say HELLO. */
void greet(struct peer_link *l);
/* @m, which came as @bytes, before the link is up. */
void greet_got(struct peer_link *l, const struct peer_msg *m, const uint8_t *bytes,
               size_t len);

#endif /* PVRDMAD_LINK_H */
