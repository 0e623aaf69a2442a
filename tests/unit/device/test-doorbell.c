/* SPDX-License-Identifier: GPL-2.0-or-later */
/* doorbell.c: the shared region and doorbells that come as messages. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "testdev.h"

static struct testdev *td;
static uint32_t kqp, uqp, kcq, ucq; /* the kernel's and a program's */

static void setup(void)
{
    uint32_t uctx;

    td = testdev_new("doorbell");
    testdev_up(td);
    uctx = testdev_uctx(td, 5);
    kcq = testdev_cq(td, 0, 64);
    ucq = testdev_cq(td, uctx, 64);
    kqp = testdev_qp(td, testdev_pd(td, 0), kcq);
    uqp = testdev_qp(td, testdev_pd(td, uctx), ucq);
    /* The worker takes bits away; stop it, so that they can be seen. */
    vm_token_take(&td->vm);
}

static void teardown(void)
{
    vm_token_release(&td->vm);
    testdev_free(td);
}

/*
 * The worker looks into summaries without the token when it goes to sleep, so
 * the tests too read and write the maps with atomics only.
 */
static uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

static void store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void clear(struct pvrdma_db_map *map)
{
    for (unsigned i = 0; i < PVRDMA_DB_SUMMARY_WORDS; i++) {
        store(&map->summary[i], 0);
    }
    for (unsigned i = 0; i < PVRDMA_DB_WORDS; i++) {
        store(&map->words[i], 0);
    }
}

static bool test_and_clear(struct pvrdma_db_map *map, uint32_t handle)
{
    bool set = load(&map->words[handle / 64]) >> (handle % 64) & 1;

    g_assert_true(!set || (load(&map->summary[handle / 4096]) >> (handle / 64 % 64) & 1));
    store(&map->words[handle / 64], 0);
    return set;
}

static uint64_t ring_how(uint64_t page, uint32_t reg, uint32_t value, bool posted)
{
    uint64_t before = atomic_load(&td->vm.guest.db.bad);

    device_doorbell(td->vm.dev, page * 4096 + reg, value, posted);
    return atomic_load(&td->vm.guest.db.bad) - before;
}

/* Without waiting for it. */
static uint64_t ring(uint64_t page, uint32_t reg, uint32_t value)
{
    return ring_how(page, reg, value, true);
}

static void test_region(void)
{
    const struct pvrdma_db_region *db;
    struct stat st;
    int fd;

    td = testdev_new("doorbell");
    db = td->vm.guest.db.shared;
    fd = td->vm.guest.db.memfd;
    g_assert_cmphex(db->magic, ==, PVRDMA_DB_MAGIC);
    g_assert_cmpuint(db->version, ==, PVRDMA_DB_VERSION);
    for (unsigned i = 0; i < PVRDMA_DB_HANDLES; i++) {
        g_assert_cmpuint(db->qp_owner[i], ==, PVRDMA_DB_NO_OWNER);
        g_assert_cmpuint(db->cq_owner[i], ==, PVRDMA_DB_NO_OWNER);
        g_assert_cmpuint(db->srq_owner[i], ==, PVRDMA_DB_NO_OWNER);
        g_assert_cmpuint(db->arm[i], ==, 0);
    }
    /* The VMM cannot pull it away under us. */
    g_assert_cmpint(fstat(fd, &st), ==, 0);
    g_assert_cmpuint(st.st_size, ==, PVRDMA_DB_REGION_SIZE);
    g_assert_cmpint(ftruncate(fd, 4096), !=, 0);
    g_assert_cmpint(ftruncate(fd, 1 << 20), !=, 0);
    g_assert_cmpint(fcntl(fd, F_GET_SEALS), ==,
                    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    testdev_free(td);
}

static void test_qp(void)
{
    struct pvrdma_db_region *db;

    setup();
    db = td->vm.guest.db.own;
    test_and_clear(&db->send, uqp); /* left from its creation */
    test_and_clear(&db->send, kqp);

    g_assert_cmpuint(ring(5, 0, uqp | PVRDMA_UAR_QP_SEND), ==, 0);
    g_assert_true(test_and_clear(&db->send, uqp));
    g_assert_false(test_and_clear(&db->recv, uqp));
    g_assert_cmpuint(ring(5, 0, uqp | PVRDMA_UAR_QP_RECV), ==, 0);
    g_assert_true(test_and_clear(&db->recv, uqp));
    g_assert_false(test_and_clear(&db->send, uqp));
    /* The kernel's page rings all. */
    g_assert_cmpuint(ring(0, 0, uqp | PVRDMA_UAR_QP_SEND), ==, 0);
    g_assert_true(test_and_clear(&db->send, uqp));
    g_assert_cmpuint(ring(0, 0, kqp | PVRDMA_UAR_QP_SEND), ==, 0);
    g_assert_true(test_and_clear(&db->send, kqp));
    teardown();
}

static void test_foreign(void)
{
    struct pvrdma_db_region *db;

    setup();
    db = td->vm.guest.db.own;
    clear(&db->send);
    g_assert_cmpuint(ring(5, 0, kqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(6, 0, uqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(5, 0, 0 | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(5, 0, 0xffffff | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(0, 0, 0xffffff | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(0, 0, (uqp + 1) | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(5, 4, kcq | PVRDMA_UAR_CQ_ARM), ==, 1);
    g_assert_cmpuint(ring(5, 4, 0xffffff | PVRDMA_UAR_CQ_ARM), ==, 1);
    /* Not this SRQ, nothing elsewhere in a page, no page beyond the BAR. */
    g_assert_cmpuint(ring(0, 8, 1 | PVRDMA_UAR_SRQ_RECV), ==, 1);
    g_assert_cmpuint(ring(5, 12, uqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(5, 2, uqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(512, 0, uqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(UINT32_MAX, 0, uqp | PVRDMA_UAR_QP_SEND), ==, 1);
    g_assert_cmpuint(ring(1ull << 32, 0, kqp | PVRDMA_UAR_QP_SEND), ==, 1);
    for (unsigned i = 0; i < PVRDMA_DB_WORDS; i++) {
        g_assert_cmpuint(load(&db->send.words[i]), ==, 0);
    }
    g_assert_cmpuint(db->arm[kcq], ==, 0);
    teardown();
}

static void test_cq(void)
{
    uint32_t *arm;

    setup();
    arm = td->vm.guest.db.shared->arm;
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_POLL), ==, 0);
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_POLL | PVRDMA_EXT_UAR_CQ_IDLE), ==,
                     0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_NONE);
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM_SOL), ==, 0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_SOLICITED);
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM), ==, 0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_ANY);
    /* The weaker request does not replace the stronger. */
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM_SOL), ==, 0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_ANY);
    teardown();
}

/* One completion is in the program's CQ, not solicited. */
static struct pvrdma_ring_state *complete_one(void)
{
    struct cq *cq = id_table_get(&td->vm.objects.cq, ucq);

    pthread_mutex_lock(&cq->lock);
    cq->prod = cq->published = 1;
    pthread_mutex_unlock(&cq->lock);
    return testdev_ptr(td, cq->mem.page[0]);
}

/*
 * A guest that does not wait for its request to be carried out may have looked before:
 * a completion that is there already when the request arrives fires at once.
 */
static void test_late_arm(void)
{
    struct pvrdma_ring_state *state;

    setup();
    state = complete_one();
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM_SOL), ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CQ), ==, 0);
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM), ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CQ), ==, 1);
    g_assert_cmpuint(td->vm.guest.db.shared->arm[ucq], ==, PVRDMA_DB_ARM_NONE);
    g_assert_cmpuint(*(uint32_t *)testdev_ptr(td, td->cqn_ring[1]), ==, ucq);

    /* Consumed: it stays armed. */
    state->rx.cons_head = 1;
    g_assert_cmpuint(ring(5, 4, ucq | PVRDMA_UAR_CQ_ARM), ==, 0);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CQ), ==, 0);
    g_assert_cmpuint(td->vm.guest.db.shared->arm[ucq], ==, PVRDMA_DB_ARM_ANY);
    teardown();
}

/* One that waits looks afterwards: what it has not read yet is no reason to fire. */
static void test_awaited_arm(void)
{
    uint32_t *arm;

    setup();
    complete_one();
    arm = td->vm.guest.db.shared->arm;
    g_assert_cmpuint(ring_how(5, 4, ucq | PVRDMA_UAR_CQ_ARM_SOL, false), ==, 0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_SOLICITED);
    g_assert_cmpuint(ring_how(5, 4, ucq | PVRDMA_UAR_CQ_ARM, false), ==, 0);
    g_assert_cmpuint(arm[ucq], ==, PVRDMA_DB_ARM_ANY);
    g_assert_cmpuint(testdev_irqs(td, PVRDMA_VEC_CQ), ==, 0);
    teardown();
}

static void test_reset(void)
{
    struct pvrdma_db_region *db;

    setup();
    db = td->vm.guest.db.shared;
    db->arm[ucq] = db->arm[td->vm.cfg->max_cq - 1] = 1;
    store(&db->send.words[1023], ~0ull);
    store(&db->recv.summary[0], ~0ull);
    store(&db->srq.words[7], 1);
    db->qp_owner[td->vm.cfg->max_qp - 1] = 0;
    db->srq_owner[td->vm.cfg->max_srq - 1] = 0;
    vm_token_release(&td->vm);
    testdev_write(td, PVRDMA_REG_CTL, PVRDMA_CTL_RESET);
    for (unsigned i = 0; i < PVRDMA_DB_HANDLES; i++) {
        g_assert_cmpuint(db->arm[i], ==, 0);
        g_assert_cmpuint(db->qp_owner[i], ==, PVRDMA_DB_NO_OWNER);
        g_assert_cmpuint(db->cq_owner[i], ==, PVRDMA_DB_NO_OWNER);
        g_assert_cmpuint(db->srq_owner[i], ==, PVRDMA_DB_NO_OWNER);
    }
    for (unsigned i = 0; i < PVRDMA_DB_WORDS; i++) {
        g_assert_cmpuint(load(&db->send.words[i]) | load(&db->recv.words[i]) |
                             load(&db->srq.words[i]),
                         ==, 0);
    }
    testdev_free(td);
}

int main(int argc, char **argv)
{
    testdev_init(&argc, &argv);
    g_test_add_func("/device/doorbell/region", test_region);
    g_test_add_func("/device/doorbell/qp", test_qp);
    g_test_add_func("/device/doorbell/foreign", test_foreign);
    g_test_add_func("/device/doorbell/cq", test_cq);
    g_test_add_func("/device/doorbell/late-arm", test_late_arm);
    g_test_add_func("/device/doorbell/awaited-arm", test_awaited_arm);
    g_test_add_func("/device/doorbell/reset", test_reset);
    return testdev_run();
}
