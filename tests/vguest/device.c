/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A virtual guest's device: attaching as a VMM does, then registers, shared
 * region, command channel and event rings as the guest driver uses them.
 */
#include "vguest.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pvrdma-doorbell.h"
#include "pvrdma-eventfd.h"

#define MIB (1024ull * 1024)

struct pvrdma_gid vg_gid(unsigned vm)
{
    struct pvrdma_gid gid = {{0}};

    gid.raw[10] = gid.raw[11] = 0xff;
    gid.raw[12] = 10;
    gid.raw[14] = (vm + 1) >> 8;
    gid.raw[15] = (vm + 1) & 0xff;
    return gid;
}

/* ---- attach ---- */

struct vguest *vguest_open(struct vg_daemon *d, unsigned vm, const struct vg_opts *opts)
{
    struct vguest *g = g_new0(struct vguest, 1);

    g->d = d;
    g->index = vm;
    if (opts) {
        g->opts = *opts;
    }
    if (!g->opts.low_size) {
        g->opts.low_size = 64 * MIB;
    }
    if (!g->opts.high_size) {
        g->opts.high_size = 64 * MIB;
    }
    g->sock = -1;
    g->db_eventfd = -1;
    g->gid = vg_gid(vm);
    g_mutex_init(&g->msg_lock);
    g_mutex_init(&g->ram_lock);
    g_mutex_init(&g->cmd_lock);
    g_queue_init(&g->events);
    g->rand = g_rand_new_with_seed(g->opts.seed ? g->opts.seed : 7 + vm);

    g->ram_size = g->opts.low_size + g->opts.high_size;
    g->memfd = memfd_create("vguest-ram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    g_assert_cmpint(g->memfd, >=, 0);
    g_assert_cmpint(ftruncate(g->memfd, g->ram_size), ==, 0);
    g_assert_cmpint(
        fcntl(g->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==, 0);
    g->ram = mmap(NULL, g->ram_size, PROT_READ | PROT_WRITE, MAP_SHARED, g->memfd, 0);
    g_assert_true((void *)g->ram != MAP_FAILED);
    g->n_pages = g->ram_size / PVRDMA_PAGE_SIZE;
    g->page_used = g_malloc0(g->n_pages);
    g->page_used[0] = 1; /* gpa 0 stays free: 0 means "none" in many places */
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        g->irq[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        g_assert_cmpint(g->irq[i], >=, 0);
    }
    return g;
}

/* Ask for a region as a careful client does: twice if capabilities exist. */
static int region_info(struct vguest *g, uint32_t index, struct vg_reply *r,
                       struct vfio_user_region_info *info)
{
    uint32_t argsz = sizeof(*info);

    for (;;) {
        struct vfio_user_region_info req = {.argsz = argsz, .index = index};
        int err = vg_request(g, VFIO_USER_DEVICE_GET_REGION_INFO, 0, &req, sizeof(req),
                             NULL, 0, r);

        if (err) {
            return err;
        }
        g_assert_cmpuint(r->len, >=, sizeof(*info));
        g_assert_cmpuint(r->len, <=, argsz);
        memcpy(info, r->data, sizeof(*info));
        if (info->argsz <= argsz) {
            return 0;
        }
        g_assert_cmpuint(argsz, ==, sizeof(*info));
        argsz = info->argsz;
        vg_reply_clear(r);
    }
}

static void drop_doorbells(struct vguest *g)
{
    if (g->db) {
        munmap(g->db, PVRDMA_DB_REGION_SIZE);
        g->db = NULL;
    }
    if (g->db_eventfd >= 0) {
        close(g->db_eventfd);
        g->db_eventfd = -1;
    }
}

static int map_doorbells(struct vguest *g)
{
    struct vfio_user_region_info info;
    struct vg_reply r;
    int err = region_info(g, PVRDMA_DB_REGION_INDEX, &r, &info);

    if (err) {
        return err;
    }
    g_assert_cmpuint(info.size, ==, PVRDMA_DB_REGION_SIZE);
    g_assert_cmpuint(info.flags & VFIO_USER_REGION_FLAG_MMAP, !=, 0);
    g_assert_cmpuint(r.nfds, ==, 1);
    g->db =
        mmap(NULL, info.size, PROT_READ | PROT_WRITE, MAP_SHARED, r.fds[0], info.offset);
    g_assert_true((void *)g->db != MAP_FAILED);
    g_assert_cmpuint(g->db->magic, ==, PVRDMA_DB_MAGIC);
    g_assert_cmpuint(g->db->version, ==, PVRDMA_DB_VERSION);
    vg_reply_clear(&r);
    return 0;
}

static int take_kick_fd(struct vguest *g)
{
    struct vfio_user_region_io_fds req = {
        .argsz = sizeof(req) + sizeof(struct vfio_user_io_fd),
        .index = VFIO_USER_REGION_BAR2,
    };
    static GMutex lock; /* of the set-up, for which QEMU has its big one */
    struct vg_reply r;
    int err = vg_request(g, VFIO_USER_DEVICE_GET_REGION_IO_FDS, 0, &req, sizeof(req),
                         NULL, 0, &r);

    if (err) {
        return err;
    }
    g_mutex_lock(&lock);
    g_assert_true(pvrdma_eventfd_setup());
    g_mutex_unlock(&lock);
    g_assert_cmpuint(r.nfds, ==, 1);
    g->db_eventfd = r.fds[0];
    r.fds[0] = -1;
    vg_reply_clear(&r);
    return 0;
}

static int get_infos(struct vguest *g)
{
    static const uint64_t want[] = {
        PVRDMA_BAR_MSIX_SIZE, PVRDMA_BAR_REG_SIZE, 0, 0, 0, 0};
    struct vfio_user_device_info di = {.argsz = sizeof(di)};
    struct vg_reply r;
    int err = vg_request(g, VFIO_USER_DEVICE_GET_INFO, 0, &di, sizeof(di), NULL, 0, &r);

    if (err) {
        return err;
    }
    g_assert_cmpuint(r.len, ==, sizeof(di));
    memcpy(&di, r.data, sizeof(di));
    vg_reply_clear(&r);
    g_assert_cmpuint(di.num_regions, >=, 9);
    g_assert_cmpuint(di.num_irqs, >=, 3);
    for (uint32_t i = 0; i < 6; i++) {
        struct vfio_user_region_info info;

        err = region_info(g, i, &r, &info);
        if (err) {
            return err;
        }
        vg_reply_clear(&r);
        if (i != PVRDMA_BAR_UAR) {
            g_assert_cmpuint(info.size, ==, want[i]);
        } else {
            g_assert_cmpuint(info.size, >=, 2 * PVRDMA_PAGE_SIZE);
        }
    }
    return 0;
}

int vg_attach(struct vguest *g)
{
    const uint32_t rw = VG_DMA_RW;
    int err = vg_version(g);

    err = err ? err : vg_dma_map(g, g->memfd, 0, 0, g->opts.low_size, rw);
    err = err ? err
              : vg_dma_map(g, g->memfd, g->opts.low_size, VG_HIGH_GPA, g->opts.high_size,
                           rw);
    err = err ? err : get_infos(g);
    if (!err && (g->opts.db == VG_DB_SHARED || g->opts.db == VG_DB_EXT)) {
        drop_doorbells(g);
        err = map_doorbells(g);
        err = err ? err : take_kick_fd(g);
    }
    err =
        err ? err
            : vg_set_irqs(g, VG_IRQ_EVENTFDS, 0, PVRDMA_NUM_VEC, g->irq, PVRDMA_NUM_VEC);
    return err ? err : vg_bus_master(g, true);
}

/* ---- registers ---- */

uint32_t vg_reg_read(struct vguest *g, uint32_t reg)
{
    uint32_t value = 0xffffffff;

    if (vg_region_read(g, PVRDMA_BAR_REG, reg, &value, sizeof(value))) {
        return 0xffffffff;
    }
    return value;
}

int vg_reg_write(struct vguest *g, uint32_t reg, uint32_t value)
{
    return vg_region_write(g, PVRDMA_BAR_REG, reg, &value, sizeof(value),
                           g->opts.post_regs);
}

int vg_write_dsr(struct vguest *g, uint64_t gpa)
{
    int err = vg_reg_write(g, PVRDMA_REG_DSRLOW, (uint32_t)gpa);

    err = err ? err : vg_reg_write(g, PVRDMA_REG_DSRHIGH, gpa >> 32);
    return err ? err : (int)vg_reg_read(g, PVRDMA_REG_ERR);
}

/* ---- doorbells ---- */

/* As QEMU's BAR2 does, by QEMU's code. */
void vg_doorbell_shared(struct pvrdma_db_region *db, int eventfd, uint32_t page,
                        uint32_t offset, uint32_t value)
{
    PVRDMADoorbell doorbell = {.region = db, .eventfd = eventfd};

    g_assert_true(pvrdma_doorbell_ring(
        &doorbell, (uint64_t)page * PVRDMA_PAGE_SIZE + offset, value));
}

static void ext_set_bit(struct vguest *g, struct pvrdma_ext_map *map, uint32_t page,
                        uint32_t value, uint32_t kind)
{
    uint32_t handle = value & PVRDMA_UAR_HANDLE_MASK;

    __atomic_fetch_or(&map->words[handle / 64], 1ull << (handle % 64), __ATOMIC_RELEASE);
    __atomic_fetch_or(&map->summary[handle / 4096], 1ull << (handle / 64 % 64),
                      __ATOMIC_RELEASE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (__atomic_load_n(&g->ext->head.kick, __ATOMIC_RELAXED)) {
        vg_doorbell_shared(g->db, g->db_eventfd, page, PVRDMA_UAR_QP, handle | kind);
    }
}

void vg_doorbell(struct vguest *g, uint32_t page, uint32_t offset, uint32_t value)
{
    if (g->ext && page == g->uar_page && offset == PVRDMA_UAR_QP) {
        if (value & PVRDMA_UAR_QP_SEND) {
            ext_set_bit(g, &g->ext->send, page, value, PVRDMA_UAR_QP_SEND);
        }
        if (value & PVRDMA_UAR_QP_RECV) {
            ext_set_bit(g, &g->ext->recv, page, value, PVRDMA_UAR_QP_RECV);
        }
    } else if (g->opts.db == VG_DB_SHARED || g->opts.db == VG_DB_EXT) {
        vg_doorbell_shared(g->db, g->db_eventfd, page, offset, value);
    } else {
        vg_region_write(g, PVRDMA_BAR_UAR, (uint64_t)page * PVRDMA_PAGE_SIZE + offset,
                        &value, sizeof(value), g->opts.db == VG_DB_POSTED);
    }
}

/* ---- interrupts and event rings ---- */

uint64_t vg_irq_wait(struct vguest *g, unsigned vec, int timeout_ms)
{
    struct pollfd p = {.fd = g->irq[vec], .events = POLLIN};
    int64_t deadline = vg_now_ns() + timeout_ms * 1000000ll;
    uint64_t count;

    for (;;) {
        int64_t left = deadline - vg_now_ns();

        if (read(g->irq[vec], &count, sizeof(count)) == sizeof(count)) {
            return count;
        }
        if (left <= 0) {
            return 0;
        }
        poll(&p, 1, left / 1000000 + 1);
    }
}

/* The driver's consumer, with its n that is no power of two. */
static bool ring_take(struct vg_buf *mem, uint32_t n, uint32_t elem, void *out)
{
    struct pvrdma_ring *ring = &((struct pvrdma_ring_state *)mem->host)->rx;
    uint32_t tail = __atomic_load_n(&ring->prod_tail, __ATOMIC_ACQUIRE);
    uint32_t head = ring->cons_head;

    g_assert_true(pvrdma_idx_valid(tail, n));
    g_assert_true(pvrdma_idx_valid(head, n));
    if (tail == head) {
        return false;
    }
    memcpy(out, mem->host + PVRDMA_PAGE_SIZE + pvrdma_idx_slot(head, n) * elem, elem);
    __atomic_store_n(&ring->cons_head, pvrdma_idx_next(head, n), __ATOMIC_RELEASE);
    return true;
}

bool vg_event_poll(struct vguest *g, struct pvrdma_eqe *ev)
{
    return ring_take(g->async_ring, VG_ASYNC_N, sizeof(*ev), ev);
}

bool vg_cqn_take(struct vg_buf *ring, uint32_t *cq_handle)
{
    return ring_take(ring, VG_CQN_N, sizeof(*cq_handle), cq_handle);
}

bool vg_cqn_poll(struct vguest *g, uint32_t *cq_handle)
{
    return vg_cqn_take(g->cqn_ring, cq_handle);
}

bool vg_event_wait(struct vguest *g, uint32_t type, uint32_t info, int timeout_ms)
{
    int64_t deadline = vg_now_ns() + timeout_ms * 1000000ll;

    for (GList *l = g->events.head; l; l = l->next) {
        struct pvrdma_eqe *ev = l->data;

        if (ev->type == type && ev->info == info) {
            g_free(ev);
            g_queue_delete_link(&g->events, l);
            return true;
        }
    }
    for (;;) {
        struct pvrdma_eqe ev;
        int64_t left;

        while (vg_event_poll(g, &ev)) {
            if (ev.type == type && ev.info == info) {
                return true;
            }
            g_queue_push_tail(&g->events, g_memdup2(&ev, sizeof(ev)));
        }
        left = deadline - vg_now_ns();
        if (left <= 0) {
            return false;
        }
        vg_irq_wait(g, PVRDMA_VEC_ASYNC, left / 1000000 + 1);
    }
}

bool vg_cqn_wait(struct vguest *g, uint32_t cq_handle, int timeout_ms)
{
    int64_t deadline = vg_now_ns() + timeout_ms * 1000000ll;

    for (;;) {
        uint32_t handle;
        int64_t left;

        while (vg_cqn_poll(g, &handle)) {
            if (handle == cq_handle) {
                return true;
            }
        }
        left = deadline - vg_now_ns();
        if (left <= 0) {
            return false;
        }
        vg_irq_wait(g, PVRDMA_VEC_CQ, left / 1000000 + 1);
    }
}

/* ---- bring-up and end ---- */

static uint64_t make_ring(struct vguest *g, struct vg_buf **mem)
{
    *mem = vg_buf_new(g, 0, VG_RING_PAGES * PVRDMA_PAGE_SIZE, VG_SCATTERED);
    return vg_pdir_new(g, (*mem)->page, VG_RING_PAGES);
}

void vg_setup_dsr(struct vguest *g)
{
    struct pvrdma_dsr *dsr;

    if (!g->dsr) {
        g->dsr_gpa = vg_alloc_page(g);
        g->dsr = vg_ptr(g, g->dsr_gpa);
        g->cmd_gpa = vg_alloc_page(g);
        g->cmd_slot = vg_ptr(g, g->cmd_gpa);
        g->resp_gpa = vg_alloc_page(g);
        g->resp_slot = vg_ptr(g, g->resp_gpa);
        g->async_pdir = make_ring(g, &g->async_ring);
        g->cqn_pdir = make_ring(g, &g->cqn_ring);
    }
    dsr = g->dsr;
    dsr->driver_version = PVRDMA_VERSION;
    dsr->gos_info = 2 | 1 << 2 | 1 << 6; /* 64 bits, Linux, version 1 */
    dsr->cmd_slot_dma = g->cmd_gpa;
    dsr->resp_slot_dma = g->resp_gpa;
    dsr->async_ring.num_pages = VG_RING_PAGES;
    dsr->async_ring.pdir_dma = g->async_pdir;
    dsr->cq_ring.num_pages = VG_RING_PAGES;
    dsr->cq_ring.pdir_dma = g->cqn_pdir;
    dsr->uar_pfn = VG_UAR_PFN;
    memset(&dsr->caps, 0, sizeof(dsr->caps));
    memset(g->async_ring->host, 0, g->async_ring->len);
    memset(g->cqn_ring->host, 0, g->cqn_ring->len);
}

/* The default context with extension memory, as our driver makes it. */
static int ext_context(struct vguest *g)
{
    uint32_t granted = 0;
    int err;

    if (vg_reg_read(g, PVRDMA_EXT_REG_MAGIC) != PVRDMA_EXT_MAGIC ||
        (vg_reg_read(g, PVRDMA_EXT_REG_FEATURES) & PVRDMA_EXT_CONTEXT_FEATURES) !=
            PVRDMA_EXT_CONTEXT_FEATURES) {
        return -ENOTSUP;
    }
    if (!g->ext_buf) {
        g->ext_buf = vg_buf_new(g, 0, PVRDMA_EXT_PAGES * PVRDMA_PAGE_SIZE, VG_SCATTERED);
        g->ext_pdir = vg_pdir_new(g, g->ext_buf->page, PVRDMA_EXT_PAGES);
    }
    memset(g->ext_buf->host, 0, g->ext_buf->len);
    err = vg_create_uc_ext(g, VG_UAR_PFN + g->uar_page, g->ext_pdir,
                           PVRDMA_EXT_CONTEXT_FEATURES, &g->uctx, &granted);
    if (err) {
        return err;
    }
    g_assert_cmpuint(granted, ==, PVRDMA_EXT_CONTEXT_FEATURES);
    g->ext = (struct pvrdma_ext_mem *)g->ext_buf->host;
    return 0;
}

int vg_bring_up(struct vguest *g)
{
    int err;

    if (vg_reg_read(g, PVRDMA_REG_VERSION) != PVRDMA_VERSION) {
        return -EPROTO;
    }
    vg_setup_dsr(g);
    err = vg_write_dsr(g, g->dsr_gpa);
    if (err) {
        return err;
    }
    /* What the driver insists on. */
    g_assert_cmpuint(g->dsr->caps.mode, ==, 0);
    g_assert_true(g->dsr->caps.gid_types == PVRDMA_GID_TYPE_ROCE_V1 ||
                  g->dsr->caps.gid_types == PVRDMA_GID_TYPE_ROCE_V2);
    err = vg_reg_write(g, PVRDMA_REG_IMR, 0);
    err = err ? err : vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_ACTIVATE);
    err = err ? err : (int)vg_reg_read(g, PVRDMA_REG_ERR);
    if (err) {
        return err;
    }
    g->uar_page = 1;
    err = g->opts.db == VG_DB_EXT ? ext_context(g)
                                  : vg_create_uc(g, VG_UAR_PFN + g->uar_page, &g->uctx);
    err = err ? err : vg_bind_gid(g, 0, &g->gid);
    g->up = !err;
    return err;
}

int vg_attach_again(struct vguest *g, int timeout_ms)
{
    int64_t deadline = vg_now_ns() + vg_patience(timeout_ms) * 1000000ll;
    int err;

    for (;;) {
        err = vg_connect(g);
        err = err ? err : vg_attach(g);
        if ((err != -EPIPE && err != -ECONNREFUSED) || vg_now_ns() > deadline) {
            return err;
        }
        vg_disconnect(g);
        g_usleep(2000);
    }
}

struct vguest *vguest_new(struct vg_daemon *d, unsigned vm, const struct vg_opts *opts)
{
    struct vguest *g = vguest_open(d, vm, opts);

    g_assert_cmpint(vg_attach_again(g, 5000), ==, 0);
    g_assert_cmpint(vg_bring_up(g), ==, 0);
    return g;
}

static void release(struct vguest *g)
{
    struct pvrdma_eqe *ev;

    vg_disconnect(g);
    vg_buf_free(g->async_ring);
    vg_buf_free(g->cqn_ring);
    vg_buf_free(g->ext_buf);
    while ((ev = g_queue_pop_head(&g->events))) {
        g_free(ev);
    }
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        close(g->irq[i]);
    }
    drop_doorbells(g);
    munmap(g->ram, g->ram_size);
    close(g->memfd);
    g_free(g->page_used);
    g_rand_free(g->rand);
    g_mutex_clear(&g->msg_lock);
    g_mutex_clear(&g->ram_lock);
    g_mutex_clear(&g->cmd_lock);
    g_free(g);
}

void vguest_free(struct vguest *g)
{
    if (!g) {
        return;
    }
    if (g->sock >= 0) {
        vg_reg_write(g, PVRDMA_REG_IMR, 0xffffffff);
        vg_reg_write(g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
        vg_bus_master(g, false);
        vg_set_irqs(g, VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_TRIGGER, 0, 0, NULL,
                    0);
        vg_dma_unmap(g, 0, g->opts.low_size);
        vg_dma_unmap(g, VG_HIGH_GPA, g->opts.high_size);
    }
    release(g);
}

void vguest_crash(struct vguest *g)
{
    release(g);
}
