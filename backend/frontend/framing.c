/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A vfio-user connection's bytes: messages in, replies out.  Nothing here blocks.  Main
 * thread.
 *
 * Receiving.  First exactly the 16 header bytes, descriptors only with the first of
 * them, then exactly the body: reading more at once could glue a next message's
 * descriptors to this one's bytes.  Whatever has arrived is kept in struct vfu_conn,
 * so a client may send byte by byte.  Descriptors elsewhere, more of them than we
 * said we take, sizes out of bounds, replies to nothing: the connection is closed, as
 * no answer is safe once framing is in doubt.  A message whose descriptors were lost
 * because the daemon has no more is whole but for them; it is refused, and its sender
 * lives.
 *
 * Sending.  A reply goes out at once if nothing waits; the rest is queued and
 * sent when the socket takes it.  A client that does not read is dropped when
 * its queue is full.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/fdwatch.h"
#include "frontend/conn.h"
#include "vm/attach.h"

/* Most descriptors that the kernel lets a message have (SCM_MAX_FD). */
#define SCM_FDS 253u

/* ---- sending ---- */

ssize_t conn_send(struct vfu_conn *c, struct iovec *iov, unsigned n, int fd)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr mh = {.msg_iov = iov, .msg_iovlen = n};
    ssize_t sent;

    if (fd >= 0) {
        mh.msg_control = &control;
        mh.msg_controllen = sizeof(control);
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.head), &fd, sizeof(fd));
    }
    do {
        sent = sendmsg(c->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return 0;
    }
    return sent;
}

static gboolean on_conn_writable(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;
    struct out_msg *o;

    while ((o = g_queue_peek_head(&c->queue))) {
        struct iovec iov = {o->data + o->sent, o->len - o->sent};
        ssize_t n = conn_send(c, &iov, 1, o->fd);

        if (n < 0) {
            g_clear_handle_id(&c->out_source, fdwatch_remove);
            c->eof = true;
            conn_close(c, "send failed");
            return G_SOURCE_REMOVE;
        }
        if (n == 0) {
            return G_SOURCE_CONTINUE;
        }
        o->fd = -1;
        o->sent += (uint32_t)n;
        c->queued -= (uint32_t)n;
        if (o->sent == o->len) {
            g_free(g_queue_pop_head(&c->queue));
        }
    }
    c->out_source = 0;
    return G_SOURCE_REMOVE;
}

void conn_send_queue(struct vfu_conn *c)
{
    if (!c->out_source && !g_queue_is_empty(&c->queue)) {
        c->out_source = fdwatch_add(c->fd, G_IO_OUT, on_conn_writable, c);
    }
}

static void conn_enqueue(struct vfu_conn *c, struct out_msg *o)
{
    g_queue_push_tail(&c->queue, o);
    c->queued += o->len - o->sent;
    if (!c->frozen) {
        conn_send_queue(c);
    }
}

/* Queue what is left of @head and @r after @sent bytes went out. */
static void conn_enqueue_reply(struct vfu_conn *c, const struct vfio_user_hdr *head,
                               const struct vfu_reply *r, uint32_t len, uint32_t sent)
{
    uint32_t total = (uint32_t)sizeof(*head) + len;
    struct out_msg *o;

    if (total - sent > VFU_MAX_QUEUE - c->queued) {
        conn_close(c, "it does not read its replies");
        return;
    }
    o = g_try_malloc(sizeof(*o) + total);
    if (!o) {
        conn_close(c, "out of memory for replies");
        return;
    }
    o->len = total;
    o->sent = sent;
    o->fd = sent == 0 && len ? r->fd : -1;
    memcpy(o->data, head, sizeof(*head));
    if (len) {
        memcpy(o->data + sizeof(*head), r->data, len);
    }
    conn_enqueue(c, o);
}

void conn_reply(struct vfu_conn *c, const struct vfio_user_hdr *hdr, int err,
                const struct vfu_reply *r)
{
    uint32_t len = err ? 0 : r->len;
    struct vfio_user_hdr head = {
        .id = hdr->id,
        .command = hdr->command,
        .size = (uint32_t)sizeof(head) + len,
        .flags = VFIO_USER_TYPE_REPLY | (err ? VFIO_USER_ERROR : 0),
        .error = (uint32_t)err,
    };
    struct iovec iov[2] = {{&head, sizeof(head)}, {r->data, len}};
    ssize_t n = 0;

    if (g_queue_is_empty(&c->queue)) {
        n = conn_send(c, iov, len ? 2 : 1, len ? r->fd : -1);
        if (n < 0) {
            c->eof = true;
            conn_close(c, "send failed");
            return;
        }
    }
    if ((size_t)n < sizeof(head) + len) {
        conn_enqueue_reply(c, &head, r, len, (uint32_t)n);
    }
}

/* ---- receiving ---- */

/*
 * Take the descriptors out of the control data: those that a message may have if
 * @first, none otherwise.  How many others there were; they are closed.
 */
static unsigned collect_fds(struct vfu_conn *c, struct msghdr *mh, bool first)
{
    unsigned more = 0;

    for (struct cmsghdr *cm = CMSG_FIRSTHDR(mh); cm; cm = CMSG_NXTHDR(mh, cm)) {
        size_t n;

        if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
            if (first && c->nfds < G_N_ELEMENTS(c->fds)) {
                c->fds[c->nfds++] = fd;
            } else {
                discard_fd(&c->vm->discard, fd);
                more++;
            }
        }
    }
    return more;
}

/*
 * Receive up to @len bytes to @buf, descriptors too if @first.  *got advances.
 *
 * There is room for all descriptors that can come, also where none may: those for which
 * there is none the kernel closes here and now, which takes a second for some gigabytes
 * of memory that nobody else has.
 */
static enum received recv_some(struct vfu_conn *c, void *buf, uint32_t len, bool first,
                               uint32_t *got)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * SCM_FDS)];
    } control;
    struct iovec iov = {buf, len};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = &control,
                        .msg_controllen = sizeof(control)};
    unsigned more;
    bool lost;
    ssize_t n;

    do {
        n = recvmsg(c->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return RECV_NONE;
    }
    if (n <= 0) {
        c->eof = true;
        c->why = c->why ? c->why : "connection ended";
        return RECV_BAD;
    }
    more = mh.msg_controllen ? collect_fds(c, &mh, first) : 0;
    lost = mh.msg_flags & MSG_CTRUNC; /* the kernel found no free number here */
    if (more || (lost && !first)) {
        c->why = first ? "too many descriptors in a message"
                       : "descriptors in the middle of a message";
        c->unframed = true;
        return RECV_BAD;
    }
    if (discard_full(c->vm->discard)) {
        c->why = "its descriptors cannot be closed";
        c->unframed = true;
        return RECV_BAD;
    }
    c->fds_lost |= lost;
    *got += (uint32_t)n;
    return RECV_SOME;
}

bool conn_begin_body(struct vfu_conn *c)
{
    const struct vfio_user_hdr *h = &c->hdr;
    uint32_t max = c->version_done ? VFU_MAX_MSG : VFU_MAX_FIRST_MSG;
    uint32_t len;

    if (h->size < sizeof(*h) || h->size > max) {
        c->why = "message of invalid size";
        return false;
    }
    if ((h->flags & VFIO_USER_TYPE_MASK) != VFIO_USER_TYPE_COMMAND) {
        c->why = "message that is not a command";
        return false;
    }
    if ((h->command == VFIO_USER_VERSION) == c->version_done) {
        c->why = c->version_done ? "second VERSION" : "command before VERSION";
        return false;
    }
    len = h->size - (uint32_t)sizeof(*h);
    c->body = len <= sizeof(c->small) ? c->small : g_try_malloc(len);
    if (!c->body) {
        c->why = "out of memory for a message";
        return false;
    }
    return true;
}

enum received conn_recv(struct vfu_conn *c)
{
    enum received res;
    uint32_t len;

    while (c->hdr_got < sizeof(c->hdr)) {
        res = recv_some(c, (uint8_t *)&c->hdr + c->hdr_got,
                        (uint32_t)sizeof(c->hdr) - c->hdr_got, c->hdr_got == 0,
                        &c->hdr_got);
        if (res != RECV_SOME) {
            return res;
        }
    }
    if (!c->body && !conn_begin_body(c)) {
        c->unframed = true;
        return RECV_BAD;
    }
    len = c->hdr.size - (uint32_t)sizeof(c->hdr);
    while (c->body_got < len) {
        res = recv_some(c, c->body + c->body_got, len - c->body_got, false, &c->body_got);
        if (res != RECV_SOME) {
            return res;
        }
    }
    return RECV_SOME;
}

static void close_fds(struct vfu_conn *c)
{
    for (unsigned i = 0; i < c->nfds; i++) {
        if (c->fds[i] >= 0) {
            discard_fd(&c->vm->discard, c->fds[i]);
        }
    }
    c->nfds = 0;
}

void conn_end_message(struct vfu_conn *c)
{
    close_fds(c);
    if (c->body != c->small) {
        g_free(c->body);
    }
    c->body = NULL;
    c->fds_lost = false;
    c->hdr_got = 0;
    c->body_got = 0;
}

/* Bytes that a descriptor counts for. */
#define DRAIN_PER_FD 4096u

/* In one go, so each descriptor counts as much as many bytes. */
void conn_discard_input(struct vfu_conn *c)
{
    static uint8_t bytes[65536]; /* never looked at */
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * SCM_FDS)];
    } control;
    ssize_t n = 1;

    for (size_t got = 0; n > 0 && got < VFU_MAX_DRAIN && !discard_full(c->vm->discard);
         got += (size_t)n) {
        struct iovec iov = {bytes, sizeof(bytes)};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof(control)};

        n = recvmsg(c->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n > 0) {
            got += (size_t)collect_fds(c, &mh, false) * DRAIN_PER_FD;
        }
    }
}
