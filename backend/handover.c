/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Handing over: the memfd.
 *
 *   u64  length of the list, little-endian
 *   the list: a state stream with one section, "FDS ": the numbers of all descriptors
 *   the rest: a state stream with what the rooms have put there
 *
 * A descriptor is named by its number, which execve() leaves as it is.  The list comes
 * first so that whoever reads it can see to all descriptors whatever the rest says.
 *
 * The writer is this program, perhaps of another version, so errors are not attacks; they
 * are looked for all the same, since a daemon that believes a wrong number closes
 * something else, or serves the wrong guest.
 */
#include "handover.h"

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
#define MAX_FDS  (1u << 20)
#define MAX_TEXT 65536u

#define HANDOVER_ERROR g_quark_from_static_string("pvrdma")

struct handover_in {
    void *data; /* mapped */
    size_t len;
    int memfd;
    int *fd; /* ascending */
    bool *taken;
    uint32_t n;
    struct state_in stream;
    char error[STATE_ERROR_MAX];
};

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

void handover_put_text(struct handover_out *h, const char *text)
{
    state_put_u32(&h->s, (uint32_t)strlen(text));
    state_put_bytes(&h->s, text, strlen(text));
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
    const int *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/*
 * Descriptors that are there, each once, none of the standard ones: the others in the
 * list are not this list's to close either.
 */
static void read_list(struct handover_in *h, struct state_in *s)
{
    uint32_t n = state_get_count(s, MAX_FDS, sizeof(uint32_t));

    h->fd = g_new(int, n + 1);
    h->taken = g_new0(bool, n + 1);
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        uint32_t fd = state_get_u32(s);

        if (fd <= STDERR_FILENO || fd > INT32_MAX || (int)fd == h->memfd ||
            fcntl((int)fd, F_GETFD) < 0) {
            state_fail(s, "descriptor %u is not there", fd);
            return;
        }
        h->fd[h->n++] = (int)fd;
    }
    qsort(h->fd, h->n, sizeof(h->fd[0]), compare);
    for (uint32_t i = 0; i < h->n; i++) {
        set_cloexec(h->fd[i], true);
        if (i > 0 && h->fd[i] == h->fd[i - 1]) {
            state_fail(s, "descriptor %d is there twice", h->fd[i]);
        }
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

struct handover_in *handover_open(int memfd, GError **errp)
{
    struct handover_in *h;
    struct stat st;
    void *data;

    if (memfd <= STDERR_FILENO || fcntl(memfd, F_GET_SEALS) != SEALS ||
        fstat(memfd, &st) < 0) {
        g_set_error(errp, HANDOVER_ERROR, 0, "descriptor %d is no state", memfd);
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
        g_set_error(errp, HANDOVER_ERROR, 0, "the state: %s",
                    h->error[0] ? h->error : "its beginning is wrong");
        h->n = 0; /* whose they are is not known */
        handover_close(h);
        return NULL;
    }
    return h;
}

void handover_close(struct handover_in *h)
{
    for (uint32_t i = 0; i < h->n; i++) {
        if (!h->taken[i]) {
            close(h->fd[i]);
        }
    }
    munmap(h->data, MAX(h->len, 1));
    close(h->memfd);
    g_free(h->fd);
    g_free(h->taken);
    g_free(h);
}

struct state_in *handover_stream(struct handover_in *h)
{
    return &h->stream;
}

int handover_get_fd(struct handover_in *h, struct state_in *s)
{
    int fd = (int)state_get_u32(s), *found;

    if (state_failed(s) || fd == -1) {
        return -1;
    }
    found = h->n ? bsearch(&fd, h->fd, h->n, sizeof(fd), compare) : NULL;
    if (!found || h->taken[found - h->fd]) {
        state_fail(s, "descriptor %d was not handed over", fd);
        return -1;
    }
    h->taken[found - h->fd] = true;
    return fd;
}

char *handover_get_text(struct state_in *s)
{
    uint32_t len = state_get_count(s, MAX_TEXT, 1);
    char *text = g_malloc0((gsize)len + 1);

    state_get_bytes(s, text, len);
    for (uint32_t i = 0; i < len; i++) {
        if (g_ascii_iscntrl(text[i])) {
            state_fail(s, "a text with control characters");
            text[0] = 0;
            break;
        }
    }
    return text;
}
