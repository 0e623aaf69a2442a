/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", how connections end that this host has made.
 *
 * Who ends a TCP connection first keeps its addresses and ports for a minute (TIME_WAIT).
 * At the end that has made it that is one of the ports that all VMs have towards a host:
 * one VM that connects and disconnects could use up all of them.  So there a connection
 * is reset, as soon as the peer's kernel has all that was sent; what that has it can
 * read.  Nothing depends on more than that: what is lost with a connection is known by
 * the next one (private_data.h), if there is one.
 *
 * A queue pair that goes with something unacknowledged leaves its connection here for
 * so long: OF_VM of each VM, MAX of all, MOST_NS.  Beyond that the oldest is reset
 * whatever the peer has.
 *
 * Threads: the main thread, but for what linger.h says.
 */
#include "transport/iwarp/linger.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/iwarp/poll.h"

#define OF_VM   256u
#define MAX_ALL 4096u
#define MOST_NS 1000000000u
#define LOOK_MS 5u

struct lingering {
    TAILQ_ENTRY(lingering) link;
    struct tcp_vm *net; /* NULL: it has gone */
    int fd;
    uint64_t until; /* ns */
};

static TAILQ_HEAD(lingering_list, lingering) all = TAILQ_HEAD_INITIALIZER(all);
static unsigned n_all;
static guint look_timer;

void linger_set_reset(int fd, bool on)
{
    struct linger linger = {.l_onoff = on};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

bool linger_is_reset(int fd)
{
    struct linger linger = {0};
    socklen_t len = sizeof(linger);

    return getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && linger.l_onoff;
}

/* One that the peer has reset still says that it has something to send. */
static bool linger_is_dead(int fd)
{
    struct tcp_info info = {.tcpi_state = TCP_CLOSE};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
           info.tcpi_state == TCP_CLOSE;
}

bool linger_all_acked(int fd)
{
    int n = 0;

    return ioctl(fd, SIOCOUTQ, &n) < 0 || n == 0 || linger_is_dead(fd);
}

static void linger_end(struct lingering *e)
{
    TAILQ_REMOVE(&all, e, link);
    n_all--;
    if (e->net) {
        e->net->n_lingering--;
    }
    close(e->fd);
    g_free(e);
}

/* Those that have begun to wait first come first. */
static void linger_end_due(uint64_t now)
{
    struct lingering *e, *next;

    for (e = TAILQ_FIRST(&all); e; e = next) {
        next = TAILQ_NEXT(e, link);
        if (now >= e->until || linger_all_acked(e->fd)) {
            linger_end(e);
        }
    }
}

static gboolean linger_look(gpointer unused)
{
    linger_end_due(now_ns());
    if (!TAILQ_EMPTY(&all)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

static void linger_end_oldest(const struct tcp_vm *net)
{
    struct lingering *e;

    TAILQ_FOREACH(e, &all, link)
    {
        if (!net || e->net == net) {
            linger_end(e);
            return;
        }
    }
}

void linger_add(struct tcp_vm *net, int fd)
{
    struct lingering *e;

    if (linger_all_acked(fd)) {
        close(fd);
        return;
    }
    if (net->n_lingering >= OF_VM || n_all >= MAX_ALL) {
        linger_end_due(now_ns());
    }
    if (net->n_lingering >= OF_VM) {
        linger_end_oldest(net);
    } else if (n_all >= MAX_ALL) {
        linger_end_oldest(NULL);
    }
    e = g_new(struct lingering, 1);
    *e = (struct lingering){.net = net, .fd = fd, .until = now_ns() + MOST_NS};
    TAILQ_INSERT_TAIL(&all, e, link);
    n_all++;
    net->n_lingering++;
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, linger_look, NULL);
    }
}

void linger_vm_gone(struct tcp_vm *net)
{
    struct lingering *e;

    TAILQ_FOREACH(e, &all, link)
    {
        if (e->net == net) {
            e->net = NULL;
        }
    }
}

/* The kernel goes on with them as with any that was closed. */
void linger_close(void)
{
    struct lingering *e;

    while ((e = TAILQ_FIRST(&all))) {
        linger_set_reset(e->fd, false);
        linger_end(e);
    }
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
}
