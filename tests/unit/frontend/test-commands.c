/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The vfio-user server's commands, one by one, with what a hostile or a merely
 * different client may put in them.
 */
#include "client.h"

#include "device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/pci_regs.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MSIX_CAP       0x40
#define AF_CAP         0x50
#define SET_ASSIGN     (VFIO_USER_IRQ_DATA_EVENTFD | VFIO_USER_IRQ_ACTION_TRIGGER)
#define SET_RAISE      (VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_TRIGGER)
#define SET_RAISE_SOME (VFIO_USER_IRQ_DATA_BOOL | VFIO_USER_IRQ_ACTION_TRIGGER)
#define SET_MASK       (VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_MASK)
#define SET_UNMASK     (VFIO_USER_IRQ_DATA_NONE | VFIO_USER_IRQ_ACTION_UNMASK)

static void setup(struct fixture *f, gconstpointer arg)
{
    fixture_setup(f, arg);
    client_attach(f);
}

static uint32_t read_config(struct fixture *f, uint64_t offset, uint32_t n)
{
    uint32_t v = 0;

    g_assert_cmpint(client_read(f->cl, VFIO_USER_REGION_CONFIG, offset, &v, n), ==, 0);
    return GUINT32_FROM_LE(v);
}

static void write_config(struct fixture *f, uint64_t offset, uint32_t v, uint32_t n)
{
    v = GUINT32_TO_LE(v);
    g_assert_cmpint(client_write(f->cl, VFIO_USER_REGION_CONFIG, offset, &v, n), ==, 0);
}

static void bus_master(struct fixture *f, bool on)
{
    write_config(f, PCI_COMMAND, PCI_COMMAND_MEMORY | (on ? PCI_COMMAND_MASTER : 0), 2);
}

/* ---- information ---- */

static void test_info(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_device_info info = {.argsz = sizeof(info)};
    struct vfio_user_irq_info irq = {.argsz = sizeof(irq)};

    client_ask(f->cl, VFIO_USER_DEVICE_GET_INFO, &info, sizeof(info), r);
    g_assert_cmpuint(r->len, ==, sizeof(info));
    memcpy(&info, r->body, sizeof(info));
    g_assert_cmpuint(info.argsz, ==, sizeof(info));
    g_assert_cmpuint(info.flags, ==, 3);
    g_assert_cmpuint(info.num_regions, ==, 10);
    g_assert_cmpuint(info.num_irqs, ==, 3);
    /* A byte too few, which is in the daemon's buffer from the last one. */
    client_refused(f->cl, VFIO_USER_DEVICE_GET_INFO, &info, sizeof(info) - 1);
    info.argsz = 15;
    client_refused(f->cl, VFIO_USER_DEVICE_GET_INFO, &info, sizeof(info));

    for (irq.index = 0; irq.index < 7; irq.index++) {
        int err = client_call(f->cl, VFIO_USER_DEVICE_GET_IRQ_INFO, &irq, sizeof(irq),
                              NULL, 0, r);

        g_assert_cmpint(err, ==, irq.index <= VFIO_USER_IRQ_MSIX ? 0 : EINVAL);
        if (!err) {
            struct vfio_user_irq_info out;

            g_assert_cmpuint(r->len, ==, sizeof(out));
            memcpy(&out, r->body, sizeof(out));
            g_assert_cmpuint(out.count, ==,
                             irq.index == VFIO_USER_IRQ_MSIX ? IRQ_VECTORS : 0);
            g_assert_cmpuint(out.flags, ==, irq.index == VFIO_USER_IRQ_MSIX ? 1 : 0);
        }
    }
}

static void check_caps(uint32_t index, const struct reply *r)
{
    struct vfio_user_cap_sparse sparse;
    struct vfio_user_cap_type type;

    if (index == VFIO_USER_REGION_BAR1) {
        memcpy(&sparse, r->body + 32, sizeof(sparse));
        g_assert_cmpuint(sparse.head.id, ==, VFIO_USER_CAP_SPARSE_MMAP);
        g_assert_cmpuint(sparse.head.version, ==, 1);
        g_assert_cmpuint(sparse.head.next, ==, 0);
        g_assert_cmpuint(sparse.nr_areas, ==, 0);
    } else {
        memcpy(&type, r->body + 32, sizeof(type));
        g_assert_cmpuint(type.head.id, ==, VFIO_USER_CAP_TYPE);
        g_assert_cmpuint(type.head.version, ==, 1);
        g_assert_cmpuint(type.head.next, ==, 0);
        g_assert_cmphex(type.type, ==, 0x800015ad);
        g_assert_cmpuint(type.subtype, ==, 1);
    }
}

/* Each index with each argsz: cut forms say how much it takes. */
static void test_region_info(struct fixture *f, gconstpointer arg)
{
    static const uint64_t size[10] = {0x4000, 0x1000, 0x200000, 0, 0,
                                      0,      0,      256,      0, PVRDMA_DB_REGION_SIZE};
    static const uint32_t argsz[] = {0, 8, 31, 32, 47, 48, 49, 4096, UINT32_MAX};
    g_autofree struct reply *r = g_new0(struct reply, 1);

    for (uint32_t i = 0; i <= 12; i++) {
        for (unsigned a = 0; a < G_N_ELEMENTS(argsz); a++) {
            struct vfio_user_region_info req = {.argsz = argsz[a], .index = i};
            struct vfio_user_region_info info;
            bool map = i == VFIO_USER_REGION_BAR1 || i == PVRDMA_DB_REGION_INDEX;
            int err = client_call(f->cl, VFIO_USER_DEVICE_GET_REGION_INFO, &req,
                                  sizeof(req), NULL, 0, r);

            g_assert_cmpint(err, ==, i < 10 && argsz[a] >= 32 ? 0 : EINVAL);
            if (err) {
                continue;
            }
            memcpy(&info, r->body, sizeof(info));
            g_assert_cmpuint(r->len, <=, argsz[a]);
            g_assert_cmpuint(info.argsz, ==, map ? 48 : 32);
            g_assert_cmpuint(r->len, ==, argsz[a] >= info.argsz ? info.argsz : 32);
            g_assert_cmpuint(info.index, ==, i);
            g_assert_cmpuint(info.size, ==, size[i]);
            g_assert_cmpuint(info.flags, ==, map ? 15 : size[i] ? 3 : 0);
            g_assert_cmpuint(info.cap_offset, ==, map ? 32 : 0);
            g_assert_cmpuint(r->nfds, ==, map ? 1 : 0);
            if (map) {
                close(r->fds[0]);
                if (r->len == 48) {
                    check_caps(i, r);
                }
            }
        }
    }
}

/* The doorbell region is what its descriptor and messages both reach. */
static void test_doorbell_region(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_region_info req = {.argsz = 64, .index = PVRDMA_DB_REGION_INDEX};
    struct pvrdma_db_region *db;
    uint64_t word = 0;
    struct stat st;
    char byte = 1;

    client_ask(f->cl, VFIO_USER_DEVICE_GET_REGION_INFO, &req, sizeof(req), r);
    g_assert_cmpuint(r->nfds, ==, 1);
    g_assert_cmpint(fstat(r->fds[0], &st), ==, 0);
    g_assert_cmpuint((uint64_t)st.st_size, ==, PVRDMA_DB_REGION_SIZE);
    g_assert_cmpint(ftruncate(r->fds[0], 4096), ==, -1);
    db = mmap(NULL, PVRDMA_DB_REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, r->fds[0],
              0);
    g_assert_true(db != MAP_FAILED);
    close(r->fds[0]);
    g_assert_cmphex(client_read32(f->cl, PVRDMA_DB_REGION_INDEX, 0), ==, PVRDMA_DB_MAGIC);

    db->bad_doorbells = 0x1122334455667788;
    g_assert_cmpint(client_read(f->cl, PVRDMA_DB_REGION_INDEX,
                                offsetof(struct pvrdma_db_region, bad_doorbells), &word,
                                8),
                    ==, 0);
    g_assert_cmphex(word, ==, 0x1122334455667788);
    word = 5;
    g_assert_cmpint(client_write(f->cl, PVRDMA_DB_REGION_INDEX,
                                 offsetof(struct pvrdma_db_region, writes), &word, 8),
                    ==, 0);
    g_assert_cmpuint(db->writes, ==, 5);
    g_assert_cmpint(
        client_write(f->cl, PVRDMA_DB_REGION_INDEX, PVRDMA_DB_REGION_SIZE - 1, &byte, 1),
        ==, 0);
    g_assert_cmpint(
        client_write(f->cl, PVRDMA_DB_REGION_INDEX, PVRDMA_DB_REGION_SIZE, &byte, 1), ==,
        EINVAL);
    g_assert_cmpint(
        client_read(f->cl, PVRDMA_DB_REGION_INDEX, PVRDMA_DB_REGION_SIZE - 4, &word, 8),
        ==, EINVAL);
    /* Any bit may be set there, for objects that do not exist, at any time. */
    memset(&db->send, 0xff, sizeof(db->send));
    memset(&db->recv, 0xff, sizeof(db->recv));
    memset(&db->srq, 0xff, sizeof(db->srq));
    memset(db->arm, 0xff, sizeof(db->arm));
    client_post(f->cl, PVRDMA_DB_REGION_INDEX, offsetof(struct pvrdma_db_region, kick),
                &byte, 1);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    munmap(db, PVRDMA_DB_REGION_SIZE);
}

static void test_io_fds(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_region_io_fds head;
    struct vfio_user_io_fd entry;
    uint64_t one = 1;

    for (uint32_t i = 0; i < 12; i++) {
        for (uint32_t argsz = 8; argsz <= 64; argsz += 8) {
            struct vfio_user_region_io_fds req = {.argsz = argsz, .index = i};
            int err = client_call(f->cl, VFIO_USER_DEVICE_GET_REGION_IO_FDS, &req,
                                  sizeof(req), NULL, 0, r);

            if (argsz < sizeof(req) || i > 9) {
                g_assert_cmpint(err, ==, EINVAL);
            } else if (i != VFIO_USER_REGION_BAR2) {
                g_assert_cmpint(err, ==, ENOTSUP);
            } else {
                memcpy(&head, r->body, sizeof(head));
                g_assert_cmpint(err, ==, 0);
                g_assert_cmpuint(head.argsz, ==, 56);
                g_assert_cmpuint(head.count, ==, 1);
                g_assert_cmpuint(r->len, ==, argsz < 56 ? 16 : 56);
                g_assert_cmpuint(r->nfds, ==, argsz < 56 ? 0 : 1);
            }
            if (r->nfds && !err) {
                memcpy(&entry, r->body + sizeof(head), sizeof(entry));
                g_assert_cmpuint(entry.offset, ==, 0);
                g_assert_cmpuint(entry.size, ==, 0x200000);
                g_assert_cmpuint(entry.fd_index, ==, 0);
                g_assert_cmpuint(entry.type, ==, VFIO_USER_IO_FD_IOEVENTFD);
                g_assert_cmpint(write(r->fds[0], &one, sizeof(one)), ==, sizeof(one));
                close(r->fds[0]);
            }
        }
    }
}

/* ---- regions ---- */

static void test_config(struct fixture *f, gconstpointer arg)
{
    static const uint32_t bar_size[6] = {0x4000, 0x1000, 0x200000};
    uint8_t all[256];
    uint8_t at;
    int steps;

    g_assert_cmpint(client_read(f->cl, VFIO_USER_REGION_CONFIG, 0, all, 256), ==, 0);
    g_assert_cmphex(read_config(f, 0, 4), ==, 0x082015ad);
    g_assert_cmphex(read_config(f, PCI_CLASS_REVISION, 4) >> 8, ==, 0x028000);
    g_assert_cmphex(read_config(f, PCI_SUBSYSTEM_VENDOR_ID, 4), ==, 0x11001af4);
    g_assert_cmphex(read_config(f, PCI_HEADER_TYPE, 1), ==, 0);
    g_assert_cmphex(read_config(f, PCI_INTERRUPT_PIN, 1), ==, 0);

    for (uint32_t i = 0; i < 6; i++) {
        write_config(f, PCI_BASE_ADDRESS_0 + 4 * i, 0xffffffff, 4);
        g_assert_cmphex(read_config(f, PCI_BASE_ADDRESS_0 + 4 * i, 4), ==,
                        bar_size[i] ? ~(bar_size[i] - 1) : 0);
        write_config(f, PCI_BASE_ADDRESS_0 + 4 * i, 0xfe200001, 4);
        g_assert_cmphex(read_config(f, PCI_BASE_ADDRESS_0 + 4 * i, 4), ==,
                        bar_size[i] ? 0xfe200000 : 0);
    }
    write_config(f, PCI_ROM_ADDRESS, 0xfffff800, 4);
    g_assert_cmphex(read_config(f, PCI_ROM_ADDRESS, 4), ==, 0);
    write_config(f, PCI_COMMAND, 0xffff, 2);
    g_assert_cmphex(read_config(f, PCI_COMMAND, 2), ==, 0x0547);
    g_assert_true(f->vm->dev->bus_master);
    write_config(f, PCI_COMMAND, 0x0002, 2);
    g_assert_cmphex(read_config(f, PCI_COMMAND, 2), ==, 0x0002);
    g_assert_false(f->vm->dev->bus_master);
    write_config(f, PCI_COMMAND + 1, 0xff, 1);
    write_config(f, PCI_COMMAND, 0x04, 1);
    g_assert_true(f->vm->dev->bus_master);
    write_config(f, PCI_STATUS, 0xffff, 2);
    g_assert_cmphex(read_config(f, PCI_STATUS, 2), ==, PCI_STATUS_CAP_LIST);
    write_config(f, 0, 0xffffffff, 4);
    g_assert_cmphex(read_config(f, 0, 4), ==, 0x082015ad);
    write_config(f, PCI_INTERRUPT_LINE, 0xffff, 2);
    g_assert_cmphex(read_config(f, PCI_INTERRUPT_LINE, 2), ==, 0x00ff);

    for (at = all[PCI_CAPABILITY_LIST], steps = 0; at; at = all[at + 1], steps++) {
        g_assert_cmpint(at & 3, ==, 0);
        g_assert_cmpint(at, >=, 0x40);
        g_assert_cmpint(steps, <, 2);
        g_assert_cmpint(all[at], ==, steps == 0 ? PCI_CAP_ID_MSIX : PCI_CAP_ID_AF);
    }
    g_assert_cmpint(steps, ==, 2);
    g_assert_cmphex(read_config(f, AF_CAP, 4), ==, 0x03060013);
    write_config(f, AF_CAP, 0xffffffff, 4);
    g_assert_cmphex(read_config(f, AF_CAP, 4), ==, 0x03060013);
    g_assert_cmphex(read_config(f, AF_CAP + PCI_AF_CTRL, 2), ==, 0);
    g_assert_cmphex(read_config(f, MSIX_CAP + PCI_MSIX_FLAGS, 2), ==, IRQ_VECTORS - 1);
    g_assert_cmphex(read_config(f, MSIX_CAP + PCI_MSIX_TABLE, 4), ==, 0);
    g_assert_cmphex(read_config(f, MSIX_CAP + PCI_MSIX_PBA, 4), ==, 0x2000);
    write_config(f, MSIX_CAP + PCI_MSIX_FLAGS, 0xffff, 2);
    g_assert_cmphex(read_config(f, MSIX_CAP + PCI_MSIX_FLAGS, 2), ==,
                    0xc000 | (IRQ_VECTORS - 1));
}

/* Every size and alignment, at the end, past it, in every region. */
static void test_region_access(struct fixture *f, gconstpointer arg)
{
    static const uint64_t size[12] = {0x4000, 0x1000, 0x200000, 0, 0,
                                      0,      0,      256,      0, PVRDMA_DB_REGION_SIZE};
    g_autofree uint8_t *data = g_malloc0(0x200001);
    struct vfio_user_region_rw rw = {0, 2, 0x100001};

    for (uint32_t region = 0; region < 12; region++) {
        for (uint32_t n = 0; n <= 17; n++) {
            for (uint64_t back = 0; back <= 20; back++) {
                uint64_t offset = size[region] - back;
                int want = n > 0 && n <= back && back <= size[region] ? 0 : EINVAL;

                g_assert_cmpint(client_read(f->cl, region, offset, data, n), ==, want);
                if (region <= 2 && n > 8) {
                    want = EINVAL;
                }
                g_assert_cmpint(client_write(f->cl, region, offset, data, n), ==, want);
            }
        }
        g_assert_cmpint(client_read(f->cl, region, UINT64_MAX, data, 4), ==, EINVAL);
        g_assert_cmpint(client_read(f->cl, region, UINT64_MAX - 3, data, 4), ==, EINVAL);
        g_assert_cmpint(client_write(f->cl, region, UINT64_MAX - 3, data, 4), ==, EINVAL);
    }
    g_assert_cmpint(client_read(f->cl, UINT32_MAX, 0, data, 4), ==, EINVAL);

    /* Bulk: up to the limit, and not beyond. */
    g_assert_cmpint(client_read(f->cl, 2, 0, data, 0x100000), ==, 0);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_REGION_READ, &rw, sizeof(rw)), ==, E2BIG);
    rw.count = UINT32_MAX;
    g_assert_cmpint(client_do(f->cl, VFIO_USER_REGION_READ, &rw, sizeof(rw)), ==, E2BIG);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_REGION_WRITE, &rw, sizeof(rw)), ==, E2BIG);
    /* count and data disagree. */
    rw = (struct vfio_user_region_rw){0, PVRDMA_DB_REGION_INDEX, 8};
    memcpy(data, &rw, sizeof(rw));
    client_refused(f->cl, VFIO_USER_REGION_WRITE, data, sizeof(rw) + 7);
    client_refused(f->cl, VFIO_USER_REGION_WRITE, data, sizeof(rw) + 9);
    client_refused(f->cl, VFIO_USER_REGION_WRITE, data, sizeof(rw));
}

static void test_registers(struct fixture *f, gconstpointer arg)
{
    uint64_t both = 0x1111222233334444, out = 0;
    uint8_t bytes[16];
    uint32_t v = 7;

    g_assert_cmpuint(client_read32(f->cl, 1, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    g_assert_cmpint(client_write(f->cl, 1, PVRDMA_REG_VERSION, &v, 4), ==, 0);
    g_assert_cmpuint(client_read32(f->cl, 1, PVRDMA_REG_VERSION), ==, PVRDMA_VERSION);
    /* Not aligned, or not whole words: nothing there, nothing happens. */
    g_assert_cmpint(client_read(f->cl, 1, 1, bytes, 4), ==, 0);
    g_assert_cmpmem(bytes, 4, "\xff\xff\xff\xff", 4);
    g_assert_cmpint(client_read(f->cl, 1, 0, bytes, 2), ==, 0);
    g_assert_cmpmem(bytes, 2, "\xff\xff", 2);
    g_assert_cmpint(client_write(f->cl, 1, PVRDMA_REG_IMR, &v, 1), ==, 0);
    g_assert_cmpuint(client_read32(f->cl, 1, PVRDMA_REG_IMR), ==, 0);
    /* Two at once, low one first. */
    g_assert_cmpint(client_write(f->cl, 1, PVRDMA_REG_DSRLOW, &both, 8), ==, 0);
    g_assert_cmphex(client_read32(f->cl, 1, PVRDMA_REG_DSRLOW), ==, 0x33334444);
    g_assert_cmphex(client_read32(f->cl, 1, PVRDMA_REG_DSRHIGH), ==, 0x11112222);
    g_assert_cmpint(client_read(f->cl, 1, PVRDMA_REG_DSRLOW, &out, 8), ==, 0);
    g_assert_cmphex(out, ==, both);
    /* BAR0 is storage as far as the table goes. */
    g_assert_cmpint(client_write(f->cl, 0, 16 * IRQ_VECTORS - 4, &both, 8), ==, 0);
    g_assert_cmpint(client_read(f->cl, 0, 16 * IRQ_VECTORS - 8, bytes, 16), ==, 0);
    g_assert_cmpmem(bytes, 16, "\0\0\0\0\x44\x44\x33\x33\0\0\0\0\0\0\0\0", 16);
    g_assert_cmphex(client_read32(f->cl, 0, 0x2000), ==, 0);
    /* Doorbells read as zero; those for nothing are counted. */
    v = PVRDMA_UAR_QP_SEND | 5;
    g_assert_cmpint(client_write(f->cl, 2, 0, &v, 4), ==, 0);
    g_assert_cmphex(client_read32(f->cl, 2, 0), ==, 0);
    g_assert_cmpuint(atomic_load(&f->vm->guest.db.bad), ==, 1);
}

/* ---- memory ---- */

static int map(struct fixture *f, const struct vfio_user_dma_map *m, int fd)
{
    g_autofree struct reply *r = g_new(struct reply, 1);

    return client_call(f->cl, VFIO_USER_DMA_MAP, m, sizeof(*m), &fd, fd >= 0, r);
}

static void test_dma(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 0x10000, 4 * PG};
    struct vfio_user_dma_unmap un = {sizeof(un), 0, 0x10000, 4 * PG};
    int fd = sealed_memfd(4 * PG), pipes[2];
    unsigned before = count_fds();

    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    g_assert_cmpint(map(f, &m, pipes[0]), ==, EPERM);
    g_assert_cmpint(map(f, &m, -1), ==, 0);
    g_assert_null(guest_ptr(&f->vm->guest.mem, 0x10000, 1, false));
    g_assert_cmpint(map(f, &m, fd), ==, EEXIST);
    client_ask(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un), r);
    g_assert_cmpmem(r->body, r->len, &un, sizeof(un));
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un)), ==, ENOENT);
    m.size = 5 * PG;
    g_assert_cmpint(map(f, &m, fd), ==, EINVAL);
    m.size = 4 * PG;
    m.argsz = 31;
    g_assert_cmpint(map(f, &m, fd), ==, EINVAL);
    m.argsz = 32;
    g_assert_cmpint(map(f, &m, fd), ==, 0);
    g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, 4 * PG, true));
    /* The daemon keeps one of the file, not the one that was sent. */
    expect_fds(before + 3);

    un.flags = 1;
    client_refused(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un));
    un.flags = 2;
    client_refused(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un));
    un.addr = un.size = 0;
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un)), ==, 0);
    g_assert_null(guest_ptr(&f->vm->guest.mem, 0x10000, 1, false));
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un)), ==, 0);
    un.flags = 0;
    client_refused(f->cl, VFIO_USER_DMA_UNMAP, &un, sizeof(un));
    close(fd);
    close(pipes[0]);
    close(pipes[1]);
}

/* ---- interrupts ---- */

static int set_irqs(struct fixture *f, uint32_t flags, uint32_t start, uint32_t count,
                    const int *fds, unsigned nfds, const void *data, uint32_t len)
{
    g_autofree struct reply *r = g_new(struct reply, 1);
    struct vfio_user_irq_set set = {
        .argsz = (uint32_t)sizeof(set) + len,
        .flags = flags,
        .index = VFIO_USER_IRQ_MSIX,
        .start = start,
        .count = count,
    };
    uint8_t body[64];

    memcpy(body, &set, sizeof(set));
    if (len) {
        memcpy(body + sizeof(set), data, len);
    }
    return client_call(f->cl, VFIO_USER_DEVICE_SET_IRQS, body,
                       (uint32_t)sizeof(set) + len, fds, nfds, r);
}

static void test_irqs(struct fixture *f, gconstpointer arg)
{
    int fd[4], pipes[2], mixed[2];

    for (unsigned i = 0; i < 4; i++) {
        fd[i] = eventfd(0, EFD_CLOEXEC);
    }
    g_assert_cmpint(pipe2(pipes, O_CLOEXEC), ==, 0);
    bus_master(f, true);
    /* "MSI-X on, no vector yet". */
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 3, fd, 3, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 2, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[0]), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 1);
    g_assert_cmpuint(eventfd_take(fd[2]), ==, 1);
    g_assert_cmpint(set_irqs(f, SET_RAISE_SOME, 0, 3, NULL, 0, "\1\0\7", 3), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[0]), ==, 1);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[2]), ==, 1);
    /* Masked: remembered once. */
    g_assert_cmpint(set_irqs(f, SET_MASK, 0, 3, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_UNMASK, 0, 3, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 1);
    /* Swapped, de-assigned and assigned again. */
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, 1, &fd[3], 1, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[3]), ==, 1);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, 1, &fd[1], 1, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[1]), ==, 1);
    /* Without bus mastering nothing leaves. */
    bus_master(f, false);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 0, 3, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[2]), ==, 0);
    bus_master(f, true);
    g_assert_cmpuint(eventfd_take(fd[2]), ==, 1);

    /* Refused, and nothing applied. */
    mixed[0] = fd[3];
    mixed[1] = pipes[0];
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 2, mixed, 2, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 2, fd, 1, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 2, fd, 3, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, IRQ_VECTORS - 2, 3, fd, 3, NULL, 0), ==,
                    EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, UINT32_MAX, 1, fd, 1, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, UINT32_MAX, NULL, 0, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, IRQ_VECTORS, 0, NULL, 0, NULL, 0), ==,
                    EINVAL);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 0, 1, fd, 1, "\0\0\0\0", 4), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 0, 1, fd, 1, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 0, NULL, 0, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_RAISE_SOME, 0, 3, NULL, 0, "\1\1", 2), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_MASK, 0, 0, NULL, 0, NULL, 0), ==, EINVAL);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 0, 1, NULL, 0, NULL, 0), ==, 0);
    g_assert_cmpuint(eventfd_take(fd[0]), ==, 2);
    g_assert_cmpuint(eventfd_take(fd[3]), ==, 0);

    /* All off. */
    g_assert_cmpint(set_irqs(f, SET_RAISE, 0, 0, NULL, 0, NULL, 0), ==, 0);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        g_assert_cmpint(atomic_load(&f->vm->guest.irq.vec[i].fd), ==, -1);
    }
    for (unsigned i = 0; i < 4; i++) {
        close(fd[i]);
    }
    close(pipes[0]);
    close(pipes[1]);
}

/* All combinations of flags; those that mean nothing are refused. */
static void test_irq_flags(struct fixture *f, gconstpointer arg)
{
    for (uint32_t flags = 0; flags < 128; flags++) {
        uint32_t data = flags & 7, action = flags & 0x38;
        bool valid = flags < 64 && data && action && !(data & (data - 1)) &&
                     !(action & (action - 1)) &&
                     (data != VFIO_USER_IRQ_DATA_EVENTFD ||
                      action == VFIO_USER_IRQ_ACTION_TRIGGER);
        uint32_t len = data == VFIO_USER_IRQ_DATA_BOOL ? 1 : 0;

        g_assert_cmpint(set_irqs(f, flags, 0, 1, NULL, 0, "\0", len), ==,
                        valid ? 0 : EINVAL);
    }
    for (uint32_t index = 0; index < 6; index++) {
        struct vfio_user_irq_set set = {sizeof(set), SET_RAISE, index, 0, 0};

        g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_SET_IRQS, &set, sizeof(set)),
                        ==, index <= VFIO_USER_IRQ_MSIX ? 0 : EINVAL);
        set.count = 1;
        g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_SET_IRQS, &set, sizeof(set)),
                        ==, index == VFIO_USER_IRQ_MSIX ? 0 : EINVAL);
    }
}

/* ---- reset, and what stock QEMU does from beginning to end ---- */

static void test_reset(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 0x10000, 4 * PG};
    int mem = sealed_memfd(4 * PG), fd = eventfd(0, EFD_CLOEXEC);
    uint32_t v = 1;

    g_assert_cmpint(map(f, &m, mem), ==, 0);
    bus_master(f, true);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, 1, &fd, 1, NULL, 0), ==, 0);
    g_assert_cmpint(client_write(f->cl, 1, PVRDMA_REG_DSRLOW, &v, 4), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_RAISE, 2, 1, NULL, 0, NULL, 0), ==, 0);
    for (int i = 0; i < 2; i++) {
        g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
        g_assert_cmpuint(client_read32(f->cl, 1, PVRDMA_REG_DSRLOW), ==, 0);
        g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, 4 * PG, true));
        g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
        g_assert_cmpuint(eventfd_take(fd), ==, 1);
    }
    g_assert_false(atomic_load(&f->vm->guest.irq.vec[2].pending));
    close(mem);
    close(fd);
}

/* Through configuration space: of that too nothing stays, and no DMA goes on. */
static void test_function_reset(struct fixture *f, gconstpointer arg)
{
    static const struct {
        uint32_t at, value, n;
        bool resets;
    } writes[] = {
        {AF_CAP + PCI_AF_CTRL, PCI_AF_CTRL_FLR, 1, true},
        {AF_CAP + PCI_AF_CTRL, PCI_AF_CTRL_FLR, 2, true},
        {AF_CAP + PCI_AF_CTRL, 0xffffffff, 4, true},
        {AF_CAP + PCI_AF_CAP, PCI_AF_CTRL_FLR << 8, 2, true},
        {AF_CAP + PCI_AF_CTRL, 0xfe, 1, false},
        {AF_CAP + PCI_AF_STATUS, 0xff, 1, false},
        {AF_CAP, 0xffffffff, 4, false},
    };
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 0x10000, 4 * PG};
    int mem = sealed_memfd(4 * PG), fd = eventfd(0, EFD_CLOEXEC);
    uint8_t first[256], now[256];

    g_assert_cmpint(client_read(f->cl, VFIO_USER_REGION_CONFIG, 0, first, sizeof(first)),
                    ==, 0);
    g_assert_cmpint(map(f, &m, mem), ==, 0);
    g_assert_cmpint(set_irqs(f, SET_ASSIGN, 1, 1, &fd, 1, NULL, 0), ==, 0);
    for (unsigned i = 0; i < G_N_ELEMENTS(writes); i++) {
        bool resets = writes[i].resets;
        uint32_t v = 7;

        bus_master(f, true);
        write_config(f, PCI_BASE_ADDRESS_1, 0xfe200000, 4);
        write_config(f, MSIX_CAP + PCI_MSIX_FLAGS, PCI_MSIX_FLAGS_ENABLE, 2);
        g_assert_cmpint(client_write(f->cl, 1, PVRDMA_REG_IMR, &v, 4), ==, 0);
        g_assert_cmpint(set_irqs(f, SET_RAISE, 2, 1, NULL, 0, NULL, 0), ==, 0);
        g_assert_true(atomic_load(&f->vm->guest.irq.vec[2].pending));

        write_config(f, writes[i].at, writes[i].value, writes[i].n);
        g_assert_cmpuint(client_read32(f->cl, 1, PVRDMA_REG_IMR), ==, resets ? 0 : 7);
        g_assert_cmpint(f->vm->dev->bus_master, ==, !resets);
        g_assert_cmpint(atomic_load(&f->vm->guest.irq.vec[2].pending), ==, !resets);
        g_assert_cmpint(client_read(f->cl, VFIO_USER_REGION_CONFIG, 0, now, sizeof(now)),
                        ==, 0);
        g_assert_cmpint(memcmp(first, now, sizeof(now)) == 0, ==, resets);
        /* What is the VMM's stays. */
        g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, 4 * PG, true));
        bus_master(f, true);
        g_assert_cmpint(set_irqs(f, SET_RAISE, 1, 1, NULL, 0, NULL, 0), ==, 0);
        g_assert_cmpuint(eventfd_take(fd), ==, 1);
    }
    close(mem);
    close(fd);
}

/* One step of the trace; false when `limit` steps were made. */
struct trace {
    struct fixture *f;
    struct reply *r;
    unsigned step, limit;
    int mem, event[PVRDMA_NUM_VEC];
};

static bool step(struct trace *t, unsigned cmd, const void *body, uint32_t len, int fd,
                 uint32_t max, int want)
{
    int err;

    if (t->step++ >= t->limit) {
        return false;
    }
    err = client_call(t->f->cl, cmd, body, len, &fd, fd >= 0, t->r);
    g_assert_cmpint(err, ==, want);
    g_assert_cmpuint(t->r->hdr.size, <=, max);
    for (unsigned i = 0; i < t->r->nfds; i++) {
        close(t->r->fds[i]);
    }
    return true;
}

static bool rd(struct trace *t, uint64_t offset, uint32_t n)
{
    struct vfio_user_region_rw rw = {offset, VFIO_USER_REGION_CONFIG, n};

    return step(t, VFIO_USER_REGION_READ, &rw, sizeof(rw), -1, 32 + n, 0);
}

static bool wr(struct trace *t, uint64_t offset, uint32_t v, uint32_t n)
{
    struct vfio_user_region_rw rw = {offset, VFIO_USER_REGION_CONFIG, n};
    uint8_t body[20];

    memcpy(body, &rw, sizeof(rw));
    memcpy(body + sizeof(rw), &v, n);
    return step(t, VFIO_USER_REGION_WRITE, body, (uint32_t)sizeof(rw) + n, -1, 32 + n, 0);
}

static bool irq(struct trace *t, uint32_t flags, uint32_t start, uint32_t count, int fd)
{
    struct vfio_user_irq_set set = {20, flags, VFIO_USER_IRQ_MSIX, start, count};

    return step(t, VFIO_USER_DEVICE_SET_IRQS, &set, sizeof(set), fd, 36, 0);
}

static bool dma(struct trace *t, bool on, uint64_t addr, uint64_t size, uint32_t flags,
                int fd)
{
    struct vfio_user_dma_map m = {32, flags, fd >= 0 ? addr : 0, addr, size};
    struct vfio_user_dma_unmap un = {24, 0, addr, size};

    return on ? step(t, VFIO_USER_DMA_MAP, &m, sizeof(m), fd, 48, 0)
              : step(t, VFIO_USER_DMA_UNMAP, &un, sizeof(un), -1, 40, 0);
}

static bool trace_realize(struct trace *t)
{
    struct vfio_user_device_info info = {.argsz = 16};
    struct vfio_user_irq_info irqs = {.argsz = 16, .index = 3};
    static const uint32_t index[] = {0, 1, 2, 3, 4, 5, 7};

    if (!dma(t, true, 0, 0xc0000, 3, t->mem) ||
        !dma(t, true, 0xc0000, 0x40000, 1, t->mem) ||
        !dma(t, true, 0x100000, 0x300000, 3, t->mem) ||
        !dma(t, true, 0xfd000000, 0x1000000, 3, -1) ||
        !dma(t, true, 0xfffc0000, 0x40000, 1, -1) ||
        !step(t, VFIO_USER_DEVICE_GET_INFO, &info, sizeof(info), -1, 32, 0)) {
        return false;
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(index); i++) {
        struct vfio_user_region_info req = {.argsz = 32, .index = index[i]};
        struct vfio_user_region_info *out = (void *)t->r->body;

        if (!step(t, VFIO_USER_DEVICE_GET_REGION_INFO, &req, sizeof(req), -1, 48, 0)) {
            return false;
        }
        if (out->argsz > 32) {
            g_assert_cmpuint(out->cap_offset, >=, 32);
            g_assert_cmpuint(out->cap_offset, <, out->argsz);
            req.argsz = out->argsz;
            if (!step(t, VFIO_USER_DEVICE_GET_REGION_INFO, &req, sizeof(req), -1,
                      16 + req.argsz, 0)) {
                return false;
            }
        }
    }
    if (!step(t, VFIO_USER_DEVICE_GET_IRQ_INFO, &irqs, sizeof(irqs), -1, 32, EINVAL) ||
        !rd(t, 0, 256) || !rd(t, 0x30, 4) || !wr(t, 0x30, 0xfffff800, 4) ||
        !rd(t, 0x30, 4) || !wr(t, 0x30, 0, 4)) {
        return false;
    }
    irqs.index = 2;
    return rd(t, 0x10, 4) && rd(t, 0x14, 4) && rd(t, 0x18, 4) && rd(t, 0x42, 2) &&
           rd(t, 0x44, 4) && rd(t, 0x48, 4) &&
           step(t, VFIO_USER_DEVICE_GET_IRQ_INFO, &irqs, sizeof(irqs), -1, 32, 0) &&
           rd(t, 0x3d, 1);
}

static bool trace_reset(struct trace *t)
{
    if (!rd(t, 4, 2) || !wr(t, 4, 0, 2) ||
        !step(t, VFIO_USER_DEVICE_RESET, NULL, 0, -1, 16, 0) || !rd(t, 0x3d, 1)) {
        return false;
    }
    for (uint32_t i = 0; i < 6; i++) {
        if (!wr(t, 0x10 + 4 * i, 0, 4)) {
            return false;
        }
    }
    return true;
}

static bool trace_boot(struct trace *t)
{
    /* Firmware sizes and places BARs, and shuffles the window below 1 MiB. */
    for (uint32_t i = 0; i < 3; i++) {
        if (!wr(t, 0x10 + 4 * i, 0xffffffff, 4) ||
            !wr(t, 0x10 + 4 * i, 0xfe000000 + i * 0x200000, 4)) {
            return false;
        }
    }
    if (!dma(t, false, 0xc0000, 0x40000, 0, -1) ||
        !dma(t, true, 0xc0000, 0x8000, 1, t->mem) ||
        !dma(t, true, 0xc8000, 0x4000, 3, t->mem) ||
        !dma(t, true, 0xcc000, 0x34000, 1, t->mem) || !wr(t, 4, 0x7, 2)) {
        return false;
    }
    /* The guest enables MSI-X and unmasks its vectors. */
    if (!wr(t, 0x42, 0xc002, 2) || !irq(t, 0x24, 0, 1, -1)) {
        return false;
    }
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        if (!irq(t, 0x24, i, 1, t->event[i]) || !irq(t, 0x24, i, 1, t->event[i])) {
            return false;
        }
    }
    return wr(t, 0x42, 0x8002, 2);
}

static bool trace_end(struct trace *t)
{
    return wr(t, 0x42, 0x0002, 2) && irq(t, 0x24, 0, 1, t->event[0]) &&
           irq(t, 0x21, 0, 0, -1) && rd(t, 0x3d, 1) && dma(t, false, 0, 0xc0000, 0, -1) &&
           dma(t, false, 0xc0000, 0x8000, 0, -1) &&
           dma(t, false, 0xc8000, 0x4000, 0, -1) &&
           dma(t, false, 0xcc000, 0x34000, 0, -1) &&
           dma(t, false, 0x100000, 0x300000, 0, -1) &&
           dma(t, false, 0xfd000000, 0x1000000, 0, -1) &&
           dma(t, false, 0xfffc0000, 0x40000, 0, -1);
}

/* The whole trace, and the connection cut off after each of its steps. */
static void test_stock_trace(struct fixture *f, gconstpointer arg)
{
    struct trace t = {.f = f, .r = g_new0(struct reply, 1), .mem = sealed_memfd(4 << 20)};
    unsigned limit = 0, base;
    bool whole;

    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        t.event[i] = eventfd(0, EFD_CLOEXEC);
    }
    client_close(f);
    base = count_fds();
    do {
        client_attach(f);
        t.step = 0;
        t.limit = limit++;
        whole = trace_realize(&t) && trace_reset(&t) && trace_boot(&t) &&
                trace_reset(&t) && trace_end(&t);
        client_close(f);
        expect_fds(base);
    } while (!whole);
    g_assert_cmpuint(limit, >, 70);
    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        close(t.event[i]);
    }
    close(t.mem);
    g_free(t.r);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name)                                                                     \
    g_test_add("/frontend/commands/" #name, struct fixture, NULL, setup, test_##name, \
               fixture_teardown)
    ADD(info);
    ADD(region_info);
    ADD(doorbell_region);
    ADD(io_fds);
    ADD(config);
    ADD(region_access);
    ADD(registers);
    ADD(dma);
    ADD(irqs);
    ADD(irq_flags);
    ADD(reset);
    ADD(function_reset);
    ADD(stock_trace);
    return g_test_run();
}
