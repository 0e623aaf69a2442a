/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Three figures of SENDs between two ends that one thread drives, whatever the ends are:
 * queue pairs of virtual guests (guests.c) or of a NIC (verbs.c).  So they are measured
 * alike and can be compared.
 */
#ifndef SENDS_H
#define SENDS_H

#include <stdbool.h>
#include <stdint.h>

#define SENDS_BATCH 64u    /* most that are posted at once */
#define SENDS_DEPTH 1024u  /* of each queue */
#define SENDS_SMALL 8u     /* bytes of the short messages, which are sent inline */
#define SENDS_BYTES 65536u /* of the long ones, and of each receive */
#define SENDS_SLOTS 16u    /* of SENDS_BYTES each, in the buffer of an end */

/* An end; each is connected to the other.  What fails ends the program. */
struct sends_ops {
    /* @n messages of @len bytes from slot @slot, the last of them signalled. */
    void (*send)(void *end, unsigned n, uint32_t len, unsigned slot);
    /* @n receives of SENDS_BYTES into slot @slot. */
    void (*receive)(void *end, unsigned n, unsigned slot);
    /* Take completions, at most SENDS_BATCH: of signalled SENDs, of receives. */
    unsigned (*sent)(void *end);
    unsigned (*received)(void *end);
};

/*
 * To stdout, each from @seconds:
 *
 *     latency L      us of a message of 8 bytes: half of the median round trip
 *     rate R         such messages a second from @a to @b, many under way
 *     bandwidth B    MB/s of messages of 64 KiB, 16 under way
 */
void sends_measure(const struct sends_ops *ops, void *a, void *b, double seconds);

#endif /* SENDS_H */
