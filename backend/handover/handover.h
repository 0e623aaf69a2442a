/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a daemon leaves to the one that takes its place: a state stream in a sealed memfd,
 * and the descriptors that it names.  They go by execve(), which leaves both as they are,
 * or in a socket that somebody keeps meanwhile.  handover.c has the format,
 * socket.c that of the socket.  Main thread.
 */
#ifndef PVRDMAD_HANDOVER_H
#define PVRDMAD_HANDOVER_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/state_stream.h"

/*
 * Of all that is handed over; the device of each VM has its own.  A section that a daemon
 * cannot go on without, and that the one before did not write, needs another version.
 */
#define HANDOVER_VERSION 1u

/* ---- leaving ---- */

struct handover_out {
    struct state_out s; /* sections are the caller's */
    GByteArray *bytes;
    GArray *fds; /* of int; they stay whose they are */
};

void handover_out_begin(struct handover_out *h);
void handover_out_clear(struct handover_out *h);

/* @fd goes along; -1: there is none. */
void handover_put_fd(struct handover_out *h, int fd);

/* All of it as a memfd, or -1 with errp. */
int handover_seal(struct handover_out *h, GError **errp);
/* Let all descriptors, and @memfd, outlive an execve(), or not. */
void handover_keep(const struct handover_out *h, int memfd, bool keep);
/*
 * Put all descriptors, and @memfd, into @sock, the one end of a pair of stream sockets;
 * they stay there when this one is closed.  False with errp: not all of it is there.
 */
bool handover_send(const struct handover_out *h, int memfd, int sock, GError **errp);

/* ---- taking ---- */

/*
 * As handover_seal() made it, at number @memfd, which is taken over, or NULL with errp.
 * None of the descriptors outlives another execve().
 */
struct handover_in *handover_open(int memfd, GError **errp);
/*
 * As handover_send() left it in the other end of @sock, which stays the caller's.  NULL
 * with errp, for whatever else it is, too.
 */
struct handover_in *handover_receive(int sock, GError **errp);
/*
 * Close what is left in the queue of @sock.  Somebody else may still have that socket,
 * and with it listening sockets, which would answer for a daemon that is gone.
 */
void handover_drain(int sock);
/* What nobody took is closed. */
void handover_close(struct handover_in *h);
/* The stream; its text of errors is the handover's. */
struct state_in *handover_stream(struct handover_in *h);

/*
 * One that is named in @s, a section of the stream: the caller's now, or -1 if there is
 * none.  One that was not left, or is taken already, fails.
 */
int handover_get_fd(struct handover_in *h, struct state_in *s);

#endif /* PVRDMAD_HANDOVER_H */
