/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A vfio-user connection's life, and its messages one after another; their bytes are
 * framing.c's.
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

static void (*on_left)(void);

void frontend_on_left(void (*fn)(void))
{
    on_left = fn;
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

static void conn_end(struct vfu_conn *c);

void conn_close(struct vfu_conn *c, const char *why)
{
    if (!c->why) {
        c->why = why;
    }
    if (!c->busy && !c->ending) {
        conn_end(c);
    }
}

static gboolean on_conn_readable(gint fd, GIOCondition cond, gpointer opaque);
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
    conn_end_message(c);
    if (c->version_done) {
        g_clear_handle_id(&c->timer, g_source_remove);
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
    conn_end_message(c);
}

static gboolean on_end_while_parked(gint fd, GIOCondition cond, gpointer opaque)
{
    struct vfu_conn *c = opaque;

    g_clear_handle_id(&c->in_source, fdwatch_remove);
    c->eof |= !c->why;
    conn_close(c, "connection ended"); /* when the message is done */
    return G_SOURCE_REMOVE;
}

static void conn_park(struct vfu_conn *c)
{
    c->parked = true;
    c->in_source = fdwatch_add(c->fd, COND_END, on_end_while_parked, c);
}

/* The parked message is done; vm->ops is held. */
static void conn_unpark(struct vfu_conn *c)
{
    g_clear_handle_id(&c->in_source, fdwatch_remove);
    c->parked = false;
    c->busy = false;
    if (c->why) {
        c->ending = true;
        conn_finish(c);
    } else if (!c->frozen) {
        c->in_source =
            fdwatch_add(c->fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_conn_readable, c);
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
        conn_unpark(c);
    }
    coro_unlock(&vm->ops);
}

/* False: it is parked. */
static bool conn_begin_message(struct vfu_conn *c, gint64 now)
{
    bool later = c->later_until > now;

    return later ? coro_run_later(run_message, c) : coro_run(run_message, c);
}

static gboolean on_conn_readable(gint fd, GIOCondition cond, gpointer opaque)
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

        if (conn_recv(c) != RECV_SOME) {
            break;
        }
        bytes += c->hdr.size;
        m = complete_message(c);
        if (vfu_may_wait(&m)) {
            if (!conn_begin_message(c, now)) {
                conn_park(c);
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

static gboolean on_conn_timeout(gpointer opaque)
{
    struct vfu_conn *c = opaque;

    c->timer = 0;
    conn_close(c, "no VERSION in time");
    return G_SOURCE_REMOVE;
}

/* ---- closing ---- */

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

        if (conn_recv(c) != RECV_SOME) {
            break;
        }
        head.id = c->hdr.id;
        head.command = c->hdr.command;
        if (answer && !(c->hdr.flags & VFIO_USER_NO_REPLY)) {
            answer = conn_send(c, &iov, 1, -1) == sizeof(head);
        }
        conn_end_message(c);
        coro_breathe();
    }
    conn_end_message(c);
}

static void stop_all(struct vfu_conn *c)
{
    g_clear_handle_id(&c->in_source, fdwatch_remove);
    g_clear_handle_id(&c->out_source, fdwatch_remove);
    g_clear_handle_id(&c->timer, g_source_remove);
    g_clear_handle_id(&c->thaw_source, g_source_remove);
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
    conn_discard_input(c);
    conn_end_message(c);
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
    c->timer = g_timeout_add_seconds(VFU_VERSION_TIMEOUT, on_conn_timeout, c);
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
    c->in_source = fdwatch_add(fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_conn_readable, c);
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
    if (on_conn_readable(c->fd, G_IO_IN, c) == G_SOURCE_CONTINUE) {
        c->in_source =
            fdwatch_add(c->fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_conn_readable, c);
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
    conn_send_queue(c);
    if (!c->version_done) {
        allow_time(c);
    }
    if (c->parked) {
        conn_park(c);
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
