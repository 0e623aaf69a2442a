/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Work queues in guest memory.
 *
 * The daemon keeps its own consumer index (wq->cons) and the index of what it
 * fetches next; what is between is in progress and may be fetched again.  The guest's
 * producer index is read when nothing known is left, and checked; the guest's copy of the
 * consumer index is only written.  Of a guest with a fault nothing more is fetched: the
 * index, or the WQE, may be zeros in the place of a page that is gone.  Indices run over
 * 0..2n-1 (abi.h).  An extended object keeps each shared word in a cache line of its own
 * (ext.h).
 *
 * Threads: the send side under the VM's token, the receive side under rq->lock.
 */
#include "engine.h"
#include "pvrdma/ext.h"

uint64_t ring_no_notify_gpa(const struct ring_mem *mem, bool rx)
{
    return mem->page[0] + (rx ? offsetof(struct pvrdma_ext_ring, rx_no_notify)
                              : offsetof(struct pvrdma_ext_ring, tx_no_notify));
}

bool ring_store(struct vm *vm, uint64_t gpa, uint32_t value)
{
    uint32_t *p = guest_ptr(&vm->guest.mem, gpa, sizeof(*p), true);

    if (p) {
        guest_store32(&vm->guest.mem, gpa, p, value);
    }
    return p;
}

int32_t wq_reread(struct vm *vm, const struct ring_mem *mem, struct wq *wq, bool rx)
{
    uint32_t mask = 2 * wq->nwqe - 1, n, tail;
    const _Atomic uint32_t *p;

    p = guest_ptr(&vm->guest.mem, ring_word_gpa(mem, rx, false), 4, false);
    if (!p) {
        return -1;
    }
    tail = atomic_load_explicit(p, memory_order_acquire);
    if (G_UNLIKELY(!guest_believed(&vm->guest))) {
        return 0;
    }
    if (!pvrdma_idx_valid(tail, wq->nwqe)) {
        return -1;
    }
    n = (tail - wq->next) & mask;
    if (n > wq->nwqe - ((wq->next - wq->cons) & mask)) {
        return -1;
    }
    wq->prod = tail;
    return (int32_t)n;
}

int32_t wq_pending(struct vm *vm, const struct ring_mem *mem, struct wq *wq, bool rx)
{
    uint32_t n = (wq->prod - wq->next) & (2 * wq->nwqe - 1);

    /* If there are some, the guest may be writing that line right now. */
    return n ? (int32_t)n : wq_reread(vm, mem, wq, rx);
}

void wq_release(struct vm *vm, const struct ring_mem *mem, struct wq *wq, uint32_t cons,
                bool rx)
{
    uint64_t gpa = ring_word_gpa(mem, rx, true);
    uint32_t *p = guest_ptr(&vm->guest.mem, gpa, sizeof(*p), true);

    wq->cons = cons;
    if (p) { /* not by ring_store(): this is for every message */
        guest_store32(&vm->guest.mem, gpa, p, cons);
    }
}
