/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * guest-agent - runs the host's commands inside a test guest
 *
 * Theory of operation
 * -------------------
 * The guest's init starts this program once, with the path of a virtio-serial
 * port.  The host end of the port is a UNIX socket held by the test runner.
 * Both directions carry frames: one ASCII line, then for some frames a body
 * whose length in bytes is the line's last number.
 *
 *   host to guest                      guest to host
 *   PING <token>                       HELLO <protocol version>
 *   RUN <id> <timeout ms> <length>     PONG <token>
 *     + shell command                  OUT <id> <1|2> <length>
 *   IN <id> <length>                     + bytes of stdout (1) or stderr (2)
 *     + bytes for stdin; 0 = EOF       EXIT <id> <exited|killed|timeout|
 *   KILL <id> <signal>                         failed> <code>
 *
 * Each command runs as `/bin/sh -c` in a session (so also a process group) of
 * its own; many run at the same time.  The whole group gets SIGKILL when the
 * command is over its time, and when it has ended and left members behind.  EXIT
 * comes after the last OUT of that id.  <code> is the exit status, the signal, or
 * for `failed` an errno value.
 *
 * Invariants: one thread; every descriptor except the port is non-blocking;
 * the port is written with blocking writes, so a host that does not read stops
 * the agent but loses nothing.  Frames that are malformed end the agent with a
 * message on the console: the runner then sees the port close, which is better
 * than guessing where the next frame begins.
 *
 * stdin data that the command does not take at once is kept in memory: the
 * host is trusted here, this program exists only in test guests.
 *
 * `guest-agent begin` is another program, for a guest that goes on from a saved state
 * (tests/vm/lib/template.py).  It takes SEED random bytes from stdin, so that the guest draws
 * other numbers than those that go on from the same state; prints "ready"; and sets the
 * clock to the nanoseconds since 1970 that it takes then, as 8 bytes in the order of the
 * processor: the host writes them when they are waited for.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/random.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROTOCOL_VERSION 1
#define MAX_JOBS 64
#define MAX_LINE 128
#define MAX_BODY (64 << 20)
#define CHUNK 16384
#define SEED 64
/* How long output of left-over group members is drained after the exit. */
#define DRAIN_MS 200
/* Chunks forwarded from one pipe at the end: more than a pipe holds. */
#define MAX_DRAIN 64

struct job {
    bool used;
    uint32_t id;
    pid_t pid;
    int out[2];             /* read ends of stdout and stderr, or -1 */
    int in;                 /* write end of stdin, or -1 */
    char *pending;          /* stdin bytes not yet taken by the command */
    size_t pending_len;
    bool in_eof;            /* close stdin once pending is empty */
    int64_t deadline;       /* ms, CLOCK_MONOTONIC; 0 = none */
    bool timed_out;
    bool reaped;
    int status;             /* wait status, valid once reaped */
    int64_t drain_until;    /* ms; valid once reaped */
};

/* What the frame parser has of the incoming stream. */
struct input {
    char *buf;
    size_t len;
    size_t cap;
};

static struct job jobs[MAX_JOBS];
static int port_fd;

/* Print a message on the guest's console and end the agent. */
static void __attribute__((noreturn, format(printf, 1, 2)))
fatal(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fputs("guest-agent: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    exit(1);
}

static int64_t now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

/* Write all of @len bytes to the port; waits as long as the host is slow. */
static void port_write(const void *data, size_t len)
{
    const char *p = data;

    while (len) {
        ssize_t n = write(port_fd, p, len);

        if (n > 0) {
            p += n;
            len -= (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            struct pollfd pfd = { .fd = port_fd, .events = POLLOUT };

            poll(&pfd, 1, 100);
        } else {
            fatal("write to port: %s", strerror(errno));
        }
    }
}

/* Send one frame: formatted line, then @len bytes of @body (may be 0). */
static void __attribute__((format(printf, 3, 4)))
send_frame(const void *body, size_t len, const char *fmt, ...)
{
    static char frame[MAX_LINE + CHUNK];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(frame, MAX_LINE - 1, fmt, ap);
    va_end(ap);
    frame[n++] = '\n';
    if (len) {
        memcpy(frame + n, body, len);
    }
    port_write(frame, (size_t)n + len);
}

static struct job *find_job(uint32_t id)
{
    for (int i = 0; i < MAX_JOBS; i++) {
        if (jobs[i].used && jobs[i].id == id) {
            return &jobs[i];
        }
    }
    return NULL;
}

static void close_fd(int *fd)
{
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

static void close_stdin(struct job *job)
{
    close_fd(&job->in);
    free(job->pending);
    job->pending = NULL;
    job->pending_len = 0;
}

/* In the child: become the command.  Does not return. */
static void __attribute__((noreturn))
exec_command(const char *cmd, int in, int out, int err)
{
    sigset_t none;

    setsid();
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    dup2(in, 0);
    dup2(out, 1);
    dup2(err, 2);
    execl("/bin/sh", "sh", "-c", cmd, (char *)NULL);
    _exit(127);
}

/*
 * Start @cmd as job @id.  @timeout_ms 0 means no limit.
 * Returns 0, or an errno value after which nothing is left over.
 */
static int start_job(uint32_t id, uint32_t timeout_ms, const char *cmd)
{
    int p[3][2] = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
    struct job *job = NULL;
    int err = 0;
    pid_t pid;

    if (find_job(id)) {
        return EEXIST;
    }
    for (int i = 0; i < MAX_JOBS && !job; i++) {
        job = jobs[i].used ? NULL : &jobs[i];
    }
    if (!job) {
        return EMFILE;
    }
    for (int i = 0; i < 3 && !err; i++) {
        err = pipe2(p[i], O_CLOEXEC) ? errno : 0;
    }
    pid = err ? -1 : fork();
    if (pid == 0) {
        exec_command(cmd, p[0][0], p[1][1], p[2][1]);
    }
    if (pid < 0) {
        err = err ? err : errno;
        for (int i = 0; i < 3; i++) {
            close_fd(&p[i][0]);
            close_fd(&p[i][1]);
        }
        return err;
    }
    close(p[0][0]);
    close(p[1][1]);
    close(p[2][1]);
    fcntl(p[0][1], F_SETFL, O_NONBLOCK);
    fcntl(p[1][0], F_SETFL, O_NONBLOCK);
    fcntl(p[2][0], F_SETFL, O_NONBLOCK);
    *job = (struct job) {
        .used = true,
        .id = id,
        .pid = pid,
        .in = p[0][1],
        .out = { p[1][0], p[2][0] },
        .deadline = timeout_ms ? now_ms() + timeout_ms : 0,
    };
    return 0;
}

/* Hand pending stdin bytes to the command as far as it takes them. */
static void flush_stdin(struct job *job)
{
    while (job->in >= 0 && job->pending_len) {
        ssize_t n = write(job->in, job->pending, job->pending_len);

        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                close_stdin(job);
            }
            return;
        }
        job->pending_len -= (size_t)n;
        memmove(job->pending, job->pending + n, job->pending_len);
    }
    if (job->in_eof) {
        close_stdin(job);
    }
}

static void feed_stdin(uint32_t id, const char *data, size_t len)
{
    struct job *job = find_job(id);

    if (!job || job->in < 0) {
        return;
    }
    if (!len) {
        job->in_eof = true;
    } else {
        char *grown = realloc(job->pending, job->pending_len + len);

        if (!grown) {
            fatal("out of memory for stdin of job %u", id);
        }
        memcpy(grown + job->pending_len, data, len);
        job->pending = grown;
        job->pending_len += len;
    }
    flush_stdin(job);
}

static void kill_job(uint32_t id, int sig)
{
    struct job *job = find_job(id);

    if (job && !job->reaped) {
        /* setsid() in the child may not have run yet: fall back to the pid. */
        if (kill(-job->pid, sig)) {
            kill(job->pid, sig);
        }
    }
}

/*
 * Parse the numbers of a frame line after its keyword.
 * Returns how many were read, at most @max; -1 if anything else is there.
 */
static int parse_numbers(const char *s, uint32_t *v, int max)
{
    int n = 0;

    while (*s) {
        char *end;
        unsigned long long x;

        if (*s != ' ' || n == max || s[1] < '0' || s[1] > '9') {
            return -1;
        }
        errno = 0;
        x = strtoull(s + 1, &end, 10);
        if (errno || x > UINT32_MAX) {
            return -1;
        }
        v[n++] = (uint32_t)x;
        s = end;
    }
    return n;
}

/*
 * Take one frame from the head of @in.
 * Returns the bytes used, or 0 if the frame is not complete yet.
 */
static size_t take_frame(struct input *in)
{
    char line[MAX_LINE];
    char *nl = memchr(in->buf, '\n', in->len);
    size_t head, body = 0;
    uint32_t v[3];
    char *args;
    int n, err;

    if (!nl) {
        if (in->len >= MAX_LINE) {
            fatal("frame line too long");
        }
        return 0;
    }
    head = (size_t)(nl - in->buf) + 1;
    if (head > MAX_LINE) {
        fatal("frame line too long");
    }
    memcpy(line, in->buf, head - 1);
    line[head - 1] = '\0';
    args = line + strcspn(line, " ");
    n = parse_numbers(args, v, 3);
    *args = '\0';

    if (!strcmp(line, "RUN") && n == 3) {
        body = v[2];
    } else if (!strcmp(line, "IN") && n == 2) {
        body = v[1];
    } else if (!(!strcmp(line, "KILL") && n == 2) &&
               !(!strcmp(line, "PING") && n == 1)) {
        fatal("bad frame '%s' (%d numbers)", line, n);
    }
    if (body > MAX_BODY) {
        fatal("frame body of %zu bytes", body);
    }
    if (in->len - head < body) {
        return 0;
    }
    if (!strcmp(line, "PING")) {
        send_frame(NULL, 0, "PONG %u", v[0]);
    } else if (!strcmp(line, "KILL")) {
        kill_job(v[0], v[1] < NSIG ? (int)v[1] : SIGKILL);
    } else if (!strcmp(line, "IN")) {
        feed_stdin(v[0], in->buf + head, body);
    } else {
        char *cmd = strndup(in->buf + head, body);

        err = cmd ? start_job(v[0], v[1], cmd) : ENOMEM;
        free(cmd);
        if (err) {
            send_frame(NULL, 0, "EXIT %u failed %d", v[0], err);
        }
    }
    return head + body;
}

/* Read what the port has and act on all complete frames. */
static void read_port(struct input *in)
{
    size_t used, done = 0;
    ssize_t n;

    if (in->cap - in->len < CHUNK) {
        in->cap = in->cap ? in->cap * 2 : 4 * CHUNK;
        in->buf = realloc(in->buf, in->cap);
        if (!in->buf) {
            fatal("out of memory for input");
        }
    }
    n = read(port_fd, in->buf + in->len, in->cap - in->len);
    if (n == 0) {
        /* Nobody at the host's end: the port reads as EOF. */
        usleep(50000);
        return;
    }
    if (n < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            return;
        }
        fatal("read from port: %s", strerror(errno));
    }
    in->len += (size_t)n;
    do {
        struct input rest = { in->buf + done, in->len - done, 0 };

        used = take_frame(&rest);
        done += used;
    } while (used);
    in->len -= done;
    memmove(in->buf, in->buf + done, in->len);
}

/*
 * Forward up to one chunk of output; closes the pipe at its end.
 * Returns whether there may be more at once.
 */
static bool forward_output(struct job *job, int which)
{
    static char buf[CHUNK];
    ssize_t n;

    if (job->out[which] < 0) {
        return false;
    }
    n = read(job->out[which], buf, sizeof(buf));
    if (n > 0) {
        send_frame(buf, (size_t)n, "OUT %u %d %zd", job->id, which + 1, n);
        return true;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        close_fd(&job->out[which]);
    }
    return false;
}

static void reap_children(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (int i = 0; i < MAX_JOBS; i++) {
            struct job *job = &jobs[i];

            if (job->used && !job->reaped && job->pid == pid) {
                job->reaped = true;
                job->status = status;
                job->drain_until = now_ms() + DRAIN_MS;
                close_stdin(job);
            }
        }
    }
}

/* Send EXIT and free the job. */
static void finish_job(struct job *job)
{
    const char *how;
    int code;

    /* Background children of the command must not outlive it. */
    kill(-job->pid, SIGKILL);
    for (int w = 0; w < 2; w++) {
        /* Bounded: a process in another session may write for ever. */
        for (int i = 0; i < MAX_DRAIN && forward_output(job, w); i++) {
        }
        close_fd(&job->out[w]);
    }
    if (WIFEXITED(job->status)) {
        how = job->timed_out ? "timeout" : "exited";
        code = WEXITSTATUS(job->status);
    } else {
        how = job->timed_out ? "timeout" : "killed";
        code = WTERMSIG(job->status);
    }
    send_frame(NULL, 0, "EXIT %u %s %d", job->id, how, code);
    job->used = false;
}

/* Enforce deadlines and finish jobs whose output is complete. */
static void check_jobs(void)
{
    int64_t now = now_ms();

    for (int i = 0; i < MAX_JOBS; i++) {
        struct job *job = &jobs[i];

        if (!job->used) {
            continue;
        }
        if (!job->reaped && job->deadline && now >= job->deadline) {
            job->timed_out = true;
            job->deadline = 0;
            kill_job(job->id, SIGKILL);
        }
        if (job->reaped && ((job->out[0] < 0 && job->out[1] < 0) ||
                            now >= job->drain_until)) {
            finish_job(job);
        }
    }
}

/* Milliseconds until check_jobs() has something to do; -1 = never. */
static int next_timeout(void)
{
    int64_t best = INT64_MAX;

    for (int i = 0; i < MAX_JOBS; i++) {
        struct job *job = &jobs[i];
        int64_t at = job->reaped ? job->drain_until : job->deadline;

        if (job->used && at && at < best) {
            best = at;
        }
    }
    if (best == INT64_MAX) {
        return -1;
    }
    best -= now_ms();
    return best < 0 ? 0 : best > 60000 ? 60000 : (int)best;
}

/* One turn of the main loop; @sigfd delivers SIGCHLD. */
static void loop_once(int sigfd, struct input *in)
{
    struct pollfd pfd[2 + 3 * MAX_JOBS];
    struct { int job, which; } ref[2 + 3 * MAX_JOBS];
    int n = 2;

    pfd[0] = (struct pollfd) { .fd = port_fd, .events = POLLIN };
    pfd[1] = (struct pollfd) { .fd = sigfd, .events = POLLIN };
    for (int i = 0; i < MAX_JOBS; i++) {
        for (int w = 0; w < 3; w++) {
            struct job *job = &jobs[i];
            int fd = w < 2 ? job->out[w] : job->pending_len ? job->in : -1;

            if (job->used && fd >= 0) {
                pfd[n] = (struct pollfd) {
                    .fd = fd, .events = w < 2 ? POLLIN : POLLOUT,
                };
                ref[n].job = i;
                ref[n++].which = w;
            }
        }
    }
    if (poll(pfd, (nfds_t)n, next_timeout()) < 0 && errno != EINTR) {
        fatal("poll: %s", strerror(errno));
    }
    for (int i = 2; i < n; i++) {
        struct job *job = &jobs[ref[i].job];

        if (pfd[i].revents && ref[i].which < 2) {
            forward_output(job, ref[i].which);
        } else if (pfd[i].revents) {
            flush_stdin(job);
        }
    }
    if (pfd[1].revents) {
        struct signalfd_siginfo si;

        while (read(sigfd, &si, sizeof(si)) > 0) {
            /* only the fact that it came matters */
        }
    }
    reap_children();
    check_jobs();
    if (pfd[0].revents & (POLLIN | POLLHUP)) {
        read_port(in);
    }
}

/* Fill @data from stdin. */
static void read_all(void *data, size_t len)
{
    char *p = data;

    while (len) {
        ssize_t n = read(0, p, len);

        if (n <= 0) {
            fatal("stdin: %s", n ? strerror(errno) : "it ended");
        }
        p += n;
        len -= (size_t)n;
    }
}

/* Make a guest that goes on from a saved state differ from others that do. */
static int begin(void)
{
    /* A struct rand_pool_info: how many bits are random, how many bytes follow. */
    uint32_t seed[2 + SEED / 4] = { 8 * SEED, SEED };
    int fd = open("/dev/urandom", O_WRONLY);
    struct timespec ts;
    int64_t ns;

    read_all(&seed[2], SEED);
    /* Without the second the kernel draws from the old state for up to a minute. */
    if (fd < 0 || ioctl(fd, RNDADDENTROPY, seed) || ioctl(fd, RNDRESEEDCRNG)) {
        fatal("/dev/urandom: %s", strerror(errno));
    }
    puts("ready");
    fflush(stdout);
    read_all(&ns, sizeof(ns));
    ts = (struct timespec) { .tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000 };
    if (clock_settime(CLOCK_REALTIME, &ts)) {
        fatal("clock: %s", strerror(errno));
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct input in = { 0 };
    sigset_t chld;
    int sigfd;

    if (argc != 2) {
        fatal("usage: guest-agent PORT|begin");
    }
    if (!strcmp(argv[1], "begin")) {
        return begin();
    }
    port_fd = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (port_fd < 0) {
        fatal("%s: %s", argv[1], strerror(errno));
    }
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, NULL);
    sigfd = signalfd(-1, &chld, SFD_NONBLOCK | SFD_CLOEXEC);
    if (sigfd < 0) {
        fatal("signalfd: %s", strerror(errno));
    }
    send_frame(NULL, 0, "HELLO %d", PROTOCOL_VERSION);
    for (;;) {
        loop_once(sigfd, &in);
    }
}
