/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * SIGBUS guard for guest memory, and for whatever else a VMM has a descriptor of.
 *
 * Guest RAM is a file that others can influence: a hole with no memory left to
 * fill it, exhausted huge pages, a file that was not sealed and got truncated,
 * a memory error of the machine.  Touching it raises SIGBUS in whichever thread
 * carries data.  The handler looks the address up in a table of guarded
 * mappings, marks the guest as faulty, puts an anonymous zero page (of the mapping's
 * page size) there and returns, so that the interrupted instruction is
 * run again and succeeds.  The main thread detaches it at its next check.
 * The mark comes first: any thread that reads such zeros finds it afterwards
 * (guest_believed()).
 *
 * Each such page splits a mapping, of which a process may have so many
 * (vm.max_map_count).  So a guard's pages are covered one by one only a few times,
 * and only while that works; then one anonymous mapping replaces the whole guarded
 * range, which splits nothing.
 *
 * What is not guarded goes to the handler that was there before, by default
 * the end of the process.
 *
 * Table: written by the main thread only, read by handlers in any thread, so
 * without locks or allocation: each slot has a sequence number, odd while it
 * changes.  A slot is changed only when no thread touches its range, therefore
 * the slot that a fault belongs to is never changing, and a slot found changing
 * is not the one.
 */
#include <errno.h>
#include <glib.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "guest/sigbus.h"
#include "guest/guest.h"

struct guard {
    _Atomic unsigned seq;
    _Atomic uintptr_t start; /* 0: free */
    _Atomic size_t len;
    _Atomic size_t page;
    _Atomic(struct guest *) guest;
    _Atomic unsigned covers; /* pages covered so far */
};

static struct guard guards[SIGBUS_SLOTS];
static _Atomic unsigned guards_end; /* slots from here on were never used */
static struct sigaction old_action;

/* Anonymous memory over [start, start + len).  mmap() is a mere system call. */
static bool put_anonymous(uintptr_t start, size_t len)
{
    return mmap((void *)start, len, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                0) != MAP_FAILED;
}

/* Cover the page of @addr; false if it is not guarded or memory is short. */
static bool cover(uintptr_t addr)
{
    unsigned end = atomic_load_explicit(&guards_end, memory_order_acquire);

    for (unsigned i = 0; i < end; i++) {
        struct guard *g = &guards[i];
        unsigned seq = atomic_load_explicit(&g->seq, memory_order_acquire);
        uintptr_t start = atomic_load(&g->start);
        size_t len = atomic_load(&g->len);
        size_t page = atomic_load(&g->page);
        struct guest *guest = atomic_load(&g->guest);

        if ((seq & 1) || start == 0 || addr < start || addr - start >= len ||
            seq != atomic_load(&g->seq)) {
            continue;
        }
        guest_fault(guest, "its memory is not there (SIGBUS)");
        addr &= ~(uintptr_t)(page - 1);
        if ((atomic_fetch_add(&g->covers, 1) >= SIGBUS_MAX_COVERS ||
             !put_anonymous(addr, page)) &&
            !put_anonymous(start, len)) {
            return false;
        }
        return true;
    }
    return false;
}

static void on_sigbus(int sig, siginfo_t *info, void *context)
{
    int saved = errno;

    /* si_code <= 0: sent by a process, si_addr means nothing. */
    if (info->si_code > 0 && cover((uintptr_t)info->si_addr)) {
        errno = saved;
        return;
    }
    /* The instruction runs again and faults into the former handler. */
    sigaction(SIGBUS, &old_action, NULL);
    if (info->si_code <= 0) {
        raise(sig);
    }
    errno = saved;
}

void sigbus_init(void)
{
    static bool done;
    struct sigaction sa = {
        .sa_sigaction = on_sigbus,
        .sa_flags = SA_SIGINFO | SA_RESTART,
    };

    if (done) {
        return;
    }
    done = true;
    sigemptyset(&sa.sa_mask);
    if (sigaction(SIGBUS, &sa, &old_action) < 0) {
        g_error("sigaction(SIGBUS): %s", g_strerror(errno));
    }
}

int sigbus_guard(void *start, size_t len, size_t page, struct guest *guest)
{
    unsigned end = atomic_load(&guards_end);
    unsigned i = 0;
    struct guard *g;

    while (i < end && atomic_load(&guards[i].start) != 0) {
        i++;
    }
    if (i == SIGBUS_SLOTS) {
        return -1;
    }
    g = &guards[i];
    atomic_fetch_add(&g->seq, 1);
    atomic_store(&g->len, len);
    atomic_store(&g->page, page);
    atomic_store(&g->guest, guest);
    atomic_store(&g->covers, 0);
    atomic_store(&g->start, (uintptr_t)start);
    atomic_fetch_add(&g->seq, 1);
    if (i == end) {
        atomic_store_explicit(&guards_end, end + 1, memory_order_release);
    }
    return (int)i;
}

void sigbus_unguard(int slot)
{
    struct guard *g;

    if (slot < 0 || slot >= (int)SIGBUS_SLOTS) {
        return;
    }
    g = &guards[slot];
    atomic_fetch_add(&g->seq, 1);
    atomic_store(&g->start, 0);
    atomic_store(&g->len, 0);
    atomic_store(&g->guest, NULL);
    atomic_fetch_add(&g->seq, 1);
}
