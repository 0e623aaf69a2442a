/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What a guest shares with its VMM goes from one daemon to the next.  restart.c */
#ifndef PVRDMAD_GUEST_RESTART_H
#define PVRDMAD_GUEST_RESTART_H

#include <stdbool.h>

#include "handover/handover.h"

struct guest;

/* False: some of its memory could not be mapped again.  Of one that is attached. */
bool guest_can_hand_over(struct guest *g);
/* Of one that can be. */
void guest_hand_over(struct guest *g, struct handover_out *h);

/*
 * The same, in this order: the doorbells, before the guest's VM is attached with
 * *eventfd; the rest, before its device is loaded; then doorbells_adopt(*memfd).
 * guest_adopt_doorbells() makes both the caller's; false: it has failed, and closed them.
 */
bool guest_adopt_doorbells(struct handover_in *h, struct state_in *s, int *memfd,
                           int *eventfd);
void guest_adopt(struct guest *g, struct handover_in *h, struct state_in *s);

#endif /* PVRDMAD_GUEST_RESTART_H */
