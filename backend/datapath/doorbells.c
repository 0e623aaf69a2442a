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
 * at most TURN_BITS bits a turn, MAP_BITS of each map, and the next turn goes
 * on where this one stopped, so that no queue is left out.
 *
 * A VM with many contexts has only those looked at that were used lately; the kick
 * word of the others is set, so a post there comes as a doorbell of the VMM, whose
 * region is looked at always, and the context is looked at again from then on.
 *
 * Threads: scanning by the VM's worker with the token; contexts come and go on
 * the main thread, which publishes a new list and waits for a grace period.
 */
#include "engine.h"
#include "pvrdma/ext.h"

/* Bits taken per turn, and of one map; both may be exceeded by a word's. */
#define TURN_BITS 128u
#define MAP_BITS  64u

/* So many contexts of a VM are looked at even if they are idle, and so long. */
#define KEEP_CONTEXTS   8u
#define KEEP_CONTEXT_NS 1000000u

/* Contexts looked at in one look, in rotation. */
#define LOOK_CONTEXTS 8u

/* Words per guest page of an extension map. */
#define HALF (PVRDMA_DB_WORDS / 2)

/* One map; the words may lie in two pieces. */
struct map_view {
    unsigned n; /* summary words that can have a bit */
    uint64_t *summary;
    uint64_t *words[2];
    const uint64_t *page; /* where in guest memory; NULL: not there */
};

/* The extension memory of one context.  The worker's, but for page. */
struct ext_ctx {
    const uint64_t *page; /* PVRDMA_EXT_PAGES guest-physical addresses */
    unsigned index;       /* in the list */
    /* Where it is: good for one generation of the DMA map. */
    uint64_t generation;
    bool mapped;
    struct map_view map[2]; /* send, receive */
    unsigned pos[2];        /* where the next scan of each begins */
    bool kicking;           /* its kick word is set */
    bool kick_unknown;      /* or it is not: it came with the guest's memory */
    uint64_t idle_since;    /* ns; 0: it had a bit at the last look */
};

#define EXT_WORDS (VERBS_MAX_UAR / 64)

struct ext_list {
    unsigned n;
    uint64_t active[EXT_WORDS]; /* the worker's: contexts that are looked at */
    unsigned n_active;
    struct ext_ctx *ctx[];
};

typedef void (*found_fn)(struct vm *vm, uint32_t handle);

/* Summary words that can have a bit for one of @handles handles. */
static unsigned summary_words(uint32_t handles)
{
    return (handles + 4095) / 4096;
}

/* The maps of a region: 0 send, 1 receive, 2 SRQ. */
static struct map_view region_view(const struct vm *vm, struct pvrdma_db_region *r,
                                   unsigned kind)
{
    struct pvrdma_db_map *map = kind == 0 ? &r->send : kind == 1 ? &r->recv : &r->srq;

    return (struct map_view){
        .n = summary_words(kind == 2 ? vm->cfg->max_srq : vm->cfg->max_qp),
        .summary = map->summary,
        .words = {map->words, map->words + HALF},
    };
}

/* Most VMs never have one: their maps are not looked at. */
static bool had_srqs(const struct vm *vm)
{
    return id_table_end(&vm->objects.srq) != 0;
}

static bool find_map(struct vm *vm, const uint64_t *page, struct map_view *v)
{
    v->n = summary_words(vm->cfg->max_qp);
    v->summary = guest_ptr(&vm->guest.mem, page[0], PVRDMA_PAGE_SIZE, true);
    v->words[0] = guest_ptr(&vm->guest.mem, page[1], PVRDMA_PAGE_SIZE, true);
    v->words[1] = guest_ptr(&vm->guest.mem, page[2], PVRDMA_PAGE_SIZE, true);
    v->page = page;
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

/* Page @i of the map was stored to. */
static void map_dirty(struct vm *vm, const struct map_view *v, unsigned i)
{
    if (v->page) {
        guest_mark_dirty(&vm->guest.mem, v->page[i], PVRDMA_PAGE_SIZE);
    }
}

/*
 * Take words of a map from *pos on, around it once, until there were MAP_BITS bits,
 * or as many as *left says, which goes down, or the turn is over.
 */
static void scan_map(struct vm *vm, struct turn *t, const struct map_view *v,
                     unsigned *pos, unsigned *left, found_fn found)
{
    unsigned n = v->n, first = *pos / 64 % n, taken = 0;
    unsigned max = MIN(MAP_BITS, *left);
    uint64_t before = (1ull << *pos % 64) - 1; /* these words come last */

    for (unsigned k = 0; k <= n && taken < max; k++) {
        unsigned s = (first + k) % n;
        uint64_t mine = k == 0 ? ~before : k == n ? before : UINT64_MAX;
        uint64_t sum = __atomic_load_n(&v->summary[s], __ATOMIC_RELAXED), rest;

        if (!(sum & mine)) {
            continue;
        }
        sum = __atomic_exchange_n(&v->summary[s], 0, __ATOMIC_SEQ_CST);
        map_dirty(vm, v, 0);
        rest = sum & ~mine;
        sum &= mine;
        while (sum && taken < max) {
            unsigned w = s * 64 + (unsigned)__builtin_ctzll(sum);
            uint64_t bits =
                __atomic_exchange_n(&v->words[w / HALF][w % HALF], 0, __ATOMIC_SEQ_CST);

            map_dirty(vm, v, 1 + w / HALF);
            sum &= sum - 1;
            taken++; /* a word without bits costs as much */
            *pos = w + 1;
            while (bits) {
                found(vm, w * 64 + (unsigned)__builtin_ctzll(bits));
                bits &= bits - 1;
                taken++;
                turn_spent(t, 1); /* each may find its queue in no cache, or not there */
            }
            if (t->now >= t->end) {
                taken = MAX(taken, max);
            }
        }
        if (sum | rest) {
            __atomic_fetch_or(&v->summary[s], sum | rest, __ATOMIC_SEQ_CST);
            map_dirty(vm, v, 0);
        }
    }
    if (taken < max) {
        *pos = 0; /* all of it was seen */
    }
    *left -= MIN(taken, *left);
}

static bool map_pending(uint32_t handles, const uint64_t *summary)
{
    for (unsigned s = 0; s < summary_words(handles); s++) {
        if (__atomic_load_n(&summary[s], __ATOMIC_RELAXED)) {
            return true;
        }
    }
    return false;
}

/* ---- contexts on the worker -------------------------------------------------- */

/* Store the kick word of @c. */
static void set_kick(struct vm *vm, struct ext_ctx *c, bool kick)
{
    if ((c->kicking != kick || c->kick_unknown) && ring_store(vm, c->page[0], kick)) {
        c->kicking = kick;
        c->kick_unknown = false;
    }
}

static bool ctx_pending(struct vm *vm, struct ext_ctx *c)
{
    return ext_mapped(vm, c) && (map_pending(vm->cfg->max_qp, c->map[0].summary) ||
                                 map_pending(vm->cfg->max_qp, c->map[1].summary));
}

/* The next context that is looked at, from @i on; >= n: none. */
static unsigned next_active(const struct ext_list *l, unsigned i)
{
    for (unsigned w = i / 64; w < EXT_WORDS; w++) {
        uint64_t bits = l->active[w];

        if (w == i / 64) {
            bits &= UINT64_MAX << (i % 64);
        }
        if (bits) {
            return w * 64 + (unsigned)__builtin_ctzll(bits);
        }
    }
    return l->n;
}

static void context_activate(struct ext_list *l, struct ext_ctx *c)
{
    uint64_t bit = 1ull << (c->index % 64);

    if (!(l->active[c->index / 64] & bit)) {
        l->active[c->index / 64] |= bit;
        l->n_active++;
        c->idle_since = 0;
    }
}

/* Stop looking at it, unless it has a bit after all. */
static void context_park(struct vm *vm, struct ext_list *l, struct ext_ctx *c)
{
    set_kick(vm, c, true);
    full_barrier();
    if (c->kicking && !c->kick_unknown && !ctx_pending(vm, c)) {
        l->active[c->index / 64] &= ~(1ull << (c->index % 64));
        l->n_active--;
    }
}

static void scan_context(struct vm *vm, struct turn *t, struct ext_list *l,
                         struct ext_ctx *c, unsigned *left, found_fn send, found_fn recv)
{
    unsigned before = *left;

    if (!ext_mapped(vm, c)) {
        return;
    }
    set_kick(vm, c, false);
    scan_map(vm, t, &c->map[0], &c->pos[0], left, send);
    scan_map(vm, t, &c->map[1], &c->pos[1], left, recv);
    if (*left != before) {
        c->idle_since = 0;
    } else if (!c->idle_since) {
        c->idle_since = t->now;
    } else if (l->n_active > KEEP_CONTEXTS && t->now - c->idle_since > KEEP_CONTEXT_NS) {
        context_park(vm, l, c);
    }
}

void doorbells_context_rang(struct qp *qp)
{
    struct vm *vm = qp->vm;
    struct ext_list *l = atomic_load(&vm->dp.ext);
    const struct ring_mem *mem =
        qp->pd->uctx ? &qp->pd->uctx->ext : &vm->objects.kernel_ext;

    if (l && l->n_active < l->n && mem->ctx) {
        context_activate(l, mem->ctx);
    }
}

/* ---- looking ------------------------------------------------------------------- */

bool doorbells_scan(struct vm *vm, struct turn *t, const struct doorbell_calls *calls)
{
    struct guest_doorbells *db = &vm->guest.db;
    struct pvrdma_db_region *region[] = {db->own, db->shared};
    const found_fn found[] = {calls->send, calls->recv, calls->srq};
    struct ext_list *l = atomic_load(&vm->dp.ext);
    unsigned n = DATAPATH_REGION_MAPS + (l ? l->n : 0), left = TURN_BITS, k;
    unsigned first = vm->dp.scan_map % n;

    if (vm->dp.kicking) {
        vm->dp.kicking = false;
        __atomic_store_n(&db->shared->kick, 0, __ATOMIC_RELEASE);
    }
    for (k = 0; k < n && left && t->now < t->end; k++) {
        unsigned m = (first + k) % n;

        if (m < DATAPATH_REGION_MAPS) {
            struct map_view v = region_view(vm, region[m / 3], m % 3);

            if (m % 3 != 2 || had_srqs(vm)) {
                scan_map(vm, t, &v, &vm->dp.scan_pos[m], &left, found[m % 3]);
            }
        } else {
            unsigned i = next_active(l, m - DATAPATH_REGION_MAPS);

            /* It may pass n: behind @first are those that were looked at already. */
            k += i - (m - DATAPATH_REGION_MAPS);
            if (i < l->n) {
                scan_context(vm, t, l, l->ctx[i], &left, calls->send, calls->recv);
            } else {
                k--; /* the loop's own step */
            }
        }
    }
    vm->dp.scan_map = k == n ? 0 : first + k;
    return left != TURN_BITS;
}

bool doorbells_pending(struct vm *vm, bool all)
{
    struct guest_doorbells *db = &vm->guest.db;
    struct pvrdma_db_region *region[] = {db->own, db->shared};
    struct ext_list *l = atomic_load(&vm->dp.ext);
    bool any = false;

    for (unsigned i = 0; i < G_N_ELEMENTS(region) && !any; i++) {
        any = map_pending(vm->cfg->max_qp, region[i]->send.summary) ||
              map_pending(vm->cfg->max_qp, region[i]->recv.summary) ||
              (had_srqs(vm) && map_pending(vm->cfg->max_srq, region[i]->srq.summary));
    }
    if (l && l->n_active) {
        unsigned i = all ? 0 : vm->dp.look_context;
        unsigned looks = all ? l->n_active : MIN(l->n_active, LOOK_CONTEXTS);

        for (; looks && !any; looks--) {
            i = next_active(l, i);
            i = i < l->n ? i : next_active(l, 0);
            any = ctx_pending(vm, l->ctx[i++]);
        }
        vm->dp.look_context = i < l->n ? i : 0;
    }
    return any;
}

void doorbells_set_kick(struct vm *vm)
{
    struct ext_list *l = atomic_load(&vm->dp.ext);

    vm->dp.kicking = true;
    __atomic_store_n(&vm->guest.db.shared->kick, 1, __ATOMIC_RELEASE);
    for (unsigned i = l ? next_active(l, 0) : 0; l && i < l->n;
         i = next_active(l, i + 1)) {
        set_kick(vm, l->ctx[i], true);
    }
}

/* ---- contexts; main thread ----------------------------------------------- */

/* A list of @n contexts, all of which are looked at. */
static struct ext_list *list_new(unsigned n)
{
    struct ext_list *l = g_malloc0(sizeof(*l) + n * sizeof(l->ctx[0]));

    l->n = l->n_active = n;
    for (unsigned i = 0; i < n; i++) {
        l->active[i / 64] |= 1ull << (i % 64);
    }
    return l;
}

/*
 * Put @l in place of the old list, which is returned when the worker has let go of it,
 * to be freed with the contexts that are not in @l.  @left: whose context is one of
 * them, or NULL.
 */
static struct ext_list *list_replace(struct vm *vm, struct ext_list *l,
                                     struct ring_mem *left)
{
    struct ext_list *old;

    vm_token_take(vm); /* the worker renumbers nothing, and follows no ->ctx */
    for (unsigned i = 0; l && i < l->n; i++) {
        l->ctx[i]->index = i;
    }
    if (left) {
        left->ctx = NULL;
    }
    old = atomic_exchange(&vm->dp.ext, l);
    vm_token_release(vm);
    grace_wait();
    return old;
}

void datapath_ext_add(struct vm *vm, struct ring_mem *mem)
{
    struct ext_list *old = atomic_load(&vm->dp.ext);
    unsigned n = old ? old->n : 0;
    struct ext_list *l = list_new(n + 1);
    struct ext_ctx *c = g_new0(struct ext_ctx, 1);

    c->page = mem->page;
    /* Until the worker looks, every post rings. */
    c->kicking = ring_store(vm, c->page[0], 1);
    for (unsigned i = 0; i < n; i++) {
        l->ctx[i] = old->ctx[i];
    }
    l->ctx[n] = c;
    mem->ctx = c;
    g_free(list_replace(vm, l, NULL));
}

void datapath_ext_clear(struct vm *vm)
{
    struct ext_list *old;

    if (!atomic_load(&vm->dp.ext)) {
        return;
    }
    /* Contexts with a handle go with their QPs; the kernel's has to be forgotten. */
    old = list_replace(vm, NULL, &vm->objects.kernel_ext);
    for (unsigned i = 0; i < old->n; i++) {
        g_free(old->ctx[i]);
    }
    g_free(old);
}

void datapath_ext_remove(struct vm *vm, struct ring_mem *mem)
{
    struct ext_list *old = atomic_load(&vm->dp.ext), *l = list_new(old->n - 1);
    struct ext_ctx *gone = mem->ctx;
    unsigned n = 0;

    for (unsigned i = 0; i < old->n; i++) {
        if (old->ctx[i] != gone) {
            l->ctx[n++] = old->ctx[i];
        }
    }
    g_free(list_replace(vm, l, mem));
    g_free(gone);
}

static void ext_append(struct ext_list *l, struct ring_mem *mem)
{
    struct ext_ctx *c;

    if (mem->npages) {
        c = g_new0(struct ext_ctx, 1);
        c->page = mem->page;
        c->kick_unknown = true;
        mem->ctx = c;
        l->ctx[l->n++] = c;
    }
}

void datapath_ext_load(struct vm *vm)
{
    struct objects *v = &vm->objects;
    struct ext_list *all = list_new(v->uctx.used + 1), *l;

    all->n = 0;
    ext_append(all, &v->kernel_ext);
    for (uint32_t i = 1; i < id_table_end(&v->uctx); i++) {
        struct uctx *uctx = id_table_get(&v->uctx, i);

        if (uctx) {
            ext_append(all, &uctx->ext);
        }
    }
    if (all->n) {
        l = list_new(all->n);
        memcpy(l->ctx, all->ctx, all->n * sizeof(l->ctx[0]));
        g_free(list_replace(vm, l, NULL));
    }
    g_free(all);
}
