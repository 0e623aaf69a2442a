/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A connection goes from one daemon to the next, with what its VMM shares with us.
 *
 * What the client sent and was not read stays in its socket.  A message of which some
 * has arrived goes along as it is, and one that is complete but not begun as well: the
 * next daemon carries it out.  So do replies that the client has not read.  Its bytes are
 * checked there as those of any client.
 *
 * Main thread; vm->ops is held, nothing is read or sent meanwhile.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "datapath/datapath.h"
#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "guest/restart.h"
#include "vm/attach.h"

/* Which of our descriptors goes along with a reply. */
enum { REPLY_NO_FD, REPLY_DOORBELLS, REPLY_BELL, REPLY_EMPTY };

bool frontend_connected(const struct vm *vm)
{
    return vm->conn && !vm->conn->why;
}

/* ---- leaving ---- */

static uint8_t reply_fd_kind(const struct vfu_conn *c, int fd)
{
    const struct guest_doorbells *db = &c->vm->guest.db;

    /* Who asked for a log reads its replies first (dirty_log.c). */
    return fd < 0              ? REPLY_NO_FD
           : fd == c->log_fd   ? REPLY_NO_FD
           : fd == db->memfd   ? REPLY_DOORBELLS
           : fd == db->eventfd ? REPLY_BELL
                               : REPLY_EMPTY;
}

static void replies_hand_over(struct vfu_conn *c, struct handover_out *h)
{
    state_put_u32(&h->s, g_queue_get_length(&c->queue));
    for (GList *l = c->queue.head; l; l = l->next) {
        const struct out_msg *o = l->data;

        state_put_u32(&h->s, o->len);
        state_put_u32(&h->s, o->sent);
        state_put_u8(&h->s, reply_fd_kind(c, o->fd));
        state_put_bytes(&h->s, o->data, o->len);
    }
}

static void message_hand_over(struct vfu_conn *c, struct handover_out *h)
{
    state_put_u32(&h->s, c->hdr_got);
    state_put_bytes(&h->s, &c->hdr, sizeof(c->hdr));
    state_put_u8(&h->s, c->body != NULL);
    state_put_u32(&h->s, c->body ? c->body_got : 0);
    if (c->body) {
        state_put_bytes(&h->s, c->body, c->body_got);
    }
    state_put_u8(&h->s, c->fds_lost);
    state_put_u32(&h->s, c->nfds);
    for (unsigned i = 0; i < c->nfds; i++) {
        handover_put_fd(h, c->fds[i]);
    }
}

void frontend_hand_over(struct vm *vm, struct handover_out *h)
{
    struct vfu_conn *c = vm->conn;

    state_put_u8(&h->s, frontend_connected(vm));
    if (!frontend_connected(vm)) {
        return;
    }
    handover_put_fd(h, c->fd);
    state_put_u8(&h->s, c->version_done);
    message_hand_over(c, h);
    if (!c->version_done) {
        return;
    }
    state_put_u32(&h->s, c->client.max_msg_fds);
    state_put_u64(&h->s, c->lost_errors);
    state_put_bytes(&h->s, c->pci.data, sizeof(c->pci.data));
    state_put_u32(&h->s, sizeof(c->msix_table));
    state_put_bytes(&h->s, c->msix_table, sizeof(c->msix_table));
    replies_hand_over(c, h);
    guest_hand_over(&vm->guest, h);
}

/* ---- taking ---- */

static void message_take_over(struct vfu_conn *c, struct handover_in *h,
                              struct state_in *s)
{
    bool body;
    uint32_t n;

    c->hdr_got = state_get_u32(s);
    state_get_bytes(s, &c->hdr, sizeof(c->hdr));
    body = state_get_bool(s);
    n = state_get_u32(s);
    if (c->hdr_got > sizeof(c->hdr) || (body && c->hdr_got < sizeof(c->hdr))) {
        state_fail(s, "invalid length of a message");
    }
    if (state_failed(s) || (body && !conn_begin_body(c))) {
        c->hdr_got = 0;
        state_fail(s, "a message that cannot be continued");
        return;
    }
    if (body && n > c->hdr.size - sizeof(c->hdr)) {
        state_fail(s, "more bytes than the message has");
        return;
    }
    if (body) {
        state_get_bytes(s, c->body, n);
        c->body_got = n;
    }
    c->fds_lost = state_get_bool(s);
    n = state_get_count(s, G_N_ELEMENTS(c->fds), sizeof(uint32_t));
    for (uint32_t i = 0; i < n; i++) {
        c->fds[c->nfds++] = handover_get_fd(h, s);
    }
}

static void replies_take_over(struct vfu_conn *c, struct state_in *s)
{
    uint32_t n = state_get_count(s, VFU_MAX_QUEUE, 9);

    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        uint32_t len = state_get_u32(s), sent = state_get_u32(s);
        uint8_t kind = state_get_u8(s);
        struct out_msg *o;

        if (len > s->left || sent >= len || kind > REPLY_EMPTY ||
            len - sent > VFU_MAX_QUEUE - c->queued) {
            state_fail(s, "invalid queued replies");
            return;
        }
        o = g_malloc(sizeof(*o) + len);
        o->len = len;
        o->sent = sent;
        o->fd = -1 - kind; /* until it is known */
        state_get_bytes(s, o->data, len);
        g_queue_push_tail(&c->queue, o);
        c->queued += len - sent;
    }
}

/* Replies that bring descriptors: ours have other numbers. */
static void replies_name_fds(struct vfu_conn *c, int memfd)
{
    for (GList *l = c->queue.head; l; l = l->next) {
        struct out_msg *o = l->data;
        int kind = -1 - o->fd;

        o->fd = kind == REPLY_DOORBELLS ? memfd
                : kind == REPLY_BELL    ? c->vm->guest.db.eventfd
                : kind == REPLY_EMPTY   ? region_empty_memfd()
                                        : -1;
    }
}

static void attach(struct vfu_conn *c, struct handover_in *h, struct state_in *s,
                   int *memfd)
{
    g_autoptr(GError) err = NULL;
    int bell;

    if (!guest_adopt_doorbells(h, s, memfd, &bell)) {
        *memfd = -1;
        return;
    }
    if (!vm_attach_bell(c->vm, bell, &err)) {
        state_fail(s, "it cannot be attached: %s", err ? err->message : "no resources");
        return;
    }
    datapath_pause(c->vm);
    guest_adopt(&c->vm->guest, h, s);
    replies_name_fds(c, *memfd);
}

static void take_over(struct vm *vm, struct handover_in *h, struct state_in *s,
                      int *memfd)
{
    struct vfu_conn *c;
    uint8_t pci[PCI_CONFIG_SIZE];
    int fd = handover_get_fd(h, s);

    if (fd < 0) {
        state_fail(s, "the connection's descriptor is missing");
        return;
    }
    c = conn_new_frozen(vm, fd);
    /* What that message may be depends on it. */
    c->version_done = state_get_bool(s);
    message_take_over(c, h, s);
    if (!c->version_done || state_failed(s)) {
        return;
    }
    c->client.max_msg_fds = state_get_u32(s);
    c->lost_errors = state_get_u64(s);
    state_get_bytes(s, pci, sizeof(pci));
    pci_config_init(&c->pci);
    pci_config_write(&c->pci, 0, sizeof(pci), pci); /* what the guest may set */
    if (state_get_u32(s) != sizeof(c->msix_table)) {
        state_fail(s, "wrong number of vectors");
    }
    state_get_bytes(s, c->msix_table, sizeof(c->msix_table));
    replies_take_over(c, s);
    if (!state_failed(s)) {
        attach(c, h, s, memfd);
    }
}

bool frontend_take_over(struct vm *vm, struct handover_in *h, struct state_in *s,
                        int *memfd)
{
    *memfd = -1;
    if (state_get_bool(s)) {
        take_over(vm, h, s, memfd);
    }
    if (state_failed(s) && vm->conn) {
        vm->conn->unframed = true;
    }
    return !state_failed(s);
}

/* ---- what waits to be closed ---- */

static struct discard *closing_of_refused(struct vm *vm)
{
    struct discard **d = refusals_discard(vm, false);

    return d ? *d : NULL;
}

void frontend_closing_go_on(struct vm *vm)
{
    discard_see_to(vm->discard);
    discard_see_to(closing_of_refused(vm));
}

void frontend_closing_hand_over(struct vm *vm, struct handover_out *h)
{
    discard_hand_over(vm->discard, h);
    discard_hand_over(closing_of_refused(vm), h);
}

void frontend_closing_take_over(struct vm *vm, struct handover_in *h, struct state_in *s)
{
    struct discard *nobodys[2] = {NULL, NULL};

    discard_take_over(vm ? &vm->discard : &nobodys[0], false, h, s);
    discard_take_over(vm ? refusals_discard(vm, true) : &nobodys[1], true, h, s);
    discard_forget(&nobodys[0]);
    discard_forget(&nobodys[1]);
}
