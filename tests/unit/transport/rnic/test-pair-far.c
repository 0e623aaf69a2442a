/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Pairs of VMs of two daemons, over softnic: what they say by their link, and peers that
 * lie, say nothing, or go.
 *
 * Both daemons are this one.  VM A knows VM B to be at peer Q, and B knows A to be at P:
 * what is said to Q comes from P.  A connects, since P has the name that comes first.
 */
#include <arpa/inet.h>
#include <fcntl.h>

#include "directory/directory.h"
#include "pairfix.h"
#include "transport/link/internal.h"

#define NET "net"

/* 10.4.0.1, of the NIC that serves the network. */
static const struct pvrdma_gid the_nic = {{[10] = 0xff, 0xff, 10, 4, 0, 1}};

static struct peer far_p, far_q;
static struct fixvm *a, *b;

/* What is on its way, and what becomes of it. */
static unsigned n_channels, n_answers, answered[PEER_CHANNEL_RESULTS];
static struct peer_channel last_channel;
static struct peer_channel_answer last_answer;
static bool silent; /* nothing gets through */
static void (*spoil_channel)(struct peer_channel *c, unsigned n);
static void (*spoil_answer)(struct peer_channel_answer *a, unsigned n);
static unsigned spoil;

bool __wrap_peer_send_nic(struct peer *peer, const struct peer_nic *nic);
bool __wrap_peer_send_channel(struct peer *peer, const struct peer_channel *c);
bool __wrap_peer_send_channel_answer(struct peer *peer,
                                     const struct peer_channel_answer *answer);

struct letter {
    struct peer_msg m;
    struct peer *from;
};

static gboolean deliver(gpointer opaque)
{
    struct letter *l = opaque;
    const struct peer_channel_ops *ops = peers_self.channel_ops;

    if (ops && l->m.type == PEER_MSG_NIC) {
        ops->nic(l->from, &l->m.nic);
    } else if (ops && l->m.type == PEER_MSG_CHANNEL) {
        ops->channel(l->from, &l->m.channel);
    } else if (ops) {
        ops->answer(l->from, &l->m.channel_answer);
    }
    g_free(l);
    return G_SOURCE_REMOVE;
}

/* What is said to one of them comes from the other one. */
static bool post(struct peer *to, struct peer_msg m)
{
    struct letter *l;
    uint8_t bytes[PEER_MSG_MAX];
    size_t len = peer_msg_put(&m, bytes), size;

    if (!atomic_load(&to->up)) {
        return false;
    }
    if (silent) {
        return true;
    }
    l = g_new0(struct letter, 1);
    g_assert_cmpint(peer_msg_get(bytes, len, PEER_MSG_MAX_BODY, &l->m, &size), ==,
                    PEER_MSG_OK);
    l->from = to == &far_p ? &far_q : &far_p;
    g_idle_add_full(G_PRIORITY_DEFAULT, deliver, l, NULL);
    return true;
}

bool __wrap_peer_send_nic(struct peer *peer, const struct peer_nic *nic)
{
    return post(peer, (struct peer_msg){.type = PEER_MSG_NIC, .nic = *nic});
}

bool __wrap_peer_send_channel(struct peer *peer, const struct peer_channel *c)
{
    struct peer_msg m = {.type = PEER_MSG_CHANNEL, .channel = *c};

    n_channels++;
    last_channel = *c;
    if (spoil_channel) {
        spoil_channel(&m.channel, spoil);
    }
    return post(peer, m);
}

bool __wrap_peer_send_channel_answer(struct peer *peer,
                                     const struct peer_channel_answer *answer)
{
    struct peer_msg m = {.type = PEER_MSG_CHANNEL_ANSWER, .channel_answer = *answer};

    n_answers++;
    answered[answer->result]++;
    last_answer = *answer;
    if (spoil_answer) {
        spoil_answer(&m.channel_answer, spoil);
    }
    return post(peer, m);
}

/* ---- a stage ---- */

static struct pvrdma_gid gid_of(unsigned n)
{
    return (struct pvrdma_gid){
        .raw = {0xfd, [14] = (uint8_t)(n >> 8), [15] = (uint8_t)n}};
}

static void claim(struct peer *peer, uint64_t owner)
{
    struct claim c = {.owner = {7, owner}, .generation = 1};
    struct pvrdma_gid gid = gid_of((unsigned)owner);

    g_assert_cmpint(directory_claim(peer, g_intern_string(NET), &gid, &c, 0), ==,
                    CLAIM_TAKEN);
}

static void link_up(struct peer *peer)
{
    atomic_store(&peer->up, true);
    directory_linked(peer, true);
    peers_self.channel_ops->link_up(peer);
}

static bool knows_nics(unsigned n)
{
    return rnic_far_nics(&far_p) == n && rnic_far_nics(&far_q) == n;
}

/* @networks: those of the second NIC. */
static void open_stage_with(const char *networks)
{
    directory_init();
    directory_set_host("m");
    far_p = (struct peer){.name = (char *)"a", .log = {.name = "a", .kind = "peer"}};
    far_q = (struct peer){.name = (char *)"z", .log = {.name = "z", .kind = "peer"}};
    n_channels = n_answers = spoil = 0;
    memset(answered, 0, sizeof(answered));
    silent = false;
    spoil_channel = NULL;
    spoil_answer = NULL;
    fix_start_as(false);
    softnic_do("add p0 10.4.0.1");
    softnic_do("add p1 10.4.0.2");
    fix_group("n0", "p0", "10.4.0.1", NULL);
    fix_group("n1", "p1", "10.4.0.2", networks);
    fix_nics();
    a = fix_vm(NET, 1);
    b = fix_vm(NET, 2);
    claim(&far_p, 1);
    claim(&far_q, 2);
    link_up(&far_p);
    link_up(&far_q);
    UNTIL(knows_nics(2));
    fix_let_turn(1);
}

static void open_stage(void)
{
    open_stage_with("other");
}

static void close_stage(void)
{
    fix_vm_free(a);
    fix_vm_free(b);
    fix_let_turn(1);
    atomic_store(&far_p.up, false);
    atomic_store(&far_q.up, false);
    fix_stop();
    while (g_main_context_iteration(NULL, FALSE)) {
    }
    directory_forget(&far_p, false, NULL, NULL);
    directory_forget(&far_q, false, NULL, NULL);
    directory_linked(&far_p, false);
    directory_linked(&far_q, false);
    directory_fini();
    softnic_do("remove p0");
    softnic_do("remove p1");
}

static struct rnic_pair *a_wants(void)
{
    return rnic_pair_want(a->rv, &far_q, b->vm.identity.owner, NET);
}

static struct rnic_pair *b_wants(void)
{
    return rnic_pair_want(b->rv, &far_p, a->vm.identity.owner, NET);
}

static void works(void)
{
    struct rnic_pair *p, *q;

    UNTIL((p = a_wants()) && rnic_pair_state(p) == RNIC_PAIR_UP);
    UNTIL((q = b_wants()) && rnic_pair_state(q) == RNIC_PAIR_UP);
    fix_traffic(a, p, b);
    fix_traffic(b, q, a);
    UNTIL(fix_ends() == 2);
}

/* ---- honest ones ---- */

static void test_connects(void)
{
    struct rnic_pair *p;

    open_stage();
    p = a_wants();
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_MAKING);
    fix_expect(p, RNIC_PAIR_UP);
    g_assert_cmpuint(n_channels, ==, 1);
    g_assert_cmpuint(answered[PEER_CHANNEL_OK], ==, 1);
    works();
    g_assert_cmpuint(n_channels, ==, 1);
    close_stage();
}

/* The one who does not connect asks the other. */
static void test_wants(void)
{
    struct rnic_pair *q;

    open_stage();
    q = b_wants();
    g_assert_cmpint(rnic_pair_state(q), ==, RNIC_PAIR_MAKING);
    fix_expect(q, RNIC_PAIR_UP);
    g_assert_cmpuint(n_channels, ==, 2); /* WANT, and what that has brought about */
    works();
    close_stage();
}

/* Both at once. */
static void test_crossed(void)
{
    open_stage();
    a_wants();
    b_wants();
    works();
    close_stage();
}

/* One side has lost it: the other breaks what it has. */
static void test_lost(void)
{
    struct rnic_pair *p, *q;

    open_stage();
    works();
    p = a_wants();
    q = b_wants();
    rnic_pair_break(p, "the test wants it");
    g_assert_true(a_wants() == p);
    fix_expect(p, RNIC_PAIR_UP);
    UNTIL(fix_ends() == 2);
    works();
    rnic_pair_break(q, "the test wants it");
    g_assert_true(b_wants() == q);
    fix_expect(q, RNIC_PAIR_UP);
    UNTIL(fix_ends() == 2);
    works();
    close_stage();
}

/* ---- those that lie ---- */

#define LIES 12u

/* Each makes no sense, in its way. */
static void lie(struct peer_channel *c, unsigned n)
{
    switch (n) {
    case 0:
        c->to[1]++; /* there is no such VM */
        break;
    case 1:
        g_strlcpy(c->network, "other", sizeof(c->network));
        break;
    case 2:
        c->from[0]++; /* not the peer's */
        break;
    case 3:
        c->from[1] = 2; /* of another host */
        break;
    case 4:
        c->to_nic.raw[15] = 99; /* there is no such NIC */
        break;
    case 5:
        c->to_nic.raw[15] = 2; /* not of that network */
        break;
    case 6:
        c->receives = 0;
        break;
    case 7:
        c->receives = 1;
        break;
    case 8:
        c->receives = 65;
        break;
    case 9:
        c->size = 4095;
        break;
    case 10:
        c->size = 1u << 17;
        break;
    default:
        c->flags = PEER_CHANNEL_WANT; /* who connects does not want others to */
        break;
    }
}

static void test_lies(void)
{
    for (unsigned i = 0; i < LIES; i++) {
        struct rnic_pair *p;

        open_stage();
        spoil_channel = lie;
        spoil = i;
        p = a_wants();
        UNTIL(rnic_pair_state(p) == RNIC_PAIR_NONE);
        g_assert_cmpuint(answered[PEER_CHANNEL_OK], ==, 0);
        UNTIL(!fix_ends());
        spoil_channel = NULL;
        works();
        close_stage();
    }
}

/* Who does not connect does. */
static void test_usurper(void)
{
    struct peer_channel c = {.token = {1, 2},
                             .network = NET,
                             .from = {7, 2},
                             .to = {7, 1},
                             .receives = 8,
                             .size = 4096};

    open_stage();
    c.from_nic = c.to_nic = the_nic;
    peers_self.channel_ops->channel(&far_q, &c);
    g_assert_cmpuint(answered[PEER_CHANNEL_REFUSED], ==, 1);
    g_assert_cmpuint(fix_ends(), ==, 0);
    works();
    close_stage();
}

#define WRONG 5u

static void wrong_answer(struct peer_channel_answer *x, unsigned n)
{
    switch (n) {
    case 0:
        x->port = 0;
        break;
    case 1:
        x->receives = 1;
        break;
    case 2:
        x->size = 12345;
        break;
    case 3:
        x->token[1]++; /* of nothing that was asked */
        break;
    default:
        x->port++; /* nobody is there */
        break;
    }
}

static void test_wrong_answers(void)
{
    for (unsigned i = 0; i < WRONG; i++) {
        struct rnic_pair *p;

        int64_t calls = softnic_count("calls", "cm_resolve_addr");

        open_stage();
        spoil_answer = wrong_answer;
        spoil = i;
        rnic_token_ms = i == 3 ? 100 : 20000; /* it is known at once, or never */
        rnic_make_ms = rnic_token_ms;
        p = a_wants();
        rnic_make_ms = 20000;
        UNTIL(rnic_pair_state(p) == RNIC_PAIR_NONE);
        g_assert_cmpint(softnic_count("calls", "cm_resolve_addr") - calls, ==, i == 4);
        rnic_pairs_peer_ended(&far_p, "the test wants it"); /* B still waits */
        UNTIL(!fix_ends());
        spoil_answer = NULL;
        rnic_pairs_peer_nics(&far_q); /* it begins anew */
        rnic_pairs_peer_nics(&far_p);
        rnic_token_ms = rnic_make_ms = 20000;
        works();
        close_stage();
    }
}

/* ---- tokens ---- */

/* Connects by hand, with private data; the port's answer, -1: none within a second. */
static int connect_by_hand(const char *from, const char *to, uint16_t port,
                           const void *data, uint8_t len)
{
    struct rdma_event_channel *events = rnic_verbs->cm_create_event_channel();
    struct sockaddr_in src = {.sin_family = AF_INET, .sin_addr.s_addr = inet_addr(from)};
    struct sockaddr_in dst = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = inet_addr(to)};
    struct rdma_conn_param param = {
        .private_data = data, .private_data_len = len, .retry_count = 1};
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}};
    struct rdma_cm_event *event;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    int answer = -1;

    g_assert_cmpint(fcntl(events->fd, F_SETFL, O_NONBLOCK), ==, 0);
    g_assert_cmpint(rnic_verbs->cm_create_id(events, &id, NULL, RDMA_PS_TCP), ==, 0);
    g_assert_cmpint(rnic_verbs->cm_resolve_addr(id, (struct sockaddr *)&src,
                                                (struct sockaddr *)&dst, 1000),
                    ==, 0);
    UNTIL(rnic_verbs->cm_get_event(events, &event) == 0);
    rnic_verbs->cm_ack_event(event);
    g_assert_cmpint(rnic_verbs->cm_resolve_route(id, 1000), ==, 0);
    UNTIL(rnic_verbs->cm_get_event(events, &event) == 0);
    rnic_verbs->cm_ack_event(event);
    pd = rnic_verbs->alloc_pd(id->verbs);
    init.send_cq = init.recv_cq = rnic_verbs->create_cq(id->verbs, 16, NULL, NULL, 0);
    g_assert_cmpint(rnic_verbs->cm_create_qp(id, pd, &init), ==, 0);
    g_assert_cmpint(rnic_verbs->cm_connect(id, &param), ==, 0);
    UNTIL(rnic_verbs->cm_get_event(events, &event) == 0);
    answer = event->event;
    rnic_verbs->cm_ack_event(event);
    rnic_verbs->cm_destroy_qp(id);
    rnic_verbs->cm_destroy_id(id);
    rnic_verbs->destroy_cq(init.recv_cq);
    rnic_verbs->dealloc_pd(pd);
    rnic_verbs->cm_destroy_event_channel(events);
    return answer;
}

/* Those who show no token. */
struct strangers {
    struct rdma_event_channel *events;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    unsigned n;
    struct rdma_cm_id *ids[60];
};

static void knock(struct strangers *s, uint16_t port)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {8, 8, 1, 1, 0}};
    struct sockaddr_in src = {.sin_family = AF_INET,
                              .sin_addr.s_addr = inet_addr("10.4.0.2")};
    struct sockaddr_in dst = {.sin_family = AF_INET,
                              .sin_port = htons(port),
                              .sin_addr.s_addr = inet_addr("10.4.0.1")};
    struct rdma_conn_param param = {.retry_count = 1};
    struct rdma_cm_event *event;

    s->events = rnic_verbs->cm_create_event_channel();
    s->n = G_N_ELEMENTS(s->ids);
    g_assert_cmpint(fcntl(s->events->fd, F_SETFL, O_NONBLOCK), ==, 0);
    for (unsigned i = 0; i < s->n; i++) {
        struct rdma_cm_id *id;

        g_assert_cmpint(rnic_verbs->cm_create_id(s->events, &id, NULL, RDMA_PS_TCP), ==,
                        0);
        s->ids[i] = id;
        g_assert_cmpint(rnic_verbs->cm_resolve_addr(id, (struct sockaddr *)&src,
                                                    (struct sockaddr *)&dst, 1000),
                        ==, 0);
        UNTIL(rnic_verbs->cm_get_event(s->events, &event) == 0);
        rnic_verbs->cm_ack_event(event);
        g_assert_cmpint(rnic_verbs->cm_resolve_route(id, 1000), ==, 0);
        UNTIL(rnic_verbs->cm_get_event(s->events, &event) == 0);
        rnic_verbs->cm_ack_event(event);
        if (!i) {
            s->pd = rnic_verbs->alloc_pd(id->verbs);
            s->cq = rnic_verbs->create_cq(id->verbs, 16, NULL, NULL, 0);
        }
        init.send_cq = init.recv_cq = s->cq;
        g_assert_cmpint(rnic_verbs->cm_create_qp(id, s->pd, &init), ==, 0);
    }
    for (unsigned i = 0; i < s->n; i++) {
        g_assert_cmpint(rnic_verbs->cm_connect(s->ids[i], &param), ==, 0);
    }
}

static void leave(struct strangers *s)
{
    for (unsigned i = 0; i < s->n; i++) {
        rnic_verbs->cm_destroy_qp(s->ids[i]);
        rnic_verbs->cm_destroy_id(s->ids[i]);
    }
    rnic_verbs->destroy_cq(s->cq);
    rnic_verbs->dealloc_pd(s->pd);
    rnic_verbs->cm_destroy_event_channel(s->events);
}

static void make_token(uint8_t data[RNIC_PRIVATE_LEN], const uint64_t token[2])
{
    static const uint8_t head[8] = {'p', 'r', 'v', 'c', 0, 0, 0, 1};
    uint64_t t[2] = {GUINT64_TO_BE(token[0]), GUINT64_TO_BE(token[1])};

    memcpy(data, head, 8);
    memcpy(data + 8, t, 16);
}

/* Have B expect a request with last_channel's token, that A does not make. */
static uint16_t expected(void)
{
    struct peer_channel c = {.token = {0x1122, 0x3344},
                             .network = NET,
                             .from = {7, 1},
                             .to = {7, 2},
                             .receives = 8,
                             .size = 4096};

    c.from_nic = c.to_nic = the_nic;
    last_channel = c;
    n_answers = 0;
    peers_self.channel_ops->channel(&far_p, &c);
    UNTIL(n_answers == 1);
    g_assert_cmpint(last_answer.result, ==, PEER_CHANNEL_OK);
    return last_answer.port;
}

/* Of the other NIC. */
static uint16_t other_port(void)
{
    struct pvrdma_gid gid = the_nic;

    gid.raw[15] = 2;
    return rnic_cm_find(&gid)->port;
}

static void test_tokens(void)
{
    uint8_t data[RNIC_PRIVATE_LEN], wrong[RNIC_PRIVATE_LEN];
    uint16_t port;

    open_stage();
    port = expected();
    make_token(data, last_channel.token);
    for (unsigned i = 0; i < RNIC_PRIVATE_LEN; i += 3) { /* each part of it */
        memcpy(wrong, data, sizeof(wrong));
        wrong[i] ^= 1;
        g_assert_cmpint(
            connect_by_hand("10.4.0.2", "10.4.0.1", port, wrong, sizeof(wrong)), ==,
            RDMA_CM_EVENT_REJECTED);
    }
    g_assert_cmpint(connect_by_hand("10.4.0.2", "10.4.0.1", port, data, 23), ==,
                    RDMA_CM_EVENT_REJECTED);
    g_assert_cmpint(connect_by_hand("10.4.0.2", "10.4.0.1", port, NULL, 0), ==,
                    RDMA_CM_EVENT_REJECTED);
    g_assert_cmpuint(fix_ends(), ==, 1);
    /* The right one, once. */
    g_assert_cmpint(connect_by_hand("10.4.0.2", "10.4.0.1", port, data, sizeof(data)), ==,
                    RDMA_CM_EVENT_ESTABLISHED);
    g_assert_cmpint(connect_by_hand("10.4.0.2", "10.4.0.1", port, data, sizeof(data)), ==,
                    RDMA_CM_EVENT_REJECTED);
    UNTIL(!fix_ends()); /* the one who connected has gone */
    /* At another NIC. */
    expected();
    g_assert_cmpint(
        connect_by_hand("10.4.0.1", "10.4.0.2", other_port(), data, sizeof(data)), ==,
        RDMA_CM_EVENT_REJECTED);
    close_stage();
}

/* Others' requests do not delay those that are expected, also if one cannot be refused.
 */
static void test_strangers(void)
{
    struct strangers s = {0};
    int64_t before;

    open_stage();
    before = softnic_count("calls", "cm_reject");
    softnic_do("delay cm_reject 0 50000");
    softnic_do("fail cm_reject 2 EIO");
    knock(&s, rnic_cm_find(&the_nic)->port);
    UNTIL(rnic_pair_state(a_wants()) == RNIC_PAIR_UP);
    g_assert_cmpint(softnic_count("calls", "cm_reject"), <, MAX(before, 0) + s.n / 2);
    UNTIL(softnic_count("calls", "cm_reject") == MAX(before, 0) + s.n);
    leave(&s);
    close_stage();
}

/* A token that is not used in time is none any more. */
static void test_late_token(void)
{
    uint8_t data[RNIC_PRIVATE_LEN];
    struct rnic_end *e;
    uint16_t port;

    open_stage();
    port = expected();
    make_token(data, last_channel.token);
    e = LIST_FIRST(&rnic_cm_find(&the_nic)->expected);
    e->deadline = g_get_monotonic_time();
    rnic_end_kick(e);
    UNTIL(!fix_ends());
    g_assert_cmpint(connect_by_hand("10.4.0.2", "10.4.0.1", port, data, sizeof(data)), ==,
                    RDMA_CM_EVENT_REJECTED);
    works();
    close_stage();
}

/* A peer that begins many, for VMs that it says it has, has its share; others are served.
 */
static void test_flood(void)
{
    struct peer_channel c = {
        .network = NET, .from = {7, 0}, .to = {7, 2}, .receives = 8, .size = 4096};

    open_stage();
    c.from_nic = c.to_nic = the_nic;
    for (unsigned i = 0; i < 1000; i++) {
        claim(&far_p, 1000 + i);
        c.from[1] = 1000 + i;
        c.token[0] = i;
        peers_self.channel_ops->channel(&far_p, &c);
    }
    g_assert_cmpuint(fix_ends(), ==, RNIC_VM_MAKING / 2);
    UNTIL(n_answers == 1000);
    g_assert_cmpuint(answered[PEER_CHANNEL_NOT_NOW], ==, 1000 - RNIC_VM_MAKING / 2);
    UNTIL(rnic_pair_state(b_wants()) == RNIC_PAIR_UP);
    g_assert_cmpuint(fix_ends(), ==, RNIC_VM_MAKING / 2 + 2);
    rnic_pairs_peer_ended(&far_p, "the test wants it");
    UNTIL(!fix_ends());
    g_assert_cmpuint(*rnic_far_making(&far_p), ==, 0);
    works();
    close_stage();
}

/* Likewise one that has others begin. */
static void test_wants_flood(void)
{
    struct peer_channel c = {
        .flags = PEER_CHANNEL_WANT, .network = NET, .from = {7, 0}, .to = {7, 0}};
    struct fixvm *v[5];

    open_stage();
    silent = true;
    for (unsigned i = 0; i < 1000; i++) {
        unsigned n = i % 6;

        claim(&far_q, 1000 + i);
        if (i < 5) {
            v[i] = fix_vm(NET, 10 + i);
        }
        c.from[1] = 1000 + i;
        c.to[1] = n < 5 ? 10 + MIN(n, i) : 1;
        c.token[0] = i;
        peers_self.channel_ops->channel(&far_q, &c);
        g_assert_cmpuint(a->rv->making, <=, RNIC_VM_MAKING / 2);
    }
    g_assert_cmpuint(*rnic_far_making(&far_q), ==, RNIC_PEER_MAKING);
    g_assert_cmpuint(fix_ends(), ==, RNIC_PEER_MAKING);
    rnic_pairs_peer_ended(&far_q, "the test wants it");
    UNTIL(!fix_ends());
    g_assert_cmpuint(*rnic_far_making(&far_q), ==, 0);
    for (unsigned i = 0; i < 5; i++) {
        fix_vm_free(v[i]);
    }
    silent = false;
    works();
    close_stage();
}

/* Of two NICs of each host all are tried, none twice. */
static void deny(struct peer_channel *c, unsigned n)
{
    unsigned bit = c->from_nic.raw[15] % 2 + c->to_nic.raw[15] % 2 * 2;

    g_assert_cmpuint(spoil & 1u << bit, ==, 0);
    spoil |= 1u << bit;
    c->from[0] += n_channels < 4; /* which is refused */
}

static void test_next(void)
{
    open_stage_with(NET);
    spoil_channel = deny;
    UNTIL(rnic_pair_state(a_wants()) == RNIC_PAIR_UP);
    g_assert_cmpuint(n_channels, ==, 4);
    spoil_channel = NULL;
    works();
    close_stage();
}

/* Nor does it get more by beginning one again and again. */
static void test_again(void)
{
    struct peer_channel c = {.network = NET,
                             .from = {7, 1},
                             .to = {7, 2},
                             .from_nic = the_nic,
                             .to_nic = the_nic,
                             .receives = 8,
                             .size = 4096};

    open_stage();
    for (unsigned i = 0; i < 1000; i++) {
        c.token[0] = i;
        peers_self.channel_ops->channel(&far_p, &c);
        g_assert_cmpuint(fix_ends(), <=, RNIC_PAIR_ENDS);
        g_assert_cmpuint(*rnic_far_making(&far_p), <=, 1);
        if (i % 10 == 0) {
            g_main_context_iteration(NULL, FALSE);
        }
    }
    rnic_token_ms = 20000;
    works();
    close_stage();
}

/* Nor does it get all of a VM's channels. */
static void test_share(void)
{
    struct peer_channel c = {
        .network = NET, .from = {7, 0}, .to = {7, 2}, .receives = 8, .size = 4096};

    open_stage();
    rnic_vm_channels = 8;
    c.from_nic = c.to_nic = the_nic;
    for (unsigned i = 0; i < 20; i++) {
        claim(&far_p, 1000 + i);
        c.from[1] = 1000 + i;
        c.token[0] = i;
        peers_self.channel_ops->channel(&far_p, &c);
    }
    g_assert_cmpuint(fix_ends(), ==, 4);
    /* What is left is there for those that are wanted here. */
    UNTIL(rnic_pair_state(b_wants()) == RNIC_PAIR_UP);
    fix_traffic(b, b_wants(), a);
    close_stage();
}

/* A VM that has talked to thousands talks to others, too: pairs with VMs that have gone
 * make room, those that are held or whose VM is there do not. */
static void test_many_pairs(void)
{
    struct rnic_pair *held, *known;
    uint64_t owner[2] = {9, 0};

    open_stage();
    silent = true;
    known = b_wants();
    held = rnic_pair_want(b->rv, &far_p, owner, NET);
    rnic_pair_hold(held);
    while (b->rv->n_pairs < RNIC_VM_PAIRS) {
        owner[1]++;
        g_assert_nonnull(rnic_pair_want(b->rv, &far_p, owner, NET));
    }
    rnic_pairs_peer_ended(&far_p, "the test wants it"); /* nor is one made */
    UNTIL(!fix_ends());
    owner[1]++;
    g_assert_nonnull(rnic_pair_want(b->rv, &far_p, owner, NET));
    g_assert_cmpuint(b->rv->n_pairs, ==, 3);
    owner[1] = 0;
    g_assert_true(rnic_pair_want(b->rv, &far_p, owner, NET) == held);
    g_assert_true(b_wants() == known);
    rnic_pair_let_go(held);
    silent = false;
    rnic_pairs_nics_changed();
    works();
    close_stage();
}

/* ---- links and daemons ---- */

/* Nobody answers: nobody waits for long, and nothing is left. */
static void test_silent(void)
{
    struct rnic_pair *p, *q;

    open_stage();
    rnic_make_ms = 30;
    rnic_token_ms = 60;
    silent = true;
    p = a_wants();
    q = b_wants();
    fix_expect(p, RNIC_PAIR_NONE);
    fix_expect(q, RNIC_PAIR_NONE);
    UNTIL(!fix_ends());
    silent = false;
    rnic_make_ms = rnic_token_ms = 20000;
    a->changes = b->changes = 0;
    UNTIL(b->changes > 0); /* after a while it may be asked for again */
    works();
    close_stage();
}

/* Time that passes unseen is over nevertheless, and what has to wait for it goes on. */
static void test_late_timer(void)
{
    struct rnic_pair *q;

    open_stage();
    rnic_make_ms = 30;
    silent = true;
    q = b_wants();
    g_assert_true(q->making);
    g_usleep(31000);
    rnic_pairs_nics_changed();
    g_assert_cmpint(rnic_pair_state(q), ==, RNIC_PAIR_NONE);
    silent = false;
    rnic_make_ms = 20000;
    UNTIL(rnic_pair_state(b_wants()) == RNIC_PAIR_UP);
    works();
    close_stage();
}

/* What cannot be asked for now is told when it may be again. */
static void test_refused(void)
{
    struct rnic_pair *q;

    open_stage();
    atomic_store(&far_p.up, false);
    q = b_wants();
    g_assert_cmpint(rnic_pair_state(q), ==, RNIC_PAIR_NONE);
    b->changes = 0;
    UNTIL(b->changes > 0);
    atomic_store(&far_p.up, true);
    b_wants();
    fix_expect(q, RNIC_PAIR_UP);
    works();
    close_stage();
}

/* The link goes while the peer is asked; and with a channel, which stays. */
static void test_link_down(void)
{
    struct rnic_pair *p;

    open_stage();
    silent = true;
    p = a_wants();
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_MAKING);
    fix_let_turn(5);
    atomic_store(&far_q.up, false);
    peers_self.channel_ops->link_down(&far_q);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    UNTIL(!fix_ends());
    silent = false;
    link_up(&far_q);
    works();
    atomic_store(&far_q.up, false);
    peers_self.channel_ops->link_down(&far_q);
    fix_let_turn(20);
    link_up(&far_q);
    fix_let_turn(20);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_UP);
    works();
    close_stage();
}

/* Its daemon is another one, ends, or its group has gone. */
static void test_ends(void)
{
    struct rnic_pair *p;

    open_stage();
    works();
    p = a_wants();
    peers_self.channel_ops->link_down(&far_q);
    far_q.instance[3]++;
    link_up(&far_q);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_cmpuint(rnic_far_nics(&far_q), ==, 0); /* it has not told yet */
    link_up(&far_p);                                /* which has Q tell */
    UNTIL(knows_nics(2));
    works();
    far_q.ended = true;
    peers_self.channel_ops->link_down(&far_q);
    g_assert_cmpint(rnic_pair_state(p), ==, RNIC_PAIR_NONE);
    g_assert_cmpint(rnic_pair_state(a_wants()), ==, RNIC_PAIR_NONE);
    far_q.ended = false;
    link_up(&far_q);
    link_up(&far_p); /* which has Q tell of its NICs */
    UNTIL(knows_nics(2));
    works();
    far_q.gone = true;
    peers_self.channel_ops->link_down(&far_q);
    UNTIL(!fix_ends());
    g_assert_cmpint(rnic_pair_state(a_wants()), ==, RNIC_PAIR_NONE);
    close_stage();
}

/* The peer says that its NIC is not up any more, and that it is. */
static void test_peer_nics(void)
{
    struct peer_nic none = {.fabric = "-"}, one = {.n = 1, .fabric = "default"};
    struct rnic_pair *p;
    unsigned changes;

    open_stage();
    works();
    p = a_wants();
    one.address = the_nic;
    peers_self.channel_ops->nic(&far_q, &none);
    fix_expect(p, RNIC_PAIR_NONE);
    UNTIL(!fix_ends());
    g_assert_cmpint(rnic_pair_state(a_wants()), ==, RNIC_PAIR_NONE);
    a->changes = 0;
    peers_self.channel_ops->nic(&far_q, &one);
    UNTIL(a->changes > 0);
    works();
    /* A list that does not begin at its beginning is none. */
    one.n = 2;
    one.i = 1;
    peers_self.channel_ops->nic(&far_q, &one);
    g_assert_cmpuint(rnic_far_nics(&far_q), ==, 1);
    /* As often as it likes: they are looked at now and then. */
    rnic_pair_break(p, "the test wants it");
    UNTIL(!fix_ends());
    a->changes = 0;
    for (unsigned i = 0; i < 10000; i++) {
        one.n = 1;
        one.i = 0;
        one.address.raw[15] = (uint8_t)(i % 200);
        peers_self.channel_ops->nic(&far_q, &one);
    }
    fix_let_turn(120);
    changes = a->changes;
    g_assert_cmpuint(changes, >=, 1);
    g_assert_cmpuint(changes, <=, 4);
    close_stage();
}

int main(int argc, char **argv)
{
    int ret;

    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/rnic-pair-far/connects", test_connects);
    g_test_add_func("/rnic-pair-far/wants", test_wants);
    g_test_add_func("/rnic-pair-far/crossed", test_crossed);
    g_test_add_func("/rnic-pair-far/lost", test_lost);
    g_test_add_func("/rnic-pair-far/lies", test_lies);
    g_test_add_func("/rnic-pair-far/usurper", test_usurper);
    g_test_add_func("/rnic-pair-far/wrong-answers", test_wrong_answers);
    g_test_add_func("/rnic-pair-far/tokens", test_tokens);
    g_test_add_func("/rnic-pair-far/strangers", test_strangers);
    g_test_add_func("/rnic-pair-far/late-token", test_late_token);
    g_test_add_func("/rnic-pair-far/flood", test_flood);
    g_test_add_func("/rnic-pair-far/wants-flood", test_wants_flood);
    g_test_add_func("/rnic-pair-far/next", test_next);
    g_test_add_func("/rnic-pair-far/again", test_again);
    g_test_add_func("/rnic-pair-far/share", test_share);
    g_test_add_func("/rnic-pair-far/many-pairs", test_many_pairs);
    g_test_add_func("/rnic-pair-far/silent", test_silent);
    g_test_add_func("/rnic-pair-far/late-timer", test_late_timer);
    g_test_add_func("/rnic-pair-far/refused", test_refused);
    g_test_add_func("/rnic-pair-far/link-down", test_link_down);
    g_test_add_func("/rnic-pair-far/ends", test_ends);
    g_test_add_func("/rnic-pair-far/peer-nics", test_peer_nics);
    ret = g_test_run();
    coro_fini();
    return ret;
}
