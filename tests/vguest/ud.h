/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of datagrams share: queue pairs for them, one datagram at a time with
 * what it must look like on arrival, and what is counted of those that do not arrive.
 *
 * Everything here aborts the test on a surprise.
 */
#ifndef UD_H
#define UD_H

#include "vgtest.h"

#define QKEY 0x11111111u
#define GRH  PVRDMA_GRH_SIZE
#define FAR  0x10000u /* offset of receive buffers */

/* With 4 VMs; VM 3 is in a network of its own.  Two workers. */
void ud_daemon_start(void);

/* An IPv6 address of VM 0, and of VM 1. */
extern const struct pvrdma_gid ud_link_local[2];

/* A datagram to be sent; what is zero is as it should be. */
struct dg {
    uint32_t opcode, flags, len, qpn, qkey;
    struct pvrdma_av *av;
    const struct pvrdma_gid *to;
    uint64_t wr_id;
    bool no_signal;
};

/* For a pair of UD queue pairs, unconnected; and the pair, of VMs @a and @b, in RTS. */
void ud_options(struct vgt_opts *o, enum vgt_style style);
void ud_open(struct vgt_pair *p, unsigned a, unsigned b, enum vgt_style style);

/* To @far's QP, from offset 0. */
void ud_send(struct vgt_side *s, const struct vgt_side *far, struct dg d);

/* Of VM @vm's counters of datagrams: "no_qp" and so on, also "sent" and "received". */
int64_t ud_dropped(unsigned vm, const char *why);

/* From SQE back to RTS, as the MAD layer does it. */
void ud_recover(struct vg_qp *qp);

/* A datagram that arrives, with @len bytes, at FAR; returns its completion. */
struct pvrdma_cqe ud_passes(struct vgt_side *from, struct vgt_side *to, struct dg d);

/*
 * Both kinds of addresses, many lengths, with all headers: from a QP whose VM has @from6
 * at index 1 to one of a VM with @to6.
 */
void ud_exchange(struct vgt_side *from, struct vgt_side *to,
                 const struct pvrdma_gid *from6, const struct pvrdma_gid *to6);

/* QP number 1 of VM @vm, as ib_core's MAD layer has it: in the kernel's domain. */
void ud_gsi_open(struct vgt_side *s, unsigned vm);

/* A MAD.  The bit says: the QP's own Q_Key, which is the same. */
#define GSI_QKEY 0x80010000u
#define UD_MAD                                 \
    {                                          \
        .len = 256, .qpn = 1, .qkey = GSI_QKEY \
    }

/* The Internet checksum of a header with its own checksum in place is 0. */
bool ud_checksum_ok(const uint8_t *ip);

/* A datagram that completes at its sender and arrives nowhere. */
void ud_lost(struct vgt_side *from, struct vgt_side *to, struct dg d);

/* The same, and it is counted once for @vm as @why. */
#define UD_LOST(from, to, vm, why, ...)                             \
    do {                                                            \
        int64_t before_ = ud_dropped(vm, why);                      \
                                                                    \
        ud_lost(from, to, (struct dg){.wr_id = 90, ##__VA_ARGS__}); \
        g_assert_cmpint(ud_dropped(vm, why) - before_, ==, 1);      \
    } while (0)

/* A receive at FAR of @mr; and a datagram that takes the one with @wr_id, for @qp. */
void ud_srq_post(struct vg_srq *srq, struct vg_mr *mr, uint64_t wr_id, uint32_t len);
void ud_srq_passes(struct vgt_side *from, struct vgt_side *to, struct vg_qp *qp,
                   uint32_t len, uint64_t wr_id);

#endif /* UD_H */
