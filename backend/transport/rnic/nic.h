/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The RDMA NICs of this host that the daemon may use: one for each [nic NAME] group of
 * the key file, opened, watched, closed and opened again.  nic.c
 *
 * Main thread only.
 */
#ifndef PVRDMAD_RNIC_NIC_H
#define PVRDMAD_RNIC_NIC_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/log.h"
#include "config/config.h"
#include "transport/rnic/control.h"
#include "transport/rnic/verbs.h"

enum rnic_state {
    RNIC_NIC_ABSENT,  /* not open: no device, or it cannot be had */
    RNIC_NIC_OPENING, /* not open yet */
    RNIC_NIC_UP,
    RNIC_NIC_DOWN,    /* open, but its port is down or the address is not on it */
    RNIC_NIC_RESTING, /* not open: it failed twice within RNIC_REST_MS */
    RNIC_NIC_CLOSING, /* for good, for a change of its group, or for a restart */
};

#define RNIC_REASON_LEN 200u

/* What is known of an open device. */
struct rnic_device {
    struct ibv_context *ctx; /* NULL: it is not open, and the rest says nothing */
    const char *kind;        /* "RoCE" ...; NULL: it could not be asked */
    bool ethernet;           /* its GIDs are the addresses of its net device */
    bool atomics;
    ino_t folder; /* of its device file, in sysfs; 0: it was not seen */
    unsigned port;
    unsigned mtu;       /* bytes */
    unsigned max_reads; /* of one queue pair under way */
    uint64_t mbit_s;    /* of the port; 0: it does not say */
};

/* nic.c alone writes to it. */
struct rnic_nic {
    struct nic_config *cfg;
    enum rnic_state state;
    char reason[RNIC_REASON_LEN]; /* "": nothing is wrong */
    gint64 since;                 /* monotonic us: that it has this state */
    struct rnic_device dev;
    struct rnic_control *control;
    uint32_t events, failures;
    /* inside nic.c */
    struct log_subject log;
    struct nic_config *next; /* what cfg is to be; NULL: it stays */
    guint watch;             /* of dev's events */
    gint64 failed_at;        /* monotonic us; 0: never */
    gint64 not_before;       /* it is looked at */
    bool gone;               /* its group is */
    bool fatal;              /* the device says so */
    bool busy;               /* a job is under way */
    bool kicked;             /* there is something to do */
    struct coro *nap;        /* it sleeps */
    guint nap_timer, late_timer;
    /* cm.c's */
    struct rnic_cm *cm; /* NULL: it is not used */
    bool cm_failed;     /* it could not be, and that was said */
    /* A list of the connection manager's context of the device, which keeps it; NULL: it
     * was not used since it was opened. */
    struct ibv_context **held;
};

/* Who uses NICs. */
struct rnic_nic_ops {
    /* It was looked at, and may be another than before. */
    void (*seen)(struct rnic_nic *nic);
    /*
     * It is about to be closed, and nothing is to use it any more when this returns.
     * @gone: there is no such device any more.  In a coroutine; it ends when the control
     * threads are given up at the latest.
     */
    void (*give_up)(struct rnic_nic *nic, bool gone);
    /* Another number than before, if give_up() gets on. */
    unsigned (*progress)(const struct rnic_nic *nic);
};

/* How often the device is looked at, besides when it or a port has an event. */
#define RNIC_LOOK_MS 1000u
/* A NIC that fails twice within this time is left alone for as long. */
#define RNIC_REST_MS 60000u
/* One that cannot be opened within this time has not failed again. */
#define RNIC_SAME_MS 10000u
/* A call that takes longer is reported. */
#define RNIC_LATE_MS 10000u

/*
 * How long closing may take: until nothing has come of it for so long, or RNIC_CLOSES
 * times as long, for thousands of channels.  libibverbs waits 5 s for udev when it may
 * not open one.
 */
#define RNIC_CLOSE_MS 6000u
#define RNIC_CLOSES   5u

/* @ops stay valid; NULL: nobody.  While there are no NICs. */
void rnic_nics_set_ops(const struct rnic_nic_ops *ops);
/* Take the NICs of @cfg.  Outside of coroutines. */
void rnic_nics_start(struct daemon_config *cfg);
/* The same, for those whose groups are new, removed or changed; @say gets a line about
 * each, to be freed. */
void rnic_nics_reload(struct daemon_config *cfg, void (*say)(void *opaque, char *line),
                      void *opaque);
/* Close all.  One that does not let itself be closed is left behind, at once if they are
 * suspended.  Outside of coroutines. */
void rnic_nics_stop(void);

/*
 * Close all before another program takes this one's place: execve() would wait for calls
 * that are under way, and for the kernel to take the NICs' objects apart, while all VMs
 * stand still.  False with errp: one does not let itself be closed, or there is no time
 * (@at_once, which is asked again and again).  Either way none is opened before
 * rnic_nics_resume().  In a coroutine.
 */
bool rnic_nics_suspend(bool (*at_once)(void), GError **errp);
void rnic_nics_resume(void);

/* The one after @nic, NULL: the first; NULL: there are no more.  It may go when the main
 * loop turns. */
struct rnic_nic *rnic_nic_next(struct rnic_nic *nic);
const char *rnic_state_name(enum rnic_state state);

/* For tests: other times than these. */
extern unsigned rnic_look_ms, rnic_rest_ms, rnic_same_ms, rnic_late_ms, rnic_close_ms;

#endif /* PVRDMAD_RNIC_NIC_H */
