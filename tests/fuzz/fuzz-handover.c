/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of what a service manager has kept for the daemon: names of descriptors, and the
 * socket with a state and descriptors.
 *
 * The first byte of an input says which: 0, a list of names, for as many descriptors as
 * the second says; others, how many messages come behind the state's in the socket.  Of
 * each of these there is one byte, how many descriptors it says it has; the next one is
 * how many come.  The rest is what the memfd contains.
 *
 * Whatever is taken is closed, and no descriptor may be left; the corpus has to get to
 * descriptors and texts, and to each reason to refuse (fuzz_reached_all).
 */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fuzz.h"
#include "handover/handover.h"
#include "handover/manager.h"

#define SEALS    (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)
#define MAX_COME 8u

static struct {
    bool name, fd, missing, text, refused;
} reached;

bool fuzz_reached_all(void)
{
    const struct fuzz_reached all[] = {
        {"a name", reached.name},
        {"a descriptor", reached.fd},
        {"one that did not come", reached.missing},
        {"a text", reached.text},
        {"what cannot be", reached.refused},
    };

    return fuzz_all_reached(all, G_N_ELEMENTS(all));
}

static void find_names(const uint8_t *data, size_t size)
{
    g_autofree char *names = g_strndup((const char *)data + 1, size - 1);
    g_autofree bool *found = manager_find_names(names, data[0], "pvrdmad-state");

    for (unsigned i = 0; i < data[0]; i++) {
        reached.name |= found[i];
        CHECK(!found[i] || strstr(names, "pvrdmad-state"));
    }
}

static void send_message(int sock, uint8_t says, unsigned come, int fd)
{
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(MAX_COME * sizeof(int))];
    } control = {0};
    struct iovec iov = {.iov_base = &says, .iov_len = 1};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};

    if (come) {
        msg.msg_control = &control;
        msg.msg_controllen = CMSG_SPACE(come * sizeof(int));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(come * sizeof(int));
        for (unsigned i = 0; i < come; i++) {
            memcpy(CMSG_DATA(&control.head) + i * sizeof(int), &fd, sizeof(fd));
        }
    }
    CHECK(sendmsg(sock, &msg, MSG_DONTWAIT) == 1);
}

static void take(struct handover_in *h)
{
    struct state_in *s = handover_stream(h);
    struct state_section section;

    while (state_section_next(s, &section)) {
        int fd = handover_get_fd(h, &section.in);
        bool failed = state_failed(&section.in);
        g_autofree char *text = state_get_text(&section.in);

        reached.missing |= failed;
        if (fd >= 0) {
            reached.fd = true;
            CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
            close(fd);
        }
        reached.text |= !state_failed(&section.in) && *text;
    }
}

static void receive(const uint8_t *data, size_t size)
{
    int pair[2], memfd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING), fd;
    size_t n = MIN(data[0], (size - 1) / 2);
    g_autoptr(GError) err = NULL;
    struct handover_in *h;

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    fd = eventfd(0, EFD_CLOEXEC);
    CHECK(write(memfd, data + 1 + 2 * n, size - 1 - 2 * n) >= 0);
    CHECK(fcntl(memfd, F_ADD_SEALS, SEALS) == 0);
    send_message(pair[1], 1, 1, memfd);
    for (size_t i = 0; i < n; i++) {
        send_message(pair[1], data[1 + 2 * i], data[2 + 2 * i] % (MAX_COME + 1), fd);
    }
    close(fd);
    close(memfd);
    close(pair[1]);
    h = handover_receive(pair[0], &err);
    CHECK(!h == !!err);
    reached.refused |= !h;
    if (h) {
        take(h);
        handover_close(h);
    }
    close(pair[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int before = dup(STDERR_FILENO), after;

    close(before);
    if (size >= 2 && data[0] == 0) {
        find_names(data + 1, size - 1);
    } else if (size >= 1) {
        receive(data, size);
    }
    after = dup(STDERR_FILENO);
    CHECK(after == before);
    close(after);
    return 0;
}
