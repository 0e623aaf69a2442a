/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Unit test of datapath/doorbells.c: no bit is lost, and none waits for ever
 * while others are set again as soon as they are taken; and what is stored to a guest's
 * own maps is in the dirty log.
 */
#include "datapath/engine.h"
#include "pvrdma/ext.h"

#define HANDLES 16384u
/* Turns in which every queue must have been looked at, whatever the others do:
 * all words of all maps, at least one a turn. */
#define TURNS (6 * HANDLES / 64)

static struct vm_config cfg = {.max_qp = HANDLES, .max_srq = HANDLES};
static struct vm vm = {.cfg = &cfg};
static struct pvrdma_db_region region[2];
static uint8_t seen[3][HANDLES]; /* send, receive, SRQ */
static struct turn turn = {.end = UINT64_MAX};
static bool again; /* what was found is set again at once */

static void set(struct pvrdma_db_map *map, uint32_t handle)
{
    handle %= HANDLES;
    map->words[handle / 64] |= 1ull << handle % 64;
    map->summary[handle / 4096] |= 1ull << handle / 64 % 64;
}

static void found_send(struct vm *v, uint32_t handle)
{
    seen[0][handle % HANDLES] = 1;
    if (again && handle != 2600 && handle != 16000) {
        set(&region[1].send, handle);
    }
}

static void found_recv(struct vm *v, uint32_t handle)
{
    seen[1][handle % HANDLES] = 1;
}

static void found_srq(struct vm *v, uint32_t handle)
{
    seen[2][handle % HANDLES] = 1;
}

static const struct doorbell_calls calls = {found_send, found_recv, found_srq};

static void clear(void)
{
    memset(region, 0, sizeof(region));
    memset(seen, 0, sizeof(seen));
    again = false;
}

static void test_nothing_lost(void)
{
    for (unsigned round = 0; round < 200; round++) {
        static uint8_t want[3][HANDLES];
        unsigned n = (unsigned)g_test_rand_int_range(0, 3000);

        clear();
        memset(want, 0, sizeof(want));
        while (n--) {
            uint32_t h = (uint32_t)g_test_rand_int_range(0, HANDLES);
            struct pvrdma_db_region *r = &region[n & 1];
            int kind = g_test_rand_int_range(0, 3);

            set(kind == 0 ? &r->send : kind == 1 ? &r->recv : &r->srq, h);
            want[kind][h] = 1;
            if (n % 500 == 0) {
                doorbells_scan(&vm, &turn, &calls);
            }
        }
        for (unsigned turns = 0; doorbells_pending(&vm, true); turns++) {
            g_assert_true(doorbells_scan(&vm, &turn, &calls));
            g_assert_cmpuint(turns, <, TURNS);
        }
        g_assert_false(doorbells_scan(&vm, &turn, &calls));
        g_assert_cmpmem(seen, sizeof(seen), want, sizeof(want));
    }
}

/* A flood of one map's lowest words; others of the map and other maps get in.
 */
static void test_nobody_starves(void)
{
    unsigned turns = 0;

    clear();
    again = true;
    for (uint32_t h = 1; h < 2500; h += 64) {
        set(&region[1].send, h);
    }
    doorbells_scan(&vm, &turn, &calls);
    set(&region[1].send, 2600);
    set(&region[1].send, 16000);
    set(&region[1].recv, 7);
    set(&region[0].recv, 8);
    set(&region[0].send, 9);
    set(&region[1].srq, 10);
    while (!seen[0][2600] || !seen[0][16000] || !seen[0][9] || !seen[1][7] ||
           !seen[1][8] || !seen[2][10]) {
        g_assert_true(doorbells_scan(&vm, &turn, &calls));
        g_assert_cmpuint(++turns, <, TURNS);
    }
    g_test_message("all were seen after %u turns", turns);
}

/* ---- a context's maps, in guest RAM ---- */

static struct pvrdma_ext_mem ext __attribute__((aligned(PVRDMA_PAGE_SIZE)));
static struct pvrdma_ext_mem copied; /* as the guest's RAM was when it was collected */

static void copy_page(void *opaque, uint64_t gpa)
{
    memcpy((uint8_t *)&copied + gpa, (uint8_t *)&ext + gpa, PVRDMA_PAGE_SIZE);
}

static void collect(void)
{
    g_assert_cmpint(guest_dirty_collect(&vm.guest.mem, 0, sizeof(ext), copy_page, NULL),
                    ==, 0);
}

/* In the middle of the scan. */
static void found_ext(struct vm *v, uint32_t handle)
{
    collect();
}

static const struct doorbell_calls calls_ext = {found_ext, found_ext, found_ext};

/* At whatever moments the log is collected: in the end the copy is what is there. */
static void test_dirty(void)
{
    static const struct dirty_span span = {0, sizeof(ext)};
    g_autofree struct guest_map *map =
        g_malloc0(sizeof(*map) + sizeof(struct guest_region));
    static struct worker worker;
    uint64_t page[PVRDMA_EXT_PAGES];
    struct ring_mem mem = {.npages = PVRDMA_EXT_PAGES, .page = page};
    unsigned turns = 0;

    clear();
    map->generation = 1;
    map->n = 1;
    map->region[0] = (struct guest_region){
        .size = sizeof(ext), .hva = (uint8_t *)&ext, .writable = true};
    atomic_store(&vm.guest.mem.map, map);
    vm.dp.worker = &worker;
    for (unsigned i = 0; i < PVRDMA_EXT_PAGES; i++) {
        page[i] = i * PVRDMA_PAGE_SIZE;
    }
    for (uint32_t h = 1; h < HANDLES; h += 40) { /* more than one turn's */
        struct pvrdma_ext_map *m = h % 3 ? &ext.send : &ext.recv;

        m->words[h / 64] |= 1ull << h % 64;
        m->summary[h / 4096] |= 1ull << h / 64 % 64;
    }
    copied = ext;
    g_assert_cmpint(guest_dirty_start(&vm.guest.mem, &span, 1), ==, 0);
    datapath_ext_add(&vm, &mem);
    while (doorbells_scan(&vm, &turn, &calls_ext)) {
        collect();
        g_assert_cmpmem(&copied, sizeof(copied), &ext, sizeof(ext));
        turns++;
    }
    g_assert_cmpuint(turns, >, 1);
    doorbells_set_kick(&vm);
    collect();
    g_assert_cmpmem(&copied, sizeof(copied), &ext, sizeof(ext));
    datapath_ext_clear(&vm);
    guest_dirty_stop(&vm.guest.mem);
    atomic_store(&vm.guest.mem.map, NULL);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    vm.guest.db.own = &region[0];
    vm.guest.db.shared = &region[1];
    /* It has SRQs. */
    atomic_store(&vm.objects.srq.end, HANDLES);
    g_test_add_func("/doorbells/nothing-lost", test_nothing_lost);
    g_test_add_func("/doorbells/nobody-starves", test_nobody_starves);
    g_test_add_func("/doorbells/dirty", test_dirty);
    return g_test_run();
}
