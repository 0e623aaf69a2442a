/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Listening sockets, one per declared VM: the socket is the VM's identity.
 *
 * Their files: sockfile.h.  Main thread only.
 */
#include <errno.h>
#include <gio/gio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "base/acceptor.h"
#include "handover/sockfile.h"
#include "vm/attach.h"

#define SOCKET_MODE 0660

/* Connections taken per wake-up; pauses while something passes by itself. */
#define ACCEPT_BATCH    8
#define CLOSE_PAUSE_MS  500
#define SETTLE_PAUSE_MS 20

/* The pause after a fault: doubled from one to the next, until the VM has behaved
 * for a while after a pause. */
#define FAULT_PAUSE_MIN_MS 500u
#define FAULT_PAUSE_MAX_MS 60000u
#define FAULT_CALM_US      (60 * G_USEC_PER_SEC)

struct vfu_listener {
    struct vm *vm;
    struct acceptor acceptor;
    guint fault_pause_ms;  /* the last one; 0: none */
    gint64 fault_over;     /* when it is over, monotonic us */
    bool piled_up;         /* said already that VMMs wait for their memory's end */
    const char *waits_why; /* ... or for another reason */
    bool frozen;           /* nobody is accepted */
    struct sockfile file;
};

static void pause_for(struct vfu_listener *l, guint ms)
{
    if (!l->frozen) {
        acceptor_pause(&l->acceptor, ms);
    }
}

/* The last VMM was thrown out for what it did; see FAULT_PAUSE_MIN_MS. */
static void hold_off(struct vfu_listener *l)
{
    gint64 now = g_get_monotonic_time();

    if (!l->fault_pause_ms || now - l->fault_over > FAULT_CALM_US) {
        l->fault_pause_ms = FAULT_PAUSE_MIN_MS;
    } else {
        l->fault_pause_ms = MIN(2 * l->fault_pause_ms, FAULT_PAUSE_MAX_MS);
    }
    l->fault_over = now + (gint64)l->fault_pause_ms * 1000;
    pause_for(l, l->fault_pause_ms);
}

void frontend_conn_gone(struct vfu_listener *l, bool faulted)
{
    if (faulted) {
        hold_off(l);
    } else if (!l->frozen) {
        acceptor_start(&l->acceptor);
    }
}

/* Is the VMM at @client one that may be this VM (uid= in the key file)? */
static bool may_serve(const struct vm *vm, int client)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);

    return vm->cfg->any_uid ||
           (getsockopt(client, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 &&
            config_vm_uid_ok(vm->cfg, cred.uid));
}

/* Is there nobody to be accepted, as @state is now?  Says @why. */
static bool must_wait(const struct vm *vm, enum conn_state state, const char **why)
{
    bool all_may = state == CONN_NONE && vm->cfg->any_uid; /* nobody is refused */

    *why = discard_full(vm->discard)
               ? "takes no VMM: descriptors of the last VMM cannot be closed"
           : !all_may && refuse_full(vm)
               ? "takes no VMM: descriptors of refused VMMs cannot be closed"
               : NULL;
    return *why != NULL;
}

static bool on_may_accept(void *opaque)
{
    struct vfu_listener *l = opaque;
    enum conn_state state = conn_look(l->vm);
    const char *why;

    if (!l->acceptor.watch) {
        return false; /* that ended with a fault: hold off */
    }
    if (state == CONN_LEAVING) {
        acceptor_stop(&l->acceptor); /* until it is gone; clients wait in the queue */
        return false;
    }
    if (state == CONN_NONE && (l->vm->next_cfg || l->vm->retiring)) {
        /* What waited for the last one to leave comes first. */
        pause_for(l, SETTLE_PAUSE_MS);
        return false;
    }
    if (state == CONN_NONE && guest_mem_piled_up(&l->vm->guest.mem)) {
        /* It could map nothing; that passes by itself. */
        if (!l->piled_up) {
            log_vm(LOG_LVL_WARN, l->vm,
                   "a VMM waits: too much of its former memory is still being "
                   "unmapped");
            l->piled_up = true;
        }
        pause_for(l, SETTLE_PAUSE_MS);
        return false;
    }
    l->piled_up = false;
    if (must_wait(l->vm, state, &why)) {
        if (why != l->waits_why) {
            log_vm(LOG_LVL_WARN, l->vm, "%s", why);
        }
        l->waits_why = why;
        pause_for(l, CLOSE_PAUSE_MS);
        return false;
    }
    l->waits_why = NULL;
    return true;
}

static void on_vmm(void *opaque, int fd, const struct sockaddr_storage *from)
{
    struct vfu_listener *l = opaque;

    if (may_serve(l->vm, fd)) {
        frontend_adopt(l->vm, fd);
    } else {
        refuse_client(l->vm, fd, EPERM, "not in uid=");
    }
}

static void on_no_room(void *opaque, int err)
{
    struct vfu_listener *l = opaque;

    log_vm(LOG_LVL_ERROR, l->vm, "cannot accept a VMM: %s", g_strerror(err));
}

void frontend_freeze(struct vm *vm)
{
    struct vfu_listener *l = vm->listener;

    if (l) {
        acceptor_stop(&l->acceptor);
        l->frozen = true;
    }
    refuse_end(vm);
    if (vm->conn) {
        conn_freeze(vm->conn);
    }
}

void frontend_thaw(struct vm *vm)
{
    struct vfu_listener *l = vm->listener;
    gint64 rest = l ? l->fault_over - g_get_monotonic_time() : 0;

    if (l && l->frozen) {
        l->frozen = false;
        if (rest > 0) {
            pause_for(l, (guint)(rest / 1000) + 1);
        } else {
            acceptor_start(&l->acceptor);
        }
    }
    if (vm->conn) {
        conn_thaw(vm->conn);
    }
}

struct vfu_listener *frontend_listen(struct vm *vm, GError **errp)
{
    const char *path = vm->cfg->socket;
    struct sockfile file;
    struct vfu_listener *l;
    int fd = sockfile_listen(&file, path, SOCKET_MODE, ACCEPT_BATCH);

    if (fd < 0) {
        g_set_error(errp, G_IO_ERROR, g_io_error_from_errno(-fd),
                    "cannot listen on %s: %s", path, g_strerror(-fd));
        return NULL;
    }
    l = g_new0(struct vfu_listener, 1);
    l->vm = vm;
    l->acceptor =
        (struct acceptor){fd, ACCEPT_BATCH, on_may_accept, on_vmm, on_no_room, l};
    l->file = file;
    acceptor_start(&l->acceptor);
    return l;
}

void frontend_listener_hand_over(const struct vfu_listener *l, struct handover_out *h)
{
    sockfile_hand_over(&l->file, l->acceptor.fd, h);
}

void frontend_unlisten(struct vfu_listener *l)
{
    int fd, client;

    if (!l) {
        return;
    }
    fd = l->acceptor.fd;
    acceptor_stop(&l->acceptor);
    /* Whoever waits in the queue may have sent descriptors, too. */
    shutdown(fd, SHUT_RD);
    while ((client = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        refuse_unheard(l->vm, client);
    }
    close(fd);
    sockfile_remove(&l->file);
    g_free(l);
}
