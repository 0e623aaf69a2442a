/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The bytes of a link; see stream.c. */
#ifndef PVRDMAD_LINK_STREAM_H
#define PVRDMAD_LINK_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

struct peer_stream {
    int fd; /* -1: closed */
    uint64_t sent, received;
};

/* Take a connected socket. */
void stream_open(struct peer_stream *s, int fd);
/* Begin to connect from @own (may be AF_UNSPEC) to @to; 0 or a negative errno. */
int stream_connect(struct peer_stream *s, const struct sockaddr_storage *own,
                   const struct sockaddr_storage *to);
/* How that ended, once the descriptor can be written; 0 or a negative errno. */
int stream_connected(struct peer_stream *s);
/* Bytes of what was written that the other end's kernel has not acknowledged. */
uint64_t stream_unheard(const struct peer_stream *s);
/* As TCP has measured it. */
unsigned stream_rtt_ms(const struct peer_stream *s);
void stream_close(struct peer_stream *s);

/* Bytes, 0 at the other's end (reading only), -EAGAIN or another negative errno. */
ssize_t stream_read(struct peer_stream *s, void *buf, size_t len);
ssize_t stream_write(struct peer_stream *s, const struct iovec *iov, unsigned n);

#endif /* PVRDMAD_LINK_STREAM_H */
