/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The object tables of one VM: made, counted, taken down.  Main thread, but for
 * mr_take_key().
 */
#include "objects/objects.h"

#include <errno.h>
#include <string.h>

#include "objects/vm.h"

int objects_init(struct objects *v, struct vm *vm)
{
    const struct vm_config *cfg = vm->cfg;

    memset(v, 0, sizeof(*v));
    v->vm = vm;
    v->network = g_intern_string(cfg->network);
    if (!id_table_init(&v->uctx, VERBS_MAX_UAR) || !id_table_init(&v->pd, cfg->max_pd) ||
        !id_table_init(&v->mr, cfg->max_mr) || !id_table_init(&v->cq, cfg->max_cq) ||
        !id_table_init(&v->qp, cfg->max_qp) || !id_table_init(&v->srq, cfg->max_srq)) {
        objects_fini(v);
        return ENOMEM;
    }
    return 0;
}

void objects_fini(struct objects *v)
{
    id_table_fini(&v->srq);
    id_table_fini(&v->qp);
    id_table_fini(&v->cq);
    id_table_fini(&v->mr);
    id_table_fini(&v->pd);
    id_table_fini(&v->uctx);
}

bool mr_take_key(struct objects *v, struct mr *mr)
{
    struct mr *base = mr->base;

    if (!id_table_replace(&v->mr, mr->handle, mr, mr->fast->idle)) {
        return false;
    }
    if (base) {
        atomic_fetch_sub(&base->windows, 1);
    }
    return true;
}

void objects_get_stats(const struct objects *v, struct objects_stats *st)
{
    *st = (struct objects_stats){
        .uctx = v->uctx.used,
        .pd = v->pd.used,
        .mr = v->mr.used,
        .cq = v->cq.used,
        .qp = v->qp.used,
        .srq = v->srq.used,
        .pages = v->pages_used,
    };
    for (unsigned i = 0; i < VERBS_GID_TBL_LEN; i++) {
        st->gid += v->gid[i].bound;
    }
}
