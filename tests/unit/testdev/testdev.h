/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A device without a VMM: an attached VM whose guest RAM is a memfd of the
 * test, driven by calls instead of vfio-user messages.  For the unit tests of
 * device/ and verbs/ and the command fuzzer.
 *
 * The RAM begins at TESTDEV_GPA, so a guest address is never a valid offset.
 * Pages are handed out upwards and never given back.  Main thread only.
 */
#ifndef TESTS_TESTDEV_H
#define TESTS_TESTDEV_H

#include "base/grace.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "verbs/verbs.h"
#include "vm/attach.h"

#define TESTDEV_GPA      0x40000000ull
#define TESTDEV_RAM_SIZE (16ull << 20)
#define TESTDEV_UAR_PFN  0xfe000ull

struct testdev {
    struct vm vm;
    int ram_fd;
    uint8_t *ram;
    uint64_t next;           /* next free guest address */
    int irq[PVRDMA_NUM_VEC]; /* eventfds */
    uint64_t dsr, cmd, resp; /* guest addresses */
    uint64_t async_ring[EVENT_RING_MAX_PAGES];
    uint64_t cqn_ring[EVENT_RING_MAX_PAGES];
};

/* Once per process, before and after all devices. */
void testdev_start(void);
void testdev_stop(void);
/* Around GLib's tests: g_test_init and testdev_start; g_test_run and testdev_stop. */
void testdev_init(int *argc, char ***argv);
int testdev_run(void);

/* An attached VM with RAM, bus mastering off and no DSR. */
struct testdev *testdev_new(const char *name);
/* The same with some limits: "key", "value", ..., NULL as config_vm_set. */
struct testdev *testdev_new_with(const char *name, ...);
void testdev_free(struct testdev *td);

/* Guest memory. */
uint64_t testdev_pages(struct testdev *td, uint32_t n); /* zeroed */
void *testdev_ptr(struct testdev *td, uint64_t gpa);
/* A directory of @n given pages. */
uint64_t testdev_pdir(struct testdev *td, const uint64_t *page, uint32_t n);
/* A directory of @n new pages; stores the first one's address. */
uint64_t testdev_new_pdir(struct testdev *td, uint32_t n, uint64_t *first);

/* Registers. */
uint32_t testdev_read(struct testdev *td, uint64_t reg);
void testdev_write(struct testdev *td, uint64_t reg, uint32_t value);
/* Fill a DSR as the Linux driver does / hand it over / all up to ACTIVATE. */
void testdev_fill_dsr(struct testdev *td);
uint32_t testdev_set_dsr(struct testdev *td); /* ERR */
void testdev_up(struct testdev *td);

/* Run a command; returns ERR.  The response is at td->resp. */
uint32_t testdev_command(struct testdev *td, uint32_t opcode, void *req, size_t size);
/* One that succeeds. */
void testdev_do(struct testdev *td, uint32_t opcode, void *req, size_t size);
/* How many interrupts came on @vec since the last call (0 or more). */
uint64_t testdev_irqs(struct testdev *td, unsigned vec);

/* Objects; they abort the test when the command fails. */
uint32_t testdev_uctx(struct testdev *td, uint32_t uar_page);
uint32_t testdev_pd(struct testdev *td, uint32_t uctx);
uint32_t testdev_cq(struct testdev *td, uint32_t uctx, uint32_t cqe);
/* A create request for a small QP that is right in everything. */
void testdev_qp_req(struct testdev *td, struct pvrdma_cmd_create_qp *req, uint32_t pd,
                    uint32_t cq);
uint32_t testdev_qp(struct testdev *td, uint32_t pd, uint32_t cq);
/* DESTROY_* and others that name one handle; returns ERR. */
uint32_t testdev_handle(struct testdev *td, uint32_t opcode, uint32_t handle);
struct objects_stats testdev_stats(struct testdev *td);

#endif /* TESTS_TESTDEV_H */
