/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * One vfio-user connection: what its parts share.  Private to frontend/, its
 * tests and fuzz targets.  Main thread only.
 */
#ifndef PVRDMAD_CONN_H
#define PVRDMAD_CONN_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "frontend/pci_config.h"
#include "guest/irq.h"
#include "handover/handover.h"
#include "pvrdma/abi.h"
#include "pvrdma/vfio_user.h"

struct vm;
struct discard;
struct vfu_listener;

/* Largest message: before VERSION, and after it (data and its heads). */
#define VFU_MAX_FIRST_MSG 4096u
#define VFU_MAX_MSG       (VFIO_USER_MAX_DATA + 64u)

/* Replies that may wait for a slow client, in bytes; then it is dropped. */
#define VFU_MAX_QUEUE (4u << 20)

/* One wake-up handles at most so many messages, and stops after so many bytes,
 * so that a flood of one VM does not hold up the others. */
#define VFU_WAKEUP_MSGS  64u
#define VFU_WAKEUP_BYTES (1u << 20)
/* ... or when it has worked that long, in us. */
#define VFU_WAKEUP_US 1000

/* Bytes that are taken from a client whose connection is closed. */
#define VFU_MAX_DRAIN (1u << 20)

/* Seconds between connecting and VERSION. */
#define VFU_VERSION_TIMEOUT 10

/* A complete message.  fds[] not taken by the handler (by setting it to -1) are
 * closed after it. */
struct vfu_msg {
    struct vfio_user_hdr hdr;
    const uint8_t *body;
    uint32_t len; /* of body */
    int *fds;
    unsigned nfds;
    bool fds_lost; /* it had more, for which the daemon had no descriptors */
};

/* A reply's payload in the making. */
struct vfu_reply {
    uint8_t *data; /* small or allocated */
    uint32_t len;
    int fd; /* goes along; borrowed; -1: none */
    uint8_t small[160];
};

/* Leaves small[] alone: vfu_reply_alloc() clears what is used of it. */
static inline void vfu_reply_init(struct vfu_reply *r)
{
    r->data = NULL;
    r->len = 0;
    r->fd = -1;
}

/* What could not be sent at once. */
struct out_msg {
    uint32_t len, sent;
    int fd; /* goes with the first byte; borrowed; -1: none, or gone already */
    uint8_t data[];
};

/* What the client said in VERSION. */
struct vfu_client {
    uint32_t max_msg_fds; /* fds it takes per message */
};

struct vfu_conn {
    struct vm *vm;
    int fd;
    guint in_source; /* for reading; while parked for the client's end alone */
    guint out_source, timer, thaw_source;
    bool busy;          /* a message is in work: do not free */
    bool parked;        /* and it waits; nothing is read meanwhile */
    bool ending;        /* being closed */
    bool frozen;        /* nothing is read, nor sent but what does not wait */
    gint64 later_until; /* us; its messages took long: they queue up, see conn.c */
    const char *why;    /* set: to be closed for this reason */
    bool eof;           /* the reason is the client's leave, not an offence */
    bool unframed;      /* where the next message begins is not known */
    bool version_done;
    int log_fd; /* of the dirty log that the client was given last; -1: none */
    struct vfu_client client;
    struct pci_config pci;
    uint8_t msix_table[16 * IRQ_VECTORS]; /* what was written to BAR0 */

    /* The message being received. */
    struct vfio_user_hdr hdr;
    uint32_t hdr_got;
    uint8_t *body; /* small or allocated */
    uint32_t body_got;
    int fds[VFIO_USER_MAX_FDS];
    unsigned nfds;
    bool fds_lost;
    uint8_t small[512];

    /* Replies not sent yet. */
    GQueue queue; /* of struct out_msg */
    uint32_t queued;

    GQueue waiting; /* of struct coro, for its end */

    uint64_t lost_errors; /* of commands that wanted no reply */
};

/* @c has given @fd to its client, of a dirty log; no reply waits that names the former.
 */
void conn_keep_log(struct vfu_conn *c, int fd);

/*
 * Answer the VERSION of the client at @fd (taken over) with @err, and close it; @why is
 * for the log.  refuse.c
 */
void refuse_client(struct vm *vm, int fd, int err, const char *why);
/* The same without an answer, for one that is found when nobody is accepted any more. */
void refuse_unheard(struct vm *vm, int fd);
/* Are there too many already that cannot be closed? */
bool refuse_full(const struct vm *vm);
/* What cannot be closed is here; NULL: nothing was refused yet. */
struct discard **refusals_discard(struct vm *vm, bool make);
/* Those that are still waited for are closed. */
void refuse_end(struct vm *vm);

/* Of each client's socket, before anything is read from it. */
void conn_no_urgent(int fd);

/*
 * One that nothing is read from until conn_thaw().  A message in work goes on, unless it
 * waits for what takes long: that is put back, to be carried out behind conn_thaw().
 * Whoever has vm->ops of one that is frozen knows that no message is in work.
 */
struct vfu_conn *conn_new_frozen(struct vm *vm, int fd);
void conn_freeze(struct vfu_conn *c);
void conn_thaw(struct vfu_conn *c);

/* ---- framing.c ---- */

/* Receive what is there of one message.  RECV_SOME: it is complete. */
enum received { RECV_NONE, RECV_SOME, RECV_BAD };
enum received conn_recv(struct vfu_conn *c);
/* A header is complete: is it one we can go on with?  Gets room for the body. */
bool conn_begin_body(struct vfu_conn *c);
/* Make ready for the next message. */
void conn_end_message(struct vfu_conn *c);
/* Take what there is to read, and close the descriptors that come along. */
void conn_discard_input(struct vfu_conn *c);

/* sendmsg() of up to two pieces; returns bytes sent, 0 if it would block. */
ssize_t conn_send(struct vfu_conn *c, struct iovec *iov, unsigned n, int fd);
/* Send a reply to the command @hdr, an error if @err is not 0. */
void conn_reply(struct vfu_conn *c, const struct vfio_user_hdr *hdr, int err,
                const struct vfu_reply *r);
/* Send what waits when the socket takes it. */
void conn_send_queue(struct vfu_conn *c);

/* ---- conn.c ---- */

/*
 * Has the VM a connection?  If its client has ended it, closes it.  CONN_LEAVING: it
 * is being closed; frontend_conn_gone() follows.
 */
enum conn_state { CONN_NONE, CONN_LEAVING, CONN_THERE };
enum conn_state conn_look(struct vm *vm);

/* The VM's connection is gone, after a fault if @faulted.  listen.c */
void frontend_conn_gone(struct vfu_listener *l, bool faulted);

/*
 * Close a descriptor that a client sent, without waiting for it.  @d: the VM's
 * struct vm.discard.  fd_reaper.c
 */
void discard_fd(struct discard **d, int fd);
/* The same of clients that are not served, with threads of their own. */
void discard_refused_fd(struct discard **d, int fd);
/* So many threads, of VMs and of those. */
extern unsigned discard_max_closers[2];
/* Parts of frontend_closing_*(); @d may be NULL but where it is taken over. */
void discard_see_to(struct discard *d);
void discard_hand_over(struct discard *d, struct handover_out *h);
void discard_take_over(struct discard **d, bool refused, struct handover_in *h,
                       struct state_in *s);
/* Do so many closings still wait that the VM must not send more? */
bool discard_full(const struct discard *d);

/*
 * Close for @why (a string literal).  It is gone when the message in work and the
 * detach are done; in a coroutine that can be on return.
 */
void conn_close(struct vfu_conn *c, const char *why);

/* Zeroed payload of @len bytes, or NULL: no memory.  Once per reply. */
void *vfu_reply_alloc(struct vfu_reply *r, uint32_t len);

/*
 * Of one command; the fixed part of @m is there.  0, with the payload in @r, or a
 * positive errno, which is the answer.
 */
typedef int vfu_handler(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);

/*
 * Carry out one command and answer it.  False: nothing is answered, the message is to be
 * carried out again (VFU_AGAIN).  vfio_user.c
 */
bool vfu_dispatch(struct vfu_conn *c, const struct vfu_msg *m);
/* What a handler returns then: of a connection that is frozen. */
#define VFU_AGAIN ERESTART
/* Can that wait or take long?  Then it needs a coroutine and vm->ops. */
bool vfu_may_wait(const struct vfu_msg *m);

/*
 * VERSION (version.c).  Returns NULL, or why the client cannot be served.  The
 * answer never is longer than the request.
 */
const char *vfu_version(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r);

/* Regions (regions.c). */
vfu_handler region_info, region_io_fds;
/* What goes along with BAR1; one for the process, or -1. */
int region_empty_memfd(void);
/* May [offset, offset + count) of @region be accessed? */
int region_check(uint32_t region, uint64_t offset, uint64_t count, bool write);
/* The access was checked.  @posted: nobody waits for the write's answer. */
void region_read(struct vfu_conn *c, uint32_t region, uint64_t offset, uint32_t count,
                 uint8_t *data);
void region_write(struct vfu_conn *c, uint32_t region, uint64_t offset, uint32_t count,
                  const uint8_t *data, bool posted);

/* SET_IRQS (set_irqs.c).  Takes the fds that it assigns. */
vfu_handler vfu_set_irqs;

#endif /* PVRDMAD_CONN_H */
