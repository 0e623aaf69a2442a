/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * verbscheck: calls of one device that other programs do not make.
 *
 *   verbscheck events -d DEVICE   print the asynchronous events, until it is killed
 *   verbscheck gone -d DEVICE     open everything, print "ready", wait for a line, and
 *                                 print the error of each of some calls
 *   verbscheck uabi -d DEVICE     requests of older and of later providers, as the
 *                                 kernel sees them: what it does not know must be zero.
 *                                 Prints "N checks, N errors", fails if there are errors
 *   verbscheck signals -d DEVICE  make and destroy objects while signals come all the
 *                                 time.  Prints "N calls, N failed"
 *
 * One thread.  Needs libibverbs; uabi speaks to the kernel itself.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "die.h"
#include "pvrdma/uverbs.h"

static struct ibv_device *find_device(const char *name)
{
    struct ibv_device **list = ibv_get_device_list(NULL);

    for (int i = 0; list && list[i]; i++) {
        if (!strcmp(ibv_get_device_name(list[i]), name)) {
            return list[i];
        }
    }
    errno = ENODEV;
    die(name);
    return NULL;
}

static struct ibv_context *open_device(const char *name)
{
    struct ibv_context *ctx = ibv_open_device(find_device(name));

    DIE_IF(!ctx, "ibv_open_device");
    return ctx;
}

/* ---- events ------------------------------------------------------------------------ */

static int events(const char *name)
{
    struct ibv_context *ctx = open_device(name);
    struct ibv_async_event event;

    puts("ready");
    fflush(stdout);
    while (!ibv_get_async_event(ctx, &event)) {
        puts(ibv_event_type_str(event.event_type));
        fflush(stdout);
        ibv_ack_async_event(&event);
    }
    die("ibv_get_async_event");
    return 1;
}

/* ---- gone -------------------------------------------------------------------------- */

static void result(const char *what, int err)
{
    printf("%s: %s\n", what, strerror(err));
}

static int gone(const char *name)
{
    struct ibv_context *ctx = open_device(name);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = pd && cq ? ibv_create_qp(pd, &init) : NULL;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    struct ibv_device_attr dev;
    struct ibv_port_attr port;
    char line[16];

    DIE_IF(!qp, "objects");
    puts("ready");
    fflush(stdout);
    DIE_IF(!fgets(line, sizeof(line), stdin), "standard input");
    result("query_device", ibv_query_device(ctx, &dev));
    result("query_port", ibv_query_port(ctx, 1, &port));
    result("alloc_pd", ibv_alloc_pd(ctx) ? 0 : errno);
    result("reg_mr", ibv_reg_mr(pd, line, sizeof(line), 0) ? 0 : errno);
    result("create_cq", ibv_create_cq(ctx, 16, NULL, NULL, 0) ? 0 : errno);
    result("create_qp", ibv_create_qp(pd, &init) ? 0 : errno);
    result("modify_qp", ibv_modify_qp(qp, &attr,
                                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                          IBV_QP_ACCESS_FLAGS));
    return 0;
}

/* ---- uabi -------------------------------------------------------------------------- */

static struct {
    char path[128];
    unsigned checks, errors;
} u;

/* A command as the kernel gets it: header, request, and 32 bytes of the provider's. */
struct call {
    struct ib_uverbs_cmd_hdr hdr;
    union {
        uint64_t response; /* all of them begin so */
        struct ib_uverbs_get_context context;
        struct ib_uverbs_alloc_pd pd;
        struct ib_uverbs_create_cq cq;
        uint8_t raw[128];
    } req;
};

/*
 * Send @core bytes of @call's request and @len of @priv behind them, with room for @out
 * bytes at @resp.  Returns 0 or an errno.
 */
static int call(int fd, struct call *c, size_t core, const void *priv, size_t len,
                void *resp, size_t out)
{
    size_t size = sizeof(c->hdr) + core + len;

    memset(resp, 0, out);
    c->req.response = (uintptr_t)resp;
    memcpy(c->req.raw + core, priv, len);
    c->hdr.in_words = (uint16_t)(size / 4);
    c->hdr.out_words = (uint16_t)(out / 4);
    return write(fd, c, size) == (ssize_t)size ? 0 : errno;
}

static void check(const char *what, int got, int want)
{
    u.checks++;
    if (got != want) {
        u.errors++;
        printf("%s: %s, want %s\n", what, strerror(got), strerror(want));
    }
}

struct context_resp {
    struct ib_uverbs_get_context_resp core;
    struct pvrdma_ext_ucontext_resp priv;
};

/* A new context for a provider that sends this; returns the file or -1. */
static int new_context(const void *priv, size_t len, size_t out,
                       struct context_resp *resp, int *err)
{
    struct call c = {.hdr.command = IB_USER_VERBS_CMD_GET_CONTEXT};
    int fd = open(u.path, O_RDWR | O_CLOEXEC);

    DIE_IF(fd < 0, u.path);
    *err = call(fd, &c, sizeof(c.req.context), priv, len, resp, sizeof(resp->core) + out);
    if (*err) {
        close(fd);
        return -1;
    }
    return fd;
}

static void check_context(const char *what, const void *priv, size_t len, size_t out,
                          int want, uint32_t features)
{
    struct context_resp resp;
    int err, fd = new_context(priv, len, out, &resp, &err);

    check(what, err, want);
    if (fd < 0) {
        return;
    }
    check("qp_tab_size", resp.priv.qp_tab_size ? 0 : EIO, 0);
    if (out == sizeof(resp.priv)) {
        check("magic", resp.priv.magic == (features ? PVRDMA_EXT_MAGIC : 0) ? 0 : EIO, 0);
        check("features", resp.priv.features == features ? 0 : EIO, 0);
    }
    close(fd);
}

static void uabi_context(void)
{
    const uint32_t all = PVRDMA_EXT_CONTEXT_FEATURES;
    const uint32_t words[][4] = {
        {PVRDMA_EXT_MAGIC, all},     {PVRDMA_EXT_MAGIC, ~0u},       {0},
        {PVRDMA_EXT_MAGIC ^ 1, all}, {PVRDMA_EXT_MAGIC, all, 0, 1}, {0, 0, 1},
    };
    const size_t full = sizeof(struct pvrdma_ext_ucontext_resp);

    check_context("context, stock", NULL, 0, 8, 0, 0);
    check_context("context, stock with a later answer", NULL, 0, full, 0, 0);
    check_context("context, ours", words[0], 8, full, 0, all);
    check_context("context, ours with the stock answer", words[0], 8, 8, 0, all);
    check_context("context, unknown features", words[1], 8, full, 0, all);
    check_context("context, later and zero", words[0], 16, full, 0, all);
    check_context("context, no magic", words[2], 8, full, 0, 0);
    check_context("context, another magic", words[3], 8, full, EOPNOTSUPP, 0);
    check_context("context, later", words[4], 16, full, EOPNOTSUPP, 0);
    check_context("context, later without magic", words[5], 12, full, EOPNOTSUPP, 0);
}

static void check_pd(int fd, const char *what, const void *priv, size_t len, int want)
{
    struct call c = {.hdr.command = IB_USER_VERBS_CMD_ALLOC_PD};
    struct {
        struct ib_uverbs_alloc_pd_resp core;
        struct pvrdma_uverbs_pd_resp priv;
    } resp;

    check(what, call(fd, &c, sizeof(c.req.pd), priv, len, &resp, sizeof(resp)), want);
}

static void check_cq(int fd, const char *what, const void *priv, size_t len, int want)
{
    struct call c = {
        .hdr.command = IB_USER_VERBS_CMD_CREATE_CQ,
        .req.cq = {.cqe = 4, .comp_channel = -1},
    };
    struct {
        struct ib_uverbs_create_cq_resp core;
        struct pvrdma_uverbs_cq_resp priv;
    } resp;

    check(what, call(fd, &c, sizeof(c.req.cq), priv, len, &resp, sizeof(resp)), want);
}

static void uabi_objects(void)
{
    const uint32_t magic[2] = {PVRDMA_EXT_MAGIC, PVRDMA_EXT_CONTEXT_FEATURES};
    const uint32_t words[2][2] = {{0, 0}, {0, 1}};
    struct context_resp resp;
    struct {
        struct pvrdma_uverbs_cq known;
        uint32_t later[2];
    } cq = {.known.buf_size = 2 * 4096};
    void *mem = mmap(NULL, cq.known.buf_size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int err, fd = new_context(magic, sizeof(magic), sizeof(resp.priv), &resp, &err);

    if (fd < 0 || mem == MAP_FAILED) {
        errno = err;
        die("context");
    }
    check_pd(fd, "pd", NULL, 0, 0);
    check_pd(fd, "pd, later and zero", words[0], 8, 0);
    check_pd(fd, "pd, later", words[1], 8, EOPNOTSUPP);

    cq.known.buf_addr = (uintptr_t)mem;
    check_cq(fd, "cq, too short", &cq, 8, EINVAL);
    check_cq(fd, "cq, stock", &cq, 16, 0);
    check_cq(fd, "cq, ours", &cq, sizeof(cq.known), 0);
    check_cq(fd, "cq, later and zero", &cq, sizeof(cq), 0);
    /* The stock provider does not set it. */
    cq.known.reserved = 1;
    check_cq(fd, "cq, garbage of the stock provider", &cq, 16, 0);
    cq.later[1] = 1;
    check_cq(fd, "cq, later", &cq, sizeof(cq), EOPNOTSUPP);
    cq.later[1] = 0;
    cq.known.ext.max_inline = 1;
    check_cq(fd, "cq, inline", &cq, sizeof(cq), EOPNOTSUPP);
    cq.known.ext.max_inline = 0;
    cq.known.ext.flags = PVRDMA_EXT_CQ_STAMPS << 1;
    check_cq(fd, "cq, unknown flag", &cq, sizeof(cq), EOPNOTSUPP);
    cq.known.ext.flags = PVRDMA_EXT_CQ_STAMPS;
    check_cq(fd, "stock cq with time stamps", &cq, sizeof(cq), EOPNOTSUPP);
    cq.known.ext.flags = 0;
    cq.known.buf_size = 4096;
    check_cq(fd, "cq, a buffer of the header only", &cq, sizeof(cq), EINVAL);
    cq.known.buf_size = 2 * 4096;
    cq.known.buf_addr += 8;
    check_cq(fd, "cq, a buffer amid a page", &cq, sizeof(cq), EINVAL);
    cq.known.buf_addr -= 8;
    munmap((char *)mem + 4096, 4096);
    check_cq(fd, "cq, a buffer that is partly unmapped", &cq, sizeof(cq), EFAULT);
    close(fd);
}

static int uabi(const char *name)
{
    snprintf(u.path, sizeof(u.path), "/dev/infiniband/%s", find_device(name)->dev_name);
    uabi_context();
    uabi_objects();
    printf("%u checks, %u errors\n", u.checks, u.errors);
    return u.errors ? 1 : 0;
}

/* ---- signals ----------------------------------------------------------------------- */

static void nothing(int sig)
{
    (void)sig;
}

static int signals(const char *name)
{
    struct ibv_context *ctx = open_device(name);
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    unsigned calls = 0, failed = 0;

    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned i = 0; i < 300; i++) {
        struct ibv_pd *pd = ibv_alloc_pd(ctx);
        struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);

        calls += 4;
        failed += !cq || ibv_destroy_cq(cq);
        failed += !pd || ibv_dealloc_pd(pd);
        failed += !cq + !pd;
    }
    setitimer(ITIMER_REAL, &never, NULL);
    printf("%u calls, %u failed\n", calls, failed);
    return failed != 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[2], "-d")) {
        if (!strcmp(argv[1], "events")) {
            return events(argv[3]);
        }
        if (!strcmp(argv[1], "gone")) {
            return gone(argv[3]);
        }
        if (!strcmp(argv[1], "uabi")) {
            return uabi(argv[3]);
        }
        if (!strcmp(argv[1], "signals")) {
            return signals(argv[3]);
        }
    }
    fprintf(stderr, "usage: verbscheck events|gone|uabi|signals -d DEVICE\n");
    return 2;
}
