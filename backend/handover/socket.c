/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handing over by a socket: the memfd and its descriptors wait in the queue of one end of
 * a pair of stream sockets, which somebody keeps while there is no daemon.  So all of it
 * is one descriptor to the keeper: it comes and goes as a whole, its order is kept, and
 * that two of its descriptors may be of one file is nobody's business.
 *
 * Each message is one byte, the number of descriptors that it stands for: 1 for the
 * memfd, then the list's, some at a time.  They come along with it, or none of them does:
 * one that the kernel does not let travel (a connection in whose queue its client has put
 * sockets in sockets) costs its VM, not all.
 *
 * Nothing here waits: what does not fit or is not there yet is an error.  The reader
 * believes nothing: whoever keeps the socket may have put something else there.
 */
#include "internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* In a message: less than SCM_MAX_FD, the most that the kernel takes. */
#define BATCH 250u

/* Of all messages, at most: more than a process has descriptors. */
#define MAX_MESSAGES (1u << 20)

/* ---- leaving ---- */

/* @n stands for so many, of which all or none are in @fds. */
static bool send_batch(int sock, uint8_t n, const int *fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(BATCH * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = &n, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fds) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(n * sizeof(int));
        memcpy(CMSG_DATA(&control.head), fds, n * sizeof(int));
    }
    return sendmsg(sock, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Halves, down to the one that cannot be sent. */
static bool send_fds(int sock, unsigned n, const int *fds)
{
    if (send_batch(sock, (uint8_t)n, fds)) {
        return true;
    }
    if (errno != ETOOMANYREFS) {
        return false;
    }
    return n == 1 ? send_batch(sock, 1, NULL)
                  : send_fds(sock, n / 2, fds) && send_fds(sock, n - n / 2, fds + n / 2);
}

bool handover_send(const struct handover_out *h, int memfd, int sock, GError **errp)
{
    const int *fds = (const int *)(const void *)h->fds->data;
    bool ok = send_batch(sock, 1, &memfd);

    for (guint at = 0; ok && at < h->fds->len; at += BATCH) {
        ok = send_fds(sock, MIN(h->fds->len - at, BATCH), fds + at);
    }
    if (!ok) {
        g_set_error(errp, HANDOVER_ERROR, 0, "%u descriptors cannot be handed over: %s",
                    h->fds->len, g_strerror(errno));
    }
    return ok;
}

/* ---- taking ---- */

/* How many came, of at most BATCH + 3, or -1: no message; *n: it stands for so many. */
static int receive_batch(int sock, uint8_t *n, int *fds)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE((BATCH + 3) * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = n, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov,
                         .msg_iovlen = 1,
                         .msg_control = &control,
                         .msg_controllen = sizeof(control)};
    int got = 0;

    if (recvmsg(sock, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) != 1) {
        return -1;
    }
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
            unsigned here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

            memcpy(fds + got, CMSG_DATA(c), here * sizeof(int));
            got += (int)here;
        }
    }
    return got;
}

/* All of them, or none. */
static void drop(const int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        close(fds[i]);
    }
}

static bool receive_fds(struct handover_in *h, int sock)
{
    int fds[BATCH + 3];
    uint8_t n;

    for (uint32_t at = 0; at < h->n; at += n) {
        int got = receive_batch(sock, &n, fds);

        if (got < 0 || n == 0 || n > h->n - at) {
            drop(fds, got);
            state_fail(&h->stream, "only %u of %u descriptors were received", at, h->n);
            return false;
        }
        if (got != n) { /* what this process has no room for is lost */
            drop(fds, got);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            h->fd[at + i].fd = fds[i];
        }
    }
    return handover_sort(h);
}

struct handover_in *handover_receive(int sock, GError **errp)
{
    struct handover_in *h;
    int fds[BATCH + 3];
    uint8_t n = 0;
    int got = receive_batch(sock, &n, fds);

    if (got != 1 || n != 1) {
        drop(fds, got);
        g_set_error(errp, HANDOVER_ERROR, 0, "no state was received");
        return NULL;
    }
    h = handover_map(fds[0], errp);
    if (h && !receive_fds(h, sock)) {
        handover_refuse(h, "its descriptors were not received", errp);
        h = NULL;
    }
    if (!h) {
        close(fds[0]);
    }
    return h;
}

void handover_drain(int sock)
{
    int fds[BATCH + 3], got;
    uint8_t n;

    for (unsigned i = 0; i < MAX_MESSAGES && (got = receive_batch(sock, &n, fds)) >= 0;
         i++) {
        drop(fds, got);
    }
}
