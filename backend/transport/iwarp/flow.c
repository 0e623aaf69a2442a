/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Transport "tcp", the other carrier of a stream's frames: a flow of the channel (rnic/)
 * that joins the two VMs.
 *
 * It carries what a TCP connection would: MPA's Request is the content of OPEN, the Reply
 * that of OPENED, both as a whole; then the first frame, and FPDUs without sums and
 * markers, since a channel loses and changes nothing.  An FPDU that is there as a whole
 * is taken from where it came; the channel cuts some in two, which are collected.  What
 * the channel was given arrives, and before the peer hears that the flow is closed.  A
 * queue pair that goes before the channel has taken all leaves its flow here
 * (flow_leave()) until that is so: it may be the ACK of a message that its guest has
 * seen.
 *
 * A channel that breaks ends the streams on it, which is no failed try of theirs: another
 * one is asked for at once, by TCP or by another channel.
 *
 * What comes while a setup waits for it is the main thread's to look at (handshake.c):
 * it is noted in the flow, which is in a list that the main loop empties.  A flow lives
 * in its VM's list, under the token.  The main thread, which has no token when it gives
 * one up, marks it (dropped), and the VM's next turn frees it; so what the main thread
 * refers to is alive.  `channel` is NULL from the moment that the channel has broken.
 *
 * Threads: the VM's worker in its turns, with the token; the main thread, with it unless
 * said otherwise.  What is to go out is staged, and goes at the turn's end: the main
 * thread sees to it that there is one (flow_poke()).
 */
#include "transport/iwarp/flow.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/fdwatch.h"
#include "transport/iwarp/rx.h"
#include "transport/iwarp/setup/bind.h"
#include "transport/iwarp/wire/mpa.h"

/* News in one turn of the main loop. */
#define NEWS_TURN 64u
/* Flows of queue pairs that have gone, of a VM; beyond that the oldest is closed. */
#define MAX_LEAVING 256u

static bool use_channels; /* the main thread's */
/* For the log: what came by flows that are closed; streams that there were by flows, and
 * of VMs with channels by TCP. */
static _Atomic uint64_t all_bytes, all_streams, tcp_streams;

/* Protects news, and each VM's list of dropped ones. */
static pthread_mutex_t news_lock = PTHREAD_MUTEX_INITIALIZER;
static STAILQ_HEAD(, flow) news = STAILQ_HEAD_INITIALIZER(news);
static int news_fd = -1;
static guint news_watch;

/* What is staged is to go out, though this is no turn. */
static void flow_poke(struct tcp_vm *net)
{
    if (!worker_self()) {
        atomic_store(&net->net.ready, true);
        datapath_wake(net->vm);
    }
}

/* ---- news for the main thread ------------------------------------------------- */

static void flow_tell_main(void)
{
    uint64_t one = 1;

    if (write(news_fd, &one, sizeof(one)) < 0) {
        return; /* the counter is full: it is seen */
    }
}

/* False: no memory for what was said. */
static bool flow_tell(struct flow *f, enum flow_news what, const uint8_t *bytes,
                      size_t len)
{
    uint8_t *said = len ? malloc(len) : NULL;
    bool first;

    if (len && !said) {
        return false;
    }
    if (said) {
        memcpy(said, bytes, len);
    }
    pthread_mutex_lock(&news_lock);
    if (f->dropped) {
        pthread_mutex_unlock(&news_lock);
        free(said);
        return true;
    }
    if (said) {
        free(f->said); /* the peer says it once: there is none */
        f->said = said;
        f->said_len = len;
    }
    first = STAILQ_EMPTY(&news);
    if (!f->news) {
        STAILQ_INSERT_TAIL(&news, f, news_link);
    }
    f->news |= what;
    pthread_mutex_unlock(&news_lock);
    if (first) {
        flow_tell_main();
    }
    return true;
}

/* Nobody is told of it any more. */
static void flow_no_news(struct flow *f)
{
    pthread_mutex_lock(&news_lock);
    if (f->news) {
        STAILQ_REMOVE(&news, f, flow, news_link);
        f->news = 0;
    }
    f->dropped = true;
    pthread_mutex_unlock(&news_lock);
}

/* The next one that there are news of, and what; *@said is the caller's. */
static struct flow *flow_next_news(unsigned *what, uint8_t **said, size_t *len)
{
    struct flow *f;

    pthread_mutex_lock(&news_lock);
    f = STAILQ_FIRST(&news);
    if (f) {
        STAILQ_REMOVE_HEAD(&news, news_link);
        *what = f->news;
        *said = f->said;
        *len = f->said_len;
        f->news = 0;
        f->said = NULL;
        f->said_len = 0;
    }
    pthread_mutex_unlock(&news_lock);
    return f;
}

static gboolean flows_on_news(int fd, GIOCondition ready, gpointer unused)
{
    unsigned what = 0;
    uint8_t *said = NULL;
    size_t len = 0;
    struct flow *f;
    uint64_t told;

    if (read(fd, &told, sizeof(told)) < 0) {
        return G_SOURCE_CONTINUE;
    }
    for (unsigned n = 0; n < NEWS_TURN; n++) {
        f = flow_next_news(&what, &said, &len);
        if (!f) {
            return G_SOURCE_CONTINUE;
        }
        handshake_flow(f, what, said, len);
        free(said);
    }
    flow_tell_main();
    return G_SOURCE_CONTINUE;
}

/* ---- it begins, and ends ------------------------------------------------------- */

/* NULL: no memory. */
static struct flow *flow_new(struct tcp_vm *net, struct rnic_pair *p,
                             struct rnic_channel *ch)
{
    struct flow *f = g_try_new0(struct flow, 1);

    if (f) {
        f->net = net;
        f->pair = p;
        rnic_pair_hold(p);
        f->channel = ch;
        TAILQ_INSERT_TAIL(&net->flows, f, link);
    }
    return f;
}

static void flow_free(struct flow *f)
{
    flow_no_news(f);
    if (f->last) {
        TAILQ_REMOVE(&f->net->leaving, f, link);
        f->net->n_leaving--;
    } else {
        TAILQ_REMOVE(&f->net->flows, f, link);
    }
    if (f->channel && f->asked) {
        rnic_flow_refuse(f->channel, f->asked, NULL, 0);
    } else if (f->channel) {
        rnic_flow_close(&f->end);
    }
    g_free(f->rx.room);
    g_free(f->saved);
    g_free(f->last);
    free(f->said);
    rnic_pair_let_go(f->pair);
    g_free(f);
}

struct flow *flow_begin(struct tcp_vm *net, struct rnic_pair *p, const uint8_t *bytes,
                        size_t len)
{
    struct rnic_channel *ch = rnic_pair_channel(p);
    struct flow *f = ch ? flow_new(net, p, ch) : NULL;

    if (f && !rnic_flow_begin(ch, &f->end, bytes, len)) {
        f->channel = NULL; /* there is nothing to close */
        flow_free(f);
        return NULL;
    }
    flow_poke(net);
    return f;
}

bool flow_accept(struct flow *f, const uint8_t *bytes, size_t len)
{
    if (!f->channel || !rnic_flow_accept(f->channel, &f->end, f->asked, bytes, len)) {
        return false;
    }
    f->asked = 0;
    flow_poke(f->net);
    return true;
}

void flow_refuse(struct flow *f, const uint8_t *bytes, size_t len)
{
    if (f->channel) {
        rnic_flow_refuse(f->channel, f->asked, bytes, len);
        f->channel = NULL;
    }
    flow_poke(f->net);
}

void flow_drop(struct flow *f)
{
    struct tcp_vm *net = f->net;

    f->setup = NULL;
    flow_no_news(f);
    pthread_mutex_lock(&news_lock);
    STAILQ_INSERT_TAIL(&net->dropped, f, news_link); /* from here on it may be freed */
    pthread_mutex_unlock(&news_lock);
    atomic_store(&net->flows_dropped, true);
    flow_poke(net);
}

/* ---- out ----------------------------------------------------------------------- */

static ssize_t flow_send(struct conn *c, const uint8_t *frames, size_t len)
{
    struct flow *f = c->s->flow;

    if (!f->channel) {
        return -1;
    }
    count(&c->net->net.channel_sends, 1);
    flow_poke(c->net);
    return rnic_flow_send(&f->end, frames, len);
}

static void flow_watch(struct conn *c, bool writable)
{
    struct flow *f = c->s->flow;

    if (f->channel) {
        rnic_flow_want(&f->end, writable);
    }
}

/* It fits into one of the channel's frames, which grow. */
static uint32_t flow_mulpdu(const struct conn *c)
{
    const struct flow *f = c->s->flow;

    return fpdu_mulpdu(f->channel ? rnic_channel_room(f->channel) : 0,
                       c->s->framing.markers);
}

/* Of one that leaves, which is gone when that is all. */
static void flow_send_last(struct flow *f)
{
    ssize_t n = rnic_flow_send(&f->end, f->last + f->last_at, f->last_len - f->last_at);

    f->last_at += n > 0 ? (size_t)n : 0;
    if (f->last_at == f->last_len) {
        flow_free(f);
    } else if (n >= 0) { /* else broken() follows */
        rnic_flow_want(&f->end, true);
    }
}

static void flow_on_writable(struct rnic_flow *end)
{
    struct flow *f = (struct flow *)(void *)end;

    if (f->last) {
        flow_send_last(f);
    } else if (f->conn) {
        tx_writable(f->conn);
        flow_watch(f->conn, f->conn->s->backlog != NULL); /* it tells once */
    }
}

/* Its queue pair has gone, and the channel has not taken all of the stream. */
static void flow_leave(struct flow *f, struct stream *s)
{
    struct tcp_vm *net = f->net;

    g_clear_pointer(&f->rx.room, g_free);
    g_clear_pointer(&f->saved, g_free);
    f->conn = NULL;
    TAILQ_REMOVE(&net->flows, f, link);
    f->last = g_steal_pointer(&s->backlog);
    f->last_at = s->backlog_at;
    f->last_len = s->backlog_len;
    if (net->n_leaving == MAX_LEAVING) {
        flow_free(TAILQ_FIRST(&net->leaving));
    }
    TAILQ_INSERT_TAIL(&net->leaving, f, link);
    net->n_leaving++;
    rnic_flow_want(&f->end, true);
    if (f->end.waits) { /* what comes is of no use; it may be the end */
        rnic_flow_go_on(&f->end);
    }
}

/* ---- in ------------------------------------------------------------------------ */

/* True: all of @in was taken. */
static bool flow_take_frames(struct conn *c, struct fpdu_input *in)
{
    struct stream *s = c->s;
    struct fpdu_rx *rx = &s->flow->rx;
    struct fpdu_part part;
    enum iwarp_error error;

    for (;;) {
        if (!rx_have_room(rx, in)) {
            conn_break(c, "no memory");
            return false;
        }
        error = fpdu_rx_next(rx, in, &part);
        if (error) {
            tx_terminate(c, error, NULL, 0, 0);
            return false;
        }
        if (part.kind == FPDU_NONE) {
            return true;
        }
        rx_segment(c, part.data, part.len);
        comp_make_room(worker_self());
        if (!stream_is_up(s) || s->rx_phase == RX_GRACE) {
            return false;
        }
    }
}

/* False: it waits. */
static bool flow_input(struct conn *c, struct fpdu_input *in)
{
    struct stream *s = c->s;
    struct flow *f = s->flow;
    bool waits = !flow_take_frames(c, in) && s->rx_phase == RX_GRACE && stream_is_up(s);

    if (waits) {
        rx_save(&f->saved, &f->saved_len, in);
    } else {
        g_clear_pointer(&f->saved, g_free);
    }
    if (!f->rx.have) {
        g_clear_pointer(&f->rx.room, g_free); /* of thousands few hold something */
    }
    return !waits;
}

static bool flow_on_bytes(struct rnic_flow *end, const uint8_t *bytes, size_t len)
{
    struct flow *f = (struct flow *)(void *)end;
    struct fpdu_input in = {bytes, len};
    struct conn *c = f->conn;

    if (f->last) {
        return true;
    }
    if (!c) {
        f->astray = true; /* the responder, before we are ready */
        return true;
    }
    if (!stream_is_up(c->s)) {
        return true;
    }
    count(&c->net->net.channel_bytes, len);
    f->bytes += len;
    c->progress = c->net->now; /* it is there, and speaks */
    return flow_input(c, &in);
}

/* All that came before it was taken. */
static void flow_check_end(struct conn *c)
{
    struct stream *s = c->s;

    if (s->flow->peer_closed && !(s->rx_phase == RX_GRACE && stream_is_up(s))) {
        conn_break(c, "the peer has closed it");
    }
}

static void flow_resume(struct conn *c, struct turn *t)
{
    struct flow *f = c->s->flow;
    struct fpdu_input in = {f->saved, f->saved ? f->saved_len : 0};

    if (in.left && stream_is_up(c->s) && !flow_input(c, &in)) {
        return;
    }
    if (f->channel) {
        c->net->now = t->now; /* before flows_run() */
        rnic_flow_go_on(&f->end);
    }
    flow_check_end(c);
}

static void flow_on_overrun(struct rnic_flow *end)
{
    struct flow *f = (struct flow *)(void *)end;

    if (f->conn) {
        conn_break(f->conn, "too much has come while a message waited");
    }
}

static void flow_on_closed(struct rnic_flow *end)
{
    struct flow *f = (struct flow *)(void *)end;

    f->peer_closed = true;
    if (f->last) {
        flow_free(f); /* nobody reads it */
    } else if (f->conn) {
        flow_check_end(f->conn);
    }
}

/* ---- the channel's other news ---------------------------------------------------- */

static struct tcp_vm *flow_net_of(const struct rnic_pair *p)
{
    struct vm *vm = rnic_vm_of(rnic_pair_vm(p));

    return (struct tcp_vm *)(void *)atomic_load(&vm->dp.net);
}

static bool flow_on_open(struct rnic_pair *p, uint32_t peer_index, const uint8_t *bytes,
                         size_t len)
{
    struct rnic_channel *ch = rnic_pair_channel(p);
    struct tcp_vm *net = flow_net_of(p);
    struct flow *f;

    if (!len || len > MPA_MAX_STARTUP) {
        return false;
    }
    f = ch ? flow_new(net, p, ch) : NULL;
    if (!f) {
        if (ch) { /* no memory */
            rnic_flow_refuse(ch, peer_index, NULL, 0);
        }
        return true;
    }
    f->asked = peer_index;
    if (!flow_tell(f, FLOW_ASKED, bytes, len)) {
        flow_free(f);
    }
    return true;
}

static bool flow_on_opened(struct rnic_flow *end, bool accepted, const uint8_t *bytes,
                           size_t len)
{
    struct flow *f = (struct flow *)(void *)end;

    if (len > MPA_MAX_STARTUP) {
        return false;
    }
    if (!flow_tell(f, accepted ? FLOW_ACCEPTED : FLOW_REFUSED, bytes, len)) {
        flow_tell(f, FLOW_REFUSED, NULL, 0);
    }
    return true;
}

/* What was on its way by a stream is sent again by the next one. */
static void flow_lose(struct flow *f)
{
    struct conn *c = f->conn;

    if (!f->asked) {
        rnic_flow_close(&f->end);
    }
    f->channel = NULL;
    if (c) {
        c->s->answered = true; /* its end is no try */
        conn_break(c, "its channel has broken");
        atomic_store(&c->net->net.ready, true);
    } else {
        flow_tell(f, FLOW_BROKEN, NULL, 0);
    }
}

static void flow_on_broken(struct rnic_pair *p, struct rnic_channel *ch, bool all)
{
    struct tcp_vm *net = flow_net_of(p);
    struct flow *f, *next;

    TAILQ_FOREACH(f, &net->flows, link)
    {
        if (f->channel == ch) {
            flow_lose(f);
        }
    }
    for (f = TAILQ_FIRST(&net->leaving); f; f = next) {
        next = TAILQ_NEXT(f, link);
        if (f->channel == ch) {
            flow_free(f);
        }
    }
}

static const struct rnic_pair_ops pair_ops = {
    .take = flow_on_bytes,
    .writable = flow_on_writable,
    .overrun = flow_on_overrun,
    .open = flow_on_open,
    .opened = flow_on_opened,
    .closed = flow_on_closed,
    .broken = flow_on_broken,
    .changed = setup_pair_changed,
};

/* ---- the carrier ----------------------------------------------------------------- */

/* Nothing comes by the whole channel: that is for it to judge, and ends within seconds.
 * What it takes of the backlog is progress already. */
static bool flow_has_drained(struct conn *c, uint64_t now)
{
    const struct flow *f = c->s->flow;

    /* If other VMs go first, or this one has sent what it may, the peer is not waited
     * for. */
    return !f->channel || rnic_channel_is_silent(f->channel, now) ||
           rnic_flow_is_held_up(&f->end);
}

/* The channel finds that out, and breaks. */
static bool flow_is_silent(const struct conn *c)
{
    return false;
}

/* The channel has all, and delivers it before it says that this end is closed. */
static void flow_shut(struct conn *c)
{
    conn_break(c, "all data was sent");
}

static bool flow_is_delivered(const struct conn *c)
{
    return true;
}

static void flow_close(struct conn *c)
{
    struct flow *f = c->s->flow;

    atomic_fetch_add_explicit(&all_bytes, f->bytes, memory_order_relaxed);
    count(&c->net->net.channel_streams, UINT64_MAX); /* one less */
    if (!c->qp && c->s->backlog && !stream_is_over(c->s) && f->channel &&
        !f->peer_closed) {
        flow_leave(f, c->s);
    } else {
        flow_free(f);
    }
    flow_poke(c->net);
}

static const struct carrier flow_carrier = {
    .send = flow_send,
    .watch = flow_watch,
    .mulpdu = flow_mulpdu,
    .resume = flow_resume,
    .has_drained = flow_has_drained,
    .is_silent = flow_is_silent,
    .shut = flow_shut,
    .is_delivered = flow_is_delivered,
    .close = flow_close,
};

bool flow_up(struct conn *c, struct flow *f, const struct framing *framing, bool ready,
             const struct hello *own, const struct hello *peer)
{
    struct stream *s = f->channel ? g_try_new0(struct stream, 1) : NULL;

    if (!s) {
        flow_drop(f);
        return false;
    }
    s->carrier = &flow_carrier;
    s->flow = f;
    f->conn = c;
    f->setup = NULL;
    fpdu_rx_init(&f->rx, NULL, FPDU_MAX_SIZE, framing->crc, rdmap_head_len);
    count(&c->net->net.channel_streams, 1);
    atomic_fetch_add_explicit(&all_streams, 1, memory_order_relaxed);
    conn_up(c, s, framing, ready, own, peer);
    if (ready) {
        tx_begin(c);
    }
    if (f->astray) {
        conn_break(c, "the responder has sent before it may");
    }
    flow_check_end(c);
    flow_poke(c->net);
    return true;
}

void flow_not_used(const struct tcp_vm *net)
{
    if (tcp_vm_rnic(net)) {
        atomic_fetch_add_explicit(&tcp_streams, 1, memory_order_relaxed);
    }
}

bool flow_is_held_up(const struct conn *c)
{
    return flow_is_carrier(c->s) && c->s->flow->channel &&
           rnic_flow_is_held_up(&c->s->flow->end);
}

bool flow_is_carrier(const struct stream *s)
{
    return s->carrier == &flow_carrier;
}

const char *flow_nic(const struct conn *c)
{
    if (!c->s || !flow_is_carrier(c->s) || !c->s->flow->channel) {
        return NULL;
    }
    return rnic_pair_nic(c->s->flow->pair);
}

/* ---- those of a VM ---------------------------------------------------------------- */

struct rnic_vm *flows_channels(struct tcp_vm *net)
{
    struct rnic_vm *rv = atomic_load_explicit(&net->rnic, memory_order_relaxed);
    struct epoll_event ev = {.events = EPOLLIN | EPOLLET}; /* no conn's */

    if (rv || !use_channels) {
        return rv;
    }
    rv = rnic_vm_new(net->vm);
    if (!rv || epoll_ctl(net->epfd, EPOLL_CTL_ADD, rnic_vm_fd(rv), &ev) < 0) {
        log_vm(LOG_LVL_WARN, net->vm, "no channels for it: %s", g_strerror(errno));
        if (rv) {
            rnic_vm_free(rv);
        }
        return NULL;
    }
    atomic_store_explicit(&net->rnic, rv, memory_order_release);
    atomic_store(&net->net.polled, true);
    return rv;
}

/* Those that the main thread has given up. */
static void flows_free_dropped(struct tcp_vm *net)
{
    struct flow_queue dropped = STAILQ_HEAD_INITIALIZER(dropped);
    struct flow *f;

    atomic_store(&net->flows_dropped, false);
    pthread_mutex_lock(&news_lock);
    STAILQ_CONCAT(&dropped, &net->dropped);
    pthread_mutex_unlock(&news_lock);
    while ((f = STAILQ_FIRST(&dropped))) {
        STAILQ_REMOVE_HEAD(&dropped, news_link);
        flow_free(f);
    }
}

void flows_run(struct tcp_vm *net, struct turn *t)
{
    net->now = t->now;
    if (atomic_load(&net->flows_dropped)) {
        flows_free_dropped(net);
    }
    if (rnic_vm_is_used(tcp_vm_rnic(net)) && rnic_vm_look(tcp_vm_rnic(net), t->now)) {
        atomic_store_explicit(&net->net.ready, true, memory_order_relaxed);
    }
}

void flows_flush(struct tcp_vm *net)
{
    if (rnic_vm_is_used(tcp_vm_rnic(net))) {
        rnic_vm_flush(tcp_vm_rnic(net));
    }
}

void flows_fini(struct tcp_vm *net)
{
    struct rnic_vm *rv = tcp_vm_rnic(net);
    struct flow *f, *next;

    while ((f = TAILQ_FIRST(&net->flows))) {
        g_assert(!f->conn && !f->setup);
        flow_free(f);
    }
    TAILQ_FOREACH(f, &net->leaving, link)
    {
        rnic_flow_want(&f->end, false); /* none waits for its turn any more */
    }
    if (rv) {
        rnic_vm_last(rv);
    }
    for (f = TAILQ_FIRST(&net->leaving); f; f = next) {
        next = TAILQ_NEXT(f, link);
        flow_send_last(f); /* as far as there is room */
    }
    while ((f = TAILQ_FIRST(&net->leaving))) {
        flow_free(f);
    }
    if (rv) {
        flows_flush(net); /* there is no turn any more */
        rnic_vm_free(rv);
    }
}

/* ---- the daemon -------------------------------------------------------------------- */

bool flows_open(GError **errp)
{
    news_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (news_fd < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "eventfd: %s", g_strerror(errno));
        return false;
    }
    news_watch = fdwatch_add(news_fd, G_IO_IN, flows_on_news, NULL);
    rnic_pair_set_ops(&pair_ops);
    return true;
}

void flows_use(const struct daemon_config *cfg)
{
    use_channels = cfg->nics && (cfg->local_path == CONFIG_PATH_RNIC || cfg->peers);
}

void flows_close(void)
{
    guint64 bytes = atomic_exchange(&all_bytes, 0);
    guint64 streams = atomic_exchange(&all_streams, 0);
    guint64 others = atomic_exchange(&tcp_streams, 0);

    if (streams || others) {
        log_msg(LOG_LVL_INFO,
                "bytes that came by channels: %" G_GUINT64_FORMAT
                "; streams by channels: %" G_GUINT64_FORMAT
                ", by TCP: %" G_GUINT64_FORMAT,
                bytes, streams, others);
    }
    if (news_fd >= 0) {
        fdwatch_remove(news_watch);
        close(news_fd);
        news_fd = -1;
    }
    use_channels = false;
}
