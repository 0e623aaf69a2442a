/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Many objects end at once: all of a VM with a reset, or all of a user context with it.
 *
 * The guest's kernel destroys a context's objects before the context, but it does not
 * know of all.  The in-tree driver waits for the answer to a command until a signal
 * comes: of what was made for a program that was killed just then it has no handle, nor
 * can it destroy what that refers to.  Its UAR page it gives to the next program.
 *
 * Main thread, in a command or a reset of the VM (vm->ops): nothing new comes meanwhile.
 * What is still there goes on working until its turn has come.
 */
#include "verbs/verbs_internal.h"

#include "base/coro.h"
#include "base/log.h"

/* What is collected before the workers are waited for. */
struct dead {
    struct qp *qp;
    struct srq *srq;
    struct mr *mr;
    struct cq *cq;
};

/* How many objects, or so many more empty places, are gone through in one go. */
#define STEP_OBJECTS 256u
#define STEP_EMPTY   16384u

/*
 * A walk over a table with the token, in pieces between which others get their turn,
 * the VM's worker included.  *done is the walk's own.
 */
static void teardown_step(struct vm *vm, const void *object, unsigned *done)
{
    *done += object ? STEP_EMPTY / STEP_OBJECTS : 1;
    if (*done >= STEP_EMPTY) {
        *done = 0;
        vm_token_release(vm);
        coro_breathe();
        vm_token_take(vm);
    }
}

/* Is an object of context @of one of those that end?  NULL: all of the VM do. */
static bool teardown_ends(const struct uctx *of, const struct uctx *only)
{
    return !only || of == only;
}

/*
 * Those of @only.  QPs go first, so that no worker meets one whose CQs are not there any
 * more.
 */
static void teardown_unpublish(struct vm *vm, const struct uctx *only, struct dead *dead)
{
    struct objects *v = &vm->objects;
    unsigned done = 0;

    vm_token_take(vm);
    for (uint32_t i = 1; v->qp.used && i < v->qp.size; i++) {
        struct qp *qp = id_table_get(&v->qp, i);

        /* A PD of the kernel's may have been given a program's CQs. */
        if (qp &&
            (teardown_ends(qp->pd->uctx, only) || teardown_ends(qp->scq->uctx, only) ||
             teardown_ends(qp->rcq->uctx, only))) {
            qp_unpublish(vm, qp);
            qp->next_dead = dead->qp;
            dead->qp = qp;
        }
        teardown_step(vm, qp, &done);
    }
    for (uint32_t i = 1; v->srq.used && i < v->srq.size; i++) {
        struct srq *srq = id_table_get(&v->srq, i);

        if (srq && teardown_ends(srq->pd->uctx, only)) {
            srq_unpublish(vm, srq);
            srq->next_dead = dead->srq;
            dead->srq = srq;
        }
        teardown_step(vm, srq, &done);
    }
    for (uint32_t i = 1; v->cq.used && i < v->cq.size; i++) {
        struct cq *cq = id_table_get(&v->cq, i);

        if (cq && teardown_ends(cq->uctx, only)) {
            cq_unpublish(vm, cq);
            cq->next_dead = dead->cq;
            dead->cq = cq;
        }
        teardown_step(vm, cq, &done);
    }
    for (uint32_t i = 1; v->mr.used && i < v->mr.size; i++) {
        struct mr *mr = id_table_get(&v->mr, i);

        if (mr && teardown_ends(mr->pd->uctx, only)) {
            mr_unpublish(vm, mr);
            mr->next_dead = dead->mr;
            dead->mr = mr;
        }
        teardown_step(vm, mr, &done);
    }
    vm_token_release(vm);
}

static void teardown_free(struct vm *vm, struct dead *dead)
{
    while (dead->qp) {
        struct qp *qp = dead->qp;

        dead->qp = qp->next_dead;
        qp_free(vm, qp);
        coro_breathe();
    }
    while (dead->srq) {
        struct srq *srq = dead->srq;

        dead->srq = srq->next_dead;
        srq_free(vm, srq);
        coro_breathe();
    }
    while (dead->mr) {
        struct mr *mr = dead->mr;

        dead->mr = mr->next_dead;
        mr_free(vm, mr);
        coro_breathe();
    }
    while (dead->cq) {
        struct cq *cq = dead->cq;

        dead->cq = cq->next_dead;
        cq_free(vm, cq);
        coro_breathe();
    }
}

/* PDs and contexts: no worker follows a pointer to one. */
static void teardown_free_table(struct id_table *t)
{
    for (uint32_t i = 1; t->used && i < t->size; i++) {
        void *object = id_table_get(t, i);

        if (object) {
            id_table_release(t, i);
            g_free(object);
        }
        if (i % STEP_OBJECTS == 0) {
            coro_breathe();
        }
    }
}

static void teardown_free_contexts(struct objects *v)
{
    datapath_ext_clear(v->vm);
    verbs_ring_fini(v->vm, &v->kernel_ext);
    for (uint32_t i = 1; v->uctx.used && i < v->uctx.size; i++) {
        struct uctx *uctx = id_table_get(&v->uctx, i);

        if (uctx) {
            verbs_ring_fini(v->vm, &uctx->ext);
        }
    }
    teardown_free_table(&v->uctx);
}

void verbs_reset(struct objects *v)
{
    struct vm *vm = v->vm;
    struct dead dead = {0};

    teardown_unpublish(vm, NULL, &dead);
    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        if (v->gid[i].bound) {
            gid_unbind(vm, i);
        }
    }
    grace_wait();
    teardown_free(vm, &dead);
    teardown_free_table(&v->pd);
    teardown_free_contexts(v);
    v->gids_unclaimed = false;
    atomic_store(&v->link_down, false);
    memset(v->uar_used, 0, sizeof(v->uar_used));
}

void uctx_empty(struct vm *vm, struct uctx *uctx)
{
    struct id_table *pds = &vm->objects.pd;
    struct dead dead = {0};

    if (!uctx->refs) {
        return;
    }
    log_vm(LOG_LVL_DEBUG, vm, "context %u ends with %u PDs and CQs still there",
           uctx->handle, uctx->refs);
    teardown_unpublish(vm, uctx, &dead);
    grace_wait();
    teardown_free(vm, &dead);
    for (uint32_t i = 1; uctx->refs && i < pds->size; i++) {
        struct pd *pd = id_table_get(pds, i);

        if (pd && pd->uctx == uctx && !pd->refs) {
            pd_destroy(vm, pd);
        }
        if (i % STEP_OBJECTS == 0) {
            coro_breathe();
        }
    }
}
