/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The pvrdma device looks for another daemon when it has lost its own.
 *
 * pvrdma-lost.c has made a failed adapter of it by then, and the old daemon is
 * known to be gone.  All objects of the guest went with that one; the next has
 * a device in reset.  So this is what happens:
 *
 *   lost     the same socket is tried, from a timer.  A daemon that does not
 *            answer VERSION is waited for in the background.  One that does is
 *            asked whether it fits (pvrdma-attach.c), and gets guest memory,
 *            interrupts and PCI_COMMAND.  That is one transaction of the
 *            client, in the main loop, with its limit.
 *   fresh    such a daemon is there.  The guest sees the failed adapter as
 *            before: its driver knows objects that this daemon does not, and
 *            may be about to destroy them.
 *   in use   the guest has reset the adapter: by CTL, by a function-level reset
 *            or that of the machine.  A driver that begins without a reset, by
 *            DSRLOW, does the same: one that has objects never writes that
 *            again.  If the guest has reset the adapter before, while there was
 *            no daemon, or never used it, there is nothing to wait for.
 *
 * A fresh daemon that is lost was never given memory by the guest, and writes
 * to none.  So nobody has to wait until its end is closed, and the guest is
 * told nothing: the search goes on.
 *
 * A driver may begin while there is no daemon, and its next access meet one:
 * the lower half of the shared region's address, which it wrote before, is
 * repeated.
 *
 * A daemon that does not fit, or breaks the protocol meanwhile, is reported
 * once per reason.  Another may take its place, so that is no end, but the
 * pauses get long: each such attempt may hold up the VM for
 * PVRDMA_CLIENT_TIMEOUT_MS.
 *
 * All under the BQL, in the main loop but for pvrdma_reconnect_use().
 */
#include "qemu/osdep.h"
#include "qemu/error-report.h"
#include "hw/pci/pci_device.h"
#include "pvrdma-calls.h"
#include "pvrdma.h"
#include "trace.h"

/* Pauses while nobody is there: from the first to the longest. */
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 2000

/* After daemons that do not fit. */
#define PAUSE_UNFIT_MIN_MS 1000
#define PAUSE_UNFIT_MAX_MS 60000

static int64_t now_ms(void)
{
    return qemu_clock_get_ms(QEMU_CLOCK_REALTIME);
}

static void in_ms(PVRDMADevice *s, unsigned ms)
{
    timer_mod(s->again.timer, now_ms() + ms);
}

/*
 * Behind the next pause, a quarter shorter or longer: all QEMUs of a host lose
 * a daemon at one moment, and are not to come back at one.
 */
static void pause_some(PVRDMADevice *s)
{
    unsigned ms = s->again.pause_ms;

    ms += g_random_int_range(0, ms / 2 + 1) - ms / 4;
    trace_pvrdma_reconnect_pause(s->name, ms);
    in_ms(s, ms);
}

static void try_later(PVRDMADevice *s, const Error *why)
{
    PVRDMAReconnect *r = &s->again;

    trace_pvrdma_reconnect_nobody(s->name, error_get_pretty(why), r->pause_ms);
    r->pause_ms = MIN(r->pause_ms, PAUSE_MAX_MS);
    pause_some(s);
    r->pause_ms = MIN(2 * r->pause_ms, PAUSE_MAX_MS);
}

/* There is no use for the daemon of @c. */
static void refuse(PVRDMADevice *s, const PVRDMAClient *c, const Error *why)
{
    PVRDMAReconnect *r = &s->again;
    const char *text = error_get_pretty(why);

    if (pvrdma_client_turned_away(c)) {
        /* It ends just now, or still has our last connection. */
        try_later(s, why);
        return;
    }
    trace_pvrdma_reconnect_refuse(s->name, text, r->pause_ms);
    if (g_strcmp0(r->refusal, text) != 0) {
        warn_report("%s; the adapter stays down until there is another pvrdmad",
                    text);
        g_free(r->refusal);
        r->refusal = g_strdup(text);
    }
    r->pause_ms = MAX(r->pause_ms, PAUSE_UNFIT_MIN_MS);
    pause_some(s);
    r->pause_ms = MIN(2 * r->pause_ms, PAUSE_UNFIT_MAX_MS);
}

/* Everything that a daemon learns when a device is made, and after that. */
static bool hand_over(PVRDMADevice *s, Error **errp)
{
    if (!pvrdma_attach(s, errp) || !pvrdma_migrate_fits(s, errp) ||
        !pvrdma_mem_start(&s->mem, s->client, PCI_DEVICE(s), s->name, s->able,
                          errp)) {
        return false;
    }
    if (!pvrdma_repeat_config(s, errp)) {
        pvrdma_mem_stop(&s->mem);
        return false;
    }
    return true;
}

/* The daemon of @c speaks our protocol. */
static void take_over(PVRDMADevice *s, PVRDMAClient *c)
{
    Error *err = NULL;
    bool ok;

    pvrdma_client_free(s->client);
    s->client = c;
    s->mem.client = c;
    s->fresh = true;
    ok = hand_over(s, &err);
    if (!ok) {
        s->fresh = false;
        pvrdma_doorbell_close(&s->doorbell);
        refuse(s, c, err);
        pvrdma_client_abandon(c, error_get_pretty(err));
        error_free(err);
        return;
    }
    trace_pvrdma_reconnect_back(s->name, s->dsr_valid);
    s->again.since_ms = now_ms();
    pvrdma_client_watch(c, pvrdma_lost_report, s);
    if (!s->dsr_valid) {
        uint8_t low[4];

        pvrdma_reconnect_use(s);
        stl_le_p(low, s->dsr_low);
        pvrdma_call_region_write(c, PVRDMA_BAR_REG, PVRDMA_REG_DSRLOW, low,
                                 sizeof(low), NULL);
        return;
    }
    info_report("pvrdma '%s': connected to pvrdmad again; the adapter works "
                "when the guest has reset it", s->name);
    pvrdma_lost_tell(s);
}

static void answered(void *opaque)
{
    PVRDMADevice *s = opaque;
    PVRDMAReconnect *r = &s->again;
    PVRDMAClient *c = g_steal_pointer(&r->next);
    Error *err = NULL;

    timer_del(r->timer);
    pvrdma_client_begin(c);
    if (pvrdma_client_agree(c, &err)) {
        take_over(s, c);
        pvrdma_client_end(c);
        return;
    }
    refuse(s, c, err);
    error_free(err);
    pvrdma_client_free(c);
}

static void attempt(void *opaque)
{
    PVRDMADevice *s = opaque;
    PVRDMAReconnect *r = &s->again;
    Error *err = NULL;

    if (r->next) {
        error_setg(&err, "pvrdma '%s': no answer from pvrdmad within %d ms",
                   s->name, PVRDMA_CLIENT_TIMEOUT_MS);
        refuse(s, r->next, err);
        error_free(err);
        pvrdma_client_free(g_steal_pointer(&r->next));
        return;
    }
    r->next = pvrdma_client_start(s->address, s->name, answered, s, &err);
    if (!r->next) {
        try_later(s, err);
        error_free(err);
        return;
    }
    in_ms(s, PVRDMA_CLIENT_TIMEOUT_MS);
}

bool pvrdma_reconnect_wanted(const PVRDMADevice *s)
{
    /* What was connected by others cannot be connected again. */
    return s->reconnect && s->address->type == SOCKET_ADDRESS_TYPE_UNIX;
}

void pvrdma_reconnect_start(PVRDMADevice *s)
{
    PVRDMAReconnect *r = &s->again;

    if (!pvrdma_reconnect_wanted(s)) {
        return;
    }
    if (!r->timer) {
        r->timer = timer_new_ms(QEMU_CLOCK_REALTIME, attempt, s);
        r->pause_ms = PAUSE_MIN_MS;
    }
    /* One that comes and goes at once may be told of, but not all the time. */
    if (now_ms() - r->since_ms > PAUSE_MAX_MS) {
        r->pause_ms = PAUSE_MIN_MS;
    }
    pause_some(s);
    r->pause_ms = MIN(2 * r->pause_ms, PAUSE_MAX_MS);
}

void pvrdma_reconnect_end(PVRDMADevice *s)
{
    PVRDMAReconnect *r = &s->again;

    timer_free(g_steal_pointer(&r->timer));
    pvrdma_client_free(g_steal_pointer(&r->next));
    g_free(g_steal_pointer(&r->refusal));
}

bool pvrdma_reconnect_begins(const PVRDMADevice *s, hwaddr addr,
                             uint32_t value)
{
    return s->fresh && !pvrdma_client_lost(s->client) &&
           (addr == PVRDMA_REG_DSRLOW ||
            (addr == PVRDMA_REG_CTL && value == PVRDMA_CTL_RESET));
}

void pvrdma_reconnect_use(PVRDMADevice *s)
{
    trace_pvrdma_reconnect_use(s->name);
    s->lost = false;
    s->fresh = false;
    s->told = false;
    s->dsr_valid = false;
    s->ran_on = false;
    g_free(g_steal_pointer(&s->again.refusal));
    pvrdma_migrate_reset(s);
    info_report("pvrdma '%s': pvrdmad serves the adapter again", s->name);
    pvrdma_lost_tell(s);
}
