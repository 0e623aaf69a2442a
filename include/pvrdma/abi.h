/* SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause */
/*
 * The PVRDMA guest ABI, version 20: registers, shared region, rings, commands,
 * work queue elements and completions, as the in-tree Linux driver vmw_pvrdma
 * and rdma-core's provider use them.
 *
 * Little-endian unless marked BE; a page is 4096 bytes.  Everything that a
 * guest writes here is untrusted.  No logic in this file, except the ring index
 * arithmetic, which both sides must share to the letter (end of the file).
 */
#ifndef PVRDMA_ABI_H
#define PVRDMA_ABI_H

#ifdef __KERNEL__
#include <linux/types.h>
#else
#include <stdbool.h>
#include <stdint.h>
#endif

#define PVRDMA_PCI_VENDOR 0x15ad
#define PVRDMA_PCI_DEVICE 0x0820
/*
 * Of this project's adapters, by which their driver tells them from VMware's: what QEMU
 * gives devices that others make, too (PCI_SUBDEVICE_ID_QEMU).
 */
#define PVRDMA_PCI_SUBSYSTEM_VENDOR 0x1af4
#define PVRDMA_PCI_SUBSYSTEM        0x1100
#define PVRDMA_VERSION    20u

#define PVRDMA_PAGE_SHIFT 12
#define PVRDMA_PAGE_SIZE  4096u

/* BARs */
#define PVRDMA_BAR_MSIX      0
#define PVRDMA_BAR_MSIX_SIZE 0x4000u
#define PVRDMA_BAR_MSIX_PBA  0x2000u
#define PVRDMA_BAR_REG       1
#define PVRDMA_BAR_REG_SIZE  0x1000u
#define PVRDMA_BAR_UAR       2

/* MSI-X vectors */
enum { PVRDMA_VEC_CMD, PVRDMA_VEC_ASYNC, PVRDMA_VEC_CQ, PVRDMA_NUM_VEC };

/* BAR1 registers, 32 bits each */
#define PVRDMA_REG_VERSION 0x00
#define PVRDMA_REG_DSRLOW  0x04
#define PVRDMA_REG_DSRHIGH 0x08
#define PVRDMA_REG_CTL     0x0c
#define PVRDMA_REG_REQUEST 0x10
#define PVRDMA_REG_ERR     0x14
#define PVRDMA_REG_ICR     0x18
#define PVRDMA_REG_IMR     0x1c
#define PVRDMA_REG_MACL    0x20
#define PVRDMA_REG_MACH    0x24

#define PVRDMA_CTL_ACTIVATE  0u
#define PVRDMA_CTL_UNQUIESCE 1u
#define PVRDMA_CTL_RESET     2u

/* Doorbells: offset in a UAR page, and the bits of the value */
#define PVRDMA_UAR_QP           0
#define PVRDMA_UAR_CQ           4
#define PVRDMA_UAR_SRQ          8
#define PVRDMA_UAR_HANDLE_MASK  0x00ffffffu
#define PVRDMA_UAR_QP_SEND      (1u << 30)
#define PVRDMA_UAR_QP_RECV      (1u << 31)
#define PVRDMA_UAR_CQ_ARM_SOL   (1u << 29)
#define PVRDMA_UAR_CQ_ARM       (1u << 30)
#define PVRDMA_UAR_CQ_POLL      (1u << 31)
#define PVRDMA_UAR_SRQ_RECV     (1u << 30)

/* Two-level page directory: 512 tables of 512 page addresses. */
#define PVRDMA_PDIR_ENTRIES   512u
#define PVRDMA_PDIR_MAX_PAGES (512u * 512u)

/* The stock driver's alloc_mr refuses more, whatever the capabilities say. */
#define PVRDMA_MAX_FAST_REG_PAGES 128u

struct pvrdma_caps {
    uint64_t fw_ver;
    uint64_t node_guid;      /* BE */
    uint64_t sys_image_guid; /* BE */
    uint64_t max_mr_size;
    uint64_t page_size_cap;
    uint64_t atomic_arg_sizes;
    uint32_t ex_comp_mask;
    uint32_t device_cap_flags2;
    uint32_t max_fa_bit_boundary;
    uint32_t log_max_atomic_inline_arg;
    uint32_t vendor_id;
    uint32_t vendor_part_id;
    uint32_t hw_ver;
    uint32_t max_qp;
    uint32_t max_qp_wr;
    uint32_t device_cap_flags;
    uint32_t max_sge;
    uint32_t max_sge_rd;
    uint32_t max_cq;
    uint32_t max_cqe;
    uint32_t max_mr;
    uint32_t max_pd;
    uint32_t max_qp_rd_atom;
    uint32_t max_ee_rd_atom;
    uint32_t max_res_rd_atom;
    uint32_t max_qp_init_rd_atom;
    uint32_t max_ee_init_rd_atom;
    uint32_t max_ee;
    uint32_t max_rdd;
    uint32_t max_mw;
    uint32_t max_raw_ipv6_qp;
    uint32_t max_raw_ethy_qp;
    uint32_t max_mcast_grp;
    uint32_t max_mcast_qp_attach;
    uint32_t max_total_mcast_qp_attach;
    uint32_t max_ah;
    uint32_t max_fmr;
    uint32_t max_map_per_fmr;
    uint32_t max_srq;
    uint32_t max_srq_wr;
    uint32_t max_srq_sge;
    uint32_t max_uar;
    uint32_t gid_tbl_len;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay;
    uint8_t phys_port_cnt;
    uint8_t mode;
    uint8_t atomic_ops;
    uint8_t bmme_flags;
    uint8_t gid_types;
    uint32_t max_fast_reg_page_list_len;
};

#define PVRDMA_ATOMIC_OP_CAS (1u << 0)
#define PVRDMA_ATOMIC_OP_FAA (1u << 1)

#define PVRDMA_BMME_LOCAL_INV   (1u << 0)
#define PVRDMA_BMME_REMOTE_INV  (1u << 1)
#define PVRDMA_BMME_FAST_REG    (1u << 2)

#define PVRDMA_GID_TYPE_ROCE_V1 (1u << 0)
#define PVRDMA_GID_TYPE_ROCE_V2 (1u << 1)

struct pvrdma_ring_pages {
    uint32_t num_pages; /* header page included */
    uint32_t reserved;
    uint64_t pdir_dma;
};

/* Device shared region: allocated by the guest, caps written by the device. */
struct pvrdma_dsr {
    uint32_t driver_version;
    uint32_t pad;
    uint32_t gos_info;
    uint32_t pad2;
    uint64_t cmd_slot_dma;
    uint64_t resp_slot_dma;
    struct pvrdma_ring_pages async_ring;
    struct pvrdma_ring_pages cq_ring;
    uint64_t uar_pfn;
    struct pvrdma_caps caps;
};

/* Rings: state at the start of the first page. */
struct pvrdma_ring {
    uint32_t prod_tail;
    uint32_t cons_head;
};

struct pvrdma_ring_state {
    struct pvrdma_ring tx;
    struct pvrdma_ring rx;
};

/* Commands */
enum pvrdma_cmd {
    PVRDMA_CMD_QUERY_PORT = 0,
    PVRDMA_CMD_QUERY_PKEY = 1,
    PVRDMA_CMD_CREATE_PD = 2,
    PVRDMA_CMD_DESTROY_PD = 3,
    PVRDMA_CMD_CREATE_MR = 4,
    PVRDMA_CMD_DESTROY_MR = 5,
    PVRDMA_CMD_CREATE_CQ = 6,
    PVRDMA_CMD_RESIZE_CQ = 7,
    PVRDMA_CMD_DESTROY_CQ = 8,
    PVRDMA_CMD_CREATE_QP = 9,
    PVRDMA_CMD_MODIFY_QP = 10,
    PVRDMA_CMD_QUERY_QP = 11,
    PVRDMA_CMD_DESTROY_QP = 12,
    PVRDMA_CMD_CREATE_UC = 13,
    PVRDMA_CMD_DESTROY_UC = 14,
    PVRDMA_CMD_CREATE_BIND = 15,
    PVRDMA_CMD_DESTROY_BIND = 16,
    PVRDMA_CMD_CREATE_SRQ = 17,
    PVRDMA_CMD_MODIFY_SRQ = 18,
    PVRDMA_CMD_QUERY_SRQ = 19,
    PVRDMA_CMD_DESTROY_SRQ = 20,
    PVRDMA_CMD_MAX,
};

#define PVRDMA_CMD_RESP(op) (0x80000000u + (op))

struct pvrdma_req_hdr {
    uint64_t response; /* cookie, echoed */
    uint32_t cmd;
    uint32_t reserved;
};

struct pvrdma_resp_hdr {
    uint64_t response;
    uint32_t ack;
    uint8_t err; /* honoured by the driver for MODIFY_QP only */
    uint8_t reserved[3];
};

struct pvrdma_gid {
    uint8_t raw[16];
};

struct pvrdma_port_attr {
    uint32_t state;
    uint32_t max_mtu;
    uint32_t active_mtu;
    uint32_t gid_tbl_len;
    uint32_t port_cap_flags;
    uint32_t max_msg_sz;
    uint32_t bad_pkey_cntr;
    uint32_t qkey_viol_cntr;
    uint16_t pkey_tbl_len;
    uint16_t lid;
    uint16_t sm_lid;
    uint8_t lmc;
    uint8_t max_vl_num;
    uint8_t sm_sl;
    uint8_t subnet_timeout;
    uint8_t init_type_reply;
    uint8_t active_width;
    uint8_t active_speed;
    uint8_t phys_state;
    uint8_t reserved[2];
};

enum { PVRDMA_PORT_DOWN = 1, PVRDMA_PORT_ACTIVE = 4 };
#define PVRDMA_PHYS_LINK_UP 5u
enum {
    PVRDMA_MTU_256 = 1,
    PVRDMA_MTU_512,
    PVRDMA_MTU_1024,
    PVRDMA_MTU_2048,
    PVRDMA_MTU_4096,
};

enum pvrdma_qp_type {
    PVRDMA_QPT_GSI = 1,
    PVRDMA_QPT_RC = 2,
    PVRDMA_QPT_UC = 3,
    PVRDMA_QPT_UD = 4,
};

enum pvrdma_qp_state {
    PVRDMA_QPS_RESET,
    PVRDMA_QPS_INIT,
    PVRDMA_QPS_RTR,
    PVRDMA_QPS_RTS,
    PVRDMA_QPS_SQD,
    PVRDMA_QPS_SQE,
    PVRDMA_QPS_ERR,
};

/* attr_mask of MODIFY_QP */
#define PVRDMA_QP_STATE              (1u << 0)
#define PVRDMA_QP_CUR_STATE          (1u << 1)
#define PVRDMA_QP_EN_SQD_ASYNC       (1u << 2)
#define PVRDMA_QP_ACCESS_FLAGS       (1u << 3)
#define PVRDMA_QP_PKEY_INDEX         (1u << 4)
#define PVRDMA_QP_PORT               (1u << 5)
#define PVRDMA_QP_QKEY               (1u << 6)
#define PVRDMA_QP_AV                 (1u << 7)
#define PVRDMA_QP_PATH_MTU           (1u << 8)
#define PVRDMA_QP_TIMEOUT            (1u << 9)
#define PVRDMA_QP_RETRY_CNT          (1u << 10)
#define PVRDMA_QP_RNR_RETRY          (1u << 11)
#define PVRDMA_QP_RQ_PSN             (1u << 12)
#define PVRDMA_QP_MAX_RD_ATOMIC      (1u << 13)
#define PVRDMA_QP_ALT_PATH           (1u << 14)
#define PVRDMA_QP_MIN_RNR_TIMER      (1u << 15)
#define PVRDMA_QP_SQ_PSN             (1u << 16)
#define PVRDMA_QP_MAX_DEST_RD_ATOMIC (1u << 17)
#define PVRDMA_QP_PATH_MIG_STATE     (1u << 18)
#define PVRDMA_QP_CAP                (1u << 19)
#define PVRDMA_QP_DEST_QPN           (1u << 20)
#define PVRDMA_QP_ATTR_ALL           ((1u << 21) - 1)

struct pvrdma_qp_cap {
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
    uint32_t reserved;
};

struct pvrdma_ah_attr {
    struct pvrdma_gid dgid;
    uint32_t flow_label;
    uint8_t sgid_index;
    uint8_t hop_limit;
    uint8_t traffic_class;
    uint8_t reserved;
    uint16_t dlid;
    uint16_t vlan_id;
    uint8_t sl;
    uint8_t src_path_bits;
    uint8_t static_rate;
    uint8_t ah_flags; /* 1 = GRH */
    uint8_t port_num;
    uint8_t dmac[6];
    uint8_t reserved2;
};

struct pvrdma_qp_attr {
    uint32_t qp_state;
    uint32_t cur_qp_state;
    uint32_t path_mtu;
    uint32_t path_mig_state;
    uint32_t qkey;
    uint32_t rq_psn;
    uint32_t sq_psn;
    uint32_t dest_qp_num;
    uint32_t qp_access_flags;
    uint16_t pkey_index;
    uint16_t alt_pkey_index;
    uint8_t en_sqd_async_notify;
    uint8_t sq_draining;
    uint8_t max_rd_atomic;
    uint8_t max_dest_rd_atomic;
    uint8_t min_rnr_timer;
    uint8_t port_num;
    uint8_t timeout;
    uint8_t retry_cnt;
    uint8_t rnr_retry;
    uint8_t alt_port_num;
    uint8_t alt_timeout;
    uint8_t reserved[5];
    struct pvrdma_qp_cap cap;
    struct pvrdma_ah_attr ah_attr;
    struct pvrdma_ah_attr alt_ah_attr;
};

/* Access flags of MRs and QPs (the values of the verbs API) */
#define PVRDMA_ACCESS_LOCAL_WRITE   (1u << 0)
#define PVRDMA_ACCESS_REMOTE_WRITE  (1u << 1)
#define PVRDMA_ACCESS_REMOTE_READ   (1u << 2)
#define PVRDMA_ACCESS_REMOTE_ATOMIC (1u << 3)
#define PVRDMA_ACCESS_MW_BIND       (1u << 4)
#define PVRDMA_ACCESS_ZERO_BASED    (1u << 5)
#define PVRDMA_ACCESS_ON_DEMAND     (1u << 6)
#define PVRDMA_ACCESS_HUGETLB       (1u << 7) /* a hint, older than those below */
#define PVRDMA_ACCESS_REMOTE \
    (PVRDMA_ACCESS_REMOTE_WRITE | PVRDMA_ACCESS_REMOTE_READ | PVRDMA_ACCESS_REMOTE_ATOMIC)
/* Bits from here on are hints that a device may ignore. */
#define PVRDMA_ACCESS_OPTIONAL      0x3ff00000u
#define PVRDMA_ACCESS_HINTS         (PVRDMA_ACCESS_HUGETLB | PVRDMA_ACCESS_OPTIONAL)

#define PVRDMA_MR_FLAG_DMA  (1u << 0)
#define PVRDMA_MR_FLAG_FRMR (1u << 1)

struct pvrdma_cmd_query_port {
    struct pvrdma_req_hdr hdr;
    uint8_t port_num;
    uint8_t reserved[7];
};

struct pvrdma_cmd_query_pkey {
    struct pvrdma_req_hdr hdr;
    uint8_t port_num;
    uint8_t index;
    uint8_t reserved[6];
};

struct pvrdma_cmd_create_pd {
    struct pvrdma_req_hdr hdr;
    uint32_t ctx_handle;
    uint32_t reserved;
};

/* All DESTROY_* and the other requests that carry one handle. */
struct pvrdma_cmd_handle {
    struct pvrdma_req_hdr hdr;
    uint32_t handle;
    uint32_t arg; /* QUERY_QP: attr_mask */
};

struct pvrdma_cmd_create_mr {
    struct pvrdma_req_hdr hdr;
    uint64_t start;
    uint64_t length;
    uint64_t pdir_dma;
    uint32_t pd_handle;
    uint32_t access_flags;
    uint32_t flags;
    uint32_t nchunks;
};

struct pvrdma_cmd_create_cq {
    struct pvrdma_req_hdr hdr;
    uint64_t pdir_dma;
    uint32_t ctx_handle;
    uint32_t cqe;
    uint32_t nchunks;
    uint32_t reserved;
};

struct pvrdma_cmd_create_qp {
    struct pvrdma_req_hdr hdr;
    uint64_t pdir_dma;
    uint32_t pd_handle;
    uint32_t send_cq_handle;
    uint32_t recv_cq_handle;
    uint32_t srq_handle;
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
    uint32_t lkey;
    uint32_t access_flags;
    uint16_t total_chunks;
    uint16_t send_chunks;
    uint16_t max_atomic_arg;
    uint8_t sq_sig_all;
    uint8_t qp_type;
    uint8_t is_srq;
    uint8_t reserved[3];
};

struct pvrdma_cmd_modify_qp {
    struct pvrdma_req_hdr hdr;
    uint32_t qp_handle;
    uint32_t attr_mask;
    struct pvrdma_qp_attr attrs;
};

struct pvrdma_cmd_create_uc {
    struct pvrdma_req_hdr hdr;
    uint64_t pfn;
};

struct pvrdma_cmd_create_bind {
    struct pvrdma_req_hdr hdr;
    uint32_t mtu;
    uint32_t vlan;
    uint32_t index;
    struct pvrdma_gid gid;
    uint8_t gid_type;
    uint8_t reserved[3];
};

struct pvrdma_cmd_destroy_bind {
    struct pvrdma_req_hdr hdr;
    uint32_t index;
    struct pvrdma_gid gid;
    uint32_t reserved;
};

struct pvrdma_srq_attr {
    uint32_t max_wr;
    uint32_t max_sge;
    uint32_t srq_limit;
    uint32_t reserved;
};

/* attr_mask of MODIFY_SRQ */
#define PVRDMA_SRQ_MAX_WR (1u << 0)
#define PVRDMA_SRQ_LIMIT  (1u << 1)

#define PVRDMA_SRQT_BASIC 0u

struct pvrdma_cmd_create_srq {
    struct pvrdma_req_hdr hdr;
    uint64_t pdir_dma;
    uint32_t pd_handle;
    uint32_t nchunks;
    struct pvrdma_srq_attr attrs;
    uint8_t srq_type;
    uint8_t reserved[7];
};

struct pvrdma_cmd_modify_srq {
    struct pvrdma_req_hdr hdr;
    uint32_t srq_handle;
    uint32_t attr_mask;
    struct pvrdma_srq_attr attrs;
};

union pvrdma_cmd_req {
    struct pvrdma_req_hdr hdr;
    struct pvrdma_cmd_query_port query_port;
    struct pvrdma_cmd_query_pkey query_pkey;
    struct pvrdma_cmd_create_pd create_pd;
    struct pvrdma_cmd_handle handle;
    struct pvrdma_cmd_create_mr create_mr;
    struct pvrdma_cmd_create_cq create_cq;
    struct pvrdma_cmd_create_qp create_qp;
    struct pvrdma_cmd_modify_qp modify_qp;
    struct pvrdma_cmd_create_uc create_uc;
    struct pvrdma_cmd_create_bind create_bind;
    struct pvrdma_cmd_destroy_bind destroy_bind;
    struct pvrdma_cmd_create_srq create_srq;
    struct pvrdma_cmd_modify_srq modify_srq;
};

struct pvrdma_resp_query_port {
    struct pvrdma_resp_hdr hdr;
    struct pvrdma_port_attr attrs;
};

struct pvrdma_resp_query_pkey {
    struct pvrdma_resp_hdr hdr;
    uint16_t pkey;
    uint8_t reserved[6];
};

/* CREATE_PD, CREATE_UC, CREATE_SRQ: a handle. */
struct pvrdma_resp_handle {
    struct pvrdma_resp_hdr hdr;
    uint32_t handle;
    uint32_t reserved;
};

struct pvrdma_resp_create_mr {
    struct pvrdma_resp_hdr hdr;
    uint32_t mr_handle;
    uint32_t lkey;
    uint32_t rkey;
    uint32_t reserved;
};

struct pvrdma_resp_create_cq {
    struct pvrdma_resp_hdr hdr;
    uint32_t cq_handle;
    uint32_t cqe;
};

struct pvrdma_resp_create_qp {
    struct pvrdma_resp_hdr hdr;
    uint32_t qpn;
    uint32_t qp_handle;
    uint32_t max_send_wr;
    uint32_t max_recv_wr;
    uint32_t max_send_sge;
    uint32_t max_recv_sge;
    uint32_t max_inline_data;
    uint32_t reserved;
};

struct pvrdma_resp_query_qp {
    struct pvrdma_resp_hdr hdr;
    struct pvrdma_qp_attr attrs;
};

struct pvrdma_resp_query_srq {
    struct pvrdma_resp_hdr hdr;
    struct pvrdma_srq_attr attrs;
};

union pvrdma_cmd_resp {
    struct pvrdma_resp_hdr hdr;
    struct pvrdma_resp_query_port query_port;
    struct pvrdma_resp_query_pkey query_pkey;
    struct pvrdma_resp_handle handle;
    struct pvrdma_resp_create_mr create_mr;
    struct pvrdma_resp_create_cq create_cq;
    struct pvrdma_resp_create_qp create_qp;
    struct pvrdma_resp_query_qp query_qp;
    struct pvrdma_resp_query_srq query_srq;
};

/* Work queue elements */
enum pvrdma_wr_opcode {
    PVRDMA_WR_RDMA_WRITE = 0,
    PVRDMA_WR_RDMA_WRITE_WITH_IMM = 1,
    PVRDMA_WR_SEND = 2,
    PVRDMA_WR_SEND_WITH_IMM = 3,
    PVRDMA_WR_RDMA_READ = 4,
    PVRDMA_WR_ATOMIC_CMP_AND_SWP = 5,
    PVRDMA_WR_ATOMIC_FETCH_AND_ADD = 6,
    PVRDMA_WR_LSO = 7,
    PVRDMA_WR_SEND_WITH_INV = 8,
    PVRDMA_WR_RDMA_READ_WITH_INV = 9,
    PVRDMA_WR_LOCAL_INV = 10,
    PVRDMA_WR_FAST_REG = 11,
    PVRDMA_WR_BIND_MW = 14, /* ext.h */
};

#define PVRDMA_SEND_FENCE     (1u << 0)
#define PVRDMA_SEND_SIGNALED  (1u << 1)
#define PVRDMA_SEND_SOLICITED (1u << 2)
#define PVRDMA_SEND_INLINE    (1u << 3)

struct pvrdma_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

struct pvrdma_av {
    uint32_t port_pd; /* pd_handle | port << 24 */
    uint32_t sl_tclass_flowlabel; /* traffic class << 20 | flow label; no SL */
    uint8_t dgid[16];
    uint8_t src_path_bits;
    uint8_t gid_index;
    uint8_t stat_rate;
    uint8_t hop_limit;
    uint8_t dmac[6];
    uint8_t reserved[6];
};

struct pvrdma_fast_reg {
    uint64_t iova_start;
    uint64_t pl_pdir_dma; /* page directory of the page list */
    uint32_t page_shift;
    uint32_t page_list_len;
    uint32_t length;
    uint32_t access_flags;
    uint32_t rkey; /* the MR's, with any low byte */
    uint32_t reserved;
};

/* Of a BIND_MW; the stock ABI does not say (ext.h). */
struct pvrdma_bind_mw {
    uint64_t addr;
    uint64_t length; /* 0: the window is bound to nothing */
    uint32_t lkey; /* of the MR */
    uint32_t access_flags;
    uint32_t rkey; /* the window's, with the low byte that it is to have */
    uint32_t reserved;
};

struct pvrdma_sq_wqe_hdr {
    uint64_t wr_id;
    uint32_t num_sge;
    uint32_t total_len; /* not filled in */
    uint32_t opcode;
    uint32_t send_flags;
    uint32_t imm_data; /* BE; or the rkey to invalidate */
    uint32_t reserved;
    union {
        struct {
            uint64_t remote_addr;
            uint32_t rkey;
            uint8_t reserved[4];
        } rdma;
        struct {
            uint64_t remote_addr;
            uint64_t compare_add;
            uint64_t swap;
            uint32_t rkey;
            uint32_t reserved;
        } atomic;
        struct {
            uint32_t remote_qpn;
            uint32_t remote_qkey;
            struct pvrdma_av av;
        } ud;
        struct pvrdma_fast_reg fast_reg;
        struct pvrdma_bind_mw bind_mw;
        uint8_t raw[48];
    } wr;
    /* followed by num_sge struct pvrdma_sge */
};

struct pvrdma_rq_wqe_hdr {
    uint64_t wr_id;
    uint32_t num_sge;
    uint32_t total_len;
    /* followed by num_sge struct pvrdma_sge */
};

/* Completions */
enum pvrdma_wc_status {
    PVRDMA_WC_SUCCESS = 0,
    PVRDMA_WC_LOC_LEN_ERR = 1,
    PVRDMA_WC_LOC_QP_OP_ERR = 2,
    PVRDMA_WC_LOC_PROT_ERR = 4,
    PVRDMA_WC_WR_FLUSH_ERR = 5,
    PVRDMA_WC_MW_BIND_ERR = 6, /* any memory management operation */
    PVRDMA_WC_REM_INV_REQ_ERR = 9,
    PVRDMA_WC_REM_ACCESS_ERR = 10,
    PVRDMA_WC_REM_OP_ERR = 11,
    PVRDMA_WC_RETRY_EXC_ERR = 12,
    PVRDMA_WC_RNR_RETRY_EXC_ERR = 13,
    PVRDMA_WC_GENERAL_ERR = 21,
};

enum pvrdma_wc_opcode {
    PVRDMA_WC_SEND = 0,
    PVRDMA_WC_RDMA_WRITE = 1,
    PVRDMA_WC_RDMA_READ = 2,
    PVRDMA_WC_COMP_SWAP = 3,
    PVRDMA_WC_FETCH_ADD = 4,
    PVRDMA_WC_BIND_MW = 5,
    PVRDMA_WC_LOCAL_INV = 7,
    PVRDMA_WC_FAST_REG = 8,
    PVRDMA_WC_RECV = 128,
    PVRDMA_WC_RECV_RDMA_WITH_IMM = 129,
};

#define PVRDMA_WC_FLAG_GRH (1u << 0)
#define PVRDMA_WC_FLAG_IMM (1u << 1)
#define PVRDMA_WC_FLAG_INV (1u << 2) /* imm_data: the rkey, not swapped */
#define PVRDMA_WC_FLAG_NETWORK_HDR_TYPE (1u << 6)

/* network_hdr_type */
enum { PVRDMA_NETWORK_ROCE_V1, PVRDMA_NETWORK_IPV4, PVRDMA_NETWORK_IPV6 };

/*
 * sl of a datagram: RoCE has no service levels, and its packet type is told there, as
 * mlx5 does (bnxt_re and hns without the UDP bit): what lies in front of UDP.
 */
#define PVRDMA_WC_SL_IPV6 0x1u
#define PVRDMA_WC_SL_IPV4 0x2u
#define PVRDMA_WC_SL_UDP  0x8u

/* In front of each datagram in its receive buffer: a GRH, or what stands for it. */
#define PVRDMA_GRH_SIZE 40u

struct pvrdma_cqe {
    uint64_t wr_id;
    uint64_t qp; /* qp_handle */
    uint32_t opcode;
    uint32_t status;
    uint32_t byte_len;
    uint32_t imm_data; /* BE */
    uint32_t src_qp;
    uint32_t wc_flags;
    uint32_t vendor_err;
    uint16_t pkey_index;
    uint16_t slid;
    uint8_t sl;
    uint8_t dlid_path_bits;
    uint8_t port_num;
    uint8_t smac[6];
    uint8_t network_hdr_type;
    uint8_t reserved[6];
};

/* Async events and CQ notifications */
enum pvrdma_event_type {
    PVRDMA_EVENT_CQ_ERR = 0,
    PVRDMA_EVENT_QP_FATAL = 1,
    PVRDMA_EVENT_QP_REQ_ERR = 2,
    PVRDMA_EVENT_QP_ACCESS_ERR = 3,
    PVRDMA_EVENT_COMM_EST = 4,
    PVRDMA_EVENT_SQ_DRAINED = 5,
    PVRDMA_EVENT_DEVICE_FATAL = 8,
    PVRDMA_EVENT_PORT_ACTIVE = 9,
    PVRDMA_EVENT_PORT_ERR = 10,
    PVRDMA_EVENT_SRQ_ERR = 14,
    PVRDMA_EVENT_SRQ_LIMIT_REACHED = 15,
    PVRDMA_EVENT_QP_LAST_WQE_REACHED = 16,
    PVRDMA_EVENT_GID_CHANGE = 18,
};

struct pvrdma_eqe {
    uint32_t type;
    uint32_t info; /* handle, or port number */
};

struct pvrdma_cqne {
    uint32_t info; /* cq_handle */
};

/*
 * Ring index arithmetic.  Indices run over 0..2n-1, so that full and empty
 * differ; n is the number of slots and meant to be a power of two.  For the
 * device rings it is not (1536 and 3072): the driver uses these same
 * expressions with those n, where only 512 and 1024 slots and index cycles of
 * 1024 and 2048 come out, so the device must use them too.
 */
static inline bool pvrdma_idx_valid(uint32_t idx, uint32_t n)
{
    return (idx & ~((n << 1) - 1)) == 0;
}

static inline uint32_t pvrdma_idx_slot(uint32_t idx, uint32_t n)
{
    return idx & (n - 1);
}

static inline uint32_t pvrdma_idx_next(uint32_t idx, uint32_t n)
{
    return (idx + 1) & ((n << 1) - 1);
}

#define PVRDMA_ASSERT_SIZE(type, size) \
    _Static_assert(sizeof(type) == (size), "size of " #type)
#define PVRDMA_ASSERT_OFF(type, field, off) \
    _Static_assert(__builtin_offsetof(type, field) == (off), \
                   "offset of " #field " in " #type)

PVRDMA_ASSERT_SIZE(struct pvrdma_caps, 208);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_qp, 76);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_sge, 88);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_qp_rd_atom, 112);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_ee, 132);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_mcast_grp, 152);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_ah, 164);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_srq, 176);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_uar, 188);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_pkeys, 196);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, mode, 200);
PVRDMA_ASSERT_OFF(struct pvrdma_caps, max_fast_reg_page_list_len, 204);
PVRDMA_ASSERT_SIZE(struct pvrdma_dsr, 280);
PVRDMA_ASSERT_OFF(struct pvrdma_dsr, cmd_slot_dma, 16);
PVRDMA_ASSERT_OFF(struct pvrdma_dsr, async_ring, 32);
PVRDMA_ASSERT_OFF(struct pvrdma_dsr, cq_ring, 48);
PVRDMA_ASSERT_OFF(struct pvrdma_dsr, uar_pfn, 64);
PVRDMA_ASSERT_OFF(struct pvrdma_dsr, caps, 72);
PVRDMA_ASSERT_SIZE(struct pvrdma_ring_state, 16);
PVRDMA_ASSERT_SIZE(struct pvrdma_req_hdr, 16);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_hdr, 16);
PVRDMA_ASSERT_SIZE(struct pvrdma_port_attr, 48);
PVRDMA_ASSERT_OFF(struct pvrdma_port_attr, phys_state, 45);
PVRDMA_ASSERT_SIZE(struct pvrdma_qp_cap, 24);
PVRDMA_ASSERT_SIZE(struct pvrdma_ah_attr, 40);
PVRDMA_ASSERT_OFF(struct pvrdma_ah_attr, dmac, 33);
PVRDMA_ASSERT_SIZE(struct pvrdma_qp_attr, 160);
PVRDMA_ASSERT_OFF(struct pvrdma_qp_attr, pkey_index, 36);
PVRDMA_ASSERT_OFF(struct pvrdma_qp_attr, timeout, 46);
PVRDMA_ASSERT_OFF(struct pvrdma_qp_attr, cap, 56);
PVRDMA_ASSERT_OFF(struct pvrdma_qp_attr, ah_attr, 80);
PVRDMA_ASSERT_OFF(struct pvrdma_qp_attr, alt_ah_attr, 120);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_create_mr, 56);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_create_cq, 40);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_create_qp, 80);
PVRDMA_ASSERT_OFF(struct pvrdma_cmd_create_qp, total_chunks, 68);
PVRDMA_ASSERT_OFF(struct pvrdma_cmd_create_qp, sq_sig_all, 74);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_modify_qp, 184);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_create_bind, 48);
PVRDMA_ASSERT_OFF(struct pvrdma_cmd_create_bind, gid, 28);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_destroy_bind, 40);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_handle, 24);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_create_srq, 56);
PVRDMA_ASSERT_OFF(struct pvrdma_cmd_create_srq, attrs, 32);
PVRDMA_ASSERT_OFF(struct pvrdma_cmd_create_srq, srq_type, 48);
PVRDMA_ASSERT_SIZE(struct pvrdma_cmd_modify_srq, 40);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_query_srq, 32);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_create_qp, 48);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_create_mr, 32);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_query_qp, 176);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_query_port, 64);
PVRDMA_ASSERT_SIZE(struct pvrdma_resp_query_pkey, 24);
PVRDMA_ASSERT_SIZE(struct pvrdma_sge, 16);
PVRDMA_ASSERT_SIZE(struct pvrdma_av, 40);
PVRDMA_ASSERT_OFF(struct pvrdma_av, dmac, 28);
PVRDMA_ASSERT_SIZE(struct pvrdma_sq_wqe_hdr, 80);
PVRDMA_ASSERT_OFF(struct pvrdma_sq_wqe_hdr, wr.atomic.rkey, 56);
PVRDMA_ASSERT_OFF(struct pvrdma_sq_wqe_hdr, wr.fast_reg.rkey, 64);
PVRDMA_ASSERT_OFF(struct pvrdma_sq_wqe_hdr, wr.bind_mw.rkey, 56);
PVRDMA_ASSERT_SIZE(struct pvrdma_rq_wqe_hdr, 16);
PVRDMA_ASSERT_SIZE(struct pvrdma_cqe, 64);
PVRDMA_ASSERT_OFF(struct pvrdma_cqe, smac, 51);
PVRDMA_ASSERT_OFF(struct pvrdma_cqe, network_hdr_type, 57);
PVRDMA_ASSERT_SIZE(struct pvrdma_eqe, 8);
PVRDMA_ASSERT_SIZE(struct pvrdma_cqne, 4);

#endif /* PVRDMA_ABI_H */
