/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A vfio-user client for tests, in the same process and thread as the server:
 * sending and waiting run the main loop.  It can be told to misbehave.
 *
 * Failures of the client itself (timeouts, short replies) fail the test.
 */
#ifndef TEST_CLIENT_H
#define TEST_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/vfio_user.h"
#include "vm/attach.h"

#define PG 4096ull

/* A server with one declared VM on a real socket. */
struct fixture {
    char *dir;
    struct daemon_config *cfg;
    struct vm *vm;
    int cl;            /* connected client or -1 */
    unsigned open_fds; /* before any connection */
};

struct reply {
    struct vfio_user_hdr hdr;
    uint32_t len;
    uint8_t body[1 << 20 | 64] __attribute__((aligned(8)));
    int fds[16];
    unsigned nfds;
};

void fixture_setup(struct fixture *f, gconstpointer arg);
void fixture_teardown(struct fixture *f, gconstpointer arg);

/* Run the main loop as long as it has something to do. */
void pump(void);

int client_connect(struct fixture *f);
/* Connect and agree on a version, as stock QEMU does. */
void client_attach(struct fixture *f);
void client_close(struct fixture *f);

/* Put bytes on the wire, descriptors with the first of them. */
void client_raw(int fd, const void *buf, size_t len, const int *fds, unsigned nfds);

/* A well-formed command; returns its id. */
uint16_t client_send(int fd, unsigned command, uint32_t flags, const void *body,
                     uint32_t len, const int *fds, unsigned nfds);

/* The next reply, within seconds. */
void client_recv(int fd, struct reply *r);
/* No reply is there or comes. */
void client_silent(int fd);
/* The server has closed the connection. */
void client_dropped(struct fixture *f);

/* Send, receive, check the header; returns 0 or the errno of the reply. */
int client_call(int fd, unsigned command, const void *body, uint32_t len, const int *fds,
                unsigned nfds, struct reply *r);
/* The same without descriptors, and the payload not wanted. */
int client_do(int fd, unsigned command, const void *body, uint32_t len);
/* One that is invalid; and one without descriptors that succeeds. */
void client_refused(int fd, unsigned command, const void *body, uint32_t len);
void client_ask(int fd, unsigned command, const void *body, uint32_t len,
                struct reply *r);

int client_read(int fd, uint32_t region, uint64_t offset, void *data, uint32_t n);
int client_write(int fd, uint32_t region, uint64_t offset, const void *data, uint32_t n);
/* Posted. */
void client_post(int fd, uint32_t region, uint64_t offset, const void *data, uint32_t n);
uint32_t client_read32(int fd, uint32_t region, uint64_t offset);

unsigned count_fds(void);
/* Wait until so many are open: some are closed by threads. */
void expect_fds(unsigned n);
int sealed_memfd(uint64_t size);
/* The counter of an eventfd, which becomes 0. */
uint64_t eventfd_take(int fd);

/* The JSON text of stock QEMU 10.2. */
extern const char stock_json[];
uint32_t version_body(uint8_t *out, uint16_t major, uint16_t minor, const char *json);

#endif /* TEST_CLIENT_H */
