/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Migration of a virtual guest; see migrate.h. */
#include "migrate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct state_msg {
    struct vfio_user_device_feature head;
    struct vfio_user_mig_device_state data;
};

static struct state_msg set_msg(enum vfio_user_mig_state state)
{
    return (struct state_msg){
        {sizeof(struct state_msg),
         VFIO_USER_FEATURE_MIG_DEVICE_STATE | VFIO_USER_FEATURE_SET},
        {state, -1}};
}

int vg_mig_set(struct vguest *g, enum vfio_user_mig_state state)
{
    struct state_msg msg = set_msg(state);

    return vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, NULL);
}

enum vfio_user_mig_state vg_mig_get(struct vguest *g)
{
    struct state_msg msg = {
        {sizeof(msg), VFIO_USER_FEATURE_MIG_DEVICE_STATE | VFIO_USER_FEATURE_GET}, {0}};
    struct vg_reply r;

    g_assert_cmpint(
        vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg.head), NULL, 0, &r),
        ==, 0);
    g_assert_cmpuint(r.len, ==, sizeof(msg));
    memcpy(&msg, r.data, sizeof(msg));
    vg_reply_clear(&r);
    return msg.data.device_state;
}

int vg_mig_put_back(struct vguest *g)
{
    struct vfio_user_device_feature msg = {sizeof(msg), PVRDMA_FEATURE_PUT_BACK |
                                                            VFIO_USER_FEATURE_SET};

    return vg_request(g, VFIO_USER_DEVICE_FEATURE, 0, &msg, sizeof(msg), NULL, 0, NULL);
}

GByteArray *vg_mig_read(struct vguest *g, uint32_t piece)
{
    struct vfio_user_mig_data req = {(uint32_t)sizeof(req) + piece, piece}, head;
    GByteArray *all = g_byte_array_new();

    do {
        struct vg_reply r;

        g_assert_cmpint(
            vg_request(g, VFIO_USER_MIG_DATA_READ, 0, &req, sizeof(req), NULL, 0, &r), ==,
            0);
        g_assert_cmpuint(r.len, >=, sizeof(head));
        memcpy(&head, r.data, sizeof(head));
        g_assert_cmpuint(head.size, <=, piece);
        g_assert_cmpuint(r.len, ==, sizeof(head) + head.size);
        g_byte_array_append(all, r.data + sizeof(head), head.size);
        vg_reply_clear(&r);
    } while (head.size == piece);
    return all;
}

const uint8_t *vg_mig_section(const GByteArray *stream, const char *tag, uint64_t want)
{
    uint64_t len;

    for (guint at = 16; at + 16 <= stream->len; at += 16 + (guint)len) {
        memcpy(&len, stream->data + at + 8, sizeof(len));
        if (memcmp(stream->data + at, tag, 4) == 0) {
            g_assert_cmpuint(len, ==, want);
            return stream->data + at + 16;
        }
    }
    g_error("no section %s", tag);
}

int vg_mig_write(struct vguest *g, const void *data, uint32_t len, uint32_t piece)
{
    g_autofree uint8_t *msg = g_malloc(sizeof(struct vfio_user_mig_data) + piece);
    int err = 0;

    for (uint32_t at = 0; at < len && !err; at += piece) {
        uint32_t n = MIN(piece, len - at);
        struct vfio_user_mig_data req = {(uint32_t)sizeof(req) + n, n};

        memcpy(msg, &req, sizeof(req));
        memcpy(msg + sizeof(req), (const uint8_t *)data + at, n);
        err = vg_request(g, VFIO_USER_MIG_DATA_WRITE, 0, msg, req.argsz, NULL, 0, NULL);
    }
    return err;
}

/* ---- places ---- */

void vg_place_swap(struct vguest *g, struct vg_place *place)
{
    struct vg_place was = {g->d, g->index, g->sock, g->db_eventfd, g->db};

    g_mutex_lock(&g->msg_lock);
    g->d = place->d;
    g->index = place->vm;
    g->sock = place->sock;
    g->db_eventfd = place->db_eventfd;
    g->db = place->db;
    g_mutex_unlock(&g->msg_lock);
    *place = was;
}

struct vg_place vg_place_open(struct vguest *g, struct vg_daemon *d, unsigned vm)
{
    struct vg_place place = {d, vm, -1, -1, NULL};

    vg_place_swap(g, &place);
    g_assert_cmpint(vg_attach_again(g, 60000), ==, 0);
    vg_place_swap(g, &place);
    return place;
}

void vg_place_close(struct vg_place *place)
{
    if (place->sock >= 0) {
        close(place->sock);
    }
    if (place->db_eventfd >= 0) {
        close(place->db_eventfd);
    }
    if (place->db) {
        munmap(place->db, PVRDMA_DB_REGION_SIZE);
    }
    *place = (struct vg_place){NULL, 0, -1, -1, NULL};
}

void vg_place_tell_to_run(const struct vg_place *place)
{
    struct {
        struct vfio_user_hdr hdr;
        struct state_msg state;
    } msg = {{.id = 999, .command = VFIO_USER_DEVICE_FEATURE, .size = sizeof(msg)},
             set_msg(VFIO_USER_MIG_RUNNING)};

    g_assert_cmpint(vg_raw_send(place->sock, &msg, sizeof(msg), NULL, 0), ==, 0);
}

int vg_place_hear(const struct vg_place *place, int timeout_ms)
{
    struct vg_reply reply = {0};
    int err = vg_raw_recv(place->sock, &reply, timeout_ms);

    if (err == 0 && reply.hdr.flags & VFIO_USER_ERROR) {
        err = (int)reply.hdr.error;
    }
    vg_reply_clear(&reply);
    return err;
}

void vg_raise_all(struct vguest *g)
{
    const uint64_t one = 1;

    for (unsigned i = 0; i < PVRDMA_NUM_VEC; i++) {
        g_assert_cmpint(write(g->irq[i], &one, sizeof(one)), ==, sizeof(one));
    }
}

/* Set it; if it cannot be, say what the daemon says of it. */
void vg_mig_enter(struct vguest *g, enum vfio_user_mig_state state)
{
    int err = vg_mig_set(g, state);

    if (err) {
        char *text = NULL;

        vg_ctl(g->d, &text, "--json vm migrate-status vm%u", g->index);
        g_error("state %u: %s: %s", state, g_strerror(abs(err)), text);
    }
}

GByteArray *vg_mig_save(struct vguest *g)
{
    vg_mig_enter(g, VFIO_USER_MIG_STOP_COPY);
    return vg_mig_read(g, 65536);
}

void vg_mig_load(struct vguest *g, const GByteArray *stream)
{
    vg_mig_enter(g, VFIO_USER_MIG_RESUMING);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, 65536), ==, 0);
    vg_mig_enter(g, VFIO_USER_MIG_STOP);
}

void vg_begin_vmm(struct vguest *g, struct vg_daemon *d, unsigned vm)
{
    struct vg_place other = vg_place_open(g, d, vm);

    vg_place_swap(g, &other);
    vg_place_close(&other);
}

void vg_run_loaded(struct vguest *g)
{
    int err;

    vgt_await((err = vg_mig_set(g, VFIO_USER_MIG_RUNNING)) != EADDRINUSE);
    g_assert_cmpint(err, ==, 0);
    vg_raise_all(g);
}

struct vg_place vg_place_resuming(struct vguest *g, struct vg_daemon *d, unsigned vm)
{
    struct vg_place place = vg_place_open(g, d, vm);

    vg_place_swap(g, &place);
    vg_mig_enter(g, VFIO_USER_MIG_RESUMING);
    vg_place_swap(g, &place);
    return place;
}

void vg_move_state(struct vguest *g, struct vg_place *place)
{
    g_autoptr(GByteArray) stream = vg_mig_save(g);

    vg_place_swap(g, place);
    g_assert_cmpint(vg_mig_write(g, stream->data, stream->len, VFIO_USER_MAX_DATA), ==,
                    0);
    vg_mig_enter(g, VFIO_USER_MIG_STOP);
}

struct vg_place vg_move_begin(struct vguest *g, struct vg_daemon *d, unsigned vm)
{
    struct vg_place place = vg_place_resuming(g, d, vm);

    vg_move_state(g, &place);
    return place;
}

void vg_move_end(struct vguest *g, struct vg_place *from, enum vg_move how)
{
    if (how == VG_MOVE_LEAVE_FIRST) {
        vg_place_close(from);
    }
    vg_mig_enter(g, VFIO_USER_MIG_RUNNING);
    vg_raise_all(g);
    if (how == VG_MOVE_PLAIN) {
        vg_place_close(from);
    }
}

void vg_move(struct vguest *g, struct vg_daemon *d, unsigned vm, enum vg_move how)
{
    struct vg_place from = vg_move_begin(g, d, vm);

    vg_move_end(g, &from, how);
}
