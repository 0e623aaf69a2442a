/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory's inside: what directory.c (the table, and this host's claims) and
 * remote.c (other hosts' claims) share.  Main thread.
 */
#ifndef PVRDMAD_DIRECTORY_ENTRY_H
#define PVRDMAD_DIRECTORY_ENTRY_H

#include <sys/queue.h>

#include "directory/directory.h"

struct claimant;

/* Something that workers may still be at: freed a grace period from now. */
struct dead {
    uint64_t period;
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
    bool indexed;
    _Atomic(struct entry *) next; /* in the index */
    struct dead dead;
    /* Those of remote.c: */
    struct claimant *from; /* who has route.remote in its list */
    LIST_ENTRY(entry) of_peer;
    uint64_t asked_until;      /* ns: when route.asked changes by itself */
    uint32_t asker;            /* the id of the VM that asked first, or ASKER_NONE */
    TAILQ_ENTRY(entry) asking; /* all with the same route.asked, in order of that time */
};

#define ASKER_NONE UINT32_MAX

struct entry *entry_find(const char *network, const struct pvrdma_gid *gid);
struct entry *entry_find_or_make(const char *network, const struct pvrdma_gid *gid);
/* Something of it has changed: into the index or out of it; _settle: it goes if unused.
 */
void entry_index(struct entry *e);
void entry_settle(struct entry *e);
void entry_bump(struct entry *e);
/* The watcher hears of it. */
void entry_tell(struct entry *e);
void directory_bury(struct dead *d, void *what);
void directory_each_held(void (*fn)(struct entry *e, void *opaque), void *opaque);

/* remote.c: a VM of this host has claimed, let go, or stands still. */
void remote_bound(struct entry *e);
void remote_unbound(struct entry *e);
void remote_held(struct entry *e);
/* It is known now, or asked for anew. */
void remote_not_asked(struct entry *e);
void remote_fini(void);

#endif /* PVRDMAD_DIRECTORY_ENTRY_H */
