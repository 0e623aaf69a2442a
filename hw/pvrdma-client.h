/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vfio-user client of the pvrdma device: the connection and its messages.
 *
 * See pvrdma-client.c for the theory of operation.  All functions must be
 * called with the BQL held.
 */
#ifndef HW_RDMA_PVRDMA_CLIENT_H
#define HW_RDMA_PVRDMA_CLIENT_H

#include "qapi/error.h"
#include "qapi/qapi-types-sockets.h"
#include "pvrdma/vfio_user.h"

/*
 * The waits of one transaction end after this time in all, and the client has
 * failed.
 */
#define PVRDMA_CLIENT_TIMEOUT_MS 5000

/* Requests that may be under way at once. */
#define PVRDMA_CLIENT_PIPELINE 64

/**
 * PVRDMALostFn - called when a watched connection is lost
 * @gone: the daemon has closed its end, so it has let go of guest memory.  If
 *        it has not, a second call tells when it does.
 *
 * Must not free the client.
 */
typedef void PVRDMALostFn(void *opaque, const char *reason, bool gone);

/* Called when a daemon has answered VERSION, or has closed its end. */
typedef void PVRDMAAnswerFn(void *opaque);

typedef struct PVRDMAClient PVRDMAClient;

/**
 * struct PVRDMAReply - where a reply goes
 * @data: buffer for the payload (what follows the message header)
 * @max: size of @data; a longer reply is a protocol violation
 * @len: length of the payload received
 * @fds: file descriptors received, owned by the caller
 * @max_fds: how many the caller takes (<= VFIO_USER_MAX_FDS); more are a
 *           protocol violation
 * @nfds: how many came
 */
typedef struct PVRDMAReply {
    void *data;
    size_t max;
    size_t len;
    int fds[VFIO_USER_MAX_FDS];
    size_t max_fds;
    size_t nfds;
} PVRDMAReply;

/**
 * pvrdma_client_connect: connect to the daemon and negotiate the protocol
 * @addr: the VM's socket: its path, or a connected socket
 * @name: how messages call the device
 * @vm_name: the VM's name for hints in error messages, or NULL
 *
 * Returns: the client, or NULL with @errp set.
 */
PVRDMAClient *pvrdma_client_connect(SocketAddress *addr, const char *name,
                                    const char *vm_name, Error **errp);
void pvrdma_client_free(PVRDMAClient *c);

/**
 * pvrdma_client_start: begin to connect to a UNIX socket, without waiting
 * @fn: called from the main loop, once, when pvrdma_client_agree() is due;
 *      never from here, and not after pvrdma_client_free().  May free it
 *
 * Returns: the client, for pvrdma_client_agree() or pvrdma_client_free() and
 * nothing else, or NULL with @errp set.
 */
PVRDMAClient *pvrdma_client_start(SocketAddress *addr, const char *name,
                                  PVRDMAAnswerFn *fn, void *opaque,
                                  Error **errp);
/* The second step: false, with @errp set, if there is no agreement. */
bool pvrdma_client_agree(PVRDMAClient *c, Error **errp);

/**
 * pvrdma_client_watch: report the loss of the connection from now on
 *
 * A loss is noticed at once, even if no message is under way.
 */
void pvrdma_client_watch(PVRDMAClient *c, PVRDMALostFn *fn, void *opaque);

/*
 * Make what is done between the two one transaction, with one time limit.  A
 * request outside of them is a transaction of its own.  Nests.
 */
void pvrdma_client_begin(PVRDMAClient *c);
void pvrdma_client_end(PVRDMAClient *c);

/* Is the connection lost?  All calls fail at once with -EIO then. */
bool pvrdma_client_lost(const PVRDMAClient *c);

/*
 * Has the daemon closed its end, or said that the VM has another client?  That
 * may pass.
 */
bool pvrdma_client_turned_away(const PVRDMAClient *c);

/* Why it is lost, or NULL. */
const char *pvrdma_client_reason(const PVRDMAClient *c);

/* Descriptors per message that the daemon takes. */
size_t pvrdma_client_max_fds(const PVRDMAClient *c);

/* Bytes of data per message that the daemon takes, and we do. */
uint32_t pvrdma_client_max_data(const PVRDMAClient *c);

/**
 * pvrdma_client_request: send a command and wait for its reply
 * @iov: payload
 * @fds: descriptors that go along, still owned by the caller
 * @reply: NULL if the reply has no payload
 *
 * Returns: 0; the daemon's errno (negative) if it refused; -EIO if the
 * connection is or was lost.
 */
int pvrdma_client_request(PVRDMAClient *c, uint16_t command,
                          const struct iovec *iov, size_t niov,
                          const int *fds, size_t nfds, PVRDMAReply *reply);

/**
 * pvrdma_client_send: the first half of pvrdma_client_request()
 *
 * At most PVRDMA_CLIENT_PIPELINE requests may wait for pvrdma_client_collect().
 */
int pvrdma_client_send(PVRDMAClient *c, uint16_t command,
                       const struct iovec *iov, size_t niov,
                       const int *fds, size_t nfds);

/* The second half, for the oldest request that was sent. */
int pvrdma_client_collect(PVRDMAClient *c, PVRDMAReply *reply);

/* Send a command that the daemon does not answer. */
void pvrdma_client_post(PVRDMAClient *c, uint16_t command,
                        const struct iovec *iov, size_t niov);

/**
 * pvrdma_client_fail: give up a connection whose daemon broke the protocol
 *
 * For callers that find a reply's contents impossible.  The daemon is told to
 * let go of the VM.
 */
void pvrdma_client_fail(PVRDMAClient *c, const char *fmt, ...)
    G_GNUC_PRINTF(2, 3);

/**
 * pvrdma_client_abandon: end a connection whose daemon the guest never used
 * @reason: why, unless it is lost already
 *
 * It has had no memory of the guest's to write to, so nothing is waited for,
 * and nobody is told.
 */
void pvrdma_client_abandon(PVRDMAClient *c, const char *reason);

/**
 * pvrdma_client_error: make an error message of a failed call
 * @ret: what the call returned
 * @what: what was tried, for instance "region 1 cannot be read"
 */
void pvrdma_client_error(const PVRDMAClient *c, int ret, Error **errp,
                         const char *what);

#endif
