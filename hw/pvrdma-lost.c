/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device after its daemon is gone.
 *
 * The device lives in the daemon; when that dies, its queue pairs are dead with
 * it.  What a guest must see then is a failed adapter, not a hang: its driver
 * is told by asynchronous events that the port went down and that the device
 * failed, commands fail at once (ERR reads nonzero), and other registers read
 * all-ones like those of hardware that was pulled out.  Two kinds of commands
 * are answered nevertheless: queries of the port, which is DOWN, so that tools
 * show that and not an I/O error, and the destruction of objects, which are
 * indeed gone, so that programs and the driver clean up without complaints.
 *
 * The address of the device shared region (DSR) is known because the guest's
 * write of it passed through BAR1.  Everything found there is the guest's word:
 * accesses are bounded, go to RAM only and as the device's DMA (so not without
 * bus mastering), and any nonsense ends the attempt.
 *
 * All offsets: pvrdma ABI, "Device shared region", "Rings", "Command channel",
 * "Port attributes".  All fields are little-endian.
 */
#include "qemu/osdep.h"
#include "qemu/bswap.h"
#include "hw/pci/pci_device.h"
#include "pvrdma.h"

#define PAGE_SIZE 4096u

/* Device shared region. */
#define DSR_CMD_SLOT    16
#define DSR_RESP_SLOT   24
#define DSR_ASYNC_PAGES 32
#define DSR_ASYNC_PDIR  40
#define DSR_GID_TBL_LEN (72 + 192)
#define DSR_MAX_PKEYS   (72 + 196)
#define DSR_SIZE        280

/* A ring's state page: what the device produced, what the guest has read. */
#define RING_PROD_TAIL 8
#define RING_CONS_HEAD 12

/* Pages a ring may have here: state page, and what one table can address. */
#define RING_MAX_PAGES 512

#define EVENT_SIZE         8
#define EVENT_DEVICE_FATAL 8
#define EVENT_PORT_ERR     10

#define CMD_QUERY_PORT   0
#define CMD_QUERY_PKEY   1
#define CMD_DESTROY_PD   3
#define CMD_DESTROY_MR   5
#define CMD_DESTROY_CQ   8
#define CMD_DESTROY_QP   12
#define CMD_DESTROY_UC   14
#define CMD_DESTROY_BIND 16
#define CMD_DESTROY_SRQ  20

#define RESP_ACK       8
#define RESP_ACK_FLAG  0x80000000u
#define RESP_BODY      16
#define RESP_PORT_SIZE 64
#define RESP_PKEY_SIZE 24

#define PORT_STATE_DOWN    1
#define PORT_MTU_4096      5
#define PORT_MTU_1024      3
#define PORT_WIDTH_4X      2
#define PORT_SPEED_SDR     1
#define PORT_PHYS_DISABLED 3

/* DMA that only reaches memory: a guest may put any address in its rings. */
static bool guest_rw(PVRDMADevice *s, uint64_t addr, void *buf, size_t len,
                     DMADirection dir)
{
    const MemTxAttrs attrs = { .memory = 1 };

    return pci_dma_rw(PCI_DEVICE(s), addr, buf, len, dir, attrs) == MEMTX_OK;
}

static bool guest_read(PVRDMADevice *s, uint64_t addr, void *buf, size_t len)
{
    return guest_rw(s, addr, buf, len, DMA_DIRECTION_TO_DEVICE);
}

static bool guest_write(PVRDMADevice *s, uint64_t addr, void *buf, size_t len)
{
    return guest_rw(s, addr, buf, len, DMA_DIRECTION_FROM_DEVICE);
}

static bool read_dsr(PVRDMADevice *s, uint8_t *dsr)
{
    return s->dsr_valid && guest_read(s, s->dsr, dsr, DSR_SIZE);
}

/* The address of one page of a ring, through its page directory. */
static bool ring_page(PVRDMADevice *s, uint64_t pdir, uint32_t page,
                      uint64_t *addr)
{
    uint8_t entry[8];

    if (!guest_read(s, pdir + (page >> 9) * 8, entry, sizeof(entry)) ||
        !guest_read(s, ldq_le_p(entry) + (page & 511) * 8, entry,
                    sizeof(entry))) {
        return false;
    }
    *addr = ldq_le_p(entry);
    return true;
}

/*
 * Append one event to the ring of asynchronous events.
 *
 * The driver feeds the number of slots n, which is no power of two, into
 * arithmetic made for powers of two.  Indices therefore wrap where 2n - 1 has
 * its lowest zero bit, and half as many slots are distinct; the ring is full
 * when those are used up.
 */
static bool push_event(PVRDMADevice *s, const uint8_t *dsr, uint32_t type,
                       uint32_t info)
{
    uint32_t pages = ldl_le_p(dsr + DSR_ASYNC_PAGES);
    uint64_t pdir = ldq_le_p(dsr + DSR_ASYNC_PDIR);
    uint32_t n, mask, wrap, tail, head, pos;
    uint64_t state, page;
    uint8_t buf[EVENT_SIZE];

    if (pages < 2 || pages > RING_MAX_PAGES || !ring_page(s, pdir, 0, &state) ||
        !guest_read(s, state + RING_PROD_TAIL, buf, sizeof(buf))) {
        return false;
    }
    n = (pages - 1) * (PAGE_SIZE / EVENT_SIZE);
    mask = 2 * n - 1;
    wrap = ~mask & (mask + 1);
    tail = ldl_le_p(buf);
    head = ldl_le_p(buf + (RING_CONS_HEAD - RING_PROD_TAIL));
    if (((tail | head) & ~mask) || ((tail - head) & (wrap - 1)) >= wrap / 2) {
        return false;
    }
    pos = (tail & (n - 1)) * EVENT_SIZE;
    stl_le_p(buf, type);
    stl_le_p(buf + 4, info);
    if (!ring_page(s, pdir, 1 + pos / PAGE_SIZE, &page) ||
        !guest_write(s, page + pos % PAGE_SIZE, buf, sizeof(buf))) {
        return false;
    }
    /* The guest sees the event once it sees the new index. */
    smp_wmb();
    stl_le_p(buf, (tail + 1) & mask);
    return guest_write(s, state + RING_PROD_TAIL, buf, 4);
}

void pvrdma_lost_notify(PVRDMADevice *s)
{
    uint8_t dsr[DSR_SIZE];

    s->lost_err = UINT32_MAX;
    if (read_dsr(s, dsr) && push_event(s, dsr, EVENT_PORT_ERR, 1) &&
        push_event(s, dsr, EVENT_DEVICE_FATAL, 1)) {
        pvrdma_irq_raise(&s->irq, PVRDMA_VECTOR_EVENT);
    }
}

/* Write the answer to a query behind a header, and signal it. */
static bool respond(PVRDMADevice *s, const uint8_t *dsr, const uint8_t *cmd,
                    uint8_t *resp, size_t len)
{
    memcpy(resp, cmd, 8);
    stl_le_p(resp + RESP_ACK, RESP_ACK_FLAG | ldl_le_p(cmd + 8));
    if (!guest_write(s, ldq_le_p(dsr + DSR_RESP_SLOT), resp, len)) {
        return false;
    }
    pvrdma_irq_raise(&s->irq, PVRDMA_VECTOR_RESPONSE);
    return true;
}

static bool query_port(PVRDMADevice *s, const uint8_t *dsr, const uint8_t *cmd)
{
    uint8_t resp[RESP_PORT_SIZE] = { 0 };
    uint8_t *port = resp + RESP_BODY;

    stl_le_p(port, PORT_STATE_DOWN);
    stl_le_p(port + 4, PORT_MTU_4096);
    stl_le_p(port + 8, PORT_MTU_1024);
    stl_le_p(port + 12, ldl_le_p(dsr + DSR_GID_TBL_LEN));
    stw_le_p(port + 32, lduw_le_p(dsr + DSR_MAX_PKEYS));
    port[43] = PORT_WIDTH_4X;
    port[44] = PORT_SPEED_SDR;
    port[45] = PORT_PHYS_DISABLED;
    return respond(s, dsr, cmd, resp, sizeof(resp));
}

static bool query_pkey(PVRDMADevice *s, const uint8_t *dsr, const uint8_t *cmd)
{
    uint8_t resp[RESP_PKEY_SIZE] = { 0 };

    stw_le_p(resp + RESP_BODY, 0xffff);
    return respond(s, dsr, cmd, resp, sizeof(resp));
}

/* Run the command in the slot; false: it fails. */
static bool run_command(PVRDMADevice *s)
{
    uint8_t dsr[DSR_SIZE];
    uint8_t cmd[16];

    if (!read_dsr(s, dsr) ||
        !guest_read(s, ldq_le_p(dsr + DSR_CMD_SLOT), cmd, sizeof(cmd))) {
        return false;
    }
    switch (ldl_le_p(cmd + 8)) {
    case CMD_QUERY_PORT:
        return query_port(s, dsr, cmd);
    case CMD_QUERY_PKEY:
        return query_pkey(s, dsr, cmd);
    case CMD_DESTROY_PD:
    case CMD_DESTROY_MR:
    case CMD_DESTROY_CQ:
    case CMD_DESTROY_QP:
    case CMD_DESTROY_UC:
    case CMD_DESTROY_BIND:
    case CMD_DESTROY_SRQ:
        return true;
    default:
        return false;
    }
}

uint32_t pvrdma_lost_read(PVRDMADevice *s, hwaddr addr)
{
    return addr == PVRDMA_REG_ERR ? s->lost_err : UINT32_MAX;
}

void pvrdma_lost_write(PVRDMADevice *s, hwaddr addr)
{
    s->lost_err = UINT32_MAX;
    if (addr == PVRDMA_REG_REQUEST && run_command(s)) {
        s->lost_err = 0;
    }
}
