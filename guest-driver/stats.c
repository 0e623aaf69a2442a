// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Counters of the port, as `rdma statistic` shows them: the device counts,
 * PVRDMA_CMD_QUERY_COUNTERS reads.  Only registered with a device that offers
 * PVRDMA_EXT_FEAT_COUNTERS; ib_core asks at most every ten milliseconds.
 */
#include "cmd.h"
#include "pvrdma.h"

const struct rdma_stat_desc pvrdma_stats_descs[PVRDMA_EXT_CNT_MAX] = {
	[PVRDMA_EXT_CNT_TX_MSGS].name = "tx_messages",
	[PVRDMA_EXT_CNT_TX_BYTES].name = "tx_bytes",
	[PVRDMA_EXT_CNT_RX_MSGS].name = "rx_messages",
	[PVRDMA_EXT_CNT_RX_BYTES].name = "rx_bytes",
	[PVRDMA_EXT_CNT_ERRORS].name = "errors",
	[PVRDMA_EXT_CNT_RNR_WAITS].name = "rnr_waits",
	[PVRDMA_EXT_CNT_RETRIES].name = "retries",
	[PVRDMA_EXT_CNT_INTERRUPTS].name = "interrupts",
};

static struct rdma_hw_stats *pvrdma_alloc_stats(struct ib_device *ibdev,
						u32 port)
{
	struct pvrdma_dev *dev = to_pvdev(ibdev);

	return rdma_alloc_hw_stats_struct(pvrdma_stats_descs,
					  pvrdma_num_counters(dev),
					  RDMA_HW_STATS_DEFAULT_LIFESPAN);
}

static int pvrdma_get_stats(struct ib_device *ibdev,
			    struct rdma_hw_stats *stats, u32 port, int index)
{
	struct pvrdma_cmd_handle req = {};
	struct pvrdma_ext_resp_counters resp;
	u64 value[ARRAY_SIZE(resp.counter)];
	int i, ret;

	if (port != PVRDMA_PORT)
		return pvrdma_refuse(ibdev, -EINVAL, "port %u", port);
	ret = pvrdma_cmd_query_counters(to_pvdev(ibdev), &req, &resp);
	if (ret)
		return ret;
	memcpy(value, resp.counter, sizeof(value));
	ret = pvrdma_counters_given(to_pvdev(ibdev), value, stats->num_counters);
	if (ret)
		return ret;
	for (i = 0; i < stats->num_counters; i++)
		stats->value[i] = value[i];
	return stats->num_counters;
}

const struct ib_device_ops pvrdma_stats_ops = {
	.alloc_hw_port_stats = pvrdma_alloc_stats,
	.get_hw_stats = pvrdma_get_stats,
};
