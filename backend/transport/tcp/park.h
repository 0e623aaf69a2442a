/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Streams that wait for their queue pairs; see park.c.  The main thread's. */
#ifndef PVRDMAD_TCP_PARK_H
#define PVRDMAD_TCP_PARK_H

#include "transport/tcp/conn.h"

/* Streams of a peer, and addresses that were announced by it or to it. */
#define PARK_MAX_OF_PEER 4096u
/* Streams of all of them; not more than a quarter of the descriptors there may be. */
#define PARK_MAX 16384u
/* ns: one that nobody takes, and when the VM runs what is left. */
#define PARK_LIFE_NS (600ull * 1000000000u)
#define PARK_LEFT_NS (10ull * 1000000000u)

struct setup;

/* What there is of a peer. */
struct park_host {
    struct peer *peer;
    unsigned n; /* streams, with those that are being made or taken */
    unsigned n_parks;
    unsigned making;            /* of @n: being made */
    unsigned n_taking;          /* of @n: the peer has not answered about them */
    TAILQ_HEAD(, park) to_make; /* those that want more, see announce.c */
    uint64_t paid;              /* ns; what it may make, see announce.c */
    struct ask_list waiting;    /* to take one, see take.c */
    uint64_t taken, refused;    /* since the start */
};

/* An address that was announced. */
struct park {
    uint64_t token[2];
    struct park_host *host;
    const char *network; /* interned */
    struct pvrdma_gid gid;
    bool ours;      /* announced here */
    const void *vm; /* ... for this VM, never followed; NULL: it runs */
    uint64_t until; /* ns; 0: without an end */
    TAILQ_HEAD(parked_list, parked) streams; /* by number */
    unsigned wanted, made;                   /* those that we make are numbered from 0 */
    bool queued;                             /* in host->to_make */
    TAILQ_ENTRY(park) make;
};

enum parked_state {
    PARK_MAKING, /* see startup.c */
    PARK_FIRST,  /* the initiator's first frame is to come */
    PARK_IDLE,   /* nothing is to come */
    PARK_TAKING, /* the peer was asked; of no park any more */
};

struct parked {
    TAILQ_ENTRY(parked) link; /* in park->streams; TAKING: in a list of take.c's */
    struct park *park;
    struct park_host *host;
    uint32_t number;
    enum parked_state state;
    int fd; /* -1 while MAKING */
    guint watch;
    struct framing framing;
    bool made_here;
    struct setup *setup; /* MAKING */
    uint64_t until;      /* ns; of FIRST and of TAKING */
    /* TAKING, see take.c: */
    struct conn *conn;
    struct parked_list *in; /* @link's; NULL: none */
    struct peer_take *take; /* what it is asked; or what it has */
    struct hello *own, *peer;
};

void park_open(void);
void park_close(void);

struct park_host *park_host(struct peer *peer);
/* NULL: nothing was ever known of it. */
const struct park_host *park_host_known(const struct peer *peer);
/* Each is looked at by @is; whether it is true of any. */
bool park_any_host(bool (*is)(struct park_host *));

/*
 * A new one takes the place of one of the same address, peer and kind.  NULL: too many,
 * or somebody has that token.
 */
struct park *park_new(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid, bool ours, const void *vm,
                      const uint64_t token[2]);
struct park *park_find(const uint64_t token[2]);
struct park *park_of(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                     bool ours);
/* No more of it are made. */
void park_leave_queue(struct park *park);
/* With its streams. */
void park_drop(struct park *park);
/* If it is a peer's, has none and makes none. */
void park_drop_empty(struct park *park);
void park_drop_peer(const struct peer *peer);
void park_drop_vm(const void *vm);
/* @vm runs: what is not taken soon goes. */
void park_leave_vm(const void *vm);
/* Somebody takes from it: the same. */
void park_begin_to_end(struct park *park);

/* One that is being made, or has come; NULL: too many, or that number is there. */
struct parked *parked_new(struct park *park, uint32_t number);
/* It is there: @fd is watched from now on. */
void parked_is(struct parked *p, int fd, const struct framing *framing,
               enum parked_state state);
/* It goes, and its connection, unless @fd is another's and -1 here. */
void parked_free(struct parked *p);

/*
 * Take one out, that is complete: the first or the last; or that of a number.  NULL:
 * there is none.  It is TAKING then, and nobody reads from it.
 */
struct parked *park_take(struct park *park, bool last);
/* Is there one for it? */
bool park_has(const struct park *park);
struct parked *park_take_number(struct park *park, uint32_t number);

#endif /* PVRDMAD_TCP_PARK_H */
