/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two VMs of one daemon with their clients, for tests of what waits: a registered thread
 * that does not pass (the test itself, as `two_stuck`) keeps grace periods from ending as
 * long as the test wants.
 */
#ifndef TEST_TWO_H
#define TEST_TWO_H

#include "client.h"

#include "base/grace.h"

#define TWO_RAM_GPA   0x100000ull
#define TWO_RAM_PAGES 32u

#define TWO_WAIT_US (10 * G_USEC_PER_SEC)
#define TWO_WAIT(condition)                                   \
    do {                                                      \
        gint64 end_ = g_get_monotonic_time() + TWO_WAIT_US;   \
                                                              \
        while (pump(), !(condition)) {                        \
            g_assert_cmpint(g_get_monotonic_time(), <, end_); \
            g_usleep(100);                                    \
        }                                                     \
    } while (0)

/* ... holds for @us. */
#define TWO_STAYS(us, condition)                     \
    do {                                             \
        gint64 end_ = g_get_monotonic_time() + (us); \
                                                     \
        while (g_get_monotonic_time() < end_) {      \
            pump();                                  \
            g_usleep(1000);                          \
            g_assert_true(condition);                \
        }                                            \
    } while (0)

/* The thread that does not pass; it is offline at first. */
extern struct grace_thread two_stuck;

struct guest_ram {
    int fd;
    uint8_t *ram;
};

struct two {
    struct fixture a;
    struct fixture b; /* its vm and client only */
    struct guest_ram ram_a, ram_b;
};

/* VMs "test" and "other", both ready for commands. */
void two_setup(struct two *t, gconstpointer arg);
void two_teardown(struct two *t, gconstpointer arg);
void two_add_vm(struct fixture *f, const char *name);

uint32_t two_reg_read(int fd, uint64_t reg);
/* Carry out a command of the device; returns ERR. */
uint32_t two_command(int fd, struct guest_ram *g, uint32_t opcode, void *req,
                     size_t size);
/* From here on a command of VM A is parked; the id of the message. */
uint16_t two_park_destroy(struct two *t);
/* Send a message that waits for nothing; its id. */
uint16_t two_send_info(int fd);

void two_expect_reply(int fd, uint16_t id, int err);
/* An orderly end, not a reset. */
void two_expect_eof(int fd);
/* VM B is served: everything that does not need a grace period. */
void two_check_b_answers(struct two *t);

#endif /* TEST_TWO_H */
