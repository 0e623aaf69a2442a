/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What moves bytes between sockets cheapest: a program beside the benchmarks of the
 * daemon, to choose between plain calls and io_uring for transport `tcp`.
 *
 *   bench-sockets [-t SECONDS]      default: 0.2 a figure
 *
 * One thread on one processor has both ends of 1, 64 or 1,000 TCP connections over
 * loopback, as one worker has those of two VMs in `bench -p tcp`.  A round sends a
 * message on each and receives it.  Processor time of a message, medians of seven
 * measurements in turns:
 *
 *   calls       send() and recv() for each
 *   epoll       the same, told by epoll_wait() what there is to receive, as the daemon is
 *   answered    as epoll, and the receiver answers with 32 bytes, of which the sender is
 *               told, too: what a message takes that is acknowledged by itself
 *   io_uring    a round's sends and receives are submitted, and waited for, by one call
 *
 * In brackets the ratio to plain calls, and to the same on one connection.
 *
 * io_uring without a library: its rings are mapped and used as linux/io_uring.h says.
 */
#include <errno.h>
#include <glib.h>
#include <linux/io_uring.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STREAMS 1000u
#define LONGEST 65536u
#define ANSWER  32u
#define TIMES   7u
#define ENTRIES (2 * STREAMS) /* the kernel makes a power of two of it */
#define BURST   64u           /* messages until the time is looked at, at least */

static int tx[STREAMS], rx[STREAMS], epfd, answers;
static uint8_t out[LONGEST], in[LONGEST];
static double seconds = 0.2;

static void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, g_strerror(errno));
        exit(1);
    }
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void connect_streams(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    socklen_t len = sizeof(a);

    check(bind(listener, (struct sockaddr *)&a, len) == 0 && listen(listener, 1) == 0 &&
              getsockname(listener, (struct sockaddr *)&a, &len) == 0,
          "a port");
    epfd = epoll_create1(0);
    answers = epoll_create1(0);
    for (unsigned i = 0; i < STREAMS; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.u32 = i};

        tx[i] = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(tx[i], (struct sockaddr *)&a, len) == 0, "connect");
        rx[i] = accept(listener, NULL, NULL);
        check(rx[i] >= 0 && epoll_ctl(epfd, EPOLL_CTL_ADD, rx[i], &ev) == 0 &&
                  epoll_ctl(answers, EPOLL_CTL_ADD, tx[i], &ev) == 0,
              "accept");
        setsockopt(rx[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        setsockopt(tx[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    }
    close(listener);
}

/* ---- plain calls ---- */

static void give(int fd, uint32_t len)
{
    check(send(fd, out, len, MSG_NOSIGNAL) == (ssize_t)len, "send");
}

static void receive(int fd, uint32_t len)
{
    check(recv(fd, in, len, MSG_WAITALL) == (ssize_t)len, "recv");
}

static void send_round(unsigned n, uint32_t len)
{
    for (unsigned i = 0; i < n; i++) {
        give(tx[i], len);
    }
}

static void round_calls(unsigned n, uint32_t len)
{
    send_round(n, len);
    for (unsigned i = 0; i < n; i++) {
        receive(rx[i], len);
    }
}

/* As many as the daemon asks for at a time. */
static unsigned look(int set, struct epoll_event ev[16])
{
    int n = epoll_wait(set, ev, 16, 0);

    check(n >= 0, "epoll_wait");
    return (unsigned)n;
}

static void round_epoll(unsigned n, uint32_t len)
{
    struct epoll_event ev[16];

    send_round(n, len);
    for (unsigned done = 0; done < n;) {
        unsigned found = look(epfd, ev);

        for (unsigned i = 0; i < found; i++) {
            receive(rx[ev[i].data.u32], len);
        }
        done += found;
    }
}

static void round_answered(unsigned n, uint32_t len)
{
    struct epoll_event ev[16];

    send_round(n, len);
    for (unsigned done = 0; done < n;) {
        unsigned found = look(epfd, ev);

        for (unsigned i = 0; i < found; i++) {
            receive(rx[ev[i].data.u32], len);
            give(rx[ev[i].data.u32], ANSWER);
        }
        found = look(answers, ev);
        for (unsigned i = 0; i < found; i++) {
            receive(tx[ev[i].data.u32], ANSWER);
        }
        done += found;
    }
}

/* ---- io_uring ---- */

static struct {
    int fd;
    struct io_uring_params p;
    uint8_t *rings;
    struct io_uring_sqe *sqe;
} ring;

static _Atomic uint32_t *ring_word(uint32_t offset)
{
    return (_Atomic uint32_t *)(void *)(ring.rings + offset);
}

static bool ring_open(void)
{
    size_t sq, cq;

    ring.fd = (int)syscall(__NR_io_uring_setup, ENTRIES, &ring.p);
    if (ring.fd < 0) {
        return false;
    }
    check(ring.p.features & IORING_FEAT_SINGLE_MMAP, "io_uring of before Linux 5.4");
    sq = ring.p.sq_off.array + ring.p.sq_entries * sizeof(uint32_t);
    cq = ring.p.cq_off.cqes + ring.p.cq_entries * sizeof(struct io_uring_cqe);
    ring.rings = mmap(NULL, MAX(sq, cq), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    ring.sqe = mmap(NULL, ring.p.sq_entries * sizeof(*ring.sqe), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_POPULATE, ring.fd, (off_t)IORING_OFF_SQES);
    check(ring.rings != MAP_FAILED && ring.sqe != MAP_FAILED, "mmap");
    return true;
}

static void ring_put(uint32_t at, uint8_t opcode, int fd, void *data, uint32_t len)
{
    uint32_t slot = at & *ring_word(ring.p.sq_off.ring_mask);

    ring.sqe[slot] = (struct io_uring_sqe){
        .opcode = opcode,
        .fd = fd,
        .addr = (uintptr_t)data,
        .len = len,
        .msg_flags = opcode == IORING_OP_RECV ? MSG_WAITALL : MSG_NOSIGNAL,
        .user_data = len,
    };
    atomic_store_explicit(ring_word(ring.p.sq_off.array) + slot, slot,
                          memory_order_relaxed);
}

static void round_uring(unsigned n, uint32_t len)
{
    uint32_t tail = *ring_word(ring.p.sq_off.tail), head, end;
    struct io_uring_cqe *cqe = (void *)(ring.rings + ring.p.cq_off.cqes);

    for (unsigned i = 0; i < n; i++) {
        ring_put(tail++, IORING_OP_SEND, tx[i], out, len);
    }
    for (unsigned i = 0; i < n; i++) {
        ring_put(tail++, IORING_OP_RECV, rx[i], in, len);
    }
    atomic_store_explicit(ring_word(ring.p.sq_off.tail), tail, memory_order_release);
    check(syscall(__NR_io_uring_enter, ring.fd, 2 * n, 2 * n, IORING_ENTER_GETEVENTS,
                  NULL, 0) == (long)(2 * n),
          "io_uring_enter");
    head = *ring_word(ring.p.cq_off.head);
    end = atomic_load_explicit(ring_word(ring.p.cq_off.tail), memory_order_acquire);
    check(end - head == 2 * n, "completions");
    for (; head != end; head++) {
        check(cqe[head & *ring_word(ring.p.cq_off.ring_mask)].res == (int32_t)len,
              "a message");
    }
    atomic_store_explicit(ring_word(ring.p.cq_off.head), head, memory_order_release);
}

/* ---- figures ---- */

static const struct {
    const char *name;
    void (*round)(unsigned n, uint32_t len);
} ways[] = {
    {"calls", round_calls},
    {"epoll", round_epoll},
    {"answered", round_answered},
    {"io_uring", round_uring}, /* the last: not everywhere */
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Processor time of one message, us. */
static double measure(unsigned way, unsigned n, uint32_t len)
{
    double start = cpu_s(), now = start;
    unsigned rounds = 0;

    for (; now - start < seconds; now = cpu_s()) {
        for (unsigned i = 0; i < MAX(BURST / n, 1); i++) {
            ways[way].round(n, len);
            rounds++;
        }
    }
    return (now - start) * 1e6 / rounds / n;
}

int main(int argc, char **argv)
{
    static const uint32_t lengths[] = {64, 4096, LONGEST};
    static const unsigned streams[] = {1, 64, STREAMS};
    double one[G_N_ELEMENTS(ways)] = {0};
    unsigned n_ways = G_N_ELEMENTS(ways);
    cpu_set_t first;
    int opt;

    while ((opt = getopt(argc, argv, "t:")) != -1) {
        if (opt != 't' || (seconds = atof(optarg)) <= 0) {
            fprintf(stderr, "usage: bench-sockets [-t SECONDS]\n");
            return 2;
        }
    }
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    sched_setaffinity(0, sizeof(first), &first);
    connect_streams();
    if (!ring_open()) {
        printf("io_uring: %s: not measured\n", g_strerror(errno));
        n_ways--;
    }
    for (unsigned k = 0; k < G_N_ELEMENTS(lengths) * G_N_ELEMENTS(streams); k++) {
        uint32_t len = lengths[k / G_N_ELEMENTS(streams)];
        unsigned n = streams[k % G_N_ELEMENTS(streams)];
        double us[G_N_ELEMENTS(ways)][TIMES];

        for (unsigned i = 0; i < TIMES; i++) {
            for (unsigned w = 0; w < n_ways; w++) {
                us[w][i] = measure(w, n, len);
            }
        }
        printf("%5u bytes, %4u streams:", len, n);
        for (unsigned w = 0; w < n_ways; w++) {
            double *figure = &us[w][TIMES / 2];

            qsort(us[w], TIMES, sizeof(double), compare);
            one[w] = n == 1 ? *figure : one[w];
            printf("  %s %6.2f us (%.2f, %.2f)", ways[w].name, *figure,
                   *figure / us[0][TIMES / 2], *figure / one[w]);
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
