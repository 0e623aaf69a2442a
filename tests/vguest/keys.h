/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keys that come and go while a guest moves: of a window, or a fast registration.
 *
 * Everything here aborts the test on a surprise.
 */
#ifndef KEYS_H
#define KEYS_H

#include "vgtest.h"

#define KEY_LEN 40000u

/* What gives the peer a key for side 1's region: a window, or a fast registration. */
struct key {
    struct vg_mr *mr;
    uint32_t handle, rkey; /* of the window */
    bool fast;
};

/* ->fast is set. */
void key_open(struct key *k, struct vgt_side *s);
void key_close(struct key *k, struct vgt_side *s);
/*
 * The key is made, used and taken away, by the peer or by its owner; @when: after which
 * of these three requests was posted @move is called.
 */
void key_round(struct vgt_pair *p, struct key *k, void (*move)(void *), void *opaque,
               unsigned when, bool by_peer);
/* What was taken away is dead; so are the two queue pairs then. */
void key_dead(struct vgt_pair *p, struct key *k);

#endif /* KEYS_H */
