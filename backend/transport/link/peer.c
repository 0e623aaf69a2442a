/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The other hosts: who they are, and the one link to each.
 *
 * Each side calls the other, again and again, as long as there is no link, with pauses
 * that grow with the time that it is away.  If both do at the same time, the call of the
 * host whose name comes first stays, and the other waits somewhat longer before it calls,
 * so that this is rare.  A second link by the same caller, from a daemon that was started
 * anew, or when the first is no new one, takes the place of that: its other end has given
 * it up.
 *
 * A link that is silent (link.c) is kept, but the other side called as if there was none,
 * with a fresh TCP connection each PEER_SILENT_MS: TCP would notice seconds later that
 * the network is back.  So there is one call at a time between two hosts that tries
 * whether it is, however much waits for that; and who waits is told (heard).
 *
 * Peers are never freed before peers_stop(); one whose group has gone is marked, has no
 * link, and is taken up again if the group comes back.
 *
 * Main thread; what others may read is atomic.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/random.h>

#include "transport/link/internal.h"

/* Between two calls: a part of the time that it has been away, within these. */
#define PAUSE_MIN_MS 100u
#define PAUSE_MAX_MS 5000u
#define AWAY_PART    8
/* So long both sides' calls are under way at the same time, at most, as a rule. */
#define CROSS_US (2 * G_USEC_PER_SEC)
/* A peer's links: so many at once, and one more each LINKS_US. */
#define LINKS_MAX 64
#define LINKS_US  G_USEC_PER_SEC
/* The host whose name comes second calls so much later. */
#define SECOND_MS 300u

/* Of a PING that is no keep-alive: those have a time. */
#define ECHO_STAMP (UINT64_C(1) << 63)

struct peers_self peers_self;
static GPtrArray *peers; /* of struct peer */

void peers_random(void *out, size_t len)
{
    /* Up to 256 bytes come whole, once the kernel has any. */
    while (getrandom(out, len, 0) != (ssize_t)len) {
        continue;
    }
}

GPtrArray *peers_all(void)
{
    return peers;
}

void peer_set_ops(const struct peer_ops *ops)
{
    peers_self.ops = ops;
}

void peer_set_claim_ops(const struct peer_claim_ops *ops)
{
    peers_self.claim_ops = ops;
}

void peer_set_channel_ops(const struct peer_channel_ops *ops)
{
    peers_self.channel_ops = ops;
}

void peer_set_datagram(void (*fn)(struct peer *from,
                                  const struct peer_datagram *datagram))
{
    peers_self.datagram = fn;
}

/* ---- who there is ---- */

static struct peer *find(const char *name)
{
    for (guint i = 0; peers && i < peers->len; i++) {
        struct peer *peer = peers->pdata[i];

        if (strcmp(peer->name, name) == 0) {
            return peer;
        }
    }
    return NULL;
}

struct peer *peer_find(const char *name)
{
    struct peer *peer = find(name);

    return peer && !peer->gone ? peer : NULL;
}

struct peer *peer_next(struct peer *peer)
{
    guint i = 0;

    if (peer && g_ptr_array_find(peers, peer, &i)) {
        i++;
    }
    for (; peers && i < peers->len; i++) {
        struct peer *next = peers->pdata[i];

        if (!next->gone) {
            return next;
        }
    }
    return NULL;
}

bool peers_know(const struct sockaddr_storage *from)
{
    for (guint i = 0; i < peers->len; i++) {
        const struct peer *p = peers->pdata[i];

        if (!p->gone && config_same_host(&p->cfg->address, from)) {
            return true;
        }
    }
    return false;
}

struct peer *peers_linked(const struct sockaddr_storage *from)
{
    for (guint i = 0; i < peers->len; i++) {
        struct peer *p = peers->pdata[i];

        if (p->link && config_same_host(&p->cfg->address, from)) {
            return p;
        }
    }
    return NULL;
}

struct peer *peer_of_hello(const struct peer_hello *h,
                           const struct sockaddr_storage *from)
{
    struct peer *peer = peer_find(h->from);

    return peer && config_same_host(&peer->cfg->address, from) ? peer : NULL;
}

const char *peer_name(const struct peer *peer)
{
    return peer->name;
}

bool peer_is_up(const struct peer *peer)
{
    return atomic_load_explicit(&peer->up, memory_order_acquire);
}

bool peer_hears(const struct peer *peer)
{
    return peer->link && !link_is_silent(peer->link);
}

bool peer_is_replaced(const struct peer *peer)
{
    return peer->replaced;
}

bool peer_has_ended(const struct peer *peer)
{
    return peer->gone || peer->ended;
}

const uint8_t *peer_instance(const struct peer *peer)
{
    return peer->instance;
}

const struct sockaddr_storage *peer_address(const struct peer *peer)
{
    return &peer->cfg->address;
}

const struct sockaddr_storage *peer_own_address(const struct peer *peer)
{
    return &peer->own;
}

socklen_t peer_address_len(const struct sockaddr_storage *address)
{
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                          : sizeof(struct sockaddr_in);
}

/* ---- calling ---- */

static bool name_is_first(const struct peer *peer)
{
    return strcmp(peers_self.name, peer->name) < 0;
}

static void call(struct peer *peer);

static gboolean on_retry(gpointer opaque)
{
    struct peer *peer = opaque;

    peer->retry = 0;
    call(peer);
    return G_SOURCE_REMOVE;
}

static void stop_retry(struct peer *peer)
{
    if (peer->retry) {
        g_source_remove(peer->retry);
        peer->retry = 0;
    }
}

/* Is it to be called, and is it not? */
static bool wants_call(const struct peer *peer)
{
    return !peer->gone && !peer->trying && (!peer->link || link_is_silent(peer->link));
}

/* Between two calls, and until one is over: in proportion to the time that it is away. */
static unsigned away_ms(const struct peer *peer, unsigned min, unsigned max)
{
    gint64 ms = (g_get_monotonic_time() - peer->away) / 1000 / AWAY_PART;

    return (unsigned)CLAMP(ms, (gint64)min, (gint64)max);
}

unsigned peer_patience_ms(const struct peer *peer)
{
    return away_ms(peer, peer->patience_ms, PEER_DECIDE_MS);
}

/* Call after a pause, since the last call's beginning or the link's end. */
static void call_later(struct peer *peer)
{
    unsigned ms = away_ms(peer, PAUSE_MIN_MS, PAUSE_MAX_MS);
    gint64 gone_by = (g_get_monotonic_time() - peer->called) / 1000;

    if (!wants_call(peer) || peer->retry) {
        return;
    }
    ms += (unsigned)g_random_int_range(0, (int)ms / 4 + 1);
    ms += peer->link || name_is_first(peer) ? 0 : SECOND_MS;
    ms -= (unsigned)CLAMP(gone_by, 0, (gint64)ms - 1);
    peer->retry = g_timeout_add(ms, on_retry, peer);
}

/* Told once, not with each attempt. */
static void failed(struct peer *peer, const char *why, bool tell)
{
    peer->failures++;
    if (g_strcmp0(peer->last_error, why) != 0) {
        if (tell) {
            log_about(LOG_LVL_WARN, &peer->log, "no link: %s", why);
        }
        g_free(peer->last_error);
        peer->last_error = g_strdup(why);
    }
}

/* While there is a link that is silent, that has been said. */
static void call_failed(struct peer *peer, const char *why)
{
    if (peer->link) {
        peer->failures++;
    } else {
        failed(peer, why, true);
    }
}

static void call(struct peer *peer)
{
    int err;

    if (!wants_call(peer)) {
        return;
    }
    peer->called = g_get_monotonic_time();
    listen_own(&peer->cfg->address, &peer->own);
    peer->trying = link_connect(peer, &err);
    if (!peer->trying) {
        call_failed(peer, g_strerror(-err));
        call_later(peer);
    }
}

/* ---- links come and go ---- */

static bool is_same_daemon(const struct peer *peer, const struct peer_link *l)
{
    return memcmp(link_hello(l)->instance, peer->instance, sizeof(peer->instance)) == 0;
}

/* Two links of one host: is the new one, @l, to take the other's place? */
static bool replaces(const struct peer *peer, const struct peer_link *l)
{
    if (!is_same_daemon(peer, l) || link_role(l) == link_role(peer->link)) {
        return true;
    }
    /* Calls cross in the beginning only: else it does not hear us by that link. */
    if (link_is_silent(peer->link) || g_get_monotonic_time() - peer->since > CROSS_US) {
        return true;
    }
    return (link_role(l) == PEER_INITIATOR) == name_is_first(peer);
}

/* Has the other side our proof?  Then our call may have taken the link's place there. */
static bool is_proved(const struct peer_link *call)
{
    return call && link_state(call) == LINK_AUTH;
}

/* Both sides call, and ours is to stay?  An answer that does not come is not waited for.
 */
static bool is_crossed(const struct peer *peer)
{
    return is_proved(peer->trying) && name_is_first(peer) &&
           g_get_monotonic_time() - peer->called < CROSS_US;
}

static void give_up_call(struct peer *peer, const char *why)
{
    if (peer->trying) {
        link_close(peer->trying, PEER_CLOSE_CROSSED, why);
    }
}

bool peer_may_link(const struct peer *peer)
{
    return peer->links_paid - g_get_monotonic_time() < LINKS_MAX * LINKS_US;
}

bool peer_take_link(struct peer *peer, struct peer_link *l)
{
    bool ours = peer->trying == l;

    if (peer->gone || (peer->link && !replaces(peer, l)) || (!ours && is_crossed(peer))) {
        return false;
    }
    if (peer->link) {
        peer->replaced = is_same_daemon(peer, l);
        link_close(peer->link, PEER_CLOSE_CROSSED, "another link has taken its place");
        peer->replaced = false;
    }
    if (!ours) {
        give_up_call(peer, "the other side's connection came first");
    }
    peer->trying = NULL;
    stop_retry(peer);
    return true;
}

static void tell_heard(struct peer *peer)
{
    if (peers_self.ops && peers_self.ops->heard) {
        peers_self.ops->heard(peer);
    }
}

void peer_link_up(struct peer *peer, struct peer_link *l)
{
    peer->link = l;
    peer->ended = false;
    memcpy(peer->instance, link_hello(l)->instance, sizeof(peer->instance));
    peer->since = g_get_monotonic_time();
    peer->links_paid = MAX(peer->links_paid, peer->since) + LINKS_US;
    peer->links++;
    queue_open(&peer->queue, peer->cfg->max_queued);
    atomic_store_explicit(&peer->up, true, memory_order_release);
    log_about(LOG_LVL_INFO, &peer->log, "the link is up");
    g_clear_pointer(&peer->last_error, g_free);
    if (peers_self.claim_ops && peers_self.claim_ops->link_up) {
        peers_self.claim_ops->link_up(peer);
    }
    if (peer->link == l && peers_self.channel_ops) {
        peers_self.channel_ops->link_up(peer);
    }
    if (peer->link == l) {
        tell_heard(peer);
    }
}

static void link_down(struct peer *peer)
{
    atomic_store_explicit(&peer->up, false, memory_order_release);
    queue_close(&peer->queue);
    peer->rtt_us = 0;
    peer->echo = 0;
    peer->since = peer->called = g_get_monotonic_time();
    if (peers_self.claim_ops && peers_self.claim_ops->link_down) {
        peers_self.claim_ops->link_down(peer);
    }
    if (peers_self.channel_ops) {
        peers_self.channel_ops->link_down(peer);
    }
}

void peer_link_gone(struct peer *peer, struct peer_link *l, const char *why, bool crossed)
{
    uint64_t sent, received;
    bool was_up = peer->link == l;

    link_bytes(l, &sent, &received);
    peer->sent_bytes += sent;
    peer->received_bytes += received;
    if (peer->trying == l) {
        peer->trying = NULL;
    }
    if (!crossed && !peer->gone && was_up) {
        failed(peer, why, false);
    } else if (!crossed && !peer->gone) {
        call_failed(peer, why);
    }
    if (was_up) {
        peer->link = NULL;
        if (!link_is_silent(l)) {
            peer->away = g_get_monotonic_time();
        }
        log_about(LOG_LVL_INFO, &peer->log, "the link is down: %s", why);
        link_down(peer);
    }
    call_later(peer);
}

void peer_link_silent(struct peer *peer)
{
    peer->silences++;
    peer->away = g_get_monotonic_time();
    log_about(LOG_LVL_INFO, &peer->log, "the link is silent: connecting again");
    call(peer);
}

void peer_link_heard(struct peer *peer)
{
    stop_retry(peer);
    if (!is_proved(peer->trying)) {
        give_up_call(peer, "the link is no longer silent");
    }
    tell_heard(peer);
}

void peer_reset(struct peer *peer, const char *why)
{
    if (peer->link) {
        peer->refused++;
        link_close(peer->link, PEER_CLOSE_PROTOCOL, why);
    }
}

void peer_ask_echo(struct peer *peer)
{
    static uint64_t n;
    struct peer_msg ping = {.type = PEER_MSG_PING, .stamp = ECHO_STAMP | ++n};

    peer->echo = peer->link && peer_send_control(peer, &ping) ? ping.stamp : 0;
}

bool peer_echo_is_due(const struct peer *peer)
{
    return peer->echo != 0;
}

/* ---- peers come and go ---- */

static struct peer_config *copy_config(const struct peer_config *cfg)
{
    struct peer_config *copy = g_new0(struct peer_config, 1);

    copy->name = g_strdup(cfg->name);
    copy->address = cfg->address;
    copy->secret_file = g_strdup(cfg->secret_file);
    copy->secret = g_memdup2(cfg->secret, cfg->secret_len);
    copy->secret_len = cfg->secret_len;
    copy->max_queued = cfg->max_queued;
    return copy;
}

/* As @cfg has it from now on, from the beginning. */
static void begin(struct peer *peer, const struct peer_config *cfg)
{
    config_peer_free(peer->cfg);
    peer->cfg = copy_config(cfg);
    peer->gone = false;
    peer->since = peer->called = peer->away = g_get_monotonic_time();
    peer->patience_ms = PEER_DECIDE_MS;
    listen_own(&peer->cfg->address, &peer->own);
    call_later(peer);
}

static void end(struct peer *peer, const char *why)
{
    peer->gone = true; /* so that nobody calls */
    stop_retry(peer);
    if (peer->trying) {
        link_close(peer->trying, PEER_CLOSE_STOPPING, why);
    }
    if (peer->link) {
        link_kick(peer->link); /* what is said already is said */
    }
    if (peer->link) {
        link_close(peer->link, PEER_CLOSE_STOPPING, why);
    } else if (peers_self.channel_ops) { /* they may be up without one */
        peers_self.channel_ops->link_down(peer);
    }
}

static void add(const struct peer_config *cfg)
{
    struct peer *peer = g_new0(struct peer, 1);

    peer->name = g_strdup(cfg->name);
    peer->log.name = peer->name;
    peer->log.kind = "peer";
    queue_init(&peer->queue);
    g_ptr_array_add(peers, peer);
    begin(peer, cfg);
}

static void peer_free(gpointer opaque)
{
    struct peer *peer = opaque;

    log_flush(&peer->log);
    queue_fini(&peer->queue);
    config_peer_free(peer->cfg);
    g_free(peer->last_error);
    g_free(peer->name);
    g_free(peer);
}

static const struct peer_config *in_file(const struct daemon_config *cfg,
                                         const char *name)
{
    for (GList *l = cfg->peers; l; l = l->next) {
        const struct peer_config *c = l->data;

        if (strcmp(c->name, name) == 0) {
            return c;
        }
    }
    return NULL;
}

static void say_line(void (*say)(void *opaque, char *line), void *opaque,
                     const char *name, const char *what)
{
    char *line = g_strdup_printf("peer %s: %s", name, what);

    if (say) {
        say(opaque, line);
    } else {
        g_free(line);
    }
}

void peers_reload(const struct daemon_config *cfg, void (*say)(void *opaque, char *line),
                  void *opaque)
{
    if (!peers_self.name) {
        return;
    }
    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        if (!in_file(cfg, p->name) && !config_has_problem(cfg, "peer", p->name)) {
            end(p, "its group was removed from the key file");
            say_line(say, opaque, p->name, "removed");
        }
    }
    for (GList *l = cfg->peers; l; l = l->next) {
        const struct peer_config *c = l->data;
        struct peer *peer = find(c->name);

        if (!peer) {
            add(c);
            say_line(say, opaque, c->name, "added");
        } else if (peer->gone) {
            begin(peer, c);
            say_line(say, opaque, c->name, "added");
        } else if (!config_peer_same(peer->cfg, c)) {
            end(peer, "its group has changed");
            begin(peer, c);
            say_line(say, opaque, c->name, "changed, the link is set up again");
        }
    }
}

/* ---- start, stop ---- */

void peers_start(const struct daemon_config *cfg)
{
    peers = g_ptr_array_new_with_free_func(peer_free);
    if (!cfg->n_listen) {
        return;
    }
    peers_self.name = g_strdup(cfg->host_name);
    peers_self.timeout_ms = cfg->peer_timeout * 1000;
    peers_self.strangers_log.kind = "other";
    peers_self.strangers_log.name = "hosts";
    peers_random(peers_self.instance, sizeof(peers_self.instance));
    queues_start();
    listen_start(cfg);
    for (GList *l = cfg->peers; l; l = l->next) {
        add(l->data);
    }
}

void peers_stop(void)
{
    if (peers_self.name) {
        listen_stop();
        links_close_early();
        for (guint i = 0; i < peers->len; i++) {
            end(peers->pdata[i], "the daemon ends");
        }
        queues_stop();
        log_flush(&peers_self.strangers_log);
    }
    g_clear_pointer(&peers, g_ptr_array_unref);
    g_clear_pointer(&peers_self.name, g_free);
}
