/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The TCP socket that carries a stream's frames; see socket.c. */
#ifndef PVRDMAD_IWARP_SOCKET_H
#define PVRDMAD_IWARP_SOCKET_H

#include "transport/iwarp/wire/fpdu.h"

struct conn;
struct framing;
struct hello;
struct tcp_vm;
struct turn;

/*
 * A segment's end, which is stored when all of it was found right: programs poll a
 * message's last byte.  Two cache lines, so that the one before the last is stored by us,
 * too.
 */
#define DIRECT_HELD 128u

/* What a stream has of it; under the VM's token. */
struct socket {
    int fd;
    bool resets;    /* constant: close(fd) does, as this host has made it; linger.c */
    bool writable;  /* epoll is asked for that, too */
    bool has_room;  /* epoll has told EPOLLOUT: tx_writable() is to be called */
    bool peer_shut; /* ... EPOLLRDHUP: there is an end behind the input */
    bool direct;    /* a frame comes in parts, its payload straight to its place */
    int unsent;     /* bytes in it that the peer has not, when asked last */
    uint8_t *saved; /* input that is to be looked at first; NULL: none */
    size_t saved_len;
    struct fpdu_rx rx; /* its room: FPDU_MAX_SIZE, from when it is needed */
    /* What not every frame touches. */
    uint8_t held[DIRECT_HELD];
    uint32_t n_held;
};

/*
 * Both startup frames are exchanged: @fd carries a stream now, and if @ready so is the
 * initiator's first frame, or it is ours to send.  False: it was closed.  The worker is
 * to be woken if conn_waits(); else its next turn is early enough.  qp->lock is held,
 * too.
 */
bool socket_up(struct conn *c, int fd, const struct framing *framing, bool ready,
               const struct hello *own, const struct hello *peer);
/* What comes by @net's sockets, and to those that take more: as much as a turn may. */
void sockets_run(struct tcp_vm *net, struct turn *t);
/* @net has an epoll set.  False: it has not, and that was said. */
bool sockets_init(struct tcp_vm *net);
void sockets_fini(struct tcp_vm *net);
/* How much of it the socket takes now; -1: it is broken. */
ssize_t socket_send(int fd, const uint8_t *data, size_t len);

#endif /* PVRDMAD_IWARP_SOCKET_H */
