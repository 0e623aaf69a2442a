// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * The network interface beside the adapter, and the port's state.
 *
 * GIDs come from the addresses of a paired interface.  It is the one of
 * function 0 in the adapter's slot, of any driver; or, if the device names a
 * hardware address (PVRDMA_EXT_FEAT_MAC), the one that has it, in any slot.
 * A notifier follows interfaces as they come and go, also those that were
 * there before; so it does not matter which module is loaded first, and
 * without an interface the port is down.
 *
 * The notifier runs under RTNL and runs no commands.  What takes time is left
 * to port.work: it finds the port's state from interface and device, tells
 * ib_core about a change, and lets it look at a new interface's addresses; of
 * a dead device it also tells the programs that poll and the users of kernel CQs, and
 * everybody by DEVICE_FATAL, and begins its recovery.
 *
 * Storage may wait for its flushed requests before memory is free again, so port.work
 * has a queue of its own, whose rescuer needs none.  Recovery, which waits for others'
 * work that has no such queue, is not on it.
 */
#include <linux/etherdevice.h>
#include <linux/rtnetlink.h>

#include "pvrdma.h"

static struct workqueue_struct *port_wq;

/* The PCI function below an interface, through virtio and the like, or NULL. */
static struct pci_dev *netdev_pci(const struct net_device *ndev)
{
	struct device *parent = ndev->dev.parent;

	while (parent && !dev_is_pci(parent))
		parent = parent->parent;
	return parent ? to_pci_dev(parent) : NULL;
}

static bool netdev_matches(const struct pvrdma_dev *dev,
			   const struct net_device *ndev)
{
	struct pci_dev *own = dev->pdev;
	struct pci_dev *pci = netdev_pci(ndev);

	/* What lies above a NIC may have its address, but no PCI function. */
	if (!pci || ndev->type != ARPHRD_ETHER)
		return false;
	if (dev->port.has_mac)
		return ndev->addr_len == ETH_ALEN &&
		       (ether_addr_equal(ndev->perm_addr, dev->port.mac) ||
			ether_addr_equal(ndev->dev_addr, dev->port.mac));
	return pci->bus == own->bus &&
	       PCI_SLOT(pci->devfn) == PCI_SLOT(own->devfn) &&
	       PCI_FUNC(pci->devfn) == 0;
}

static void netdev_set(struct pvrdma_dev *dev, struct net_device *ndev)
{
	if (ib_device_set_netdev(&dev->ibdev, ndev, PVRDMA_PORT))
		return;
	if (ndev) {
		netdev_info(ndev, "paired with RDMA adapter %s\n",
			    pci_name(dev->pdev));
		WRITE_ONCE(dev->port.netdev_new, true);
	}
	WRITE_ONCE(dev->port.netdev, ndev);
}

/**
 * pvrdma_get_netdev() - verb
 * @ibdev: device
 * @port: number of the port
 *
 * Linux 6.1's SMC and SMB server ask the driver, not ib_core as later ones, and find no
 * adapter for an interface by themselves without this.  Callers need not hold RTNL: an
 * interface that goes outlives those who read it before it was reported as gone.
 *
 * Return: the paired interface with a reference, or NULL.
 */
struct net_device *pvrdma_get_netdev(struct ib_device *ibdev, u32 port)
{
	struct net_device *ndev;

	rcu_read_lock();
	ndev = READ_ONCE(to_pvdev(ibdev)->port.netdev);
	if (ndev)
		dev_hold(ndev);
	rcu_read_unlock();
	return ndev;
}

static bool netdev_link(const struct net_device *ndev)
{
	return netif_running(ndev) && netif_carrier_ok(ndev);
}

/* Of several with the address another one may have it still.  RTNL is held. */
static void netdev_find(struct pvrdma_dev *dev, struct net_device *gone)
{
	struct net_device *ndev;

	for_each_netdev(dev_net(gone), ndev)
		if (ndev != gone && netdev_matches(dev, ndev)) {
			netdev_set(dev, ndev);
			WRITE_ONCE(dev->port.link, netdev_link(ndev));
			return;
		}
}

static int netdev_event(struct notifier_block *nb, unsigned long event,
			void *ptr)
{
	struct pvrdma_dev *dev =
		container_of(nb, struct pvrdma_dev, port.nb);
	struct net_device *ndev = netdev_notifier_info_to_dev(ptr);
	bool link;

	switch (event) {
	case NETDEV_REGISTER:
	case NETDEV_UP:
		if (!dev->port.netdev && netdev_matches(dev, ndev))
			netdev_set(dev, ndev);
		break;
	case NETDEV_UNREGISTER:
		if (dev->port.netdev != ndev)
			return NOTIFY_DONE;
		netdev_set(dev, NULL);
		WRITE_ONCE(dev->port.link, false);
		/* Else this may be the end of the notifier, which reports each as gone. */
		if (READ_ONCE(dev->port.registered))
			netdev_find(dev, ndev);
		pvrdma_port_changed(dev);
		return NOTIFY_DONE;
	case NETDEV_GOING_DOWN:
	case NETDEV_DOWN:
	case NETDEV_CHANGE:
		break;
	default:
		return NOTIFY_DONE;
	}
	if (dev->port.netdev != ndev)
		return NOTIFY_DONE;
	link = event != NETDEV_GOING_DOWN && netdev_link(ndev);
	WRITE_ONCE(dev->port.link, link);
	pvrdma_port_changed(dev);
	return NOTIFY_DONE;
}

static void port_work(struct work_struct *work)
{
	struct pvrdma_dev *dev =
		container_of(work, struct pvrdma_dev, port.work);
	struct ib_event event = { .device = &dev->ibdev,
				  .element.port_num = PVRDMA_PORT };
	struct pvrdma_port_attr attr;
	bool active, down;

	if (pvrdma_dead(dev)) {
		pvrdma_quiesce(dev);
		pvrdma_contexts_gone(dev);
		pvrdma_cq_kick_all(dev);
	}
	if (!READ_ONCE(dev->port.registered))
		return;
	if (pvrdma_dead(dev) && !dev->port.told_dead) {
		dev->port.told_dead = true;
		event.event = IB_EVENT_DEVICE_FATAL;
		ib_dispatch_event(&event);
	}
	if (pvrdma_quiet(dev) && dev->cmd.gone)
		pvrdma_recover_begin(dev->adapter);
	if (xchg(&dev->port.netdev_new, false))
		rdma_roce_rescan_device(&dev->ibdev);
	active = READ_ONCE(dev->port.link) && !pvrdma_dead(dev);
	/*
	 * Queue pairs stop, as with a cable that is pulled.  An interface that goes
	 * away is down before; without one there is a cable.
	 */
	down = !active && READ_ONCE(dev->port.netdev) &&
	       dev->ext.features & PVRDMA_EXT_FEAT_LINK;
	if (down != dev->port.told_down || (active && !dev->port.active)) {
		pvrdma_cmd_ctl(dev, down ? PVRDMA_EXT_CTL_LINK_DOWN :
					   PVRDMA_CTL_UNQUIESCE);
		dev->port.told_down = down;
	}
	active = active && !pvrdma_query_port_attr(dev, &attr) &&
		 attr.state == PVRDMA_PORT_ACTIVE;
	if (active == dev->port.active)
		return;
	dev->port.active = active;
	event.event = active ? IB_EVENT_PORT_ACTIVE : IB_EVENT_PORT_ERR;
	ib_dispatch_event(&event);
}

/**
 * pvrdma_port_changed() - have port.work look at device and port
 * @dev: device
 *
 * Any context.
 */
void pvrdma_port_changed(struct pvrdma_dev *dev)
{
	queue_work(port_wq, &dev->port.work);
}

/**
 * pvrdma_netdev_init_work() - make the queue of port.work, once for all adapters
 *
 * Return: 0 or -ENOMEM.
 */
int pvrdma_netdev_init_work(void)
{
	port_wq = alloc_workqueue("pvrdma", WQ_MEM_RECLAIM | WQ_UNBOUND, 0);
	return port_wq ? 0 : -ENOMEM;
}

/**
 * pvrdma_netdev_end_work() - end that queue; there is no adapter any more
 */
void pvrdma_netdev_end_work(void)
{
	destroy_workqueue(port_wq);
}

/**
 * pvrdma_netdev_init() - prepare, so that port.work may be scheduled
 * @dev: device
 */
void pvrdma_netdev_init(struct pvrdma_dev *dev)
{
	INIT_WORK(&dev->port.work, port_work);
}

/**
 * pvrdma_netdev_start() - find the interface and follow it
 * @dev: device
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_netdev_start(struct pvrdma_dev *dev)
{
	u32 low, high;

	if (dev->ext.features & PVRDMA_EXT_FEAT_MAC) {
		low = pvrdma_read(dev, PVRDMA_REG_MACL);
		high = pvrdma_read(dev, PVRDMA_REG_MACH);
		dev->port.mac[0] = low;
		dev->port.mac[1] = low >> 8;
		dev->port.mac[2] = low >> 16;
		dev->port.mac[3] = low >> 24;
		dev->port.mac[4] = high;
		dev->port.mac[5] = high >> 8;
		dev->port.has_mac = is_valid_ether_addr(dev->port.mac);
	}
	dev->port.nb.notifier_call = netdev_event;
	return register_netdevice_notifier(&dev->port.nb);
}

/**
 * pvrdma_netdev_stop() - forget the interface
 * @dev: device
 *
 * Unregistering reports each interface as gone, so the reference is dropped.
 */
void pvrdma_netdev_stop(struct pvrdma_dev *dev)
{
	unregister_netdevice_notifier(&dev->port.nb);
}
