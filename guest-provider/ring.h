/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Rings shared with the device, and the doorbell bitmap: pure arithmetic on
 * memory, without verbs, so that unit tests can include it alone.
 *
 * An index runs over 0..2n-1 for n slots (a power of two), so that full and
 * empty differ; the expressions are those of pvrdma/abi.h.  The provider keeps
 * its own index (`tail` as producer, `head` as consumer) and never reads it back
 * from shared memory; the other side's word is cached and read again only when
 * the ring looks full or empty.  A word that cannot be right (out of range, or
 * further than n from ours) makes the ring unusable, never an access outside it.
 *
 * Threads: the caller holds the lock of the queue the ring belongs to.  The
 * shared words are accessed with atomics; `prod` is released after the slots it
 * covers were written and acquired before they are read.
 */
#ifndef PV_RING_H
#define PV_RING_H

#include <stdbool.h>
#include <stdint.h>

#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

/* More slots than any device takes; keeps all size arithmetic in range. */
#define PV_MAX_SLOTS (1u << 24)

struct pv_ring {
	uint32_t *prod; /* shared: written by the producer */
	uint32_t *cons; /* shared: written by the consumer */
	uint32_t n;     /* slots, a power of two */
	uint32_t tail;  /* producer's index: ours, or a copy */
	uint32_t head;  /* consumer's index: a copy, or ours */
};

/* Entries between head and tail; more than n if one of them is wrong. */
static inline uint32_t pv_ring_used(const struct pv_ring *r)
{
	return (r->tail - r->head) & (2 * r->n - 1);
}

static inline uint32_t pv_ring_slot(const struct pv_ring *r, uint32_t idx)
{
	return pvrdma_idx_slot(idx, r->n);
}

static inline uint32_t pv_ring_next(const struct pv_ring *r, uint32_t idx)
{
	return pvrdma_idx_next(idx, r->n);
}

/* Producer: is there a free slot at `tail`? */
static inline bool pv_ring_has_space(struct pv_ring *r)
{
	uint32_t head;

	if (pv_ring_used(r) < r->n)
		return true;
	head = __atomic_load_n(r->cons, __ATOMIC_ACQUIRE);
	if (!pvrdma_idx_valid(head, r->n))
		return false;
	r->head = head;
	return pv_ring_used(r) < r->n;
}

/* From @done to @end, both indices. */
static inline uint32_t pv_outstanding(const struct pv_ring *r, uint32_t end,
				      uint32_t done)
{
	return (end - done) & (2 * r->n - 1);
}

/* Producer: hand all slots before `tail` to the other side. */
static inline void pv_ring_publish(struct pv_ring *r)
{
	__atomic_store_n(r->prod, r->tail, __ATOMIC_RELEASE);
}

/*
 * Consumer: entries that can be read, after a look at the producer's index.
 * Negative if that index is impossible.
 */
static inline int pv_ring_fetch(struct pv_ring *r)
{
	uint32_t tail = __atomic_load_n(r->prod, __ATOMIC_ACQUIRE);
	uint32_t used;

	if (!pvrdma_idx_valid(tail, r->n))
		return -1;
	used = (tail - r->head) & (2 * r->n - 1);
	if (used > r->n)
		return -1;
	r->tail = tail;
	return used;
}

/* Consumer: give all slots before `head` back. */
static inline void pv_ring_release(struct pv_ring *r)
{
	__atomic_store_n(r->cons, r->head, __ATOMIC_RELEASE);
}

/* Both indices to 0, as the device does when a QP goes to RESET. */
static inline void pv_ring_reset(struct pv_ring *r)
{
	r->tail = 0;
	r->head = 0;
	__atomic_store_n(r->prod, 0, __ATOMIC_RELAXED);
	__atomic_store_n(r->cons, 0, __ATOMIC_RELEASE);
}

/*
 * How an extended queue tells the device.  kick == NULL: a stock queue, or a shared
 * one, which has no bits; stock queues have no no_notify word either.
 */
struct pv_bell {
	const uint32_t *no_notify;
	uint64_t *word; /* these in the extension memory */
	uint64_t *summary;
	const uint32_t *kick;
	uint64_t word_bit;
	uint64_t summary_bit;
};

static inline void pv_bell_init(struct pv_bell *b,
				const struct pvrdma_ext_head *head,
				struct pvrdma_ext_map *map,
				const struct pvrdma_ext_line *no_notify,
				uint32_t handle)
{
	b->no_notify = &no_notify->value;
	b->word = &map->words[handle / 64 % 1024];
	b->word_bit = 1ull << (handle % 64);
	b->summary = &map->summary[handle / 4096 % 16];
	b->summary_bit = 1ull << (handle / 64 % 64);
	b->kick = &head->kick;
}

/* After a read-modify-write that must be a full barrier: on x86 it is one. */
static inline void pv_barrier_after_rmw(void)
{
#if !defined(__x86_64__) && !defined(__i386__)
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* The ring was published before: does the device look at it by itself? */
static inline bool pv_bell_unneeded(const struct pv_bell *b)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	return __atomic_load_n(b->no_notify, __ATOMIC_RELAXED) != 0;
}

/*
 * The posting half of the wake-up protocol; the ring was published before.
 * True if the device sleeps and must be rung.
 *
 * A device that takes its "no need to notify" back has a barrier between that and
 * its last look at the producer index, as we have one between index and word.
 *
 * The device takes (exchanges) a summary word first, the words it names next,
 * and reads ring indices last.  So a summary bit that is seen set after our word
 * is written has not been taken yet and need not be set again: that saves a
 * locked operation when several queues post at a time.
 */
static inline bool pv_bell_set(const struct pv_bell *b)
{
	if (pv_bell_unneeded(b))
		return false;
	__atomic_fetch_or(b->word, b->word_bit, __ATOMIC_SEQ_CST);
	if (!(__atomic_load_n(b->summary, __ATOMIC_SEQ_CST) & b->summary_bit))
		__atomic_fetch_or(b->summary, b->summary_bit, __ATOMIC_SEQ_CST);
	pv_barrier_after_rmw();
	return __atomic_load_n(b->kick, __ATOMIC_SEQ_CST) != 0;
}

/*
 * Arm in shared memory.  ANY replaces SOLICITED, not the reverse.  The barrier
 * orders the arm word before the program's next poll: what the device published
 * before it raises no event, and that poll finds it.
 */
static inline void pv_arm(uint32_t *arm, bool solicited)
{
	uint32_t none = PVRDMA_EXT_ARM_NONE;

	if (solicited)
		__atomic_compare_exchange_n(arm, &none,
					    PVRDMA_EXT_ARM_SOLICITED, false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	else
		__atomic_exchange_n(arm, PVRDMA_EXT_ARM_ANY, __ATOMIC_SEQ_CST);
	pv_barrier_after_rmw();
}

static inline uint32_t pv_roundup_pow2(uint32_t v)
{
	uint32_t p = 1;

	while (p < v && p < (1u << 31))
		p <<= 1;
	return p;
}

/*
 * Take the CQEs of a QP out of a CQ, among those that pv_ring_fetch() found last:
 * the others move up to the producer's end, in their order, and `head` follows.
 * The caller releases it.  What the device adds meanwhile stays.
 *
 * Returns how many were removed.
 */
static inline int pv_ring_clean(struct pv_ring *r, struct pvrdma_cqe *cqe,
				uint32_t qp_handle)
{
	uint32_t mask = 2 * r->n - 1;
	int used = pv_ring_used(r);
	int removed = 0;

	for (int i = 1; i <= used; i++) {
		struct pvrdma_cqe *from =
			&cqe[pv_ring_slot(r, (r->tail - i) & mask)];

		if ((from->qp & 0xffff) == (qp_handle & 0xffff))
			removed++;
		else if (removed)
			cqe[pv_ring_slot(r, (r->tail - i + removed) & mask)] =
				*from;
	}
	r->head = (r->head + removed) & mask;
	return removed;
}

#endif /* PV_RING_H */
