/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Coroutines by ucontext(3).
 *
 * There is the main loop and at most one running coroutine; a coroutine is entered
 * from the main loop alone and returns to it.  One that is woken by another is put
 * on a list that an idle source of the main loop empties.  Stacks are mapped with
 * a guard page below and kept for the next user.
 */
#include "coro.h"

#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_SIZE (256u << 10)
#define GUARD_SIZE 4096u
#define MAX_KEPT   16u

/* How long a coroutine may hold the main loop, in us. */
#define TURN_US 1000

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CORO_ASAN
#endif
#if __has_feature(thread_sanitizer)
#define CORO_TSAN
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define CORO_ASAN
#endif
#ifdef __SANITIZE_THREAD__
#define CORO_TSAN
#endif

#ifdef CORO_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef CORO_TSAN
#include <sanitizer/tsan_interface.h>
#endif

struct coro {
    ucontext_t ctx;
    uint8_t *stack; /* GUARD_SIZE bytes without access first */
    void (*fn)(void *opaque);
    void *opaque;
    bool done;
    gint64 entered; /* us */
#ifdef CORO_TSAN
    void *fiber;
#endif
};

static ucontext_t main_ctx;
static struct coro *current;
static GSList *kept; /* of struct coro, without work */
static unsigned n_kept;
static GQueue ready = G_QUEUE_INIT; /* woken, not entered yet */
static guint ready_source;

/* ---- switching ---- */

#ifdef CORO_ASAN
static const void *main_stack;
static size_t main_stack_size;
#endif
#ifdef CORO_TSAN
static void *main_fiber;
#endif

/* On the coroutine's stack, after each switch to it. */
static void arrived(void *fake)
{
#ifdef CORO_ASAN
    __sanitizer_finish_switch_fiber(fake, &main_stack, &main_stack_size);
#endif
}

static void to_main(struct coro *c)
{
    void *fake = NULL;

#ifdef CORO_ASAN
    __sanitizer_start_switch_fiber(c->done ? NULL : &fake, main_stack, main_stack_size);
#endif
#ifdef CORO_TSAN
    __tsan_switch_to_fiber(main_fiber, 0);
#endif
    swapcontext(&c->ctx, &main_ctx);
    arrived(fake);
}

static void trampoline(void)
{
    struct coro *c = current;

    arrived(NULL);
    c->fn(c->opaque);
    c->done = true;
    to_main(c);
}

static void release(struct coro *c)
{
#ifdef CORO_TSAN
    __tsan_destroy_fiber(c->fiber);
#endif
    if (n_kept < MAX_KEPT) {
        kept = g_slist_prepend(kept, c);
        n_kept++;
        return;
    }
    munmap(c->stack, GUARD_SIZE + STACK_SIZE);
    g_free(c);
}

/* From the main loop.  True: it has ended. */
static bool enter(struct coro *c)
{
    void *fake = NULL;
    bool done;

    current = c;
    c->entered = g_get_monotonic_time();
#ifdef CORO_ASAN
    __sanitizer_start_switch_fiber(&fake, c->stack + GUARD_SIZE, STACK_SIZE);
#endif
#ifdef CORO_TSAN
    main_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(c->fiber, 0);
#endif
    swapcontext(&main_ctx, &c->ctx);
#ifdef CORO_ASAN
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
    (void)fake;
    current = NULL;
    done = c->done;
    if (done) {
        release(c);
    }
    return done;
}

/* ---- life ---- */

static struct coro *make(void)
{
    struct coro *c;
    void *stack;

    if (kept) {
        c = kept->data;
        kept = g_slist_delete_link(kept, kept);
        n_kept--;
        return c;
    }
    stack = mmap(NULL, GUARD_SIZE + STACK_SIZE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        return NULL;
    }
    mprotect(stack, GUARD_SIZE, PROT_NONE);
    c = g_new0(struct coro, 1);
    c->stack = stack;
    return c;
}

bool coro_run(void (*fn)(void *opaque), void *opaque)
{
    struct coro *c = current ? NULL : make();

    if (!c) {
        fn(opaque); /* in a coroutine already, or without memory for one: blocking */
        return true;
    }
    c->fn = fn;
    c->opaque = opaque;
    c->done = false;
    getcontext(&c->ctx);
    c->ctx.uc_stack.ss_sp = c->stack + GUARD_SIZE;
    c->ctx.uc_stack.ss_size = STACK_SIZE;
    c->ctx.uc_link = NULL;
    makecontext(&c->ctx, trampoline, 0);
#ifdef CORO_TSAN
    c->fiber = __tsan_create_fiber(0);
#endif
    return enter(c);
}

struct coro *coro_self(void)
{
    return current;
}

void coro_yield(void)
{
    g_assert(current);
    to_main(current);
}

static gboolean on_ready(gpointer opaque)
{
    /* Only those of now: one that makes itself ready again waits for a turn. */
    for (guint n = g_queue_get_length(&ready); n > 0; n--) {
        enter(g_queue_pop_head(&ready));
    }
    if (!g_queue_is_empty(&ready)) {
        return G_SOURCE_CONTINUE;
    }
    ready_source = 0;
    return G_SOURCE_REMOVE;
}

static void make_ready(struct coro *c)
{
    g_queue_push_tail(&ready, c);
    if (!ready_source) {
        ready_source = g_idle_add_full(G_PRIORITY_DEFAULT, on_ready, NULL, NULL);
    }
}

void coro_wake(struct coro *c)
{
    if (current) {
        make_ready(c);
    } else {
        enter(c);
    }
}

void coro_breathe(void)
{
    if (current && g_get_monotonic_time() - current->entered > TURN_US) {
        make_ready(current);
        coro_yield();
    }
}

void coro_lock(struct coro_mutex *m)
{
    if (m->held) {
        g_assert(current);
        g_queue_push_tail(&m->waiting, current);
        coro_yield(); /* it is ours when we are woken */
    }
    m->held = true;
}

void coro_unlock(struct coro_mutex *m)
{
    struct coro *next = g_queue_pop_head(&m->waiting);

    if (next) {
        make_ready(next); /* held stays set, for it */
    } else {
        m->held = false;
    }
}

void coro_fini(void)
{
    while (kept) {
        struct coro *c = kept->data;

        kept = g_slist_delete_link(kept, kept);
        munmap(c->stack, GUARD_SIZE + STACK_SIZE);
        g_free(c);
    }
    n_kept = 0;
}
