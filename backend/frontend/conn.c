/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A vfio-user connection: messages in, replies out.
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
 * its queue is full.  Nothing here blocks.
 *
 * A connection's life is that of the VM's attachment: VERSION attaches, closing
 * detaches.  Messages are handled with `busy` set; closing then waits for that.
 *
 * Waiting.  A message that may wait runs in a coroutine that holds vm->ops.  If it
 * does wait, it is parked: the socket is watched for the client's end alone, so
 * messages stay in order and the client is held back by its own socket.  When it
 * is done the coroutine answers and has the socket read again or, if there is a
 * reason by now, closes, which also holds vm->ops.  A VM whose messages took long
 * gets its next ones begun behind the work of others that is under way.
 *
 * Closing.  What the client sent and nobody read would make close() a reset, at
 * which some clients (stock QEMU) abort.  It is read, and answered with an error.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "frontend/migration.h"
#include "vm/attach.h"

/* fdwatch passes conditions on to epoll as they are. */
#define COND_END ((GIOCondition)(POLLRDHUP | G_IO_HUP | G_IO_ERR))

/* A VM whose message took long: for how many times that are the next ones put back. */
#define LATER_FACTOR 8

/* Most descriptors that the kernel lets a message have (SCM_MAX_FD). */
#define SCM_FDS 253u

static void (*on_left)(void);

void frontend_on_left(void (*fn)(void))
{
    on_left = fn;
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

/*
 * The client sees the end at once.  What it sent and we did not read may hold
 * descriptors, so closing can take as long as closing those.
 */
static void close_socket(struct vm *vm, int fd)
{
    shutdown(fd, SHUT_RDWR);
    discard_fd(&vm->discard, fd);
}

/* Make ready for the next message. */
static void end_message(struct vfu_conn *c)
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

static void conn_end(struct vfu_conn *c);

/* Before the descriptor is closed, and also from within the watch's callback. */
static void stop_watching(guint *watch)
{
    if (*watch) {
        fdwatch_remove(*watch);
        *watch = 0;
    }
}

void conn_close(struct vfu_conn *c, const char *why)
{
    if (!c->why) {
        c->why = why;
    }
    if (!c->busy && !c->ending) {
        conn_end(c);
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
            stop_watching(&c->out_source);
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

static void queue_push(struct vfu_conn *c, struct out_msg *o)
{
    g_queue_push_tail(&c->queue, o);
    c->queued += o->len - o->sent;
    if (!c->out_source && !c->frozen) {
        c->out_source = fdwatch_add(c->fd, G_IO_OUT, on_writable, c);
    }
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
    queue_push(c, o);
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

/*
 * Take the descriptors out of the control data: those that a message may have if
 * @first, none otherwise.  True: there were others.
 */
static bool collect_fds(struct vfu_conn *c, struct msghdr *mh, bool first)
{
    bool more = false;

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
                more = true;
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
    bool more, lost;
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
    more = collect_fds(c, &mh, first);
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

static gboolean on_readable(gint fd, GIOCondition cond, gpointer opaque);
static void conn_finish(struct vfu_conn *c);

static struct vfu_msg complete_message(struct vfu_conn *c)
{
    return (struct vfu_msg){
        .hdr = c->hdr,
        .body = c->body,
        .len = c->hdr.size - (uint32_t)sizeof(c->hdr),
        .fds = c->fds,
        .nfds = c->nfds,
        .fds_lost = c->fds_lost,
    };
}

static void handle_message(struct vfu_conn *c)
{
    struct vfu_msg m = complete_message(c);

    if (!vfu_dispatch(c, &m)) {
        return; /* it stays where it is, as if it had just come */
    }
    end_message(c);
    if (c->version_done && c->timer) {
        g_source_remove(c->timer);
        c->timer = 0;
    }
    if (!c->why) {
        c->why = atomic_load(&c->vm->guest.fault);
    }
}

/* The connection is being closed: its message is not carried out. */
static void refuse_message(struct vfu_conn *c)
{
    struct vfu_reply none;

    vfu_reply_init(&none);
    if (!(c->hdr.flags & VFIO_USER_NO_REPLY)) {
        conn_reply(c, &c->hdr, ENODEV, &none);
    }
    end_message(c);
}

static gboolean on_end_while_parked(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;

    stop_watching(&c->in_source);
    c->eof |= !c->why;
    conn_close(c, "connection ended"); /* when the message is done */
    return G_SOURCE_REMOVE;
}

static void park(struct vfu_conn *c)
{
    c->parked = true;
    c->in_source = fdwatch_add(c->fd, COND_END, on_end_while_parked, c);
}

/* The parked message is done; vm->ops is held. */
static void unpark(struct vfu_conn *c)
{
    stop_watching(&c->in_source);
    c->parked = false;
    c->busy = false;
    if (c->why) {
        c->ending = true;
        conn_finish(c);
    } else if (!c->frozen) {
        c->in_source = fdwatch_add(c->fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_readable, c);
    }
}

static void run_message(void *opaque)
{
    struct vfu_conn *c = opaque;
    struct vm *vm = c->vm;
    uint64_t ns;

    coro_lock(&vm->ops);
    if (c->why) {
        refuse_message(c);
    } else {
        handle_message(c);
    }
    ns = coro_ran_ns();
    vm->command_ns += ns;
    if (c->parked) {
        if (ns > VFU_WAKEUP_US * 1000) {
            c->later_until = g_get_monotonic_time() + (gint64)ns / 1000 * LATER_FACTOR;
        }
        unpark(c);
    }
    coro_unlock(&vm->ops);
}

/* False: it is parked. */
static bool begin_message(struct vfu_conn *c, gint64 now)
{
    bool later = c->later_until > now;

    return later ? coro_run_later(run_message, c) : coro_run(run_message, c);
}

static gboolean on_readable(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;
    struct vm *vm = c->vm;
    gint64 begin = g_get_monotonic_time(), before = begin, now = begin;
    uint32_t bytes = 0;

    c->busy = true;
    for (unsigned i = 0; i < VFU_WAKEUP_MSGS && bytes < VFU_WAKEUP_BYTES &&
                         (i == 0 || now - begin < VFU_WAKEUP_US);
         i++) {
        struct vfu_msg m;

        if (recv_message(c) != RECV_SOME) {
            break;
        }
        bytes += c->hdr.size;
        m = complete_message(c);
        if (vfu_may_wait(&m)) {
            if (!begin_message(c, now)) {
                park(c);
                return G_SOURCE_REMOVE;
            }
            now = g_get_monotonic_time();
        } else {
            handle_message(c);
            now = g_get_monotonic_time();
            vm->command_ns += (uint64_t)(now - before) * 1000;
        }
        before = now;
        if (c->why) {
            break;
        }
    }
    c->busy = false;
    if (c->why) {
        conn_end(c); /* removes this watch */
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

/* ---- closing ---- */

/* Bytes that a descriptor counts for. */
#define DRAIN_PER_FD 4096u

/*
 * Take what there is to read from @fd, and close the descriptors that come along.  In
 * one go, so each of those counts as much as many bytes.
 */
static void discard_input(struct vm *vm, int fd)
{
    static uint8_t bytes[65536]; /* never looked at */
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int) * SCM_FDS)];
    } control;
    ssize_t n = 1;

    for (size_t got = 0; n > 0 && got < VFU_MAX_DRAIN && !discard_full(vm->discard);
         got += (size_t)n) {
        struct iovec iov = {bytes, sizeof(bytes)};
        struct msghdr mh = {.msg_iov = &iov,
                            .msg_iovlen = 1,
                            .msg_control = &control,
                            .msg_controllen = sizeof(control)};

        n = recvmsg(fd, &mh, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        for (struct cmsghdr *cm = n > 0 ? CMSG_FIRSTHDR(&mh) : NULL; cm;
             cm = CMSG_NXTHDR(&mh, cm)) {
            size_t fds = (cm->cmsg_len - CMSG_LEN(0)) / sizeof(int);

            for (size_t i = 0; cm->cmsg_type == SCM_RIGHTS && i < fds; i++) {
                int one;

                memcpy(&one, CMSG_DATA(cm) + i * sizeof(int), sizeof(int));
                discard_fd(&vm->discard, one);
                got += DRAIN_PER_FD;
            }
        }
    }
}

/* Answer the messages that came too late.  Until one does not fit the socket. */
static void refuse_rest(struct vfu_conn *c)
{
    bool answer = g_queue_is_empty(&c->queue);

    for (uint32_t bytes = 0; bytes < VFU_MAX_DRAIN; bytes += c->hdr.size) {
        struct vfio_user_hdr head = {
            .size = sizeof(head),
            .flags = VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR,
            .error = ENODEV,
        };
        struct iovec iov = {&head, sizeof(head)};

        if (recv_message(c) != RECV_SOME) {
            break;
        }
        head.id = c->hdr.id;
        head.command = c->hdr.command;
        if (answer && !(c->hdr.flags & VFIO_USER_NO_REPLY)) {
            answer = send_some(c, &iov, 1, -1) == sizeof(head);
        }
        end_message(c);
        coro_breathe();
    }
    end_message(c);
}

static void stop_all(struct vfu_conn *c)
{
    stop_watching(&c->in_source);
    stop_watching(&c->out_source);
    if (c->timer) {
        g_source_remove(c->timer);
        c->timer = 0;
    }
    if (c->thaw_source) {
        g_source_remove(c->thaw_source);
        c->thaw_source = 0;
    }
}

void conn_keep_log(struct vfu_conn *c, int fd)
{
    if (c->log_fd >= 0) {
        close(c->log_fd); /* the log is mapped, or over, so that is quick */
    }
    c->log_fd = fd;
}

/* Detach, and let the client go.  vm->ops is held. */
static void conn_finish(struct vfu_conn *c)
{
    struct vm *vm = c->vm;
    bool faulted;

    if (c->eof) {
        log_vm(LOG_LVL_INFO, vm, "VMM left");
    } else {
        log_vm(LOG_LVL_WARN, vm, "closing the VMM's connection: %s", c->why);
    }
    stop_all(c);
    migration_leave(vm);
    faulted = vm_detach(vm);
    atomic_store(&vm->guest.fault, NULL); /* one that was never attached, too */
    shutdown(c->fd, SHUT_RD);
    if (!c->unframed) {
        refuse_rest(c);
    }
    discard_input(vm, c->fd);
    end_message(c);
    g_queue_clear_full(&c->queue, g_free);
    conn_keep_log(c, -1);
    vm->conn = NULL;
    if (vm->listener) {
        frontend_conn_gone(vm->listener, faulted);
    }
    /* Tells the client that nothing touches its memory any more. */
    close_socket(vm, c->fd);
    while (!g_queue_is_empty(&c->waiting)) {
        coro_wake(g_queue_pop_head(&c->waiting));
    }
    g_free(c);
    if (on_left) {
        on_left();
    }
}

static void end_coro(void *opaque)
{
    struct vfu_conn *c = opaque;
    struct vm *vm = c->vm;

    coro_lock(&vm->ops);
    conn_finish(c);
    coro_unlock(&vm->ops);
}

/* No message is in work. */
static void conn_end(struct vfu_conn *c)
{
    c->ending = true;
    stop_all(c);
    coro_run(end_coro, c);
}

/* ---- life ---- */

enum conn_state conn_look(struct vm *vm)
{
    struct vfu_conn *c = vm->conn;
    struct pollfd pfd = {.fd = c ? c->fd : -1, .events = POLLRDHUP};

    if (c && !c->why && poll(&pfd, 1, 0) == 1) {
        c->eof = true;
        conn_close(c, "connection ended");
    }
    if (!vm->conn) {
        return CONN_NONE;
    }
    return vm->conn->why ? CONN_LEAVING : CONN_THERE;
}

/*
 * A byte that is out of band (MSG_OOB) may have descriptors, too.  Where it is not asked
 * for, the kernel drops it, and closes those here and now.
 */
void conn_no_urgent(int fd)
{
    int yes = 1;

    setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &yes, sizeof(yes));
}

static struct vfu_conn *conn_make(struct vm *vm, int fd)
{
    struct vfu_conn *c = g_new0(struct vfu_conn, 1);

    conn_no_urgent(fd);
    c->vm = vm;
    c->fd = fd;
    c->log_fd = -1;
    g_queue_init(&c->queue);
    g_queue_init(&c->waiting);
    vm->conn = c;
    return c;
}

static void allow_time(struct vfu_conn *c)
{
    c->timer = g_timeout_add_seconds(VFU_VERSION_TIMEOUT, on_timeout, c);
}

bool frontend_adopt(struct vm *vm, int fd)
{
    struct vfu_conn *c;

    if (conn_look(vm) != CONN_NONE) {
        refuse_client(vm, fd, EBUSY, "the VM already has a VMM");
        return false;
    }
    if (discard_full(vm->discard)) {
        refuse_client(vm, fd, EBUSY, "descriptors of the last VMM cannot be closed");
        return false;
    }
    c = conn_make(vm, fd);
    c->in_source = fdwatch_add(fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_readable, c);
    allow_time(c);
    return true;
}

/* ---- standing still, and going on, here or in another daemon ---- */

void conn_freeze(struct vfu_conn *c)
{
    c->frozen = true;
    stop_all(c);
}

/*
 * A message that is there as a whole, since it waited in the former daemon's coroutine,
 * or was put back, is handled here: no event will tell of it.
 */
static gboolean on_thaw(gpointer opaque)
{
    struct vfu_conn *c = opaque;

    c->thaw_source = 0;
    if (on_readable(c->fd, G_IO_IN, c) == G_SOURCE_CONTINUE) {
        c->in_source = fdwatch_add(c->fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_readable, c);
    }
    return G_SOURCE_REMOVE;
}

/* Reading begins in the main loop: whoever thaws many of them waits for no message. */
void conn_thaw(struct vfu_conn *c)
{
    if (!c->frozen) {
        return;
    }
    c->frozen = false;
    if (c->ending || c->why) {
        return; /* that is under way, or comes with the parked message's end */
    }
    if (!g_queue_is_empty(&c->queue)) {
        c->out_source = fdwatch_add(c->fd, G_IO_OUT, on_writable, c);
    }
    if (!c->version_done) {
        allow_time(c);
    }
    if (c->parked) {
        park(c);
    } else {
        c->thaw_source = g_idle_add_full(G_PRIORITY_DEFAULT, on_thaw, c, NULL);
    }
}

struct vfu_conn *conn_new_frozen(struct vm *vm, int fd)
{
    struct vfu_conn *c = conn_make(vm, fd);

    c->frozen = true;
    return c;
}

void frontend_disconnect(struct vm *vm, const char *why)
{
    if (vm->conn) {
        conn_close(vm->conn, why);
    }
    if (vm->conn && coro_self()) {
        g_queue_push_tail(&vm->conn->waiting, coro_self());
        coro_yield();
    }
}
