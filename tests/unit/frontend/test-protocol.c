/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The vfio-user server as a stream protocol: VERSION, framing, descriptors,
 * order, hostile headers, clients that come, go, or do not read.
 */
#include "client.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "frontend/conn.h"
#include "frontend/frontend.h"
#include "guest/budget.h"
#include "../../vguest/slowfd.h"

static void test_version(struct fixture *f, gconstpointer arg)
{
    static const struct {
        uint16_t major, minor;
        const char *json; /* NULL: none */
        bool ok;
    } rows[] = {
        {0, 0, stock_json, true},
        {0, 7, stock_json, true},
        {0, 0, NULL, true},
        {0, 0, "{}", true},
        {0, 0, "{\"capabilities\":{}}", true},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":1,\"unheard\":[1,{}]}}", true},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":0}}", true},
        {1, 0, stock_json, false},
        {0xffff, 0, NULL, false},
        {0, 0, "", false},
        {0, 0, "[]", false},
        {0, 0, "7", false},
        {0, 0, "{", false},
        {0, 0, "{\"capabilities\":", false},
        {0, 0, "{\"capabilities\":[]}", false},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":\"16\"}}", false},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":-1}}", false},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":1.5}}", false},
        {0, 0, "{\"capabilities\":{\"max_msg_fds\":99999999999999999999}}", false},
        {0, 0, "{\"capabilities\":{\"pgsizes\":{}}}", false},
        {0, 0, "\xff\xfe{}", false},
        {0, 0, "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]", false},
    };

    for (unsigned i = 0; i < G_N_ELEMENTS(rows); i++) {
        g_autofree struct reply *r = g_new0(struct reply, 1);
        uint8_t body[512];
        uint32_t len = version_body(body, rows[i].major, rows[i].minor, rows[i].json);
        struct vfio_user_version v;

        g_test_message("row %u", i);
        f->cl = client_connect(f);
        if (!rows[i].ok) {
            client_send(f->cl, VFIO_USER_VERSION, 0, body, len, NULL, 0);
            client_dropped(f);
            continue;
        }
        client_ask(f->cl, VFIO_USER_VERSION, body, len, r);
        g_assert_cmpuint(r->len, >=, sizeof(v));
        g_assert_cmpuint(r->len, <=, len);
        memcpy(&v, r->body, sizeof(v));
        g_assert_cmpuint(v.major, ==, 0);
        g_assert_cmpuint(v.minor, ==, 0);
        if (r->len > sizeof(v)) {
            g_assert_cmpint(r->body[r->len - 1], ==, 0);
        }
        if (rows[i].json == stock_json) {
            const char *text = (const char *)r->body + sizeof(v);

            g_assert_nonnull(strstr(text, "\"write_multiple\":false"));
            g_assert_nonnull(strstr(text, "\"max_msg_fds\":16"));
            g_assert_nonnull(strstr(text, "\"pgsizes\":4096"));
        }
        client_close(f);
    }
}

static void test_version_misuse(struct fixture *f, gconstpointer arg)
{
    g_autofree uint8_t *body = g_malloc0(8192);
    struct vfio_user_device_info info = {.argsz = sizeof(info)};
    int fd = eventfd(0, EFD_CLOEXEC);
    uint32_t len;

    /* Not the first command. */
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_DEVICE_GET_INFO, 0, &info, sizeof(info), NULL, 0);
    client_dropped(f);

    /* Twice. */
    client_attach(f);
    len = version_body(body, 0, 0, stock_json);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, len, NULL, 0);
    client_dropped(f);

    /* Too short, without NUL, with two, with a descriptor, too long. */
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, 3, NULL, 0);
    client_dropped(f);
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, len - 1, NULL, 0);
    client_dropped(f);
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, len + 1, NULL, 0);
    client_dropped(f);
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, len, &fd, 1);
    client_dropped(f);
    memset(body + len - 1, ' ', 8191 - len);
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, 8192, NULL, 0);
    client_dropped(f);
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, 4096, NULL, 0);
    client_dropped(f);
    close(fd);
}

static void test_headers(struct fixture *f, gconstpointer arg)
{
    static const uint32_t sizes[] = {0, 1, 15, 0x100000 + 65, 0x7fffffff, 0xffffffff};

    for (unsigned cmd = 0; cmd <= 20; cmd++) {
        for (unsigned i = 0; i < G_N_ELEMENTS(sizes); i++) {
            struct vfio_user_hdr hdr = {1, (uint16_t)cmd, sizes[i], 0, 0};

            client_attach(f);
            client_raw(f->cl, &hdr, sizeof(hdr), NULL, 0);
            client_dropped(f);
        }
    }
    for (uint32_t type = 1; type < 16; type++) {
        struct vfio_user_hdr hdr = {1, VFIO_USER_DEVICE_RESET, 16, type, 0};

        client_attach(f);
        client_raw(f->cl, &hdr, sizeof(hdr), NULL, 0);
        client_dropped(f);
    }
    /* A header alone: too short a request for most, never a hang. */
    client_attach(f);
    for (unsigned cmd = 2; cmd <= 40; cmd++) {
        int err = client_do(f->cl, cmd, NULL, 0);

        switch (cmd) {
        case VFIO_USER_DEVICE_RESET:
            g_assert_cmpint(err, ==, 0);
            break;
        case VFIO_USER_DMA_READ:
        case VFIO_USER_DMA_WRITE:
        case VFIO_USER_DIRTY_PAGES:
        case 15: /* REGION_WRITE_MULTI: many commands in one message */
            g_assert_cmpint(err, ==, ENOTSUP);
            break;
        default:
            g_assert_cmpint(err, ==, cmd > VFIO_USER_MIG_DATA_WRITE ? ENOTSUP : EINVAL);
        }
    }
    g_assert_cmpint(client_do(f->cl, 0xffff, NULL, 0), ==, ENOTSUP);
    g_assert_cmpint(client_do(f->cl, 0, NULL, 0), ==, ENOTSUP);
}

/* Build a message into @out; returns its size. */
static uint32_t message(uint8_t *out, uint16_t id, unsigned command, const void *body,
                        uint32_t len)
{
    struct vfio_user_hdr hdr = {id, (uint16_t)command, (uint32_t)sizeof(hdr) + len, 0, 0};

    memcpy(out, &hdr, sizeof(hdr));
    if (len) {
        memcpy(out + sizeof(hdr), body, len);
    }
    return hdr.size;
}

static void expect_reply(int fd, uint16_t id, struct reply *r)
{
    client_recv(fd, r);
    g_assert_cmpuint(r->hdr.id, ==, id);
    g_assert_cmpuint(r->hdr.flags, ==, VFIO_USER_TYPE_REPLY);
}

/* VERSION, DMA_MAP with a descriptor, REGION_READ, cut in two everywhere. */
static void test_cut(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, 0x10000, PG};
    struct vfio_user_region_rw rw = {0, VFIO_USER_REGION_CONFIG, 4};
    int fd = sealed_memfd(PG);
    uint8_t body[512], msg[3][600];
    uint32_t len[3], most = 0;

    len[0] =
        message(msg[0], 1, VFIO_USER_VERSION, body, version_body(body, 0, 0, stock_json));
    len[1] = message(msg[1], 2, VFIO_USER_DMA_MAP, &map, sizeof(map));
    len[2] = message(msg[2], 3, VFIO_USER_REGION_READ, &rw, sizeof(rw));
    for (unsigned i = 0; i < 3; i++) {
        most = MAX(most, len[i]);
    }
    for (uint32_t cut = 1; cut < most; cut++) {
        f->cl = client_connect(f);
        for (unsigned i = 0; i < 3; i++) {
            uint32_t first = MIN(cut, len[i]);

            client_raw(f->cl, msg[i], first, &fd, i == 1);
            pump();
            client_raw(f->cl, msg[i] + first, len[i] - first, NULL, 0);
            expect_reply(f->cl, (uint16_t)(i + 1), r);
        }
        g_assert_cmpuint(r->len, ==, sizeof(rw) + 4);
        g_assert_cmpmem(r->body + sizeof(rw), 4, "\xad\x15\x20\x08", 4);
        g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, PG, true));
        client_close(f);
    }
    /* Byte by byte. */
    f->cl = client_connect(f);
    for (unsigned i = 0; i < 3; i++) {
        for (uint32_t b = 0; b < len[i]; b++) {
            client_raw(f->cl, msg[i] + b, 1, &fd, i == 1 && b == 0);
            pump();
        }
        expect_reply(f->cl, (uint16_t)(i + 1), r);
    }
    g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, PG, true));
    close(fd);
}

/* Messages that arrive together; descriptors belong to the one they came with.
 */
static void test_glued(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_region_rw rw = {0, VFIO_USER_REGION_CONFIG, 4};
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, 0x10000, PG};
    struct vfio_user_irq_set set = {sizeof(set), 0x24, VFIO_USER_IRQ_MSIX, 1, 1};
    int mem = sealed_memfd(PG), event = eventfd(0, EFD_CLOEXEC);
    uint8_t msg[300];
    uint32_t n;

    client_attach(f);
    n = message(msg, 1, VFIO_USER_REGION_READ, &rw, sizeof(rw));
    n += message(msg + n, 2, VFIO_USER_REGION_READ, &rw, sizeof(rw));
    n += message(msg + n, 3, VFIO_USER_DEVICE_RESET, NULL, 0);
    client_raw(f->cl, msg, n, NULL, 0);
    expect_reply(f->cl, 1, r);
    expect_reply(f->cl, 2, r);
    expect_reply(f->cl, 3, r);

    /* Three sends that the server sees at once, two of them with descriptors. */
    n = message(msg, 4, VFIO_USER_REGION_READ, &rw, sizeof(rw));
    client_raw(f->cl, msg, n, NULL, 0);
    n = message(msg, 5, VFIO_USER_DMA_MAP, &map, sizeof(map));
    client_raw(f->cl, msg, n, &mem, 1);
    n = message(msg, 6, VFIO_USER_DEVICE_SET_IRQS, &set, sizeof(set));
    client_raw(f->cl, msg, n, &event, 1);
    for (uint16_t id = 4; id <= 6; id++) {
        expect_reply(f->cl, id, r);
    }
    g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, PG, true));
    g_assert_cmpint(atomic_load(&f->vm->guest.irq.vec[1].fd), >=, 0);
    close(mem);
    close(event);
}

static void test_fd_misuse(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, 0x10000, PG};
    struct vfio_user_region_rw rw = {0, VFIO_USER_REGION_CONFIG, 4};
    g_autofree struct reply *r = g_new0(struct reply, 1);
    uint8_t msg[64];
    int fds[17];
    unsigned before;
    uint32_t n;

    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        fds[i] = sealed_memfd(PG);
    }
    client_attach(f);
    before = count_fds();
    /* Two with DMA_MAP, one with a command that takes none. */
    g_assert_cmpint(client_call(f->cl, VFIO_USER_DMA_MAP, &map, sizeof(map), fds, 2, r),
                    ==, EINVAL);
    g_assert_cmpint(client_call(f->cl, VFIO_USER_REGION_READ, &rw, sizeof(rw), fds, 1, r),
                    ==, EINVAL);
    g_assert_cmpint(client_call(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0, fds, 16, r), ==,
                    EINVAL);
    expect_fds(before);

    /* In the middle of a body, or of a header. */
    n = message(msg, 1, VFIO_USER_DMA_MAP, &map, sizeof(map));
    client_raw(f->cl, msg, 20, NULL, 0);
    pump();
    client_raw(f->cl, msg + 20, n - 20, fds, 1);
    client_dropped(f);
    client_attach(f);
    client_raw(f->cl, msg, 8, NULL, 0);
    pump();
    client_raw(f->cl, msg + 8, n - 8, fds, 1);
    client_dropped(f);

    /* More than we said we take. */
    client_attach(f);
    client_raw(f->cl, msg, n, fds, 17);
    client_dropped(f);

    /* With a message that never is complete. */
    client_attach(f);
    client_raw(f->cl, msg, n - 1, fds, 16);
    pump();
    client_close(f);
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        close(fds[i]);
    }
}

/* Every command without reply: none comes, the effect is there. */
static void test_no_reply(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_dma_map map = {sizeof(map), 3, 0, 0x10000, PG};
    struct vfio_user_irq_set set = {sizeof(set), 0x24, VFIO_USER_IRQ_MSIX, 0, 1};
    g_autofree struct reply *r = g_new0(struct reply, 1);
    uint8_t body[512];
    int mem = sealed_memfd(PG), event = eventfd(0, EFD_CLOEXEC);

    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, VFIO_USER_NO_REPLY, body,
                version_body(body, 0, 0, stock_json), NULL, 0);
    client_silent(f->cl);
    g_assert_true(f->vm->attached);
    client_send(f->cl, VFIO_USER_DMA_MAP, VFIO_USER_NO_REPLY, &map, sizeof(map), &mem, 1);
    client_send(f->cl, VFIO_USER_DEVICE_SET_IRQS, VFIO_USER_NO_REPLY, &set, sizeof(set),
                &event, 1);
    for (unsigned cmd = 0; cmd < 30; cmd++) {
        if (cmd != VFIO_USER_VERSION) {
            memset(body, 0xff, sizeof(body));
            client_send(f->cl, cmd, VFIO_USER_NO_REPLY, body, cmd * 4, NULL, 0);
            memset(body, 0, sizeof(body));
            client_send(f->cl, cmd, VFIO_USER_NO_REPLY, body, cmd * 4, NULL, 0);
        }
    }
    client_silent(f->cl);
    g_assert_nonnull(guest_ptr(&f->vm->guest.mem, 0x10000, PG, true));
    g_assert_cmpint(atomic_load(&f->vm->guest.irq.vec[0].fd), >=, 0);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    close(mem);
    close(event);
}

static void test_posted(struct fixture *f, gconstpointer arg)
{
    client_attach(f);
    for (uint32_t i = 1; i <= 1000; i++) {
        client_post(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_DSRLOW, &i, sizeof(i));
    }
    g_assert_cmpuint(client_read32(f->cl, VFIO_USER_REGION_BAR1, PVRDMA_REG_DSRLOW), ==,
                     1000);
}

/* Replies of pipelined commands come in the order of these. */
static void test_pipelined(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    uint16_t ids[300];

    client_attach(f);
    for (unsigned i = 0; i < G_N_ELEMENTS(ids); i++) {
        struct vfio_user_dma_map map = {sizeof(map), 3, 0, i * PG, PG};
        struct vfio_user_dma_unmap un = {sizeof(un), 0, (i - 1) * PG, PG};

        ids[i] =
            i % 2 ? client_send(f->cl, VFIO_USER_DMA_UNMAP, 0, &un, sizeof(un), NULL, 0)
                  : client_send(f->cl, VFIO_USER_DMA_MAP, 0, &map, sizeof(map), NULL, 0);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(ids); i++) {
        expect_reply(f->cl, ids[i], r);
    }
    client_silent(f->cl);
}

/* A client that asks on and on and reads nothing is dropped at some point. */
static void test_not_reading(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_region_rw rw = {0, PVRDMA_DB_REGION_INDEX,
                                     (uint32_t)PVRDMA_DB_REGION_SIZE};
    int sent;

    client_attach(f);
    for (sent = 0; sent < 100 && f->vm->conn; sent++) {
        client_send(f->cl, VFIO_USER_REGION_READ, 0, &rw, sizeof(rw), NULL, 0);
        pump();
    }
    g_assert_cmpint(sent, <, 100);
    g_assert_cmpint(sent, >, 3);
    g_assert_false(f->vm->attached);
    client_dropped(f);

    /* One that is slow gets all of it. */
    client_attach(f);
    for (int i = 0; i < 4; i++) {
        client_send(f->cl, VFIO_USER_REGION_READ, 0, &rw, sizeof(rw), NULL, 0);
        pump();
    }
    for (int i = 0; i < 4; i++) {
        g_autofree struct reply *r = g_new0(struct reply, 1);
        struct pvrdma_db_region *db = (void *)(r->body + sizeof(rw));

        client_recv(f->cl, r);
        g_assert_cmpuint(r->len, ==, sizeof(rw) + rw.count);
        g_assert_cmpuint(db->magic, ==, PVRDMA_DB_MAGIC);
        g_assert_cmpuint(db->srq_owner[65535], ==, PVRDMA_DB_NO_OWNER);
    }
    client_silent(f->cl);
}

/* What a client at @fd learns that is not served: its VERSION's answer, and the end. */
static int refusal(int fd)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);
    int err = client_call(fd, VFIO_USER_VERSION, body, len, NULL, 0, r);
    char byte;

    g_assert_cmpint(recv(fd, &byte, 1, MSG_DONTWAIT), ==, 0); /* no reset */
    close(fd);
    return err;
}

static void test_second_client(struct fixture *f, gconstpointer arg)
{
    int other[12];
    char byte;

    client_attach(f);
    g_assert_cmpint(refusal(client_connect(f)), ==, EBUSY);
    /* Some may take their time, no more. */
    for (unsigned i = 0; i < G_N_ELEMENTS(other); i++) {
        other[i] = client_connect(f);
    }
    g_assert_cmpint(recv(other[G_N_ELEMENTS(other) - 1], &byte, 1, MSG_DONTWAIT), ==, 0);
    close(other[1]); /* without a word */
    pump();
    g_assert_cmpint(refusal(other[0]), ==, EBUSY);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    client_close(f);
    client_attach(f);
    for (unsigned i = 2; i < G_N_ELEMENTS(other); i++) {
        close(other[i]);
    }
    pump();
}

/* In pieces, of the wrong kind, and too long. */
static void test_refused_pieces(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_hdr hdr = {1, VFIO_USER_VERSION, VFU_MAX_FIRST_MSG + 1, 0, 0};
    uint8_t msg[1024];
    g_autofree struct reply *r = g_new0(struct reply, 1);
    uint32_t len = version_body(msg + sizeof(hdr), 0, 0, stock_json);
    char byte;
    int fd;

    client_attach(f);
    fd = client_connect(f);
    client_raw(fd, &hdr, sizeof(hdr), NULL, 0);
    pump();
    g_assert_cmpint(recv(fd, &byte, 1, MSG_DONTWAIT), ==, 0);
    close(fd);

    hdr.size = (uint32_t)sizeof(hdr) + len;
    memcpy(msg, &hdr, sizeof(hdr));
    fd = client_connect(f);
    for (uint32_t i = 0; i < hdr.size; i++) {
        client_silent(fd);
        client_raw(fd, msg + i, 1, NULL, 0);
    }
    client_recv(fd, r);
    g_assert_cmpuint(r->hdr.error, ==, EBUSY);
    close(fd);
}

static void test_wrong_user(struct fixture *f, gconstpointer arg)
{
    g_autofree char *me = g_strdup_printf("%u", getuid());
    GError *err = NULL;

    g_assert_true(config_vm_set(f->vm->cfg, "uid", "4000000", &err));
    g_assert_cmpint(refusal(client_connect(f)), ==, EPERM);
    g_assert_null(f->vm->conn);
    g_assert_true(config_vm_set(f->vm->cfg, "uid", me, &err));
    client_attach(f);
    g_assert_cmpint(refusal(client_connect(f)), ==, EBUSY);
}

/* Half-close, an end in mid-message, and a connection that says nothing. */
static void test_leaving(struct fixture *f, gconstpointer arg)
{
    struct vfio_user_hdr hdr = {1, VFIO_USER_REGION_READ, 32, 0, 0};

    client_attach(f);
    shutdown(f->cl, SHUT_WR);
    client_dropped(f);
    for (uint32_t n = 0; n <= sizeof(hdr); n++) {
        client_attach(f);
        client_raw(f->cl, &hdr, n, NULL, 0);
        pump();
        client_close(f);
    }
    f->cl = client_connect(f);
    client_close(f);
}

/* Detach for a fault found by somebody else, and by request. */
static void test_fault(struct fixture *f, gconstpointer arg)
{
    gint64 begin;

    client_attach(f);
    /* Before the daemon's own time begins: this thread may be late to see the end. */
    begin = g_get_monotonic_time();
    guest_fault(&f->vm->guest, "test");
    client_dropped(f);
    client_attach(f);
    g_assert_cmpint(g_get_monotonic_time() - begin, >, 400000);

    /* Once more: it waits longer.  A client that leaves by itself need not. */
    begin = g_get_monotonic_time();
    guest_fault(&f->vm->guest, "test");
    client_dropped(f);
    client_attach(f);
    g_assert_cmpint(g_get_monotonic_time() - begin, >, 900000);
    client_close(f);
    begin = g_get_monotonic_time();
    client_attach(f);
    g_assert_cmpint(g_get_monotonic_time() - begin, <, 900000);
    g_assert_null(atomic_load(&f->vm->guest.fault));
    frontend_disconnect(f->vm, "test");
    client_dropped(f);
    frontend_disconnect(f->vm, "test");
}

static void test_listen(struct fixture *f, gconstpointer arg)
{
    g_autofree char *path = g_build_filename(f->dir, "other.sock", NULL);
    struct vm_config cfg = {.name = (char *)"other", .socket = path};
    struct vm vm = {.cfg = &cfg};
    struct vfu_listener *l, *twin;
    GError *err = NULL;
    struct stat st;
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int stale;

    /* Left over by a dead process: replaced. */
    stale = socket(AF_UNIX, SOCK_STREAM, 0);
    g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
    g_assert_cmpint(bind(stale, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    close(stale);
    umask(0077);
    l = frontend_listen(&vm, &err);
    umask(0022);
    g_assert_no_error(err);
    g_assert_cmpint(lstat(path, &st), ==, 0);
    g_assert_cmpint(st.st_mode & 0777, ==, 0660);

    /* Alive: left alone. */
    twin = frontend_listen(&vm, &err);
    g_assert_null(twin);
    g_assert_nonnull(err);
    g_clear_error(&err);
    g_assert_cmpint(lstat(path, &st), ==, 0);
    frontend_unlisten(l);
    g_assert_cmpint(lstat(path, &st), ==, -1);

    /* Not a socket: left alone. */
    g_assert_true(g_file_set_contents(path, "x", 1, NULL));
    g_assert_null(frontend_listen(&vm, &err));
    g_assert_nonnull(err);
    g_clear_error(&err);
    g_assert_cmpint(g_unlink(path), ==, 0);
    pump();
    refusals_forget(&vm);
}

/* close() of a client's descriptor may take for ever: nobody waits for it, a client
 * with many of them is sent away, and the next one waits. */
static void test_slow_fds(struct fixture *f, gconstpointer arg)
{
    g_autofree struct reply *r = g_new0(struct reply, 1);
    struct vfio_user_dma_map m = {sizeof(m), 3, 0, 0x10000, PG};
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);
    int peer[100];
    unsigned n = 0;

    client_attach(f);
    while (f->vm->conn) {
        int fd = slow_to_close(&peer[n++]);

        client_send(f->cl, VFIO_USER_DMA_MAP, 0, &m, sizeof(m), &fd, 1);
        close(fd);
        pump();
        g_assert_cmpuint(n, <, G_N_ELEMENTS(peer));
    }
    g_assert_cmpuint(n, >, 16);
    client_dropped(f);
    f->cl = client_connect(f);
    g_usleep(20000);
    client_silent(f->cl);
    g_assert_null(f->vm->conn);

    /* The file system answers at last. */
    for (unsigned i = 0; i < n; i++) {
        close(peer[i]); /* resets: nothing to wait for */
    }
    g_assert_cmpint(client_do(f->cl, VFIO_USER_VERSION, body, len), ==, 0);
}

/* Clients that are not served use up no thread that a VM's would be closed by. */
static void test_closers(struct fixture *f, gconstpointer arg)
{
    unsigned before[] = {discard_max_closers[0], discard_max_closers[1]};
    struct discard *refused[4] = {NULL}, *vm = NULL;
    int peer[4];

    alarm(60); /* what hangs would for hours */
    discard_max_closers[0] = discard_max_closers[1] = 2;
    for (unsigned i = 0; i < G_N_ELEMENTS(refused); i++) {
        discard_refused_fd(&refused[i], slow_to_close(&peer[i]));
    }
    discard_fd(&vm, dup(STDIN_FILENO));
    while (discard_waiting(vm)) {
        pump();
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(refused); i++) {
        g_assert_cmpuint(discard_waiting(refused[i]), ==, 1);
        close(peer[i]);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(refused); i++) {
        while (discard_waiting(refused[i])) {
            pump();
        }
        discard_forget(&refused[i]);
    }
    discard_forget(&vm);
    discard_max_closers[0] = before[0];
    discard_max_closers[1] = before[1];
    alarm(0);
}

/*
 * A client that is not served sends such descriptors: it disturbs neither the VMM that
 * is, nor, when that has left, the next one, nor is the VM's removal held up.
 */
static void test_refused_fds(struct fixture *f, gconstpointer arg)
{
    struct {
        struct vfio_user_hdr hdr;
        uint8_t body[512];
    } msg = {{1, VFIO_USER_VERSION, sizeof(msg), 0, 0}, {0}};
    g_autofree struct reply *r = g_new0(struct reply, 1);
    int fds[64], peer, other[2];
    uint32_t len;
    char byte;

    alarm(60); /* what hangs would for hours */
    client_attach(f);
    fds[0] = slow_to_close(&peer);
    for (unsigned i = 1; i < G_N_ELEMENTS(fds); i++) {
        fds[i] = dup(STDIN_FILENO);
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(other); i++) {
        other[i] = client_connect(f);
        client_raw(other[i], &msg, sizeof(msg), fds, G_N_ELEMENTS(fds));
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(fds); i++) {
        close(fds[i]);
    }
    pump();
    g_assert_cmpint(recv(other[0], &byte, 1, 0), <=, 0); /* a reset, maybe */
    g_assert_cmpuint(refusals_closing(f->vm), >=, 1);    /* only its last close() hangs */
    g_assert_cmpuint(discard_waiting(f->vm->discard), ==, 0);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    client_close(f);
    client_attach(f);
    g_assert_cmpint(refusal(client_connect(f)), ==, EBUSY);

    /* Too many of them: the next second client waits. */
    while (!refuse_full(f->vm)) {
        int one = client_connect(f), null = dup(STDIN_FILENO);

        client_raw(one, "x", 1, &null, 1);
        close(null);
        pump();
        close(one);
    }
    close(other[1]);
    other[1] = client_connect(f);
    len = version_body(msg.body, 0, 0, stock_json);
    client_send(other[1], VFIO_USER_VERSION, 0, msg.body, len, NULL, 0);
    client_silent(other[1]);
    g_assert_cmpint(client_do(f->cl, VFIO_USER_DEVICE_RESET, NULL, 0), ==, 0);
    close(peer); /* resets: nothing to wait for */
    client_recv(other[1], r);
    g_assert_cmpuint(r->hdr.error, ==, EBUSY);
    while (refusals_closing(f->vm)) {
        g_usleep(1000);
    }
    close(other[0]);
    close(other[1]);
    alarm(0);
}

/* ... with a byte out of band, which nobody who does not ask for it is given. */
static void test_out_of_band(struct fixture *f, gconstpointer arg)
{
    union {
        struct cmsghdr head;
        uint8_t space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec iov = {(void *)"x", 1};
    struct msghdr mh = {.msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = &control,
                        .msg_controllen = sizeof(control)};

    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof(int));
    alarm(60);
    for (unsigned served = 0; served < 2; served++) {
        int peer, slow = slow_to_close(&peer), other = -1;

        client_attach(f);
        if (!served) {
            other = client_connect(f);
        }
        memcpy(CMSG_DATA(&control.head), &slow, sizeof(slow));
        if (sendmsg(served ? f->cl : other, &mh, MSG_OOB) < 0) {
            g_assert_cmpint(errno, ==, EOPNOTSUPP); /* then there is no such thing */
        }
        close(slow);
        client_raw(served ? f->cl : other, "y", 1, NULL, 0);
        pump();
        close(peer);
        close(other);
        client_close(f);
    }
    alarm(0);
}

/* A VM is removed while such a client waits to be accepted. */
static void test_unlisten_queue(struct fixture *f, gconstpointer arg)
{
    g_autofree char *path = g_build_filename(f->dir, "other.sock", NULL);
    struct vm_config cfg = {.name = (char *)"other", .socket = path, .any_uid = true};
    struct vm vm = {.cfg = &cfg};
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), peer, slow;
    struct vfu_listener *l = frontend_listen(&vm, NULL);

    g_assert_nonnull(l);
    alarm(60);
    g_strlcpy(addr.sun_path, path, sizeof(addr.sun_path));
    g_assert_cmpint(connect(fd, (struct sockaddr *)&addr, sizeof(addr)), ==, 0);
    slow = slow_to_close(&peer);
    client_raw(fd, "x", 1, &slow, 1);
    close(slow);
    close(fd);
    frontend_unlisten(l);
    close(peer);
    while (refusals_closing(&vm)) {
        g_usleep(1000);
    }
    refusals_forget(&vm);
    alarm(0);
}

/* A VM that comes and goes faster than it is unmapped waits for that. */
static void test_piled_up(struct fixture *f, gconstpointer arg)
{
    const uint64_t gib = 1ull << 30;
    uint8_t body[512];
    uint32_t len = version_body(body, 0, 0, stock_json);
    struct budget *b = budget_new();

    f->vm->guest.mem.budget = b; /* as the last VMM left it */
    budget_set(b, 64 * gib, 100);
    for (unsigned i = 0; i < 3; i++) {
        g_assert_null(budget_take(b, 3 * gib));
        budget_retire(b, 3 * gib);
    }
    g_assert_true(guest_mem_piled_up(&f->vm->guest.mem));
    f->cl = client_connect(f);
    client_send(f->cl, VFIO_USER_VERSION, 0, body, len, NULL, 0);
    g_usleep(50000);
    client_silent(f->cl);
    g_assert_null(f->vm->conn);
    for (unsigned i = 0; i < 3; i++) {
        budget_give(b, 3 * gib, 1);
    }
    {
        g_autofree struct reply *r = g_new0(struct reply, 1);

        client_recv(f->cl, r);
        g_assert_cmpuint(r->hdr.error, ==, 0);
        g_assert_true(f->vm->attached);
    }
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
#define ADD(name)                                                                \
    g_test_add("/frontend/protocol/" #name, struct fixture, NULL, fixture_setup, \
               test_##name, fixture_teardown)
    ADD(version);
    ADD(version_misuse);
    ADD(headers);
    ADD(cut);
    ADD(glued);
    ADD(fd_misuse);
    ADD(no_reply);
    ADD(posted);
    ADD(pipelined);
    ADD(not_reading);
    ADD(second_client);
    ADD(refused_pieces);
    ADD(wrong_user);
    ADD(leaving);
    ADD(fault);
    ADD(slow_fds);
    ADD(refused_fds);
    ADD(closers);
    ADD(out_of_band);
    ADD(unlisten_queue);
    ADD(piled_up);
    ADD(listen);
    return g_test_run();
}
