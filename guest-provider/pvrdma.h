/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The provider's objects and the kernel's part of the user ABI.
 *
 * Two modes, chosen per context when it is opened: stock, as the in-tree driver
 * and its provider speak, and extended (pvrdma/ext.h), if the driver granted it.
 * The mode decides where a queue's shared words lie and how the device is told
 * of new work; all other code is common.
 *
 * Locks, in the order in which they may be taken:
 *   cq.lock          the CQ's ring and what a poll in progress remembers; none
 *                    with a wq.lock.  Two only where a thread that is amid a poll
 *                    of one CQ ends a QP that completes on another, too
 *   wq.lock          the queue's ring and slots, and an open ibv_wr_* batch
 *   context.qp_lock  the table of QP handles.  Held for a few loads and stores,
 *                    and nothing is waited for meanwhile: neither the kernel,
 *                    whose destroy call ends only when the program has
 *                    acknowledged the QP's events, nor a cq.lock, which a
 *                    program holds from ibv_start_poll to ibv_end_poll and
 *                    during all that it calls in between
 */
#ifndef PV_PVRDMA_H
#define PV_PVRDMA_H

#include <config.h>
#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <ccan/container_of.h>
#include <infiniband/driver.h>
#include <util/compiler.h>
#include <util/udma_barrier.h>

#include "pvrdma/uverbs.h"
#include "ring.h"
#include "wqe.h"

#if __BYTE_ORDER != __LITTLE_ENDIAN
#error "the device ABI is little-endian and this code does not convert"
#endif

#define PV_QP_TABLE 65536u /* handles of the ABI */
#define PV_MAX_SGE  1024u  /* more than any device takes */

/*
 * Why a call is refused, for VERBS_LOG_LEVEL and VERBS_LOG_FILE: what the program
 * asked in vain as an error, what the kernel would not do as debugging output.
 */
#define pv_err(ctx, format, ...) \
	verbs_err(&(ctx)->vctx, format "\n", ##__VA_ARGS__)
#define pv_debug(ctx, format, ...) \
	verbs_debug(&(ctx)->vctx, format "\n", ##__VA_ARGS__)
/* In the data path: in builds with VERBS_DEBUG only. */
#define pv_err_datapath(ctx, format, ...) \
	verbs_err_datapath(&(ctx)->vctx, format "\n", ##__VA_ARGS__)

/* ---- what goes through uverbs -------------------------------------------- */

/* The macros below want a nameless copy of each; drv_payload is enough here. */
#define _STRUCT_pvrdma_ext_ucontext_req struct {}
#define _STRUCT_pvrdma_ext_ucontext_resp struct {}
#define _STRUCT_pvrdma_uverbs_clock struct {}
#define _STRUCT_pvrdma_uverbs_pd_resp struct {}
#define _STRUCT_pvrdma_uverbs_cq struct {}
#define _STRUCT_pvrdma_uverbs_cq_resp struct {}
#define _STRUCT_pvrdma_uverbs_resize_cq struct {}
#define _STRUCT_pvrdma_uverbs_srq struct {}
#define _STRUCT_pvrdma_uverbs_srq_resp struct {}
#define _STRUCT_pvrdma_uverbs_qp struct {}
#define _STRUCT_pvrdma_uverbs_qp_resp struct {}

DECLARE_DRV_CMD(pv_cmd_ucontext, IB_USER_VERBS_CMD_GET_CONTEXT,
		pvrdma_ext_ucontext_req, pvrdma_ext_ucontext_resp);
DECLARE_DRV_CMD(pv_cmd_query_device, IB_USER_VERBS_EX_CMD_QUERY_DEVICE,
		empty, pvrdma_uverbs_clock);
DECLARE_DRV_CMD(pv_cmd_alloc_pd, IB_USER_VERBS_CMD_ALLOC_PD,
		empty, pvrdma_uverbs_pd_resp);
DECLARE_DRV_CMD(pv_cmd_create_cq, IB_USER_VERBS_CMD_CREATE_CQ,
		pvrdma_uverbs_cq, pvrdma_uverbs_cq_resp);
DECLARE_DRV_CMD(pv_cmd_resize_cq, IB_USER_VERBS_CMD_RESIZE_CQ,
		pvrdma_uverbs_resize_cq, empty);
DECLARE_DRV_CMD(pv_cmd_create_srq, IB_USER_VERBS_CMD_CREATE_SRQ,
		pvrdma_uverbs_srq, pvrdma_uverbs_srq_resp);
DECLARE_DRV_CMD(pv_cmd_create_qp, IB_USER_VERBS_CMD_CREATE_QP,
		pvrdma_uverbs_qp, pvrdma_uverbs_qp_resp);

/* ---- objects --------------------------------------------------------------- */

/* A spin lock, or nothing where the program promised a single thread. */
struct pv_lock {
	pthread_spinlock_t spin;
	bool needed;
};

static inline void pv_lock_init(struct pv_lock *l, bool needed)
{
	pthread_spin_init(&l->spin, PTHREAD_PROCESS_PRIVATE);
	l->needed = needed;
}

static inline void pv_lock_destroy(struct pv_lock *l)
{
	pthread_spin_destroy(&l->spin);
}

static inline void pv_lock(struct pv_lock *l)
{
	if (l->needed)
		pthread_spin_lock(&l->spin);
}

static inline void pv_unlock(struct pv_lock *l)
{
	if (l->needed)
		pthread_spin_unlock(&l->spin);
}

/* Page-aligned memory that the device reads and writes. */
struct pv_buf {
	void *addr;
	size_t length;
};

struct pv_device {
	struct verbs_device vdev;
};

struct pv_cq;

/*
 * Whose completions those of a QP handle are.  Changed under qp_lock.  A poll
 * reads qpn or qp and, after it, the CQs, without that lock; who changes them
 * clears the CQs first and sets them last, so that neither ever goes with the CQs
 * of the QP before.
 */
struct pv_qp_entry {
	struct pv_cq *send_cq; /* both NULL: no living QP has this handle */
	struct pv_cq *recv_cq;
	/*
	 * It may be gone.  Who holds the lock of one of its CQs may use it: it is freed
	 * after its entries were taken out there.
	 */
	struct pv_qp *qp;
	uint32_t qpn;
	uint32_t dying; /* calls at work that destroy a QP of this handle */
};

struct pv_context {
	struct verbs_context vctx;
	uint32_t *uar;              /* doorbell page, write only */
	struct pvrdma_ext_mem *ext; /* NULL in stock mode */
	uint32_t max_inline;        /* bytes an extended QP may ask for */
	bool memwin;                /* windows, requests about keys */
	pthread_mutex_t qp_lock;
	struct pv_qp_entry *qp_tbl; /* by handle */
	uint32_t qp_top; /* more than any handle yet; under qp_lock */
};

struct pv_td {
	struct ibv_td ibv_td;
	int refs; /* parent domains */
};

/* A protection domain, or a parent domain around one. */
struct pv_pd {
	struct ibv_pd ibv_pd;
	uint32_t pdn;
	int refs;            /* parent domains around this one */
	struct pv_pd *inner; /* set in a parent domain */
	struct pv_td *td;    /* a parent domain's, may be NULL */
};

struct pv_cq {
	struct verbs_cq vcq;
	struct pv_lock lock;
	struct pv_ring ring; /* we consume */
	struct pvrdma_cqe *cqe;
	struct pv_lock arm_lock; /* where the arm word is; taken alone, or last */
	uint32_t *arm;       /* NULL: armed by doorbell */
	uintptr_t poller;    /* thread between start_poll and end_poll, or 0 */
	struct pvrdma_cqe *cur; /* its current completion */
	/* Of the one taken last: its QP's number, and what the program named it. */
	uint32_t cur_qpn;
	uint64_t cur_id;
	struct pvrdma_cqe flushed; /* of a device that is gone, as the device would */
	uint32_t flush_at; /* handle of the QP that is flushed now */
	uint32_t cqn;
	/* Of rings before a resize, older than all in this one; first taken. */
	struct pvrdma_cqe *left;
	uint32_t left_at, n_left; /* the next one, and how many */
	uint32_t idle_polls; /* empty ones in a row */
	uint64_t idle_since; /* processor's clock when they began */
	uint64_t idle_told;  /* that long, at least, before the host is told */
	struct pv_buf buf;
};

/*
 * A send, receive or shared receive queue.
 *
 * For an extended QP's receive queue the device is told a WQE's index in place of the
 * program's wr_id, and names it in the completion, so that it is known here what is
 * outstanding: as many requests as there are slots, and no more, also if the device has
 * read them.  (Of a send queue sq_polled says it; a shared one's is not known.)
 */
struct pv_wq {
	struct pv_lock lock;
	struct pv_ring ring; /* we produce */
	char *slots;
	uint32_t wqe_shift;
	/* Where the oldest outstanding receive is; the CQ's lock guards changes. */
	uint32_t done;
	uint64_t *ids; /* what the program named them, by slot; NULL: not known */
	const uint32_t *gone; /* of the context, with ids */
	struct pv_wqe_limits lim;
	struct pv_bell bell; /* kick is NULL in stock and shared queues */
	uint32_t *db;        /* the doorbell register... */
	uint32_t db_value;   /* ...and what to write there */
};

/* Of a queue that is being reset: what is done, `done` and sq_polled. */
#define PV_DONE_ALL UINT32_MAX

struct pv_srq {
	struct verbs_srq vsrq;
	struct pv_wq rq;
	struct pv_buf buf;
	uint32_t srqn;
};

struct pv_qp {
	struct verbs_qp vqp;
	struct pv_wq sq;
	struct pv_wq rq; /* slots NULL with an SRQ */
	uint32_t handle;
	enum ibv_qp_type type;
	bool ud; /* IBV_QPT_UD */
	/* An open ibv_wr_start: guarded by sq.lock. */
	struct pvrdma_sq_wqe_hdr *wr_cur;
	uint32_t wr_first; /* index to go back to */
	int wr_err;
	/*
	 * With an extended ring a send slot is free when the completion of its
	 * request, or of one behind it, was polled: this is sq.ring.cons then.  Stored
	 * under the lock of the send CQ, read under that of the queue; a word of its
	 * own between them.  sq_taken: the device's index.
	 */
	uint32_t sq_polled;
	uint32_t *sq_taken;
	struct pv_buf sbuf;
	struct pv_buf rbuf;
};

static inline struct pv_context *to_pv_ctx(struct ibv_context *c)
{
	return container_of(c, struct pv_context, vctx.context);
}

/*
 * What is sent to create a queue: in stock mode without our part, which a driver
 * that does not know it may refuse even if it is zero.
 */
static inline size_t pv_obj_cmd_size(const struct pv_context *ctx, size_t size)
{
	return ctx->ext ? size : size - sizeof(struct pvrdma_ext_obj_req);
}

static inline struct pv_pd *to_pv_pd(struct ibv_pd *pd)
{
	return container_of(pd, struct pv_pd, ibv_pd);
}

static inline struct pv_td *to_pv_td(struct ibv_td *td)
{
	return container_of(td, struct pv_td, ibv_td);
}

static inline struct pv_cq *to_pv_cq(struct ibv_cq *cq)
{
	return container_of(cq, struct pv_cq, vcq.cq);
}

static inline struct pv_srq *to_pv_srq(struct ibv_srq *srq)
{
	return container_of(srq, struct pv_srq, vsrq.srq);
}

static inline struct pv_qp *to_pv_qp(struct ibv_qp *qp)
{
	return container_of(qp, struct pv_qp, vqp.qp);
}

/* ---- the data path's common parts ------------------------------------------ */

static inline void pv_doorbell(uint32_t *reg, uint32_t value)
{
	udma_to_device_barrier();
	*(volatile uint32_t *)reg = value;
}

static inline void *pv_wq_slot(const struct pv_wq *wq)
{
	uint32_t slot = pv_ring_slot(&wq->ring, wq->ring.tail);

	return wq->slots + ((size_t)slot << wq->wqe_shift);
}

/* The device does nothing any more; real completions are read after this. */
static inline bool pv_gone(const uint32_t *gone)
{
	return gone && __atomic_load_n(gone, __ATOMIC_ACQUIRE);
}

/* Is there room for a receive?  A device that is gone reads none. */
static inline bool pv_wq_has_space(struct pv_wq *wq)
{
	uint32_t done = __atomic_load_n(&wq->done, __ATOMIC_ACQUIRE);

	if (wq->ids && unlikely(pv_outstanding(&wq->ring, wq->ring.tail, done) >=
				wq->ring.n))
		return false;
	return pv_ring_has_space(&wq->ring) || pv_gone(wq->gone);
}

/* What the device is to name the receive at `tail`, which the program named @id. */
static inline uint64_t pv_wq_name(struct pv_wq *wq, uint64_t id)
{
	if (!wq->ids)
		return id;
	wq->ids[pv_ring_slot(&wq->ring, wq->ring.tail)] = id;
	return wq->ring.tail;
}

static inline void pv_wq_advance(struct pv_wq *wq)
{
	wq->ring.tail = pv_ring_next(&wq->ring, wq->ring.tail);
}

/* Publish what was queued and tell the device, once for any number. */
static inline void pv_wq_submit(struct pv_wq *wq)
{
	pv_ring_publish(&wq->ring);
	if (wq->bell.kick ? pv_bell_set(&wq->bell) :
			    !wq->bell.no_notify || !pv_bell_unneeded(&wq->bell))
		pv_doorbell(wq->db, wq->db_value);
}

/* ---- functions of the files ------------------------------------------------- */

/* context.c */
int pv_buf_alloc(struct pv_buf *buf, size_t size);
void pv_buf_free(struct pv_buf *buf);

/* pd.c */
struct ibv_pd *pv_alloc_pd(struct ibv_context *context);
int pv_dealloc_pd(struct ibv_pd *pd);
struct ibv_td *pv_alloc_td(struct ibv_context *context,
			   struct ibv_td_init_attr *attr);
int pv_dealloc_td(struct ibv_td *td);
struct ibv_pd *pv_alloc_parent_domain(struct ibv_context *context,
				      struct ibv_parent_domain_init_attr *attr);
struct ibv_mr *pv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			 uint64_t hca_va, int access);
struct ibv_mr *pv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				size_t length, uint64_t iova, int fd, int access);
int pv_rereg_mr(struct verbs_mr *vmr, int flags, struct ibv_pd *pd, void *addr,
		size_t length, int access);
int pv_dereg_mr(struct verbs_mr *vmr);
struct ibv_ah *pv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr);
int pv_destroy_ah(struct ibv_ah *ah);

/* memwin.c */
struct ibv_mw *pv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int pv_dealloc_mw(struct ibv_mw *mw);
int pv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind);

/* cq.c */
struct ibv_cq *pv_create_cq(struct ibv_context *context, int cqe,
			    struct ibv_comp_channel *channel, int comp_vector);
int pv_resize_cq(struct ibv_cq *cq, int cqe);
struct ibv_cq_ex *pv_create_cq_ex(struct ibv_context *context,
				  struct ibv_cq_init_attr_ex *attr);
int pv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
int pv_req_notify_cq(struct ibv_cq *cq, int solicited_only);
int pv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr);
int pv_destroy_cq(struct ibv_cq *cq);
void pv_cq_clean(struct pv_cq *cq, uint32_t qp_handle, bool unless_used);

/* qp.c */
struct ibv_qp *pv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
struct ibv_qp *pv_create_qp_ex(struct ibv_context *context,
			       struct ibv_qp_init_attr_ex *attr);
int pv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask,
		struct ibv_qp_init_attr *init_attr);
int pv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
int pv_destroy_qp(struct ibv_qp *qp);

/* srq.c */
struct ibv_srq *pv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr);
int pv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask);
int pv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int pv_destroy_srq(struct ibv_srq *srq);
int pv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr,
		     struct ibv_recv_wr **bad_wr);

/* post.c */
int pv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
		 struct ibv_send_wr **bad_wr);
int pv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
		 struct ibv_recv_wr **bad_wr);
int pv_wq_recv(struct pv_wq *wq, struct ibv_recv_wr *wr,
	       struct ibv_recv_wr **bad_wr);

/* wr.c */
int pv_wr_setup(struct pv_qp *qp, uint64_t ops);

#endif /* PV_PVRDMA_H */
