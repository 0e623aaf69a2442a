/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the tests of bad input share.  Each does one kind of what a guest should not do.
 * That is an error of that VM, or of the peer that it is connected to, and is counted
 * there, as `pvrdmactl counters` shows it; VMs 2 and 3 exchange checksummed traffic all
 * the while, in a thread of their own, and nothing is counted for them.
 *
 * VMs 0 and 1 are the bad one and its peer, VM 4 is a peer of another worker.
 *
 * Everything here aborts the test on a surprise.
 */
#ifndef BADINPUT_H
#define BADINPUT_H

#include "vgtest.h"

#define FAR 0x80000u /* offset of what is received */
#define VA  0x7f6600000000ull

/* ---- counters ---- */

#define WRS      "datapath.errors"
#define COMMANDS "device.failed_commands"
#define EVENTS   "device.async_events.pushed"

/* "GROUP.NAME" or "GROUP.SUBGROUP.NAME" of VM @vm. */
int64_t count_of(unsigned vm, const char *path);

/* The same, to be compared with later. */
struct tally {
    unsigned vm;
    const char *path;
    int64_t before;
};
struct tally tally(unsigned vm, const char *path);
/* @n more are counted, soon: a worker counts after it told the other side. */
void counted(const struct tally *t, int64_t n);

/* ---- one bad thing at a time ---- */

void post(struct vgt_side *s, struct vg_wr wr);
/* 64 bytes from side 0's MR to FAR of its peer's, under these keys. */
struct vg_wr write_wr(struct vgt_pair *p, struct pvrdma_sge *sge, uint32_t rkey);
/* Side 0's WR fails with @status, and the pair begins anew. */
void fails(struct vgt_pair *p, struct vg_wr wr, enum pvrdma_wc_status status);

struct bad {
    const char *name;
    void (*run)(void);
};
/* main() of a program that does these, as /badinput/NAME, beside the others' traffic. */
int bad_main(int *argc, char ***argv, const struct bad *bads, unsigned n);

#endif /* BADINPUT_H */
