/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * What differs between the kernels this driver is built for: Debian 12 (6.1),
 * Debian 13 (6.12) and later.  The rest of the driver names no difference.
 *
 * No version is compared: stable and vendors' kernels take over what came later.
 * Kbuild looks for names in the kernel's headers and defines PVRDMA_HAVE_<name>
 * for those that are there; of a verb that is there in several forms the compiler
 * takes the one of its type.  A verb of yet another type does not compile.
 */
#ifndef PVRDMA_COMPAT_H
#define PVRDMA_COMPAT_H

#ifdef PVRDMA_HAVE_iter_h
#include <rdma/iter.h> /* else ib_verbs.h and ib_umem.h have it */
#endif
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/uverbs_ioctl.h>

struct ib_dmah;

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

/* Of a verb's two forms the first, if the kernel's is of its type. */
#define PVRDMA_COMPAT_VERB(verb, first, other)                              \
	__builtin_choose_expr(                                              \
		__builtin_types_compatible_p(                               \
			typeof_member(const struct ib_device_ops, verb),    \
			typeof(first) *), first, other)

/* A CQ is made with a program's data, or the whole bundle, NULL from the kernel. */
static inline int pvrdma_compat_create_cq(struct ib_cq *ibcq,
					  const struct ib_cq_init_attr *attr,
					  struct uverbs_attr_bundle *attrs)
{
	return pvrdma_create_cq_udata(ibcq, attr,
				      attrs ? &attrs->driver_udata : NULL);
}

#define PVRDMA_COMPAT_CREATE_CQ                               \
	PVRDMA_COMPAT_VERB(create_cq, pvrdma_create_cq_udata, \
			   pvrdma_compat_create_cq)

/* Some have a verb of its own for programs' CQs. */
#ifdef PVRDMA_HAVE_create_user_cq
#define PVRDMA_COMPAT_CREATE_CQ_OPS            \
	.create_cq = PVRDMA_COMPAT_CREATE_CQ,  \
	.create_user_cq = pvrdma_compat_create_cq
#else
#define PVRDMA_COMPAT_CREATE_CQ_OPS .create_cq = PVRDMA_COMPAT_CREATE_CQ
#endif

/* Some add a handle for hints about DMA, which this device has no use for. */
static inline struct ib_mr *pvrdma_compat_reg_mr_dmah(struct ib_pd *ibpd,
						      u64 start, u64 length,
						      u64 iova, int access,
						      struct ib_dmah *dmah,
						      struct ib_udata *udata)
{
	if (dmah)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "hints about DMA"));
	return pvrdma_reg_mr(ibpd, start, length, iova, access, udata);
}

/* Some give this one the whole bundle too; some of these the handle. */
static inline struct ib_mr *
pvrdma_compat_reg_dmabuf(struct ib_pd *ibpd, u64 offset, u64 length, u64 iova,
			 int fd, int access, struct uverbs_attr_bundle *attrs)
{
	return pvrdma_reg_dmabuf_mr(ibpd, offset, length, iova, fd, access,
				    attrs ? &attrs->driver_udata : NULL);
}

static inline struct ib_mr *
pvrdma_compat_reg_dmabuf_dmah(struct ib_pd *ibpd, u64 offset, u64 length,
			      u64 iova, int fd, int access, struct ib_dmah *dmah,
			      struct uverbs_attr_bundle *attrs)
{
	if (dmah)
		return ERR_PTR(pvrdma_refuse(ibpd->device, -EOPNOTSUPP,
					     "hints about DMA"));
	return pvrdma_compat_reg_dmabuf(ibpd, offset, length, iova, fd, access,
					attrs);
}

#define PVRDMA_COMPAT_REG_MR_OPS                                           \
	.reg_user_mr = PVRDMA_COMPAT_VERB(reg_user_mr, pvrdma_reg_mr,      \
					  pvrdma_compat_reg_mr_dmah),      \
	.reg_user_mr_dmabuf =                                              \
		PVRDMA_COMPAT_VERB(reg_user_mr_dmabuf,                     \
				   pvrdma_reg_dmabuf_mr,                   \
		PVRDMA_COMPAT_VERB(reg_user_mr_dmabuf,                     \
				   pvrdma_compat_reg_dmabuf,               \
				   pvrdma_compat_reg_dmabuf_dmah))

/* The call that pins a range of a program's addresses has two names. */
#ifdef PVRDMA_HAVE_ib_umem_get_va
#define pvrdma_compat_umem_get ib_umem_get_va
#else
#define pvrdma_compat_umem_get ib_umem_get
#endif

/*
 * Some report the interface's changes as the port's, unless the driver does;
 * netdev.c does, and knows the device's part in it.
 */
#ifdef PVRDMA_HAVE_report_port_event
static inline void pvrdma_compat_report_port_event(struct ib_device *ibdev,
						   struct net_device *ndev,
						   unsigned long event)
{
}

#define PVRDMA_COMPAT_PORT_OPS \
	.report_port_event = pvrdma_compat_report_port_event,
#else
#define PVRDMA_COMPAT_PORT_OPS
#endif

/* Some say in its name that only programs resize, and count without a sign. */
#ifdef PVRDMA_HAVE_resize_user_cq
#define PVRDMA_COMPAT_RESIZE_CQ_OPS .resize_user_cq = pvrdma_resize_cq
#else
static inline int pvrdma_compat_resize_cq(struct ib_cq *ibcq, int cqe,
					  struct ib_udata *udata)
{
	return pvrdma_resize_cq(ibcq, cqe < 0 ? 0 : cqe, udata);
}

#define PVRDMA_COMPAT_RESIZE_CQ_OPS .resize_cq = pvrdma_compat_resize_cq
#endif

/* Some name the port. */
static inline int pvrdma_compat_counter_bind_qp(struct rdma_counter *counter,
						struct ib_qp *ibqp, u32 port)
{
	return pvrdma_counter_bind_qp(counter, ibqp);
}

static inline int pvrdma_compat_counter_unbind_qp(struct ib_qp *ibqp, u32 port)
{
	return pvrdma_counter_unbind_qp(ibqp);
}

/* Some ask how large a counter is. */
#ifdef PVRDMA_HAVE_counter_init
struct pvrdma_compat_counter {
	struct rdma_counter counter;
};

static inline void pvrdma_compat_counter_init(struct rdma_counter *counter)
{
}

#define PVRDMA_COMPAT_COUNTER_SIZE                  \
	, .counter_init = pvrdma_compat_counter_init, \
	INIT_RDMA_OBJ_SIZE(rdma_counter, pvrdma_compat_counter, counter)
#else
#define PVRDMA_COMPAT_COUNTER_SIZE
#endif

#define PVRDMA_COMPAT_COUNTER_OPS                                          \
	.counter_bind_qp = PVRDMA_COMPAT_VERB(counter_bind_qp,             \
					      pvrdma_counter_bind_qp,      \
					      pvrdma_compat_counter_bind_qp), \
	.counter_unbind_qp = PVRDMA_COMPAT_VERB(counter_unbind_qp,         \
						pvrdma_counter_unbind_qp,  \
						pvrdma_compat_counter_unbind_qp) \
	PVRDMA_COMPAT_COUNTER_SIZE

/* Some have details of SRQs, too. */
#ifdef PVRDMA_HAVE_fill_res_srq_entry
#define PVRDMA_COMPAT_RES_SRQ_OPS .fill_res_srq_entry = pvrdma_fill_res_srq,
#else
#define PVRDMA_COMPAT_RES_SRQ_OPS
#endif

#endif /* PVRDMA_COMPAT_H */
