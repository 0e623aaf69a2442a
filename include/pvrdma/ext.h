/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * Extensions of the PVRDMA ABI, spoken by pvrdma.ko and its provider.
 *
 * Nothing here changes what a stock driver or provider sees.  A driver looks
 * for the window in BAR1; a context asks for an extension memory; each QP and
 * CQ says in CREATE_QP / CREATE_CQ whether it uses the extended layout.  Stock
 * and extended programs run side by side.
 *
 * The memory is guest RAM handed over by page directory, so it moves with the
 * VM and needs no mapping of device memory.  Byte order little-endian.  All
 * shared words are accessed with atomic operations.
 *
 * Extension memory of a context (PVRDMA_EXT_PAGES pages):
 *
 *   page 0      struct pvrdma_ext_head: the kick word; whether the device is gone
 *   page 1      send map: summary words
 *   pages 2, 3  send map: one bit per QP handle
 *   page 4      receive map: summary words
 *   pages 5, 6  receive map: one bit per QP handle
 *
 * Posting (send; receive alike): write WQEs, store the producer index
 * (release), OR the bit into words[handle / 64], OR the bit of that word into
 * summary[handle / 4096], full barrier, load `kick`; if it is not 0, write the
 * stock doorbell (handle | PVRDMA_UAR_QP_SEND) to the context's UAR page.
 *
 * An extended QP's or CQ's header page has each shared word in a cache line of
 * its own (struct pvrdma_ext_ring); the stock words at offset 0 are not used.
 * Of an extended QP that posting ends earlier while the device says so: after
 * the producer index a full barrier, then load the queue's no_notify word; if it
 * is not 0 the device will look at the index by itself.
 *
 * An extended SRQ's header page is that of a QP of which only the receive words are
 * used.  It has no bits in the maps: a post whose no_notify word is 0 writes the stock
 * doorbell (handle | PVRDMA_UAR_SRQ_RECV).  A device with FEAT_RING whose max_srq is
 * not 0 has them.
 *
 * Completions of an extended CQ: no POLL doorbells.  Arming: store the arm
 * word (ANY; or compare-and-swap NONE to SOLICITED), full barrier, then poll
 * again: what was published before that barrier raises no event.
 *
 * Memory windows (FEAT_MEMWIN): CREATE_MW and DESTROY_MW; send WQEs BIND_MW, LOCAL_INV and
 * SEND_WITH_INV of extended QPs, also of programs.
 *
 * Inline data: WQE flag PVRDMA_SEND_INLINE; the bytes lie behind the 80-byte
 * header in place of SGEs, their number in total_len, num_sge 0.  Granted by
 * max_inline_data in CREATE_QP of an extended QP; the WQE size is then the next
 * power of two of 80 + max(16 * max_send_sge, max_inline_data).
 */
#ifndef PVRDMA_EXT_H
#define PVRDMA_EXT_H

#ifdef __KERNEL__
#include <linux/types.h>
#define PVRDMA_EXT_ASSERT(cond, text) _Static_assert(cond, text)
#else
#include <stdint.h>
#define PVRDMA_EXT_ASSERT(cond, text) _Static_assert(cond, text)
#endif

/*
 * With PVRDMA_UAR_CQ_POLL of an extended CQ: its program has polled in vain for some
 * microseconds, so a VMM whose processors are wanted elsewhere may let the vCPU sleep.
 */
#define PVRDMA_EXT_UAR_CQ_IDLE (1u << 28)

/* The window in BAR1: 32-bit read-only registers. */
#define PVRDMA_EXT_WINDOW       0x800u
#define PVRDMA_EXT_REG_MAGIC    (PVRDMA_EXT_WINDOW + 0x00)
#define PVRDMA_EXT_REG_LENGTH   (PVRDMA_EXT_WINDOW + 0x04) /* bytes of window */
#define PVRDMA_EXT_REG_VERSION  (PVRDMA_EXT_WINDOW + 0x08)
#define PVRDMA_EXT_REG_FEATURES (PVRDMA_EXT_WINDOW + 0x0c)
#define PVRDMA_EXT_REG_INLINE   (PVRDMA_EXT_WINDOW + 0x10) /* largest, bytes */
#define PVRDMA_EXT_REG_COUNTERS (PVRDMA_EXT_WINDOW + 0x14) /* how many */
#define PVRDMA_EXT_REG_MR_PAGES (PVRDMA_EXT_WINDOW + 0x18) /* LARGE_MR: at most */
#define PVRDMA_EXT_WINDOW_SIZE  0x1cu
#define PVRDMA_EXT_WINDOW_MIN   0x18u /* up to COUNTERS: the oldest devices' */

/*
 * FEAT_LINK: to CTL, as UNQUIESCE: the network interface beside the adapter is down.
 * Nothing is sent or taken until UNQUIESCE, or a reset.  A VM may move to a device that
 * refuses it (EINVAL): the link is up there.
 */
#define PVRDMA_EXT_CTL_LINK_DOWN 0x100u

#define PVRDMA_EXT_MAGIC   0x58525650u /* "PVRX" */
#define PVRDMA_EXT_VERSION 1u

/* Features, also the flags of CREATE_UC_EXT. */
#define PVRDMA_EXT_FEAT_DOORBELL (1u << 0) /* extension memory of contexts */
#define PVRDMA_EXT_FEAT_RING     (1u << 1) /* extended QPs and CQs */
#define PVRDMA_EXT_FEAT_INLINE   (1u << 2)
#define PVRDMA_EXT_FEAT_MAC      (1u << 3) /* MACL: bytes 0..3 of the paired
					      NIC's MAC, MACH: 4 and 5 */
#define PVRDMA_EXT_FEAT_COUNTERS (1u << 4) /* QUERY_COUNTERS */
#define PVRDMA_EXT_FEAT_FAST_REG (1u << 5) /* PVRDMA_EXT_MAX_FAST_REG */
#define PVRDMA_EXT_FEAT_MEMWIN	 (1u << 6) /* memory windows, REREG_MR */
#define PVRDMA_EXT_FEAT_LARGE_MR (1u << 7) /* PVRDMA_EXT_MR_DEEP */
#define PVRDMA_EXT_FEAT_UC	 (1u << 8) /* CREATE_QP of type PVRDMA_QPT_UC */
#define PVRDMA_EXT_FEAT_CQ_EX	 (1u << 9) /* MOVE_CQ */
#define PVRDMA_EXT_FEAT_VECTORS	 (1u << 10) /* ADD_VECTOR */
#define PVRDMA_EXT_FEAT_QP_COUNTERS (1u << 11) /* QUERY_QP_COUNTERS */
#define PVRDMA_EXT_FEAT_CQ_TIME	 (1u << 12) /* EXT_CQ_STAMPS, QUERY_CLOCK,
						    MODERATE_CQ */
#define PVRDMA_EXT_FEAT_LINK	 (1u << 13) /* PVRDMA_EXT_CTL_LINK_DOWN */

/* What a context can be granted. */
#define PVRDMA_EXT_CONTEXT_FEATURES \
	(PVRDMA_EXT_FEAT_DOORBELL | PVRDMA_EXT_FEAT_RING | PVRDMA_EXT_FEAT_INLINE | \
	 PVRDMA_EXT_FEAT_MEMWIN)

#define PVRDMA_EXT_PAGES      7u
#define PVRDMA_EXT_MAX_INLINE 432u
/*
 * Pages of a fast registration: what CREATE_MR takes.  The capabilities say what the
 * stock driver can do.
 */
#define PVRDMA_EXT_MAX_FAST_REG 512u

/*
 * CREATE_MR, `flags`: pdir_dma is the address of a page with those of page directories,
 * each of which is full but the last.  For programs' memory, with no other flag; nchunks
 * says how many pages, as it does without.
 */
#define PVRDMA_EXT_MR_DEEP (1u << 16)
/*
 * 64 GiB.  Such a directory could describe eight times that, but the command would take
 * longer than a VMM waits for an answer.
 */
#define PVRDMA_EXT_MR_MAX_PAGES (16u << 20)

/*
 * Completion vectors at most.  Vector 0 is the stock one: MSI-X vector PVRDMA_VEC_CQ and
 * the ring of the shared region; vector n is MSI-X vector PVRDMA_VEC_CQ + n.
 */
#define PVRDMA_EXT_MAX_VECTORS 32u

/* Arm word values; the same as in doorbell.h. */
#define PVRDMA_EXT_ARM_NONE      0u
#define PVRDMA_EXT_ARM_ANY       1u
#define PVRDMA_EXT_ARM_SOLICITED 2u

/* Commands (the command slot), after those of abi.h. */
#define PVRDMA_CMD_CREATE_UC_EXT  32u
#define PVRDMA_CMD_QUERY_COUNTERS 33u
#define PVRDMA_CMD_CREATE_MW	  34u
#define PVRDMA_CMD_DESTROY_MW	  35u /* struct pvrdma_cmd_handle, no response */
#define PVRDMA_CMD_REREG_MR	  36u
#define PVRDMA_CMD_MOVE_CQ	  39u
#define PVRDMA_CMD_QUERY_CLOCK	  40u
#define PVRDMA_CMD_ADD_VECTOR	  41u
#define PVRDMA_CMD_QUERY_QP_COUNTERS 42u /* struct pvrdma_cmd_handle */
#define PVRDMA_CMD_MODERATE_CQ	  43u

/*
 * CREATE_CQ: `reserved` (offset 36); CREATE_QP: `reserved[0]` (offset 77); CREATE_SRQ:
 * `reserved[0]` (offset 49).
 */
#define PVRDMA_EXT_OBJ_RING (1u << 0)
/* CREATE_CQ, with OBJ_RING: CQEs have time stamps. */
#define PVRDMA_EXT_CQ_STAMPS (1u << 1)
/* CREATE_CQ: the completion vector, one that ADD_VECTOR added, or 0. */
#define PVRDMA_EXT_CQ_VECTOR_SHIFT 16
#define PVRDMA_EXT_CQ_VECTOR_MASK  0xffff0000u

/*
 * CREATE_UC_EXT, 40 bytes.  pfn as in CREATE_UC; the pfn of UAR page 0 gives the
 * guest kernel's own context its extension memory (response handle 0).
 * Response: struct pvrdma_ext_resp_uc.  Ends with DESTROY_UC or reset.
 */
struct pvrdma_ext_cmd_uc {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint64_t pfn;
	uint64_t pdir_dma; /* of PVRDMA_EXT_PAGES pages */
	uint32_t features; /* wanted */
	uint32_t npages;
};

struct pvrdma_ext_resp_uc {
	uint64_t response;
	uint32_t ack;
	uint8_t err;
	uint8_t reserved[3];
	uint32_t ctx_handle;
	uint32_t features; /* granted */
};

/*
 * ADD_VECTOR, 32 bytes: the notification ring of completion vector 1 to
 * PVRDMA_EXT_MAX_VECTORS - 1, laid out like that of the shared region.  No response.
 * Once per vector; ends with reset.
 */
struct pvrdma_ext_cmd_vector {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint64_t pdir_dma;
	uint32_t npages; /* state page included: 2 to 64 */
	uint32_t vector;
};

/*
 * MOVE_CQ, 40 bytes: an extended CQ goes on in another ring, header page and all, of
 * another size.  Everything that it ever was to have in the old ring is there, with its
 * producer index, when the command has succeeded, and the device uses that ring no more;
 * the new one begins at index 0, the arm word moves there.  The guest keeps its hands off
 * both rings' words meanwhile; it reads what is left in the old one before the new one.
 * Response: struct pvrdma_resp_create_cq.
 */
struct pvrdma_ext_cmd_move_cq {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint64_t pdir_dma;
	uint32_t cq_handle;
	uint32_t cqe;
	uint32_t nchunks;
	uint32_t reserved2; /* 0 */
};

/*
 * The device's clock: nanoseconds, from some moment on that is the device's affair.  A
 * time stamp is its lower 48 bits (78 hours), little-endian, in `reserved` of the CQE
 * (offset 58).
 *
 * QUERY_CLOCK: a request header and 8 reserved bytes; this response.
 */
#define PVRDMA_EXT_CLOCK_KHZ  1000000u
#define PVRDMA_EXT_STAMP_MASK 0xffffffffffffull

struct pvrdma_ext_resp_clock {
	uint64_t response;
	uint32_t ack;
	uint8_t err;
	uint8_t reserved[3];
	uint64_t ns; /* between the command and its response */
};

/*
 * The completion of a send request of an extended QP has this in src_qp, which means
 * nothing there otherwise, and in the bits below the index behind the request's WQE: so
 * far the queue is complete.
 */
#define PVRDMA_EXT_CQE_SENT 0x80000000u

static inline uint64_t pvrdma_ext_stamp(const uint8_t reserved[6])
{
	return reserved[0] | (uint64_t)reserved[1] << 8 |
	       (uint64_t)reserved[2] << 16 | (uint64_t)reserved[3] << 24 |
	       (uint64_t)reserved[4] << 32 | (uint64_t)reserved[5] << 40;
}

/*
 * MODERATE_CQ, 24 bytes, no response: hold the CQ's events back until there are `count`
 * completions or `period` us have passed since the first of them.
 */
struct pvrdma_ext_cmd_moderate_cq {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint32_t cq_handle;
	uint16_t count; /* 0: however many */
	uint16_t period; /* 0: MODERATE_MAX; 0 and count 0, or count 1: hold nothing */
};
#define PVRDMA_EXT_MODERATE_MAX 65535u /* both */

/* QUERY_COUNTERS: a request header and 8 reserved bytes; this response. */
enum pvrdma_ext_counter {
	PVRDMA_EXT_CNT_TX_MSGS,
	PVRDMA_EXT_CNT_TX_BYTES,
	PVRDMA_EXT_CNT_RX_MSGS,
	PVRDMA_EXT_CNT_RX_BYTES,
	PVRDMA_EXT_CNT_ERRORS,
	PVRDMA_EXT_CNT_RNR_WAITS,
	PVRDMA_EXT_CNT_RETRIES,
	PVRDMA_EXT_CNT_INTERRUPTS,
	PVRDMA_EXT_CNT_MAX,
};

struct pvrdma_ext_resp_counters {
	uint64_t response;
	uint32_t ack;
	uint8_t err;
	uint8_t reserved[3];
	uint64_t counter[PVRDMA_EXT_CNT_MAX];
};

/*
 * QUERY_QP_COUNTERS: of one QP, since it was created.  The first are those of the VM up to
 * PVRDMA_EXT_CNT_RETRIES; those without a name are 0.
 */
enum pvrdma_ext_qp_counter {
	PVRDMA_EXT_QPCNT_RNR_NAKS = PVRDMA_EXT_CNT_RETRIES + 1,
	PVRDMA_EXT_QPCNT_DUPLICATES,
	PVRDMA_EXT_QPCNT_DROPPED,
	PVRDMA_EXT_QPCNT_MAX = 16,
};

struct pvrdma_ext_resp_qp_counters {
	uint64_t response;
	uint32_t ack;
	uint8_t err;
	uint8_t reserved[3];
	uint64_t counter[PVRDMA_EXT_QPCNT_MAX];
};

/* CREATE_MW, 24 bytes; the response is that of CREATE_MR, lkey 0. */
struct pvrdma_ext_cmd_create_mw {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint32_t pd_handle;
	uint32_t type; /* PVRDMA_EXT_MW_* */
};
#define PVRDMA_EXT_MW_TYPE_1  1u
#define PVRDMA_EXT_MW_TYPE_2B 2u

/* REREG_MR, 64 bytes; the response is that of CREATE_MR, its keys those that there were. */
struct pvrdma_ext_cmd_rereg_mr {
	uint64_t response;
	uint32_t cmd;
	uint32_t reserved;
	uint64_t start; /* the next three and nchunks: with REREG_TRANS, as in CREATE_MR */
	uint64_t length;
	uint64_t pdir_dma;
	uint32_t mr_handle;
	uint32_t pd_handle; /* with REREG_PD */
	uint32_t access_flags; /* with REREG_ACCESS */
	uint32_t flags; /* PVRDMA_EXT_REREG_* */
	uint32_t nchunks;
	uint32_t mr_flags; /* with REREG_TRANS: `flags` of CREATE_MR; EXT_MR_DEEP alone */
};
/* The values of the verbs API. */
#define PVRDMA_EXT_REREG_TRANS  (1u << 0)
#define PVRDMA_EXT_REREG_PD     (1u << 1)
#define PVRDMA_EXT_REREG_ACCESS (1u << 2)

struct pvrdma_ext_head {
	uint32_t kick; /* written by the device */
	uint8_t pad[60];
	/*
	 * Written by the guest's driver, once; the device neither reads nor writes it.
	 * Not 0: the device does nothing of this context's any more, nor will.  What it
	 * has completed is in the CQs, and what else was posted, or is, a program's
	 * library takes as flushed.  Drivers that do not write it leave it 0.
	 */
	uint32_t gone;
	uint8_t pad2[4028];
};

struct pvrdma_ext_map {
	uint64_t summary[16];
	uint8_t pad[4096 - 128];
	uint64_t words[1024];
};

struct pvrdma_ext_mem {
	struct pvrdma_ext_head head;
	struct pvrdma_ext_map send;
	struct pvrdma_ext_map recv;
};

/* Header page of an extended QP, SRQ or CQ; stock ring state at offset 0. */
struct pvrdma_ext_line {
	uint32_t value;
	uint8_t pad[60];
};

struct pvrdma_ext_ring {
	uint8_t stock[64];
	struct pvrdma_ext_line tx_prod_tail; /* QP send: guest; CQ: unused */
	struct pvrdma_ext_line tx_cons_head; /* QP send: device */
	struct pvrdma_ext_line rx_prod_tail; /* QP receive: guest; CQ: device */
	struct pvrdma_ext_line rx_cons_head; /* QP receive: device; CQ: guest */
	struct pvrdma_ext_line arm;          /* CQ: guest sets, device takes */
	struct pvrdma_ext_line tx_no_notify; /* QP: device */
	struct pvrdma_ext_line rx_no_notify; /* QP: device */
};

PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_uc) == 40, "create_uc_ext");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_resp_uc) == 24, "create_uc_ext resp");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_vector) == 32, "add_vector");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_move_cq) == 40, "move_cq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_resp_clock) == 24, "clock");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_moderate_cq) == 24, "moderate_cq");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_resp_counters) == 16 + 64, "counters");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_resp_qp_counters) == 16 + 128, "QP counters");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_create_mw) == 24, "create_mw");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_cmd_rereg_mr) == 64, "rereg_mr");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_mem) == 4096 * PVRDMA_EXT_PAGES, "memory");
PVRDMA_EXT_ASSERT(sizeof(struct pvrdma_ext_ring) == 512, "ring header");

#endif /* PVRDMA_EXT_H */
