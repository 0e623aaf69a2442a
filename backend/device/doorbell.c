/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbells that arrive as messages, from VMMs that do not know the shared region
 * (guest/doorbells.h).  Main thread.
 */
#include "datapath/datapath.h"
#include "device/device.h"

/* The kernel's page rings everything, a program's page its own objects. */
static bool may_ring(uint32_t page, const struct uctx *uctx)
{
    return page == 0 || (uctx && uctx->uar_page == page);
}

static bool qp_doorbell(struct device *dev, uint32_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;
    const struct qp *qp = id_table_get(&dev->vm->objects.qp, handle);

    if (!qp || !may_ring(page, qp->pd->uctx)) {
        return false;
    }
    if (value & PVRDMA_UAR_QP_SEND) {
        doorbell_set(&dev->vm->guest.db.own->send, handle);
    }
    if (value & PVRDMA_UAR_QP_RECV) {
        doorbell_set(&dev->vm->guest.db.own->recv, handle);
    }
    datapath_wake(dev->vm); /* begins with a full barrier */
    return true;
}

static bool cq_doorbell(struct device *dev, uint32_t page, uint32_t value, bool posted)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;
    const struct cq *cq = id_table_get(&dev->vm->objects.cq, handle);

    if (!cq || !may_ring(page, cq->uctx)) {
        return false;
    }
    /*
     * POLL asks for nothing that we do not do anyway.  Arming looks into the
     * guest's ring, which a device without bus mastering may not, nor one that had
     * none and does not know whose memory that is now.
     */
    if ((value & (PVRDMA_UAR_CQ_ARM | PVRDMA_UAR_CQ_ARM_SOL)) && dev->bus_master &&
        !dev->stopped) {
        datapath_cq_arm(dev->vm, handle, !(value & PVRDMA_UAR_CQ_ARM), posted);
    }
    return true;
}

static bool srq_doorbell(struct device *dev, uint32_t page, uint32_t value)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;
    const struct srq *srq = id_table_get(&dev->vm->objects.srq, handle);

    if (!srq || !may_ring(page, srq->pd->uctx)) {
        return false;
    }
    if (value & PVRDMA_UAR_SRQ_RECV) {
        doorbell_set(&dev->vm->guest.db.own->srq, handle);
        datapath_wake(dev->vm);
    }
    return true;
}

void device_doorbell(struct device *dev, uint64_t bar2_offset, uint32_t value,
                     bool posted)
{
    uint64_t page = bar2_offset / PVRDMA_PAGE_SIZE;
    struct guest_doorbells *db = &dev->vm->guest.db;
    bool ok = false;

    db->own->writes++;
    if (bar2_offset % PVRDMA_PAGE_SIZE == PVRDMA_UAR_CQ &&
        !(value & (PVRDMA_UAR_CQ_ARM | PVRDMA_UAR_CQ_ARM_SOL))) {
        db->own->polls++;
    }
    if (page < VERBS_MAX_UAR) {
        switch (bar2_offset % PVRDMA_PAGE_SIZE) {
        case PVRDMA_UAR_QP:
            ok = qp_doorbell(dev, page, value);
            break;
        case PVRDMA_UAR_CQ:
            ok = cq_doorbell(dev, page, value, posted);
            break;
        case PVRDMA_UAR_SRQ:
            ok = srq_doorbell(dev, page, value);
            break;
        default:
            break;
        }
    }
    if (!ok) {
        atomic_fetch_add_explicit(&db->bad, 1, memory_order_relaxed);
    }
}
