// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Interrupts: vector 0 ends a command's wait, vector 1 brings asynchronous
 * events, vector 2 and those behind it name CQs that have completions.  These
 * have a ring each; a CQ belongs to one of them, its completion vector.
 *
 * The rings have a state page and then slots.  Their index arithmetic is that
 * of pvrdma/abi.h with slot counts that are no powers of two, as the ABI wants
 * it.  Each ring is read by one handler only, which the kernel does not run
 * twice at a time, so its reading position needs no lock.  A position is this
 * driver's own; the one in the ring only tells the device.
 *
 * A handler takes a reference to the object that an event names, under the
 * table's lock; destruction takes the object out of the table and waits for
 * the last reference.
 */
#include <linux/dma-mapping.h>
#include <linux/interrupt.h>

#include "cmd.h"
#include "pvrdma.h"

#define RING_BYTES ((PVRDMA_EVENT_RING_PAGES - 1) * PVRDMA_PAGE_SIZE)
#define ASYNC_SLOTS ((u32)(RING_BYTES / sizeof(struct pvrdma_eqe)))
#define CQ_SLOTS    ((u32)(RING_BYTES / sizeof(struct pvrdma_cqne)))

/**
 * pvrdma_table_add() - make an object known to the handlers
 * @table: of QPs, CQs or SRQs
 * @handle: the device's word
 * @limit: handles must be below
 * @ref: the object's, of pvrdma_ref_init()
 *
 * Return: 0, -EIO if the handle is out of range or taken, or -ENOMEM.
 */
int pvrdma_table_add(struct xarray *table, u32 handle, u32 limit,
		     struct pvrdma_ref *ref)
{
	int ret;

	if (handle >= limit)
		return -EIO;
	ret = xa_insert_irq(table, handle, ref, GFP_KERNEL);
	return ret == -EBUSY ? -EIO : ret;
}

/**
 * pvrdma_ref_init() - begin to count references
 * @ref: of a new object
 */
void pvrdma_ref_init(struct pvrdma_ref *ref)
{
	refcount_set(&ref->refs, 1);
	init_completion(&ref->unused);
}

/**
 * pvrdma_ref_get() - find an object and keep it
 * @table: of QPs, CQs or SRQs
 * @handle: the object's
 *
 * Return: the reference in the object, or NULL.
 */
struct pvrdma_ref *pvrdma_ref_get(struct xarray *table, u32 handle)
{
	struct pvrdma_ref *ref;
	unsigned long flags;

	xa_lock_irqsave(table, flags);
	ref = xa_load(table, handle);
	if (ref)
		refcount_inc(&ref->refs);
	xa_unlock_irqrestore(table, flags);
	return ref;
}

/**
 * pvrdma_ref_put() - give an object back
 * @ref: of pvrdma_ref_get()
 */
void pvrdma_ref_put(struct pvrdma_ref *ref)
{
	if (refcount_dec_and_test(&ref->refs))
		complete(&ref->unused);
}

/**
 * pvrdma_ref_end() - wait until no handler uses an object
 * @ref: of an object that is not in its table any more
 */
void pvrdma_ref_end(struct pvrdma_ref *ref)
{
	pvrdma_ref_put(ref);
	wait_for_completion(&ref->unused);
}

/**
 * pvrdma_qp_event() - call a QP's handler
 * @ref: of pvrdma_ref_get(), in a QP
 * @type: what happened
 */
void pvrdma_qp_event(struct pvrdma_ref *ref, enum ib_event_type type)
{
	struct pvrdma_qp *qp = container_of(ref, struct pvrdma_qp, ref);
	struct ib_event event = {
		.device = qp->ibqp.device,
		.element.qp = &qp->ibqp,
		.event = type,
	};

	/* A dead device's need not be said again, see pvrdma_cq_kick_all(). */
	if (type == IB_EVENT_QP_LAST_WQE_REACHED)
		WRITE_ONCE(qp->last_wqe, true);
	if (qp->ibqp.event_handler)
		qp->ibqp.event_handler(&event, qp->ibqp.qp_context);
}

static void event_cq(struct pvrdma_ref *ref, enum ib_event_type type)
{
	struct ib_cq *ibcq = &container_of(ref, struct pvrdma_cq, ref)->ibcq;
	struct ib_event event = {
		.device = ibcq->device,
		.element.cq = ibcq,
		.event = type,
	};

	if (ibcq->event_handler)
		ibcq->event_handler(&event, ibcq->cq_context);
}

static void event_srq(struct pvrdma_ref *ref, enum ib_event_type type)
{
	struct ib_srq *ibsrq = &container_of(ref, struct pvrdma_srq, ref)->ibsrq;
	struct ib_event event = {
		.device = ibsrq->device,
		.element.srq = ibsrq,
		.event = type,
	};

	if (ibsrq->event_handler)
		ibsrq->event_handler(&event, ibsrq->srq_context);
}

/* Pass an event on by @call, if there is the object that it names. */
static void event_object(struct xarray *table, u32 handle,
			 enum ib_event_type type,
			 void (*call)(struct pvrdma_ref *, enum ib_event_type))
{
	struct pvrdma_ref *ref = pvrdma_ref_get(table, handle);

	if (!ref)
		return;
	call(ref, type);
	pvrdma_ref_put(ref);
}

static void event_port(struct pvrdma_dev *dev, u32 port,
		       enum ib_event_type type)
{
	struct ib_event event = { .device = &dev->ibdev, .event = type };

	if (port != PVRDMA_PORT || !READ_ONCE(dev->port.registered))
		return;
	event.element.port_num = port;
	ib_dispatch_event(&event);
}

/* The device's numbers are those of the verbs API. */
static void event_async(struct pvrdma_dev *dev, u32 type, u32 info)
{
	switch (type) {
	case IB_EVENT_CQ_ERR:
		event_object(&dev->table.cqs, info, type, event_cq);
		break;
	case IB_EVENT_QP_FATAL:
	case IB_EVENT_QP_REQ_ERR:
	case IB_EVENT_QP_ACCESS_ERR:
	case IB_EVENT_COMM_EST:
	case IB_EVENT_SQ_DRAINED:
	case IB_EVENT_PATH_MIG:
	case IB_EVENT_PATH_MIG_ERR:
	case IB_EVENT_QP_LAST_WQE_REACHED:
		event_object(&dev->table.qps, info, type, pvrdma_qp_event);
		break;
	case IB_EVENT_SRQ_ERR:
	case IB_EVENT_SRQ_LIMIT_REACHED:
		event_object(&dev->table.srqs, info, type, event_srq);
		break;
	case IB_EVENT_DEVICE_FATAL:
		/* As for any other reason, port.work tells who is to know. */
		pvrdma_set_dead(dev, "it reported a fatal error");
		break;
	case IB_EVENT_PORT_ACTIVE:
	case IB_EVENT_PORT_ERR:
		/* The netdev has a say in it, too. */
		pvrdma_port_changed(dev);
		break;
	case IB_EVENT_LID_CHANGE:
	case IB_EVENT_PKEY_CHANGE:
	case IB_EVENT_SM_CHANGE:
	case IB_EVENT_CLIENT_REREGISTER:
	case IB_EVENT_GID_CHANGE:
		event_port(dev, info, type);
		break;
	default:
		dev_warn_ratelimited(&dev->pdev->dev,
				     "unknown event %u (%u)\n", type, info);
	}
}

/* Slot to read next, or -1 if the ring is empty or its index is no index. */
static int evring_next(const struct pvrdma_evring *ring, u32 slots)
{
	u32 tail = READ_ONCE(pvrdma_dir_state(&ring->pages)->rx.prod_tail);

	if (!pvrdma_idx_valid(tail, slots) || tail == ring->head)
		return -1;
	/* The entry is read after the index. */
	dma_rmb();
	return pvrdma_idx_slot(ring->head, slots);
}

static void evring_advance(struct pvrdma_evring *ring, u32 slots)
{
	ring->head = pvrdma_idx_next(ring->head, slots);
	/* The entry is free after it was read. */
	smp_store_release(&pvrdma_dir_state(&ring->pages)->rx.cons_head,
			  ring->head);
}

static irqreturn_t irq_cmd(int irq, void *data)
{
	struct pvrdma_dev *dev = data;

	complete(&dev->cmd.done);
	return IRQ_HANDLED;
}

static irqreturn_t irq_async(int irq, void *data)
{
	struct pvrdma_dev *dev = data;
	const struct pvrdma_eqe *eqe;
	u32 i, type, info;
	int slot;

	for (i = 0; i < ASYNC_SLOTS; i++) {
		slot = evring_next(&dev->async, ASYNC_SLOTS);
		if (slot < 0)
			break;
		eqe = pvrdma_dir_ptr(&dev->async.pages,
				     PVRDMA_PAGE_SIZE + slot * sizeof(*eqe));
		type = READ_ONCE(eqe->type);
		info = READ_ONCE(eqe->info);
		evring_advance(&dev->async, ASYNC_SLOTS);
		event_async(dev, type, info);
	}
	return IRQ_HANDLED;
}

static irqreturn_t irq_cq(int irq, void *data)
{
	struct pvrdma_vector *v = data;
	const struct pvrdma_cqne *cqne;
	struct pvrdma_ref *ref;
	struct pvrdma_cq *cq;
	u32 n = v - v->dev->vector, i, handle;
	int slot;

	/*
	 * An interrupt that was pending from before, of a vector that has no ring
	 * yet.  Pairs with the release when the ring is there.
	 */
	if (n >= smp_load_acquire(&v->dev->num_vectors))
		return IRQ_HANDLED;
	for (i = 0; i < CQ_SLOTS; i++) {
		slot = evring_next(&v->ring, CQ_SLOTS);
		if (slot < 0)
			break;
		cqne = pvrdma_dir_ptr(&v->ring.pages,
				      PVRDMA_PAGE_SIZE + slot * sizeof(*cqne));
		handle = READ_ONCE(cqne->info);
		evring_advance(&v->ring, CQ_SLOTS);
		ref = pvrdma_ref_get(&v->dev->table.cqs, handle);
		if (!ref)
			continue;
		cq = container_of(ref, struct pvrdma_cq, ref);
		/* Who ends a CQ waits for the handler of its own vector only. */
		if (cq->vector == n)
			pvrdma_cq_event(cq);
		pvrdma_ref_put(ref);
	}
	return IRQ_HANDLED;
}

/* One more than the stock vectors for each completion vector but the first. */
static u32 event_num_irqs(struct pvrdma_dev *dev)
{
	u32 n = 1;

	if (dev->ext.features & PVRDMA_EXT_FEAT_VECTORS)
		n = min_t(u32, num_online_cpus(), PVRDMA_EXT_MAX_VECTORS);
	return PVRDMA_VEC_CQ + n;
}

static int event_request_irq(struct pvrdma_dev *dev, u32 i)
{
	const char *name = pci_name(dev->pdev);
	u32 n = i - PVRDMA_VEC_CQ;

	switch (i) {
	case PVRDMA_VEC_CMD:
		return pci_request_irq(dev->pdev, i, irq_cmd, NULL, dev,
				       "pvrdma-command@%s", name);
	case PVRDMA_VEC_ASYNC:
		return pci_request_irq(dev->pdev, i, irq_async, NULL, dev,
				       "pvrdma-event@%s", name);
	default:
		return pci_request_irq(dev->pdev, i, irq_cq, NULL,
				       &dev->vector[n],
				       "pvrdma-completion%u@%s", n, name);
	}
}

static void event_free_irq(struct pvrdma_dev *dev, u32 i)
{
	if (i < PVRDMA_VEC_CQ) {
		pci_free_irq(dev->pdev, i, dev);
		return;
	}
	irq_update_affinity_hint(pci_irq_vector(dev->pdev, i), NULL);
	pci_free_irq(dev->pdev, i, &dev->vector[i - PVRDMA_VEC_CQ]);
}

/**
 * pvrdma_event_init() - take the device's interrupts
 * @dev: device whose stock rings are allocated
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_event_init(struct pvrdma_dev *dev)
{
	int i, n, ret;

	n = pci_alloc_irq_vectors(dev->pdev, PVRDMA_NUM_VEC, event_num_irqs(dev),
				  PCI_IRQ_MSIX);
	if (n < 0) {
		dev_err(&dev->pdev->dev, "no MSI-X vectors: %d\n", n);
		return n;
	}
	for (i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++)
		dev->vector[i].dev = dev;
	dev->num_vectors = 1; /* its ring is there */
	for (i = 0; i < n; i++) {
		ret = event_request_irq(dev, i);
		if (ret)
			goto err;
	}
	dev->num_irqs = n;
	pvrdma_write(dev, PVRDMA_REG_IMR, 0);
	return 0;
err:
	while (i--)
		event_free_irq(dev, i);
	pci_free_irq_vectors(dev->pdev);
	return ret;
}

static int event_add_vector(struct pvrdma_dev *dev, u32 vector)
{
	struct pvrdma_pagedir *pages = &dev->vector[vector].ring.pages;
	struct pvrdma_ext_cmd_vector req = { .vector = vector };
	int ret;

	ret = pvrdma_pagedir_alloc(dev, pages, PVRDMA_EVENT_RING_PAGES, true);
	if (ret)
		return ret;
	req.pdir_dma = pages->dir_dma;
	req.npages = pages->npages;
	/* If it fails, the pages stay until the device is reset. */
	return pvrdma_cmd_add_vector(dev, &req);
}

/**
 * pvrdma_event_add_vectors() - give the device the rings of further vectors
 * @dev: device that is active
 *
 * Each vector's interrupt goes to a CPU of its own to begin with; who
 * administers the machine may change that.  One that cannot be added costs
 * itself and those behind it.
 */
void pvrdma_event_add_vectors(struct pvrdma_dev *dev)
{
	u32 want = dev->num_irqs - PVRDMA_VEC_CQ;
	int node = dev_to_node(&dev->pdev->dev);
	u32 i;
	int ret;

	while (dev->num_vectors < want) {
		ret = event_add_vector(dev, dev->num_vectors);
		if (ret) {
			dev_warn(&dev->pdev->dev,
				 "%u of %u completion vectors: %d\n",
				 dev->num_vectors, want, ret);
			break;
		}
		/* The ring comes before the number that lets its handler look. */
		smp_store_release(&dev->num_vectors, dev->num_vectors + 1);
	}
	for (i = 0; want > 1 && i < dev->num_vectors; i++)
		irq_set_affinity_and_hint(pci_irq_vector(dev->pdev,
							 PVRDMA_VEC_CQ + i),
					  cpumask_of(cpumask_local_spread(i, node)));
}

/**
 * pvrdma_event_free_vectors() - give the vectors' rings back
 * @dev: device that was reset
 */
void pvrdma_event_free_vectors(struct pvrdma_dev *dev)
{
	int i;

	for (i = 0; i < PVRDMA_EXT_MAX_VECTORS; i++)
		pvrdma_pagedir_free(dev, &dev->vector[i].ring.pages);
}

/**
 * pvrdma_event_stop() - mask the interrupts and wait for handlers at work
 * @dev: device
 */
void pvrdma_event_stop(struct pvrdma_dev *dev)
{
	int i;

	pvrdma_write(dev, PVRDMA_REG_IMR, U32_MAX);
	for (i = 0; i < dev->num_irqs; i++)
		synchronize_irq(pci_irq_vector(dev->pdev, i));
}

/**
 * pvrdma_event_sync_cq() - wait for a CQ's completion handler, if it is at work
 * @cq: the CQ
 */
void pvrdma_event_sync_cq(const struct pvrdma_cq *cq)
{
	struct pvrdma_dev *dev = to_pvdev(cq->ibcq.device);

	synchronize_irq(pci_irq_vector(dev->pdev,
				       PVRDMA_VEC_CQ + cq->vector));
}

/**
 * pvrdma_event_free() - give the interrupts back
 * @dev: device
 */
void pvrdma_event_free(struct pvrdma_dev *dev)
{
	int i;

	for (i = 0; i < dev->num_irqs; i++)
		event_free_irq(dev, i);
	pci_free_irq_vectors(dev->pdev);
}
