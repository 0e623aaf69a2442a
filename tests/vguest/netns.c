/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Hosts that are network namespaces; see netns.h.
 *
 * A namespace is made by this program's thread, which enters it and leaves it again; it
 * lives as long as the descriptors that are kept of it, or a daemon in it.  Its TUN
 * device's other end is a descriptor, too, from which whole IP packets are read.
 *
 * The wire takes each packet from where it comes, casts the dice for it, and gives it to
 * whom its destination says.  One that is late is kept until its time has come.
 *
 * Threads: the wire is one; what it shares with the test is under its lock.  A daemon is
 * started by a thread that is in its namespace.
 */
#include "netns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define NETWORK    0x0a630000u /* 10.99.0.0/24: host i is 10.99.0.(i + 1) */
#define PREFIX     "10.99.0."
#define DEVICE     "wire"
#define PACKET_MAX 2048u /* more than a device's MTU, 1500 */
#define LATE_MAX   256u
#define AT_ONCE    64u /* packets of one host in a row */
#define DST_AT     16u /* an IPv4 header's destination */
#define IPV4_MIN   20u

struct late {
    int64_t due;
    unsigned from, to;
    bool overtaken;
    size_t len;
    uint8_t packet[PACKET_MAX];
};

struct netns {
    unsigned n;
    int own; /* the namespace that this program is in */
    int ns[NETNS_MAX_HOSTS], tun[NETNS_MAX_HOSTS];
    GThread *thread;
    pthread_mutex_t lock; /* protects what follows but for late and rand, the thread's */
    bool stop, held, cut[NETNS_MAX_HOSTS];
    struct netns_faults faults;
    struct netns_counts counts;
    GRand *rand;
    struct late *late[LATE_MAX];
    unsigned n_late;
};

/* ---- namespaces ---- */

static int open_own(void)
{
    return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

static void enter(int ns)
{
    if (setns(ns, CLONE_NEWNET) < 0) {
        g_error("setns: %s", g_strerror(errno));
    }
}

/* @request for device @name of the namespace that the thread is in. */
static void set_device(const char *name, unsigned long request, struct ifreq *ifr)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    g_assert_cmpint(fd, >=, 0);
    g_strlcpy(ifr->ifr_name, name, sizeof(ifr->ifr_name));
    if (ioctl(fd, request, ifr) < 0) {
        g_error("%s: request 0x%lx: %s", name, request, g_strerror(errno));
    }
    close(fd);
}

static void set_address(unsigned long request, uint32_t address)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr = {htonl(address)}};
    struct ifreq ifr = {0};

    memcpy(&ifr.ifr_addr, &sa, sizeof(sa));
    set_device(DEVICE, request, &ifr);
}

static void set_up(const char *name, bool up)
{
    struct ifreq ifr = {0};

    set_device(name, SIOCGIFFLAGS, &ifr);
    ifr.ifr_flags = (short)(up ? ifr.ifr_flags | IFF_UP : ifr.ifr_flags & ~IFF_UP);
    set_device(name, SIOCSIFFLAGS, &ifr);
}

static int open_tun(void)
{
    struct ifreq ifr = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);

    g_strlcpy(ifr.ifr_name, DEVICE, sizeof(ifr.ifr_name));
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &ifr) < 0) {
        int err = errno;

        close(fd);
        errno = err;
        fd = -1;
    }
    return fd;
}

/* The thread is in the namespace that it has just made. */
static void make_host(struct netns *w, unsigned i)
{
    w->ns[i] = open_own();
    w->tun[i] = open_tun();
    g_assert_cmpint(w->ns[i], >=, 0);
    g_assert_cmpint(w->tun[i], >=, 0);
    set_up("lo", true);
    set_address(SIOCSIFADDR, NETWORK + i + 1);
    set_address(SIOCSIFNETMASK, 0xffffff00u);
    set_up(DEVICE, true);
}

char *netns_why_not(void)
{
    char *why = NULL;
    int own, fd;

    if (geteuid() != 0) {
        return g_strdup("network namespaces need root");
    }
    own = open_own();
    if (own < 0 || unshare(CLONE_NEWNET) < 0) {
        why = g_strdup_printf("no network namespaces: %s", g_strerror(errno));
    } else {
        fd = open_tun();
        if (fd < 0) {
            why = g_strdup_printf("no TUN devices: %s", g_strerror(errno));
        } else {
            close(fd);
        }
        enter(own);
    }
    if (own >= 0) {
        close(own);
    }
    return why;
}

/* ---- the wire's thread ---- */

static bool happens(struct netns *w, unsigned of_1000)
{
    return of_1000 && (unsigned)g_rand_int_range(w->rand, 0, 1000) < of_1000;
}

/* A device that is down takes none, one that is full neither. */
static void put(struct netns *w, unsigned to, const uint8_t *packet, size_t len)
{
    bool came = write(w->tun[to], packet, len) == (ssize_t)len;

    w->counts.carried += came;
    w->counts.cut += !came;
}

/* Under the lock. */
static void carry(struct netns *w, unsigned from, const uint8_t *packet, size_t len)
{
    uint32_t dst;
    unsigned to;

    if (len < IPV4_MIN || packet[0] >> 4 != 4) {
        return; /* IPv6's */
    }
    memcpy(&dst, packet + DST_AT, sizeof(dst));
    to = ntohl(dst) - NETWORK - 1;
    if (to >= w->n || to == from) {
        return;
    }
    if (w->cut[from] || w->cut[to]) {
        w->counts.cut++;
        return;
    }
    if (happens(w, w->faults.lost)) {
        w->counts.lost++;
        return;
    }
    if (happens(w, w->faults.twice)) {
        w->counts.twice++;
        put(w, to, packet, len);
    }
    if (w->n_late < LATE_MAX && happens(w, w->faults.late)) {
        struct late *l = g_new(struct late, 1);

        l->due = vg_now_ns() +
                 g_rand_int_range(w->rand, 1, (gint32)w->faults.late_us + 1) * 1000ll;
        l->from = from;
        l->to = to;
        l->len = len;
        l->overtaken = false;
        memcpy(l->packet, packet, len);
        w->late[w->n_late++] = l;
        return;
    }
    for (unsigned i = 0; i < w->n_late; i++) {
        struct late *l = w->late[i];

        if (l->from == from && l->to == to && !l->overtaken) {
            l->overtaken = true;
            w->counts.overtaken++;
        }
    }
    put(w, to, packet, len);
}

/*
 * Those whose time has come; returns ms until the next one's, or a look at the switches.
 */
static int carry_late(struct netns *w)
{
    int64_t now = vg_now_ns();
    int wait = 20;

    for (unsigned i = w->n_late; i-- > 0;) {
        struct late *l = w->late[i];

        if (l->due > now) {
            wait = MIN(wait, (int)((l->due - now) / 1000000) + 1);
            continue;
        }
        if (w->cut[l->from] || w->cut[l->to]) {
            w->counts.cut++;
        } else {
            put(w, l->to, l->packet, l->len);
        }
        g_free(l);
        w->late[i] = w->late[--w->n_late];
    }
    return wait;
}

static gpointer run(gpointer opaque)
{
    struct netns *w = opaque;
    struct pollfd p[NETNS_MAX_HOSTS];
    uint8_t packet[PACKET_MAX];
    bool stop = false;

    for (unsigned i = 0; i < w->n; i++) {
        p[i] = (struct pollfd){.fd = w->tun[i], .events = POLLIN};
    }
    while (!stop) {
        int wait;
        bool held;

        pthread_mutex_lock(&w->lock);
        held = w->held;
        for (unsigned i = 0; i < w->n && !held; i++) {
            for (unsigned k = 0; k < AT_ONCE; k++) {
                ssize_t len = read(w->tun[i], packet, sizeof(packet));

                if (len <= 0) {
                    break;
                }
                carry(w, i, packet, (size_t)len);
            }
        }
        wait = carry_late(w);
        stop = w->stop;
        pthread_mutex_unlock(&w->lock);
        poll(p, held ? 0 : w->n, held ? 1 : wait);
    }
    return NULL;
}

/* ---- for the test ---- */

struct netns *netns_new(unsigned n)
{
    struct netns *w = g_new0(struct netns, 1);

    g_assert_cmpuint(n, <=, NETNS_MAX_HOSTS);
    hosts_use_network(PREFIX);
    w->n = n;
    w->own = open_own();
    g_assert_cmpint(w->own, >=, 0);
    for (unsigned i = 0; i < n; i++) {
        g_assert_cmpint(unshare(CLONE_NEWNET), ==, 0);
        make_host(w, i);
        enter(w->own);
    }
    pthread_mutex_init(&w->lock, NULL);
    w->rand = g_rand_new_with_seed(1);
    w->thread = g_thread_new("wire", run, w);
    return w;
}

void netns_free(struct netns *w)
{
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_mutex_unlock(&w->lock);
    g_thread_join(w->thread);
    for (unsigned i = 0; i < w->n_late; i++) {
        g_free(w->late[i]);
    }
    for (unsigned i = 0; i < w->n; i++) {
        close(w->tun[i]);
        close(w->ns[i]);
    }
    close(w->own);
    g_rand_free(w->rand);
    pthread_mutex_destroy(&w->lock);
    g_free(w);
}

struct vg_daemon *netns_host(struct netns *w, unsigned i, const struct host_opts *opts)
{
    struct vg_daemon *d;

    enter(w->ns[i]);
    d = host_start(i, opts);
    enter(w->own);
    return d;
}

void netns_hosts(struct netns *w, struct vg_daemon **host, const struct host_opts *opts)
{
    for (unsigned i = 0; i < w->n; i++) {
        host[i] = netns_host(w, i, opts);
    }
    hosts_wait_up(host, w->n);
}

bool netns_run(struct netns *w, unsigned i, const char *command)
{
    const char *argv[] = {"sh", "-c", command, NULL};
    g_autofree char *err = NULL;
    int status;

    enter(w->ns[i]);
    g_assert_true(g_spawn_sync(NULL, (char **)(uintptr_t)argv, NULL, G_SPAWN_SEARCH_PATH,
                               NULL, NULL, NULL, &err, &status, NULL));
    enter(w->own);
    if (status != 0) {
        g_test_message("host %u: %s: %s", i, command, err);
    }
    return status == 0;
}

static int socket_of(struct netns *w, unsigned i)
{
    int fd;

    enter(w->ns[i]);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    enter(w->own);
    g_assert_cmpint(fd, >=, 0);
    return fd;
}

static struct sockaddr_in address_of(unsigned i, unsigned port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(NETWORK + i + 1)}};
}

int netns_listen(struct netns *w, unsigned i, unsigned port)
{
    struct sockaddr_in sa = address_of(i, port);
    int fd = socket_of(w, i);

    g_assert_cmpint(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), ==, 0);
    g_assert_cmpint(listen(fd, 8), ==, 0);
    return fd;
}

bool netns_calls(struct netns *w, unsigned i, unsigned to, unsigned port, int ms)
{
    struct sockaddr_in sa = address_of(to, port);
    struct pollfd p = {.fd = socket_of(w, i), .events = POLLOUT};
    bool there;

    if (connect(p.fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
        g_assert_cmpint(errno, ==, EINPROGRESS);
    }
    there = poll(&p, 1, ms) == 1 && !(p.revents & (POLLERR | POLLHUP));
    close(p.fd);
    return there;
}

void netns_link(struct netns *w, unsigned i, bool up)
{
    enter(w->ns[i]);
    set_up(DEVICE, up);
    enter(w->own);
}

void netns_cut(struct netns *w, unsigned i, bool on)
{
    pthread_mutex_lock(&w->lock);
    w->cut[i] = on;
    pthread_mutex_unlock(&w->lock);
}

void netns_hold(struct netns *w, bool on)
{
    pthread_mutex_lock(&w->lock);
    w->held = on;
    pthread_mutex_unlock(&w->lock);
}

void netns_set_faults(struct netns *w, const struct netns_faults *f)
{
    pthread_mutex_lock(&w->lock);
    w->faults = *f;
    pthread_mutex_unlock(&w->lock);
}

struct netns_counts netns_count(struct netns *w)
{
    struct netns_counts c;

    pthread_mutex_lock(&w->lock);
    c = w->counts;
    pthread_mutex_unlock(&w->lock);
    return c;
}

/* /proc/net/snmp has two lines of TCP's: names, and values. */
uint64_t netns_tcp(struct netns *w, unsigned i, const char *name)
{
    g_autofree char *text = NULL;
    g_auto(GStrv) lines = NULL;
    g_auto(GStrv) names = NULL;

    enter(w->ns[i]);
    g_assert_true(g_file_get_contents("/proc/thread-self/net/snmp", &text, NULL, NULL));
    enter(w->own);
    lines = g_strsplit(text, "\n", -1);
    for (unsigned k = 0; lines[k]; k++) {
        g_auto(GStrv) words = NULL;

        if (!g_str_has_prefix(lines[k], "Tcp:")) {
            continue;
        }
        words = g_strsplit(lines[k], " ", -1);
        if (!names) {
            names = g_steal_pointer(&words);
            continue;
        }
        for (unsigned m = 0; names[m] && words[m]; m++) {
            if (strcmp(names[m], name) == 0) {
                return g_ascii_strtoull(words[m], NULL, 10);
            }
        }
    }
    g_error("no %s", name);
}
