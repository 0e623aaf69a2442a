/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Completion queues: the classic poll, the extended poll of ibv_create_cq_ex,
 * arming, and removal of a QP's entries.
 *
 * Once the kernel says that the device is gone (pvrdma/ext.h), polls of an empty CQ
 * find what is outstanding on its QPs as flushed, each request once.
 *
 * The consumer index is published once per call, not per entry: the device only
 * needs it to see free slots.  An entry is dropped if no QP of its handle uses this
 * CQ: its QP was destroyed by a thread that has not come to clean this CQ yet.
 *
 * An empty poll of a stock CQ writes one POLL doorbell and looks again, like the
 * stock provider: to this library such a device may be any PVRDMA device, and
 * one that completes lazily may count on it.  With an extended CQ polls touch
 * memory only, but for pv_poll_idle().
 *
 * A resize has another ring ready and holds the lock while the device moves there, so
 * that nobody polls in between, and arm_lock, so that nobody arms.  What the old ring
 * still holds, which nobody writes to any more, is copied aside and polled first.
 *
 * Threads: everything under cq->lock but arming, which must not wait for polls; an
 * extended poll holds it from a successful start_poll to end_poll.  Its thread may
 * create, reset and destroy QPs of this CQ meanwhile.  If they complete on another CQ,
 * too, that waits for polls of the other one: two threads that did so crosswise would
 * wait for ever.
 */
#include "pvrdma.h"

/* ---- polling ------------------------------------------------------------------ */

/*
 * Polls in vain may last for long because another guest has to get our processor
 * first.  The host does not see that we poll, so it is told now and then; a VMM
 * whose processors are wanted elsewhere lets us sleep for a moment.  One that
 * returns at once has no need to know, and hears of us less and less.
 * In cycles of the processor's clock: 1 to 5 per ns.
 */
#define PV_IDLE_LOOK  32u /* polls between two looks at the clock */
#define PV_IDLE_LEAST 20000u
#define PV_IDLE_MOST  4000000u
#define PV_IDLE_SLEPT 40000u

static void pv_poll_idle(struct pv_cq *cq)
{
#if defined(__x86_64__) || defined(__i386__)
	struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);
	uint64_t now = __builtin_ia32_rdtsc(), after;

	if (cq->idle_polls == PV_IDLE_LOOK) {
		cq->idle_since = now;
		return;
	}
	if (now - cq->idle_since < cq->idle_told)
		return;
	pv_doorbell(&ctx->uar[PVRDMA_UAR_CQ / 4],
		    cq->cqn | PVRDMA_UAR_CQ_POLL | PVRDMA_EXT_UAR_CQ_IDLE);
	after = __builtin_ia32_rdtsc();
	if (after - now > PV_IDLE_SLEPT)
		cq->idle_told = PV_IDLE_LEAST;
	else if (cq->idle_told < PV_IDLE_MOST)
		cq->idle_told *= 2;
	cq->idle_since = after;
#endif
}

/* Entries that can be read; negative if the device's index is impossible. */
static int pv_cq_fetch(struct pv_cq *cq)
{
	int n = pv_ring_fetch(&cq->ring);

	if (unlikely(cq->n_left) && n >= 0)
		return n + cq->n_left;
	if (n != 0) {
		cq->idle_polls = 0;
	} else if (cq->arm) {
		if (++cq->idle_polls % PV_IDLE_LOOK == 0)
			pv_poll_idle(cq);
	} else {
		struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);

		pv_doorbell(&ctx->uar[PVRDMA_UAR_CQ / 4],
			    cq->cqn | PVRDMA_UAR_CQ_POLL);
		n = pv_ring_fetch(&cq->ring);
	}
	return n;
}

static bool pv_entry_uses(const struct pv_qp_entry *e, const struct pv_cq *cq)
{
	return __atomic_load_n(&e->send_cq, __ATOMIC_RELAXED) == cq ||
	       __atomic_load_n(&e->recv_cq, __ATOMIC_RELAXED) == cq;
}

/*
 * A completion of @e's QP is polled: if it is of a send request, that request's slot and
 * those before it are free.  Only an extended QP's says how far that is.
 *
 * Whoever else gets the handle and completes here takes out of this CQ first what the
 * former one has here, so a QP of this CQ is the completion's, and is not freed as long as
 * we have the lock.  One that completes elsewhere may have come meanwhile, and be freed:
 * hence the look at the CQ, which must follow that at the QP.
 */
static inline void pv_cq_send_done(const struct pv_cq *cq, const struct pv_qp_entry *e,
				   const struct pvrdma_cqe *cqe)
{
	struct pv_qp *qp;

	if (!(cqe->src_qp & PVRDMA_EXT_CQE_SENT))
		return;
	qp = __atomic_load_n(&e->qp, __ATOMIC_ACQUIRE);
	if (unlikely(!qp) ||
	    unlikely(__atomic_load_n(&e->send_cq, __ATOMIC_ACQUIRE) != cq))
		return;
	__atomic_store_n(&qp->sq_polled, cqe->src_qp & ~PVRDMA_EXT_CQE_SENT,
			 __ATOMIC_RELEASE);
}

static uint32_t pv_src_qp(const struct pvrdma_cqe *cqe)
{
	return cqe->src_qp & PVRDMA_EXT_CQE_SENT ? 0 : cqe->src_qp;
}

/*
 * A receive's completion: the program's name for it goes to cur_id.  False if it names
 * none that is outstanding.
 */
static inline bool pv_cq_recv_done(struct pv_cq *cq, const struct pv_qp_entry *e,
				   const struct pvrdma_cqe *cqe)
{
	struct pv_qp *qp = __atomic_load_n(&e->qp, __ATOMIC_ACQUIRE);
	const struct pv_ring *r;
	uint64_t name = cqe->wr_id;
	uint32_t end;

	if (unlikely(!qp) ||
	    unlikely(__atomic_load_n(&e->recv_cq, __ATOMIC_ACQUIRE) != cq))
		return false;
	if (!qp->rq.ids)
		return true;
	r = &qp->rq.ring;
	end = __atomic_load_n(r->prod, __ATOMIC_RELAXED);
	if (unlikely(name >= 2ull * r->n ||
		     pv_outstanding(r, (uint32_t)name, qp->rq.done) >=
			     pv_outstanding(r, end, qp->rq.done)))
		return false;
	cq->cur_id = qp->rq.ids[pv_ring_slot(r, (uint32_t)name)];
	/* Receives are taken in order: none before it is outstanding. */
	__atomic_store_n(&qp->rq.done, pv_ring_next(r, (uint32_t)name),
			 __ATOMIC_RELEASE);
	return true;
}

/* Is it a living QP's of this CQ?  Then cur_qpn and cur_id are of it. */
static inline bool pv_cq_accept(struct pv_cq *cq, const struct pvrdma_cqe *cqe)
{
	struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);
	struct pv_qp_entry *e = &ctx->qp_tbl[cqe->qp & 0xffff];

	cq->cur_qpn = __atomic_load_n(&e->qpn, __ATOMIC_ACQUIRE);
	if (unlikely(!pv_entry_uses(e, cq)))
		return false;
	cq->cur_id = cqe->wr_id;
	if (cqe->opcode & PVRDMA_WC_RECV)
		return pv_cq_recv_done(cq, e, cqe);
	pv_cq_send_done(cq, e, cqe);
	return true;
}

/* The next of those that a resize put aside, with a living QP; NULL: none. */
static struct pvrdma_cqe *pv_cq_take_unpolled(struct pv_cq *cq)
{
	while (cq->n_left) {
		struct pvrdma_cqe *cqe = &cq->left[cq->left_at++];

		cq->n_left--;
		if (pv_cq_accept(cq, cqe))
			return cqe;
	}
	return NULL;
}

/*
 * The next entry with a living QP, before the copied producer index; NULL if
 * there is none.  Moves `head` past it: the slot stays ours until the index is
 * released.
 */
static struct pvrdma_cqe *pv_cq_take(struct pv_cq *cq)
{
	struct pvrdma_cqe *left;

	if (unlikely(cq->n_left)) {
		left = pv_cq_take_unpolled(cq);
		if (left)
			return left;
	}
	while (cq->ring.head != cq->ring.tail) {
		struct pvrdma_cqe *cqe =
			&cq->cqe[pv_ring_slot(&cq->ring, cq->ring.head)];

		cq->ring.head = pv_ring_next(&cq->ring, cq->ring.head);
		if (likely(pv_cq_accept(cq, cqe)))
			return cqe;
	}
	return NULL;
}

/* ---- a device that is gone ------------------------------------------------------- */

static bool pv_cq_device_gone(const struct pv_cq *cq)
{
	const struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);

	return ctx->ext && pv_gone(&ctx->ext->head.gone);
}

/*
 * Take the oldest outstanding request of a queue, at *done.  Without the queue's lock,
 * which a program may hold (ibv_wr_start) that polls; so a reset may come between.
 * Send slots are not written anew before they were polled, so the name is there.
 */
static bool pv_wq_flush(struct pv_cq *cq, struct pv_wq *wq, uint32_t *done)
{
	uint32_t at = __atomic_load_n(done, __ATOMIC_SEQ_CST), slot;
	uint32_t end = __atomic_load_n(wq->ring.prod, __ATOMIC_SEQ_CST);
	const struct pvrdma_sq_wqe_hdr *sent;

	if (!pvrdma_idx_valid(at, wq->ring.n) ||
	    !pvrdma_idx_valid(end, wq->ring.n) || end == at)
		return false;
	slot = pv_ring_slot(&wq->ring, at);
	sent = (const void *)(wq->slots + ((size_t)slot << wq->wqe_shift));
	cq->cur_id = wq->ids ? wq->ids[slot] : sent->wr_id;
	return __atomic_compare_exchange_n(done, &at, pv_ring_next(&wq->ring, at),
					   false, __ATOMIC_SEQ_CST,
					   __ATOMIC_SEQ_CST);
}

/* The next request that is flushed on this CQ, whose ring is empty; NULL: none. */
static struct pvrdma_cqe *pv_cq_flush(struct pv_cq *cq)
{
	struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);
	struct pvrdma_cqe *found = NULL;

	cq->flushed.status = PVRDMA_WC_WR_FLUSH_ERR;
	pthread_mutex_lock(&ctx->qp_lock);
	for (uint32_t i = 0; i < ctx->qp_top && !found; i++) {
		const struct pv_qp_entry *e = &ctx->qp_tbl[cq->flush_at];
		struct pv_qp *qp = e->qp;

		cq->cur_qpn = e->qpn;
		if (e->send_cq == cq && pv_wq_flush(cq, &qp->sq, &qp->sq_polled)) {
			cq->flushed.opcode = PVRDMA_WC_SEND;
			found = &cq->flushed;
		} else if (e->recv_cq == cq && qp->rq.ids &&
			   pv_wq_flush(cq, &qp->rq, &qp->rq.done)) {
			cq->flushed.opcode = PVRDMA_WC_RECV;
			found = &cq->flushed;
		} else if (++cq->flush_at >= ctx->qp_top) {
			cq->flush_at = 0;
		}
	}
	pthread_mutex_unlock(&ctx->qp_lock);
	return found;
}

/* The next real completion, after a look at the ring, or else one that is flushed. */
static struct pvrdma_cqe *pv_cq_take_or_flush(struct pv_cq *cq)
{
	struct pvrdma_cqe *cqe = NULL;

	if (pv_ring_fetch(&cq->ring) > 0)
		cqe = pv_cq_take(cq);
	return cqe ? cqe : pv_cq_flush(cq);
}

/* ---- the classic poll -------------------------------------------------------------- */

static void pv_fill_wc(struct ibv_wc *wc, const struct pvrdma_cqe *cqe,
		       const struct pv_cq *cq)
{
	wc->wr_id = cq->cur_id;
	wc->status = (enum ibv_wc_status)cqe->status;
	wc->opcode = pv_wc_opcode(cqe->opcode);
	wc->vendor_err = cqe->vendor_err;
	wc->byte_len = cqe->byte_len;
	wc->imm_data = cqe->imm_data;
	wc->qp_num = cq->cur_qpn;
	wc->src_qp = pv_src_qp(cqe);
	wc->wc_flags = pv_wc_flags(cqe->wc_flags);
	wc->pkey_index = cqe->pkey_index;
	wc->slid = cqe->slid;
	wc->sl = cqe->sl;
	wc->dlid_path_bits = cqe->dlid_path_bits;
}

int pv_poll_cq(struct ibv_cq *ibcq, int num_entries, struct ibv_wc *wc)
{
	struct pv_cq *cq = to_pv_cq(ibcq);
	struct pvrdma_cqe *cqe;
	int avail, n = 0;

	if (num_entries < 1)
		return 0;
	pv_lock(&cq->lock);
	avail = pv_cq_fetch(cq);
	if (avail > 0) {
		while (n < num_entries && (cqe = pv_cq_take(cq)))
			pv_fill_wc(&wc[n++], cqe, cq);
		pv_ring_release(&cq->ring);
	} else if (avail == 0 && unlikely(pv_cq_device_gone(cq))) {
		while (n < num_entries && (cqe = pv_cq_take_or_flush(cq)))
			pv_fill_wc(&wc[n++], cqe, cq);
		pv_ring_release(&cq->ring);
	}
	pv_unlock(&cq->lock);
	return avail < 0 ? -EIO : n;
}

/* ---- extended polling ------------------------------------------------------------ */

static struct pv_cq *pv_cq_of_ex(struct ibv_cq_ex *cq)
{
	return container_of(cq, struct pv_cq, vcq.cq_ex);
}

static int pv_ex_next(struct ibv_cq_ex *ibcq)
{
	struct pv_cq *cq = pv_cq_of_ex(ibcq);
	int avail;

	cq->cur = pv_cq_take(cq);
	if (!cq->cur) {
		avail = pv_ring_fetch(&cq->ring);
		if (avail < 0)
			return EIO;
		cq->cur = pv_cq_take(cq);
		if (!cq->cur && unlikely(pv_cq_device_gone(cq)))
			cq->cur = pv_cq_take_or_flush(cq);
		if (!cq->cur)
			return ENOENT;
	}
	ibcq->wr_id = cq->cur_id;
	ibcq->status = (enum ibv_wc_status)cq->cur->status;
	return 0;
}

/* Never 0, and no other running thread's. */
static uintptr_t pv_this_thread(void)
{
	return (uintptr_t)pthread_self();
}

static int pv_ex_start(struct ibv_cq_ex *ibcq, struct ibv_poll_cq_attr *attr)
{
	struct pv_cq *cq = pv_cq_of_ex(ibcq);
	int avail, ret;

	if (attr->comp_mask) {
		pv_err_datapath(to_pv_ctx(cq->vcq.cq.context),
				"poll attributes %#x are not known",
				attr->comp_mask);
		return EINVAL;
	}
	pv_lock(&cq->lock);
	avail = pv_cq_fetch(cq);
	if (avail > 0 || (avail == 0 && unlikely(pv_cq_device_gone(cq)))) {
		ret = pv_ex_next(ibcq);
		if (!ret) {
			__atomic_store_n(&cq->poller, pv_this_thread(),
					 __ATOMIC_RELAXED);
			return 0;
		}
		/* Only entries of dead QPs were there. */
		pv_ring_release(&cq->ring);
	} else {
		ret = avail < 0 ? EIO : ENOENT;
	}
	pv_unlock(&cq->lock);
	return ret;
}

static void pv_ex_end(struct ibv_cq_ex *ibcq)
{
	struct pv_cq *cq = pv_cq_of_ex(ibcq);

	cq->cur = NULL;
	__atomic_store_n(&cq->poller, 0, __ATOMIC_RELAXED);
	pv_ring_release(&cq->ring);
	pv_unlock(&cq->lock);
}

/*
 * The readers of the current completion: type, field, value.  Every field but the time
 * stamp is in every CQE, so all readers are there whatever was asked.
 */
#define PV_EX_READERS(READER)                                               \
	READER(enum ibv_wc_opcode, opcode, pv_wc_opcode(cq->cur->opcode))   \
	READER(uint32_t, vendor_err, cq->cur->vendor_err)                   \
	READER(uint32_t, byte_len, cq->cur->byte_len)                       \
	READER(__be32, imm_data, cq->cur->imm_data)                         \
	READER(uint32_t, qp_num, cq->cur_qpn)                               \
	READER(uint32_t, src_qp, pv_src_qp(cq->cur))                        \
	READER(unsigned int, wc_flags, pv_wc_flags(cq->cur->wc_flags))      \
	READER(uint32_t, slid, cq->cur->slid)                               \
	READER(uint8_t, sl, cq->cur->sl)                                    \
	READER(uint8_t, dlid_path_bits, cq->cur->dlid_path_bits)            \
	READER(uint64_t, completion_ts, pvrdma_ext_stamp(cq->cur->reserved))

#define PV_EX_DEFINE(type, field, value)                                    \
	static type pv_ex_##field(struct ibv_cq_ex *ibcq)                   \
	{                                                                   \
		const struct pv_cq *cq = pv_cq_of_ex(ibcq);                 \
		return value;                                               \
	}
#define PV_EX_SET(type, field, value) cq->read_##field = pv_ex_##field;

PV_EX_READERS(PV_EX_DEFINE)

static void pv_ex_setup(struct ibv_cq_ex *cq)
{
	cq->start_poll = pv_ex_start;
	cq->next_poll = pv_ex_next;
	cq->end_poll = pv_ex_end;
	PV_EX_READERS(PV_EX_SET)
}

/* ---- arming, cleaning ------------------------------------------------------------- */

int pv_req_notify_cq(struct ibv_cq *ibcq, int solicited_only)
{
	struct pv_context *ctx = to_pv_ctx(ibcq->context);
	struct pv_cq *cq = to_pv_cq(ibcq);

	if (!ctx->ext) {
		pv_doorbell(&ctx->uar[PVRDMA_UAR_CQ / 4],
			    cq->cqn | (solicited_only ? PVRDMA_UAR_CQ_ARM_SOL :
							PVRDMA_UAR_CQ_ARM));
		return 0;
	}
	pv_lock(&cq->arm_lock);
	pv_arm(cq->arm, solicited_only);
	pv_unlock(&cq->arm_lock);
	return 0;
}

/*
 * Remove the entries of a QP that the device has finished with.  @unless_used: the
 * QP is gone and its handle free, so another one of this CQ may have it by now; then
 * its maker has cleaned the CQ, and what is there is that one's.  A QP that gets the
 * handle after this look has its entries behind those that were found before.
 */
void pv_cq_clean(struct pv_cq *cq, uint32_t qp_handle, bool unless_used)
{
	struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);
	bool polling = __atomic_load_n(&cq->poller, __ATOMIC_RELAXED) ==
		       pv_this_thread();
	bool used = false;
	int found;

	/* Who polls has the lock, and its end_poll releases the ring. */
	if (!polling)
		pv_lock(&cq->lock);
	found = pv_ring_fetch(&cq->ring);
	if (unless_used) {
		pthread_mutex_lock(&ctx->qp_lock);
		used = pv_entry_uses(&ctx->qp_tbl[qp_handle], cq);
		pthread_mutex_unlock(&ctx->qp_lock);
	}
	for (uint32_t i = 0; i < cq->n_left && !used; i++) {
		struct pvrdma_cqe *cqe = &cq->left[cq->left_at + i];

		if (cqe->qp == qp_handle)
			cqe->qp = 0; /* no QP has this handle */
	}
	if (found > 0 && !used &&
	    pv_ring_clean(&cq->ring, cq->cqe, qp_handle) > 0 && !polling)
		pv_ring_release(&cq->ring);
	if (!polling)
		pv_unlock(&cq->lock);
}

/* ---- life ---------------------------------------------------------------------------- */

static void pv_cq_point_ring(struct pv_cq *cq, bool ext)
{
	if (ext) {
		struct pvrdma_ext_ring *h = cq->buf.addr;

		cq->ring.prod = &h->rx_prod_tail.value;
		cq->ring.cons = &h->rx_cons_head.value;
		cq->arm = &h->arm.value;
	} else {
		struct pvrdma_ring_state *h = cq->buf.addr;

		cq->ring.prod = &h->rx.prod_tail;
		cq->ring.cons = &h->rx.cons_head;
	}
	cq->cqe = (struct pvrdma_cqe *)((char *)cq->buf.addr +
					PVRDMA_PAGE_SIZE);
}

/*
 * @locked: false if the program promised to use the CQ from one thread.  @stamps: in
 * extended mode only.
 */
static struct pv_cq *pv_cq_make(struct pv_context *ctx, uint32_t cqe,
				struct ibv_comp_channel *channel,
				uint32_t comp_vector, bool locked, bool stamps)
{
	struct pv_cmd_create_cq cmd = {};
	struct pv_cmd_create_cq_resp resp = {};
	struct pv_cq *cq;
	int ret;

	if (cqe < 1 || cqe > PV_MAX_SLOTS) {
		pv_err(ctx, "a CQ has 1 to %u entries, not %u", PV_MAX_SLOTS,
		       cqe);
		errno = EINVAL;
		return NULL;
	}
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return NULL;
	cq->ring.n = pv_roundup_pow2(cqe);
	ret = pv_buf_alloc(&cq->buf, PVRDMA_PAGE_SIZE +
				     (size_t)cq->ring.n * sizeof(*cq->cqe));
	if (ret) {
		pv_err(ctx, "no memory for a CQ of %u entries: %s", cq->ring.n,
		       strerror(ret));
		goto err_free;
	}
	pv_cq_point_ring(cq, ctx->ext);
	pv_lock_init(&cq->lock, locked);
	pv_lock_init(&cq->arm_lock, locked);

	cmd.drv_payload.buf_addr = (uintptr_t)cq->buf.addr;
	cmd.drv_payload.buf_size = cq->buf.length;
	cmd.drv_payload.ext.flags = (ctx->ext ? PVRDMA_EXT_OBJ_RING : 0) |
				    (stamps ? PVRDMA_EXT_CQ_STAMPS : 0);
	ret = ibv_cmd_create_cq(&ctx->vctx.context, cq->ring.n, channel,
				comp_vector, &cq->vcq.cq, &cmd.ibv_cmd,
				pv_obj_cmd_size(ctx, sizeof(cmd)),
				&resp.ibv_resp, sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses a CQ of %u entries: %s",
			 cq->ring.n, strerror(ret));
		goto err_lock;
	}
	cq->cqn = resp.drv_payload.cqn;
	cq->idle_told = PV_IDLE_LEAST;
	/* The device confirms the size; another one would not fit the buffer. */
	if ((uint32_t)cq->vcq.cq.cqe != cq->ring.n) {
		pv_err(ctx, "device made a CQ of %d entries, not of %u",
		       cq->vcq.cq.cqe, cq->ring.n);
		ibv_cmd_destroy_cq(&cq->vcq.cq);
		ret = EIO;
		goto err_lock;
	}
	return cq;

err_lock:
	pv_lock_destroy(&cq->arm_lock);
	pv_lock_destroy(&cq->lock);
	pv_buf_free(&cq->buf);
err_free:
	free(cq);
	errno = ret;
	return NULL;
}

struct ibv_cq *pv_create_cq(struct ibv_context *context, int cqe,
			    struct ibv_comp_channel *channel, int comp_vector)
{
	struct pv_cq *cq = pv_cq_make(to_pv_ctx(context), cqe < 0 ? 0 : cqe,
				      channel, comp_vector, true, false);

	return cq ? &cq->vcq.cq : NULL;
}

struct ibv_cq_ex *pv_create_cq_ex(struct ibv_context *context,
				  struct ibv_cq_init_attr_ex *attr)
{
	const uint32_t masks = IBV_CQ_INIT_ATTR_MASK_FLAGS |
			       IBV_CQ_INIT_ATTR_MASK_PD;
	struct pv_context *ctx = to_pv_ctx(context);
	bool locked = true;
	struct pv_cq *cq;

	/* Not in the wall clock's time: the device does not know the guest's. */
	if (!check_comp_mask(attr->comp_mask, masks) ||
	    !check_comp_mask(attr->wc_flags,
			     IBV_WC_STANDARD_FLAGS |
			     (ctx->ext ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP : 0))) {
		pv_err(ctx, "CQ attributes %#x or completion fields %#llx are not known",
		       attr->comp_mask, (unsigned long long)attr->wc_flags);
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) {
		if (!check_comp_mask(attr->flags,
				     IBV_CREATE_CQ_ATTR_SINGLE_THREADED)) {
			pv_err(ctx, "CQ flags %#x are not known", attr->flags);
			errno = EOPNOTSUPP;
			return NULL;
		}
		if (attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED)
			locked = false;
	}
	if (attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) {
		if (!attr->parent_domain ||
		    !to_pv_pd(attr->parent_domain)->inner) {
			pv_err(ctx, "the CQ's domain is no parent domain");
			errno = EINVAL;
			return NULL;
		}
		if (to_pv_pd(attr->parent_domain)->td)
			locked = false;
	}
	cq = pv_cq_make(ctx, attr->cqe, attr->channel, attr->comp_vector, locked,
			attr->wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	if (!cq)
		return NULL;
	pv_ex_setup(&cq->vcq.cq_ex);
	return &cq->vcq.cq_ex;
}

/* What is left of the old ring after what is left of those before it; @to has room. */
static void pv_cq_save_unpolled(struct pv_cq *cq, struct pvrdma_cqe *to)
{
	uint32_t n = 0;

	for (; cq->n_left; cq->n_left--)
		to[n++] = cq->left[cq->left_at++];
	if (pv_ring_fetch(&cq->ring) > 0) {
		for (; cq->ring.head != cq->ring.tail;
		     cq->ring.head = pv_ring_next(&cq->ring, cq->ring.head))
			to[n++] = cq->cqe[pv_ring_slot(&cq->ring,
						       cq->ring.head)];
	}
	free(cq->left);
	cq->left = to;
	cq->left_at = 0;
	cq->n_left = n;
}

/* With the lock, to a ring of @n entries in @buf, which takes the present one. */
static int pv_cq_move(struct pv_cq *cq, struct pv_buf *buf, uint32_t n)
{
	struct pv_context *ctx = to_pv_ctx(cq->vcq.cq.context);
	struct ib_uverbs_resize_cq_resp resp = {};
	struct pv_cmd_resize_cq cmd = {};
	struct pv_buf old = cq->buf;
	struct pvrdma_cqe *aside;
	int used = pv_ring_fetch(&cq->ring);
	int ret;

	if (used < 0 || n < cq->n_left + (uint32_t)used) {
		pv_err(ctx, "%d and %u completions are not polled, no room for them in %u entries",
		       used, cq->n_left, n);
		return EINVAL;
	}
	aside = malloc(((size_t)cq->n_left + cq->ring.n) * sizeof(*aside));
	if (!aside)
		return ENOMEM;
	cmd.drv_payload.buf_addr = (uintptr_t)buf->addr;
	cmd.drv_payload.buf_size = buf->length;
	ret = ibv_cmd_resize_cq(&cq->vcq.cq, n, &cmd.ibv_cmd, sizeof(cmd), &resp,
				sizeof(resp));
	if (ret) {
		pv_debug(ctx, "kernel refuses %u entries for CQ %u: %s", n,
			 cq->cqn, strerror(ret));
		free(aside);
		return ret;
	}
	pv_cq_save_unpolled(cq, aside);
	cq->buf = *buf;
	*buf = old;
	cq->ring.n = n;
	cq->ring.head = 0;
	cq->ring.tail = 0;
	pv_cq_point_ring(cq, true);
	return 0;
}

int pv_resize_cq(struct ibv_cq *ibcq, int cqe)
{
	struct pv_context *ctx = to_pv_ctx(ibcq->context);
	struct pv_cq *cq = to_pv_cq(ibcq);
	struct pv_buf buf;
	uint32_t n;
	int ret;

	if (!ctx->ext) {
		pv_err(ctx, "the driver cannot resize CQs");
		return EOPNOTSUPP;
	}
	if (cqe < 1 || cqe > (int)PV_MAX_SLOTS) {
		pv_err(ctx, "a CQ has 1 to %u entries, not %d", PV_MAX_SLOTS,
		       cqe);
		return EINVAL;
	}
	if (__atomic_load_n(&cq->poller, __ATOMIC_RELAXED) == pv_this_thread()) {
		pv_err(ctx, "a CQ is not resized between start_poll and end_poll");
		return EBUSY;
	}
	n = pv_roundup_pow2(cqe);
	ret = pv_buf_alloc(&buf, PVRDMA_PAGE_SIZE +
				 (size_t)n * sizeof(*cq->cqe));
	if (ret)
		return ret;
	pv_lock(&cq->lock);
	pv_lock(&cq->arm_lock);
	ret = pv_cq_move(cq, &buf, n);
	pv_unlock(&cq->arm_lock);
	pv_unlock(&cq->lock);
	pv_buf_free(&buf);
	return ret;
}

int pv_modify_cq(struct ibv_cq *ibcq, struct ibv_modify_cq_attr *attr)
{
	struct ibv_modify_cq cmd = {};
	int ret = ibv_cmd_modify_cq(ibcq, attr, &cmd, sizeof(cmd));

	if (ret)
		pv_debug(to_pv_ctx(ibcq->context), "kernel does not moderate CQ %u: %s",
			 to_pv_cq(ibcq)->cqn, strerror(ret));
	return ret;
}

int pv_destroy_cq(struct ibv_cq *ibcq)
{
	struct pv_cq *cq = to_pv_cq(ibcq);
	int ret = ibv_cmd_destroy_cq(ibcq);

	if (ret) {
		pv_debug(to_pv_ctx(ibcq->context), "kernel does not destroy CQ %u: %s",
			 cq->cqn, strerror(ret));
		return ret;
	}
	pv_lock_destroy(&cq->arm_lock);
	pv_lock_destroy(&cq->lock);
	pv_buf_free(&cq->buf);
	free(cq->left);
	free(cq);
	return 0;
}
