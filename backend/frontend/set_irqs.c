/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * SET_IRQS: assigning eventfds to MSI-X vectors, and the rest of that command.
 *
 *   data     action        meaning
 *   EVENTFD  TRIGGER       n fds: assign; no fds: de-assign
 *   NONE     TRIGGER       (0, 0): close all; (s, n): raise these vectors
 *   BOOL     TRIGGER       raise those whose byte is not 0
 *   NONE     MASK, UNMASK  these vectors
 *   BOOL     MASK, UNMASK  those whose byte is not 0
 *   EVENTFD  MASK, UNMASK  refused: specification and kernel disagree on it
 *
 * Everything is checked before anything is applied.
 */
#include <errno.h>
#include <string.h>

#include "frontend/conn.h"
#include "guest/irq.h"
#include "vm/attach.h"

static int irqs_assign(struct vfu_conn *c, const struct vfu_msg *m,
                       const struct vfio_user_irq_set *set)
{
    struct guest_irq *irq = &c->vm->guest.irq;

    if (m->len != sizeof(*set) || set->count == 0 ||
        (m->nfds != 0 && m->nfds != set->count)) {
        return EINVAL;
    }
    for (unsigned i = 0; i < m->nfds; i++) {
        if (!irq_is_eventfd(m->fds[i])) {
            log_vm(LOG_LVL_WARN, c->vm,
                   "refused an interrupt descriptor that is not an eventfd");
            return EINVAL;
        }
    }
    for (unsigned i = 0; i < set->count; i++) {
        int err = irq_assign(irq, set->start + i, m->nfds ? m->fds[i] : -1);

        if (err) {
            return err;
        }
        if (m->nfds) {
            m->fds[i] = -1;
        }
    }
    return 0;
}

static void irqs_apply(struct guest_irq *irq, uint32_t action, unsigned vec)
{
    switch (action) {
    case VFIO_USER_IRQ_ACTION_MASK:
        irq_mask(irq, vec, true);
        break;
    case VFIO_USER_IRQ_ACTION_UNMASK:
        irq_mask(irq, vec, false);
        break;
    default:
        irq_raise(irq, vec);
        break;
    }
}

/* NONE and BOOL. */
static int irqs_act(struct vfu_conn *c, const struct vfu_msg *m,
                    const struct vfio_user_irq_set *set, bool bytes)
{
    const uint8_t *which = m->body + sizeof(*set);
    uint32_t action = set->flags & VFIO_USER_IRQ_ACTIONS;
    struct guest_irq *irq = &c->vm->guest.irq;

    if (m->nfds != 0 || m->len != sizeof(*set) + (bytes ? set->count : 0)) {
        return EINVAL;
    }
    if (set->count == 0) {
        if (bytes || set->start != 0 || action != VFIO_USER_IRQ_ACTION_TRIGGER) {
            return EINVAL;
        }
        for (unsigned i = 0; i < IRQ_VECTORS; i++) {
            irq_assign(irq, i, -1);
        }
        return 0;
    }
    for (unsigned i = 0; i < set->count; i++) {
        if (!bytes || which[i]) {
            irqs_apply(irq, action, set->start + i);
        }
    }
    return 0;
}

int vfu_set_irqs(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_irq_set set;
    uint32_t data, action, vectors;

    memcpy(&set, m->body, sizeof(set));
    data = set.flags & VFIO_USER_IRQ_DATA_MASK;
    action = set.flags & VFIO_USER_IRQ_ACTIONS;
    if (set.argsz < sizeof(set) || set.index > VFIO_USER_IRQ_MSIX ||
        set.flags != (data | action) || (data & (data - 1)) || !data ||
        (action & (action - 1)) || !action) {
        return EINVAL;
    }
    vectors = set.index == VFIO_USER_IRQ_MSIX ? IRQ_VECTORS : 0;
    if (set.start > vectors || set.count > vectors - set.start) {
        return EINVAL;
    }
    if (vectors == 0) {
        /* INTx and MSI have no vectors; switching them off is no error. */
        return data == VFIO_USER_IRQ_DATA_NONE &&
                       action == VFIO_USER_IRQ_ACTION_TRIGGER && m->nfds == 0
                   ? 0
                   : EINVAL;
    }
    if (data == VFIO_USER_IRQ_DATA_EVENTFD) {
        return action == VFIO_USER_IRQ_ACTION_TRIGGER ? irqs_assign(c, m, &set) : EINVAL;
    }
    return irqs_act(c, m, &set, data == VFIO_USER_IRQ_DATA_BOOL);
}
