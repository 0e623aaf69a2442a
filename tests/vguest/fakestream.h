/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A made-up host that is linked and has a connection with a VM's queue pair, frame by
 * frame, while others' traffic goes on.
 *
 * Host 0 is attacked, its VM 3 above all; host 1 has the traffic's other end; host 2 is
 * made up.  Everything here aborts the test on a surprise.
 */
#ifndef FAKESTREAM_H
#define FAKESTREAM_H

#include "fakehost.h"
#include "transport/iwarp/wire/fpdu.h"
#include "transport/iwarp/wire/mpa.h"
#include "transport/iwarp/wire/private_data.h"
#include "transport/iwarp/wire/rdmap.h"

extern struct vg_daemon *fakestream_host[2];
extern struct fake fake; /* host 2's link to host 0 */
extern struct vgt_side victim;
extern struct vg_conn victim_attr; /* for when it is connected next */
extern struct vgt_traffic traffic;
/* What our startup frame has. */
extern struct hello hello;
extern struct mpa_frame start;

/*
 * @role: whose frame is ours.  With a Request's the made-up address is less than the
 * VM's, so that it is the one that connects.
 */
void fakestream_begin(enum pvrdma_qp_type type, enum mpa_kind role);
/* The link has to be up yet, unless fake.fd is -1. */
void fakestream_end(void);

/* The queue pair anew: to RTR; and to RTS. */
void victim_to_rtr(void);
void victim_connect(void);

/* Ask for a connection; what is answered, and there is a new token. */
unsigned ask(void);
/* Our startup frame; its length. */
size_t put_start(uint8_t out[MPA_MAX_STARTUP]);
/* The other's, in @bytes, and nothing behind it.  False: there is none. */
bool get_start(int fd, enum mpa_kind kind, uint8_t bytes[MPA_MAX_STARTUP],
               struct mpa_frame *f);
/* The Reply, and the first frame behind it; false: it was refused, or closed. */
bool get_ready(int fd);
/* A connection that is ready; segments come from it (get_from()). */
int call(void);

/* A frame, its sum changed by @spoil; one of @s with @len bytes behind it. */
void put_ulpdu(int fd, uint8_t *ulpdu, uint32_t len, uint32_t spoil);
void put_segment(int fd, const struct rdmap_segment *s, uint32_t len);
void put_empty_write(int fd, uint32_t stag, uint64_t to);
/* From now on segments come from @fd, and the next one; false: none, for @ms. */
void get_from(int fd);
bool get_segment(struct rdmap_segment *s, int ms);
/* The daemon ends it: with this error, or, if that is 0, without any. */
void expect_end(int fd, enum iwarp_error error);

#endif /* FAKESTREAM_H */
