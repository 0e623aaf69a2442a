/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What a daemon that takes another one's place needs of a guest besides its device's
 * state: the descriptors by which its VMM shares memory, doorbells and interrupts with
 * us, and what they are for.
 *
 * The guest runs meanwhile.  What it asks for by its doorbell region, arm words above
 * all, may have come after the state was saved, so the region's content is left as it is
 * and counts, not what the state has of it; all but the words that say whose a handle is,
 * which are the daemon's.
 *
 * Main thread; the data path of the VM stands still.
 */
#include "guest/restart.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/guest.h"

/* ---- memory ---- */

/* With the place of its file among those. */
RECORD(range_record, struct guest_mem_range, FIELD(gpa), FIELD(size), FIELD(offset),
       FIELD(flags))

/* Files first, each once, then the ranges with the places of their files. */
static void mem_hand_over(struct guest_mem *mem, struct handover_out *h)
{
    unsigned n = guest_mem_ranges(mem);
    g_autoptr(GArray) files = g_array_new(FALSE, FALSE, sizeof(int));
    g_autoptr(GHashTable) place = g_hash_table_new(NULL, NULL);
    struct guest_mem_range r;

    for (unsigned i = 0; i < n; i++) {
        guest_mem_range(mem, i, &r);
        if (r.fd >= 0 && !g_hash_table_contains(place, GINT_TO_POINTER(r.fd))) {
            g_hash_table_insert(place, GINT_TO_POINTER(r.fd),
                                GUINT_TO_POINTER(files->len));
            g_array_append_val(files, r.fd);
        }
    }
    state_put_u32(&h->s, files->len);
    for (guint i = 0; i < files->len; i++) {
        handover_put_fd(h, g_array_index(files, int, i));
    }
    state_put_u32(&h->s, n);
    for (unsigned i = 0; i < n; i++) {
        guest_mem_range(mem, i, &r);
        state_put_record(&h->s, range_record, &r);
        state_put_u32(&h->s, r.fd < 0 ? UINT32_MAX
                                      : GPOINTER_TO_UINT(g_hash_table_lookup(
                                            place, GINT_TO_POINTER(r.fd))));
    }
}

static void mem_adopt_range(struct guest_mem *mem, const int *files, uint32_t n_files,
                            struct state_in *s)
{
    struct guest_mem_range r;
    uint32_t file;
    int err;

    state_get_record(s, range_record, &r);
    file = state_get_u32(s);
    if (file != UINT32_MAX && file >= n_files) {
        state_fail(s, "a range of memory without a file");
    }
    if (state_failed(s)) {
        return;
    }
    err = guest_mem_map(mem, file == UINT32_MAX ? -1 : files[file], r.offset, r.gpa,
                        r.size, r.flags);
    if (err) {
        state_fail(s, "memory cannot be mapped again: %s", g_strerror(err));
    }
}

static void mem_adopt(struct guest_mem *mem, struct handover_in *h, struct state_in *s)
{
    uint32_t n_files = state_get_count(s, GUEST_MEM_MAX_REGIONS, sizeof(uint32_t)), n;
    g_autofree int *files = g_new(int, n_files + 1);

    for (uint32_t i = 0; i < n_files; i++) {
        files[i] = handover_get_fd(h, s);
    }
    n = state_get_count(s, GUEST_MEM_MAX_REGIONS,
                        RECORD_WIDTH(range_record) + sizeof(uint32_t));
    for (uint32_t i = 0; i < n && !state_failed(s); i++) {
        mem_adopt_range(mem, files, n_files, s);
    }
    for (uint32_t i = 0; i < n_files; i++) {
        if (files[i] >= 0) {
            close(files[i]);
        }
    }
}

/* ---- interrupts ---- */

/* What is latched is the device's. */
static void irq_hand_over(struct guest_irq *irq, struct handover_out *h)
{
    state_put_u32(&h->s, IRQ_VECTORS);
    for (unsigned i = 0; i < IRQ_VECTORS; i++) {
        handover_put_fd(h, atomic_load(&irq->vec[i].fd));
        state_put_u8(&h->s, atomic_load(&irq->vec[i].masked));
    }
}

static void irq_adopt(struct guest_irq *irq, struct handover_in *h, struct state_in *s)
{
    uint32_t n = state_get_count(s, IRQ_VECTORS, 5);

    for (uint32_t i = 0; i < n; i++) {
        int fd = handover_get_fd(h, s);

        irq_mask(irq, i, state_get_bool(s));
        if (fd >= 0 && (!irq_is_eventfd(fd) || irq_assign(irq, i, fd) != 0)) {
            state_fail(s, "an interrupt descriptor that is not an eventfd");
            close(fd);
        }
    }
}

/* ---- all ---- */

bool guest_can_hand_over(struct guest *g)
{
    struct guest_mem_range r;

    for (unsigned i = 0; i < guest_mem_ranges(&g->mem); i++) {
        if (!guest_mem_range(&g->mem, i, &r)) {
            return false;
        }
    }
    return true;
}

void guest_hand_over(struct guest *g, struct handover_out *h)
{
    handover_put_fd(h, g->db.memfd);
    handover_put_fd(h, g->db.eventfd);
    irq_hand_over(&g->irq, h);
    dirty_hand_over(&g->mem, h);
    mem_hand_over(&g->mem, h);
}

bool guest_adopt_doorbells(struct handover_in *h, struct state_in *s, int *memfd,
                           int *eventfd)
{
    const int sealed = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat st;

    *memfd = handover_get_fd(h, s);
    *eventfd = handover_get_fd(h, s);
    if (*memfd >= 0 && *eventfd >= 0 && irq_is_eventfd(*eventfd) &&
        fstat(*memfd, &st) == 0 && st.st_size == PVRDMA_DB_REGION_SIZE &&
        (fcntl(*memfd, F_GET_SEALS) & sealed) == sealed) {
        return true;
    }
    state_fail(s, "the doorbells' descriptor is missing");
    if (*memfd >= 0) {
        close(*memfd);
    }
    if (*eventfd >= 0) {
        close(*eventfd);
    }
    return false;
}

void guest_adopt(struct guest *g, struct handover_in *h, struct state_in *s)
{
    irq_adopt(&g->irq, h, s);
    dirty_adopt(&g->mem, h, s);
    mem_adopt(&g->mem, h, s);
}
