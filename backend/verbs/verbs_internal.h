/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the files of verbs/ share.  Main thread only.
 *
 * An object dies in two halves with a quiescence between them: *_unpublish
 * takes it out of its table and off the data path, *_free gives back its
 * references, pages and memory.  When many die at once (teardown.c) the first half is
 * done for all, then waited once.
 *
 * Whoever calls here holds vm->ops, so objects, and the guest's DMA map, stay as they
 * are while the main loop turns: in grace_wait(), coro_breathe(), vm_token_take().
 */
#ifndef PVRDMAD_VERBS_INTERNAL_H
#define PVRDMAD_VERBS_INTERNAL_H

#include "base/grace.h"
#include "datapath/datapath.h"
#include "objects/vm.h"
#include "verbs/verbs.h"

/* Token held; it may be let go meanwhile. */
void qp_unpublish(struct vm *vm, struct qp *qp);
void qp_free(struct vm *vm, struct qp *qp);
void cq_unpublish(struct vm *vm, struct cq *cq); /* token held */
void cq_free(struct vm *vm, struct cq *cq);
void srq_unpublish(struct vm *vm, struct srq *srq);
void srq_free(struct vm *vm, struct srq *srq);
void mr_unpublish(struct vm *vm, struct mr *mr); /* token held */
void mr_free(struct vm *vm, struct mr *mr);
/* Nothing refers to it any more. */
void pd_destroy(struct vm *vm, struct pd *pd);
void gid_unbind(struct vm *vm, unsigned index);

/* Destroy what is left of @uctx's objects; it has none then, and may be destroyed. */
void uctx_empty(struct vm *vm, struct uctx *uctx);

/* QPs (qp.c), for those that come from a state stream. */
/* As @req says, but its ring, which is of *npages, and its handle.  0 or an errno. */
int qp_new(struct vm *vm, const struct pvrdma_cmd_create_qp *req, uint32_t *npages,
           struct qp **out);
/* It has its ring; datapath_qp_created() or what stands for it comes next. */
void qp_publish(struct qp *qp, uint32_t handle);
/* Are the values of the attributes in @mask acceptable?  0 or EINVAL. */
int qp_attr_check(const struct objects *v, uint32_t mask, const struct pvrdma_qp_attr *a);

/* MRs (mr.c), for those that come from a state stream: checks, and what is made. */
int mr_check_user(const struct pvrdma_cmd_create_mr *req);
int mr_check_access(uint32_t *access);
int mr_check_dma(const struct pvrdma_cmd_create_mr *req, const struct pd *pd,
                 uint32_t access);
/* One with room for @n pages, not published, nothing in it; NULL with *err. */
struct mr *mr_alloc(struct vm *vm, uint32_t n, int *err);
void mr_release(struct vm *vm, struct mr *mr);
/* All that an MR's or window's work requests will need; @n pages.  0 or an errno. */
int fast_mr_new(struct vm *vm, uint32_t n, struct fast_mr **out);
void fast_mr_name(struct fast_mr *fast, uint32_t handle, struct pd *pd, uint8_t window);
void fast_mr_free(struct vm *vm, struct fast_mr *fast);

/*
 * Account @n guest pages to the VM's limit (cfg->max_mr_pages), and their list and @own
 * bytes of the object that has it to the daemon's.  ENOSPC if that would exceed the
 * first, ENOMEM if the second.
 */
int verbs_pages_charge(struct vm *vm, uint64_t n, size_t own);
void verbs_pages_refund(struct vm *vm, uint64_t n, size_t own);

/*
 * Read a page list from the guest and check that every page lies in the DMA
 * map, writable if @write.  @page has room for @n.  0, EINVAL or EFAULT.  Takes its
 * time for a long one (coro_breathe), like all that runs over tables here.
 */
int verbs_pages_read(struct vm *vm, uint64_t pdir_dma, uint32_t n, bool write,
                     uint64_t *page);

/* Of a QP, with what it may need besides (req.sent). */
#define QP_BYTES (sizeof(struct qp) + QP_WINDOW * sizeof(struct sent))

/* Pages of a QP, SRQ or CQ of @own bytes: charge, allocate, read.  0 or an errno. */
int verbs_ring_init(struct vm *vm, struct ring_mem *mem, size_t own, uint64_t pdir_dma,
                    uint32_t n);
void verbs_ring_fini(struct vm *vm, struct ring_mem *mem);

/*
 * The same from a state stream: @n is how many pages there have to be.  Whether they
 * are in the DMA map shows when they are used.  False: it failed, there is no ring.
 */
void verbs_ring_save(const struct ring_mem *mem, struct state_out *s);
bool verbs_ring_load(struct vm *vm, struct ring_mem *mem, size_t own, uint32_t n,
                     struct state_in *s);

/*
 * An index of @t for an object from the stream: its handle, or 0 and it failed.  To be
 * published, or released.
 */
uint32_t verbs_place(struct id_table *t, struct state_in *s);

/*
 * All objects of @t, behind their number, by @save; and the way back by @load, which
 * reads @least bytes or more.
 */
void verbs_objects_save(const struct id_table *t,
                        void (*save)(void *object, struct state_out *s),
                        struct state_out *s);
void verbs_objects_load(struct vm *vm, const struct id_table *t, uint32_t least,
                        void (*load)(struct vm *vm, struct state_in *s),
                        struct state_in *s);

/*
 * One queue: @wr WQEs, each a header of @hdr bytes and @sge SGEs or @max_inline bytes,
 * rounded to a power of two, as driver and provider do.  Stores the number of pages.
 * 0 or EINVAL.
 */
int wq_layout(struct wq *wq, uint32_t wr, uint32_t sge, uint32_t hdr, uint32_t max_inline,
              uint32_t *npages);

/* UAR page that may ring objects of this context; NULL is the kernel's. */
static inline uint32_t uctx_uar_page(const struct uctx *uctx)
{
    return uctx ? uctx->uar_page : 0;
}

static inline bool is_power_of_2(uint32_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

#endif /* PVRDMAD_VERBS_INTERNAL_H */
