/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory's inside: what directory.c (the table, and this host's claims) and
 * remote.c (other hosts' claims) share.  Main thread.
 */
#ifndef PVRDMAD_DIRECTORY_ENTRY_H
#define PVRDMAD_DIRECTORY_ENTRY_H

#include <sys/queue.h>
#include <time.h>

#include "directory/directory.h"

struct claimant;
struct vm;

/* Something that workers may still be at: freed a grace period from now. */
struct dead {
    void *what;
    STAILQ_ENTRY(dead) next;
};

/* It is there for as long as it is held by anybody, referred to, or asked for. */
struct entry {
    struct route route;  /* first */
    const char *network; /* interned */
    struct pvrdma_gid gid;
    unsigned claims; /* of route.vm */
    unsigned refs;   /* route_get() calls not undone */
    LIST_ENTRY(entry) of_vm;
    struct waiting *waiting;      /* who waits for it (waiting.c), or NULL */
    _Atomic(struct entry *) next; /* in the index */
    struct dead dead;
    /* Those of moves.c: */
    uint64_t left_until;        /* ns: it waits for its owner, who has left; 0: not */
    struct claim left;          /* who that is */
    uint64_t left_clock;        /* the guest's, in its state; 0: not known */
    uint64_t left_by;           /* the serial of the VM that it was */
    TAILQ_ENTRY(entry) leaving; /* all those */
    bool contested;             /* a claim was refused: ask when its holder lets go */
    bool indexed;
    /* Those of remote.c: */
    struct claimant *from; /* who has route.remote in its list */
    TAILQ_ENTRY(entry) of_peer;
    uint64_t asked_until;      /* ns: when route.asked changes by itself */
    uint32_t asker;            /* the id of the VM that asked first, or ASKER_NONE */
    bool ask_later;            /* somebody waits for it, and it is to be asked for yet */
    TAILQ_ENTRY(entry) asking; /* all with the same route.asked, in order of that time */
};

#define ASKER_NONE  UINT32_MAX
#define ASKER_WAITS (UINT32_MAX - 1) /* VMs that wait for it */

static inline uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline bool same_owner(const struct claim *a, const struct claim *b)
{
    return a->owner[0] == b->owner[0] && a->owner[1] == b->owner[1];
}

/* Until when to wait for an owner who stands still from now on, for @ns if it may. */
uint64_t entry_hold_until(uint64_t ns);
struct entry *entry_find(const char *network, const struct pvrdma_gid *gid);
struct entry *entry_find_or_make(const char *network, const struct pvrdma_gid *gid);
/* Something of it has changed: into the index or out of it; _settle: it goes if unused.
 */
void entry_index(struct entry *e);
void entry_settle(struct entry *e);
void entry_bump(struct entry *e);
/* The watcher hears of it, and those who wait for it are looked at. */
void entry_tell(struct entry *e);
/* May @vm have it; _bind_one(): it may, and has. */
bool entry_may_bind(const struct entry *e, struct vm *vm);
void entry_bind_one(struct entry *e, struct vm *vm);
void directory_bury(struct dead *d, void *what);
void directory_each_held(void (*fn)(struct entry *e, void *opaque), void *opaque);
/* @e is not @vm's, its holder's, any more, and says nothing else yet. */
void entry_take_from_vm(struct entry *e, struct vm *vm);

/*
 * moves.c: who has it, wherever; false: nobody.  And may @claim have it instead, as it
 * stands still where it is?  Then _release() takes it from there, and it looks held until
 * its new place is entered.
 */
bool moves_claim(const struct entry *e, struct claim *claim);
enum claim_result moves_judge(const struct entry *e, const struct peer *from,
                              const struct claim *claim);
void moves_release(struct entry *e);
/* What @vm left the last time is waited for no more; and @e, which was @vm's, is. */
void moves_forget(const struct vm *vm);
/* Is @e held for what @vm was, and is no more? */
bool moves_is_former(const struct entry *e, const struct vm *vm);
void moves_leave(struct entry *e, const struct vm *vm, uint64_t clock, uint64_t ns);
void moves_each_left(void (*fn)(struct entry *e, void *opaque), void *opaque);
unsigned moves_left(void);
void moves_fini(void);

/* waiting.c: @e may be free now for those who wait for it. */
void waiting_look(struct entry *e);
unsigned waiting_count(void);
void waiting_fini(void);

/* restored.c: that state is of the past, of the VM that has or had that serial. */
void past_add(const uint64_t owner[2], uint64_t clock, uint64_t serial);
void past_fini(void);

/*
 * duplicates.c: what this host says of @vm, whose claim @claim is.  Does @claim come from
 * a place of the VM of this host that has @e; and to the log, that it comes first.
 */
void rivals_prove(struct vm *vm, struct claim *claim);
/* Does it show that who says it has the state of @vm? */
bool rivals_is_of(const struct vm *vm, const struct claim *claim);
enum rival rivals_judge(const struct entry *e, const struct claim *claim);
void rivals_say(const struct entry *e, const struct claim *claim);

/*
 * remote.c: nobody has it there any more; is the link to who has it up; and was that away
 * for so long that the address is free to be claimed?
 */
void remote_clear(struct entry *e);
bool remote_is_linked(const struct entry *e);
bool remote_is_free(const struct entry *e);
/* Its holder has let go or stands still: those that were refused may have it now. */
void remote_not_contested(struct entry *e);

/* remote.c: a VM of this host has claimed, let go, or stands still. */
void remote_bound(struct entry *e);
void remote_unbound(struct entry *e);
void remote_held(struct entry *e);
/* It is known now, or asked for anew. */
void remote_not_asked(struct entry *e);
/* Is it being asked for, or to be when there is place?  Asks if there is. */
bool remote_is_asked(struct entry *e);
/* The name of the host that has it, or NULL. */
const char *remote_name(const struct entry *e);
void remote_fini(void);

#endif /* PVRDMAD_DIRECTORY_ENTRY_H */
