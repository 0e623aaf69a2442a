/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The directory's engine `static`: the other hosts are the peers of the key file, and
 * each is asked.  transport/link/ brings the messages.  Main thread.
 */
#ifndef PVRDMAD_DIRECTORY_STATIC_H
#define PVRDMAD_DIRECTORY_STATIC_H

#include "directory/directory.h"

/* Put a message on the link to @peer; false: it is down, or too much waits for it. */
struct static_ops {
    bool (*ask)(struct peer *peer, const char *network, const struct pvrdma_gid *gid);
    bool (*claim)(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                  const struct claim *claim, uint64_t hold_ns);
    bool (*unclaim)(struct peer *peer, const char *network, const struct pvrdma_gid *gid);
    bool (*hold)(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                 uint64_t hold_ns);
    /* Another host's, which goes on where what the peer has claimed does not. */
    bool (*rival)(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                  const struct claim *claim);
    /* End the link and begin a new one; may call static_peer_down(). */
    void (*reset)(struct peer *peer);
};

/* Becomes the directory's engine; 0 or an errno. */
int static_start(const struct static_ops *ops);
void static_stop(void);
/* Is there anything that has become of this host's addresses and @peer, which knew of
 * them, was not told yet? */
bool static_owes(struct peer *peer);

/*
 * The link to @peer is there; it is lost, but may come back; the peer will not, or is not
 * in the key file any more, and nothing it said holds.  @name stays valid.
 */
void static_peer_up(struct peer *peer, const char *name);
void static_peer_down(struct peer *peer);
void static_peer_gone(struct peer *peer);
/* It has been away for too long: directory_abandon(). */
uint64_t static_peer_away(struct peer *peer);

/* What came from @peer; @network is as it came, any string. */
void static_asked(struct peer *peer, const char *network, const struct pvrdma_gid *gid);
void static_claimed(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                    const struct claim *claim, uint64_t hold_ns);
/* Not its own, but of a host that has no link here. */
void static_rival(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                  const struct claim *claim);
void static_unclaimed(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid);
void static_held(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                 uint64_t hold_ns);

#endif /* PVRDMAD_DIRECTORY_STATIC_H */
