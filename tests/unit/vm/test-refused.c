/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a state stream may not say: each thing that no guest can have made, one at a
 * time, by way of a device that has it.
 */
#include <string.h>

#include "datapath/engine.h"
#include "fullqueues.h"
#include "pair.h"

/* What @from is cannot be loaded, for that reason; what @to has counted stays its own. */
static void refused(const char *why)
{
    uint64_t clock_base = to->vm.dp.clock_base;
    uint64_t tx_msgs = atomic_load(&to->vm.dp.tx_msgs);
    GByteArray *a = fulldev_save(from);

    pair_assert_refused(a, why);
    g_assert_cmpuint(to->vm.dp.clock_base, ==, clock_base);
    g_assert_cmpuint(atomic_load(&to->vm.dp.tx_msgs), ==, tx_msgs);
    g_byte_array_unref(a);
}

#define REFUSED(field, value, why)        \
    do {                                  \
        __typeof__(field) was_ = (field); \
        (field) = (value);                \
        refused(why);                     \
        (field) = was_;                   \
    } while (0)

/* The same and it is loaded: what is refused above is what was changed. */
static void accepted(void)
{
    GByteArray *a = fulldev_save(from);
    GError *err = NULL;

    vm_load(&to->vm, a->data, a->len, &err);
    g_assert_no_error(err);
    device_reset(to->vm.dev);
    device_set_bus_master(to->vm.dev, false);
    g_byte_array_unref(a);
}

static struct mr *find_mr(bool (*is)(const struct mr *mr))
{
    for (uint32_t i = 1; i < id_table_end(&from->vm.objects.mr); i++) {
        struct mr *mr = id_table_get(&from->vm.objects.mr, i);

        if (mr && is(mr)) {
            return mr;
        }
    }
    g_error("no such MR");
}

static bool is_plain(const struct mr *mr)
{
    return !mr->fast && !mr->dma && mr->windows;
}

static bool is_zero_based(const struct mr *mr)
{
    return mr->access & PVRDMA_ACCESS_ZERO_BASED;
}

static bool is_dma(const struct mr *mr)
{
    return mr->dma;
}

static bool is_fast(const struct mr *mr)
{
    return mr->fast && !mr->window && mr == mr->fast->valid;
}

static bool is_window(const struct mr *mr)
{
    return mr->base != NULL;
}

static struct pd *find_pd(bool kernel)
{
    for (uint32_t i = 1; i < id_table_end(&from->vm.objects.pd); i++) {
        struct pd *pd = id_table_get(&from->vm.objects.pd, i);

        if (pd && kernel == (pd->uctx == NULL)) {
            return pd;
        }
    }
    g_error("no such PD");
}

static void test_device(void)
{
    struct device *dev;

    accepted();
    dev = from->vm.dev;
    REFUSED(dev->dsr.cmd_slot_dma, dev->dsr.cmd_slot_dma + 8,
            "device: invalid device shared region");
    REFUSED(dev->dsr.resp_slot_dma, 1, "device: invalid device shared region");
    REFUSED(dev->dsr.uar_pfn, UINT64_MAX >> 12, "device: invalid device shared region");
    REFUSED(dev->bus_master, false, "device: invalid device state");
    REFUSED(dev->dsr_valid, false, "device: invalid device state");
    accepted();
}

static void test_owner(void)
{
    REFUSED(from->vm.identity.generation, 0, "owner: ");
    REFUSED(from->vm.identity.generation, UINT64_MAX, "owner: ");
    from->vm.identity.owner[0] = 0;
    from->vm.identity.owner[1] = 0;
    refused("owner: ");
}

static void test_events(void)
{
    struct guest_events *ev;

    ev = &from->vm.guest.events;
    REFUSED(ev->async.npages, 1, "event rings: an event ring has 1 pages");
    REFUSED(ev->cqn[5].ring.npages, 0, "event rings: an event ring has 0 pages");
    REFUSED(ev->cqn[0].ring.page[1], ev->cqn[0].ring.page[1] + 4,
            "event rings: a page address");
    REFUSED(ev->async.prod, ev->async.slots * 2, "event rings: an event ring has no");
    REFUSED(ev->cqn[5].ring.prod, UINT32_MAX, "event rings: an event ring has no");
    /* Of objects that are not there, or of kinds that there are not. */
    ev->cqn[5].deferred[1] = 1;
    refused("waiting events: CQ 64 has no vector 5");
    ev->cqn[5].deferred[1] = 0;
    event_set_pending(ev, ev->max_cq - 1, 1);
    refused("waiting events: an event of an unknown object");
    event_set_pending(ev, ev->max_cq - 1, 0);
    event_set_pending(ev, ev->max_cq + ev->max_qp - 1, 1);
    refused("waiting events: an event of an unknown object");
    event_set_pending(ev, ev->max_cq + ev->max_qp - 1, 0);
    event_set_pending(ev, ev->max_cq + ev->max_qp + ev->max_srq - 1, 1);
    refused("waiting events: an event of an unknown object");
    event_set_pending(ev, ev->max_cq + ev->max_qp + ev->max_srq - 1, 0);
    accepted();
}

static void test_tables(void)
{
    struct id_table *t;
    struct pd *pd;

    t = &from->vm.objects.pd;
    pd = find_pd(false);
    REFUSED(t->next, 0, "protection domains: its next number");
    REFUSED(t->next, t->size, "protection domains: its next number");
    REFUSED(t->end, t->size + 1, "protection domains: ");
    REFUSED(t->gen[pd->handle], 0, "protection domains: invalid handle");
    REFUSED(pd->handle, 0, "protection domains: invalid handle 0");
    REFUSED(pd->handle, find_pd(true)->handle, "protection domains: invalid handle");
    REFUSED(pd->handle, t->size, "protection domains: invalid handle");
    REFUSED(pd->handle, UINT32_MAX, "protection domains: invalid handle");
    accepted();
}

static void test_contexts(void)
{
    struct uctx *a = NULL, *b = NULL, nobody = {.handle = 17};
    struct id_table *t;
    struct pd *pd;

    t = &from->vm.objects.uctx;
    pd = find_pd(false);
    for (uint32_t i = 1; i < id_table_end(t); i++) {
        struct uctx *uctx = id_table_get(t, i);

        *(uctx && uctx->ext.npages ? &b : &a) = uctx ? uctx : a;
    }
    REFUSED(a->uar_page, 0, "contexts: context ");
    REFUSED(a->uar_page, VERBS_MAX_UAR, "contexts: context ");
    REFUSED(a->uar_page, b->uar_page, "contexts: context ");
    REFUSED(b->ext.npages, PVRDMA_EXT_PAGES - 1, "contexts: a ring of 7 pages has 6");
    REFUSED(b->ext.page[3], b->ext.page[3] | 1, "contexts: a page address");
    REFUSED(from->vm.objects.kernel_ext.npages, 1, "contexts: a ring of 7 pages has 1");
    REFUSED(pd->uctx, &nobody, "protection domains: PD ");
    accepted();
}

static void test_memory(void)
{
    struct pd nobody = {.handle = 31}, *user;
    struct mr *mr;

    user = find_pd(false);
    mr = find_mr(is_plain);
    REFUSED(mr->pd, &nobody, "memory regions: MR ");
    REFUSED(mr->length, mr->length + PVRDMA_PAGE_SIZE, "memory regions: invalid region");
    REFUSED(mr->length, 0, "memory regions: invalid region");
    REFUSED(mr->length, UINT64_MAX, "memory regions: invalid region");
    REFUSED(mr->start, UINT64_MAX, "memory regions: invalid region");
    REFUSED(mr->offset, mr->offset + 1, "memory regions: invalid region");
    REFUSED(mr->npages, mr->npages - 1, "memory regions: invalid region");
    REFUSED(mr->page[1], mr->page[1] + 16, "memory regions: a page address");
    REFUSED(mr->access, PVRDMA_ACCESS_REMOTE_WRITE, "memory regions: invalid region");
    REFUSED(mr->access, 1u << 31, "memory regions: invalid region");
    mr = find_mr(is_zero_based);
    REFUSED(mr->start, PVRDMA_PAGE_SIZE, "memory regions: invalid region");
    REFUSED(mr->offset, PVRDMA_PAGE_SIZE, "memory regions: invalid region");
    mr = find_mr(is_dma);
    REFUSED(mr->pd, user, "memory regions: invalid DMA MR");
    REFUSED(mr->access, PVRDMA_ACCESS_REMOTE_READ, "memory regions: invalid DMA MR");
    accepted();
}

static void test_fast(void)
{
    struct pd *user;
    struct mr *mr;

    user = find_pd(false);
    mr = find_mr(is_fast);
    REFUSED(mr->pd, user, "memory regions: invalid room");
    REFUSED(mr->fast->max_pages, 0, "memory regions: invalid room");
    REFUSED(mr->fast->max_pages, PVRDMA_EXT_MAX_FAST_REG + 1,
            "memory regions: invalid room");
    REFUSED(mr->fast->max_pages, mr->npages - 1,
            "memory regions: count 3, must be at most 2");
    REFUSED(mr->npages, mr->npages - 1, "memory regions: wrong number");
    REFUSED(mr->length, 0, "memory regions: invalid region");
    REFUSED(mr->length, UINT64_MAX, "memory regions: invalid region");
    REFUSED(mr->start, UINT64_MAX, "memory regions: invalid region");
    REFUSED(mr->access, 1u << 31, "memory regions: invalid region");
    REFUSED(mr->access, PVRDMA_ACCESS_REMOTE_WRITE, "memory regions: invalid region");
    accepted();
}

static void test_windows(void)
{
    struct mr *mw, *base;
    struct pd *pd;

    mw = find_mr(is_window);
    base = mw->base;
    pd = find_pd(true);
    REFUSED(mw->base, mw, "memory regions: windows cannot be bound to");
    REFUSED(mw->base, find_mr(is_dma), "memory regions: windows cannot be bound to");
    REFUSED(mw->pd, pd, "memory regions: windows cannot be bound to");
    REFUSED(mw->length, 0, "memory regions: a window is not within");
    REFUSED(mw->length, base->length, "memory regions: a window is not within");
    REFUSED(mw->length, UINT64_MAX, "memory regions: a window is not within");
    REFUSED(mw->start, base->start - 1, "memory regions: a window is not within");
    REFUSED(mw->start, UINT64_MAX, "memory regions: a window is not within");
    REFUSED(mw->access, PVRDMA_ACCESS_LOCAL_WRITE,
            "memory regions: windows cannot be bound to");
    REFUSED(base->access, PVRDMA_ACCESS_LOCAL_WRITE,
            "memory regions: windows cannot be bound to");
    REFUSED(base->access, PVRDMA_ACCESS_MW_BIND,
            "memory regions: windows cannot be bound to");
    accepted();
}

/* All that it has may be no more than its limit, whatever the other side says. */
static void test_budget(void)
{
    struct testdev *small;
    GError *err = NULL;
    GByteArray *a;

    small = testdev_new_with("state", "addresses", "any", "max-qp", "64", "max-cq", "128",
                             "max-srq", "16", "max-mr", "64", "max-pd", "32",
                             "max-mr-pages", "24", NULL);
    from->vm.cfg->max_mr_pages = 24; /* it does not keep to it */
    datapath_pause(&small->vm);
    a = fulldev_save(from);
    g_assert_false(vm_load(&small->vm, a->data, a->len, &err));
    g_assert_nonnull(strstr(err->message, "memory regions: "));
    g_assert_cmpuint(testdev_stats(small).pages, ==, 0);
    g_clear_error(&err);
    g_byte_array_unref(a);
    testdev_free(small);
}

static void test_gids(void)
{
    struct gid_entry *gid;

    gid = &from->vm.objects.gid[3];
    REFUSED(gid->type, 0, "GID table: invalid entry 3");
    REFUSED(gid->gid, (struct pvrdma_gid){{0}}, "GID table: invalid entry 3");
    REFUSED(gid->gid, (struct pvrdma_gid){.raw = {0xff}}, "GID table: invalid entry 3");
    accepted();
}

static void test_clock(void)
{
    REFUSED(from->vm.dp.clock_base, 1ull << 63, "statistics: invalid clock");
    accepted();
}

static void test_queues(void)
{
    struct sent *sent;
    struct cq *cq;
    struct qp *qp;

    cq = id_table_get(&from->vm.objects.cq, FULL_CQ_KERNEL);
    REFUSED(cq->prod, 2 * cq->ncqe, "completion queues: CQ 1: invalid indices");
    REFUSED(cq->last_sol, 2 * cq->ncqe, "completion queues: CQ 1: invalid indices");
    REFUSED(cq->cons, cq->prod + 1, "completion queues: CQ 1: invalid indices");
    REFUSED(cq->error_reported, true, "completion queues: CQ 1: invalid indices");
    qp = fullqueues_qp(from, FULL_QP_WINDOW);
    sent = window_at(qp, qp->req.seq - 1);
    REFUSED(qp->attr.sq_draining, 2, "queue pairs: sq_draining is 2, must be at most 1");
    REFUSED(qp->req.retries_left, 9, "queue pairs: retries_left is 9");
    REFUSED(qp->req.rnr_left, 8, "queue pairs: rnr_left is 8");
    REFUSED(sent->npsn, PSN_MASK + 1, "queue pairs: npsn is 16777216");
    REFUSED(sent->opcode, PVRDMA_WC_RECV, "queue pairs: opcode is 128");
    REFUSED(qp->resp.last_wqe, LAST_WQE_DUE, "invalid state of LAST_WQE_REACHED");
    qp = fullqueues_qp(from, FULL_QP_SRQ);
    REFUSED(qp->resp.last_wqe, LAST_WQE_TOLD + 1, "queue pairs: last_wqe is 3");
    accepted();
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    pair_add("/vm-refused/device", test_device);
    pair_add("/vm-refused/owner", test_owner);
    pair_add("/vm-refused/events", test_events);
    pair_add("/vm-refused/tables", test_tables);
    pair_add("/vm-refused/contexts", test_contexts);
    pair_add("/vm-refused/memory", test_memory);
    pair_add("/vm-refused/fast", test_fast);
    pair_add("/vm-refused/windows", test_windows);
    pair_add("/vm-refused/budget", test_budget);
    pair_add("/vm-refused/gids", test_gids);
    pair_add("/vm-refused/clock", test_clock);
    pair_add("/vm-refused/queues", test_queues);
    return testdev_run();
}
