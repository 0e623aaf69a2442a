// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Recovery: a device that failed is taken down, and brought up again when it
 * answers.
 *
 * A device fails when the process behind it ends, or does not answer, and works
 * again after a reset once there is another.  All objects are gone then, so for
 * ib_core, kernel users and programs it is an adapter that goes and another that
 * comes, as at a reset of the function.
 *
 * Kernel users get some time in between to end what they had, which fails at
 * once: one that has ended it, as NVMe's host has between two attempts to
 * connect, looks for its peer again through whatever device there is then.  One
 * that has not gives up for good when the device goes.
 *
 * A driver that finds nobody when it starts waits in the same way, without a
 * device.
 *
 * That the device answers is seen by a register: all-ones is what is read while
 * there is nobody, and until the device was reset, which is done as soon as it
 * is found dead.  One that could be read then is out of order and not away: it
 * might fail again and again, and is left to who administers the machine.
 *
 * The work is of the adapter, which stays while devices come and go.  The PCI
 * core's calls, which never come two at a time, end it before they do the same;
 * it takes no lock that these hold.  port.work of a device that is registered
 * begins it, so no device does that is being taken down.
 */
#include <linux/pci.h>
#include <linux/workqueue.h>

#include "pvrdma.h"

/* From a failure to the first look, and from one look to the next. */
#define PAUSE_MIN (2 * HZ)
/* It doubles up to this with each attempt in turn that did not succeed. */
#define PAUSE_MAX (64 * HZ)

static void recover_after(struct pvrdma_adapter *adapter, unsigned long pause)
{
	queue_delayed_work(system_unbound_wq, &adapter->recover, pause);
}

static void recover_work(struct work_struct *work)
{
	struct pvrdma_adapter *adapter =
		container_of(to_delayed_work(work), struct pvrdma_adapter,
			     recover);
	void __iomem *regs = pcim_iomap_table(adapter->pdev)[PVRDMA_BAR_REG];
	bool slow;
	int ret;

	if (READ_ONCE(adapter->ending))
		return;
	/* Begun again, of the last device, while this was at work. */
	if (adapter->dev && !pvrdma_dead(adapter->dev))
		return;
	if (!pvrdma_answers(regs, &slow)) {
		/* The machine stood still for it: not too often. */
		recover_after(adapter, slow ? PAUSE_MAX : PAUSE_MIN);
		return;
	}
	if (adapter->dev)
		pvrdma_adapter_down(adapter);
	ret = pvrdma_adapter_up(adapter);
	if (ret) {
		dev_err(&adapter->pdev->dev, "not usable after a failure: %d\n",
			ret);
		adapter->pause = min(2 * adapter->pause,
				     (unsigned long)PAUSE_MAX);
		recover_after(adapter, adapter->pause);
		return;
	}
	adapter->pause = PAUSE_MIN;
	dev_info(&adapter->pdev->dev, "recovered\n");
}

/**
 * pvrdma_recover_init() - prepare an adapter
 * @adapter: adapter without device
 */
void pvrdma_recover_init(struct pvrdma_adapter *adapter)
{
	adapter->pause = PAUSE_MIN;
	INIT_DELAYED_WORK(&adapter->recover, recover_work);
}

/**
 * pvrdma_recover_begin() - bring the device up again when it answers
 * @adapter: its device is dead, or has not come up
 */
void pvrdma_recover_begin(struct pvrdma_adapter *adapter)
{
	if (READ_ONCE(adapter->ending) ||
	    delayed_work_pending(&adapter->recover))
		return;
	recover_after(adapter, PAUSE_MIN);
}

/**
 * pvrdma_recover_end() - do so no more
 * @adapter: adapter
 *
 * What has begun has come to its end when this returns.  A device that is
 * registered may yet begin anew, which does nothing; so call this once more when
 * there is none, before @adapter goes.
 */
void pvrdma_recover_end(struct pvrdma_adapter *adapter)
{
	WRITE_ONCE(adapter->ending, true);
	cancel_delayed_work_sync(&adapter->recover);
}
