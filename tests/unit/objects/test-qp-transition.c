/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * qp_transition.c, against an independent statement of the rules: for each
 * type, all pairs of states; for each permitted pair, each attribute alone is
 * taken away (if required) or added (if not permitted).
 */
#include <errno.h>

#include "objects/objects.h"

#define S PVRDMA_QP_STATE

struct rule {
    int cur, next;
    uint32_t required, optional;
};

/* Bits by number, as the specification's table lists them. */
enum {
    ACCESS = 1 << 3,
    PKEY = 1 << 4,
    PORT = 1 << 5,
    QKEY = 1 << 6,
    AV = 1 << 7,
    MTU = 1 << 8,
    TIMEOUT = 1 << 9,
    RETRY = 1 << 10,
    RNR = 1 << 11,
    RQ_PSN = 1 << 12,
    RD = 1 << 13,
    ALT = 1 << 14,
    RNR_TIMER = 1 << 15,
    SQ_PSN = 1 << 16,
    DEST_RD = 1 << 17,
    MIG = 1 << 18,
    DEST = 1 << 20,
    CUR = 1 << 1,
    SQD_ASYNC = 1 << 2
};

static const struct rule rc[] = {
    {0, 1, PKEY | PORT | ACCESS, 0},
    {1, 1, 0, PKEY | PORT | ACCESS},
    {1, 2, AV | MTU | DEST | RQ_PSN | DEST_RD | RNR_TIMER, ALT | ACCESS | PKEY},
    {2, 3, TIMEOUT | RETRY | RNR | SQ_PSN | RD, CUR | ALT | ACCESS | RNR_TIMER | MIG},
    {3, 3, 0, CUR | ACCESS | ALT | MIG | RNR_TIMER},
    {3, 4, 0, SQD_ASYNC},
    {4, 3, 0, CUR | ALT | ACCESS | RNR_TIMER | MIG},
    {4, 4, 0,
     PORT | AV | TIMEOUT | RETRY | RNR | RD | DEST_RD | ALT | ACCESS | PKEY | RNR_TIMER |
         MIG},
};

static const struct rule uc[] = {
    {0, 1, PKEY | PORT | ACCESS, 0},
    {1, 1, 0, PKEY | PORT | ACCESS},
    {1, 2, AV | MTU | DEST | RQ_PSN, ALT | ACCESS | PKEY},
    {2, 3, SQ_PSN, CUR | ALT | ACCESS | MIG},
    {3, 3, 0, CUR | ACCESS | ALT | MIG},
    {3, 4, 0, SQD_ASYNC},
    {4, 3, 0, CUR | ALT | ACCESS | MIG},
    {4, 4, 0, AV | ALT | ACCESS | PKEY | MIG},
    {5, 3, 0, CUR | ACCESS},
};

static const struct rule gsi[] = {
    {0, 1, PKEY | QKEY, 0},     {1, 1, 0, PKEY | QKEY}, {1, 2, 0, PKEY | QKEY},
    {2, 3, SQ_PSN, CUR | QKEY}, {3, 3, 0, CUR | QKEY},  {3, 4, 0, SQD_ASYNC},
    {4, 3, 0, CUR | QKEY},      {4, 4, 0, PKEY | QKEY}, {5, 3, 0, CUR | QKEY},
};

static const struct rule ud[] = {
    {0, 1, PKEY | PORT | QKEY, 0}, {1, 1, 0, PKEY | PORT | QKEY}, {1, 2, 0, PKEY | QKEY},
    {2, 3, SQ_PSN, CUR | QKEY},    {3, 3, 0, CUR | QKEY},         {3, 4, 0, SQD_ASYNC},
    {4, 3, 0, CUR | QKEY},         {4, 4, 0, PKEY | QKEY},        {5, 3, 0, CUR | QKEY},
};

static const struct rule *lookup(const struct rule *r, unsigned n, int cur, int next)
{
    static const struct rule down;

    if (next == 0 || next == 6) {
        return &down;
    }
    for (unsigned i = 0; i < n; i++) {
        if (r[i].cur == cur && r[i].next == next) {
            return &r[i];
        }
    }
    return NULL;
}

static void check_pair(enum pvrdma_qp_type type, int cur, int next, const struct rule *r)
{
    if (!r) {
        /* Not with any single attribute, nor with all or none. */
        for (unsigned bit = 0; bit < 21; bit++) {
            g_assert_cmpint(qp_transition_check(type, cur, next, S | 1u << bit), ==,
                            EINVAL);
        }
        g_assert_cmpint(qp_transition_check(type, cur, next, ~0u), ==, EINVAL);
        return;
    }
    g_assert_cmpint(qp_transition_check(type, cur, next, S | r->required), ==, 0);
    g_assert_cmpint(qp_transition_check(type, cur, next, S | r->required | r->optional),
                    ==, 0);
    for (unsigned bit = 1; bit < 32; bit++) {
        uint32_t mask = S | r->required, b = 1u << bit;
        bool ok = !(r->required & b) && (r->optional & b);

        g_assert_cmpint(qp_transition_check(type, cur, next, mask ^ b), ==,
                        ok ? 0 : EINVAL);
    }
}

static void check_type(enum pvrdma_qp_type type, const struct rule *r, unsigned n)
{
    for (int cur = 0; cur <= 6; cur++) {
        for (int next = 0; next <= 6; next++) {
            check_pair(type, cur, next, lookup(r, n, cur, next));
        }
    }
}

static void test_rc(void)
{
    check_type(PVRDMA_QPT_RC, rc, G_N_ELEMENTS(rc));
}

static void test_gsi(void)
{
    check_type(PVRDMA_QPT_GSI, gsi, G_N_ELEMENTS(gsi));
}

static void test_ud(void)
{
    check_type(PVRDMA_QPT_UD, ud, G_N_ELEMENTS(ud));
}

static void test_uc(void)
{
    check_type(PVRDMA_QPT_UC, uc, G_N_ELEMENTS(uc));
}

static void test_nonsense(void)
{
    g_assert_cmpint(qp_transition_check(PVRDMA_QPT_RC, 7, 0, S), ==, EINVAL);
    g_assert_cmpint(qp_transition_check(PVRDMA_QPT_RC, 0, 7, S), ==, EINVAL);
    g_assert_cmpint(qp_transition_check(PVRDMA_QPT_RC, 0, -1, S), ==, EINVAL);
    g_assert_cmpint(qp_transition_check(PVRDMA_QPT_UC + 2, 3, 3, S), ==, EINVAL);
    /* RTS -> RTS with attributes of the old state only is fine. */
    g_assert_cmpint(qp_transition_check(PVRDMA_QPT_RC, 3, 3, 0), ==, 0);
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/verbs/transition/rc", test_rc);
    g_test_add_func("/verbs/transition/gsi", test_gsi);
    g_test_add_func("/verbs/transition/ud", test_ud);
    g_test_add_func("/verbs/transition/uc", test_uc);
    g_test_add_func("/verbs/transition/nonsense", test_nonsense);
    return g_test_run();
}
