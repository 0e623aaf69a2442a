/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a VM has of channels: completion queues, which its turns look at.
 *
 * On each NIC a VM has a protection domain and as many completion queues as its channels
 * need, so that none can overrun: each has room for all that the channels with a place in
 * it may have posted.  The first ones are small, as most VMs have few channels.  They
 * stay until the VM or the NIC goes.  The completion channels are in an epoll set of the
 * VM's, whose descriptor its worker watches.
 *
 * Coroutines of the main thread need the VM's token now and then, for a few steps.  They
 * ask for it, so that the worker lets go of it, and try again each millisecond: a VM that
 * has gone meanwhile has no token, and nobody else is at its channels then.
 *
 * Threads: `places`, and what is in a completion queue, under the token; all else the
 * main thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "datapath/datapath.h"
#include "transport/rnic/pair_internal.h"

#define FIRST_PLACES 8u
#define MOST_PLACES  64u
/* Bytes of one look, of each queue. */
#define LOOK 65536u

struct rnic_vms rnic_vms = LIST_HEAD_INITIALIZER(rnic_vms);

/* ---- on lanes ---- */

static void make_pd(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    errno = 0;
    j->pd = rnic_verbs->alloc_pd(j->ctx);
    j->err = j->pd ? 0 : errno ? errno : ENOMEM;
}

static void free_pd(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    rnic_verbs->dealloc_pd(j->pd);
}

static void make_cq(void *arg)
{
    struct rnic_job *j = arg;
    int flags;

    rnic_control_assert();
    errno = 0;
    j->channel = rnic_verbs->create_comp_channel(j->ctx);
    if (!j->channel) {
        j->err = errno ? errno : ENOMEM;
        return;
    }
    flags = fcntl(j->channel->fd, F_GETFL);
    j->err =
        flags < 0 || fcntl(j->channel->fd, F_SETFL, flags | O_NONBLOCK) < 0 ? errno : 0;
    if (!j->err) {
        errno = 0;
        j->cq = rnic_verbs->create_cq(j->ctx, (int)j->n, NULL, j->channel, 0);
        j->err = j->cq ? 0 : errno ? errno : ENOMEM;
    }
    if (j->err) {
        rnic_verbs->destroy_comp_channel(j->channel);
    }
}

static void free_cq(void *arg)
{
    struct rnic_job *j = arg;

    rnic_control_assert();
    rnic_verbs->destroy_cq(j->cq);
    rnic_verbs->destroy_comp_channel(j->channel);
}

/* ---- a VM ---- */

struct rnic_vm *rnic_vm_new(struct vm *vm)
{
    struct rnic_vm *rv = g_new0(struct rnic_vm, 1);

    rv->fd = epoll_create1(EPOLL_CLOEXEC);
    if (rv->fd < 0) {
        g_free(rv);
        return NULL;
    }
    rv->vm = vm;
    rv->network = g_intern_string(vm->cfg->network);
    rv->serial = vm->serial;
    rv->weight = vm->cfg->shares;
    rnic_rate_init(&rv->rate, vm->cfg->nic_rate);
    rv->tos = (uint8_t)(vm->cfg->nic_dscp << 2);
    rv->refs = 1;
    TAILQ_INIT(&rv->places);
    LIST_INSERT_HEAD(&rnic_vms, rv, link);
    return rv;
}

void rnic_vm_unref(struct rnic_vm *rv)
{
    if (!--rv->refs) {
        g_assert(TAILQ_EMPTY(&rv->places) && LIST_EMPTY(&rv->shares) &&
                 LIST_EMPTY(&rv->pairs));
        close(rv->fd);
        g_free(rv);
    }
}

void rnic_vm_free(struct rnic_vm *rv)
{
    struct rnic_share *sh;

    LIST_REMOVE(rv, link);
    rv->vm = NULL;
    rnic_pairs_of_vm_gone(rv);
    LIST_FOREACH(sh, &rv->shares, of_vm)
    {
        rnic_fair_gone(&sh->fair);
        rnic_share_settle(sh);
    }
    rnic_vm_unref(rv);
}

struct vm *rnic_vm_of(const struct rnic_vm *rv)
{
    return rv->vm;
}

int rnic_vm_fd(const struct rnic_vm *rv)
{
    return rv->fd;
}

bool rnic_vm_is_used(const struct rnic_vm *rv)
{
    return atomic_load_explicit(&rv->used, memory_order_acquire);
}

const uint64_t *rnic_vm_owner(const struct rnic_vm *rv)
{
    return rv->vm->identity.owner;
}

struct rnic_vm *rnic_vm_find(const uint64_t owner[2], const char *network)
{
    struct rnic_vm *rv;

    LIST_FOREACH(rv, &rnic_vms, link)
    {
        const uint64_t *own = rnic_vm_owner(rv);

        if (own[0] == owner[0] && own[1] == owner[1] &&
            strcmp(rv->network, network) == 0) {
            return rv;
        }
    }
    return NULL;
}

void rnic_vm_take(struct rnic_vm *rv)
{
    if (!rv->vm || vm_token_try(rv->vm)) {
        return;
    }
    do {
        coro_sleep(1);
    } while (rv->vm && !vm_token_try_again(rv->vm));
}

void rnic_vm_release(struct rnic_vm *rv)
{
    if (rv->vm) {
        vm_token_release(rv->vm);
    }
}

/* ---- turns ---- */

bool rnic_vm_peek(struct rnic_vm *rv)
{
    struct rnic_place *p;
    bool any = false;

    TAILQ_FOREACH(p, &rv->places, of_vm)
    {
        any = rnic_cq_peek(&p->cq) || any;
    }
    return any;
}

bool rnic_vm_look(struct rnic_vm *rv, uint64_t now)
{
    struct rnic_place *p;
    bool more = false;

    TAILQ_FOREACH(p, &rv->places, of_vm)
    {
        more = rnic_cq_look(&p->cq, now, LOOK) || more;
    }
    return more;
}

void rnic_vm_flush(struct rnic_vm *rv)
{
    struct rnic_place *p;

    TAILQ_FOREACH(p, &rv->places, of_vm)
    {
        rnic_cq_flush(&p->cq);
    }
}

void rnic_vm_last(struct rnic_vm *rv)
{
    struct rnic_share *sh;

    LIST_FOREACH(sh, &rv->shares, of_vm)
    {
        rnic_fair_last(&sh->fair);
    }
}

uint64_t rnic_vm_due(const struct rnic_vm *rv)
{
    const struct rnic_place *p;
    uint64_t due = UINT64_MAX;

    TAILQ_FOREACH(p, &rv->places, of_vm)
    {
        due = MIN(due, rnic_cq_due(&p->cq));
    }
    return due;
}

bool rnic_vm_arm(struct rnic_vm *rv, uint64_t now)
{
    struct rnic_place *p;
    bool nothing = true;

    TAILQ_FOREACH(p, &rv->places, of_vm)
    {
        nothing = rnic_cq_arm(&p->cq, now) && nothing;
    }
    return nothing;
}

void rnic_vm_woken(struct rnic_vm *rv)
{
    struct epoll_event ready[16];
    int n = epoll_wait(rv->fd, ready, G_N_ELEMENTS(ready), 0);

    for (int i = 0; i < n; i++) {
        rnic_cq_woken(&((struct rnic_place *)ready[i].data.ptr)->cq);
    }
}

/* ---- what it has of a NIC ---- */

struct rnic_share *rnic_share_get(struct rnic_vm *rv, struct rnic_cm *cm)
{
    struct rnic_share *sh;

    LIST_FOREACH(sh, &rv->shares, of_vm)
    {
        if (sh->cm == cm) {
            return sh;
        }
    }
    sh = g_new0(struct rnic_share, 1);
    sh->rv = rv;
    sh->cm = cm;
    rnic_fair_enter(&cm->fair, &sh->fair, rv->vm, rv->weight, &rv->rate);
    rv->refs++;
    LIST_INSERT_HEAD(&rv->shares, sh, of_vm);
    LIST_INSERT_HEAD(&cm->shares, sh, of_cm);
    return sh;
}

/* It is in the VM's turns from now on. */
static bool enter_place(struct rnic_vm *rv, struct rnic_place *p)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = p};

    rnic_vm_take(rv);
    if (!rv->vm || epoll_ctl(rv->fd, EPOLL_CTL_ADD, p->events->fd, &ev) < 0) {
        rnic_vm_release(rv);
        return false;
    }
    TAILQ_INSERT_TAIL(&rv->places, p, of_vm);
    atomic_store_explicit(&rv->used, true, memory_order_release);
    rnic_vm_release(rv); /* which wakes the VM: it is armed before it parks again */
    return true;
}

static void leave_place(struct rnic_vm *rv, struct rnic_place *p)
{
    rnic_vm_take(rv);
    epoll_ctl(rv->fd, EPOLL_CTL_DEL, p->events->fd, NULL);
    TAILQ_REMOVE(&rv->places, p, of_vm);
    atomic_store_explicit(&rv->used, !TAILQ_EMPTY(&rv->places), memory_order_release);
    rnic_cq_woken(&p->cq); /* what is not acknowledged keeps it from being destroyed */
    rnic_vm_release(rv);
}

static void free_place(struct rnic_cm *cm, struct rnic_place *p, uint64_t serial)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;

    j->cq = p->ibv;
    j->channel = p->events;
    rnic_cm_run(cm, RNIC_BREAK, serial, free_cq, j, &mine);
    if (mine) {
        g_free(j);
    }
    rnic_cq_fini(&p->cq);
    g_free(p);
}

static bool make_pd_of(struct rnic_share *sh)
{
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine;
    int err;

    j->ctx = sh->cm->ctx;
    err = rnic_cm_run(sh->cm, RNIC_MAKE, sh->rv->serial, make_pd, j, &mine);
    if (!err) {
        sh->pd = j->pd;
    }
    if (mine) {
        g_free(j);
    }
    return !err;
}

static struct rnic_place *make_place(struct rnic_share *sh)
{
    struct rnic_place *p = g_new0(struct rnic_place, 1);
    struct rnic_job *j = g_new0(struct rnic_job, 1);
    bool mine, ok;
    int err;

    p->most = MIN(FIRST_PLACES << sh->n_places, MOST_PLACES);
    j->ctx = sh->cm->ctx;
    j->n = p->most * RNIC_CQ_PER_CHANNEL;
    err = rnic_cm_run(sh->cm, RNIC_MAKE, sh->rv->serial, make_cq, j, &mine);
    if (!err) {
        p->ibv = j->cq;
        p->events = j->channel;
    }
    if (mine) {
        g_free(j);
    }
    if (err) {
        g_free(p);
        return NULL;
    }
    ok = rnic_cq_init(&p->cq, p->ibv, p->events);
    p->cq.fair = &sh->fair;
    if (!ok || !enter_place(sh->rv, p)) {
        free_place(sh->cm, p, sh->rv->serial);
        return NULL;
    }
    sh->place[sh->n_places++] = p;
    return p;
}

struct rnic_place *rnic_share_place(struct rnic_share *sh)
{
    struct rnic_place *p = NULL;

    coro_lock(&sh->lock);
    for (unsigned i = 0; i < sh->n_places && !p; i++) {
        p = sh->place[i]->used < sh->place[i]->most && !rnic_cq_is_dead(&sh->place[i]->cq)
                ? sh->place[i]
                : NULL;
    }
    if (!p && sh->n_places < RNIC_VM_CQS && (sh->pd || make_pd_of(sh))) {
        p = make_place(sh);
    }
    if (p) {
        p->used++;
    }
    coro_unlock(&sh->lock);
    return p;
}

static void put_share(void *opaque)
{
    struct rnic_share *sh = opaque;
    struct rnic_cm *cm = sh->cm;
    struct rnic_job *j;
    bool mine;

    for (unsigned i = 0; i < sh->n_places; i++) {
        leave_place(sh->rv, sh->place[i]);
        free_place(cm, sh->place[i], sh->rv->serial);
    }
    if (sh->pd) {
        j = g_new0(struct rnic_job, 1);
        j->pd = sh->pd;
        rnic_cm_run(cm, RNIC_BREAK, sh->rv->serial, free_pd, j, &mine);
        if (mine) {
            g_free(j);
        }
    }
    rnic_fair_leave(&sh->fair);
    LIST_REMOVE(sh, of_vm);
    LIST_REMOVE(sh, of_cm);
    rnic_vm_unref(sh->rv);
    g_free(sh);
    rnic_cm_kick(cm);
}

void rnic_share_settle(struct rnic_share *sh)
{
    if (!sh->n_ends && !sh->going && (sh->cm->over || !sh->rv->vm)) {
        sh->going = true;
        rnic_cm_begin(put_share, sh);
    }
}
