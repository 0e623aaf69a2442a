/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What migration.c and restart_migration.c share: a VM's part in a migration. */
#ifndef PVRDMAD_MIGRATION_INTERNAL_H
#define PVRDMAD_MIGRATION_INTERNAL_H

#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "vm/attach.h"

enum state {
    ERROR = VFIO_USER_MIG_ERROR,
    STOP = VFIO_USER_MIG_STOP,
    RUNNING = VFIO_USER_MIG_RUNNING,
    STOP_COPY = VFIO_USER_MIG_STOP_COPY,
    RESUMING = VFIO_USER_MIG_RESUMING,
};

/* Made with the first message about it, and kept until the VM is removed: an operator
 * may ask what became of a VM that has left. */
struct migration {
    struct vm *vm;
    enum state state;
    GByteArray *out; /* STOP_COPY: the stream */
    uint32_t read;   /* so much of it was */
    uint64_t saving; /* while that is made: so long it may become */
    uint8_t *in;     /* RESUMING: what came, NULL: nothing */
    uint64_t got, room;
    gint64 came;      /* when the last of it did, g_get_monotonic_time() */
    guint watch;      /* looks at that; 0: nothing has come, or it is loaded */
    bool handed_over; /* the client has read all since the VM was last RUNNING */
    bool loaded;      /* its addresses are to be claimed before it runs */
    bool saved;       /* its state was, since the VM was last RUNNING, ... */
    uint64_t clock;   /* ... with that clock of the guest's */
    bool past;        /* what is loaded is of the past: peers have gone on without it */
    bool put_back;    /* RESUMING: what comes was saved, as the client says */
    bool passed_on;   /* what is loaded was saved again, and not run */
    /* What it had before it loaded a state that was not run. */
    struct vm_identity before; /* its key zero behind a restart: another is made */
    /* ... and before it was reset, saved or with its addresses moved: 0, it was not. */
    uint64_t former[2], former_generation;
    gint64 claim_until; /* it waits for its addresses, or is to again; 0: not */
    gint64 stopped_at;  /* when it was last to stop, g_get_monotonic_time() */
    struct migration_status last;
};

/* Of @vm; made if there is none. */
struct migration *migration_get(struct vm *vm);
void migration_drop_streams(struct migration *m);
/* Something has come of a stream. */
void migration_came(struct migration *m);
/* Make room for @n more bytes, which the stream may have. */
bool migration_make_room(struct migration *m, uint64_t n);

#endif /* PVRDMAD_MIGRATION_INTERNAL_H */
