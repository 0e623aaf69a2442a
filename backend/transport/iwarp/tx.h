/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Frames out; see tx.c. */
#ifndef PVRDMAD_IWARP_TX_H
#define PVRDMAD_IWARP_TX_H

#include "transport/iwarp/conn.h"
#include "transport/iwarp/poll.h"
#include "transport/iwarp/wire/errors.h"

/* transport_ops.start(), with a stream. */
struct outcome tx_start(struct conn *c, struct qp *qp, struct send_op *op);
/* Answer READs and atomics. */
void tx_jobs(struct conn *c, struct turn *t);
/* What is to be told of the messages that came; an ACK may wait until tx_ack_until(). */
void tx_notify(struct conn *c);
uint64_t tx_ack_until(const struct conn *c);
/* The carriers have what a turn's tx_notify() has told: what did that take? */
void tx_told(struct tcp_vm *net);
/* Hand what is staged to the carrier. */
void tx_flush(struct tcp_scratch *x);
/* It takes more. */
void tx_writable(struct conn *c);
/* The one Terminate: the stream ends with it. */
void tx_terminate(struct conn *c, enum iwarp_error error, const uint8_t *head,
                  size_t have, uint32_t ulpdu_len);
/* A frame that is not staged is no more than that. */
#define TX_ALONE (FPDU_LENGTH + RDMAP_MAX_TERMINATE + FPDU_MAX_TAIL + FPDU_MARKS_SIZE)
/* The initiator's first one, of what is not a stream yet; its size. */
size_t tx_first_frame(struct framing *framing, uint8_t frame[TX_ALONE]);
/* The same on a stream that has its carrier already. */
void tx_begin(struct conn *c);
/* Its only one: there will be no stream. */
size_t tx_only_frame(struct framing *framing, enum iwarp_error why,
                     uint8_t frame[TX_ALONE]);
/* Tell what is due before the queue pair goes.  Main thread. */
void tx_last_ack(struct conn *c);

#endif /* PVRDMAD_IWARP_TX_H */
