/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A vfio-user connection: messages in, replies out.
 *
 * Receiving.  First exactly the 16 header bytes, with room for descriptors only
 * at the first of them, then exactly the body: reading more at once could glue a
 * next message's descriptors to this one's bytes.  Whatever has arrived is kept
 * in struct vfu_conn, so a client may send byte by byte.  Descriptors elsewhere,
 * more of them than we said we take, sizes out of bounds, replies to nothing:
 * the connection is closed, as no answer is safe once framing is in doubt.
 *
 * Sending.  A reply goes out at once if nothing waits; the rest is queued and
 * sent when the socket takes it.  A client that does not read is dropped when
 * its queue is full.  Nothing here blocks.
 *
 * A connection's life is that of the VM's attachment: VERSION attaches, closing
 * detaches.  Handlers run with `busy` set; closing then waits for their return.
 */
#include <errno.h>
#include <glib-unix.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "vm.h"

/* What could not be sent at once. */
struct out_msg {
    uint32_t len, sent;
    int fd; /* goes with the first byte; borrowed; -1: none, or gone already */
    uint8_t data[];
};

static void close_fds(struct vfu_conn *c)
{
    for (unsigned i = 0; i < c->nfds; i++) {
        if (c->fds[i] >= 0) {
            discard_fd(&c->vm->discard, c->fds[i]);
        }
    }
    c->nfds = 0;
}

/* Make ready for the next message. */
static void end_message(struct vfu_conn *c)
{
    close_fds(c);
    if (c->body != c->small) {
        g_free(c->body);
    }
    c->body = NULL;
    c->hdr_got = 0;
    c->body_got = 0;
}

static void conn_destroy(struct vfu_conn *c)
{
    struct vm *vm = c->vm;

    if (c->eof) {
        log_vm(LOG_LVL_INFO, vm, "VMM left");
    } else {
        log_vm(LOG_LVL_WARN, vm, "closing the VMM's connection: %s", c->why);
    }
    if (c->in_source) {
        g_source_remove(c->in_source);
    }
    if (c->out_source) {
        g_source_remove(c->out_source);
    }
    if (c->timer) {
        g_source_remove(c->timer);
    }
    end_message(c);
    g_queue_clear_full(&c->queue, g_free);
    vm->conn = NULL;
    if (vm_detach(vm) && vm->listener) {
        frontend_hold_off(vm->listener);
    }
    /* Last: tells the client that nothing touches its memory any more. */
    close(c->fd);
    g_free(c);
}

void conn_close(struct vfu_conn *c, const char *why)
{
    if (!c->why) {
        c->why = why;
    }
    if (!c->busy) {
        conn_destroy(c);
    }
}

/* ---- sending ---- */

/* sendmsg() of up to two pieces; returns bytes sent, 0 if it would block. */
static ssize_t send_some(struct vfu_conn *c, struct iovec *iov, unsigned n, int fd)
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

static gboolean on_writable(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;
    struct out_msg *o;

    while ((o = g_queue_peek_head(&c->queue))) {
        struct iovec iov = {o->data + o->sent, o->len - o->sent};
        ssize_t n = send_some(c, &iov, 1, o->fd);

        if (n < 0) {
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

/* Queue what is left of @head and @r after @sent bytes went out. */
static void enqueue(struct vfu_conn *c, const struct vfio_user_hdr *head,
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
    g_queue_push_tail(&c->queue, o);
    c->queued += total - sent;
    if (!c->out_source) {
        c->out_source = g_unix_fd_add(c->fd, G_IO_OUT, on_writable, c);
    }
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
        n = send_some(c, iov, len ? 2 : 1, len ? r->fd : -1);
        if (n < 0) {
            c->eof = true;
            conn_close(c, "send failed");
            return;
        }
    }
    if ((size_t)n < sizeof(head) + len) {
        enqueue(c, &head, r, len, (uint32_t)n);
    }
}

/* ---- receiving ---- */

enum received { RECV_NONE, RECV_SOME, RECV_BAD };

/* Take the descriptors out of the control data. */
static void collect_fds(struct vfu_conn *c, struct msghdr *mh)
{
    for (struct cmsghdr *cm = CMSG_FIRSTHDR(mh); cm; cm = CMSG_NXTHDR(mh, cm)) {
        size_t n;

        if (cm->cmsg_level != SOL_SOCKET || cm->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        n = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
            if (c->nfds < G_N_ELEMENTS(c->fds)) {
                c->fds[c->nfds++] = fd;
            } else {
                discard_fd(&c->vm->discard, fd);
            }
        }
    }
}

/*
 * Receive up to @len bytes to @buf, descriptors too if @first.  *got advances.
 */
static enum received recv_some(struct vfu_conn *c, void *buf, uint32_t len, bool first,
                               uint32_t *got)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * VFIO_USER_MAX_FDS)];
    } control;
    struct iovec iov = {buf, len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    if (first) {
        mh.msg_control = &control;
        mh.msg_controllen = sizeof(control);
    }
    do {
        n = recvmsg(c->fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return RECV_NONE;
    }
    if (n <= 0) {
        c->eof = true;
        c->why = "connection ended";
        return RECV_BAD;
    }
    if (first) {
        collect_fds(c, &mh);
    }
    if (discard_full(c->vm->discard)) {
        c->why = "its descriptors cannot be closed";
        return RECV_BAD;
    }
    if (mh.msg_flags & MSG_CTRUNC) {
        c->why = first ? "too many descriptors in a message"
                       : "descriptors in the middle of a message";
        return RECV_BAD;
    }
    *got += (uint32_t)n;
    return RECV_SOME;
}

/* A header is complete: is it one we can go on with?  Gets room for the body. */
static bool begin_body(struct vfu_conn *c)
{
    const struct vfio_user_hdr *h = &c->hdr;
    uint32_t max = c->version_done ? VFU_MAX_MSG : VFU_MAX_FIRST_MSG;
    uint32_t len;

    if (h->size < sizeof(*h) || h->size > max) {
        c->why = "message of impossible size";
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

/* Receive what is there of one message.  RECV_SOME: it is complete. */
static enum received recv_message(struct vfu_conn *c)
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
    if (!c->body && !begin_body(c)) {
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

static void handle_message(struct vfu_conn *c)
{
    struct vfu_msg m = {
        .hdr = c->hdr,
        .body = c->body,
        .len = c->hdr.size - (uint32_t)sizeof(c->hdr),
        .fds = c->fds,
        .nfds = c->nfds,
    };

    vfu_dispatch(c, &m);
    end_message(c);
    if (c->version_done && c->timer) {
        g_source_remove(c->timer);
        c->timer = 0;
    }
    if (!c->why) {
        c->why = atomic_load(&c->vm->guest.fault);
    }
}

static gboolean on_readable(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;
    gint64 end = g_get_monotonic_time() + VFU_WAKEUP_US;
    uint32_t bytes = 0;

    c->busy = true;
    for (unsigned i = 0; i < VFU_WAKEUP_MSGS && bytes < VFU_WAKEUP_BYTES &&
                         (i == 0 || g_get_monotonic_time() < end);
         i++) {
        enum received res = recv_message(c);

        if (res != RECV_SOME) {
            break;
        }
        bytes += c->hdr.size;
        handle_message(c);
        if (c->why) {
            break;
        }
    }
    c->busy = false;
    if (c->why) {
        conn_destroy(c);
        return G_SOURCE_REMOVE;
    }
    return G_SOURCE_CONTINUE;
}

static gboolean on_timeout(gpointer opaque)
{
    struct vfu_conn *c = opaque;

    c->timer = 0;
    conn_close(c, "no VERSION in time");
    return G_SOURCE_REMOVE;
}

/* ---- life ---- */

struct vfu_conn *conn_new(struct vm *vm, int fd)
{
    struct vfu_conn *c;

    if (vm->conn) {
        log_vm(LOG_LVL_WARN, vm, "refused a second VMM");
        close(fd);
        return NULL;
    }
    if (discard_full(vm->discard)) {
        log_vm(LOG_LVL_WARN, vm, "refused a VMM: its descriptors cannot be closed");
        close(fd);
        return NULL;
    }
    c = g_new0(struct vfu_conn, 1);
    c->vm = vm;
    c->fd = fd;
    g_queue_init(&c->queue);
    c->in_source = g_unix_fd_add(fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_readable, c);
    c->timer = g_timeout_add_seconds(VFU_VERSION_TIMEOUT, on_timeout, c);
    vm->conn = c;
    return c;
}

bool frontend_adopt(struct vm *vm, int fd)
{
    return conn_new(vm, fd) != NULL;
}

void frontend_disconnect(struct vm *vm, const char *why)
{
    if (vm->conn) {
        conn_close(vm->conn, why);
    }
}
