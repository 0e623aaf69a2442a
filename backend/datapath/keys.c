/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Keys that work requests make and take away: FAST_REG, BIND_MW, LOCAL_INV, and the
 * invalidation that comes with a SEND.
 *
 * What a key stands for is immutable while the key table has it (struct fast_mr).  To
 * invalidate is to put `idle` in its place; other workers may then use what they have
 * found until their next quiescent point, so whoever is told that the key is dead is
 * told after a grace period: the work request, or the receive, completes only then.
 * Nobody waits for it: the queue pair is looked at again soon.
 *
 * To register is to fill `valid`, which nobody can see then, and to put it into the
 * table.  There is one for each MR, made with it: a key has to be invalid before it can
 * be registered again, and the grace period since then be over (`free_at`).
 *
 * A window is the same as such an MR: to bind it is to register it, with its pages in
 * those of the MR it is bound to (`base`, see sg.c).  That MR counts the windows and does
 * not go while there are any; a bind is under the token, and so is the look before it
 * goes.  A window of type 1 is bound over what it is bound to: then its key is taken
 * first, as by a LOCAL_INV.  One of type 2B is for the queue pair that bound it, which
 * a later one with the same number, 255 of the handle later, can be mistaken for.
 *
 * Invalidating twice at a time is decided by an exchange of the table's entry; who
 * loses finds the key dead.  For a LOCAL_INV that is as good (the peer may have been
 * faster); a SEND fails.
 *
 * Nothing here allocates.  Threads: the VM's worker with the token, which alone
 * registers; keys_invalidate() for a SEND on the sender's worker.
 */
#include "engine.h"
#include "guest/pagedir.h"

#define PAGE_MASK (PVRDMA_PAGE_SIZE - 1ull)

/* What @key's index has in the table, if work requests of @pd may change it. */
static struct mr *fast_mr_at(const struct vm *vm, const struct pd *pd, uint32_t key)
{
    struct mr *mr = id_table_get(&vm->objects.mr, key >> 8);

    return mr && mr->fast && mr->pd == pd ? mr : NULL;
}

/* Windows: only of type 2B, and by its own queue pair (InfiniBand spec 10.6.7.2.5). */
static bool is_of_qp(const struct mr *mr, const struct qp *qp)
{
    return !mr->window || (mr->window == PVRDMA_EXT_MW_TYPE_2B && mr->qpn == qp->qpn);
}

/* May a peer of @qp invalidate @key, if @mr is what the table has for it? */
static bool is_invalidable(const struct mr *mr, const struct qp *qp, uint32_t key)
{
    return mr && mr->lkey == key && is_of_qp(mr, qp) &&
           (mr->window || (mr->access & PVRDMA_ACCESS_REMOTE));
}

bool keys_may_invalidate(const struct qp *qp, uint32_t key)
{
    return is_invalidable(fast_mr_at(qp->vm, qp->pd, key), qp, key);
}

/* Take the key that @mr has out of the table; 0: somebody else did. */
static uint64_t take(struct vm *vm, struct mr *mr)
{
    struct fast_mr *fast = mr->fast;
    uint64_t period;

    if (!mr_take_key(&vm->objects, mr)) {
        return 0;
    }
    period = grace_begin();
    atomic_store(&fast->free_at, period);
    return period;
}

uint64_t keys_invalidate(const struct qp *qp, uint32_t key)
{
    struct mr *mr = fast_mr_at(qp->vm, qp->pd, key); /* read once: it may change */

    return is_invalidable(mr, qp, key) ? take(qp->vm, mr) : 0;
}

static struct outcome failed(void)
{
    return (struct outcome){.what = OUT_FAIL, .status = PVRDMA_WC_MW_BIND_ERR};
}

static struct outcome local_inv(struct qp *qp, struct send_op *op)
{
    uint32_t key = op->m.imm;

    if (!op->period) {
        struct mr *mr = fast_mr_at(qp->vm, qp->pd, key);

        /* With the token nobody registers, so `valid` has the last key. */
        if (!mr || mr->fast->valid->lkey != key || !is_of_qp(mr->fast->valid, qp)) {
            return failed();
        }
        op->period = mr->lkey == key ? take(qp->vm, mr) : 0;
        if (!op->period) {
            op->period = grace_begin(); /* it was invalid, or just became it */
        }
    }
    return OUTCOME(grace_is_over(op->period) ? OUT_DONE : OUT_GRACE);
}

/* How many pages the range has; 0: it is none that fits the WR or the MR. */
static uint32_t pages_of(const struct pvrdma_fast_reg *reg, const struct fast_mr *fast)
{
    uint64_t n =
        ((reg->iova_start & PAGE_MASK) + reg->length + PAGE_MASK) >> PVRDMA_PAGE_SHIFT;

    if (reg->page_shift != PVRDMA_PAGE_SHIFT || reg->length == 0 ||
        reg->length - 1 > UINT64_MAX - reg->iova_start || n > reg->page_list_len ||
        reg->page_list_len > fast->max_pages) {
        return 0;
    }
    return (uint32_t)n;
}

/* May `valid` be changed, and published? */
static bool is_free(const struct fast_mr *fast)
{
    uint64_t free_at = atomic_load(&fast->free_at);

    return free_at != FAST_MR_IN_USE && grace_is_over(free_at);
}

static struct outcome fast_reg(struct qp *qp, const struct pvrdma_fast_reg *reg)
{
    struct mr *mr = fast_mr_at(qp->vm, qp->pd, reg->rkey), *valid;
    uint32_t access = reg->access_flags, npages;

    if (!mr || mr != mr->fast->idle || mr->window) {
        return failed(); /* no such, or it has a key */
    }
    npages = pages_of(reg, mr->fast);
    if (!npages || mr_access_check(&access) != 0) {
        return failed();
    }
    if (!is_free(mr->fast)) {
        return OUTCOME(OUT_GRACE);
    }
    valid = mr->fast->valid;
    if (pagedir_read_short(&qp->vm->guest.mem, reg->pl_pdir_dma, npages, valid->page) !=
        0) {
        return failed();
    }
    valid->lkey = valid->rkey = reg->rkey;
    valid->access = access;
    valid->start = reg->iova_start;
    valid->length = reg->length;
    valid->offset = reg->iova_start & PAGE_MASK;
    valid->npages = npages;
    atomic_store(&mr->fast->free_at, FAST_MR_IN_USE);
    id_table_publish(&qp->vm->objects.mr, mr->handle, valid);
    return OUTCOME(OUT_DONE);
}

/* Is @b->length bytes at @b->addr of @mr what a window of it may have, with @access? */
static bool may_bind(const struct mr *mr, const struct qp *qp,
                     const struct pvrdma_bind_mw *b, uint32_t access)
{
    uint64_t off;

    if (!mr || mr->pd != qp->pd || mr->dma || mr->fast ||
        !(mr->access & PVRDMA_ACCESS_MW_BIND)) {
        return false;
    }
    if ((access & (PVRDMA_ACCESS_REMOTE_WRITE | PVRDMA_ACCESS_REMOTE_ATOMIC)) &&
        !(mr->access & PVRDMA_ACCESS_LOCAL_WRITE)) {
        return false;
    }
    if (b->addr < mr->start) {
        return false;
    }
    off = b->addr - mr->start;
    return off <= mr->length && b->length <= mr->length - off;
}

static struct outcome bind_mw(struct qp *qp, struct send_op *op)
{
    const struct pvrdma_bind_mw *b = &op->bind;
    struct mr *mw = fast_mr_at(qp->vm, qp->pd, b->rkey), *base = NULL, *valid;
    /* Nothing is local to a window, and programs set it for the sake of the MR. */
    uint32_t access =
        b->access_flags & ~(PVRDMA_ACCESS_OPTIONAL | PVRDMA_ACCESS_LOCAL_WRITE);

    /* Also if it fails now: who sees that may count on the old key's end. */
    if (op->period && !grace_is_over(op->period)) {
        return OUTCOME(OUT_GRACE);
    }
    if (!mw || !mw->window || (access & ~PVRDMA_ACCESS_REMOTE)) {
        return failed();
    }
    /* Type 2B is bound to something, and only when it has no key. */
    if (mw->window == PVRDMA_EXT_MW_TYPE_2B && (mw != mw->fast->idle || !b->length)) {
        return failed();
    }
    if (b->length) {
        base = objects_mr_by_key(&qp->vm->objects, b->lkey);
        if (!may_bind(base, qp, b, access)) {
            return failed();
        }
    }
    if (mw != mw->fast->idle) {
        op->period = take(qp->vm, mw);
    }
    if (!is_free(mw->fast)) {
        return OUTCOME(OUT_GRACE);
    }
    valid = mw->fast->valid;
    valid->lkey = valid->rkey = b->rkey;
    if (!base) {
        return OUTCOME(OUT_DONE);
    }
    valid->access = access;
    valid->start = b->addr;
    valid->length = b->length;
    valid->qpn = qp->qpn;
    valid->base = base;
    atomic_fetch_add(&base->windows, 1);
    atomic_store(&mw->fast->free_at, FAST_MR_IN_USE);
    id_table_publish(&qp->vm->objects.mr, mw->handle, valid);
    return OUTCOME(OUT_DONE);
}

struct outcome keys_run(struct qp *qp, struct send_op *op)
{
    switch (op->m.opcode) {
    case PVRDMA_WR_LOCAL_INV:
        return local_inv(qp, op);
    case PVRDMA_WR_FAST_REG:
        return fast_reg(qp, &op->reg);
    default:
        return bind_mw(qp, op);
    }
}
