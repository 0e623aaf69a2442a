/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", streams without a queue pair.
 *
 * A daemon where a VM may run soon announces its addresses; those who are connected to
 * them make connections in advance (announce.c), and both ends keep these here, complete
 * with MPA's startup frames, until the VM runs and queue pairs take them (take.c).  An
 * announcement to one peer of one address is a park, known by its token; a stream of it
 * by its number, which both ends know.
 *
 * Nothing is to come by a stream that is parked, but the initiator's first frame: what
 * does ends it, and so does its end.  All of it is bounded: PARK_MAX_OF_PEER and PARK_MAX
 * streams, and a park ends with its link, its announcement, or its time.  Ours has no
 * time while its VM does not run: those who have connected end theirs.
 *
 * Invariants: a stream counts for its host from parked_new() to parked_free(); it is in
 * its park's list until it is taken, in ascending order of numbers.
 * Threads: the main thread.
 */
#include "transport/tcp/park.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "fdwatch.h"
#include "transport/tcp/setup.h"

#define LOOK_MS 500u

/* A first frame has 20 bytes; one more shows that it is too much. */
#define FIRST_MAX 64u

static GHashTable *hosts;    /* of struct park_host, by peer */
static GHashTable *by_token; /* of struct park */
static GHashTable *by_place; /* the same, by peer, address and kind */
static unsigned n_streams, max_streams;
static guint look_timer;

/* ---- tables ---- */

static guint token_hash(gconstpointer p)
{
    return (guint)((const struct park *)p)->token[0];
}

static gboolean token_equal(gconstpointer a, gconstpointer b)
{
    return memcmp(((const struct park *)a)->token, ((const struct park *)b)->token,
                  sizeof(uint64_t[2])) == 0;
}

static guint place_hash(gconstpointer p)
{
    const struct park *park = p;

    return (guint)directory_hash(park->network, &park->gid) ^
           g_direct_hash(park->host->peer);
}

static gboolean place_equal(gconstpointer a, gconstpointer b)
{
    const struct park *x = a, *y = b;

    return x->host == y->host && x->network == y->network && x->ours == y->ours &&
           gid_equal(&x->gid, &y->gid);
}

struct park_host *park_host(struct peer *peer)
{
    struct park_host *h = g_hash_table_lookup(hosts, peer);

    if (!h) {
        h = g_new0(struct park_host, 1);
        h->peer = peer;
        TAILQ_INIT(&h->to_make);
        STAILQ_INIT(&h->waiting);
        g_hash_table_insert(hosts, peer, h);
    }
    return h;
}

const struct park_host *park_host_known(const struct peer *peer)
{
    return hosts ? g_hash_table_lookup(hosts, peer) : NULL;
}

bool park_any_host(bool (*is)(struct park_host *))
{
    GHashTableIter i;
    gpointer h;
    bool any = false;

    g_hash_table_iter_init(&i, hosts);
    while (g_hash_table_iter_next(&i, NULL, &h)) {
        any |= is(h);
    }
    return any;
}

/* ---- parks ---- */

/* For who has waited for those that were being made. */
static bool make_more(struct park_host *h)
{
    announce_make(h);
    return false;
}

/* First frames take as long as other startup frames. */
static void end_late_first(const struct park *park, uint64_t now)
{
    struct parked *p, *next;

    for (p = TAILQ_FIRST(&park->streams); p; p = next) {
        next = TAILQ_NEXT(p, link);
        if (p->state == PARK_FIRST && now >= p->until) {
            parked_free(p);
        }
    }
}

static gboolean look(gpointer unused)
{
    uint64_t now = now_ns();
    GHashTableIter i;
    gpointer p;
    g_autoptr(GPtrArray) late = g_ptr_array_new();

    g_hash_table_iter_init(&i, by_token);
    while (g_hash_table_iter_next(&i, &p, NULL)) {
        const struct park *park = p;

        end_late_first(park, now);
        if (park->until && now >= park->until) {
            g_ptr_array_add(late, p);
        }
    }
    g_ptr_array_foreach(late, (GFunc)(void (*)(void))park_drop, NULL);
    park_any_host(make_more);
    if (g_hash_table_size(by_token)) {
        return G_SOURCE_CONTINUE;
    }
    look_timer = 0;
    return G_SOURCE_REMOVE;
}

struct park *park_find(const uint64_t token[2])
{
    struct park key = {.token = {token[0], token[1]}};

    return g_hash_table_lookup(by_token, &key);
}

struct park *park_of(struct peer *peer, const char *network, const struct pvrdma_gid *gid,
                     bool ours)
{
    struct park key = {.network = network, .gid = *gid, .ours = ours};

    key.host = g_hash_table_lookup(hosts, peer);
    return key.host ? g_hash_table_lookup(by_place, &key) : NULL;
}

struct park *park_new(struct peer *peer, const char *network,
                      const struct pvrdma_gid *gid, bool ours, const void *vm,
                      const uint64_t token[2])
{
    struct park *park = park_of(peer, network, gid, ours);
    struct park_host *h = park_host(peer);

    if (park) {
        park_drop(park);
    }
    if (h->n_parks >= PARK_MAX_OF_PEER || park_find(token)) {
        return NULL;
    }
    park = g_new0(struct park, 1);
    memcpy(park->token, token, sizeof(park->token));
    park->host = h;
    park->network = network;
    park->gid = *gid;
    park->ours = ours;
    park->vm = vm;
    park->until = ours ? 0 : now_ns() + PARK_LIFE_NS;
    TAILQ_INIT(&park->streams);
    h->n_parks++;
    g_hash_table_add(by_token, park);
    g_hash_table_add(by_place, park);
    if (!look_timer) {
        look_timer = g_timeout_add(LOOK_MS, look, NULL);
    }
    return park;
}

void park_leave_queue(struct park *park)
{
    if (park->queued) {
        TAILQ_REMOVE(&park->host->to_make, park, make);
        park->queued = false;
    }
}

void park_drop(struct park *park)
{
    struct parked *p;

    while ((p = TAILQ_FIRST(&park->streams))) {
        parked_free(p);
    }
    park_leave_queue(park);
    park->host->n_parks--;
    g_hash_table_remove(by_place, park);
    g_hash_table_remove(by_token, park);
    g_free(park);
}

void park_drop_empty(struct park *park)
{
    if (!park->ours && TAILQ_EMPTY(&park->streams) && !park->queued) {
        park_drop(park);
    }
}

static bool is_of_peer(const struct park *park, const void *peer)
{
    return park->host->peer == peer;
}

static bool is_of_vm(const struct park *park, const void *vm)
{
    return park->vm == vm;
}

static void drop_those(bool (*is)(const struct park *, const void *), const void *what)
{
    g_autoptr(GPtrArray) those = g_ptr_array_new();
    GHashTableIter i;
    gpointer park;

    g_hash_table_iter_init(&i, by_token);
    while (g_hash_table_iter_next(&i, &park, NULL)) {
        if (is(park, what)) {
            g_ptr_array_add(those, park);
        }
    }
    g_ptr_array_foreach(those, (GFunc)(void (*)(void))park_drop, NULL);
}

void park_drop_peer(const struct peer *peer)
{
    drop_those(is_of_peer, peer);
}

void park_drop_vm(const void *vm)
{
    drop_those(is_of_vm, vm);
}

void park_begin_to_end(struct park *park)
{
    uint64_t until = now_ns() + PARK_LEFT_NS;

    if (!park->vm && (!park->until || until < park->until)) {
        park->until = until;
    }
    park->wanted = park->made; /* who has none yet does not wait for one */
}

void park_leave_vm(const void *vm)
{
    GHashTableIter i;
    gpointer p;

    g_hash_table_iter_init(&i, by_token);
    while (g_hash_table_iter_next(&i, &p, NULL)) {
        struct park *park = p;

        if (park->vm == vm) {
            park->vm = NULL;
            park_begin_to_end(park);
        }
    }
}

/* ---- streams ---- */

struct parked *parked_new(struct park *park, uint32_t number)
{
    struct parked *p, *before = TAILQ_LAST(&park->streams, parked_list);

    /* They come in order, more or less. */
    while (before && before->number > number) {
        before = TAILQ_PREV(before, parked_list, link);
    }
    if ((before && before->number == number) || park->host->n >= PARK_MAX_OF_PEER ||
        n_streams >= max_streams) {
        return NULL;
    }
    p = g_new0(struct parked, 1);
    p->park = park;
    p->host = park->host;
    p->number = number;
    p->fd = -1;
    p->state = PARK_MAKING;
    p->host->n++;
    n_streams++;
    if (before) {
        TAILQ_INSERT_AFTER(&park->streams, before, p, link);
    } else {
        TAILQ_INSERT_HEAD(&park->streams, p, link);
    }
    return p;
}

/*
 * Take what has come: nothing, or the initiator's first frame and nothing else.  False:
 * it is of no use any more.
 */
static bool take_first(struct parked *p)
{
    uint8_t in[FIRST_MAX];
    ssize_t n = recv(p->fd, in, sizeof(in), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return true; /* as after a call for whose number this once was, see fdwatch.c */
    }
    if (n <= 0 || p->state != PARK_FIRST ||
        !rx_is_first_frame(in, (size_t)n, &p->framing)) {
        return false;
    }
    p->state = PARK_IDLE;
    return true;
}

static gboolean on_socket(int fd, GIOCondition ready, gpointer opaque)
{
    struct parked *p = opaque;
    struct park *park = p->park;

    if (!take_first(p)) {
        parked_free(p);
        park_drop_empty(park); /* its announcement is over */
    }
    return G_SOURCE_CONTINUE; /* what has gone has removed it */
}

void parked_is(struct parked *p, int fd, const struct framing *framing,
               enum parked_state state)
{
    p->fd = fd;
    p->framing = *framing;
    p->state = state;
    p->until = now_ns() + SETUP_FRAMES_NS;
    p->setup = NULL;
    p->watch = fdwatch_add(fd, G_IO_IN | POLLRDHUP, on_socket, p);
}

static void take_out(struct parked *p)
{
    TAILQ_REMOVE(&p->park->streams, p, link);
    if (p->watch) {
        fdwatch_remove(p->watch);
        p->watch = 0;
    }
    p->park = NULL;
}

void parked_free(struct parked *p)
{
    if (p->park) {
        take_out(p);
    }
    if (p->setup) {
        p->host->making--;
        startup_cancel_parking(p);
    }
    if (p->fd >= 0) {
        close(p->fd);
    }
    p->host->n--;
    n_streams--;
    g_free(p->take);
    g_free(p->own);
    g_free(p->peer);
    g_free(p);
}

static struct parked *taken(struct parked *p)
{
    if (p) {
        take_out(p);
        p->state = PARK_TAKING;
    }
    return p;
}

static struct parked *complete(const struct park *park, bool last)
{
    struct parked *p =
        last ? TAILQ_LAST(&park->streams, parked_list) : TAILQ_FIRST(&park->streams);

    while (p && p->state != PARK_IDLE) {
        p = last ? TAILQ_PREV(p, parked_list, link) : TAILQ_NEXT(p, link);
    }
    return p;
}

struct parked *park_take(struct park *park, bool last)
{
    return taken(complete(park, last));
}

bool park_has(const struct park *park)
{
    return complete(park, park->ours); /* from the end where nobody has taken yet */
}

struct parked *park_take_number(struct park *park, uint32_t number)
{
    struct parked *p = TAILQ_FIRST(&park->streams),
                  *last = TAILQ_LAST(&park->streams, parked_list);

    if (!p || number > last->number) {
        return NULL;
    }
    if (number - MIN(number, p->number) < last->number - number) {
        while (p && p->number < number) {
            p = TAILQ_NEXT(p, link);
        }
    } else {
        for (p = last; p && p->number > number;) {
            p = TAILQ_PREV(p, parked_list, link);
        }
    }
    if (!p || p->number != number) {
        return NULL;
    }
    /* By its own connection it may come later than what is said by the link. */
    if (p->state == PARK_FIRST && !take_first(p)) {
        parked_free(p); /* what came is read */
        return NULL;
    }
    return p->state == PARK_IDLE ? taken(p) : NULL;
}

/* ---- start and stop ---- */

void park_open(void)
{
    struct rlimit rl;

    hosts = g_hash_table_new_full(NULL, NULL, NULL, g_free);
    by_token = g_hash_table_new(token_hash, token_equal);
    by_place = g_hash_table_new(place_hash, place_equal);
    max_streams = PARK_MAX;
    if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur / 4 < PARK_MAX) {
        max_streams = (unsigned)(rl.rlim_cur / 4);
    }
}

static bool is_any(const struct park *park, const void *unused)
{
    return true;
}

void park_close(void)
{
    if (!hosts) {
        return;
    }
    drop_those(is_any, NULL);
    if (look_timer) {
        g_source_remove(look_timer);
        look_timer = 0;
    }
    g_clear_pointer(&by_place, g_hash_table_destroy);
    g_clear_pointer(&by_token, g_hash_table_destroy);
    g_clear_pointer(&hosts, g_hash_table_destroy);
}
