/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Clients that are not served: of a user who may not be the VM, and a second VMM.
 *
 * Their VERSION is answered with an error, which tells their user why, and that is all.
 * A few may take their time for it; who comes then is let go without an answer.
 *
 * Whatever they send must cost whoever is served nothing.  So bytes are looked at before
 * they are taken, without room for descriptors: the kernel says whether there are any,
 * and those stay in the socket.  No honest client has some here.  Such a socket is closed
 * by a thread, as those descriptors may not let go (fd_reaper.c), but not by the one of
 * the VM's own.  While too many wait for that no second client is accepted.
 *
 * Main thread.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "vm/attach.h"

/* So many of a VM's are waited for, each so long. */
#define MAX_WAITING 8u
#define WAIT_S      2u

/* One process is named once in so long: QEMU tries again for some seconds. */
#define NAME_AGAIN_US (10 * G_USEC_PER_SEC)

struct refused {
    struct refusals *all;
    int fd, err;
    guint source, timer;
    struct vfio_user_hdr hdr;
    uint32_t got; /* of the message */
};

struct refusals {
    GQueue waiting; /* of struct refused */
    struct discard *closing;
    pid_t named;
    gint64 named_at;
};

enum looked { LOOK_NOTHING, LOOK_SOME, LOOK_END, LOOK_FDS };

/* Receive up to @len bytes, unless descriptors are among them. */
static enum looked refused_look(int fd, void *buf, size_t len, size_t *got)
{
    struct iovec iov = {buf, len};
    struct msghdr mh = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    do {
        n = recvmsg(fd, &mh, MSG_PEEK | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        return LOOK_NOTHING;
    }
    if (n <= 0) {
        return LOOK_END;
    }
    if (mh.msg_flags & MSG_CTRUNC) {
        return LOOK_FDS;
    }
    n = recv(fd, buf, (size_t)n, MSG_DONTWAIT);
    *got = (size_t)MAX(n, 0);
    return n > 0 ? LOOK_SOME : LOOK_END;
}

/* What is not read would make the end a reset.  LOOK_END: it is, or that much was. */
static enum looked refused_drain(int fd)
{
    static uint8_t bytes[65536]; /* never looked at */
    enum looked is = LOOK_SOME;
    size_t n = 0;

    for (size_t all = 0; is == LOOK_SOME && all < VFU_MAX_DRAIN; all += n) {
        is = refused_look(fd, bytes, sizeof(bytes), &n);
    }
    return is;
}

static void refused_let_go(struct refusals *all, int fd)
{
    shutdown(fd, SHUT_RDWR); /* nothing comes from now on */
    if (refused_drain(fd) == LOOK_END) {
        close(fd);
    } else {
        discard_refused_fd(&all->closing, fd);
    }
}

static void refused_end(struct refused *r)
{
    if (r->source) {
        fdwatch_remove(r->source);
    }
    if (r->timer) {
        g_source_remove(r->timer);
    }
    g_queue_remove(&r->all->waiting, r);
    refused_let_go(r->all, r->fd);
    g_free(r);
}

static void refused_answer(const struct refused *r)
{
    struct vfio_user_hdr head = {
        .id = r->hdr.id,
        .command = r->hdr.command,
        .size = sizeof(head),
        .flags = VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR,
        .error = (uint32_t)r->err,
    };

    if ((r->hdr.flags & VFIO_USER_TYPE_MASK) == VFIO_USER_TYPE_COMMAND &&
        !(r->hdr.flags & VFIO_USER_NO_REPLY)) {
        send(r->fd, &head, sizeof(head), MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

/* Is its first message there? */
static bool refused_complete(const struct refused *r)
{
    return r->got >= sizeof(r->hdr) && r->got >= r->hdr.size;
}

/* Take what is there of it. */
static enum looked refused_take(struct refused *r)
{
    uint8_t body[1024]; /* never looked at */
    enum looked is = LOOK_SOME;

    while (is == LOOK_SOME && !refused_complete(r)) {
        bool head = r->got < sizeof(r->hdr);
        size_t want =
            head ? sizeof(r->hdr) - r->got : MIN(sizeof(body), r->hdr.size - r->got);
        size_t n = 0;

        is = refused_look(r->fd, head ? (uint8_t *)&r->hdr + r->got : body, want, &n);
        r->got += (uint32_t)n;
        if (r->got >= sizeof(r->hdr) && r->hdr.size > VFU_MAX_FIRST_MSG) {
            return LOOK_END; /* nobody's VERSION */
        }
    }
    return is;
}

static gboolean on_refused_readable(gint fd, GIOCondition cond, gpointer opaque)
{
    struct refused *r = opaque;
    enum looked is = refused_take(r);

    if (is == LOOK_NOTHING) {
        return G_SOURCE_CONTINUE;
    }
    if (is == LOOK_SOME) {
        refused_answer(r);
    }
    refused_end(r);
    return G_SOURCE_REMOVE;
}

static gboolean on_refused_timeout(gpointer opaque)
{
    struct refused *r = opaque;

    r->timer = 0;
    refused_end(r);
    return G_SOURCE_REMOVE;
}

static void refused_say(struct vm *vm, int fd, const char *why)
{
    struct ucred cred = {.uid = (uid_t)-1};
    socklen_t len = sizeof(cred);
    gint64 now = g_get_monotonic_time();

    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len);
    if (cred.pid == vm->refusals->named && now - vm->refusals->named_at < NAME_AGAIN_US) {
        return;
    }
    vm->refusals->named = cred.pid;
    vm->refusals->named_at = now;
    log_vm(LOG_LVL_WARN, vm, "refused a VMM of user %u (process %d): %s", cred.uid,
           (int)cred.pid, why);
}

/* Those of @vm, with none waiting at first. */
static struct refusals *refusals_of(struct vm *vm)
{
    if (!vm->refusals) {
        vm->refusals = g_new0(struct refusals, 1);
        g_queue_init(&vm->refusals->waiting);
    }
    return vm->refusals;
}

void refuse_client(struct vm *vm, int fd, int err, const char *why)
{
    struct refusals *all = refusals_of(vm);
    struct refused *r;

    refused_say(vm, fd, why);
    conn_no_urgent(fd);
    if (g_queue_get_length(&all->waiting) >= MAX_WAITING) {
        refused_let_go(all, fd);
        return;
    }
    r = g_new0(struct refused, 1);
    r->all = all;
    r->fd = fd;
    r->err = err;
    g_queue_push_tail(&all->waiting, r);
    if (on_refused_readable(fd, G_IO_IN, r) == G_SOURCE_CONTINUE) {
        r->source =
            fdwatch_add(fd, G_IO_IN | G_IO_HUP | G_IO_ERR, on_refused_readable, r);
        r->timer = g_timeout_add_seconds(WAIT_S, on_refused_timeout, r);
    }
}

void refuse_unheard(struct vm *vm, int fd)
{
    conn_no_urgent(fd);
    refused_let_go(refusals_of(vm), fd);
}

bool refuse_full(const struct vm *vm)
{
    return vm->refusals && discard_full(vm->refusals->closing);
}

struct discard **refusals_discard(struct vm *vm, bool make)
{
    return make || vm->refusals ? &refusals_of(vm)->closing : NULL;
}

void refuse_end(struct vm *vm)
{
    while (vm->refusals && !g_queue_is_empty(&vm->refusals->waiting)) {
        refused_end(g_queue_peek_head(&vm->refusals->waiting));
    }
}

unsigned refusals_closing(const struct vm *vm)
{
    return vm->refusals ? discard_waiting(vm->refusals->closing) : 0;
}

void refusals_forget(struct vm *vm)
{
    refuse_end(vm);
    if (vm->refusals) {
        discard_forget(&vm->refusals->closing);
        g_clear_pointer(&vm->refusals, g_free);
    }
}
