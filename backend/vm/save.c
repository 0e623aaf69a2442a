/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The state of a VM's device as one stream: which parts there are, in which order, and
 * what both sides must have in common.
 *
 * Saving changes nothing that anybody could see: the VM can go on here.  Loading fills a
 * device that is in reset; if the stream is bad in any place the device is in reset
 * again, and whoever sent it is told why.
 *
 * Parts are saved and loaded in the table's order: what refers to something comes after
 * it.  Each must be there once; others only if they are optional, and those are passed
 * over.  docs/state-stream.md has the fields.
 *
 * Main thread.
 */
#include "attach.h"

#include <inttypes.h>
#include <string.h>

#include "base/state_stream.h"
#include "datapath/datapath.h"
#include "device/device.h"
#include "directory/directory.h"
#include "verbs/verbs.h"

/* ---- what must be equal, since the guest has seen it ---- */

RECORD(caps_record, struct vm_config, FIELD(max_qp), FIELD(max_cq), FIELD(max_srq),
       FIELD(max_mr), FIELD(max_pd), FIELD(max_mr_pages))
RECORD(mac_record, struct vm_config, FIELD(has_mac), FIELD(mac))

static void caps_save(struct vm *vm, struct state_out *s)
{
    const struct vm_config *cfg = vm->cfg;

    state_put_record(s, caps_record, cfg);
    state_put_record(s, mac_record, cfg);
    state_put_text(s, cfg->network);
}

static void caps_load(struct vm *vm, struct state_in *s)
{
    const struct vm_config *cfg = vm->cfg;
    struct vm_config there;
    g_autofree char *network = NULL;

    state_get_record(s, caps_record, &there);
    for (const struct record_field *f = caps_record(cfg); f->kind != RECORD_END; f++) {
        uint64_t n = record_number(f, &there), here = record_number(f, cfg);
        g_autofree char *key = g_strdelimit(g_strdup(f->name), "_", '-');

        if (n != here) {
            state_fail(s, "%s is %" PRIu64 " there and %" PRIu64 " here", key, n, here);
        }
    }
    state_get_record(s, mac_record, &there);
    if (there.has_mac != cfg->has_mac ||
        memcmp(there.mac, cfg->mac, sizeof(there.mac)) != 0) {
        state_fail(s, "mac is not the same here");
    }
    network = state_get_text(s);
    if (strcmp(network, cfg->network) != 0) {
        state_fail(s, "network is not the same here");
    }
}

static void offers_save(struct vm *vm, struct state_out *s)
{
    device_offers_save(vm->dev, s);
}

static void offers_load(struct vm *vm, struct state_in *s)
{
    device_offers_load(vm->dev, s);
}

/* ---- whose addresses they are, and the guest's clock ---- */

static void owner_save(struct vm *vm, struct state_out *s)
{
    state_put_u64(s, vm->identity.owner[0]);
    state_put_u64(s, vm->identity.owner[1]);
    state_put_u64(s, vm->identity.generation);
}

static void owner_load(struct vm *vm, struct state_in *s)
{
    uint64_t a = state_get_u64(s), b = state_get_u64(s), generation = state_get_u64(s);

    if ((!a && !b) || !generation || generation > UINT64_MAX / 2) { /* they only grow */
        state_fail(s, "invalid owner ID");
        return;
    }
    vm->identity.owner[0] = a;
    vm->identity.owner[1] = b;
    vm->identity.generation = generation + 1; /* it has moved */
    vm->identity.proved = 0;
}

/* By which those who begin from this state know each other. */
static void key_save(struct vm *vm, struct state_out *s)
{
    directory_need_key(vm);
    state_put_bytes(s, vm->identity.key, sizeof(vm->identity.key));
}

static void key_load(struct vm *vm, struct state_in *s)
{
    state_get_bytes(s, vm->identity.key, sizeof(vm->identity.key));
    if (!directory_has_key(vm)) {
        state_fail(s, "invalid key");
    }
}

/* ---- the device, and how it tells the guest ---- */

static void part_device_save(struct vm *vm, struct state_out *s)
{
    device_save(vm->dev, s);
    irq_save(&vm->guest.irq, s);
}

static void part_device_load(struct vm *vm, struct state_in *s)
{
    device_load(vm->dev, s);
    irq_load(&vm->guest.irq, vm->dev->bus_master, s);
}

static void events_save(struct vm *vm, struct state_out *s)
{
    event_save(&vm->guest.events, vm->dev->dsr_valid, s);
}

static void events_load(struct vm *vm, struct state_in *s)
{
    const struct device *dev = vm->dev;

    event_load(&vm->guest.events, dev->dsr_valid, dev->active, !dev->bus_master, s);
}

static void waiting_save(struct vm *vm, struct state_out *s)
{
    event_waiting_save(&vm->guest.events, s);
}

static bool exists(void *opaque, enum event_object what, uint32_t handle, int vector)
{
    const struct objects *v = &((struct vm *)opaque)->objects;
    const struct cq *cq;

    switch (what) {
    case EVENT_OF_QP:
        return id_table_get(&v->qp, handle) != NULL;
    case EVENT_OF_SRQ:
        return id_table_get(&v->srq, handle) != NULL;
    default:
        cq = id_table_get(&v->cq, handle);
        return cq && (vector < 0 || cq->vector == (uint32_t)vector);
    }
}

static void waiting_load(struct vm *vm, struct state_in *s)
{
    event_waiting_load(&vm->guest.events, exists, vm, s);
}

/* ---- all of it ---- */

static const struct part {
    uint32_t tag;
    uint16_t version; /* the only one that is read */
    const char *what;
    void (*save)(struct vm *vm, struct state_out *s);
    void (*load)(struct vm *vm, struct state_in *s);
} parts[] = {
    {STATE_TAG('C', 'A', 'P', 'S'), 1, "limits", caps_save, caps_load},
    {STATE_TAG('O', 'F', 'F', 'R'), 1, "offers", offers_save, offers_load},
    {STATE_TAG('O', 'W', 'N', 'R'), 1, "owner", owner_save, owner_load},
    {STATE_TAG('K', 'E', 'Y', ' '), 1, "key", key_save, key_load},
    {STATE_TAG('D', 'E', 'V', 'C'), 1, "device", part_device_save, part_device_load},
    {STATE_TAG('R', 'I', 'N', 'G'), 1, "event rings", events_save, events_load},
    {STATE_TAG('S', 'T', 'A', 'T'), 1, "statistics", datapath_save, datapath_load},
    {STATE_TAG('C', 'T', 'X', 'T'), 1, "contexts", contexts_save, contexts_load},
    {STATE_TAG('P', 'D', ' ', ' '), 1, "protection domains", pds_save, pds_load},
    {STATE_TAG('M', 'R', ' ', ' '), 1, "memory regions", mrs_save, mrs_load},
    {STATE_TAG('G', 'I', 'D', 'S'), 1, "GID table", gids_save, gids_load},
    {STATE_TAG('G', 'I', 'D', 'W'), 1, "waiting GIDs", gids_waiting_save,
     gids_waiting_load},
    {STATE_TAG('L', 'I', 'N', 'K'), 1, "link", link_save, link_load},
    {STATE_TAG('C', 'Q', ' ', ' '), 1, "completion queues", cqs_save, cqs_load},
    {STATE_TAG('S', 'R', 'Q', ' '), 1, "shared receive queues", srqs_save, srqs_load},
    {STATE_TAG('Q', 'P', ' ', ' '), 1, "queue pairs", qps_save, qps_load},
    {STATE_TAG('F', 'A', 'I', 'L'), 1, "failed queue pairs", qps_failed_save,
     qps_failed_load},
    /* What follows on all that it can be about. */
    {STATE_TAG('W', 'A', 'I', 'T'), 1, "waiting events", waiting_save, waiting_load},
};

void vm_state_sections(GString *text)
{
    for (unsigned i = 0; i < G_N_ELEMENTS(parts); i++) {
        state_section_name(text, parts[i].tag, parts[i].version);
    }
    device_offers_names(text);
}

void vm_save(struct vm *vm, GByteArray *out)
{
    struct state_out s;

    state_out_begin(&s, out);
    s.max = (guint)vm_state_max(vm) + 1;
    for (unsigned i = 0; i < G_N_ELEMENTS(parts); i++) {
        state_section_begin(&s, parts[i].tag, parts[i].version, 0);
        parts[i].save(vm, &s);
        state_section_end(&s);
    }
    state_out_end(&s);
}

/* What is wrong with it is told with its name. */
static void part_load(struct vm *vm, const struct part *part, struct state_in *s)
{
    part->load(vm, s);
    state_all_read(s);
    if (state_failed(s)) {
        g_autofree char *why = g_strdup(s->error);

        g_snprintf(s->error, STATE_ERROR_MAX, "%s: %s", part->what, why);
    }
}

/* Sections that are passed over, at most: each is a turn in which nobody is served. */
#define MAX_UNKNOWN 64u

/*
 * The sections, in the order of @parts.  *statistics: what is in that one, for when the
 * rest has turned out to be good.
 */
static void load_parts(struct vm *vm, struct state_in *s, struct state_in *statistics)
{
    unsigned next = 0, unknown = 0;
    struct state_section section;

    while (state_section_next(s, &section)) {
        const struct part *part = next < G_N_ELEMENTS(parts) ? &parts[next] : NULL;

        if (part && section.tag == part->tag) {
            if (section.version != part->version) {
                state_fail(s, "%s: version %u, this daemon reads %u", part->what,
                           section.version, part->version);
                return;
            }
            if (part->load == datapath_load) {
                *statistics = section.in;
            }
            part_load(vm, part, &section.in);
            next++;
        } else if (!(section.flags & STATE_OPTIONAL) || unknown++ == MAX_UNKNOWN) {
            state_fail(s, "unknown or misplaced section %#x", section.tag);
        }
        if (state_failed(s)) {
            return;
        }
    }
    if (next < G_N_ELEMENTS(parts)) {
        state_fail(s, "%s: missing", parts[next].what);
    }
}

bool vm_load(struct vm *vm, const uint8_t *data, size_t len, GError **errp)
{
    struct vm_identity former = vm->identity;
    bool bus_master = vm->dev->bus_master;
    struct state_in s, statistics = {0};
    char error[STATE_ERROR_MAX];

    device_reset(vm->dev); /* if it was not: whatever it had, goes */
    state_in_begin(&s, data, len, error);
    if (!state_failed(&s)) {
        load_parts(vm, &s, &statistics);
    }
    if (!state_failed(&s)) {
        datapath_go_on(vm, statistics);
        datapath_loaded(vm);
        gids_look(vm);
        return true;
    }
    device_reset(vm->dev);
    device_set_bus_master(vm->dev, bus_master);
    irq_forget_pending(&vm->guest.irq);
    vm_identity_restore(vm, &former);
    g_set_error(errp, PVRDMA_ERROR, 0, "the state of the device: %s", error);
    return false;
}

int vm_claim(struct vm *vm)
{
    int err = gids_claim(vm);

    if (!err) {
        irq_flush(&vm->guest.irq); /* from here on the guest runs */
    }
    return err;
}

/* Bytes: more than any object of its kind can need, but for the pages it covers. */
#define MAX_OF_QP  (16u << 10)
#define MAX_OF_CQ  512u
#define MAX_OF_SRQ 1024u
#define MAX_OF_MR  512u
#define MAX_OF_PD  64u
#define MAX_OTHER  (4u << 20)
/* However much the configuration allows: one more byte shows that it was too long. */
#define MAX_STATE (STATE_OUT_MAX - 1)

uint64_t vm_state_max(const struct vm *vm)
{
    const struct vm_config *cfg = vm->cfg;
    uint64_t max;

    max = MAX_OTHER + (uint64_t)cfg->max_qp * MAX_OF_QP +
          (uint64_t)cfg->max_cq * MAX_OF_CQ + (uint64_t)cfg->max_srq * MAX_OF_SRQ +
          (uint64_t)cfg->max_mr * MAX_OF_MR + (uint64_t)cfg->max_pd * MAX_OF_PD +
          (uint64_t)cfg->max_mr_pages * sizeof(uint64_t);
    return MIN(max, MAX_STATE);
}

/* The same of what they need as a rule; a QP has some messages in flight. */
#define USUAL_OF_QP   1024u
#define USUAL_OF_CQ   128u
#define USUAL_OF_SRQ  256u
#define USUAL_OF_MR   64u
#define USUAL_OF_PD   16u
#define USUAL_OF_UCTX 32u
#define USUAL_OTHER   (16u << 10)

uint64_t vm_state_estimate(const struct vm *vm)
{
    const struct objects *v = &vm->objects;
    const struct {
        const struct id_table *table;
        uint64_t usual;
    } kinds[] = {
        {&v->qp, USUAL_OF_QP}, {&v->cq, USUAL_OF_CQ}, {&v->srq, USUAL_OF_SRQ},
        {&v->mr, USUAL_OF_MR}, {&v->pd, USUAL_OF_PD}, {&v->uctx, USUAL_OF_UCTX},
    };
    uint64_t size = USUAL_OTHER + v->pages_used * sizeof(uint64_t);

    for (unsigned i = 0; i < G_N_ELEMENTS(kinds); i++) { /* with all numbers there were */
        size += kinds[i].table->used * kinds[i].usual + id_table_end(kinds[i].table);
    }
    return MIN(size, vm_state_max(vm));
}
