/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * vguest tests: a host with an RDMA NIC that is linked, and lies: in what it says of NICs
 * and channels, and in what it sends on a channel that it was given.  It loses that
 * channel; checksummed traffic of the same VM by the same NIC, with a third host, stays
 * on its own channel all the while (vgt_traffic).
 *
 * Host 0 is made up: its link is fakehost.h's, its NIC one in memory of this program
 * (tests/softnic), which for that starts itself once more in the folder where the
 * daemons' are.  Host 1 is attacked; host 2 has the traffic's other end.
 *
 * Threads: the test's has all that host 0 says; another one has the traffic.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fakehost.h"
#include "softnic.h"
#include "transport/rnic/channel.h"
#include "transport/rnic/frames.h"

#define BUFFERS 8u
#define MOST    4096u /* bytes of a SEND */

static struct vg_daemon *host[3];
static struct fake fake;
static struct vgt_traffic traffic;
static gint done;
static struct peer_claim victim; /* VM 1 of host 1 */

/* ---- the stage ---- */

static struct pvrdma_gid nic_gid(unsigned h)
{
    g_autofree char *text = host_address(h);
    struct pvrdma_gid gid = {{[10] = 0xff, 0xff}};
    struct in_addr a;

    g_assert_cmpint(inet_pton(AF_INET, text, &a), ==, 1);
    memcpy(gid.raw + 12, &a, sizeof(a));
    return gid;
}

static void say(struct peer_msg m)
{
    put_msg(&fake, &m);
}

/* The daemon has heard all of it, and is there. */
static void settle(void)
{
    static uint64_t stamp = 100;

    check_ping(&fake, ++stamp);
}

static struct peer_msg hear(enum peer_msg_type type)
{
    struct peer_msg m;

    do {
        g_assert_true(get_msg(&fake, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_CLOSE);
    } while (m.type != type);
    return m;
}

static void say_nic(bool there)
{
    struct peer_nic nic = {.n = there, .fabric = "default"};

    nic.address = there ? nic_gid(0) : nic.address;
    say((struct peer_msg){.type = PEER_MSG_NIC, .nic = nic});
}

static gpointer run_traffic(gpointer unused)
{
    while (!g_atomic_int_get(&done)) {
        vgt_traffic_run(&traffic, 10);
    }
    return NULL;
}

static GThread *begin(void)
{
    const struct host_opts o = {
        .n_vms = 3, .n_peers = 3, .daemon_keys = "workers=2\npeer-timeout=30"};
    const struct pvrdma_gid own = vg_gid(0), theirs = vg_gid(1);
    struct peer_claim c = {.gid = own, .owner = {7, 1}, .generation = 1};
    struct vgt_opts vo = {0};

    for (unsigned i = 1; i < 3; i++) {
        vo.daemon[i - 1] = host[i] = host_start(i, &o);
    }
    host_wait_up(host[1], 2, true);
    host_wait_up(host[2], 1, true);
    vgt_daemon = host[1];
    vgt_traffic_open(&traffic, 1, 2, 2, 4, 20000, &vo);
    vgt_traffic_run(&traffic, 20);
    vgt_await(host_traffic_by(&traffic, 0, "rnic"));

    fake_init_to(&fake, 0, 1);
    fake.hello.timeout_ms = 60000;
    fake.hello.features = PEER_FEATURE_CHANNELS;
    fake_link(&fake, 0);
    g_strlcpy(c.network, "lan", sizeof(c.network));
    say((struct peer_msg){.type = PEER_MSG_CLAIM, .claim = c});
    c.gid = theirs;
    say((struct peer_msg){.type = PEER_MSG_ASK, .claim = c});
    victim = hear(PEER_MSG_CLAIM).claim;
    g_assert_cmpmem(&victim.gid, sizeof(theirs), &theirs, sizeof(theirs));
    say_nic(true);
    settle();
    done = 0;
    return g_thread_new("traffic", run_traffic, NULL);
}

/* Does the log of host @h have @words? */
static bool is_logged(unsigned h, const char *words)
{
    g_autofree char *log = NULL;

    g_assert_true(g_file_get_contents(host[h]->log, &log, NULL, NULL));
    return strstr(log, words) != NULL;
}

/* The others have noticed nothing: their channel is the one that it was.  Or one of their
 * daemons has stood still for as long as no peer may be silent. */
static void check_others(void)
{
    static const char silent[] = " breaks: the peer is silent";
    bool stays = host_traffic_by(&traffic, 0, "rnic") && !is_logged(2, " breaks: ");

    g_assert_true(stays || is_logged(1, silent) || is_logged(2, silent));
}

static void end(GThread *thread)
{
    settle();
    check_others();
    g_atomic_int_set(&done, 1);
    g_thread_join(thread);
    vgt_traffic_close(&traffic);
    close(fake.fd);
    for (unsigned i = 1; i < 3; i++) {
        vg_daemon_stop(host[i]);
    }
    vgt_daemon = NULL;
}

/* ---- what it says by the link ---- */

static struct peer_channel a_channel(void)
{
    struct peer_channel c = {.network = "lan",
                             .from = {7, 1},
                             .to = {victim.owner[0], victim.owner[1]},
                             .from_nic = nic_gid(0),
                             .to_nic = nic_gid(1),
                             .receives = BUFFERS,
                             .size = MOST};

    for (unsigned i = 0; i < 2; i++) {
        c.token[i] = (uint64_t)g_test_rand_int() << 32 | (uint32_t)g_test_rand_int();
    }
    return c;
}

static uint64_t any(void)
{
    return (uint32_t)g_test_rand_int() >> g_test_rand_int_range(0, 32);
}

/* One field is another than it should be. */
static void spoil(struct peer_channel *c, unsigned how)
{
    switch (how % 9) {
    case 0:
        c->from[any() % 2] ^= 1 + any();
        break;
    case 1:
        c->to[any() % 2] ^= 1 + any();
        break;
    case 2:
        c->from_nic.raw[15] ^= 1 + any() % 255;
        break;
    case 3:
        c->to_nic.raw[any() % 16] ^= 1 + any() % 255;
        break;
    case 4:
        c->receives = (uint16_t)any();
        break;
    case 5:
        c->size = (uint32_t)any();
        break;
    case 6:
        c->flags = PEER_CHANNEL_WANT;
        break;
    case 7:
        memcpy(c->from, c->to, sizeof(c->from));
        break;
    default:
        break; /* nobody comes with that token */
    }
}

#define MESSAGES 2000u

/* What was said to each; its token shows which it is. */
static struct {
    uint64_t token;
    unsigned n[PEER_CHANNEL_RESULTS];
} answers[MESSAGES];

/* As settle(). */
static void take_answers(void)
{
    static uint64_t stamp = 1000000;
    struct peer_msg m, ping = {.type = PEER_MSG_PING, .stamp = ++stamp};

    say(ping);
    do {
        g_assert_true(get_msg(&fake, &m, NULL));
        g_assert_cmpint(m.type, !=, PEER_MSG_CLOSE);
        if (m.type == PEER_MSG_CHANNEL_ANSWER) {
            const struct peer_channel_answer *a = &m.channel_answer;

            g_assert_cmpuint(a->token[1], <, MESSAGES);
            g_assert_cmpuint(a->token[0], ==, answers[a->token[1]].token);
            answers[a->token[1]].n[a->result]++;
        }
    } while (m.type != PEER_MSG_PONG || m.stamp != ping.stamp);
}

static bool is_right(const struct peer_channel *c, unsigned how)
{
    bool receives = c->receives >= 2 && c->receives <= RNIC_BLOCK_BUFFERS;

    return how == 2 || how == 8 ||
           ((how == 4 || how == 5) && receives && rnic_size_class(c->size) < RNIC_SIZES);
}

static void test_messages(void)
{
    static struct peer_channel asked[MESSAGES];
    GThread *thread = begin();
    unsigned ok = 0;

    for (unsigned i = 0; i < MESSAGES; i++) {
        struct peer_channel c = a_channel();
        struct peer_channel_answer a = {.token = {any(), any()},
                                        .result = (uint8_t)(any() % PEER_CHANNEL_RESULTS),
                                        .port = (uint16_t)any(),
                                        .receives = (uint16_t)any(),
                                        .size = (uint32_t)any()};
        struct peer_nic nic = {.n = (uint8_t)(1 + any() % PEER_MAX_NICS),
                               .address = nic_gid(1), /* its own */
                               .fabric = "default"};

        answers[i].token = c.token[0];
        c.token[1] = i;
        spoil(&c, i);
        asked[i] = c;
        nic.i = (uint8_t)(any() % nic.n);
        nic.address.raw[15] = (uint8_t)any();
        say((struct peer_msg){.type = PEER_MSG_CHANNEL, .channel = c});
        say((struct peer_msg){.type = PEER_MSG_CHANNEL, .channel = c}); /* twice */
        say((struct peer_msg){.type = PEER_MSG_CHANNEL_ANSWER, .channel_answer = a});
        say((struct peer_msg){.type = PEER_MSG_NIC, .nic = nic});
        if (i % 50 == 49) {
            take_answers();
        }
    }
    take_answers();
    for (unsigned i = 0; i < MESSAGES; i++) {
        const unsigned *n = answers[i].n;

        /* Each was asked twice.  What would be right may be dropped for the next one. */
        ok += n[PEER_CHANNEL_OK];
        if (is_right(&asked[i], i % 9)) {
            g_assert_cmpuint(n[0] + n[1] + n[2], <=, 2);
        } else {
            g_assert_cmpuint(n[PEER_CHANNEL_OK], ==, 0);
            g_assert_cmpuint(n[PEER_CHANNEL_NOT_NOW], ==, i % 9 == 1 ? 2 : 0);
            g_assert_cmpuint(n[PEER_CHANNEL_REFUSED], ==, i % 9 == 1 ? 0 : 2);
        }
    }
    g_test_message("%u of %u were taken", ok, MESSAGES);
    g_assert_cmpuint(ok, >, 0);
    end(thread);
}

/* ---- what it sends on a channel ---- */

/* Its end of one. */
struct liar {
    struct rdma_event_channel *events;
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    uint8_t mem[(BUFFERS + 1) * MOST];
};

static enum rdma_cm_event_type next_event(struct liar *l)
{
    struct rdma_cm_event *event;
    enum rdma_cm_event_type type;

    vgt_await(rnic_verbs->cm_get_event(l->events, &event) == 0);
    type = event->event;
    rnic_verbs->cm_ack_event(event);
    return type;
}

static struct sockaddr_in at(unsigned h, uint16_t port)
{
    struct pvrdma_gid gid = nic_gid(h);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};

    memcpy(&sa.sin_addr, gid.raw + 12, sizeof(sa.sin_addr));
    return sa;
}

static void make_objects(struct liar *l)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {8, BUFFERS, 1, 1, 0}};

    l->pd = rnic_verbs->alloc_pd(l->id->verbs);
    l->cq = rnic_verbs->create_cq(l->id->verbs, 64, NULL, NULL, 0);
    l->mr = rnic_verbs->reg_mr(l->pd, l->mem, sizeof(l->mem), IBV_ACCESS_LOCAL_WRITE);
    g_assert_true(l->pd && l->cq && l->mr);
    init.send_cq = init.recv_cq = l->cq;
    g_assert_cmpint(rnic_verbs->cm_create_qp(l->id, l->pd, &init), ==, 0);
    for (unsigned i = 0; i < BUFFERS; i++) {
        struct ibv_sge sge = {(uintptr_t)l->mem + i * MOST, MOST, l->mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;

        g_assert_cmpint(rnic_verbs->post_recv(l->id->qp, &wr, &bad), ==, 0);
    }
}

/* As the daemon agrees by the link; asked until it has room. */
static struct liar *open_channel(void)
{
    uint8_t data[24] = {'p', 'r', 'v', 'c', 0, 0, 0, 1};
    struct rdma_conn_param param = {.private_data = data,
                                    .private_data_len = sizeof(data),
                                    .retry_count = 1,
                                    .rnr_retry_count = 7};
    struct liar *l = g_new0(struct liar, 1);
    struct sockaddr_in src = at(0, 0), dst;
    struct peer_channel_answer a;
    uint64_t token[2];

    do {
        struct peer_channel c = a_channel();

        say_nic(false); /* which has it forget what has failed */
        g_usleep(120000);
        say_nic(true);
        say((struct peer_msg){.type = PEER_MSG_CHANNEL, .channel = c});
        a = hear(PEER_MSG_CHANNEL_ANSWER).channel_answer;
        token[0] = GUINT64_TO_BE(c.token[0]);
        token[1] = GUINT64_TO_BE(c.token[1]);
    } while (a.result == PEER_CHANNEL_NOT_NOW);
    g_assert_cmpint(a.result, ==, PEER_CHANNEL_OK);
    memcpy(data + 8, token, sizeof(token));
    dst = at(1, a.port);

    l->events = rnic_verbs->cm_create_event_channel();
    g_assert_cmpint(fcntl(l->events->fd, F_SETFL, O_NONBLOCK), ==, 0);
    g_assert_cmpint(rnic_verbs->cm_create_id(l->events, &l->id, NULL, RDMA_PS_TCP), ==,
                    0);
    g_assert_cmpint(rnic_verbs->cm_resolve_addr(l->id, (struct sockaddr *)&src,
                                                (struct sockaddr *)&dst, 1000),
                    ==, 0);
    g_assert_cmpint(next_event(l), ==, RDMA_CM_EVENT_ADDR_RESOLVED);
    g_assert_cmpint(rnic_verbs->cm_resolve_route(l->id, 1000), ==, 0);
    g_assert_cmpint(next_event(l), ==, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_objects(l);
    g_assert_cmpint(rnic_verbs->cm_connect(l->id, &param), ==, 0);
    g_assert_cmpint(next_event(l), ==, RDMA_CM_EVENT_ESTABLISHED);
    return l;
}

static void close_channel(struct liar *l)
{
    rnic_verbs->cm_disconnect(l->id);
    rnic_verbs->cm_destroy_qp(l->id);
    rnic_verbs->cm_destroy_id(l->id);
    rnic_verbs->dereg_mr(l->mr);
    rnic_verbs->destroy_cq(l->cq);
    rnic_verbs->dealloc_pd(l->pd);
    rnic_verbs->cm_destroy_event_channel(l->events);
    g_free(l);
}

static void post(struct liar *l, enum ibv_wr_opcode opcode, const void *bytes, uint32_t n)
{
    uint8_t *to = l->mem + BUFFERS * MOST;
    struct ibv_sge sge = {(uintptr_t)to, n, l->mr->lkey};
    struct ibv_send_wr wr = {.opcode = opcode,
                             .send_flags = IBV_SEND_SIGNALED,
                             .sg_list = &sge,
                             .num_sge = 1},
                       *bad;

    memcpy(to, bytes, n);
    g_assert_cmpint(rnic_verbs->post_send(l->id->qp, &wr, &bad), ==, 0);
}

/* A SEND whose head says @flags and @credits of @size, with one frame's head and @n bytes
 * of 'x' behind it; and what the daemon says of it, if that is seen by it. */
struct lie {
    const char *name, *why;
    enum ibv_wr_opcode opcode;
    uint8_t version, flags;
    uint16_t credits;
    uint32_t size;
    bool has_frame;
    uint32_t index;
    uint16_t len;
    uint8_t kind, zero;
    uint32_t n;
};

static const struct lie lies[] = {
    {"version", "a SEND of another version", IBV_WR_SEND, .version = 2},
    {"flags", "a SEND with unknown flags", IBV_WR_SEND, 1, .flags = 64},
    {"size", "receives of an impossible size", IBV_WR_SEND, 1, .credits = 1,
     .size = 5000},
    {"small", "receives of an impossible size", IBV_WR_SEND, 1, .credits = 1,
     .size = 1024},
    {"receives", "more receives than a channel has", IBV_WR_SEND, 1, .credits = 1000,
     .size = 4096},
    {"back", "an answer to no SEND for control", IBV_WR_SEND, 1, .flags = RNIC_SEND_BACK},
    {"long", "a frame that is longer than its SEND", IBV_WR_SEND, 1, .has_frame = true,
     .len = 2000, .kind = RNIC_OPEN, .n = 10},
    {"kind", "a frame of an unknown kind", IBV_WR_SEND, 1, .has_frame = true, .len = 4,
     .kind = 9, .n = 4},
    {"nobody", "a frame for a queue pair that is not on it", IBV_WR_SEND, 1,
     .has_frame = true, .index = 5, .len = 4, .n = 4},
    {"nobody-far", "a frame for a queue pair that is not on it", IBV_WR_SEND, 1,
     .has_frame = true, .index = 1u << 31, .len = 4, .n = 4},
    {"opened", "an OPENED for what was not opened", IBV_WR_SEND, 1, .has_frame = true,
     .len = 8, .kind = RNIC_OPENED, .n = 8},
    {"close", "a CLOSE for what is not open", IBV_WR_SEND, 1, .has_frame = true, .len = 4,
     .kind = RNIC_CLOSE, .n = 4},
    {"open-index", "an OPEN with an index that is in use, or is none", IBV_WR_SEND, 1,
     .has_frame = true, .len = 40, .kind = RNIC_OPEN, .n = 40},
    {"open-short", "an OPEN of a wrong length", IBV_WR_SEND, 1, .has_frame = true,
     .len = 2, .kind = RNIC_OPEN, .n = 2},
    {"immediate", "what came is no SEND", IBV_WR_SEND_WITH_IMM, 1},
    /* The NIC refuses them, maybe before the daemon has the channel; that it would with a
     * right key, too: test-pair.c, rights. */
    {"write", NULL, IBV_WR_RDMA_WRITE, 1},
    {"read", NULL, IBV_WR_RDMA_READ, 1},
};

static uint32_t put_lie(uint8_t *p, const struct lie *lie)
{
    const struct rnic_send_head head = {lie->flags, lie->credits, lie->size};
    uint32_t index = GUINT32_TO_BE(lie->index);
    uint16_t len = GUINT16_TO_BE(lie->len);

    rnic_put_send(p, &head);
    p[0] = lie->version;
    if (!lie->has_frame) {
        return RNIC_SEND_HEADER;
    }
    memcpy(p + 8, &index, sizeof(index));
    memcpy(p + 12, &len, sizeof(len));
    p[14] = lie->kind;
    p[15] = lie->zero;
    memset(p + 16, 'x', lie->n);
    return RNIC_SEND_HEADER + RNIC_FRAME + lie->n;
}

/* It was cut off for that: the log of host 1 has @why, if there is one, behind @from. */
static void expect_cut(struct liar *l, size_t from, const char *why)
{
    g_autofree char *words = g_strdup_printf(" breaks: %s", why ? why : "");
    struct ibv_wc wc;

    g_assert_cmpint(next_event(l), ==, RDMA_CM_EVENT_DISCONNECTED);
    if (why) {
        vgt_wait_logged_after(from, words);
    }
    while (rnic_verbs->poll_cq(l->cq, 1, &wc) == 1) {
    }
}

static void test_frames(void)
{
    GThread *thread = begin();

    for (unsigned i = 0; i < G_N_ELEMENTS(lies); i++) {
        struct liar *l = open_channel();
        uint8_t bytes[MOST];
        size_t from = vgt_log_length();

        if (g_test_verbose()) {
            g_test_message("%s", lies[i].name);
        }
        post(l, lies[i].opcode, bytes, put_lie(bytes, &lies[i]));
        expect_cut(l, from, lies[i].why);
        close_channel(l);
        g_usleep(250000); /* of a VM ten lines are logged in a second */
        check_others();
    }
    end(thread);
}

/* A SEND of its own is over: was it executed? */
static bool was_sent(struct liar *l)
{
    struct ibv_wc wc;

    for (;;) {
        vgt_await(rnic_verbs->poll_cq(l->cq, 1, &wc) == 1);
        if (wc.status != IBV_WC_SUCCESS || wc.opcode == IBV_WC_SEND) {
            return wc.status == IBV_WC_SUCCESS;
        }
    }
}

/* Anything behind a head that is as it should be, and first the head of a frame that is
 * not far off: it may even mean something. */
static void test_random(void)
{
    unsigned n = MAX(vgt_rounds(100), 10), sent = 0;
    GThread *thread = begin();

    for (unsigned i = 0; i < n; i++) {
        struct liar *l = open_channel();
        uint8_t bytes[MOST];
        uint32_t len = (uint32_t)g_test_rand_int_range(RNIC_SEND_HEADER, MOST);

        for (uint32_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)any();
        }
        rnic_put_send(bytes, &(struct rnic_send_head){0});
        if (len >= RNIC_SEND_HEADER + RNIC_FRAME) {
            const struct rnic_frame f = {.index = (uint32_t)g_test_rand_int_range(0, 4),
                                         .len = (uint16_t)g_test_rand_int_range(0, 64),
                                         .kind = (uint8_t)g_test_rand_int_range(0, 5)};

            rnic_put_frame(bytes + RNIC_SEND_HEADER, &f);
        }
        post(l, IBV_WR_SEND, bytes, len);
        sent += was_sent(l);
        close_channel(l);
    }
    g_assert_cmpuint(sent, >, n / 2);
    end(thread);
}

/* The folder of its NIC has to be known when a program begins. */
static void start_in_folder(char **argv)
{
    g_autofree char *dir = NULL;

    if (!g_getenv("PVRDMA_SOFTNIC")) {
        dir = g_dir_make_tmp("vguest-nics-XXXXXX", NULL);
        g_assert_nonnull(dir);
        g_setenv("PVRDMA_SOFTNIC", dir, TRUE);
        execv("/proc/self/exe", argv);
        g_error("execv: %s", g_strerror(errno));
    }
}

int main(int argc, char **argv)
{
    g_autofree char *address = host_address(0);

    start_in_folder(argv);
    vgt_init(&argc, &argv, 240);
    softnic_do("add liar %s", address);
    g_test_add_func("/rnic-hostile/messages", test_messages);
    g_test_add_func("/rnic-hostile/frames", test_frames);
    g_test_add_func("/rnic-hostile/random", test_random);
    return vgt_run();
}
