/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * pvrdma: driver for the paravirtual RDMA adapter, PVRDMA ABI version 20 with
 * extensions (pvrdma/abi.h, pvrdma/ext.h).
 *
 * One struct pvrdma_adapter per PCI function, with a struct pvrdma_dev from one
 * reset to the next.  The device reads and writes guest memory that is described
 * to it by page directories, takes commands through one command slot, is rung by
 * writes to a doorbell page per context, and reports through MSI-X vectors:
 * command done, asynchronous event, and completions, for which a device with
 * FEAT_VECTORS has several.
 *
 * What the device writes (capabilities, responses, events, completions, ring
 * indices) is copied once, and checked before it sizes or indexes anything here or
 * becomes a pointer; what only goes on to who asked, as a port's state or a status,
 * is not.
 */
#ifndef PVRDMA_H
#define PVRDMA_H

#include <linux/completion.h>
#include <linux/idr.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/notifier.h>
#include <linux/pci.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>

#include "pvrdma/abi.h"
#include "pvrdma/ext.h"

/* Refuse a verb, and say why to who turned that on (dynamic debug). */
#define pvrdma_refuse(ibdev, err, fmt, ...)                             \
	({                                                              \
		ibdev_dbg(ibdev, "%s: " fmt "\n", __func__, ##__VA_ARGS__); \
		(err);                                                  \
	})

#include "compat.h"

#ifdef __BIG_ENDIAN
#error "the device's words are little-endian and read as they are"
#endif

#if PAGE_SHIFT != PVRDMA_PAGE_SHIFT
#error "pages are mapped and described to the device one by one"
#endif

#define PVRDMA_PORT	       1
#define PVRDMA_EVENT_RING_PAGES 4

/* Counters that a QP and the port both have. */
#define PVRDMA_QP_COUNTERS (PVRDMA_EXT_CNT_RETRIES + 1)

/* QP numbers have 24 bits. */
#define PVRDMA_MAX_QPN 0xffffff

/**
 * struct pvrdma_pagedir - memory described to the device
 * @dir: the directory pages: DMA addresses of the tables
 * @dir_addr: their own
 * @ndirs: how many; more than one is a deep directory
 * @top: the page with their DMA addresses, or NULL if there is one
 * @dir_dma: DMA address of @top or the one directory, which commands carry
 * @table: the tables: DMA addresses of the pages
 * @table_addr: their own
 * @ntables: how many
 * @page: kernel addresses of the pages, NULL if the pages are a program's
 * @page_addr: DMA addresses of those
 * @npages: how many pages
 *
 * The device can write directories and tables, so nothing is read back from there.
 */
struct pvrdma_pagedir {
	u64 **dir;
	dma_addr_t *dir_addr;
	u32 ndirs;
	u64 *top;
	dma_addr_t dir_dma;
	u64 **table;
	dma_addr_t *table_addr;
	u32 ntables;
	void **page;
	dma_addr_t *page_addr;
	u32 npages;
};

/**
 * struct pvrdma_user_buf - a program's buffer of rings
 * @addr: its address, which has to be a page's
 * @size: bytes
 * @least: how many it must have
 * @umem: gets the pinned memory
 */
struct pvrdma_user_buf {
	u64 addr;
	u32 size;
	u64 least;
	struct ib_umem **umem;
};

/**
 * struct pvrdma_cmdq - the command channel
 * @lock: protects all of it, and ERR, which REQUEST and CTL set: one at a time
 * @done: vector 0 was raised
 * @cookie: of the last command; a late answer shows by an older one
 * @req: request page
 * @req_dma: its DMA address
 * @resp: response page
 * @resp_dma: its DMA address
 * @quiet: the device is dead and was reset after that: it uses no memory any
 *	more; read without @lock, see pvrdma_quiet()
 * @gone: and it was not there then, and may come back
 */
struct pvrdma_cmdq {
	/* one command at a time */
	struct mutex lock;
	struct completion done;
	u64 cookie;
	void *req;
	dma_addr_t req_dma;
	void *resp;
	dma_addr_t resp_dma;
	bool quiet;
	bool gone;
};

/**
 * struct pvrdma_evring - a ring that the device fills and one handler reads
 * @pages: state page and slots
 * @head: where the handler reads; nobody else uses it
 */
struct pvrdma_evring {
	struct pvrdma_pagedir pages;
	u32 head;
};

/**
 * struct pvrdma_vector - a completion vector
 * @dev: its device
 * @ring: names of CQs that have completions
 */
struct pvrdma_vector {
	struct pvrdma_dev *dev;
	struct pvrdma_evring ring;
};

/**
 * struct pvrdma_table - the objects that events and completions name
 * @lock: one creation or destruction of a QP, CQ or SRQ at a time: the device's and
 *	our step are one, since the device may hand out the handle of a
 *	destroyed object at once
 * @qps: QPs by handle; its own lock protects lookups against destruction
 * @cqs: CQs by handle; likewise
 * @srqs: SRQs by handle; likewise
 *
 * An entry is the object's struct pvrdma_ref.
 */
struct pvrdma_table {
	/* one creation or destruction at a time */
	struct mutex lock;
	struct xarray qps;
	struct xarray cqs;
	struct xarray srqs;
};

/**
 * struct pvrdma_ext - what the device offers beyond the stock ABI
 * @features: PVRDMA_EXT_FEAT_*, 0 without window
 * @max_inline: largest inline data
 * @counters: how many counters
 * @max_mr_pages: of one region; more than a page directory's with LARGE_MR
 */
struct pvrdma_ext {
	u32 features;
	u32 max_inline;
	u32 counters;
	u32 max_mr_pages;
};

/**
 * struct pvrdma_kctx - the kernel's own context
 * @flags: for objects of kernel users: PVRDMA_EXT_OBJ_RING, or 0 for stock ones
 * @mem: extension memory, if @flags is not 0
 */
struct pvrdma_kctx {
	u32 flags;
	struct pvrdma_pagedir mem;
};

/**
 * struct pvrdma_words - what a ring's two sides tell each other
 * @prod: the producer's index
 * @cons: the consumer's index
 * @no_notify: the device looks at @prod by itself; NULL in the stock layout
 */
struct pvrdma_words {
	u32 *prod;
	u32 *cons;
	u32 *no_notify;
};

/**
 * struct pvrdma_port - the port and its network interface
 * @mac: hardware address of the paired NIC, if the device names one
 * @has_mac: it does
 * @nb: follows network interfaces
 * @netdev: the paired interface; written under RTNL, read also under RCU, reference
 *	held by ib_core
 * @link: it is up and has a carrier; written under RTNL
 * @netdev_new: @netdev was set since @work last ran
 * @work: finds the port's state and reports changes
 * @active: last state reported; only @work uses it
 * @told_down: the device was told that the interface is down; likewise
 * @told_dead: it was reported that the device is dead; likewise
 * @registered: ib_core knows the device; @work may talk of it
 */
struct pvrdma_port {
	u8 mac[ETH_ALEN];
	bool has_mac;
	struct notifier_block nb;
	struct net_device *netdev;
	bool link;
	bool netdev_new;
	struct work_struct work;
	bool active;
	bool told_down;
	bool told_dead;
	bool registered;
};

/**
 * struct pvrdma_qp_stats - what was collected for counters of QPs, see counter.c
 * @lock: protects all but @ids, and @counted, @bound and the counter of QPs
 * @bound: QPs that have a counter
 * @given: what all counters together got
 * @last_id: the number given last
 * @ids: numbers of counters; has a lock of its own
 */
struct pvrdma_qp_stats {
	/* what was collected */
	struct mutex lock;
	struct list_head bound;
	u64 given[PVRDMA_QP_COUNTERS];
	int last_id;
	struct ida ids;
};

/**
 * struct pvrdma_contexts - programs that are told when the device is gone
 * @lock: protects @list
 * @list: contexts with extension memory
 */
struct pvrdma_contexts {
	/* the list */
	struct mutex lock;
	struct list_head list;
};

/**
 * struct pvrdma_adapter - what stays while devices come and go, see recover.c
 * @pdev: the PCI function
 * @dev: its device, or NULL; changed by @recover and the PCI core's calls, never
 *	by two at a time
 * @recover: brings a device up again that failed
 * @ending: it has nothing to do
 * @pause: after an attempt that failed, in jiffies
 */
struct pvrdma_adapter {
	struct pci_dev *pdev;
	struct pvrdma_dev *dev;
	struct delayed_work recover;
	bool ending;
	unsigned long pause;
};

/**
 * struct pvrdma_dev - the device of an adapter, from one reset to the next
 * @ibdev: what ib_core knows of it
 * @adapter: the adapter
 * @pdev: the PCI function
 * @regs: BAR1
 * @uar: doorbell page 0 of BAR2, the kernel's own
 * @dsr: device shared region
 * @dsr_dma: its DMA address
 * @caps: copy of what the device wrote into @dsr
 * @ext: extensions
 * @dead: the device failed or is gone: nothing is expected of it any more
 * @cmd: command channel
 * @async: asynchronous events
 * @kctx: the kernel's own context
 * @vector: completion vectors; the first is always there
 * @num_vectors: how many the device knows of
 * @num_irqs: how many MSI-X vectors have handlers
 * @table: QPs, CQs and SRQs
 * @uars: doorbell pages in use; has a lock of its own
 * @contexts: programs' contexts
 * @qp_stats: counters of QPs
 * @port: port and network interface
 */
struct pvrdma_dev {
	struct ib_device ibdev;
	struct pvrdma_adapter *adapter;
	struct pci_dev *pdev;
	void __iomem *regs;
	void __iomem *uar;

	struct pvrdma_dsr *dsr;
	dma_addr_t dsr_dma;
	struct pvrdma_caps caps;
	struct pvrdma_ext ext;
	bool dead;

	struct pvrdma_cmdq cmd;
	struct pvrdma_evring async;
	struct pvrdma_kctx kctx;
	struct pvrdma_vector vector[PVRDMA_EXT_MAX_VECTORS];
	u32 num_vectors;
	u32 num_irqs;
	struct pvrdma_table table;
	struct ida uars;
	struct pvrdma_contexts contexts;
	struct pvrdma_qp_stats qp_stats;
	struct pvrdma_port port;
};

/**
 * struct pvrdma_ucontext - a program's context
 * @ibctx: ib_core's part
 * @handle: the device's
 * @uar_index: its doorbell page in BAR2
 * @ext_features: granted PVRDMA_EXT_FEAT_*; 0 is a stock context
 * @ext_page: extension memory, shared by the program and the device
 * @ext_dir: the pages as told to the device
 * @ext_dma: DMA addresses of @ext_page
 * @entry: in the device's list, if there is extension memory
 */
struct pvrdma_ucontext {
	struct ib_ucontext ibctx;
	u32 handle;
	u32 uar_index;
	u32 ext_features;
	struct page *ext_page[PVRDMA_EXT_PAGES];
	struct pvrdma_pagedir ext_dir;
	dma_addr_t ext_dma[PVRDMA_EXT_PAGES];
	struct list_head entry;
};

struct pvrdma_pd {
	struct ib_pd ibpd;
	u32 handle;
};

struct pvrdma_ah {
	struct ib_ah ibah;
	struct pvrdma_av av;
};

/**
 * struct pvrdma_mr - a memory region
 * @ibmr: ib_core's part
 * @handle: the device's
 * @umem: a program's memory
 * @access: IB_ACCESS_* of that
 * @dir: the pages; of one for fast registration, those it was mapped to last
 * @npages: of the latter, how many
 */
struct pvrdma_mr {
	struct ib_mr ibmr;
	u32 handle;
	struct ib_umem *umem;
	int access;
	struct pvrdma_pagedir dir;
	u32 npages;
};

struct pvrdma_mw {
	struct ib_mw ibmw;
	u32 handle;
};

/**
 * struct pvrdma_ref - keeps a QP, CQ or SRQ that an event names, see event.c
 * @refs: 1 while the object is in its table, and 1 for each event handler at work
 * @unused: @refs is 0
 */
struct pvrdma_ref {
	refcount_t refs;
	struct completion unused;
};

/**
 * struct pvrdma_cq - a completion queue
 * @ibcq: ib_core's part
 * @handle: the device's
 * @vector: its completion vector
 * @umem: a program's memory, NULL if the kernel uses the CQ
 * @dir: header page and CQEs
 * @words: of a kernel CQ; the device produces
 * @arm: arm word of a kernel CQ of the extended layout, else NULL
 * @lock: protects @head and the entries, and removal from @qps
 * @head: next entry to read
 * @qps: QPs that complete here, by handle
 * @armed: an event was asked for and did not come yet
 * @ref: what its table has
 */
struct pvrdma_cq {
	struct ib_cq ibcq;
	u32 handle;
	u32 vector;
	struct ib_umem *umem;
	struct pvrdma_pagedir dir;
	struct pvrdma_words words;
	u32 *arm;
	/* of kernel CQs; protects head and entries, and removal from qps */
	spinlock_t lock;
	u32 head;
	struct xarray qps;
	bool armed;
	struct pvrdma_ref ref;
};

/**
 * struct pvrdma_wq - one direction of a kernel QP
 * @lock: protects @prod, @cons, @wr_id and the ring's entries
 * @prod: where the next WQE goes
 * @cons: the oldest one whose completion was not polled
 * @wr_id: what the users named their WRs, by slot; the device gets @prod
 * @nwqe: slots, a power of two
 * @wqe_size: bytes, a power of two of at most a page
 * @max_sge: SGEs a WQE may have
 * @first_page: page of slot 0 in the QP's directory
 * @words: shared with the device
 */
struct pvrdma_wq {
	/* protects prod, cons, wr_id and entries */
	spinlock_t lock;
	u32 prod;
	u32 cons;
	u64 *wr_id;
	u32 nwqe;
	u32 wqe_size;
	u32 max_sge;
	u32 first_page;
	struct pvrdma_words words;
};

/**
 * struct pvrdma_srq_wr - a WR of a kernel user's SRQ
 * @wr_id: what the user named it
 * @next: the next free one; of one that is outstanding, none of that
 */
struct pvrdma_srq_wr {
	u64 wr_id;
	u32 next;
};

/**
 * struct pvrdma_srq - a shared receive queue
 * @ibsrq: ib_core's part
 * @handle: the device's
 * @umem: a program's header page and WQEs, NULL if the kernel uses the SRQ
 * @dir: header page, WQEs
 * @rq: of a kernel SRQ; its wr_id and cons are not used, see srq.c
 * @wr: of a kernel SRQ, what is outstanding; protected by the lock of @rq
 * @free: first of @wr that is free, or SRQ_NONE
 * @ref: what its table has
 */
struct pvrdma_srq {
	struct ib_srq ibsrq;
	u32 handle;
	struct ib_umem *umem;
	struct pvrdma_pagedir dir;
	struct pvrdma_wq rq;
	struct pvrdma_srq_wr *wr;
	u32 free;
	struct pvrdma_ref ref;
};

/**
 * struct pvrdma_qp - a queue pair
 * @ibqp: ib_core's part
 * @handle: the device's
 * @state: protected by @mutex against changes, and read with READ_ONCE()
 * @mutex: one modification at a time
 * @sq_umem: a program's header page and send WQEs, NULL for a kernel QP
 * @rq_umem: a program's receive WQEs
 * @dir: header page, send WQEs, receive WQEs
 * @sq: send queue of a kernel QP
 * @rq: receive queue of a kernel QP; without slots if it has an SRQ
 * @sq_sig_all: every WR makes a completion
 * @qkey: as set by modify, used where a WR asks for the QP's own
 * @port: port number
 * @cap: capacities
 * @last_wqe: its user was told that no more is taken from its SRQ
 * @bound: in the list of QPs with a counter
 * @counted: what the device had counted when its counter last got it
 * @ref: what its table has
 */
struct pvrdma_qp {
	struct ib_qp ibqp;
	u32 handle;
	enum ib_qp_state state;
	/* one modification at a time */
	struct mutex mutex;
	struct ib_umem *sq_umem;
	struct ib_umem *rq_umem;
	struct pvrdma_pagedir dir;
	struct pvrdma_wq sq;
	struct pvrdma_wq rq;
	bool sq_sig_all;
	u32 qkey;
	u32 port;
	struct ib_qp_cap cap;
	bool last_wqe;
	struct list_head bound;
	u64 counted[PVRDMA_QP_COUNTERS];
	struct pvrdma_ref ref;
};

/* Pin a range of a program's addresses. */
static inline struct ib_umem *pvrdma_umem_get(struct ib_device *ibdev, u64 addr,
					      u64 length, int access)
{
	struct ib_umem *umem = pvrdma_compat_umem_get(ibdev, addr, length, access);

	if (IS_ERR(umem))
		return ERR_PTR(pvrdma_refuse(ibdev, PTR_ERR(umem),
					     "cannot pin %llu bytes at %#llx: %ld",
					     length, addr, PTR_ERR(umem)));
	return umem;
}

static inline struct pvrdma_dev *to_pvdev(struct ib_device *ibdev)
{
	return container_of(ibdev, struct pvrdma_dev, ibdev);
}

static inline struct pvrdma_ucontext *to_pvctx(struct ib_ucontext *ibctx)
{
	return container_of(ibctx, struct pvrdma_ucontext, ibctx);
}

static inline struct pvrdma_pd *to_pvpd(struct ib_pd *ibpd)
{
	return container_of(ibpd, struct pvrdma_pd, ibpd);
}

static inline struct pvrdma_ah *to_pvah(struct ib_ah *ibah)
{
	return container_of(ibah, struct pvrdma_ah, ibah);
}

static inline struct pvrdma_mr *to_pvmr(struct ib_mr *ibmr)
{
	return container_of(ibmr, struct pvrdma_mr, ibmr);
}

static inline struct pvrdma_mw *to_pvmw(struct ib_mw *ibmw)
{
	return container_of(ibmw, struct pvrdma_mw, ibmw);
}

static inline struct pvrdma_cq *to_pvcq(struct ib_cq *ibcq)
{
	return container_of(ibcq, struct pvrdma_cq, ibcq);
}

static inline struct pvrdma_qp *to_pvqp(struct ib_qp *ibqp)
{
	return container_of(ibqp, struct pvrdma_qp, ibqp);
}

static inline struct pvrdma_srq *to_pvsrq(struct ib_srq *ibsrq)
{
	return container_of(ibsrq, struct pvrdma_srq, ibsrq);
}

/* A page's kernel address plus offset, of memory with kernel pages. */
static inline void *pvrdma_dir_ptr(const struct pvrdma_pagedir *dir, u32 off)
{
	return dir->page[off >> PVRDMA_PAGE_SHIFT] +
	       (off & (PVRDMA_PAGE_SIZE - 1));
}

static inline struct pvrdma_ring_state *
pvrdma_dir_state(const struct pvrdma_pagedir *dir)
{
	return dir->page[0];
}

static inline u32 pvrdma_read(struct pvrdma_dev *dev, u32 reg)
{
	return readl(dev->regs + reg);
}

static inline void pvrdma_write(struct pvrdma_dev *dev, u32 reg, u32 value)
{
	writel(value, dev->regs + reg);
}

static inline bool pvrdma_dead(const struct pvrdma_dev *dev)
{
	return READ_ONCE(dev->dead);
}

/* Dead, and memory that was the device's may be given back. */
static inline bool pvrdma_quiet(const struct pvrdma_dev *dev)
{
	/* The reset came before it. */
	return smp_load_acquire(&dev->cmd.quiet);
}

/* Counters of the port. */
static inline u32 pvrdma_num_counters(const struct pvrdma_dev *dev)
{
	return min_t(u32, dev->ext.counters, PVRDMA_EXT_CNT_MAX);
}

/**
 * pvrdma_caps_check() - look at numbers that size our tables or are used without looking
 * @caps: what the device says
 * @uars: doorbell pages that BAR2 has
 *
 * Return: 0, -ENODEV for a device of another kind, or -EINVAL.
 */
static inline int pvrdma_caps_check(const struct pvrdma_caps *caps, u64 uars)
{
	if (caps->mode != 0 || caps->phys_port_cnt != PVRDMA_PORT ||
	    !(caps->gid_types &
	      (PVRDMA_GID_TYPE_ROCE_V1 | PVRDMA_GID_TYPE_ROCE_V2)))
		return -ENODEV;
	if (!caps->max_qp || !caps->max_cq || caps->max_cq > INT_MAX ||
	    caps->max_cqe > S32_MAX / 2 || caps->max_qp_wr > S32_MAX / 2 ||
	    !caps->max_sge || caps->max_sge > 1024 ||
	    caps->max_srq_wr > S32_MAX / 2 || caps->max_srq_sge > 1024 ||
	    caps->max_uar < 2 || caps->max_uar > uars ||
	    /* An index has 8 bits on the wire. */
	    !caps->gid_tbl_len || caps->gid_tbl_len > U8_MAX + 1 ||
	    !caps->max_pkeys || caps->max_pkeys > 128)
		return -EINVAL;
	return 0;
}

/* main.c */
int pvrdma_adapter_up(struct pvrdma_adapter *adapter);
void pvrdma_adapter_down(struct pvrdma_adapter *adapter);

/* recover.c */
void pvrdma_recover_init(struct pvrdma_adapter *adapter);
void pvrdma_recover_begin(struct pvrdma_adapter *adapter);
void pvrdma_recover_end(struct pvrdma_adapter *adapter);

/* cmd.c */
void pvrdma_set_dead(struct pvrdma_dev *dev, const char *why);
bool pvrdma_answers(void __iomem *regs, bool *slow);
void pvrdma_quiesce(struct pvrdma_dev *dev);
int pvrdma_cmd(struct pvrdma_dev *dev, void *req, size_t req_size, void *resp,
	       size_t resp_size, u32 opcode);
void pvrdma_cmd_ctl(struct pvrdma_dev *dev, u32 value);
void pvrdma_cmd_destroy(struct pvrdma_dev *dev, u32 opcode, u32 handle);
int pvrdma_cmd_destroy_idle(struct pvrdma_dev *dev, u32 opcode, u32 handle);

/* event.c */
int pvrdma_event_init(struct pvrdma_dev *dev);
void pvrdma_event_add_vectors(struct pvrdma_dev *dev);
void pvrdma_event_free_vectors(struct pvrdma_dev *dev);
void pvrdma_event_stop(struct pvrdma_dev *dev);
void pvrdma_event_free(struct pvrdma_dev *dev);
void pvrdma_event_sync_cq(const struct pvrdma_cq *cq);
int pvrdma_table_add(struct xarray *table, u32 handle, u32 limit,
		     struct pvrdma_ref *ref);
void pvrdma_ref_init(struct pvrdma_ref *ref);
struct pvrdma_ref *pvrdma_ref_get(struct xarray *table, u32 handle);
void pvrdma_ref_put(struct pvrdma_ref *ref);
void pvrdma_ref_end(struct pvrdma_ref *ref);
void pvrdma_qp_event(struct pvrdma_ref *ref, enum ib_event_type type);

/* netdev.c */
int pvrdma_netdev_init_work(void);
void pvrdma_netdev_end_work(void);
void pvrdma_port_changed(struct pvrdma_dev *dev);
struct net_device *pvrdma_get_netdev(struct ib_device *ibdev, u32 port);
void pvrdma_netdev_init(struct pvrdma_dev *dev);
int pvrdma_netdev_start(struct pvrdma_dev *dev);
void pvrdma_netdev_stop(struct pvrdma_dev *dev);

/* pagedir.c */
int pvrdma_pagedir_alloc(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir,
			 u64 npages, bool with_pages);
int pvrdma_pagedir_alloc_large(struct pvrdma_dev *dev,
			       struct pvrdma_pagedir *dir, u64 npages);
void pvrdma_pagedir_free(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir);
void pvrdma_pagedir_set(struct pvrdma_pagedir *dir, u32 index, dma_addr_t addr);
void pvrdma_pagedir_add_umem(struct pvrdma_pagedir *dir, u32 first,
			     struct ib_umem *umem);
int pvrdma_pin_rings(struct pvrdma_dev *dev, struct pvrdma_pagedir *dir,
		     const struct pvrdma_user_buf *buf, int n);

/* device.c */
extern const struct ib_device_ops pvrdma_dev_ops;
int pvrdma_query_port_attr(struct pvrdma_dev *dev,
			   struct pvrdma_port_attr *attr);

/* memwin.c */
extern const struct ib_device_ops pvrdma_memwin_ops;
extern const struct ib_device_ops pvrdma_moderate_ops;

/* stats.c */
extern const struct ib_device_ops pvrdma_stats_ops;
extern const struct rdma_stat_desc pvrdma_stats_descs[PVRDMA_EXT_CNT_MAX];

/* counter.c, and in compat.h */
extern const struct ib_device_ops pvrdma_counter_ops;
void pvrdma_counter_forget_qp(struct pvrdma_dev *dev, struct pvrdma_qp *qp);
int pvrdma_counters_given(struct pvrdma_dev *dev, u64 *value, u32 n);
int pvrdma_fill_res_qp(struct sk_buff *msg, struct ib_qp *ibqp);
int pvrdma_fill_res_cq(struct sk_buff *msg, struct ib_cq *ibcq);
int pvrdma_fill_res_mr(struct sk_buff *msg, struct ib_mr *ibmr);

/* ucontext.c */
int pvrdma_alloc_ucontext(struct ib_ucontext *ibctx, struct ib_udata *udata);
void pvrdma_dealloc_ucontext(struct ib_ucontext *ibctx);
void pvrdma_disassociate_ucontext(struct ib_ucontext *ibctx);
void pvrdma_contexts_gone(struct pvrdma_dev *dev);
int pvrdma_mmap(struct ib_ucontext *ibctx, struct vm_area_struct *vma);
int pvrdma_alloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);
int pvrdma_dealloc_pd(struct ib_pd *ibpd, struct ib_udata *udata);

/* kctx.c */
void pvrdma_kctx_start(struct pvrdma_dev *dev);
void pvrdma_kctx_free(struct pvrdma_dev *dev);
void pvrdma_words_init(struct pvrdma_words *words,
		       const struct pvrdma_pagedir *dir, bool ext, bool tx);
void pvrdma_ring_qp(struct pvrdma_dev *dev, struct pvrdma_qp *qp, bool send);
void pvrdma_ring_srq(struct pvrdma_dev *dev, struct pvrdma_srq *srq);
void pvrdma_arm_cq(struct pvrdma_dev *dev, struct pvrdma_cq *cq, bool solicited);

/* mr.c */
struct ib_mr *pvrdma_get_dma_mr(struct ib_pd *ibpd, int access);
u64 pvrdma_max_mr_size(const struct pvrdma_dev *dev);
u32 pvrdma_fast_reg_max(const struct pvrdma_dev *dev);
struct ib_mr *pvrdma_alloc_mr(struct ib_pd *ibpd, enum ib_mr_type type,
			      u32 max_num_sg);
int pvrdma_map_mr_sg(struct ib_mr *ibmr, struct scatterlist *sg, int nents,
		     unsigned int *offset);
struct ib_mr *pvrdma_rereg_mr(struct ib_mr *ibmr, int flags, u64 start,
			      u64 length, u64 iova, int access,
			      struct ib_pd *ibpd, struct ib_udata *udata);
int pvrdma_dereg_mr(struct ib_mr *ibmr, struct ib_udata *udata);

/* ah.c */
int pvrdma_create_ah(struct ib_ah *ibah, struct rdma_ah_init_attr *init,
		     struct ib_udata *udata);
int pvrdma_destroy_ah(struct ib_ah *ibah, u32 flags);

/* cqueue.c */
int pvrdma_destroy_cq(struct ib_cq *ibcq, struct ib_udata *udata);
int pvrdma_poll_cq(struct ib_cq *ibcq, int num, struct ib_wc *wc);
int pvrdma_req_notify_cq(struct ib_cq *ibcq, enum ib_cq_notify_flags flags);
int pvrdma_cq_attach(struct pvrdma_cq *cq, struct pvrdma_qp *qp);
void pvrdma_cq_detach(struct pvrdma_cq *cq, struct pvrdma_qp *qp);
void pvrdma_cq_forget_qp(struct pvrdma_cq *cq, const struct pvrdma_qp *qp);
void pvrdma_cq_event(struct pvrdma_cq *cq);
void pvrdma_cq_kick_all(struct pvrdma_dev *dev);

/* srq.c */
int pvrdma_create_srq(struct ib_srq *ibsrq, struct ib_srq_init_attr *init,
		      struct ib_udata *udata);
int pvrdma_modify_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr,
		      enum ib_srq_attr_mask mask, struct ib_udata *udata);
int pvrdma_query_srq(struct ib_srq *ibsrq, struct ib_srq_attr *attr);
int pvrdma_destroy_srq(struct ib_srq *ibsrq, struct ib_udata *udata);
int pvrdma_post_srq_recv(struct ib_srq *ibsrq, const struct ib_recv_wr *wr,
			 const struct ib_recv_wr **bad);
bool pvrdma_srq_complete(struct pvrdma_srq *srq, u64 *wr_id);

/* qp.c */
u32 pvrdma_rq_wqe_size(u32 max_sge);
u32 pvrdma_wq_pages(const struct pvrdma_wq *wq);
void pvrdma_wq_init(struct pvrdma_wq *wq, u32 nwqe, u32 max_sge, u32 wqe_size);
int pvrdma_create_qp(struct ib_qp *ibqp, struct ib_qp_init_attr *init,
		     struct ib_udata *udata);
int pvrdma_modify_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		     struct ib_udata *udata);
int pvrdma_query_qp(struct ib_qp *ibqp, struct ib_qp_attr *attr, int mask,
		    struct ib_qp_init_attr *init);
int pvrdma_destroy_qp(struct ib_qp *ibqp, struct ib_udata *udata);

/* post.c */
int pvrdma_post_send(struct ib_qp *ibqp, const struct ib_send_wr *wr,
		     const struct ib_send_wr **bad);
int pvrdma_post_recv(struct ib_qp *ibqp, const struct ib_recv_wr *wr,
		     const struct ib_recv_wr **bad);
void pvrdma_put_recv(const struct pvrdma_pagedir *dir, struct pvrdma_wq *wq,
		     const struct ib_recv_wr *wr, u64 wr_id);
bool pvrdma_wq_complete(struct pvrdma_wq *wq, u64 *wr_id);
bool pvrdma_wq_pending(struct pvrdma_wq *wq);
bool pvrdma_wq_flush(struct pvrdma_wq *wq, u64 *wr_id);
void pvrdma_wq_reset(struct pvrdma_wq *wq);

#endif /* PVRDMA_H */
