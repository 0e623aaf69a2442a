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

#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include "fdwatch.h"

#define STACK_SIZE (256u << 10)
#define GUARD_SIZE 4096u
#define MAX_KEPT   16u

/* How long a coroutine may hold the main loop, and all that were woken together. */
#define TURN_NS 1000000u

/*
 * ... if others have something to do.  Asking about that is a system call, and a turn
 * of the loop some more: so often they cost a tenth of long work.
 */
#define LOOK_NS 10000u

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
    uint64_t entered; /* ns, CLOCK_MONOTONIC */
    uint64_t ran;     /* ns, before that */
#ifdef CORO_TSAN
    void *fiber;
#endif
};

static ucontext_t main_ctx;
static struct coro *current;
static GSList *kept; /* of struct coro, without work */
static unsigned n_kept;
static unsigned n_alive;            /* with work */
static GQueue ready = G_QUEUE_INIT; /* woken, not entered yet */
static guint ready_source;

/* The turn of those that work now, ns, CLOCK_MONOTONIC. */
static struct {
    uint64_t end;   /* at the latest */
    uint64_t share; /* until then others' descriptors are not looked at */
    uint64_t look;  /* the next look whether others wait */
} turn;
static uint64_t left; /* when the main loop got its own */

/* Work that found no memory for a stack. */
struct start {
    void (*fn)(void *opaque);
    void *opaque;
};
static GQueue starved = G_QUEUE_INIT; /* of struct start */

static void make_ready(struct coro *c);

static uint64_t now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void turn_begin(uint64_t now, uint64_t share)
{
    turn.end = now + TURN_NS;
    turn.share = now + share;
}

/* Is there somebody who waits for this turn's end? */
static bool turn_over(uint64_t now)
{
    return now >= turn.end || (now >= turn.share && fdwatch_ready());
}

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

static void set_up(struct coro *c, void (*fn)(void *opaque), void *opaque)
{
    c->fn = fn;
    c->opaque = opaque;
    c->done = false;
    c->ran = 0;
    getcontext(&c->ctx);
    c->ctx.uc_stack.ss_sp = c->stack + GUARD_SIZE;
    c->ctx.uc_stack.ss_size = STACK_SIZE;
    c->ctx.uc_link = NULL;
    makecontext(&c->ctx, trampoline, 0);
#ifdef CORO_TSAN
    c->fiber = __tsan_create_fiber(0);
#endif
    n_alive++;
}

static void release(struct coro *c)
{
    struct start *next = g_queue_pop_head(&starved);

#ifdef CORO_TSAN
    __tsan_destroy_fiber(c->fiber);
#endif
    n_alive--;
    if (next) {
        set_up(c, next->fn, next->opaque);
        make_ready(c);
        g_free(next);
    } else if (n_kept < MAX_KEPT) {
        kept = g_slist_prepend(kept, c);
        n_kept++;
    } else {
        munmap(c->stack, GUARD_SIZE + STACK_SIZE);
        g_free(c);
    }
}

/* From the main loop.  True: it has ended. */
static bool enter(struct coro *c)
{
    void *fake = NULL;
    bool done;

    current = c;
    c->entered = now_ns();
    turn.look = c->entered + LOOK_NS;
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
    c->ran += now_ns() - c->entered;
    done = c->done;
    if (done) {
        release(c);
    }
    return done;
}

static bool enter_from_loop(struct coro *c)
{
    turn_begin(now_ns(), 0);
    return enter(c);
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

/* A coroutine for @fn; NULL: no memory. */
static struct coro *prepare(void (*fn)(void *opaque), void *opaque)
{
    struct coro *c = make();

    if (c) {
        set_up(c, fn, opaque);
    }
    return c;
}

/*
 * There is no memory for another stack.  Blocking is right only if no coroutine
 * waits: one might own what @fn needs.
 */
static bool run_without(void (*fn)(void *opaque), void *opaque)
{
    struct start *s;

    if (n_alive == 0) {
        fn(opaque);
        return true;
    }
    s = g_new(struct start, 1);
    s->fn = fn;
    s->opaque = opaque;
    g_queue_push_tail(&starved, s);
    return false;
}

bool coro_run(void (*fn)(void *opaque), void *opaque)
{
    struct coro *c;

    if (current) {
        fn(opaque);
        return true;
    }
    c = prepare(fn, opaque);
    return c ? enter_from_loop(c) : run_without(fn, opaque);
}

bool coro_run_later(void (*fn)(void *opaque), void *opaque)
{
    struct coro *c;

    if (current) {
        fn(opaque);
        return true;
    }
    c = prepare(fn, opaque);
    if (!c) {
        return run_without(fn, opaque);
    }
    make_ready(c);
    return false;
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

/*
 * In turns of LOOK_NS.  They have the main loop for as long as everybody else had it
 * just now: a command that takes long is held up by those that do not, and the other
 * way round, but neither stands still.
 */
static gboolean on_ready(gpointer opaque)
{
    uint64_t now = now_ns();

    turn_begin(now, now - left);
    do {
        enter(g_queue_pop_head(&ready));
        now = now_ns();
    } while (!g_queue_is_empty(&ready) && !turn_over(now));
    left = now;
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
        left = now_ns();
        ready_source = g_idle_add_full(G_PRIORITY_DEFAULT, on_ready, NULL, NULL);
    }
}

void coro_wake(struct coro *c)
{
    if (current) {
        make_ready(c);
    } else {
        enter_from_loop(c);
    }
}

void coro_wake_later(struct coro *c)
{
    make_ready(c);
}

static gboolean on_time(gpointer c)
{
    coro_wake(c);
    return G_SOURCE_REMOVE;
}

void coro_sleep(unsigned ms)
{
    g_timeout_add(ms, on_time, coro_self());
    coro_yield();
}

void coro_breathe(void)
{
    uint64_t now;

    if (!current) {
        return;
    }
    now = now_ns();
    if (now < turn.look) {
        return;
    }
    turn.look = now + LOOK_NS;
    if (!g_queue_is_empty(&ready) || turn_over(now)) {
        make_ready(current);
        coro_yield();
    }
}

uint64_t coro_ran_ns(void)
{
    return current ? current->ran + now_ns() - current->entered : 0;
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
