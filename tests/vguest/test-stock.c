/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: the habits of a stock VMM.  Replays what QEMU's own vfio-user
 * client sends from connect to unplug: pipelined DMA maps, region queries and
 * config reads, ROM probe, reset before the first run, memory reshuffles of the
 * firmware, MSI-X enabled with no vector, eventfds swapped for every mask,
 * register and doorbell writes that are posted unless a region can be mapped,
 * bursts of doorbells, and an end in the order of a reboot or an unplug.
 *
 * Each reply is checked against what that client has room for: longer ones it
 * drops without reading, and the stream is lost.
 */
#include "vgtest.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#define HDR sizeof(struct vfio_user_hdr)
#define MEG (1ull << 20)

struct stock {
    struct vguest *g;
    bool mmap_seen;            /* then nothing is posted */
    uint32_t msix_cap, af_cap; /* offsets in config space */
    int spare[PVRDMA_NUM_VEC]; /* the eventfds of masked vectors */
};

/* One command and its reply, which may take @max bytes with its header. */
static void ask(struct stock *s, uint16_t cmd, const void *data, size_t len,
                const int *fds, unsigned nfds, size_t max, struct vg_reply *r)
{
    struct vg_reply own;
    int err = vg_request(s->g, cmd, 0, data, len, fds, nfds, r ? r : &own);

    g_assert_cmpint(err, ==, 0);
    g_assert_cmpuint((r ? r : &own)->hdr.size, <=, max);
    if (!r) {
        g_assert_cmpuint(own.nfds, ==, 0);
        vg_reply_clear(&own);
    }
}

static uint32_t cfg_read(struct stock *s, uint32_t off, uint32_t count)
{
    uint32_t v = 0;

    g_assert_cmpint(vg_region_read(s->g, VFIO_USER_REGION_CONFIG, off, &v, count), ==, 0);
    return v;
}

static void cfg_write(struct stock *s, uint32_t off, uint32_t v, uint32_t count)
{
    g_assert_cmpint(vg_region_write(s->g, VFIO_USER_REGION_CONFIG, off, &v, count, false),
                    ==, 0);
}

static void version(struct stock *s)
{
    static const char json[] =
        "{\"capabilities\": {\"max_msg_fds\": 16, \"max_data_xfer_size\": "
        "1048576, \"pgsizes\": 4096, \"max_dma_maps\": 65535, \"migration\": "
        "{\"pgsize\": 4096, \"max_bitmap_size\": 268435456}, "
        "\"write_multiple\": true}}";
    uint8_t msg[4 + sizeof(json)] = {0};
    struct vg_reply r;

    memcpy(msg + 4, json, sizeof(json));
    ask(s, VFIO_USER_VERSION, msg, sizeof(msg), NULL, 0, HDR + sizeof(msg), &r);
    g_assert_cmpuint(r.data[r.len - 1], ==, 0);
    /* Without this member the client would take its own "true" for ours. */
    g_assert_nonnull(strstr((char *)r.data + 4, "\"write_multiple\""));
    g_assert_nonnull(strstr((char *)r.data + 4, "false"));
    vg_reply_clear(&r);
}

/* ---- memory ---- */

struct piece {
    uint64_t gpa, size;
    bool ram; /* else no descriptor: ROM or another device's BAR */
    bool readonly;
};

static const struct piece board[] = {
    {0, 0xc0000, true, false},          {0xc0000, 0x10000, false, true},
    {0xd0000, 0x10000, true, true},     {0xe0000, 0x20000, true, false},
    {0x100000, 63 * MEG, true, false},  {0xfd000000, 16 * MEG, false, false},
    {0xfffc0000, 0x40000, false, true}, {VG_HIGH_GPA, 64 * MEG, true, false},
};

static uint64_t piece_offset(struct vguest *g, const struct piece *p)
{
    return p->gpa < VG_HIGH_GPA ? p->gpa : p->gpa - VG_HIGH_GPA + g->opts.low_size;
}

/* Send without waiting; the replies are taken by collect(). */
static void send_map(struct stock *s, const struct piece *p, bool map)
{
    struct vguest *g = s->g;
    struct {
        struct vfio_user_hdr h;
        union {
            struct vfio_user_dma_map map;
            struct vfio_user_dma_unmap unmap;
        } u;
    } m = {.h = {.id = g->next_id++}};

    m.h.command = map ? VFIO_USER_DMA_MAP : VFIO_USER_DMA_UNMAP;
    m.h.size = HDR + (map ? sizeof(m.u.map) : sizeof(m.u.unmap));
    if (map) {
        m.u.map = (struct vfio_user_dma_map){.argsz = sizeof(m.u.map),
                                             .flags = p->readonly ? 1 : 3,
                                             .offset = p->ram ? piece_offset(g, p) : 0,
                                             .addr = p->gpa,
                                             .size = p->size};
    } else {
        m.u.unmap = (struct vfio_user_dma_unmap){
            .argsz = sizeof(m.u.unmap), .addr = p->gpa, .size = p->size};
    }
    g_assert_cmpint(vg_raw_send(g->sock, &m, m.h.size, &g->memfd, map && p->ram), ==, 0);
}

/* @n replies, in order, the last with the last id. */
static void collect(struct stock *s, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        struct vg_reply r;

        g_assert_cmpint(vg_raw_recv(s->g->sock, &r, 5000), ==, 0);
        g_assert_cmpuint(r.hdr.id, ==, (uint16_t)(s->g->next_id - n + i));
        g_assert_cmpuint(r.hdr.flags & VFIO_USER_ERROR, ==, 0);
        g_assert_cmpuint(r.hdr.size, <=, 48);
        vg_reply_clear(&r);
    }
}

static void map_board(struct stock *s, bool map)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(board); i++) {
        send_map(s, &board[i], map);
    }
    collect(s, G_N_ELEMENTS(board));
}

/* The firmware copies ROMs to RAM: windows below 1 MiB change hands. */
static void reshuffle(struct stock *s, unsigned times)
{
    for (unsigned t = 0; t < times; t++) {
        for (unsigned i = 1; i < 4; i++) {
            send_map(s, &board[i], false);
        }
        for (unsigned i = 1; i < 4; i++) {
            struct piece p = board[i];

            p.readonly = t & 1 ? board[i].readonly : false;
            send_map(s, &p, true);
        }
        collect(s, 6);
    }
}

/* ---- realize ---- */

static void get_region(struct stock *s, uint32_t index)
{
    struct vfio_user_region_info info;
    uint32_t argsz = sizeof(info);
    struct vg_reply r;

    for (unsigned i = 0; i < 2; i++) {
        info = (struct vfio_user_region_info){.argsz = argsz, .index = index};
        ask(s, VFIO_USER_DEVICE_GET_REGION_INFO, &info, sizeof(info), NULL, 0,
            HDR + argsz, &r);
        g_assert_cmpuint(r.nfds, <=, 1);
        memcpy(&info, r.data, sizeof(info));
        vg_reply_clear(&r);
        if (info.flags & VFIO_USER_REGION_FLAG_MMAP) {
            s->mmap_seen = true;
        }
        if (!(info.flags & VFIO_USER_REGION_FLAG_CAPS)) {
            break;
        }
        g_assert_cmpuint(info.cap_offset, >=, sizeof(info));
        g_assert_cmpuint(info.cap_offset, <=, info.argsz);
        argsz = info.argsz;
    }
    if (index < 6) {
        g_assert_cmpuint(info.size & (info.size - 1), ==, 0);
    } else if (index == VFIO_USER_REGION_CONFIG) {
        g_assert_true(info.size == 256 || info.size == 4096);
    }
}

static struct vfio_user_irq_info get_irq(struct stock *s, uint32_t index, bool may_fail)
{
    struct vfio_user_irq_info i = {.argsz = sizeof(i), .index = index};
    struct vg_reply r;
    int err =
        vg_request(s->g, VFIO_USER_DEVICE_GET_IRQ_INFO, 0, &i, sizeof(i), NULL, 0, &r);

    if (err) {
        g_assert_true(may_fail);
        i.count = 0;
        return i;
    }
    g_assert_cmpuint(r.hdr.size, <=, 32);
    memcpy(&i, r.data, sizeof(i));
    vg_reply_clear(&r);
    return i;
}

static void rom_probe(struct stock *s)
{
    uint32_t old = cfg_read(s, 0x30, 4);

    cfg_write(s, 0x30, 0xfffff800, 4);
    g_assert_cmpuint(cfg_read(s, 0x30, 4), ==, 0);
    cfg_write(s, 0x30, old, 4);
}

static uint8_t find_cap(const uint8_t *config, uint8_t id)
{
    uint8_t at = config[0x34];

    g_assert_cmpuint(config[6] & 0x10, !=, 0);
    for (unsigned steps = 0; at && config[at] != id; steps++) {
        g_assert_cmpuint(at & 3, ==, 0);
        g_assert_cmpuint(steps, <, 48);
        at = config[at + 1];
    }
    g_assert_cmpuint(at, !=, 0);
    return at;
}

static void find_msix(struct stock *s, const uint8_t *config)
{
    uint8_t at = find_cap(config, 0x11);
    struct vfio_user_irq_info irq;

    s->msix_cap = at;
    s->af_cap = find_cap(config, 0x13);
    g_assert_cmpuint(cfg_read(s, at + 2, 2) & 0x7ff, >=, PVRDMA_NUM_VEC - 1);
    g_assert_cmpuint(cfg_read(s, at + 4, 4), ==, PVRDMA_BAR_MSIX);
    g_assert_cmpuint(cfg_read(s, at + 8, 4), ==, PVRDMA_BAR_MSIX | PVRDMA_BAR_MSIX_PBA);
    irq = get_irq(s, VFIO_USER_IRQ_MSIX, false);
    g_assert_cmpuint(irq.count, >=, PVRDMA_NUM_VEC);
    /* Bit 3, NORESIZE, would make it drop interrupts while vectors grow. */
    g_assert_cmpuint(irq.flags, ==, VFIO_USER_IRQ_FLAG_EVENTFD);
}

static void realize(struct stock *s)
{
    struct vfio_user_device_info di = {.argsz = sizeof(di)};
    uint8_t config[256];
    struct vg_reply r;

    version(s);
    map_board(s, true);
    ask(s, VFIO_USER_DEVICE_GET_INFO, &di, sizeof(di), NULL, 0, 32, &r);
    memcpy(&di, r.data, sizeof(di));
    vg_reply_clear(&r);
    g_assert_cmpuint(di.flags & VFIO_USER_DEVICE_FLAG_PCI, !=, 0);
    g_assert_cmpuint(di.num_regions, >=, 8);
    g_assert_cmpuint(di.num_regions, <=, 100);
    g_assert_cmpuint(di.num_irqs, >=, 3);
    g_assert_cmpuint(di.num_irqs, <=, 50);
    for (uint32_t i = 0; i <= 7; i++) {
        if (i != VFIO_USER_REGION_ROM) {
            get_region(s, i);
        }
    }
    get_irq(s, VFIO_USER_IRQ_ERR, true);
    g_assert_cmpint(
        vg_region_read(s->g, VFIO_USER_REGION_CONFIG, 0, config, sizeof(config)), ==, 0);
    g_assert_cmpuint(config[0] | config[1] << 8, ==, PVRDMA_PCI_VENDOR);
    g_assert_cmpuint(config[2] | config[3] << 8, ==, PVRDMA_PCI_DEVICE);
    rom_probe(s);
    for (uint32_t i = 0; i < 3; i++) {
        cfg_read(s, 0x10 + 4 * i, 4);
    }
    find_msix(s, config);
    g_assert_cmpuint(cfg_read(s, 0x3d, 1), ==, 0);
}

/* ---- a running machine ---- */

static void set_irq(struct stock *s, uint32_t start, uint32_t count, const int *fd)
{
    g_assert_cmpint(vg_set_irqs(s->g, VG_IRQ_EVENTFDS, start, count, fd, fd ? count : 0),
                    ==, 0);
}

static void msix_enable(struct stock *s)
{
    cfg_write(s, s->msix_cap + 2, 0xc002, 2); /* enabled, all masked */
    g_assert_cmpuint(cfg_read(s, s->msix_cap + 2, 2) & 0xc000, ==, 0xc000);
    set_irq(s, 0, 1, NULL); /* "on, but no vector yet" */
    for (uint32_t i = 0; i < PVRDMA_NUM_VEC; i++) {
        set_irq(s, i, 1, &s->spare[i]);
    }
    cfg_write(s, s->msix_cap + 2, 0x8002, 2);
    for (uint32_t i = 0; i < PVRDMA_NUM_VEC; i++) {
        set_irq(s, i, 1, &s->g->irq[i]);
    }
}

static void msix_disable(struct stock *s, bool config)
{
    if (config) {
        cfg_write(s, s->msix_cap + 2, 0x0002, 2);
    }
    for (uint32_t i = 0; i < PVRDMA_NUM_VEC; i++) {
        set_irq(s, i, 1, &s->spare[i]);
    }
    g_assert_cmpint(vg_set_irqs(s->g,
                                VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_TRIGGER, 0,
                                0, NULL, 0),
                    ==, 0);
    cfg_read(s, 0x3d, 1);
}

static void machine_reset(struct stock *s)
{
    uint32_t cmd = cfg_read(s, 4, 2);

    cfg_write(s, 4, cmd & ~0x0407u, 2);
    ask(s, VFIO_USER_DEVICE_RESET, NULL, 0, NULL, 0, HDR, NULL);
    cfg_read(s, 0x3d, 1);
    for (uint32_t i = 0; i < 6; i++) {
        cfg_write(s, 0x10 + 4 * i, 0, 4);
    }
    s->g->up = false;
}

/* Firmware, then the operating system, size and place the BARs. */
static void place_bars(struct stock *s)
{
    for (uint32_t i = 0; i < 3; i++) {
        cfg_write(s, 0x10 + 4 * i, 0xffffffff, 4);
        cfg_write(s, 0x10 + 4 * i, 0xfe000000 + i * 0x400000, 4);
    }
    reshuffle(s, 20);
    cfg_write(s, 4, 0x0003, 2);
    cfg_write(s, 4, 0x0407, 2);
    g_assert_cmpuint(cfg_read(s, 4, 2) & 0x0407, ==, 0x0407);
}

/* A doorbell as this client would send it. */
static void ring(struct stock *s, uint32_t off, uint32_t value)
{
    g_assert_cmpint(vg_region_write(s->g, PVRDMA_BAR_UAR,
                                    s->g->uar_page * PVRDMA_PAGE_SIZE + off, &value, 4,
                                    !s->mmap_seen),
                    ==, 0);
}

/* One behind the other. */
static void ring_often(struct stock *s, uint32_t off, uint32_t value)
{
    for (unsigned i = 0; i < 200; i++) {
        ring(s, off, value);
    }
}

static void poll_until(struct stock *s, struct vg_cq *cq, uint64_t wr_id)
{
    struct pvrdma_cqe c;

    /* Driver and library ring POLL at each empty poll. */
    while (vg_cq_poll(cq, &c, 1) == 0) {
        ring(s, PVRDMA_UAR_CQ, cq->handle | PVRDMA_UAR_CQ_POLL);
    }
    g_assert_cmpuint(c.status, ==, PVRDMA_WC_SUCCESS);
    g_assert_cmpuint(c.wr_id, ==, wr_id);
}

static struct vgt_side open_objects(struct stock *s)
{
    struct vgt_side side = {.g = s->g};

    side.pd = vg_pd_new(s->g);
    side.scq = vg_cq_new(side.pd, 256);
    side.rcq = vg_cq_new(side.pd, 256);
    side.qp = vg_qp_new(side.pd, side.scq, side.rcq, NULL);
    side.mr = vg_mr_alloc(side.pd, 0x7f0000001234, 1 << 20, VG_ACCESS_ALL);
    vg_qp_connect(side.qp, side.qp, NULL);
    return side;
}

static void close_objects(struct vgt_side *side)
{
    vg_mr_free(side->mr);
    vg_qp_free(side->qp);
    vg_cq_free(side->scq);
    vg_cq_free(side->rcq);
    vg_pd_free(side->pd);
}

static void traffic(struct stock *s)
{
    struct vgt_side side = open_objects(s);

    for (unsigned i = 0; i < 300; i++) {
        vgt_fill(VG_MR_HOST(side.mr, 0), 20000, i);
        vgt_recv(&side, i, 300000, 20000);
        if (i % 50 == 49) {
            /* The CQ's vector is masked and unmasked in between. */
            vg_cq_arm(side.rcq, false);
            set_irq(s, PVRDMA_VEC_CQ, 1, &s->spare[PVRDMA_VEC_CQ]);
            set_irq(s, PVRDMA_VEC_CQ, 1, &s->g->irq[PVRDMA_VEC_CQ]);
        }
        vgt_send(&side, i, PVRDMA_WR_SEND, VGT_SIG, 0, 20000, NULL, 0);
        if (i % 50 == 49) {
            g_assert_cmpuint(vg_irq_wait(s->g, PVRDMA_VEC_CQ, VGT_WAIT_MS), >, 0);
        } else if (i % 50 == 10) {
            ring_often(s, PVRDMA_UAR_QP, side.qp->handle | PVRDMA_UAR_QP_SEND);
        }
        poll_until(s, side.rcq, i);
        poll_until(s, side.scq, i);
        vgt_check(VG_MR_HOST(side.mr, 300000), 20000, i);
    }
    close_objects(&side);
}

/* Odd accesses inside BARs: all are answered. */
static void odd_accesses(struct stock *s)
{
    static const uint32_t sizes[] = {1, 2, 4, 8};
    uint64_t v = 0;

    for (uint32_t bar = 0; bar < 3; bar++) {
        for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
            for (uint64_t off = 0x40; off < 0x48; off++) {
                g_assert_cmpint(vg_region_read(s->g, bar, off, &v, sizes[i]), >=, 0);
            }
        }
    }
    /* Pending bits: the client asks us, and must not see an error. */
    g_assert_cmpint(vg_region_read(s->g, PVRDMA_BAR_MSIX, PVRDMA_BAR_MSIX_PBA, &v, 8), ==,
                    0);
    g_assert_cmpuint(v, ==, 0);
}

static void driver_life(struct stock *s)
{
    msix_enable(s);
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    odd_accesses(s);
    traffic(s);
    /* Unload: posted, if the client posts at all. */
    vg_reg_write(s->g, PVRDMA_REG_IMR, 0xffffffff);
    vg_reg_write(s->g, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    g_assert_cmpuint(vg_reg_read(s->g, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
}

/*
 * The guest resets the function under its own traffic, as Linux does: it saves config
 * space, asks, waits, and writes back what reads otherwise.  The client does not tell
 * us of MSI-X, which is on for it all the time.
 */
static void function_reset(struct stock *s)
{
    uint32_t command = cfg_read(s, 4, 2);
    struct vgt_side side;
    struct pvrdma_cqe c;

    msix_enable(s);
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    side = open_objects(s);
    for (unsigned i = 0; i < 50; i++) {
        vgt_send(&side, i, PVRDMA_WR_RDMA_WRITE, VGT_SIG, 0, 500000, &side, 500000);
    }
    g_assert_true(vg_cq_wait(side.scq, &c, VGT_WAIT_MS));
    cfg_write(s, s->af_cap + 4, 1, 1);
    vgt_assert_no_objects("vm0");
    g_assert_cmpuint(cfg_read(s, s->af_cap + 5, 1), ==, 0);
    g_assert_cmpuint(cfg_read(s, 4, 2), ==, 0);
    cfg_write(s, 4, command, 2);
    s->g->up = false;
    close_objects(&side);
    g_assert_cmpint(vg_bring_up(s->g), ==, 0);
    traffic(s);
}

static struct vguest *stock_open(struct stock *s)
{
    struct vg_opts o = {.db = VG_DB_POSTED};

    memset(s, 0, sizeof(*s));
    s->g = vguest_open(vgt_daemon, 0, &o);
    /* The firmware's windows are not for our own structures. */
    memset(s->g->page_used, 1, MEG / PVRDMA_PAGE_SIZE);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        s->spare[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    }
    return s->g;
}

static void stock_close(struct stock *s)
{
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        close(s->spare[i]);
    }
    vguest_crash(s->g); /* this client says no good-bye */
}

/* As the client decides by the regions it saw, and as if it had seen none that
 * can be mapped. */
static void test_replay(const void *data)
{
    bool force_posting = GPOINTER_TO_UINT(data);
    struct vg_usage before;
    struct stock s;

    vguest_free(vguest_new(vgt_daemon, 0, NULL)); /* what the first opens */
    vgt_usage_settled(&before);
    g_assert_cmpint(vg_connect(stock_open(&s)), ==, 0);
    realize(&s);
    if (force_posting) {
        s.mmap_seen = false;
    }
    s.g->opts.post_regs = !s.mmap_seen;
    if (s.mmap_seen) {
        s.g->opts.db = VG_DB_REPLY;
    }
    g_test_message("BAR writes are %s", s.mmap_seen ? "awaited" : "posted");
    machine_reset(&s);
    for (unsigned boot = 0; boot < 2; boot++) {
        place_bars(&s);
        driver_life(&s);
        driver_life(&s); /* driver reloaded */
        function_reset(&s);
        msix_disable(&s, true);
        machine_reset(&s);
    }
    /* Unplug. */
    place_bars(&s);
    msix_enable(&s);
    msix_disable(&s, false);
    map_board(&s, false);
    stock_close(&s);
    vgt_usage_returns(&before);
}

/* QEMU ends at any point of its life: nothing stays. */
static void test_exit_anywhere(void)
{
    struct vg_usage before;

    vgt_usage_settled(&before);
    for (unsigned step = 0; step < 8; step++) {
        struct stock s;

        stock_open(&s);
        for (unsigned i = 0;; i++) {
            /* The last one may not be gone yet. */
            struct vg_reply r;
            struct vfio_user_version v = {0, 0};

            g_assert_cmpint(vg_connect(s.g), ==, 0);
            if (step == 0 ||
                vg_request(s.g, VFIO_USER_VERSION, 0, &v, sizeof(v), NULL, 0, &r) == 0) {
                if (step) {
                    vg_reply_clear(&r);
                }
                break;
            }
            g_assert_cmpint((int)i, <, vg_patience(60000)); /* a minute */
            vg_disconnect(s.g);
            g_usleep(1000);
        }
        s.msix_cap = 0;
        if (step > 1) {
            map_board(&s, true);
        }
        if (step > 2) {
            uint8_t config[256];

            g_assert_cmpint(vg_region_read(s.g, VFIO_USER_REGION_CONFIG, 0, config, 256),
                            ==, 0);
            find_msix(&s, config);
            place_bars(&s);
        }
        if (step > 3) {
            msix_enable(&s);
        }
        if (step > 4) {
            g_assert_cmpint(vg_bring_up(s.g), ==, 0);
        }
        if (step > 5) {
            traffic(&s);
        }
        if (step > 6) {
            map_board(&s, false);
        }
        stock_close(&s);
    }
    vgt_usage_returns(&before);
}

/* All of RAM is @fd's from now on; -1: no descriptor. */
static void map_instead(struct vguest *g, int fd)
{
    vg_dma_unmap(g, 0, g->opts.low_size);
    vg_dma_unmap(g, VG_HIGH_GPA, g->opts.high_size);
    g_assert_cmpint(vg_dma_map(g, fd, 0, 0, g->opts.low_size, 3), ==, 0);
    g_assert_cmpint(vg_dma_map(g, fd, fd < 0 ? 0 : g->opts.low_size, VG_HIGH_GPA,
                               g->opts.high_size, 3),
                    ==, 0);
}

/*
 * RAM that this client does not share: with share=off the daemon gets the file that it
 * has a private mapping of, without a memory backend nothing.  The log says what to do.
 */
static void test_not_shared(void)
{
    /* Not the VM of the tests before, whose log lines may be used up. */
    struct vguest *g = vguest_new(vgt_daemon, 1, NULL);
    int fd = memfd_create("not-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(ftruncate(fd, (off_t)g->ram_size), ==, 0);
    g_assert_cmpint(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), ==,
                    0);
    g->up = false;
    map_instead(g, fd);
    g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), >, 0);
    vgt_wait_logged("vm vm1: the device shared region is empty");
    /* Once for each attachment: a guest could write it for ever. */
    vguest_free(g);
    g = vguest_new(vgt_daemon, 1, NULL);
    g->up = false;
    map_instead(g, -1);
    g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), >, 0);
    vgt_wait_logged("vm vm1: the device shared region is not in memory that the VMM");
    map_instead(g, g->memfd);
    g_assert_cmpint(vg_write_dsr(g, g->dsr_gpa), ==, 0);
    close(fd);
    vguest_free(g);
}

/* A thousand posted writes, then a read: it sees the last one. */
static void test_posted_order(void)
{
    struct vguest *g = vguest_new(vgt_daemon, 0, NULL);
    uint32_t v;

    for (uint32_t i = 1; i <= 1000; i++) {
        g_assert_cmpint(vg_region_write(g, PVRDMA_BAR_REG, PVRDMA_REG_IMR, &i, 4, true),
                        ==, 0);
    }
    g_assert_cmpint(vg_region_read(g, PVRDMA_BAR_REG, PVRDMA_REG_IMR, &v, 4), ==, 0);
    g_assert_cmpuint(v, ==, 1000);
    vguest_free(g);
}

int main(int argc, char **argv)
{
    vgt_init(&argc, &argv, 120);
    vgt_daemon = vg_daemon_start(NULL);
    g_test_add_data_func("/stock/replay/as-asked", GUINT_TO_POINTER(0), test_replay);
    g_test_add_data_func("/stock/replay/posted", GUINT_TO_POINTER(1), test_replay);
    g_test_add_func("/stock/exit-anywhere", test_exit_anywhere);
    g_test_add_func("/stock/posted-order", test_posted_order);
    g_test_add_func("/stock/not-shared", test_not_shared);
    return vgt_run();
}
