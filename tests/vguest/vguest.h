/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest: a virtual machine without a machine.
 *
 * A virtual guest is a user-space client that speaks vfio-user to the real
 * pvrdmad over its real socket, owns a sealed memfd as guest RAM, and does what
 * a VMM and the PVRDMA driver in its guest do: DMA map, interrupts, shared
 * region, command channel, rings and doorbells.  Integration tests, benchmarks
 * and the hostile tests all stand on it.
 *
 * Layers, each usable without those above it:
 *   vg_daemon  daemon.c    the pvrdmad process under test
 *   messages   wire.c      vfio-user requests, raw bytes for hostile tests
 *   RAM        ram.c       pages, scattered buffers, page directories
 *   device     device.c    attach, registers, DSR, commands, events, doorbells
 *   verbs      verbs.c     PD, MR, CQ, QP objects with the guest's ring indices
 *
 * Conventions.  "gpa" is a guest-physical address, "va" an address in a made-up
 * guest address space (what a program in the guest would see).  Functions that
 * run a command return 0, a positive number (the device said no: value of ERR,
 * or of the response's err), or a negative errno (no answer, connection gone).
 * Functions named *_new() are for the tests' normal path: they abort the test
 * when they fail.
 *
 * Threads.  One vguest may be used by several threads as far as messages and
 * commands go (they are serialised by locks in it); each CQ and QP belongs to
 * one thread at a time.
 */
#ifndef VGUEST_H
#define VGUEST_H

#include <glib.h>
#include <json-glib/json-glib.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "pvrdma/abi.h"
#include "pvrdma/doorbell.h"
#include "pvrdma/ext.h"
#include "pvrdma/vfio_user.h"

/* ---- the daemon under test ---- */

struct vg_daemon_opts {
    unsigned n_vms;          /* vm0, vm1, ...; VM i holds addresses 10.0.0.(i+1) */
    unsigned workers;        /* 0: VGUEST_WORKERS, or the daemon's default */
    int poll_us;             /* < 0: the daemon's default */
    const char *daemon_keys; /* further lines of [daemon], or NULL */
    const char *vm_keys;     /* further lines of each [vm], or NULL */
    const char *const *keys; /* n_vms further lines, of one [vm] each, or NULL */
    const char *nic;         /* address of its NIC in memory; NULL: 127.0.0.1 */
    const char *nic_keys;    /* further lines of that's group, or NULL */
};

struct vg_daemon {
    char *dir; /* private: key file, sockets, log */
    char *config;
    char *control;   /* admin socket */
    char *log;       /* its stderr */
    off_t log_begin; /* of what this one wrote; before it are those that it follows */
    char *nic;       /* address of soft0, its NIC in memory (VGUEST_PATH rnic), or NULL */
    unsigned n_vms;
    pid_t pid;
};

/* Start pvrdmad and wait until it serves, and its NIC in memory, if it has one, is up;
 * @opts NULL: two VMs. */
struct vg_daemon *vg_daemon_start(const struct vg_daemon_opts *opts);
/* SIGTERM; the test fails unless it exits with 0 and without any sanitizer
 * report.  Removes the directory. */
void vg_daemon_stop(struct vg_daemon *d);
/* Connections that tests/reset has reset of daemons that were stopped. */
unsigned long vg_daemon_resets(void);
/* Is the one NIC that it has in that state? */
bool vg_daemon_nic_is(const struct vg_daemon *d, const char *state);
/* A command for its NIC (tests/softnic/softnic.h), without an answer. */
void vg_daemon_nic(const struct vg_daemon *d, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Bytes that came by channels in daemons that were stopped. */
unsigned long vg_daemon_channel_bytes(void);
/* Likewise, streams that there were by channels, and by TCP. */
unsigned long vg_daemon_channel_streams(unsigned long *by_tcp);
/* SIGKILL, and the same. */
void vg_daemon_kill(struct vg_daemon *d);
/*
 * The two again, but it will be started anew in its directory: vg_daemon_again() does
 * that as a service manager that has kept @n descriptors (8 at most) for it under @names,
 * which are separated by colons, and waits until it serves.  @names NULL: it has none.
 */
void vg_daemon_end(struct vg_daemon *d);
void vg_daemon_again(struct vg_daemon *d, const int *fds, unsigned n, const char *names);
/* Parts of these: to start it, without waiting; SIGTERM; its wait status when it ended.
 */
void vg_daemon_begin(struct vg_daemon *d, const int *fds, unsigned n, const char *names);
void vg_daemon_term(struct vg_daemon *d);
int vg_daemon_wait_end(struct vg_daemon *d);
/* Fail the test if the daemon died or a sanitizer has complained by now. */
void vg_daemon_check(struct vg_daemon *d);
char *vg_daemon_socket(const struct vg_daemon *d, unsigned vm);

/* What the process holds; from /proc. */
struct vg_usage {
    unsigned fds, maps, threads;
    long rss_anon_kib;
    long cpu_ticks; /* user + system, in clock ticks */
};
void vg_daemon_usage(const struct vg_daemon *d, struct vg_usage *u);

/* Run `pvrdmactl --socket CONTROL ARGS`.  Returns its exit status; *out (may be
 * NULL) is its standard output, to be freed. */
int vg_ctl(const struct vg_daemon *d, char **out, const char *args, ...)
    G_GNUC_PRINTF(3, 4);
/* `pvrdmactl --json ARGS`, which succeeds, parsed; free with json_node_unref. */
JsonNode *vg_ctl_json(const struct vg_daemon *d, const char *args, ...)
    G_GNUC_PRINTF(2, 3);
/* `pvrdmactl --json status`, parsed; free with json_node_unref. */
JsonNode *vg_daemon_status(const struct vg_daemon *d);
/* Likewise `pvrdmactl --json counters`. */
JsonNode *vg_daemon_counters(const struct vg_daemon *d);
/* The object that either reports for one VM (borrowed from @status). */
JsonObject *vg_status_vm(JsonNode *status, const char *name);
/* A number in @group of VM @vm, or of the daemon (NULL). */
int64_t vg_status_int(const struct vg_daemon *d, const char *vm, const char *group,
                      const char *name);
/* The row of a QP in what `qp list` says, which has it. */
JsonObject *vg_qp_row(JsonNode *list, uint32_t handle);

/* ---- a virtual guest ---- */

enum vg_db_mode {
    VG_DB_SHARED, /* our QEMU: shared doorbell region */
    VG_DB_REPLY,  /* REGION_WRITE, waits for the reply */
    VG_DB_POSTED, /* stock QEMU: REGION_WRITE with No_reply */
    VG_DB_EXT,    /* our driver: maps in guest RAM, extended QPs and CQs; the
                     shared region for kicks and kernel objects */
};

struct vg_opts {
    uint64_t low_size;  /* RAM from gpa 0; default 64 MiB */
    uint64_t high_size; /* RAM from gpa 4 GiB; default 64 MiB */
    enum vg_db_mode db;
    bool post_regs; /* post BAR1 writes too (stock QEMU) */
    uint64_t seed;  /* of the page scatter; 0: fixed default */
};

#define VG_HIGH_GPA   0x100000000ull
#define VG_UAR_PFN    0xfe000ull /* where the guest placed BAR2, in pages */
#define VG_RING_PAGES 4u
#define VG_ASYNC_N    ((VG_RING_PAGES - 1) * PVRDMA_PAGE_SIZE / 8) /* 1536 */
#define VG_CQN_N      ((VG_RING_PAGES - 1) * PVRDMA_PAGE_SIZE / 4) /* 3072 */

/* Guest RAM seen through scattered pages, contiguous for the test. */
struct vg_buf {
    struct vguest *g;
    uint64_t va;     /* guest-virtual address of byte 0 */
    uint64_t len;    /* bytes */
    uint8_t *host;   /* the test's view of byte 0 */
    uint32_t npages; /* pages that cover [va, va + len) */
    uint64_t *page;  /* their gpas */
    uint32_t owned;  /* how many distinct pages belong to the buffer */
    void *map;       /* own mapping, or NULL */
    size_t map_len;
};

struct vguest {
    struct vg_daemon *d;
    unsigned index; /* VM number */
    struct vg_opts opts;
    int sock;        /* -1 after a disconnect */
    GMutex msg_lock; /* protects sock's stream and next_id */
    uint16_t next_id;

    int memfd;
    uint8_t *ram; /* both regions, mapped as one */
    uint64_t ram_size;
    uint64_t n_pages, next_page;
    uint8_t *page_used;
    GMutex ram_lock; /* protects the allocator */
    GRand *rand;

    int irq[PVRDMA_NUM_VEC];
    int db_eventfd;              /* worker's kick */
    struct pvrdma_db_region *db; /* region 9, or NULL */

    /* DSR and what hangs off it */
    uint64_t dsr_gpa, cmd_gpa, resp_gpa;
    struct pvrdma_dsr *dsr;
    struct vg_buf *async_ring, *cqn_ring;
    void *cmd_slot, *resp_slot;
    uint64_t async_pdir, cqn_pdir;
    GMutex cmd_lock; /* one command at a time */
    uint64_t cookie;
    GQueue events; /* of struct pvrdma_eqe *, taken off the ring, unmatched */

    bool up;
    uint32_t uctx;         /* default user context */
    uint32_t uar_page;     /* its page in BAR2 */
    struct pvrdma_gid gid; /* bound at index 0 */

    /* VG_DB_EXT: the context's extension memory. */
    struct vg_buf *ext_buf;
    struct pvrdma_ext_mem *ext;
    uint64_t ext_pdir;
};

/* Connect, attach, bring the device up (DSR, ACTIVATE), make a user context and
 * bind the VM's address: ready for verbs.  @opts NULL: defaults. */
struct vguest *vguest_new(struct vg_daemon *d, unsigned vm, const struct vg_opts *opts);
/* As a VM that shuts down: RESET, unmap, close; frees. */
void vguest_free(struct vguest *g);
/* As a VM that is killed: close the socket with no word; frees. */
void vguest_crash(struct vguest *g);

/* The steps of vguest_new, one by one. */
struct vguest *vguest_open(struct vg_daemon *d, unsigned vm,
                           const struct vg_opts *opts); /* RAM, no socket */
int vg_connect(struct vguest *g);                       /* the socket alone */
int vg_version(struct vguest *g);
int vg_attach(struct vguest *g); /* from VERSION to bus master on */
/*
 * Connect and attach; while the daemon still sees the VM's former connection it
 * closes the new one, so try again until @timeout_ms.
 */
int vg_attach_again(struct vguest *g, int timeout_ms);
int vg_bring_up(struct vguest *g);   /* DSR, ACTIVATE, context, address */
void vg_setup_dsr(struct vguest *g); /* fill DSR in RAM, write no register */
/* Close the socket; RAM and the structure stay (a later vg_connect works). */
void vg_disconnect(struct vguest *g);

/* ---- messages ---- */

struct vg_reply {
    struct vfio_user_hdr hdr;
    uint8_t *data; /* to be freed by vg_reply_clear */
    size_t len;
    int fds[VFIO_USER_MAX_FDS];
    unsigned nfds;
};

/*
 * Send one command and, unless @flags has VFIO_USER_NO_REPLY, wait for its
 * reply (10 s).  Returns 0, a positive errno that the server replied, or a
 * negative errno.  @reply may be NULL (descriptors are closed then).
 */
int vg_request(struct vguest *g, uint16_t command, uint32_t flags, const void *data,
               size_t len, const int *fds, unsigned nfds, struct vg_reply *reply);
void vg_reply_clear(struct vg_reply *r);

/* Raw bytes, for hostile tests: not serialised, nothing is checked. */
int vg_raw_send(int sock, const void *data, size_t len, const int *fds, unsigned nfds);
/* One whole message; 0 or a negative errno (-EPIPE: the server closed). */
int vg_raw_recv(int sock, struct vg_reply *reply, int timeout_ms);
/* True if the server closed the connection within the time. */
bool vg_wait_closed(struct vguest *g, int timeout_ms);

#define VG_DMA_RW (VFIO_USER_DMA_READ_FLAG | VFIO_USER_DMA_WRITE_FLAG)
int vg_dma_map(struct vguest *g, int fd, uint64_t offset, uint64_t gpa, uint64_t size,
               uint32_t flags);
int vg_dma_unmap(struct vguest *g, uint64_t gpa, uint64_t size);
int vg_region_read(struct vguest *g, uint32_t region, uint64_t offset, void *data,
                   uint32_t count);
int vg_region_write(struct vguest *g, uint32_t region, uint64_t offset, const void *data,
                    uint32_t count, bool posted);
#define VG_IRQ_EVENTFDS (VFIO_USER_IRQ_DATA_EVENTFD | VFIO_USER_IRQ_ACTION_TRIGGER)
int vg_set_irqs(struct vguest *g, uint32_t flags, uint32_t start, uint32_t count,
                const int *fds, unsigned nfds);
int vg_reset(struct vguest *g); /* DEVICE_RESET */
int vg_bus_master(struct vguest *g, bool on);

/* ---- RAM ---- */

void *vg_ptr(struct vguest *g, uint64_t gpa); /* of a page inside RAM */
uint64_t vg_alloc_page(struct vguest *g);     /* zeroed, at a random place */
/* @n contiguous zeroed pages. */
uint64_t vg_alloc_pages(struct vguest *g, uint32_t n);
void vg_free_pages(struct vguest *g, uint64_t gpa, uint32_t n);

enum vg_layout {
    VG_SCATTERED, /* every page somewhere else */
    VG_CONTIG,    /* one run of guest-physical pages */
};
struct vg_buf *vg_buf_new(struct vguest *g, uint64_t va, uint64_t len,
                          enum vg_layout layout);
/* A large range over few pages: page i is page i % @real.  host shows the
 * first @real pages only. */
struct vg_buf *vg_buf_new_alias(struct vguest *g, uint64_t va, uint64_t len,
                                uint32_t real);
void vg_buf_free(struct vg_buf *b);

/* Page directory over @n page addresses; the pages it takes are freed by
 * vg_pdir_free. */
uint64_t vg_pdir_new(struct vguest *g, const uint64_t *pages, uint32_t n);
void vg_pdir_free(struct vguest *g, uint64_t pdir, uint32_t n);
/* The same for PVRDMA_EXT_MR_DEEP. */
uint64_t vg_pdir_new_deep(struct vguest *g, const uint64_t *pages, uint32_t n);
void vg_pdir_free_deep(struct vguest *g, uint64_t top, uint32_t n);

/* ---- device ---- */

uint32_t vg_reg_read(struct vguest *g, uint32_t reg);
int vg_reg_write(struct vguest *g, uint32_t reg, uint32_t value);
int vg_write_dsr(struct vguest *g, uint64_t gpa); /* DSRLOW, DSRHIGH, ERR */

/* Ring a doorbell in the style of g->opts.db. */
void vg_doorbell(struct vguest *g, uint32_t page, uint32_t offset, uint32_t value);
/* The same through the shared region / as a message, whatever the style. */
void vg_doorbell_shared(struct pvrdma_db_region *db, int eventfd, uint32_t page,
                        uint32_t offset, uint32_t value);

/* Interrupt: wait for vector @vec; returns the eventfd's count, 0 on time-out. */
uint64_t vg_irq_wait(struct vguest *g, unsigned vec, int timeout_ms);

/*
 * Run the command at @req (its header's response cookie is filled in).
 * @resp NULL: the driver would not wait for a response.
 */
int vg_command(struct vguest *g, void *req, size_t req_len, void *resp, size_t resp_len);

int vg_query_port(struct vguest *g, uint8_t port, struct pvrdma_port_attr *a);
int vg_query_pkey(struct vguest *g, uint8_t index, uint16_t *pkey);
int vg_create_uc(struct vguest *g, uint64_t pfn, uint32_t *handle);
int vg_create_uc_ext(struct vguest *g, uint64_t pfn, uint64_t pdir, uint32_t features,
                     uint32_t *handle, uint32_t *granted);
int vg_create_pd(struct vguest *g, uint32_t ctx, uint32_t *handle);
/* Fields of @req other than the header are the caller's. */
int vg_create_mr(struct vguest *g, struct pvrdma_cmd_create_mr *req,
                 struct pvrdma_resp_create_mr *resp);
int vg_create_cq(struct vguest *g, struct pvrdma_cmd_create_cq *req,
                 struct pvrdma_resp_create_cq *resp);
int vg_create_qp(struct vguest *g, struct pvrdma_cmd_create_qp *req,
                 struct pvrdma_resp_create_qp *resp);
int vg_modify_qp(struct vguest *g, uint32_t handle, uint32_t mask,
                 const struct pvrdma_qp_attr *attr);
int vg_query_qp(struct vguest *g, uint32_t handle, struct pvrdma_qp_attr *attr);
int vg_bind_gid(struct vguest *g, uint32_t index, const struct pvrdma_gid *gid);
int vg_unbind_gid(struct vguest *g, uint32_t index, const struct pvrdma_gid *gid);
int vg_move_cq(struct vguest *g, struct pvrdma_ext_cmd_move_cq *req);
/* As of ibv_modify_cq: 0 or as vg_move_cq. */
int vg_moderate(struct vguest *g, uint32_t cq, unsigned count, unsigned period_us);
/* Of one QP; @resp may be NULL. */
int vg_query_qp_counters(struct vguest *g, uint32_t handle,
                         struct pvrdma_ext_resp_qp_counters *resp);
/* The device's clock. */
uint64_t vg_query_clock(struct vguest *g);
int vg_create_srq(struct vguest *g, struct pvrdma_cmd_create_srq *req, uint32_t *handle);
int vg_modify_srq(struct vguest *g, uint32_t handle, uint32_t mask, uint32_t limit);
int vg_query_srq(struct vguest *g, uint32_t handle, struct pvrdma_srq_attr *attr);
struct vg_mw;
/* @type: PVRDMA_EXT_MW_TYPE_*. */
int vg_create_mw(struct vguest *g, uint32_t pd, uint32_t type, struct vg_mw *w);
/* DESTROY_PD, _MR, _CQ, _QP, _SRQ, _UC, _MW. */
int vg_destroy(struct vguest *g, enum pvrdma_cmd cmd, uint32_t handle);

/* Next async event / CQ notification off the ring; false: none. */
bool vg_event_poll(struct vguest *g, struct pvrdma_eqe *ev);
bool vg_cqn_poll(struct vguest *g, uint32_t *cq_handle);
/* The same of a further completion vector's ring. */
bool vg_cqn_take(struct vg_buf *ring, uint32_t *cq_handle);
/* Wait for this event; others met on the way are kept for later calls. */
bool vg_event_wait(struct vguest *g, uint32_t type, uint32_t info, int timeout_ms);
/* Wait until a notification for @cq_handle is there (others are dropped). */
bool vg_cqn_wait(struct vguest *g, uint32_t cq_handle, int timeout_ms);

/* GID of VM @vm: the IPv4-mapped form of 10.0.0.(vm + 1). */
struct pvrdma_gid vg_gid(unsigned vm);

/* ---- verbs ---- */

struct vg_pd {
    struct vguest *g;
    uint32_t handle;
    uint32_t uar_page;
    uint32_t ctx;
};

struct vg_mr {
    struct vg_pd *pd;
    struct vg_buf *buf;
    uint32_t handle, lkey, rkey;
    uint64_t pdir;
};

/* A memory window. */
struct vg_mw {
    struct vguest *g;
    uint32_t handle, rkey;
};

struct vg_cq {
    struct vguest *g;
    uint32_t handle, n; /* entries, a power of two */
    uint32_t uar_page;
    struct vg_buf *mem;
    uint64_t pdir;
    bool ext;                              /* extended: words in lines of their own */
    uint32_t *prod_tail, *cons_head, *arm; /* in guest memory */
    /* Taken from the rings before this one; polled first. */
    struct pvrdma_cqe *left;
    uint32_t left_at, n_left;
    GSList *old; /* of struct vg_buf: the memory of these rings */
};

/* All zero: 64 WRs and 4 SGEs each way. */
struct vg_qp_opts {
    uint32_t send_wr, recv_wr, send_sge, recv_sge;
    bool sq_sig_all;
    uint8_t type;        /* 0: RC */
    bool contig;         /* ring pages in one run: cheaper for thousands of QPs */
    bool stock;          /* not extended, though the context is */
    uint32_t max_inline; /* extended QPs only; bytes */
    struct vg_srq *srq;  /* it receives there */
};

struct vg_wq {
    uint32_t n, wqe_size, first;     /* first: byte offset of slot 0 in mem */
    uint32_t *prod_tail, *cons_head; /* in guest memory */
    uint32_t head;                   /* cons_head when it was last read */
    const uint32_t *no_notify;       /* NULL: not an extended QP's */
};

struct vg_srq {
    struct vg_pd *pd;
    struct vguest *g;
    uint32_t handle, max_sge;
    struct vg_buf *mem;
    uint64_t pdir;
    struct vg_wq rq;
};

struct vg_qp {
    struct vg_pd *pd;
    struct vguest *g;
    struct vg_cq *scq, *rcq;
    uint32_t handle, qpn;
    struct vg_qp_opts opts;
    struct vg_buf *mem;
    uint64_t pdir;
    struct vg_wq sq, rq;
};

struct vg_wr {
    uint64_t wr_id;
    uint32_t opcode; /* enum pvrdma_wr_opcode */
    uint32_t flags;  /* PVRDMA_SEND_* */
    uint32_t imm;    /* BE; or the key to invalidate */
    uint64_t remote_addr;
    uint32_t rkey;
    uint64_t compare_add, swap;
    struct pvrdma_fast_reg reg; /* of a FAST_REG */
    struct pvrdma_bind_mw bind; /* of a BIND_MW */
    uint32_t nsge;
    const struct pvrdma_sge *sge;
    /* With PVRDMA_SEND_INLINE on an extended QP: the bytes, in place of SGEs. */
    const void *inline_data;
    uint32_t inline_len;
    /* Not NULL: a datagram, to this address. */
    const struct pvrdma_av *av;
    uint32_t remote_qpn, remote_qkey;
};

/* Attributes of a connection; all zero: the defaults in brackets. */
struct vg_conn {
    uint8_t timeout;                           /* [14: 67 ms] */
    uint8_t retry_cnt;                         /* [7] */
    uint8_t rnr_retry;                         /* [7: for ever] */
    uint8_t min_rnr_timer;                     /* [1: 10 us] */
    uint8_t max_rd_atomic, max_dest_rd_atomic; /* [16] */
    uint32_t access;                           /* [all remote rights] */
    uint8_t sgid_index;
    bool zero_counts; /* take retry_cnt, rnr_retry, rd_atomic literally */
};

#define VG_ACCESS_ALL                                         \
    (PVRDMA_ACCESS_LOCAL_WRITE | PVRDMA_ACCESS_REMOTE_WRITE | \
     PVRDMA_ACCESS_REMOTE_READ | PVRDMA_ACCESS_REMOTE_ATOMIC)

struct vg_pd *vg_pd_new(struct vguest *g);        /* in the default context */
struct vg_pd *vg_pd_new_kernel(struct vguest *g); /* rings UAR page 0 */
void vg_pd_free(struct vg_pd *pd);

/* Register @buf; the MR takes it over. */
struct vg_mr *vg_mr_new(struct vg_pd *pd, struct vg_buf *buf, uint32_t access);
/* New scattered buffer of @len at @va, registered. */
struct vg_mr *vg_mr_alloc(struct vg_pd *pd, uint64_t va, uint64_t len, uint32_t access);
/* A DMA MR: SGE addresses are guest-physical. */
struct vg_mr *vg_mr_new_dma(struct vg_pd *pd);
/*
 * For fast registration, with room for @max pages, of a kernel's PD: it has no key yet.
 * Takes @buf over, whose pages its list names.
 */
struct vg_mr *vg_mr_new_fast(struct vg_pd *pd, struct vg_buf *buf, uint32_t max);
/* The WR that registers all of its buffer; the key gets a new low byte in @mr. */
struct vg_wr vg_wr_fast_reg(struct vg_mr *mr, uint64_t wr_id, uint32_t access);
void vg_mr_free(struct vg_mr *mr);
/* The WR that binds @w, which gets its next key, to @len bytes of @mr. */
struct vg_wr vg_wr_bind(struct vg_mw *w, uint64_t wr_id, const struct vg_mr *mr,
                        uint64_t off, uint64_t len, uint32_t access);
struct pvrdma_sge vg_sge(const struct vg_mr *mr, uint64_t offset, uint32_t len);
/*
 * WRs with one SGE, which stays the caller's: without remote memory; with that of @rkey
 * at
 * @addr; with that of @mr; a datagram.
 */
struct vg_wr vg_wr_of(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge);
struct vg_wr vg_wr_at(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge, uint64_t addr, uint32_t rkey);
struct vg_wr vg_wr_to(uint64_t wr_id, uint32_t opcode, uint32_t flags,
                      const struct pvrdma_sge *sge, const struct vg_mr *mr,
                      uint64_t offset);
struct vg_wr vg_wr_datagram(uint64_t wr_id, uint32_t flags, const struct pvrdma_sge *sge,
                            const struct pvrdma_av *av, uint32_t qpn, uint32_t qkey);
#define VG_MR_HOST(mr, off) ((mr)->buf->host + (off))

struct vg_cq *vg_cq_new(struct vg_pd *pd, uint32_t cqe);
struct vg_cq *vg_cq_new_vector(struct vg_pd *pd, uint32_t cqe, uint32_t vector);
/* @flags: of CREATE_CQ's `reserved`, but OBJ_RING. */
struct vg_cq *vg_cq_new_flags(struct vg_pd *pd, uint32_t cqe, uint32_t flags);
/*
 * Another ring, of @cqe entries.  The old one's memory is scribbled over, and when the CQ
 * is freed that is still there.  0 or as vg_move_cq.
 */
int vg_cq_resize(struct vg_cq *cq, uint32_t cqe);
void vg_cq_free(struct vg_cq *cq);
/* Take up to @max completions; returns how many, or -EINVAL when the producer
 * index is invalid (the driver stops there). */
int vg_cq_poll(struct vg_cq *cq, struct pvrdma_cqe *cqe, int max);
/* Wait for one completion. */
bool vg_cq_wait(struct vg_cq *cq, struct pvrdma_cqe *cqe, int timeout_ms);
void vg_cq_arm(struct vg_cq *cq, bool solicited_only);

struct vg_qp *vg_qp_new(struct vg_pd *pd, struct vg_cq *scq, struct vg_cq *rcq,
                        const struct vg_qp_opts *opts);
void vg_qp_free(struct vg_qp *qp); /* DESTROY_QP, then the memory */

/* ADD_VECTOR; 0 or as vg_command(). */
int vg_add_vector(struct vguest *g, uint32_t vector, uint64_t pdir, uint32_t npages);
/* As vg_modify_qp(), and what is usual on the way to a peer's address; all must succeed.
 */
void vg_qp_modify(struct vg_qp *qp, uint32_t mask, const struct pvrdma_qp_attr *a);
void vg_qp_to_init(struct vg_qp *qp, const struct vg_conn *c);
void vg_qp_to_rtr(struct vg_qp *qp, const struct pvrdma_gid *dgid, uint32_t dqpn,
                  uint32_t rq_psn, const struct vg_conn *c);
void vg_qp_to_rts(struct vg_qp *qp, uint32_t sq_psn, const struct vg_conn *c);
/* All three. */
void vg_qp_reset_to_rts(struct vg_qp *qp, const struct pvrdma_gid *dgid, uint32_t dqpn,
                        uint32_t rq_psn, uint32_t sq_psn, const struct vg_conn *c);
void vg_qp_to_state(struct vg_qp *qp, enum pvrdma_qp_state state); /* no more */
/* RESET: also clears the guest's own ring state, as the driver does. */
void vg_qp_to_reset(struct vg_qp *qp);
/*
 * A UD or GSI QP: RESET to RTS with @qkey.  And an address handle of @pd, from the GID
 * at @gid_index to @dgid.
 */
void vg_ud_to_rts(struct vg_qp *qp, uint32_t qkey);
struct pvrdma_av vg_av(const struct vg_pd *pd, uint8_t gid_index,
                       const struct pvrdma_gid *dgid);
/* Bring both from RESET to RTS; @a == @b connects a QP to itself. */
void vg_qp_connect(struct vg_qp *a, struct vg_qp *b, const struct vg_conn *c);
enum pvrdma_qp_state vg_qp_state(struct vg_qp *qp); /* asks the device */

/* Put up to @n WQEs in the ring and ring once; returns how many fitted. */
unsigned vg_post_send(struct vg_qp *qp, const struct vg_wr *wr, unsigned n);
unsigned vg_post_recv(struct vg_qp *qp, const struct vg_wr *wr, unsigned n);
/* The same without the doorbell. */
unsigned vg_queue_send(struct vg_qp *qp, const struct vg_wr *wr, unsigned n);
unsigned vg_queue_recv(struct vg_qp *qp, const struct vg_wr *wr, unsigned n);
void vg_ring_send(struct vg_qp *qp);
void vg_ring_recv(struct vg_qp *qp);
/* @stock: not extended, though the context is. */
struct vg_srq *vg_srq_new(struct vg_pd *pd, uint32_t wr, uint32_t sge, bool stock);
void vg_srq_free(struct vg_srq *srq); /* DESTROY_SRQ, then the memory */
/* As for a QP's receive queue. */
unsigned vg_post_srq(struct vg_srq *srq, const struct vg_wr *wr, unsigned n);
unsigned vg_queue_srq(struct vg_srq *srq, const struct vg_wr *wr, unsigned n);
void vg_ring_srq(struct vg_srq *srq);

/* Slot of ring index @idx, to write rubbish into. */
void *vg_wqe(struct vg_qp *qp, struct vg_wq *wq, uint32_t idx);

/* Nanoseconds of CLOCK_MONOTONIC. */
int64_t vg_now_ns(void);
/*
 * @n milliseconds by the kernel's clock, as so many by this program's (tests/clock): for
 * what must come, and takes a busy machine a while.  Also rounds that each sleep.
 */
int vg_patience(int n);

#endif /* VGUEST_H */
