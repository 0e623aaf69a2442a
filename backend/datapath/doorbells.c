/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Doorbell maps: where a worker learns which queues to look at.
 *
 * Three kinds of source have the same form, a summary of 16 words over 1024
 * words of 64 handles each: the daemon's own region, the region shared with the
 * VMM (doorbell.h), and the extension memory of each guest context (ext.h),
 * which lies in guest RAM.  A bit only says "look"; the worker clears summary
 * bits before words, and words before it reads ring indices, so whatever is
 * posted after its look sets a bit again.  A guest that floods the maps costs
 * at most TURN_WORDS words a turn, MAP_WORDS of each map, and the next turn goes
 * on where this one stopped, so that no queue is left out.
 *
 * Threads: scanning by the VM's worker with the token; contexts come and go on
 * the main thread, which publishes a new list and waits for quiescence.
 */
#include "engine.h"
#include "pvrdma/ext.h"

/* Doorbell words (64 handles each) taken per turn, and of one map. */
#define TURN_WORDS 32u
#define MAP_WORDS  8u

/* Words per guest page of an extension map. */
#define HALF (PVRDMA_DB_WORDS / 2)

/* One map; the words may lie in two pieces. */
struct map_view {
    uint64_t *summary;
    uint64_t *words[2];
};

/* The extension memory of one context. */
struct ext_ctx {
    const uint64_t *page; /* PVRDMA_EXT_PAGES guest-physical addresses */
    /* Where it is, for the worker: good for one generation of the DMA map. */
    uint64_t generation;
    bool mapped;
    struct map_view map[2]; /* send, receive */
    unsigned pos[2];        /* where the next scan of each begins */
};

struct ext_list {
    unsigned n;
    _Atomic bool fresh; /* a context came: its kick word is still set */
    struct ext_ctx ctx[];
};

typedef void (*found_fn)(struct vm *vm, uint32_t handle);

/* Summary words that can have a bit for a handle of this VM. */
static unsigned summary_words(const struct vm *vm)
{
    return (vm->cfg->max_qp + 4095) / 4096;
}

static struct map_view region_view(struct pvrdma_db_map *map)
{
    return (struct map_view){map->summary, {map->words, map->words + HALF}};
}

static bool find_map(struct vm *vm, const uint64_t *page, struct map_view *v)
{
    v->summary = guest_ptr(&vm->guest.mem, page[0], PVRDMA_PAGE_SIZE, true);
    v->words[0] = guest_ptr(&vm->guest.mem, page[1], PVRDMA_PAGE_SIZE, true);
    v->words[1] = guest_ptr(&vm->guest.mem, page[2], PVRDMA_PAGE_SIZE, true);
    return v->summary && v->words[0] && v->words[1];
}

/* Look @c's pages up if the DMA map changed.  False: they are not all mapped. */
static bool ext_mapped(struct vm *vm, struct ext_ctx *c)
{
    uint64_t generation = guest_mem_generation(&vm->guest.mem);

    if (c->generation != generation) {
        c->generation = generation;
        c->mapped = find_map(vm, c->page + 1, &c->map[0]) &&
                    find_map(vm, c->page + 4, &c->map[1]);
    }
    return c->mapped;
}

/*
 * Take words of a map from *pos on, around it once, at most MAP_WORDS and as many
 * as *left says, which goes down.
 */
static void scan_map(struct vm *vm, const struct map_view *v, unsigned *pos,
                     unsigned *left, found_fn found)
{
    unsigned n = summary_words(vm), first = *pos / 64 % n, taken = 0;
    unsigned max = MIN(MAP_WORDS, *left);
    uint64_t before = (1ull << *pos % 64) - 1; /* these words come last */

    for (unsigned k = 0; k <= n && taken < max; k++) {
        unsigned s = (first + k) % n;
        uint64_t mine = k == 0 ? ~before : k == n ? before : UINT64_MAX;
        uint64_t sum = __atomic_load_n(&v->summary[s], __ATOMIC_RELAXED), rest;

        if (!(sum & mine)) {
            continue;
        }
        sum = __atomic_exchange_n(&v->summary[s], 0, __ATOMIC_SEQ_CST);
        rest = sum & ~mine;
        sum &= mine;
        while (sum && taken < max) {
            unsigned w = s * 64 + (unsigned)__builtin_ctzll(sum);
            uint64_t bits =
                __atomic_exchange_n(&v->words[w / HALF][w % HALF], 0, __ATOMIC_SEQ_CST);

            sum &= sum - 1;
            taken++;
            *pos = w + 1;
            while (bits) {
                found(vm, w * 64 + (unsigned)__builtin_ctzll(bits));
                bits &= bits - 1;
            }
        }
        if (sum | rest) {
            __atomic_fetch_or(&v->summary[s], sum | rest, __ATOMIC_SEQ_CST);
        }
    }
    if (taken < max) {
        *pos = 0; /* all of it was seen */
    }
    *left -= taken;
}

static bool map_pending(const struct vm *vm, const uint64_t *summary)
{
    for (unsigned s = 0; s < summary_words(vm); s++) {
        if (__atomic_load_n(&summary[s], __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

bool doorbells_scan(struct vm *vm, found_fn send, found_fn recv)
{
    struct pvrdma_db_region *region[] = {vm->guest.db.own, vm->guest.db.shared};
    struct ext_list *ext = atomic_load(&vm->dp.ext);
    unsigned n = DATAPATH_REGION_MAPS + (ext ? 2 * ext->n : 0), left = TURN_WORDS;
    unsigned first = vm->dp.scan_map % n, k;

    if (ext && atomic_load_explicit(&ext->fresh, memory_order_relaxed)) {
        /*
         * Here the worker is awake.  One that always is would never come to
         * clear the word on waking, and each post of that context would ring.
         */
        atomic_store(&ext->fresh, false);
        doorbells_set_kick(vm, 0);
    }
    for (k = 0; k < n && left; k++) {
        unsigned m = (first + k) % n;
        bool is_recv = m & 1;
        found_fn found = is_recv ? recv : send;

        if (m < DATAPATH_REGION_MAPS) {
            struct pvrdma_db_region *r = region[m / 2];
            struct map_view v = region_view(is_recv ? &r->recv : &r->send);

            scan_map(vm, &v, &vm->dp.scan_pos[m], &left, found);
        } else {
            struct ext_ctx *c = &ext->ctx[(m - DATAPATH_REGION_MAPS) / 2];

            if (ext_mapped(vm, c)) {
                scan_map(vm, &c->map[is_recv], &c->pos[is_recv], &left, found);
            }
        }
    }
    vm->dp.scan_map = left ? 0 : first + k;
    return left != TURN_WORDS;
}

bool doorbells_pending(struct vm *vm)
{
    struct pvrdma_db_region *region[] = {vm->guest.db.own, vm->guest.db.shared};
    struct ext_list *ext = atomic_load(&vm->dp.ext);
    bool any = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(region) && !any; i++) {
        any = map_pending(vm, region[i]->send.summary) ||
              map_pending(vm, region[i]->recv.summary);
    }
    for (unsigned i = 0; ext && i < ext->n && !any; i++) {
        struct ext_ctx *c = &ext->ctx[i];

        any = ext_mapped(vm, c) &&
              (map_pending(vm, c->map[0].summary) || map_pending(vm, c->map[1].summary));
    }
    return any;
}

void doorbells_set_kick(struct vm *vm, uint32_t kick)
{
    struct ext_list *ext = atomic_load(&vm->dp.ext);

    __atomic_store_n(&vm->guest.db.shared->kick, kick, __ATOMIC_RELEASE);
    for (unsigned i = 0; ext && i < ext->n; i++) {
        uint32_t *word = guest_ptr(&vm->guest.mem, ext->ctx[i].page[0], 4, true);

        if (word) {
            __atomic_store_n(word, kick, __ATOMIC_RELEASE);
            guest_mark_dirty(&vm->guest.mem, ext->ctx[i].page[0], 4);
        }
    }
}

/* ---- contexts; main thread ----------------------------------------------- */

static void list_publish(struct vm *vm, struct ext_list *l)
{
    struct ext_list *old = atomic_exchange(&vm->dp.ext, l);

    datapath_wake(vm);
    grace_wait();
    g_free(old);
}

void datapath_ext_add(struct vm *vm, const struct ring_mem *mem)
{
    struct ext_list *old = atomic_load(&vm->dp.ext);
    unsigned n = old ? old->n : 0;
    struct ext_list *l = g_malloc0(sizeof(*l) + (n + 1) * sizeof(l->ctx[0]));
    uint32_t *kick = guest_ptr(&vm->guest.mem, mem->page[0], 4, true);

    if (kick) {
        /* Until the worker has the new list, every post rings. */
        __atomic_store_n(kick, 1, __ATOMIC_RELEASE);
    }
    for (unsigned i = 0; i < n; i++) {
        l->ctx[l->n++].page = old->ctx[i].page;
    }
    l->ctx[l->n++].page = mem->page;
    atomic_store(&l->fresh, true);
    list_publish(vm, l);
}

void datapath_ext_clear(struct vm *vm)
{
    if (atomic_load(&vm->dp.ext)) {
        list_publish(vm, NULL);
    }
}

void datapath_ext_remove(struct vm *vm, const struct ring_mem *mem)
{
    struct ext_list *old = atomic_load(&vm->dp.ext), *l;

    l = g_malloc0(sizeof(*l) + old->n * sizeof(l->ctx[0]));
    for (unsigned i = 0; i < old->n; i++) {
        if (old->ctx[i].page != mem->page) {
            l->ctx[l->n++].page = old->ctx[i].page;
        }
    }
    atomic_store(&l->fresh, atomic_load(&old->fresh));
    list_publish(vm, l);
}
