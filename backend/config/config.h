/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Configuration: the key file of pvrdmad and what is declared for each VM.
 *
 *   [daemon]            socket-dir, control-socket, workers, worker-priority,
 *                       poll-us, path (auto, tcp or rnic), log-level,
 *                       require-sealed (default true), max-mapped,
 *                       max-objects, listen, host-name,
 *                       peer-timeout, hold-timeout
 *   [vm NAME]           socket, uid, network, mac, addresses (';' list or "any"),
 *                       max-qp, max-cq, max-srq, max-mr, max-pd, max-mr-pages,
 *                       shares, max-memory, max-files, require-sealed, worker,
 *                       nic-rate, nic-dscp
 *   [network NAME]      worker, nic-rate, nic-dscp: of its VMs, unless their own groups
 *                       say otherwise
 *   [peer NAME]         address, secret-file, max-queued: another host's daemon
 *   [nic NAME]          device, address, fabric, networks, max-in-flight, max-requests:
 *                       an RDMA NIC of this host
 *
 * All numbers are range-checked here; later code relies on the limits below.
 * Unknown groups and keys are errors.  An error outside of [daemon] costs the group
 * it is in: the others are taken, but for VMs that would have needed what a [network]
 * group says.  Main thread only.
 */
#ifndef PVRDMAD_CONFIG_H
#define PVRDMAD_CONFIG_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/priority.h"
#include "base/log.h"
#include "pvrdma/abi.h"

/* All objects of all VMs have to fit into what a restart hands over (STATE_OUT_MAX). */
#define CONFIG_MAX_OBJECTS   (UINT64_C(3) << 29)
#define CONFIG_MAX_VMS       1024
#define CONFIG_MAX_WORKERS   64
#define CONFIG_MAX_POLL_US   100000000
#define CONFIG_MAX_ADDRESSES 256 /* of one VM */
#define CONFIG_MAX_UIDS      64  /* of one VM */
#define CONFIG_MAX_LISTEN    8
#define CONFIG_MAX_PEERS     256
#define CONFIG_MAX_NICS      16
#define CONFIG_MAX_DEVICE    63u  /* characters of an RDMA device's name */
#define CONFIG_MAX_HOLD      600u /* seconds */
#define CONFIG_PEER_PORT     14820
#define CONFIG_MIN_SECRET    16u /* bytes */
#define CONFIG_MAX_SECRET    4096u

/* Error domain of everything that an administrator gets told. */
#define PVRDMA_ERROR g_quark_from_static_string("pvrdma")

struct vm_config {
    char *name;    /* [A-Za-z0-9_.-]{1,63} */
    char *socket;  /* path */
    char *network; /* GIDs are unique within a network */
    bool any_address;
    struct pvrdma_gid *addresses; /* GIDs the VM may bind */
    unsigned n_addresses;
    bool has_mac; /* the guest NIC this device is paired with */
    uint8_t mac[6];
    uint32_t max_qp;       /* 2..65535, default 16384 */
    uint32_t max_cq;       /* 2..65535, default 16384 */
    uint32_t max_srq;      /* 2..65535, default 16384 */
    uint32_t max_mr;       /* 2..2^20, default 65536 */
    uint32_t max_pd;       /* 2..65535, default 8192 */
    uint32_t max_mr_pages; /* pages all MRs and rings may cover;
                              default 16 Mi (64 GiB) */
    uint32_t shares;     /* of its worker's time, and of NICs, beside others; 1..10000 */
    uint64_t max_memory; /* bytes of guest memory mapped; 2^20..2^46,
                            default 4 TiB */
    uint32_t max_files;  /* mappings of files that are guest memory; 1..1024,
                            default 64 */
    uint64_t workers;    /* that may serve it, a bit each; 0: any */
    bool own_workers;    /* so its group says, whatever its network's does */
    uint64_t nic_rate;   /* bytes/s that it may send by NICs of the host; 2^20..2^40,
                            0: as many as it can, default */
    uint32_t nic_dscp;   /* of its packets there; 0..63, default 0 */
    bool own_rate;       /* as own_workers */
    bool own_dscp;
    bool require_sealed; /* as daemon_config; default from there */
    bool any_uid;        /* default: whoever can open the socket */
    uint32_t *uids;      /* else: the users whose VMM is served */
    unsigned n_uids;
    bool from_file; /* declared by the key file, not by an administrator's command */
};

/* What is declared for a network; many have no such group. */
struct network_config {
    char *name;
    uint64_t workers; /* of its VMs; as in struct vm_config */
    uint64_t nic_rate;
    uint32_t nic_dscp;
    bool wrong; /* there is an error in its group */
};

_Static_assert(CONFIG_MAX_WORKERS <= 64, "a bit each");

/* Another host, whose daemon this one has a link to. */
struct peer_config {
    char *name; /* its host-name */
    struct sockaddr_storage address;
    char *secret_file;
    uint8_t *secret; /* what was in it */
    size_t secret_len;
    uint64_t max_queued; /* bytes of datagrams that may wait for it; 2^16..2^30,
                            default 4 MiB */
};

/* An RDMA NIC of this host, which the daemon may use. */
struct nic_config {
    char *name;
    char *device;              /* RDMA device, as `rdma link` shows it */
    struct pvrdma_gid address; /* IP address of its net device */
    char *fabric;              /* NICs of one fabric reach each other */
    char **networks;           /* whose VMs may use it; NULL: all */
    uint64_t max_in_flight;    /* bytes; 2^16..2^30, 0: by its rate, default */
    uint32_t max_requests;     /* in flight; 16..2^20, default 1024 */
};

/* A group of the key file that was left out. */
struct config_problem {
    char *name; /* of the VM, or the group's heading; printable */
    char *why;  /* with group and key */
};

#define VM_SHARES_DEFAULT 100u

/* What carries messages within this host: a memory copy, TCP, or channels and TCP. */
enum config_path { CONFIG_PATH_AUTO, CONFIG_PATH_TCP, CONFIG_PATH_RNIC };

struct daemon_config {
    char *socket_dir;            /* default /run/pvrdma */
    char *control_socket;        /* default SOCKET_DIR/control */
    unsigned workers;            /* default 1 */
    unsigned poll_us;            /* default 50 */
    enum config_path local_path; /* of connections within this host; default auto */
    struct priority worker_priority;
    bool require_sealed;  /* guest RAM must be a memfd sealed against shrinking */
    uint64_t max_mapped;  /* guest memory of all VMs, bytes of address space;
                             2^30..112 TiB, default 64 TiB */
    uint64_t max_objects; /* memory for objects of all VMs, bytes; 2^24..1.5 GiB, 0 is the
                             default: a quarter of the machine's, but no more */
    enum log_level log_level;
    struct sockaddr_storage listen[CONFIG_MAX_LISTEN]; /* for other hosts' daemons */
    unsigned n_listen;
    char *listen_text;     /* as it was given */
    char *host_name;       /* this host's; default: what gethostname(2) says */
    uint32_t peer_timeout; /* seconds of silence of a peer; 1..3600, default 5 */
    uint32_t hold_timeout; /* seconds that others wait for a VM that stands still;
                              1..600, default 600 */
    char *path;            /* the key file; NULL: none was looked for */
    bool no_file;          /* ... and it is not there */
    GList *networks;       /* of struct network_config */
    GList *vms;            /* of struct vm_config, in the file's order */
    GList *peers;          /* of struct peer_config, likewise */
    GList *nics;           /* of struct nic_config, likewise */
    GList *problems;       /* of struct config_problem, likewise; networks first */
    GList *warnings;       /* of char: what of the file may not be meant like that */
    unsigned fixed;        /* keys that the command line has set; config.c */
};

struct daemon_config *config_new(void);
void config_free(struct daemon_config *cfg);

/*
 * Set one key of [daemon].  @fixed: a later config_load() leaves it alone (the
 * command line wins over the file).
 */
bool config_set(struct daemon_config *cfg, const char *key, const char *value, bool fixed,
                GError **errp);

/* Derive what was not set (control_socket).  config_load() does so too. */
void config_complete(struct daemon_config *cfg);

/* Was @key set with @fixed? */
bool config_is_fixed(const struct daemon_config *cfg, const char *key);
/* The keys of @running that were. */
void config_take_fixed(struct daemon_config *cfg, const struct daemon_config *running);
/* What differs in @running but is set at start only: as there; a line of @notes each. */
void config_keep(struct daemon_config *cfg, const struct daemon_config *running,
                 GString *notes);

/* Set one key of [network NAME]; then, can @cfg do what it says? */
bool config_network_set(struct network_config *net, const char *key, const char *value,
                        GError **errp);
bool config_network_check(const struct daemon_config *cfg,
                          const struct network_config *net, GError **errp);

/*
 * Read @path into @cfg.  Returns false with errp naming group and key for an error in
 * [daemon] and for a file that cannot be read; what is wrong with other groups is in
 * cfg->problems.
 */
bool config_load(struct daemon_config *cfg, const char *path, GError **errp);

/* The same, but it may be that there is no such file: cfg->no_file. */
bool config_load_default(struct daemon_config *cfg, const char *path, GError **errp);

/*
 * Read the key file of @running anew.  @notes gets a line for each key of [daemon] that
 * has changed but can only be set at start.  Those have the values of @running in the
 * result.  NULL with errp.
 */
struct daemon_config *config_reload(const struct daemon_config *running, GString *notes,
                                    GError **errp);

/*
 * One VM from a key file group, or from `pvrdmactl vm add`.  Defaults depend on
 * cfg->socket_dir.
 */
struct vm_config *config_vm_new(const struct daemon_config *cfg, const char *name,
                                GError **errp);
bool config_vm_set(struct vm_config *vm, const char *key, const char *value,
                   GError **errp);
void config_vm_free(struct vm_config *vm);
/* @fn is called with each key of @vm, but with none that it has from its network. */
typedef void config_key_fn(void *opaque, const char *key, const char *value);
void config_vm_keys(const struct vm_config *vm, config_key_fn *fn, void *opaque);
/* Which those can be, a line each ("key NAME"). */
void config_vm_key_names(GString *text);

/*
 * All keys are set: add what @vm has from its network.  False: something keeps it from
 * being served by a daemon with @cfg.
 */
bool config_vm_finish(const struct daemon_config *cfg, struct vm_config *vm,
                      GError **errp);

/*
 * For a VM that was declared under an earlier @cfg: what it has from its network now, for
 * its next VMM.  As it was, if there is an error in that.
 */
void config_vm_follow(const struct daemon_config *cfg, struct vm_config *vm);

/* Workers that any network of @cfg names. */
uint64_t config_network_workers(const struct daemon_config *cfg);

/* The keys in which @a and @b, of the same name, differ, or NULL. */
char *config_vm_diff(const struct vm_config *a, const struct vm_config *b);

/* May a VMM of user @uid be served? */
bool config_vm_uid_ok(const struct vm_config *vm, uint32_t uid);

/* A number from @min to @max. */
bool config_parse_uint(const char *key, const char *value, uint32_t min, uint32_t max,
                       uint32_t *out, GError **errp);

/* Bytes: a number, with K, M, G or T after it for powers of 1024. */
bool config_parse_size(const char *key, const char *value, uint64_t min, uint64_t max,
                       uint64_t *out, GError **errp);

/* False, with "@key: @why" in errp. */
bool config_fail(GError **errp, const char *key, const char *why);

/* Was the group [@kind @name] left out, for an error in it? */
bool config_has_problem(const struct daemon_config *cfg, const char *kind,
                        const char *name);

/* ---- [nic NAME] ---- */

/* NULL with errp: that cannot be the name of one. */
struct nic_config *config_nic_new(const char *name, GError **errp);
bool config_nic_set(struct nic_config *nic, const char *key, const char *value,
                    GError **errp);
/* All keys are set.  False: something is missing or does not fit @cfg. */
bool config_nic_finish(const struct daemon_config *cfg, struct nic_config *nic,
                       GError **errp);
void config_nic_free(struct nic_config *nic);
bool config_nic_same(const struct nic_config *a, const struct nic_config *b);

/* ---- [peer NAME] ---- */

/* NULL with errp: that cannot be the name of one. */
struct peer_config *config_peer_new(const char *name, GError **errp);
bool config_peer_set(struct peer_config *peer, const char *key, const char *value,
                     GError **errp);
/* All keys are set: read the secret.  False: something is missing or does not fit @cfg.
 */
bool config_peer_finish(const struct daemon_config *cfg, struct peer_config *peer,
                        GError **errp);
void config_peer_free(struct peer_config *peer);
bool config_peer_same(const struct peer_config *a, const struct peer_config *b);

/* "10.0.0.1", "10.0.0.1:14820", "fd00::1", "[fd00::1]:14820"; no names. */
bool config_parse_address(const char *text, struct sockaddr_storage *address);
/* Is it the same address, whatever the port? */
bool config_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
bool config_any_host(const struct sockaddr_storage *address);
/* As config_parse_address() takes it, with the port. */
#define CONFIG_ADDRESS_STRLEN 56
void config_format_address(const struct sockaddr_storage *address,
                           char text[CONFIG_ADDRESS_STRLEN]);

/* Is @text [A-Za-z0-9_.-]{1,63}, and not "." or ".."? */
bool config_valid_name(const char *text);

/* Where users are looked up. */
extern const char *config_user_files[2];

/*
 * Parse "10.0.0.1" (IPv4-mapped GID), an IPv6 address / GID in text form, or a
 * MAC address "52:54:00:12:34:56" (its EUI-64 link-local GID).
 * False for anything else, for the unspecified address and for multicast.
 */
bool config_parse_gid(const char *text, struct pvrdma_gid *gid);

/* Text form of a GID: dotted for IPv4-mapped ones, else IPv6. */
#define CONFIG_GID_STRLEN 46
void config_format_gid(const struct pvrdma_gid *gid, char text[CONFIG_GID_STRLEN]);

#endif /* PVRDMAD_CONFIG_H */
