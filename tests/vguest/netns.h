/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Daemons that have real networks between them: each host is a network namespace, with a
 * TUN device on a wire that this program is, and that it makes worse at will.
 *
 * From netns_new() on host addresses (hosts.h) are those of the wire.  Nothing of it is
 * left when the program has ended, however that was.
 */
#ifndef NETNS_H
#define NETNS_H

#include "hosts.h"

#define NETNS_MAX_HOSTS 4u

struct netns;

/* What becomes of a packet, of 1000: of each kind, independently. */
struct netns_faults {
    unsigned lost, twice, late;
    unsigned late_us; /* at most; those behind it are ahead of it then */
};

/* Packets so far. */
struct netns_counts {
    uint64_t carried, lost, twice;
    uint64_t overtaken; /* that another one of the same way was put ahead of */
    uint64_t cut;       /* while a host was cut off, or its link down */
};

/* NULL, or why there can be none here: to be freed, for g_test_skip(). */
char *netns_why_not(void);
/* @n hosts, 0 to @n - 1. */
struct netns *netns_new(unsigned n);
void netns_free(struct netns *w);

/* Host @i's daemon: host_start() there; and all of them, as hosts_start() does. */
struct vg_daemon *netns_host(struct netns *w, unsigned i, const struct host_opts *opts);
void netns_hosts(struct netns *w, struct vg_daemon **host, const struct host_opts *opts);

/* A shell's @command in host @i; true: it ends with 0. */
bool netns_run(struct netns *w, unsigned i, const char *command);
/* Somebody listens there at @port, for netns_calls(); to be closed. */
int netns_listen(struct netns *w, unsigned i, unsigned port);
/* Does host @to let host @i connect to @port, within @ms? */
bool netns_calls(struct netns *w, unsigned i, unsigned to, unsigned port, int ms);

/* Host @i's device is taken down, and up again: its kernel knows. */
void netns_link(struct netns *w, unsigned i, bool up);
/* What it sends, and what is sent to it, is lost on the wire: nobody knows. */
void netns_cut(struct netns *w, unsigned i, bool on);
/* What all send waits in their devices, in its order; some hundred packets of each. */
void netns_hold(struct netns *w, bool on);
void netns_set_faults(struct netns *w, const struct netns_faults *f);
struct netns_counts netns_count(struct netns *w);
/* What host @i's kernel has counted of TCP: "RetransSegs", "ActiveOpens", ... */
uint64_t netns_tcp(struct netns *w, unsigned i, const char *name);

#endif /* NETNS_H */
