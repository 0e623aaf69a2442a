/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A daemon with VMs, and two made-up hosts that claim addresses as they like.
 * Everything here aborts the test on a surprise.
 */
#ifndef CLAIMS_H
#define CLAIMS_H

#include "fakehost.h"
#include "ud.h"

extern struct fake claims_host[3]; /* [1] and [2] are hosts; fd 0: no link */

/* vgt_daemon, with four VMs; and its end, and that of the links. */
void claims_begin(const char *keys);
void claims_end(void);
/* What is said at once is heard. */
void claims_begin_link(unsigned i);
void claims_link_up(unsigned i);
/* A number of `pvrdmactl status`. */
int64_t claims_status(const char *group, const char *name);

/* ---- what host @i says ---- */

struct peer_claim claims_make(const struct pvrdma_gid *gid, uint64_t owner,
                              uint64_t generation);
void claims_say(unsigned i, enum peer_msg_type type, struct peer_claim c);
void claims_ask(unsigned i, const struct pvrdma_gid *gid);
/* The daemon has dealt with all that was said. */
void claims_settle(unsigned i);

/* ---- what it hears ---- */

/* The next message, which is no ping. */
struct peer_msg claims_next(unsigned i);
/* That of a VM whose state was saved, as for a restart, comes with a proof. */
bool claims_is(const struct peer_msg *m);
struct peer_claim claims_hear(unsigned i, enum peer_msg_type type,
                              const struct pvrdma_gid *gid);
/* Behind whatever else is said. */
void claims_hear_ask(unsigned i, const struct pvrdma_gid *gid);

/* ---- VMs ---- */

/* A UD QP in RTS. */
void claims_ud_side(struct vgt_side *s, unsigned vm);
/* Connected, if there is anybody at @far. */
void claims_rc_side(struct vgt_side *s, unsigned vm, const struct pvrdma_gid *far);

#endif /* CLAIMS_H */
