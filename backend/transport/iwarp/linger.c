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

struct ending {
    TAILQ_ENTRY(ending) link;
    struct tcp_vm *net; /* NULL: it has gone */
    int fd;
    uint64_t until; /* ns */
};

static TAILQ_HEAD(ending_list, ending) all = TAILQ_HEAD_INITIALIZER(all);
static unsigned n_all;
static guint look_timer;

void ending_by_reset(int fd, bool on)
{
    struct linger linger = {.l_onoff = on};

    setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
}

bool ending_is_reset(int fd)
{
    struct linger linger = {0};
    socklen_t len = sizeof(linger);

    return getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &len) == 0 && linger.l_onoff;
}

/* One that the peer has reset still says that it has something to send. */
static bool is_dead(int fd)
{
    struct tcp_info info = {.tcpi_state = TCP_CLOSE};
    socklen_t len = sizeof(info);

    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
           info.tcpi_state == TCP_CLOSE;
}

bool ending_has_all(int fd)
{
    int n = 0;

    return ioctl(fd, SIOCOUTQ, &n) < 0 || n == 0 || is_dead(fd);
}

static void end(struct ending *e)
{
    TAILQ_REMOVE(&all, e, link);
    n_all--;
    if (e->net) {
        e->net->n_ending--;
    }
    close(e->fd);
    g_free(e);
}

/* Those that have begun to wait first come first. */
static void end_those(uint64_t now)
{
    struct ending *e, *next;

    for (e = TAILQ_FIRST(&all); e; e = next) {
        next = TAILQ_NEXT(e, link);
        if (now >= e->until || ending_has_all(e->fd)) {
            end(e);
        }
    }
}

static gboolean look(gpointer unused)
{
    end_those(now_ns());
    if (!TAILQ_EMPTY(&all)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

static void end_oldest(const struct tcp_vm *net)
{
    struct ending *e;

    TAILQ_FOREACH(e, &all, link)
    {
        if (!net || e->net == net) {
            end(e);
            return;
        }
    }
}

void ending_take(struct tcp_vm *net, int fd)
{
    struct ending *e;

    if (ending_has_all(fd)) {
        close(fd);
        return;
    }
    if (net->n_ending >= OF_VM || n_all >= MAX_ALL) {
        end_those(now_ns());
    }
    if (net->n_ending >= OF_VM) {
        end_oldest(net);
    } else if (n_all >= MAX_ALL) {
        end_oldest(NULL);
    }
    e = g_new(struct ending, 1);
    *e = (struct ending){.net = net, .fd = fd, .until = now_ns() + MOST_NS};
    TAILQ_INSERT_TAIL(&all, e, link);
    n_all++;
    net->n_ending++;
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, look, NULL);
    }
}

void ending_vm_gone(struct tcp_vm *net)
{
    struct ending *e;

    TAILQ_FOREACH(e, &all, link)
    {
        if (e->net == net) {
            e->net = NULL;
        }
    }
}

/* The kernel goes on with them as with any that was closed. */
void ending_close(void)
{
    struct ending *e;

    while ((e = TAILQ_FIRST(&all))) {
        ending_by_reset(e->fd, false);
        end(e);
    }
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
}
