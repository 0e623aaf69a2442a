/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Several daemons, as on several hosts: each with an address of its own of the loopback.
 */
#ifndef HOSTS_H
#define HOSTS_H

#include "vgtest.h"

struct host_opts {
    unsigned n_vms;
    const char *daemon_keys; /* further lines of [daemon], or NULL */
    const char *vm_keys;     /* further lines of each [vm]; NULL: any addresses */
    const char *peer_keys;   /* further lines of each [peer], or NULL */
    const char *nic_keys;    /* further lines of [nic], or NULL */
    const char *groups;      /* further groups, or NULL */
    const char *secret;      /* NULL: hosts_secret */
    const char *name;        /* NULL: hostI */
    unsigned n_peers;        /* hosts 0 to n_peers - 1, but for itself, are its peers;
                              * 0: hosts_start() has all that it starts */
};

extern const char hosts_secret[];
/* The port of all of them; found free at the first use. */
unsigned hosts_port(void);
/* 127.A.B.(i + 1), of this program alone; to be freed. */
char *host_address(unsigned i);
/* It is @prefix and i + 1 from now on. */
void hosts_use_network(const char *prefix);
/* A file with @secret, until this program ends; its path. */
char *host_secret_file(const char *secret);
/* The group for host @peer; @more: further lines, or NULL. */
char *host_peer_group(unsigned peer, const char *secret_path, const char *more);

/* Host @i's daemon. */
struct vg_daemon *host_start(unsigned i, const struct host_opts *opts);
/* Hosts 0 to @n - 1, each with a link to each; and the end of those that are not NULL. */
void hosts_start(struct vg_daemon **host, unsigned n, const struct host_opts *opts);
void hosts_stop(struct vg_daemon **host, unsigned n);
/* The program's tests with host 0's daemon as vgt_daemon, and the end of all. */
int hosts_run(struct vg_daemon **host, unsigned n);
/* Wait until all have links to each other. */
void hosts_wait_up(struct vg_daemon *const *host, unsigned n);

/* `pvrdmactl peer list`: member @name of host @peer at @d, text or number. */
char *host_peer_text(const struct vg_daemon *d, unsigned peer, const char *name);
int64_t host_peer_int(const struct vg_daemon *d, unsigned peer, const char *name);
/* A number of "hosts". */
int64_t host_int(const struct vg_daemon *d, const char *name);
/* Wait until the link to host @peer is up, or is not. */
void host_wait_up(const struct vg_daemon *d, unsigned peer, bool up);
/* Wait until its member @name is at least @n. */
void host_wait_int(const struct vg_daemon *d, unsigned peer, const char *name, int64_t n);
/* Does the queue pair go by @transport? */
bool host_qp_by(const struct vg_qp *qp, const char *transport);
/* Do all queue pairs of side @i go by @transport? */
bool host_traffic_by(const struct vgt_traffic *t, unsigned i, const char *transport);
/* The first line of docs/hosts.md that has @words, without blanks around; to be freed. */
char *hosts_documented(const char *words);
/* Wait until @d's log has @words. */
void host_wait_logged(const struct vg_daemon *d, const char *words);

#endif /* HOSTS_H */
