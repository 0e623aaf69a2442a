/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A network that the test makes worse at will: a relay between host 0 and host 1, by
 * which all goes that they say to each other.
 */
#ifndef RELAY_H
#define RELAY_H

#include "hosts.h"

struct relay;

struct relay_opts {
    unsigned chunk; /* bytes at once, at most; 0: what there is */
    unsigned pause_us;
    int buffer; /* of its sockets, each; 0: the kernel's choice */
    int mss;    /* of their connections; 0: likewise */
    /* Bytes of a connection until it is reset or, as often, closed, on average; 0: never.
     */
    uint64_t reset_after;
    uint64_t reset_early; /* ... of every second one, at most; 0: as the others */
};

/* Who hears that a connection was cut; the other one hears nothing any more. */
enum relay_hears { RELAY_CALLER = 1, RELAY_CALLEE = 2, RELAY_BOTH = 3 };
/* Where iWARP connections are cut, while they start. */
struct relay_start_cut {
    bool back;      /* of what the callee sends, else of what the caller does, */
    uint64_t bytes; /* so many go on, and it is cut when one more comes */
    enum relay_hears hears;
};

/*
 * How many iWARP connections it has reset (RST), and how many others it has just closed,
 * by reset_after; and how many bytes of them it has carried.
 */
unsigned relay_resets(const struct relay *r);
unsigned relay_closes(const struct relay *r);
uint64_t relay_carried(const struct relay *r);
/* No byte of an iWARP connection goes on, but nothing is closed. */
void relay_stall(struct relay *r, bool on);
/* The same of what host @host sends. */
void relay_stall_from(struct relay *r, unsigned host, bool on);
/*
 * What becomes of those that come from now on, NULL: nothing; and how many there were:
 * reset or, every second one, closed.
 */
void relay_cut_starts(struct relay *r, const struct relay_start_cut *cut);
unsigned relay_starts_cut(const struct relay *r);
/* Nobody listens: whoever calls is refused. */
void relay_refuse(struct relay *r, bool on);
/* The iWARP connections that there are, are reset. */
void relay_reset(struct relay *r);
/* All that there is, is closed, and what comes is, too. */
void relay_cut(struct relay *r, bool on);
/* Host @i's daemon, which knows the other one by the relay. */
struct vg_daemon *relay_host(unsigned i, struct host_opts o);
/* The relay and both hosts, whose link is up; and the end of the three. */
struct relay *relay_hosts(struct vg_daemon **host, const struct relay_opts *r,
                          const struct host_opts *o);
void relay_hosts_stop(struct relay *r, struct vg_daemon **host);

#endif /* RELAY_H */
