/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What differs between the kernels this driver is built for: Debian 12 (6.1),
 * Debian 13 (6.12) and later.  The rest of the driver names no version.
 */
#ifndef PVRDMA_COMPAT_H
#define PVRDMA_COMPAT_H

#include <linux/version.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

int pvrdma_create_cq_udata(struct ib_cq *ibcq,
			   const struct ib_cq_init_attr *attr,
			   struct ib_udata *udata);
int pvrdma_resize_cq(struct ib_cq *ibcq, unsigned int cqe, struct ib_udata *udata);
struct ib_mr *pvrdma_reg_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova,
			    int access, struct ib_udata *udata);
struct ib_mr *pvrdma_reg_dmabuf_mr(struct ib_pd *ibpd, u64 offset, u64 length,
				   u64 iova, int fd, int access,
				   struct ib_udata *udata);
int pvrdma_counter_bind_qp(struct rdma_counter *counter, struct ib_qp *ibqp);
int pvrdma_counter_unbind_qp(struct ib_qp *ibqp);
int pvrdma_fill_res_srq(struct sk_buff *msg, struct ib_srq *ibsrq);

/* 6.11 gives create_cq the whole bundle of attributes, NULL from the kernel. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 11, 0)
#define PVRDMA_COMPAT_CREATE_CQ_OPS .create_cq = pvrdma_create_cq_udata
#else
static inline int pvrdma_compat_create_cq(struct ib_cq *ibcq,
					  const struct ib_cq_init_attr *attr,
					  struct uverbs_attr_bundle *attrs)
{
	return pvrdma_create_cq_udata(ibcq, attr,
				      attrs ? &attrs->driver_udata : NULL);
}

/* 7.1 has a verb of its own for programs' CQs. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define PVRDMA_COMPAT_CREATE_CQ_OPS .create_cq = pvrdma_compat_create_cq
#else
#define PVRDMA_COMPAT_CREATE_CQ_OPS                     \
	.create_cq = pvrdma_compat_create_cq,           \
	.create_user_cq = pvrdma_compat_create_cq
#endif
#endif

/* 6.17 adds a handle for hints about DMA, which this device has no use for. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
static inline struct ib_mr *pvrdma_compat_reg_user_mr(struct ib_pd *ibpd,
						      u64 start, u64 length,
						      u64 iova, int access,
						      struct ib_udata *udata)
{
	return pvrdma_reg_mr(ibpd, start, length, iova, access, udata);
}
#else
static inline struct ib_mr *
pvrdma_compat_reg_user_mr(struct ib_pd *ibpd, u64 start, u64 length, u64 iova,
			  int access, struct ib_dmah *dmah,
			  struct ib_udata *udata)
{
	if (dmah)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "hints about DMA"));
	return pvrdma_reg_mr(ibpd, start, length, iova, access, udata);
}
#endif

/* 6.12 gives this one the whole bundle too; 6.17 the handle. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#define pvrdma_compat_reg_dmabuf_mr pvrdma_reg_dmabuf_mr
#elif LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
static inline struct ib_mr *
pvrdma_compat_reg_dmabuf_mr(struct ib_pd *ibpd, u64 offset, u64 length,
			    u64 iova, int fd, int access,
			    struct uverbs_attr_bundle *attrs)
{
	return pvrdma_reg_dmabuf_mr(ibpd, offset, length, iova, fd, access,
				    attrs ? &attrs->driver_udata : NULL);
}
#else
static inline struct ib_mr *
pvrdma_compat_reg_dmabuf_mr(struct ib_pd *ibpd, u64 offset, u64 length,
			    u64 iova, int fd, int access, struct ib_dmah *dmah,
			    struct uverbs_attr_bundle *attrs)
{
	if (dmah)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "hints about DMA"));
	return pvrdma_reg_dmabuf_mr(ibpd, offset, length, iova, fd, access,
				    attrs ? &attrs->driver_udata : NULL);
}
#endif

/* 7.1 renames the call that pins a range of a program's addresses. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
#define pvrdma_compat_umem_get ib_umem_get
#else
#define pvrdma_compat_umem_get ib_umem_get_va
#endif

/*
 * 6.14 reports the interface's changes as the port's, unless the driver does;
 * netdev.c does, and knows the device's part in it.
 */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
#define PVRDMA_COMPAT_PORT_OPS
#else
static inline void pvrdma_compat_report_port_event(struct ib_device *ibdev,
						   struct net_device *ndev,
						   unsigned long event)
{
}

#define PVRDMA_COMPAT_PORT_OPS \
	.report_port_event = pvrdma_compat_report_port_event,
#endif

/* 7.1 says in its name that only programs resize, and counts without a sign. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 1, 0)
static inline int pvrdma_compat_resize_cq(struct ib_cq *ibcq, int cqe,
					  struct ib_udata *udata)
{
	return pvrdma_resize_cq(ibcq, cqe < 0 ? 0 : cqe, udata);
}

#define PVRDMA_COMPAT_RESIZE_CQ_OPS .resize_cq = pvrdma_compat_resize_cq
#else
#define PVRDMA_COMPAT_RESIZE_CQ_OPS .resize_user_cq = pvrdma_resize_cq
#endif

/* 6.15 names the port, and asks how large a counter is. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 15, 0)
#define PVRDMA_COMPAT_COUNTER_OPS                 \
	.counter_bind_qp = pvrdma_counter_bind_qp, \
	.counter_unbind_qp = pvrdma_counter_unbind_qp
#else
struct pvrdma_compat_counter {
	struct rdma_counter counter;
};

static inline int pvrdma_compat_counter_bind_qp(struct rdma_counter *counter,
						struct ib_qp *ibqp, u32 port)
{
	return pvrdma_counter_bind_qp(counter, ibqp);
}

static inline int pvrdma_compat_counter_unbind_qp(struct ib_qp *ibqp, u32 port)
{
	return pvrdma_counter_unbind_qp(ibqp);
}

static inline void pvrdma_compat_counter_init(struct rdma_counter *counter)
{
}

#define PVRDMA_COMPAT_COUNTER_OPS                            \
	.counter_bind_qp = pvrdma_compat_counter_bind_qp,     \
	.counter_unbind_qp = pvrdma_compat_counter_unbind_qp, \
	.counter_init = pvrdma_compat_counter_init,           \
	INIT_RDMA_OBJ_SIZE(rdma_counter, pvrdma_compat_counter, counter)
#endif

/* Since 6.12 at the latest SRQs have details, too. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#define PVRDMA_COMPAT_RES_SRQ_OPS
#else
#define PVRDMA_COMPAT_RES_SRQ_OPS .fill_res_srq_entry = pvrdma_fill_res_srq,
#endif

#endif /* PVRDMA_COMPAT_H */
