/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VMs and their workers: who serves whom, the token, pausing, waking.
 *
 * Main thread, except for datapath_wake() and datapath_ring().
 */
#include <stdlib.h>
#include <sys/epoll.h>

#include "engine.h"

static struct vm_list *list_without(const struct vm_list *old, const struct vm *vm,
                                    unsigned extra)
{
    struct vm_list *l = g_malloc0(sizeof(*l) + (old->n + extra) * sizeof(l->vm[0]));

    for (unsigned i = 0; i < old->n; i++) {
        if (old->vm[i] != vm) {
            l->vm[l->n++] = old->vm[i];
        }
    }
    return l;
}

static void list_publish(struct worker *w, struct vm_list *l)
{
    struct vm_list *old = atomic_exchange(&w->vms, l);

    worker_wake(w);
    grace_wait();
    g_free(old);
}

int datapath_vm_init(struct vm *vm)
{
    struct vm_datapath *dp = &vm->dp;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET, .data.ptr = vm};
    struct vm_list *l;

    memset(dp, 0, sizeof(*dp));
    TAILQ_INIT(&dp->run);
    dp->slice = DATAPATH_SLICE;
    pthread_mutex_init(&dp->token, NULL);
    atomic_init(&dp->next_timer, UINT64_MAX);
    /* Zero pages until used; 1-based, one place per QP handle. */
    dp->timer = calloc((size_t)vm->cfg->max_qp + 1, sizeof(dp->timer[0]));
    dp->worker = worker_least_loaded();
    if (!dp->timer || !dp->worker) {
        free(dp->timer);
        return dp->timer ? EINVAL : ENOMEM;
    }
    if (epoll_ctl(dp->worker->epfd, EPOLL_CTL_ADD, vm->guest.db.eventfd, &ev) < 0) {
        int err = errno;

        free(dp->timer);
        return err;
    }
    l = list_without(atomic_load(&dp->worker->vms), NULL, 1);
    l->vm[l->n++] = vm;
    list_publish(dp->worker, l);
    return 0;
}

void datapath_vm_fini(struct vm *vm)
{
    struct worker *w = vm->dp.worker;

    epoll_ctl(w->epfd, EPOLL_CTL_DEL, vm->guest.db.eventfd, NULL);
    list_publish(w, list_without(atomic_load(&w->vms), vm, 0));
    g_free(atomic_load(&vm->dp.ext));
    free(vm->dp.timer);
    pthread_mutex_destroy(&vm->dp.token);
}

void vm_token_take(struct vm *vm)
{
    atomic_fetch_add(&vm->dp.token_waiters, 1);
    pthread_mutex_lock(&vm->dp.token);
    atomic_fetch_sub(&vm->dp.token_waiters, 1);
}

void vm_token_release(struct vm *vm)
{
    pthread_mutex_unlock(&vm->dp.token);
    datapath_wake(vm);
}

void datapath_wake(struct vm *vm)
{
    worker_wake(vm->dp.worker);
}

void datapath_ring(struct vm *vm, uint32_t qp_handle)
{
    doorbell_set(&vm->guest.db.own->send, qp_handle);
    datapath_wake(vm);
}

void datapath_pause(struct vm *vm)
{
    if (!vm->attached || vm->pauses++ > 0) {
        return;
    }
    vm_token_take(vm);
    atomic_store(&vm->dp.paused, true);
    vm_token_release(vm);
    /* Peers' workers may be in the middle of a slice into this VM. */
    grace_wait();
}

void datapath_resume(struct vm *vm)
{
    if (!vm->attached || vm->pauses == 0 || --vm->pauses > 0) {
        return;
    }
    vm_token_take(vm);
    atomic_store(&vm->dp.paused, false);
    vm_token_release(vm);
    datapath_wake(vm);
}
