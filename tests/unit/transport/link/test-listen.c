/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * link/listen.c: how many connections may be undecided, of all hosts, of one, and of one
 * that has a link; and what each takes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <glib.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../heap.h"
#include "transport/link/internal.h"
#include "transport/link/link.h"

#define PORT    7471
#define N_HOSTS 10u

/* docs/hosts.md has these. */
#define ALL       512u
#define OF_ONE    64u
#define OF_LINKED 1024u
#define EACH      700u  /* bytes of one of which nothing is known */
#define LINK_EACH 3072u /* ... and of one that is no link yet */

static char *address[N_HOSTS + 1]; /* the last one is this host's */

static struct sockaddr_storage parsed(unsigned i)
{
    struct sockaddr_storage a;

    g_assert_true(config_parse_address(address[i], &a));
    return a;
}

static void begin(void)
{
    struct daemon_config *cfg = config_new();
    unsigned pid = (unsigned)getpid();

    for (unsigned i = 0; i <= N_HOSTS; i++) {
        address[i] = g_strdup_printf("127.%u.%u.%u:%u", 64 + (pid >> 8) % 128, pid & 255,
                                     200 + i, PORT);
    }
    log_set_level(LOG_LVL_ERROR);
    g_assert_true(config_set(cfg, "listen", address[N_HOSTS], false, NULL));
    g_assert_true(config_set(cfg, "host-name", "a", false, NULL));
    for (unsigned i = 0; i < N_HOSTS; i++) {
        g_autofree char *name = g_strdup_printf("h%u", i);
        struct peer_config *pc = config_peer_new(name, NULL);

        pc->address = parsed(i);
        pc->secret = (uint8_t *)g_strdup("0123456789abcdef");
        pc->secret_len = 16;
        cfg->peers = g_list_append(cfg->peers, pc);
    }
    peers_start(cfg);
    peers_self.turned_away = 0;
    config_free(cfg);
}

static void end(void)
{
    peers_stop();
    for (unsigned i = 0; i <= N_HOSTS; i++) {
        g_free(address[i]);
    }
}

static void turns(void)
{
    while (g_main_context_iteration(NULL, FALSE)) {
        continue;
    }
}

static int call(unsigned from)
{
    struct sockaddr_storage own = parsed(from), to = parsed(N_HOSTS);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ((struct sockaddr_in *)&own)->sin_port = 0;
    g_assert_cmpint(bind(fd, (struct sockaddr *)&own, sizeof(struct sockaddr_in)), ==, 0);
    g_assert_cmpint(connect(fd, (struct sockaddr *)&to, sizeof(struct sockaddr_in)), ==,
                    0);
    return fd;
}

/* Those that have come are looked at. */
static void settle(unsigned undecided, uint64_t turned_away)
{
    while (listen_undecided() + peers_self.turned_away < undecided + turned_away) {
        g_main_context_iteration(NULL, TRUE);
    }
    turns();
    g_assert_cmpuint(listen_undecided(), ==, undecided);
    g_assert_cmpuint(peers_self.turned_away, ==, turned_away);
}

static bool is_open(int fd)
{
    char c;

    return recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

/* @more has got it. */
static void take_place(int *fd, int more)
{
    g_assert_true(is_open(more));
    g_assert_false(is_open(*fd));
    close(*fd);
    *fd = more;
}

static void test_all(void)
{
    int fd[ALL], more;
    size_t before;

    if (!heap_have_descriptors(2 * ALL + 100)) {
        return;
    }
    begin();
    turns();
    fd[ALL - 1] = call(ALL / OF_ONE + 1); /* the oldest of all, of a host that has few */
    settle(1, 0);
    for (unsigned i = 0; i < ALL - 1; i++) {
        fd[i] = call(i / OF_ONE);
    }
    settle(ALL, 0);
    /* One more of a host's is for its oldest; the first of another for that of the host
     * that has most. */
    more = call(1);
    settle(ALL, 1);
    take_place(&fd[OF_ONE], more);
    more = call(ALL / OF_ONE);
    settle(ALL, 2);
    take_place(&fd[0], more);
    g_assert_true(is_open(fd[ALL - 1]));
    /* They begin as links, and count as before. */
    before = heap_used();
    for (unsigned i = 0; i < ALL; i++) {
        g_assert_cmpint(send(fd[i], PEER_MAGIC, PEER_MAGIC_LEN, 0), ==, PEER_MAGIC_LEN);
    }
    turns();
    heap_assert_each("no link yet", before, ALL, LINK_EACH);
    more = call(ALL / OF_ONE); /* the second one's has as many as there may be */
    g_assert_cmpint(send(more, PEER_MAGIC, PEER_MAGIC_LEN, 0), ==, PEER_MAGIC_LEN);
    settle(ALL, 3);
    take_place(&fd[OF_ONE], more);
    for (unsigned i = 0; i < ALL; i++) {
        g_assert_true(is_open(fd[i]));
        close(fd[i]);
    }
    while (listen_undecided()) {
        g_main_context_iteration(NULL, TRUE);
    }
    end();
}

/* A host with a link; that another has as many of its own does not matter to it. */
static void test_linked(void)
{
    int fd[OF_LINKED + 3];
    struct peer *peer;
    size_t before;
    struct peer_link link = {0}; /* that there is one, not silent, is all that counts */

    if (!heap_have_descriptors(2 * OF_LINKED + 200)) {
        return;
    }
    begin();
    turns();
    peer = peer_find("h0");
    peer->link = &link;
    before = heap_used();
    for (unsigned i = 0; i < OF_LINKED; i++) {
        fd[i] = call(0);
    }
    settle(OF_LINKED, 0);
    heap_assert_each("undecided", before, OF_LINKED, EACH);
    for (unsigned i = OF_LINKED; i < G_N_ELEMENTS(fd) - 1; i++) {
        fd[i] = call(0);
    }
    settle(OF_LINKED, 2);
    fd[OF_LINKED + 2] = call(1);
    settle(OF_LINKED + 1, 2);
    for (unsigned i = 0; i < G_N_ELEMENTS(fd); i++) {
        g_assert_true(is_open(fd[i]) == (i >= 2)); /* those that were there first */
        close(fd[i]);
    }
    while (listen_undecided()) {
        g_main_context_iteration(NULL, TRUE);
    }
    peer->link = NULL;
    end();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/listen/all", test_all);
    g_test_add_func("/listen/linked", test_linked);
    return g_test_run();
}
