/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handing over: the memfd.
 *
 *   u64  length of the list, little-endian
 *   the list: a state stream with one section, "FDS ": the numbers of all descriptors
 *   the rest: a state stream with what the rooms have put there
 *
 * A descriptor is named by its number in the process that leaves it.  execve() leaves it
 * as it is; what comes by a socket is in the order of the list, and has other numbers.
 * The list comes first so that whoever reads it can see to all descriptors whatever the
 * rest says.
 *
 * The writer is this program, perhaps of another version, so errors are not attacks; they
 * are looked for all the same, since a daemon that believes a wrong number closes
 * something else, or serves the wrong guest.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)
#define TAG_FDS STATE_TAG('F', 'D', 'S', ' ')

/* Descriptors of a process, at most. */
#define MAX_FDS (1u << 20)

/* ---- leaving ---- */

void handover_out_begin(struct handover_out *h)
{
    h->bytes = g_byte_array_new();
    h->fds = g_array_new(FALSE, FALSE, sizeof(int));
    state_out_begin(&h->s, h->bytes);
}

void handover_out_clear(struct handover_out *h)
{
    g_byte_array_unref(h->bytes);
    g_array_unref(h->fds);
}

void handover_put_fd(struct handover_out *h, int fd)
{
    state_put_u32(&h->s, (uint32_t)fd);
    if (fd >= 0) {
        g_array_append_val(h->fds, fd);
    }
}

static bool write_all(int fd, const void *data, size_t len)
{
    const uint8_t *p = data;

    while (len > 0) {
        ssize_t n = write(fd, p, len);

        if (n < 0 && errno != EINTR) {
            return false;
        }
        p += MAX(n, 0);
        len -= (size_t)MAX(n, 0);
    }
    return true;
}

int handover_seal(struct handover_out *h, GError **errp)
{
    g_autoptr(GByteArray) list = g_byte_array_new();
    struct state_out s;
    uint64_t len;
    int fd, err;

    state_out_end(&h->s);
    if (h->s.cut) {
        g_set_error(errp, HANDOVER_ERROR, 0, "more than %u bytes to hand over", h->s.max);
        return -1;
    }
    state_out_begin(&s, list);
    state_section_begin(&s, TAG_FDS, 1, 0);
    state_put_u32(&s, h->fds->len);
    for (guint i = 0; i < h->fds->len; i++) {
        state_put_u32(&s, (uint32_t)g_array_index(h->fds, int, i));
    }
    state_section_end(&s);
    state_out_end(&s);
    len = GUINT64_TO_LE(list->len);

    fd = memfd_create("pvrdmad-handover", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd >= 0 && write_all(fd, &len, sizeof(len)) &&
        write_all(fd, list->data, list->len) &&
        write_all(fd, h->bytes->data, h->bytes->len) &&
        fcntl(fd, F_ADD_SEALS, SEALS) == 0) {
        return fd;
    }
    err = errno;
    if (fd >= 0) {
        close(fd);
    }
    g_set_error(errp, HANDOVER_ERROR, 0, "the memory to hand over: %s", g_strerror(err));
    return -1;
}

static void set_cloexec(int fd, bool on)
{
    fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0);
}

void handover_keep(const struct handover_out *h, int memfd, bool keep)
{
    set_cloexec(memfd, !keep);
    for (guint i = 0; i < h->fds->len; i++) {
        set_cloexec(g_array_index(h->fds, int, i), !keep);
    }
}

/* ---- taking ---- */

static int compare(const void *a, const void *b)
{
    const struct handover_fd *x = a, *y = b;

    return (x->name > y->name) - (x->name < y->name);
}

/* The names of all that was left, in its order. */
static void read_list(struct handover_in *h, struct state_in *s)
{
    uint32_t n = state_get_count(s, MAX_FDS, sizeof(uint32_t));

    h->fd = g_new0(struct handover_fd, n + 1);
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        uint32_t name = state_get_u32(s);

        if (name > INT32_MAX) {
            state_fail(s, "invalid descriptor %u", name);
            return;
        }
        h->fd[h->n++] = (struct handover_fd){.name = (int)name, .fd = -1};
    }
}

/* The list, and where the rest begins. */
static bool read_head(struct handover_in *h)
{
    struct state_section section;
    struct state_in list;
    uint64_t len;

    if (h->len < sizeof(len)) {
        return false;
    }
    memcpy(&len, h->data, sizeof(len));
    len = GUINT64_FROM_LE(len);
    if (len > h->len - sizeof(len)) {
        return false;
    }
    state_in_begin(&list, (const uint8_t *)h->data + sizeof(len), len, h->error);
    if (!state_section_next(&list, &section) || section.tag != TAG_FDS ||
        section.version != 1) {
        return false;
    }
    read_list(h, &section.in);
    state_all_read(&section.in);
    if (state_failed(&section.in)) {
        return false;
    }
    state_in_begin(&h->stream, (const uint8_t *)h->data + sizeof(len) + len,
                   h->len - sizeof(len) - len, h->error);
    return !state_failed(&h->stream);
}

struct handover_in *handover_map(int memfd, GError **errp)
{
    struct handover_in *h;
    struct stat st;
    void *data;

    if (memfd <= STDERR_FILENO || fcntl(memfd, F_GET_SEALS) != SEALS ||
        fstat(memfd, &st) < 0) {
        g_set_error(errp, HANDOVER_ERROR, 0, "descriptor %d is not a state", memfd);
        return NULL;
    }
    data = mmap(NULL, MAX((size_t)st.st_size, 1), PROT_READ, MAP_PRIVATE, memfd, 0);
    if (data == MAP_FAILED) {
        g_set_error(errp, HANDOVER_ERROR, 0, "the state: %s", g_strerror(errno));
        return NULL;
    }
    h = g_new0(struct handover_in, 1);
    h->data = data;
    h->len = (size_t)st.st_size;
    h->memfd = memfd;
    set_cloexec(memfd, true);
    if (!read_head(h)) {
        handover_refuse(h, "invalid header", errp);
        return NULL;
    }
    return h;
}

void handover_refuse(struct handover_in *h, const char *why, GError **errp)
{
    g_set_error(errp, HANDOVER_ERROR, 0, "the state: %s", h->error[0] ? h->error : why);
    h->memfd = -1;
    handover_close(h);
}

bool handover_sort(struct handover_in *h)
{
    qsort(h->fd, h->n, sizeof(h->fd[0]), compare);
    for (uint32_t i = 1; i < h->n; i++) {
        if (h->fd[i].name == h->fd[i - 1].name) {
            state_fail(&h->stream, "descriptor %d is listed twice", h->fd[i].name);
            return false;
        }
    }
    return true;
}

/*
 * Descriptors that are there, each once, none of the standard ones: the others in the
 * list are not this list's to close either.
 */
static bool keep_numbers(struct handover_in *h)
{
    if (!handover_sort(h)) {
        return false;
    }
    for (uint32_t i = 0; i < h->n; i++) {
        int fd = h->fd[i].name;

        if (fd <= STDERR_FILENO || fd == h->memfd || fcntl(fd, F_GETFD) < 0) {
            state_fail(&h->stream, "descriptor %d is missing", fd);
            return false;
        }
    }
    for (uint32_t i = 0; i < h->n; i++) {
        h->fd[i].fd = h->fd[i].name;
        set_cloexec(h->fd[i].fd, true);
    }
    return true;
}

struct handover_in *handover_open(int memfd, GError **errp)
{
    struct handover_in *h = handover_map(memfd, errp);

    if (h && !keep_numbers(h)) { /* whose they are is not known */
        handover_refuse(h, "invalid list of descriptors", errp);
        return NULL;
    }
    return h;
}

void handover_close(struct handover_in *h)
{
    for (uint32_t i = 0; i < h->n; i++) {
        if (h->fd[i].fd >= 0 && !h->fd[i].taken) {
            close(h->fd[i].fd);
        }
    }
    munmap(h->data, MAX(h->len, 1));
    if (h->memfd >= 0) {
        close(h->memfd);
    }
    g_free(h->fd);
    g_free(h);
}

struct state_in *handover_stream(struct handover_in *h)
{
    return &h->stream;
}

int handover_get_fd(struct handover_in *h, struct state_in *s)
{
    struct handover_fd key = {.name = (int)state_get_u32(s)}, *found;

    if (state_failed(s) || key.name == -1) {
        return -1;
    }
    found = h->n ? bsearch(&key, h->fd, h->n, sizeof(key), compare) : NULL;
    if (!found || found->taken || found->fd < 0) {
        state_fail(s, "descriptor %d was not handed over", key.name);
        return -1;
    }
    found->taken = true;
    return found->fd;
}
