/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The bytes of a link between daemons.
 *
 * All of them pass here, so this is the place for TLS: nothing else of link/ reads from
 * a link's socket or writes to it.  Nothing here waits.  Main thread.
 */
#include "transport/link/stream.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "transport/link/peer.h"

/* On a network that serves TCP does not wait longer before it sends once more, nor for an
 * acknowledgement. */
#define SILENT_RTO_US  500000u
#define SILENT_SENT_MS 250u

void peer_keep_alive(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_KEEPIDLE, 60},
                   {IPPROTO_TCP, TCP_KEEPINTVL, 10},
                   {IPPROTO_TCP, TCP_KEEPCNT, 6},
                   {SOL_SOCKET, SO_KEEPALIVE, 1}};

    for (unsigned i = 0; i < G_N_ELEMENTS(options); i++) {
        setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                   sizeof(options[i].value));
    }
}

bool peer_fd_is_silent(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
           (info.tcpi_probes ||
            (info.tcpi_unacked && info.tcpi_rto >= SILENT_RTO_US &&
             (info.tcpi_retransmits || info.tcpi_last_data_sent >= SILENT_SENT_MS)));
}

void stream_open(struct peer_stream *s, int fd)
{
    int on = 1;

    *s = (struct peer_stream){.fd = fd};
    /* Small messages, and each is waited for.  Without it things are slow, no more. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int stream_connect(struct peer_stream *s, const struct sockaddr_storage *own,
                   const struct sockaddr_storage *to)
{
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int err, on = 1;

    if (fd < 0) {
        return -errno;
    }
    if (own->ss_family == AF_INET) {
        /* The port is chosen by connect(), which knows the other end. */
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    }
    if ((own->ss_family != AF_UNSPEC &&
         bind(fd, (const struct sockaddr *)own, peer_address_len(own)) < 0) ||
        (connect(fd, (const struct sockaddr *)to, peer_address_len(to)) < 0 &&
         errno != EINPROGRESS)) {
        err = errno;
        close(fd);
        return -err;
    }
    stream_open(s, fd);
    return 0;
}

int stream_connected(struct peer_stream *s)
{
    socklen_t len = sizeof(int);
    int err = 0;

    if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0) {
        return -errno;
    }
    return -err;
}

uint64_t stream_unheard(const struct peer_stream *s)
{
    int n = 0;

    return ioctl(s->fd, SIOCOUTQ, &n) < 0 ? 0 : (uint64_t)n;
}

unsigned stream_rtt_ms(const struct peer_stream *s)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    getsockopt(s->fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    return info.tcpi_rtt / 1000;
}

void stream_close(struct peer_stream *s)
{
    if (s->fd >= 0) {
        close(s->fd);
        s->fd = -1;
    }
}

static ssize_t result(ssize_t n)
{
    if (n >= 0) {
        return n;
    }
    return errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
}

ssize_t stream_read(struct peer_stream *s, void *buf, size_t len)
{
    ssize_t n = result(recv(s->fd, buf, len, 0));

    s->received += n > 0 ? (uint64_t)n : 0;
    return n;
}

ssize_t stream_write(struct peer_stream *s, const struct iovec *iov, unsigned n)
{
    struct msghdr msg = {.msg_iov = (struct iovec *)iov, .msg_iovlen = n};
    ssize_t done = result(sendmsg(s->fd, &msg, MSG_NOSIGNAL));

    s->sent += done > 0 ? (uint64_t)done : 0;
    return done;
}
