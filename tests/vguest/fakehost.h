/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A made-up host, which says what no daemon would: the messages of a link one by one.
 * Everything here aborts the test on a surprise.
 */
#ifndef FAKEHOST_H
#define FAKEHOST_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "hosts.h"
#include "transport/link/auth.h"
#include "transport/link/msg.h"

struct fake {
    int fd;
    unsigned to; /* the host that it calls: 0, unless set before */
    enum peer_role role;
    struct peer_hello hello, other; /* what it says, and what it heard */
    struct peer_hello_bytes bytes[2];
    const char *secret;
    uint8_t in[65536];
    size_t in_len;
    uint8_t proof[PEER_MSG_HEADER + PEER_PROOF_LEN]; /* AUTH as it was sent */
};

/* From host @from's address to host @to's daemon; and who is called. */
int connect_from(unsigned from, unsigned to);
int listen_as(unsigned host);
/* Wait until the other side has closed; what it still says does not matter. */
void wait_closed(int fd);

void put(int fd, const void *bytes, size_t len);
void put_msg(struct fake *f, const struct peer_msg *m);
/*
 * The next message, which is copied to @raw (may be NULL); false: the other side hung up.
 * @m points to nothing after the next call.
 */
bool get_msg(struct fake *f, struct peer_msg *m, struct peer_hello_bytes *raw);

/* Host @from, which has got to do with host0, or with host @to that the other says. */
void fake_init(struct fake *f, unsigned from);
void fake_init_to(struct fake *f, unsigned from, unsigned to);
/* Call it, up to its HELLO; up to a link; answer host0's call. */
void fake_call(struct fake *f, unsigned from);
void fake_link(struct fake *f, unsigned from);
void fake_answer(struct fake *f, int listener);
/* The steps, one by one. */
void get_magic(struct fake *f);
void get_hello(struct fake *f);
void put_hello(struct fake *f);
void put_auth(struct fake *f);
void get_auth(struct fake *f);
/* It ends, and for this reason. */
void expect_close(struct fake *f, unsigned reason);
/* The link is up: the daemon answers. */
void check_ping(struct fake *f, uint64_t stamp);

#endif /* FAKEHOST_H */
