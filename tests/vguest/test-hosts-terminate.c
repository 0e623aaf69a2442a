/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a made-up host (fakestream.h) gives a connection up that is as it should
 * be.  Its Terminate, whatever that is made of, costs the connection and no work request.
 */
#include "fakestream.h"

#include <string.h>
#include <unistd.h>

/* The next SEND, which is of one segment and has @len bytes. */
static void get_send(uint32_t len)
{
    struct rdmap_segment s;

    do {
        g_assert_true(get_segment(&s, VGT_WAIT_MS));
    } while (s.opcode != RDMAP_SEND);
    g_assert_true(s.ddp.last);
    g_assert_cmpuint(s.payload_len, ==, len);
}

/* ---- Terminates ---- */

#define LEN 64u

static const struct {
    uint8_t bytes[8], len;
    const char *error;
} terminate[] = {
    {{0x01, 0x02, 0, 0}, 4, "0/1/02"},
    {{0x11, 0x01, 0xc0, 0, 0, 14, 0xc1, 0x40}, 8, "1/1/01"}, /* it ends in a header */
    {{0x21, 0x05, 0x03, 0}, 4, "1/2/05"},                    /* siw's, and likewise */
    {{0xf7, 0x33, 0, 0}, 4, "15/7/33"},
    {{0x11, 0x01}, 2, "0/2/ff"},
    {{0}, 0, "0/2/ff"},
};

static void put_terminate(int fd, const uint8_t *bytes, uint32_t len)
{
    uint8_t ulpdu[RDMAP_MAX_HEAD + 8] = {0};
    struct rdmap_segment s;
    size_t head;

    rdmap_begin(&s, RDMAP_TERMINATE);
    s.ddp.msn = 1;
    head = ddp_put(&s.ddp, ulpdu);
    if (len) {
        memcpy(ulpdu + head, bytes, len);
    }
    put_ulpdu(fd, ulpdu, (uint32_t)head + len, 0);
}

/* ... which is said to have come, and to have said this; its connection ends. */
static void terminated(int fd, unsigned i)
{
    g_autofree char *words =
        g_strdup_printf("the peer ends the connection: error %s", terminate[i].error);
    size_t from = vgt_log_length();

    put_terminate(fd, terminate[i].bytes, terminate[i].len);
    expect_end(fd, IWARP_OK); /* it is not answered by another one */
    vgt_wait_logged_after(from, words);
    g_assert_cmpuint(vg_qp_state(victim.qp), ==, PVRDMA_QPS_RTS);
}

/* A connection whose first frame is ours to send. */
static int first_frame_due(void)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_frame reply;
    int fd;

    g_assert_cmpuint(ask(), ==, PEER_BIND_OK);
    fd = connect_from(2, 0);
    put(fd, bytes, put_start(bytes));
    g_assert_true(get_start(fd, MPA_REPLY, bytes, &reply));
    g_assert_false(reply.reject);
    return fd;
}

static void test_messages(void)
{
    int fd;

    fakestream_begin(PVRDMA_QPT_RC, MPA_REQUEST);
    victim_attr.timeout = 22; /* 17 s: whatever is tried in vain here, none is used up */
    victim_connect();
    fd = call();
    for (unsigned i = 0; i < G_N_ELEMENTS(terminate); i++) {
        /* In answer to a message, which comes once more. */
        vgt_send(&victim, i, PVRDMA_WR_SEND, VGT_SIG, 0, LEN, NULL, 0);
        get_send(LEN);
        terminated(fd, i);
        vgt_expect_none(victim.scq, 0);
        fd = call();
        get_send(LEN);
        put_empty_write(fd, 0x10, i); /* ACK */
        vgt_expect(victim.scq, i, PVRDMA_WC_SUCCESS);
        /* When there is nothing to answer. */
        terminated(fd, i);
        if (i == 0) {
            terminated(first_frame_due(), i);
        }
        if (i % 3 == 2) {
            g_usleep(1000000); /* of a VM ten messages are logged in a second */
        }
        fd = call();
    }
    vgt_expect_none(victim.scq, 0);
    close(fd);
    fakestream_end();
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    g_test_add_func("/hosts-terminate/messages", test_messages);
    return vgt_run();
}
