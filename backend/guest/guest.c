/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Faults of guests: how a thread that finds out (a SIGBUS handler even) tells the
 * main loop, which alone can let a guest go.
 */
#include "guest/guest.h"

#include <errno.h>
#include <glib-unix.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int fault_fd = -1; /* set before threads start */
static guint fault_source;
static void (*fault_handler)(void);

void guest_fault(struct guest *g, const char *why)
{
    const char *none = NULL;
    int saved_errno = errno;
    uint64_t one = 1;

    /* The first reason is the one to report. */
    if (atomic_compare_exchange_strong(&g->fault, &none, why) &&
        write(fault_fd, &one, sizeof(one)) < 0) {
        /* Only without guest_on_fault(): then the caller looks at ->fault. */
    }
    errno = saved_errno;
}

static gboolean on_fault(gint fd, GIOCondition cond, gpointer opaque)
{
    uint64_t n;

    if (read(fd, &n, sizeof(n)) >= 0) {
        fault_handler();
    }
    return G_SOURCE_CONTINUE;
}

bool guest_on_fault(void (*handler)(void), GError **errp)
{
    fault_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fault_fd < 0) {
        g_set_error(errp, G_FILE_ERROR, g_file_error_from_errno(errno), "eventfd: %s",
                    g_strerror(errno));
        return false;
    }
    fault_handler = handler;
    fault_source = g_unix_fd_add(fault_fd, G_IO_IN, on_fault, NULL);
    return true;
}

void guest_fault_stop(void)
{
    if (fault_fd >= 0) {
        g_source_remove(fault_source);
        close(fault_fd);
        fault_fd = -1;
    }
}
