/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What one daemon leaves to the next: descriptors come over once each, texts and numbers
 * as they were, and whatever of it is damaged is refused without harm.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config/config.h"
#include "control/restart/internal.h"
#include "control/restart/restart.h"
#include "handover/handover.h"
#include "handover/manager.h"

#define TAG STATE_TAG('T', 'E', 'S', 'T')

struct left {
    int memfd, fd[2];
};

static bool is_open(int fd)
{
    return fcntl(fd, F_GETFD) >= 0;
}

static void leave(struct left *l)
{
    struct handover_out h;
    GError *err = NULL;

    handover_out_begin(&h);
    state_section_begin(&h.s, TAG, 1, 0);
    for (unsigned i = 0; i < 2; i++) {
        l->fd[i] = eventfd(i, EFD_CLOEXEC);
        handover_put_fd(&h, l->fd[i]);
    }
    handover_put_fd(&h, -1);
    state_put_text(&h.s, "some text");
    state_section_end(&h.s);
    l->memfd = handover_seal(&h, &err);
    g_assert_no_error(err);
    handover_keep(&h, l->memfd, true);
    g_assert_cmpint(fcntl(l->fd[0], F_GETFD), ==, 0);
    handover_keep(&h, l->memfd, false);
    g_assert_cmpint(fcntl(l->fd[0], F_GETFD), ==, FD_CLOEXEC);
    g_assert_cmpint(fcntl(l->memfd, F_GETFD), ==, FD_CLOEXEC);
    handover_keep(&h, l->memfd, true);
    handover_out_clear(&h);
}

/* Read what leave() has left, whatever became of it. */
static void take(struct handover_in *h, bool *all)
{
    struct state_in *s = handover_stream(h);
    struct state_section section;

    *all = false;
    while (state_section_next(s, &section)) {
        int a = handover_get_fd(h, &section.in), b = handover_get_fd(h, &section.in);
        int none = handover_get_fd(h, &section.in);
        g_autofree char *text = state_get_text(&section.in);

        state_all_read(&section.in);
        *all = section.tag == TAG && a >= 0 && b >= 0 && none == -1 &&
               !strcmp(text, "some text");
        if (a >= 0) {
            close(a);
        }
        if (b >= 0) {
            close(b);
        }
        g_assert_true(a < 0 || a != b);
        g_assert_cmpint(none, ==, -1);
    }
    *all = *all && !state_failed(s);
}

static void test_once(void)
{
    struct handover_in *h;
    struct left l;
    GError *err = NULL;
    bool all;

    leave(&l);
    h = handover_open(l.memfd, &err);
    g_assert_no_error(err);
    g_assert_cmpint(fcntl(l.fd[0], F_GETFD), ==, FD_CLOEXEC);
    g_assert_cmpint(fcntl(l.memfd, F_GETFD), ==, FD_CLOEXEC);
    take(h, &all);
    g_assert_true(all);
    handover_close(h);
    g_assert_false(is_open(l.memfd));
}

/* What nobody wants is closed. */
static void test_rest(void)
{
    struct left l;

    leave(&l);
    handover_close(handover_open(l.memfd, NULL));
    g_assert_false(is_open(l.fd[0]));
    g_assert_false(is_open(l.fd[1]));
    g_assert_false(is_open(l.memfd));
}

static int memfd_of(const uint8_t *data, size_t len)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(write(fd, data, len), ==, len);
    g_assert_cmpint(
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL),
        ==, 0);
    return fd;
}

/*
 * Every length, and every byte changed but those of the list: a number in it that is
 * another's nobody can tell from a right one.
 */
static void test_damaged(void)
{
    int mine = eventfd(0, EFD_CLOEXEC), len;
    uint8_t good[4096] = {0};
    uint64_t list;
    struct left l;

    leave(&l);
    len = pread(l.memfd, good, sizeof(good), 0);
    close(l.memfd);
    memcpy(&list, good, sizeof(list));
    list = GUINT64_FROM_LE(list) + sizeof(list);
    for (int i = 0; i < 2 * len; i++) {
        int cut = i < len ? i : len, memfd;
        struct handover_in *h;
        uint8_t data[4096];
        bool all;

        memcpy(data, good, sizeof(data));
        if (i >= len && i - len >= (int)list) {
            data[i - len] ^= 1u << i % 8;
        }
        memfd = memfd_of(data, cut);
        h = handover_open(memfd, NULL);
        if (h) {
            take(h, &all);
            handover_close(h);
        } else {
            close(memfd);
        }
        g_assert_true(is_open(mine));
        for (unsigned k = 0; k < 2; k++) { /* the list's, at the same numbers again */
            int fd = is_open(l.fd[k]) ? -1 : eventfd(0, EFD_CLOEXEC);

            if (fd >= 0 && fd != l.fd[k]) {
                g_assert_cmpint(dup3(fd, l.fd[k], O_CLOEXEC), ==, l.fd[k]);
                close(fd);
            }
        }
    }
    close(mine);
    close(l.fd[0]);
    close(l.fd[1]);
}

static void test_strangers(void)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), event;
    GError *err = NULL;

    g_assert_null(handover_open(fd, &err)); /* somebody could still write to it */
    g_clear_error(&err);
    event = eventfd(0, EFD_CLOEXEC);
    g_assert_null(handover_open(event, &err));
    g_clear_error(&err);
    g_assert_null(handover_open(STDERR_FILENO, NULL));
    g_assert_null(handover_open(9999, NULL));
    g_assert_true(is_open(fd) && is_open(event));
    close(fd);
    close(event);
}

/* There is more than fits: it is not handed over in part. */
static void test_too_long(void)
{
    struct handover_out h;
    GError *err = NULL;

    handover_out_begin(&h);
    h.s.max = h.bytes->len + 20;
    state_section_begin(&h.s, TAG, 1, 0);
    state_put_text(&h.s, "some text");
    state_section_end(&h.s);
    g_assert_cmpint(handover_seal(&h, &err), ==, -1);
    g_assert_nonnull(strstr(err->message, "to hand over"));
    g_clear_error(&err);
    handover_out_clear(&h);
}

/* Can a daemon begin with a section like this?  Another process, as it keeps it. */
static bool adopts(uint32_t tag, uint16_t version, uint16_t flags)
{
    g_autofree char *number = NULL;
    struct handover_out h;
    GError *err = NULL;
    int memfd, status;
    pid_t pid;

    handover_out_begin(&h);
    state_section_begin(&h.s, tag, version, flags);
    state_put_u64(&h.s, 1);
    handover_put_fd(&h, -1);
    state_section_end(&h.s);
    memfd = handover_seal(&h, &err);
    g_assert_no_error(err);
    number = g_strdup_printf("%d", memfd);
    pid = fork();
    if (pid == 0) {
        g_setenv(RESTART_ENV, number, TRUE);
        adopt_init();
        _exit(adopt_open(NULL) ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    g_assert_cmpint(waitpid(pid, &status, 0), ==, pid);
    g_assert_true(WIFEXITED(status));
    close(memfd);
    handover_out_clear(&h);
    return WEXITSTATUS(status) == EXIT_SUCCESS;
}

/* What is not known may be passed over if it says so; not what is, of another version. */
static void test_sections(void)
{
    const uint32_t known[] = {RESTART_HEAD, RESTART_VM, RESTART_CLOSING};

    for (unsigned i = 0; i < G_N_ELEMENTS(known); i++) {
        g_assert_true(adopts(known[i], RESTART_SECTION_VERSION, 0));
        g_assert_false(adopts(known[i], RESTART_SECTION_VERSION + 1, 0));
        g_assert_false(adopts(known[i], RESTART_SECTION_VERSION + 1, STATE_OPTIONAL));
    }
    g_assert_false(adopts(RESTART_SOCKET, RESTART_SECTION_VERSION + 1, STATE_OPTIONAL));
    g_assert_false(adopts(TAG, RESTART_SECTION_VERSION, 0));
    g_assert_true(adopts(TAG, RESTART_SECTION_VERSION, STATE_OPTIONAL));
    g_assert_true(adopts(TAG, RESTART_SECTION_VERSION + 1, STATE_OPTIONAL));
}

/* ---- by a socket ---- */

#define MANY 700u

static void make_pair(int *pair)
{
    g_assert_cmpint(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), ==, 0);
}

/*
 * @n descriptors of two files, in several messages, and @bad, if it is not -1, in the
 * middle of them; what was sent is not there any more.  The socket that has all of it.
 */
static int send_many(unsigned n, int bad)
{
    int pair[2], memfd, fd[2] = {eventfd(0, EFD_CLOEXEC), eventfd(1, EFD_CLOEXEC)};
    struct handover_out h;
    GError *err = NULL;

    handover_out_begin(&h);
    state_section_begin(&h.s, TAG, 1, 0);
    state_put_u32(&h.s, n);
    for (unsigned i = 0; i < n; i++) {
        handover_put_fd(
            &h, i == n / 2 && bad >= 0 ? bad : fcntl(fd[i % 2], F_DUPFD_CLOEXEC, 3));
    }
    state_section_end(&h.s);
    memfd = handover_seal(&h, &err);
    g_assert_no_error(err);
    make_pair(pair);
    g_assert_true(handover_send(&h, memfd, pair[1], &err));
    g_assert_no_error(err);
    for (guint i = 0; i < h.fds->len; i++) {
        close(g_array_index(h.fds, int, i));
    }
    handover_out_clear(&h);
    close(fd[0]);
    close(fd[1]);
    close(memfd);
    close(pair[1]);
    return pair[0];
}

static int first_free(void)
{
    int fd = eventfd(0, EFD_CLOEXEC);

    close(fd);
    return fd;
}

/* All, or up to the one in the middle, if that is @missing. */
static void take_many(struct handover_in *h, bool missing)
{
    struct state_section section;
    unsigned n;

    g_assert_true(state_section_next(handover_stream(h), &section));
    n = state_get_u32(&section.in);
    for (unsigned i = 0; i < n; i++) {
        uint64_t count = 0;
        int fd = handover_get_fd(h, &section.in);

        if (missing && i == n / 2) {
            g_assert_cmpint(fd, ==, -1);
            g_assert_true(state_failed(&section.in));
            return;
        }
        g_assert_cmpint(fd, >=, 0);
        g_assert_cmpint(fcntl(fd, F_GETFD), ==, FD_CLOEXEC);
        /* In their order: the one is 1 once, the other 0 for ever. */
        g_assert_cmpint(fcntl(fd, F_SETFL, O_NONBLOCK), ==, 0);
        if (i % 2 && read(fd, &count, sizeof(count)) == sizeof(count)) {
            g_assert_cmpuint(count, ==, 1);
            g_assert_cmpint(write(fd, &count, sizeof(count)), ==, sizeof(count));
        } else if (!i) {
            g_assert_cmpint(read(fd, &count, sizeof(count)), ==, -1);
        }
        close(fd);
    }
    state_all_read(&section.in);
    g_assert_false(state_failed(&section.in));
}

static void test_socket(void)
{
    static const unsigned counts[] = {0, 1, 249, 250, 251, MANY};

    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        int before = first_free(), sock = send_many(counts[i], -1);
        GError *err = NULL;
        struct handover_in *h = handover_receive(sock, &err);

        g_assert_no_error(err);
        take_many(h, false);
        handover_close(h);
        g_assert_null(handover_receive(sock, NULL)); /* once */
        close(sock);
        g_assert_cmpint(first_free(), ==, before);
    }
}

/* What the kernel may say of sockets in sockets in sockets (linked with --wrap). */
static int cannot_travel = -1;

ssize_t __real_sendmsg(int sock, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags);

ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags)
{
    const struct cmsghdr *c = CMSG_FIRSTHDR(msg);
    size_t n = c ? (c->cmsg_len - CMSG_LEN(0)) / sizeof(int) : 0;

    for (size_t i = 0; i < n; i++) {
        if (((const int *)(const void *)CMSG_DATA(c))[i] == cannot_travel) {
            errno = ETOOMANYREFS;
            return -1;
        }
    }
    return __real_sendmsg(sock, msg, flags);
}

/* One that cannot travel is missing, and none else. */
static void test_one_missing(void)
{
    static const unsigned counts[] = {1, 2, 250, MANY};

    for (unsigned i = 0; i < G_N_ELEMENTS(counts); i++) {
        int before = first_free(), sock;
        struct handover_in *h;

        cannot_travel = eventfd(0, EFD_CLOEXEC);
        sock = send_many(counts[i], cannot_travel);
        cannot_travel = -1;
        h = handover_receive(sock, NULL);
        g_assert_nonnull(h);
        take_many(h, true);
        handover_close(h);
        close(sock);
        g_assert_cmpint(first_free(), ==, before);
    }
}

/* Messages are missing, or say something else. */
static void test_socket_damaged(void)
{
    static const char *const bytes[] = {"\1", "\0", "\1\1\1", "\377", "\6", "\1\7"};
    int before = first_free(), pair[2];

    for (unsigned i = 0; i < G_N_ELEMENTS(bytes); i++) {
        GError *err = NULL;

        make_pair(pair);
        g_assert_cmpint(write(pair[1], bytes[i], MAX(strlen(bytes[i]), 1)), >, 0);
        g_assert_null(handover_receive(pair[0], &err));
        g_assert_error(err, g_quark_from_static_string("pvrdma"), 0);
        g_clear_error(&err);
        close(pair[0]);
        close(pair[1]);
    }
    pair[0] = send_many(MANY, -1);
    handover_drain(pair[0]);
    g_assert_null(handover_receive(pair[0], NULL));
    close(pair[0]);
    make_pair(pair);
    g_assert_null(handover_receive(pair[0], NULL)); /* nothing yet: it does not wait */
    close(pair[0]);
    close(pair[1]);
    g_assert_null(handover_receive(STDIN_FILENO, NULL));
    g_assert_null(handover_receive(-1, NULL));
    g_assert_cmpint(first_free(), ==, before);
}

/* There is no room for all of it. */
static void test_socket_full(void)
{
    struct handover_out h;
    GError *err = NULL;
    int pair[2], memfd, fd = eventfd(0, EFD_CLOEXEC);
    char fill[4096] = "";

    handover_out_begin(&h);
    handover_put_fd(&h, fd);
    memfd = handover_seal(&h, NULL);
    make_pair(pair);
    while (send(pair[1], fill, sizeof(fill), MSG_DONTWAIT) > 0) {
    }
    while (send(pair[1], fill, 1, MSG_DONTWAIT) > 0) {
    }
    g_assert_false(handover_send(&h, memfd, pair[1], &err));
    g_assert_nonnull(err);
    g_clear_error(&err);
    close(pair[0]);
    g_assert_false(handover_send(&h, memfd, pair[1], &err)); /* nobody keeps it */
    g_clear_error(&err);
    close(pair[1]);
    close(memfd);
    close(fd);
    handover_out_clear(&h);
}

/* LISTEN_FDNAMES. */
static void test_names(void)
{
    static const struct {
        const char *names;
        unsigned n, found; /* bits */
    } cases[] = {
        {"ours", 1, 1},
        {"ours:ours", 2, 3},
        {"ours:ours", 1, 1},
        {"other:ours", 2, 2},
        {"ours:", 2, 1},
        {":ours", 2, 2},
        {"", 3, 0},
        {NULL, 3, 0},
        {"ourss:our:ours", 3, 4},
        {"ours", 0, 0},
        {"::::ours", 5, 1 << 4},
        {"OURS: ours:ours ", 3, 0},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(cases); i++) {
        g_autofree bool *found = manager_find_names(cases[i].names, cases[i].n, "ours");

        for (unsigned k = 0; k < cases[i].n; k++) {
            g_assert_cmpint(found[k], ==, cases[i].found >> k & 1);
        }
    }
}

/* ---- a VM's keys ---- */

static void set(void *opaque, const char *key, const char *value)
{
    GError *err = NULL;

    g_assert_true(config_vm_set(opaque, key, value, &err));
    g_assert_no_error(err);
}

/* The next daemon is asked for each. */
static void is_listed(void *opaque, const char *key, const char *value)
{
    g_autofree char *line = g_strdup_printf("key %s\n", key);
    g_autofree char *sections = restart_sections();

    g_assert_nonnull(strstr(sections, line));
    ++*(unsigned *)opaque;
}

static void test_keys(void)
{
    static const char *const keys[][2] = {
        {"socket", "/somewhere/vm.sock"},
        {"network", "blue"},
        {"addresses", "10.0.0.1;52:54:00:00:00:01;fd00::7"},
        {"mac", "52:54:00:00:00:01"},
        {"max-qp", "17"},
        {"max-cq", "18"},
        {"max-srq", "19"},
        {"max-mr", "20"},
        {"max-pd", "21"},
        {"max-mr-pages", "22"},
        {"shares", "23"},
        {"max-memory", "3G"},
        {"max-files", "24"},
        {"require-sealed", "false"},
        {"uid", "1000;0"},
        {"worker", "0;3"},
        {"nic-rate", "3M"},
        {"nic-dscp", "46"},
    };
    struct daemon_config *cfg = config_new();
    unsigned listed;

    config_complete(cfg);
    for (unsigned n = 0; n <= G_N_ELEMENTS(keys); n++) {
        struct vm_config *a = config_vm_new(cfg, "x", NULL);
        struct vm_config *b = config_vm_new(cfg, "x", NULL);

        for (unsigned i = 0; i < n; i++) {
            set(a, keys[i][0], keys[i][1]);
        }
        config_vm_keys(a, set, b);
        listed = 0;
        config_vm_keys(a, is_listed, &listed);
        g_assert_cmpuint(listed, >=, MAX(n, G_N_ELEMENTS(keys) - 4));
        g_assert_null(config_vm_diff(a, b));
        g_assert_cmpint(a->own_workers, ==, b->own_workers);
        g_assert_cmpint(a->own_rate, ==, b->own_rate);
        g_assert_cmpint(a->own_dscp, ==, b->own_dscp);
        if (n > 2) { /* from "any" as well as to it */
            set(a, "addresses", "any");
            config_vm_keys(a, set, b);
            g_assert_null(config_vm_diff(a, b));
        }
        config_vm_free(a);
        config_vm_free(b);
    }
    config_free(cfg);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/handover/once", test_once);
    g_test_add_func("/handover/socket", test_socket);
    g_test_add_func("/handover/one-missing", test_one_missing);
    g_test_add_func("/handover/socket-damaged", test_socket_damaged);
    g_test_add_func("/handover/socket-full", test_socket_full);
    g_test_add_func("/handover/names", test_names);
    g_test_add_func("/handover/rest", test_rest);
    g_test_add_func("/handover/damaged", test_damaged);
    g_test_add_func("/handover/strangers", test_strangers);
    g_test_add_func("/handover/too-long", test_too_long);
    g_test_add_func("/handover/sections", test_sections);
    g_test_add_func("/handover/keys", test_keys);
    return g_test_run();
}
