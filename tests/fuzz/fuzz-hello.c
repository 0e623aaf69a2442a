/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of the private data by which two daemons agree on a connection (private_data.c).
 *
 * An input is all of it.  What is taken must say nothing that a queue pair cannot count
 * or complete with, and come out the same again after hello_put(), reserved bytes aside.
 *
 * The corpus has to get each reason to refuse there is (fuzz_reached_all).
 */
#include "fuzz.h"
#include "pvrdma/abi.h"
#include "transport/iwarp/wire/control_stags.h"
#include "transport/iwarp/wire/private_data.h"

static struct {
    bool length, refused, reliable, unreliable, failed;
} reached;

static bool same(const struct hello *a, const struct hello *b)
{
    return !memcmp(a->token, b->token, sizeof(a->token)) &&
           a->incarnation == b->incarnation && a->seq == b->seq && a->psn == b->psn &&
           a->mtu == b->mtu && a->heard == b->heard && a->got == b->got &&
           a->failed_status == b->failed_status && a->failed_seq == b->failed_seq &&
           a->unreliable == b->unreliable;
}

bool fuzz_reached_all(void)
{
    const struct fuzz_reached all[] = {
        {"a wrong length", reached.length},       {"what cannot be", reached.refused},
        {"a queue pair of RC", reached.reliable}, {"one of UC", reached.unreliable},
        {"one that has failed", reached.failed},
    };

    return fuzz_all_reached(all, G_N_ELEMENTS(all));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* With nothing behind it, for the sanitizer. */
    uint8_t *in = g_memdup2(data, size), out[HELLO_SIZE];
    struct hello h, back;
    bool taken = hello_get(in, size, &h);

    g_free(in);
    if (!taken) {
        reached.length = reached.length || size != HELLO_SIZE;
        reached.refused = reached.refused || size == HELLO_SIZE;
        return 0;
    }
    CHECK(size == HELLO_SIZE && h.incarnation && h.psn <= 0xffffff);
    CHECK(h.mtu >= PVRDMA_MTU_256 && h.mtu <= PVRDMA_MTU_4096);
    CHECK(h.seq <= CTL_SEQ_START_MAX && h.got <= CTL_SEQ_START_MAX);
    hello_put(&h, out);
    CHECK(hello_get(out, sizeof(out), &back) && same(&h, &back));
    reached.reliable = reached.reliable || !h.unreliable;
    reached.unreliable = reached.unreliable || h.unreliable;
    reached.failed = reached.failed || h.failed_status;
    return 0;
}
