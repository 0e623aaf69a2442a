// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * What is known of single objects: counters of QPs (`rdma statistic qp`), details
 * of `rdma resource show -dd`.
 *
 * The device counts for each QP from its creation on.  A counter of ib_core's is
 * a sum: of each QP what the device has counted from when it was bound until it
 * was unbound.  So what a QP adds is collected when the counter is read and when
 * the QP is unbound, which ib_core does before it destroys one.
 *
 * For ib_core the counters of a port are those of the QPs that are bound to
 * nothing: it shows the sum of these and of all counters.  The device's port
 * counters have everything; what went into counters is taken off them.  A read
 * takes the port's first and then collects, so that what happens in between is
 * not counted twice but comes with the next read.
 *
 * ib_core asks every counter for each name that it shows of the port.  As with the
 * port's own, what was collected less than the lifespan ago (10 ms) is the answer, or
 * each QP would cost a command for each name.
 *
 * What no counter of the port corresponds to is shown with the QP's details.
 *
 * dev->qp_stats.lock protects what has been collected; commands run under it.
 */
#include <net/netlink.h>
#include <rdma/rdma_netlink.h>
#include <rdma/restrack.h>

#include "cmd.h"
#include "pvrdma.h"

/* Those that a QP has, too. */
static u32 counter_num(const struct pvrdma_dev *dev)
{
	return min_t(u32, pvrdma_num_counters(dev), PVRDMA_QP_COUNTERS);
}

static int counter_query_qp(struct pvrdma_dev *dev, u32 handle,
			    struct pvrdma_ext_resp_qp_counters *resp)
{
	struct pvrdma_cmd_handle req = { .handle = handle };

	return pvrdma_cmd_query_qp_counters(dev, &req, resp);
}

/* Give a bound QP's counter what was counted since the last time. */
static int counter_collect(struct pvrdma_dev *dev, struct pvrdma_qp *qp)
{
	struct rdma_hw_stats *stats = qp->ibqp.counter->stats;
	struct pvrdma_ext_resp_qp_counters resp;
	u32 i;
	int ret;

	ret = counter_query_qp(dev, qp->handle, &resp);
	if (ret)
		return ret;
	for (i = 0; i < counter_num(dev); i++) {
		u64 more = resp.counter[i] - qp->counted[i];

		stats->value[i] += more;
		dev->qp_stats.given[i] += more;
		qp->counted[i] = resp.counter[i];
	}
	return 0;
}

/* All QPs, or those of one counter. */
static int counter_collect_all(struct pvrdma_dev *dev,
			       const struct rdma_counter *counter)
{
	struct pvrdma_qp *qp;
	int ret;

	list_for_each_entry(qp, &dev->qp_stats.bound, bound) {
		if (counter && qp->ibqp.counter != counter)
			continue;
		ret = counter_collect(dev, qp);
		if (ret)
			return ret;
	}
	/* Not before: a counter's QPs have all been asked now. */
	list_for_each_entry(qp, &dev->qp_stats.bound, bound)
		if (!counter || qp->ibqp.counter == counter)
			qp->ibqp.counter->stats->timestamp = jiffies;
	return 0;
}

static bool counter_is_fresh(const struct rdma_hw_stats *stats)
{
	return time_before(jiffies, stats->timestamp + stats->lifespan);
}

/**
 * pvrdma_counters_given() - what of the port's counters is in counters of QPs
 * @dev: device
 * @value: the port's, just read; these are taken off
 * @n: how many
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_counters_given(struct pvrdma_dev *dev, u64 *value, u32 n)
{
	u32 i;
	int ret;

	mutex_lock(&dev->qp_stats.lock);
	ret = counter_collect_all(dev, NULL);
	for (i = 0; !ret && i < min(n, counter_num(dev)); i++)
		value[i] -= dev->qp_stats.given[i];
	mutex_unlock(&dev->qp_stats.lock);
	return ret;
}

/* Not soon one that was in use: ib_core forgets a counter after it is given back. */
static int counter_alloc_id(struct pvrdma_dev *dev, struct rdma_counter *counter)
{
	struct pvrdma_qp_stats *s = &dev->qp_stats;
	int ret = -ENOSPC;

	if (s->last_id < INT_MAX)
		ret = ida_alloc_min(&s->ids, s->last_id + 1, GFP_KERNEL);
	if (ret == -ENOSPC)
		ret = ida_alloc_min(&s->ids, 1, GFP_KERNEL);
	if (ret < 0)
		return ret;
	s->last_id = ret;
	counter->id = ret;
	return 0;
}

/**
 * pvrdma_counter_bind_qp() - a QP's traffic is a counter's from now on
 * @counter: gets a number with its first QP
 * @ibqp: QP without a counter
 *
 * ib_core looks whether it has one without a lock, and older ones find QPs that are
 * being destroyed.
 *
 * Return: 0 or a negative errno.
 */
int pvrdma_counter_bind_qp(struct rdma_counter *counter, struct ib_qp *ibqp)
{
	struct pvrdma_dev *dev = to_pvdev(ibqp->device);
	struct pvrdma_ext_resp_qp_counters resp;
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	int ret;

	mutex_lock(&dev->qp_stats.lock);
	if (ibqp->counter || xa_load(&dev->table.qps, qp->handle) != &qp->ref)
		ret = -EINVAL;
	else
		ret = counter_query_qp(dev, qp->handle, &resp);
	if (!ret && !counter->id)
		ret = counter_alloc_id(dev, counter);
	if (!ret) {
		memcpy(qp->counted, resp.counter, sizeof(qp->counted));
		ibqp->counter = counter;
		list_add(&qp->bound, &dev->qp_stats.bound);
	}
	mutex_unlock(&dev->qp_stats.lock);
	return ret;
}

/**
 * pvrdma_counter_unbind_qp() - no more
 * @ibqp: QP with a counter
 *
 * Return: 0, or -EINVAL if it has none.  A dead device does not say what was counted
 * last.
 */
int pvrdma_counter_unbind_qp(struct ib_qp *ibqp)
{
	struct pvrdma_dev *dev = to_pvdev(ibqp->device);
	struct pvrdma_qp *qp = to_pvqp(ibqp);
	int ret = -EINVAL;

	mutex_lock(&dev->qp_stats.lock);
	if (ibqp->counter) {
		counter_collect(dev, qp);
		list_del(&qp->bound);
		ibqp->counter = NULL;
		ret = 0;
	}
	mutex_unlock(&dev->qp_stats.lock);
	return ret;
}

/**
 * pvrdma_counter_forget_qp() - a QP is gone from the device and its table
 * @dev: device
 * @qp: not used by anybody any more; ib_core has unbound it, but may have bound it
 * again since
 */
void pvrdma_counter_forget_qp(struct pvrdma_dev *dev, struct pvrdma_qp *qp)
{
	mutex_lock(&dev->qp_stats.lock);
	if (qp->ibqp.counter)
		list_del(&qp->bound);
	mutex_unlock(&dev->qp_stats.lock);
}

static int pvrdma_counter_dealloc(struct rdma_counter *counter)
{
	ida_free(&to_pvdev(counter->device)->qp_stats.ids, counter->id);
	return 0;
}

/*
 * As many as the port has: ib_core goes by the port's number when it sums them up.
 * Those that no QP has stay 0 and are not shown.
 */
static struct rdma_hw_stats *
pvrdma_counter_alloc_stats(struct rdma_counter *counter)
{
	struct pvrdma_dev *dev = to_pvdev(counter->device);
	struct rdma_hw_stats *stats;
	u32 i;

	stats = rdma_alloc_hw_stats_struct(pvrdma_stats_descs,
					   pvrdma_num_counters(dev),
					   RDMA_HW_STATS_DEFAULT_LIFESPAN);
	for (i = counter_num(dev); stats && i < stats->num_counters; i++)
		set_bit(i, stats->is_disabled);
	return stats;
}

static int pvrdma_counter_update_stats(struct rdma_counter *counter)
{
	struct pvrdma_dev *dev = to_pvdev(counter->device);
	int ret = 0;

	mutex_lock(&dev->qp_stats.lock);
	if (!counter_is_fresh(counter->stats))
		ret = counter_collect_all(dev, counter);
	mutex_unlock(&dev->qp_stats.lock);
	return ret;
}

const struct ib_device_ops pvrdma_counter_ops = {
	PVRDMA_COMPAT_COUNTER_OPS,
	.counter_dealloc = pvrdma_counter_dealloc,
	.counter_alloc_stats = pvrdma_counter_alloc_stats,
	.counter_update_stats = pvrdma_counter_update_stats,
};

/* ---- details of resources ---- */

/* The counters of a QP that may be destroyed meanwhile: its handle is its own. */
static int counter_query_live_qp(struct pvrdma_dev *dev, struct pvrdma_qp *qp,
				 struct pvrdma_ext_resp_qp_counters *resp)
{
	int ret = -ENOENT;

	mutex_lock(&dev->table.lock);
	if (xa_load(&dev->table.qps, qp->handle) == &qp->ref)
		ret = counter_query_qp(dev, qp->handle, resp);
	mutex_unlock(&dev->table.lock);
	return ret;
}

static int res_put_qp(struct sk_buff *msg, struct pvrdma_dev *dev,
		      struct pvrdma_qp *qp)
{
	struct pvrdma_ext_resp_qp_counters resp;

	if (rdma_nl_put_driver_u32(msg, "handle", qp->handle) ||
	    rdma_nl_put_driver_u32(msg, "send_wrs", qp->cap.max_send_wr) ||
	    rdma_nl_put_driver_u32(msg, "recv_wrs", qp->cap.max_recv_wr) ||
	    rdma_nl_put_driver_u32(msg, "inline", qp->cap.max_inline_data))
		return -EMSGSIZE;
	if (!(dev->ext.features & PVRDMA_EXT_FEAT_QP_COUNTERS) ||
	    counter_query_live_qp(dev, qp, &resp))
		return 0;
	if (rdma_nl_put_driver_u64(msg, "rnr_naks",
				   resp.counter[PVRDMA_EXT_QPCNT_RNR_NAKS]) ||
	    rdma_nl_put_driver_u64(msg, "duplicates",
				   resp.counter[PVRDMA_EXT_QPCNT_DUPLICATES]) ||
	    rdma_nl_put_driver_u64(msg, "dropped",
				   resp.counter[PVRDMA_EXT_QPCNT_DROPPED]))
		return -EMSGSIZE;
	return 0;
}

static int res_put_cq(struct sk_buff *msg, struct pvrdma_cq *cq)
{
	return rdma_nl_put_driver_u32(msg, "handle", cq->handle) ||
	       rdma_nl_put_driver_u32(msg, "vector", cq->vector) ?
		       -EMSGSIZE : 0;
}

static int res_put_mr(struct sk_buff *msg, struct pvrdma_mr *mr)
{
	return rdma_nl_put_driver_u32(msg, "handle", mr->handle) ||
	       rdma_nl_put_driver_u32(msg, "pages", mr->dir.npages) ||
	       rdma_nl_put_driver_u32_hex(msg, "access", mr->access) ?
		       -EMSGSIZE : 0;
}

static struct nlattr *res_nest_start(struct sk_buff *msg)
{
	return nla_nest_start(msg, RDMA_NLDEV_ATTR_DRIVER);
}

static int res_nest_end(struct sk_buff *msg, struct nlattr *nest, int ret)
{
	if (ret)
		nla_nest_cancel(msg, nest);
	else
		nla_nest_end(msg, nest);
	return ret;
}

/**
 * pvrdma_fill_res_qp() - details of a QP
 * @msg: netlink message
 * @ibqp: QP
 *
 * Return: 0 or -EMSGSIZE.
 */
int pvrdma_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp)
{
	struct nlattr *nest = res_nest_start(msg);

	return nest ? res_nest_end(msg, nest, res_put_qp(msg, to_pvdev(ibqp->device),
							 to_pvqp(ibqp))) :
		      -EMSGSIZE;
}

/**
 * pvrdma_fill_res_cq() - details of a CQ
 * @msg: netlink message
 * @ibcq: CQ
 *
 * Return: 0 or -EMSGSIZE.
 */
int pvrdma_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq)
{
	struct nlattr *nest = res_nest_start(msg);

	return nest ? res_nest_end(msg, nest, res_put_cq(msg, to_pvcq(ibcq))) :
		      -EMSGSIZE;
}

/**
 * pvrdma_fill_res_mr() - details of an MR
 * @msg: netlink message
 * @ibmr: MR
 *
 * Return: 0 or -EMSGSIZE.
 */
int pvrdma_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr)
{
	struct nlattr *nest = res_nest_start(msg);

	return nest ? res_nest_end(msg, nest, res_put_mr(msg, to_pvmr(ibmr))) :
		      -EMSGSIZE;
}

/**
 * pvrdma_fill_res_srq() - details of an SRQ, where the kernel asks for them
 * @msg: netlink message
 * @ibsrq: SRQ
 *
 * Return: 0 or -EMSGSIZE.
 */
int pvrdma_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq)
{
	struct nlattr *nest = res_nest_start(msg);

	return nest ? res_nest_end(msg, nest,
				   rdma_nl_put_driver_u32(msg, "handle",
							  to_pvsrq(ibsrq)->handle)) :
		      -EMSGSIZE;
}
