/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What guests' memory may take of the daemon's address space, bytes and mappings, per
 * guest and in all; and what guests' objects may take of its memory, in all.  budget.c
 * has the rules.
 */
#ifndef PVRDMAD_GUEST_BUDGET_H
#define PVRDMAD_GUEST_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* Guests among whom the reserved half of the daemon's budget is shared out. */
#define BUDGET_SHARES 1024u

/* Defaults of max-mapped, max-memory and max-files. */
#define BUDGET_DAEMON_BYTES (UINT64_C(64) << 40)
#define BUDGET_GUEST_BYTES  (UINT64_C(4) << 40)
#define BUDGET_GUEST_FILES  64u

/* Default of max-objects: a part of the machine's memory. */
#define BUDGET_OBJECTS_PART 4u

/* A guest's account; opaque, counted, outlives the guest. */
struct budget;

struct budget_stats {
    uint64_t bytes;     /* taken, pending ones included */
    uint64_t mappings;  /* likewise */
    uint64_t pending;   /* bytes out of use, but not unmapped yet */
    uint64_t max_bytes; /* of the daemon; 0: of a guest */
    uint64_t max_mappings;
};

/* The daemon's budget; before the first guest.  Not called: the default. */
void budget_set_daemon(uint64_t max_bytes);
void budget_get_daemon(struct budget_stats *st);

struct budget *budget_new(void);
struct budget *budget_ref(struct budget *b);
void budget_unref(struct budget *b); /* NULL: nothing */
void budget_set(struct budget *b, uint64_t max_bytes, uint64_t max_mappings);
void budget_get(struct budget *b, struct budget_stats *st); /* NULL: zeros */

/*
 * Take one mapping of @bytes.  Returns NULL, or why that is refused (a string
 * literal that names the key to raise).
 */
const char *budget_take(struct budget *b, uint64_t bytes);

/* Whoever asks gets it, of all of this, as another daemon had let it; or no more. */
void budget_trust(bool yes);

/* @bytes are out of use: pending from now on. */
void budget_retire(struct budget *b, uint64_t bytes);

/* They are in use again. */
void budget_unretire(struct budget *b, uint64_t bytes);

/* @bytes pending ones are unmapped, @mappings mappings with them. */
void budget_give(struct budget *b, uint64_t bytes, unsigned mappings);

/*
 * Memory for guests' objects, their lists of pages above all: what the daemon may have in
 * all; before the first guest, 0 or not called: the default.
 */
void budget_set_objects(uint64_t max_bytes);
/* False: there is no room, and that is counted. */
bool budget_take_objects(struct budget *b, uint64_t bytes);
void budget_give_objects(struct budget *b, uint64_t bytes);

struct budget_objects {
    uint64_t bytes;
    uint64_t refused;   /* times */
    uint64_t max_bytes; /* of the daemon; 0: of a guest */
};
void budget_get_objects(struct budget *b, struct budget_objects *st); /* NULL: zeros */
void budget_get_daemon_objects(struct budget_objects *st);

/* Is so much pending that the guest must not come again, or map more? */
bool budget_piled_up(struct budget *b);

#endif /* PVRDMAD_GUEST_BUDGET_H */
