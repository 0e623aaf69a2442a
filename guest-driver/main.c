// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The PCI driver: bring an adapter up, hand it to ib_core, take it down.
 *
 * Up: registers, extension window, device shared region with the command slots
 * and the event rings, interrupts, ACTIVATE, paired interface, ib_core.  Down is
 * the same backwards; ib_core first destroys all objects, also those of
 * programs that still run.  After CTL=RESET the device uses no memory of ours.
 *
 * The same happens between a failure of the device and its return: recover.c.
 *
 * The device takes the shared region at the write of DSRHIGH and lets go of it
 * at CTL=RESET.  A hypervisor may post these writes; the read of VERSION after
 * each waits until they are done.
 */
#include <linux/cc_platform.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/swiotlb.h>

#include "pvrdma.h"

#define GOS_64BIT 0x02
#define GOS_LINUX 0x04 /* bits 2 to 5: 1 */
#define GOS_VER	  0x40 /* bits 6 to 21: 1 */

/*
 * Programs' memory is shared with the device for as long as it is registered,
 * without a moment to copy it to and from bounce buffers.
 */
static int dma_check(struct pci_dev *pdev)
{
	if (cc_platform_has(CC_ATTR_GUEST_MEM_ENCRYPT))
		dev_err(&pdev->dev,
			"the host cannot read this guest's encrypted memory: RDMA does not work here\n");
	else if (is_swiotlb_force_bounce(&pdev->dev))
		dev_err(&pdev->dev,
			"DMA goes through bounce buffers (swiotlb=force): RDMA does not work here\n");
	else
		return 0;
	return -EOPNOTSUPP;
}

/* What stays over a reset: the function is enabled and BAR1 mapped. */
static int pci_prepare(struct pci_dev *pdev)
{
	int ret;

	ret = dma_check(pdev);
	if (ret)
		return ret;
	ret = pcim_enable_device(pdev);
	if (ret)
		return ret;
	if (!(pci_resource_flags(pdev, PVRDMA_BAR_REG) & IORESOURCE_MEM) ||
	    !(pci_resource_flags(pdev, PVRDMA_BAR_UAR) & IORESOURCE_MEM) ||
	    pci_resource_len(pdev, PVRDMA_BAR_REG) < PVRDMA_REG_MACH + 4 ||
	    pci_resource_len(pdev, PVRDMA_BAR_UAR) < PVRDMA_PAGE_SIZE)
		return -ENODEV;
	ret = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	return pcim_iomap_regions(pdev, BIT(PVRDMA_BAR_REG), "pvrdma");
}

static int pci_start(struct pvrdma_dev *dev)
{
	struct pci_dev *pdev = dev->pdev;

	dev->regs = pcim_iomap_table(pdev)[PVRDMA_BAR_REG];
	/* Programs map the other pages. */
	dev->uar = ioremap(pci_resource_start(pdev, PVRDMA_BAR_UAR),
			   PVRDMA_PAGE_SIZE);
	if (!dev->uar)
		return -ENOMEM;
	return 0;
}

static void pci_stop(struct pvrdma_dev *dev)
{
	pci_clear_master(dev->pdev);
	iounmap(dev->uar);
}

static void ext_detect(struct pvrdma_dev *dev)
{
	/* What came with a feature bit is behind the least length. */
	if (pci_resource_len(dev->pdev, PVRDMA_BAR_REG) <
		    PVRDMA_EXT_WINDOW + PVRDMA_EXT_WINDOW_SIZE ||
	    pvrdma_read(dev, PVRDMA_EXT_REG_MAGIC) != PVRDMA_EXT_MAGIC ||
	    pvrdma_read(dev, PVRDMA_EXT_REG_LENGTH) < PVRDMA_EXT_WINDOW_MIN ||
	    pvrdma_read(dev, PVRDMA_EXT_REG_VERSION) != PVRDMA_EXT_VERSION)
		return;
	dev->ext.features = pvrdma_read(dev, PVRDMA_EXT_REG_FEATURES);
	dev->ext.max_inline = min(pvrdma_read(dev, PVRDMA_EXT_REG_INLINE),
				  PVRDMA_EXT_MAX_INLINE);
	dev->ext.counters = pvrdma_read(dev, PVRDMA_EXT_REG_COUNTERS);
	if (dev->ext.features & PVRDMA_EXT_FEAT_LARGE_MR)
		dev->ext.max_mr_pages = min(pvrdma_read(dev, PVRDMA_EXT_REG_MR_PAGES),
					    PVRDMA_EXT_MR_MAX_PAGES);
	dev_info(&dev->pdev->dev, "extensions %#x\n", dev->ext.features);
}

static void dsr_free(struct pvrdma_dev *dev)
{
	struct device *d = &dev->pdev->dev;

	pvrdma_kctx_free(dev);
	pvrdma_event_free_vectors(dev);
	pvrdma_pagedir_free(dev, &dev->async.pages);
	if (dev->cmd.resp)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dev->cmd.resp,
				  dev->cmd.resp_dma);
	if (dev->cmd.req)
		dma_free_coherent(d, PVRDMA_PAGE_SIZE, dev->cmd.req,
				  dev->cmd.req_dma);
	if (dev->dsr)
		dma_free_coherent(d, sizeof(*dev->dsr), dev->dsr, dev->dsr_dma);
}

static int dsr_alloc(struct pvrdma_dev *dev)
{
	struct device *d = &dev->pdev->dev;
	int ret;

	dev->dsr = dma_alloc_coherent(d, sizeof(*dev->dsr), &dev->dsr_dma,
				      GFP_KERNEL);
	dev->cmd.req = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE,
					  &dev->cmd.req_dma, GFP_KERNEL);
	dev->cmd.resp = dma_alloc_coherent(d, PVRDMA_PAGE_SIZE,
					   &dev->cmd.resp_dma, GFP_KERNEL);
	ret = dev->dsr && dev->cmd.req && dev->cmd.resp ? 0 : -ENOMEM;
	if (!ret)
		ret = pvrdma_pagedir_alloc(dev, &dev->async.pages,
					   PVRDMA_EVENT_RING_PAGES, true);
	if (!ret)
		ret = pvrdma_pagedir_alloc(dev, &dev->vector[0].ring.pages,
					   PVRDMA_EVENT_RING_PAGES, true);
	if (ret)
		dsr_free(dev);
	return ret;
}

/* Hand the region over; the device fills the capabilities in. */
static int dsr_give(struct pvrdma_dev *dev)
{
	struct pvrdma_dsr *dsr = dev->dsr;

	dsr->driver_version = PVRDMA_VERSION;
	dsr->gos_info = GOS_64BIT | GOS_LINUX | GOS_VER;
	dsr->cmd_slot_dma = dev->cmd.req_dma;
	dsr->resp_slot_dma = dev->cmd.resp_dma;
	dsr->async_ring.num_pages = dev->async.pages.npages;
	dsr->async_ring.pdir_dma = dev->async.pages.dir_dma;
	dsr->cq_ring.num_pages = dev->vector[0].ring.pages.npages;
	dsr->cq_ring.pdir_dma = dev->vector[0].ring.pages.dir_dma;
	dsr->uar_pfn = pci_resource_start(dev->pdev, PVRDMA_BAR_UAR) >>
		       PVRDMA_PAGE_SHIFT;
	pvrdma_write(dev, PVRDMA_REG_DSRLOW, lower_32_bits(dev->dsr_dma));
	pvrdma_write(dev, PVRDMA_REG_DSRHIGH, upper_32_bits(dev->dsr_dma));
	pvrdma_read(dev, PVRDMA_REG_VERSION);
	if (pvrdma_read(dev, PVRDMA_REG_ERR))
		return -EIO;
	rmb(); /* capabilities are read after the device wrote them */
	dev->caps = dsr->caps;
	return 0;
}

static void device_reset(struct pvrdma_dev *dev)
{
	pvrdma_write(dev, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
	/* Memory is given back when the reset is done, not when posted. */
	pvrdma_read(dev, PVRDMA_REG_VERSION);
}

static int device_start(struct pvrdma_dev *dev)
{
	u32 version;
	int ret;

	/*
	 * One that failed in another's hands, as before kexec, is there then.  Nor
	 * does it go on in what was the other's memory when it may use memory again.
	 */
	device_reset(dev);
	pci_set_master(dev->pdev);
	version = pvrdma_read(dev, PVRDMA_REG_VERSION);
	/* Older ones answer CREATE_QP without a handle. */
	if (version == U32_MAX || version < PVRDMA_VERSION) {
		dev_err(&dev->pdev->dev, "device version %u, need %u\n",
			version, PVRDMA_VERSION);
		return -ENODEV;
	}
	ext_detect(dev);
	ret = dsr_alloc(dev);
	if (ret)
		return ret;
	ret = dsr_give(dev);
	if (!ret)
		ret = pvrdma_caps_check(&dev->caps,
					pci_resource_len(dev->pdev, PVRDMA_BAR_UAR) >>
						PVRDMA_PAGE_SHIFT);
	if (ret) {
		dev_err(&dev->pdev->dev, "unusable device: %d\n", ret);
		goto err_dsr;
	}
	ret = pvrdma_event_init(dev);
	if (ret)
		goto err_dsr;
	pvrdma_write(dev, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
	if (pvrdma_read(dev, PVRDMA_REG_ERR)) {
		dev_err(&dev->pdev->dev, "device refuses to start\n");
		ret = -EIO;
		goto err_event;
	}
	pvrdma_kctx_start(dev);
	pvrdma_event_add_vectors(dev);
	return 0;
err_event:
	pvrdma_event_stop(dev);
	pvrdma_event_free(dev);
err_dsr:
	device_reset(dev);
	dsr_free(dev);
	return ret;
}

static void device_stop(struct pvrdma_dev *dev)
{
	pvrdma_event_stop(dev);
	device_reset(dev);
	pvrdma_event_free(dev);
	dsr_free(dev);
}

static int ib_start(struct pvrdma_dev *dev)
{
	struct ib_device *ibdev = &dev->ibdev;
	int ret;

	ibdev->node_guid = (__force __be64)dev->caps.node_guid;
	ibdev->node_type = RDMA_NODE_IB_CA;
	ibdev->phys_port_cnt = PVRDMA_PORT;
	ibdev->num_comp_vectors = dev->num_vectors;
	ibdev->dev.parent = &dev->pdev->dev;
	ib_set_device_ops(ibdev, &pvrdma_dev_ops);
	if (dev->ext.features & PVRDMA_EXT_FEAT_COUNTERS && dev->ext.counters)
		ib_set_device_ops(ibdev, &pvrdma_stats_ops);
	if (dev->ext.features & PVRDMA_EXT_FEAT_QP_COUNTERS)
		ib_set_device_ops(ibdev, &pvrdma_counter_ops);
	if (dev->ext.features & PVRDMA_EXT_FEAT_MEMWIN)
		ib_set_device_ops(ibdev, &pvrdma_memwin_ops);
	if (dev->ext.features & PVRDMA_EXT_FEAT_CQ_TIME)
		ib_set_device_ops(ibdev, &pvrdma_moderate_ops);
	ret = pvrdma_netdev_start(dev);
	if (ret)
		return ret;
	ret = ib_register_device(ibdev, "pvrdma%d", &dev->pdev->dev);
	if (ret) {
		pvrdma_netdev_stop(dev);
		return ret;
	}
	WRITE_ONCE(dev->port.registered, true);
	pvrdma_port_changed(dev);
	return 0;
}

/**
 * pvrdma_adapter_up() - bring up the device of an adapter that has none
 * @adapter: adapter
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_adapter_up(struct pvrdma_adapter *adapter)
{
	struct pci_dev *pdev = adapter->pdev;
	struct pvrdma_dev *dev;
	int ret;

	dev = ib_alloc_device(pvrdma_dev, ibdev);
	if (!dev)
		return -ENOMEM;
	dev->adapter = adapter;
	dev->pdev = pdev;
	mutex_init(&dev->cmd.lock);
	mutex_init(&dev->table.lock);
	mutex_init(&dev->contexts.lock);
	INIT_LIST_HEAD(&dev->contexts.list);
	mutex_init(&dev->qp_stats.lock);
	INIT_LIST_HEAD(&dev->qp_stats.bound);
	ida_init(&dev->qp_stats.ids);
	init_completion(&dev->cmd.done);
	xa_init_flags(&dev->table.qps, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->table.cqs, XA_FLAGS_LOCK_IRQ);
	xa_init_flags(&dev->table.srqs, XA_FLAGS_LOCK_IRQ);
	ida_init(&dev->uars);
	pvrdma_netdev_init(dev);

	ret = pci_start(dev);
	if (ret)
		goto err_free;
	ret = device_start(dev);
	if (ret)
		goto err_pci;
	ret = ib_start(dev);
	if (ret) {
		dev_err(&pdev->dev, "cannot register: %d\n", ret);
		goto err_device;
	}
	adapter->dev = dev;
	return 0;
err_device:
	device_stop(dev);
err_pci:
	/* An interrupt or a failed command may have scheduled it. */
	cancel_work_sync(&dev->port.work);
	pci_stop(dev);
err_free:
	ib_dealloc_device(&dev->ibdev);
	return ret;
}

/**
 * pvrdma_adapter_down() - take the device of an adapter down
 * @adapter: adapter that has one
 */
void pvrdma_adapter_down(struct pvrdma_adapter *adapter)
{
	struct pvrdma_dev *dev = adapter->dev;

	adapter->dev = NULL;
	if (pvrdma_read(dev, PVRDMA_REG_VERSION) == U32_MAX)
		pvrdma_set_dead(dev, "its registers read all-ones");
	WRITE_ONCE(dev->port.registered, false);
	/* Not cancelled: kernel users may wait for what it does on death. */
	flush_work(&dev->port.work);
	ib_unregister_device(&dev->ibdev);
	pvrdma_netdev_stop(dev);
	device_stop(dev);
	cancel_work_sync(&dev->port.work);
	pci_stop(dev);
	xa_destroy(&dev->table.qps);
	xa_destroy(&dev->table.cqs);
	xa_destroy(&dev->table.srqs);
	ida_destroy(&dev->uars);
	ida_destroy(&dev->qp_stats.ids);
	ib_dealloc_device(&dev->ibdev);
}

/*
 * Also before a reset or sleep, which takes all objects from the device: for
 * ib_core and programs it is an adapter that goes and another that comes.
 */
static void pvrdma_remove(struct pci_dev *pdev)
{
	struct pvrdma_adapter *adapter = pci_get_drvdata(pdev);

	pvrdma_recover_end(adapter);
	if (adapter->dev)
		pvrdma_adapter_down(adapter);
	pvrdma_recover_end(adapter);
}

/* After a reset or sleep. */
static int pvrdma_again(struct pci_dev *pdev)
{
	struct pvrdma_adapter *adapter = pci_get_drvdata(pdev);
	int ret;

	WRITE_ONCE(adapter->ending, false);
	ret = pvrdma_adapter_up(adapter);
	if (ret)
		pvrdma_recover_begin(adapter);
	return ret;
}

/*
 * The machine restarts or another kernel begins: the device must not write to
 * memory any more.  No user is waited for, unless a recovery has begun to take
 * the device down: what that begins anew must not come after this.
 */
static void pvrdma_shutdown(struct pci_dev *pdev)
{
	struct pvrdma_adapter *adapter = pci_get_drvdata(pdev);

	pvrdma_recover_end(adapter);
	if (!adapter->dev)
		return;
	pvrdma_write(adapter->dev, PVRDMA_REG_IMR, U32_MAX);
	pvrdma_quiesce(adapter->dev);
}

static int pvrdma_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct pvrdma_adapter *adapter;
	bool slow;
	int ret;

	ret = pci_prepare(pdev);
	if (ret)
		return ret;
	adapter = devm_kzalloc(&pdev->dev, sizeof(*adapter), GFP_KERNEL);
	if (!adapter)
		return -ENOMEM;
	adapter->pdev = pdev;
	pvrdma_recover_init(adapter);
	pci_set_drvdata(pdev, adapter);
	ret = pvrdma_adapter_up(adapter);
	if (!ret || pvrdma_answers(pcim_iomap_table(pdev)[PVRDMA_BAR_REG], &slow) ||
	    slow)
		return ret;
	dev_info(&pdev->dev, "no answer from the device: waiting\n");
	pvrdma_recover_begin(adapter);
	return 0;
}

static void pvrdma_reset_done(struct pci_dev *pdev)
{
	int ret = pvrdma_again(pdev);

	if (ret)
		dev_err(&pdev->dev, "not usable after a reset: %d\n", ret);
}

/* The device forgets everything while the machine sleeps, as in a reset. */
static int pvrdma_suspend(struct device *d)
{
	pvrdma_remove(to_pci_dev(d));
	return 0;
}

static int pvrdma_resume(struct device *d)
{
	return pvrdma_again(to_pci_dev(d));
}

static DEFINE_SIMPLE_DEV_PM_OPS(pvrdma_pm_ops, pvrdma_suspend, pvrdma_resume);

static const struct pci_error_handlers pvrdma_err_handlers = {
	.reset_prepare = pvrdma_remove,
	.reset_done = pvrdma_reset_done,
};

static const struct pci_device_id pvrdma_ids[] = {
	/* Not VMware's own adapters, which vmw_pvrdma is for. */
	{ PCI_DEVICE_SUB(PVRDMA_PCI_VENDOR, PVRDMA_PCI_DEVICE,
			 PVRDMA_PCI_SUBSYSTEM_VENDOR, PVRDMA_PCI_SUBSYSTEM) },
	{}
};
MODULE_DEVICE_TABLE(pci, pvrdma_ids);

static struct pci_driver pvrdma_driver = {
	.name = "pvrdma",
	.id_table = pvrdma_ids,
	.probe = pvrdma_probe,
	.remove = pvrdma_remove,
	.shutdown = pvrdma_shutdown,
	.driver.pm = pm_sleep_ptr(&pvrdma_pm_ops),
	.err_handler = &pvrdma_err_handlers,
};

static int __init pvrdma_init(void)
{
	int ret = pvrdma_netdev_init_work();

	if (ret)
		return ret;
	ret = pci_register_driver(&pvrdma_driver);
	if (ret)
		pvrdma_netdev_end_work();
	return ret;
}

static void __exit pvrdma_exit(void)
{
	pci_unregister_driver(&pvrdma_driver);
	pvrdma_netdev_end_work();
}

module_init(pvrdma_init);
module_exit(pvrdma_exit);

MODULE_DESCRIPTION("Paravirtual RDMA adapter");
MODULE_LICENSE("Dual BSD/GPL");
