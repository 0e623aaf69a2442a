/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What hw/pvrdma-doorbell.c needs of QEMU's header of this name, each with the order
 * that docs/devel/atomics.rst of QEMU gives it, and no stronger.
 */
#ifndef QEMU_SHIM_ATOMIC_H
#define QEMU_SHIM_ATOMIC_H

#define qatomic_read(p)   __atomic_load_n(p, __ATOMIC_RELAXED)
#define qatomic_set(p, v) __atomic_store_n(p, v, __ATOMIC_RELAXED)
#define qatomic_inc(p)    ((void)__atomic_fetch_add(p, 1, __ATOMIC_SEQ_CST))
#define qatomic_or(p, v)  ((void)__atomic_fetch_or(p, v, __ATOMIC_SEQ_CST))
#define smp_mb()          __atomic_thread_fence(__ATOMIC_SEQ_CST)

#define qatomic_cmpxchg(p, from, to)                                               \
    ({                                                                             \
        typeof(*(p)) found_ = (from);                                              \
                                                                                   \
        (void)__atomic_compare_exchange_n(p, &found_, to, false, __ATOMIC_SEQ_CST, \
                                          __ATOMIC_SEQ_CST);                       \
        found_;                                                                    \
    })

#endif
