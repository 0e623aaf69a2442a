/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * softnic: devices, contexts, asynchronous events, protection domains and memory.
 */
#include <fcntl.h>
#include <poll.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"
#include "entries.h"

/* ---- queues of events ---- */

void soft_queue_init(struct softqueue *q)
{
    g_queue_init(&q->q);
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (q->fd < 0) {
        soft_bug("eventfd");
    }
}

void soft_queue_put(struct softqueue *q, void *item)
{
    uint64_t one = 1;

    g_queue_push_tail(&q->q, item);
    if (write(q->fd, &one, sizeof(one)) < 0) {
        soft_bug("eventfd");
    }
}

void *soft_queue_get(struct softqueue *q, int err)
{
    uint64_t one;

    soft_leave();
    if (err) {
        errno = err;
        return NULL;
    }
    for (;;) {
        void *item;

        if (read(q->fd, &one, sizeof(one)) < 0) {
            return NULL;
        }
        pthread_mutex_lock(&soft.lock);
        item = g_queue_pop_head(&q->q);
        if (item) {
            return item;
        }
        pthread_mutex_unlock(&soft.lock);
    }
}

/* An event is gone without a reader; one that has its token already looks again. */
void soft_queue_less(struct softqueue *q)
{
    uint64_t one;
    struct iovec v = {&one, sizeof(one)};

    if (preadv2(q->fd, &v, 1, -1, RWF_NOWAIT) < 0 && errno != EAGAIN) {
        soft_bug("eventfd");
    }
}

void soft_queue_remove(struct softqueue *q, void *item)
{
    while (g_queue_remove(&q->q, item)) {
        soft_queue_less(q);
    }
}

static void queue_end(struct softqueue *q)
{
    g_queue_clear(&q->q);
    close(q->fd);
}

/* ---- devices ---- */

struct softdev *soft_find(const char *name)
{
    for (unsigned i = soft.devs->len; i-- > 0;) { /* the newest of that name */
        struct softdev *dev = soft.devs->pdata[i];

        if (!strcmp(dev->ibv.name, name)) {
            return dev;
        }
    }
    return NULL;
}

struct softdev *soft_find_address(in_addr_t a)
{
    for (unsigned i = 0; i < soft.devs->len; i++) {
        struct softdev *dev = soft.devs->pdata[i];

        for (unsigned k = 0; k < dev->n_addresses && !dev->gone && !dev->fatal; k++) {
            if (dev->address[k] == a) {
                return dev;
            }
        }
    }
    return NULL;
}

void soft_dev_put(struct softdev *dev)
{
    if (!--dev->refs) {
        rmdir(dev->ibv.ibdev_path);
        g_ptr_array_remove(soft.devs, dev);
        g_free(dev);
    }
}

struct ibv_device **soft_get_device_list(int *num)
{
    struct ibv_device **list;
    int n = 0, err = soft_enter("get_device_list");

    if (err) {
        soft_leave();
        errno = err;
        return NULL;
    }
    list = g_new0(struct ibv_device *, soft.devs->len + 1);
    for (unsigned i = 0; i < soft.devs->len; i++) {
        struct softdev *dev = soft.devs->pdata[i];

        if (!dev->gone) {
            dev->refs++;
            list[n++] = &dev->ibv;
        }
    }
    soft_leave();
    if (num) {
        *num = n;
    }
    return list;
}

void soft_free_device_list(struct ibv_device **list)
{
    soft_enter("free_device_list");
    for (unsigned i = 0; list[i]; i++) {
        soft_dev_put((struct softdev *)list[i]);
    }
    soft_leave();
    g_free(list);
}

const char *soft_get_device_name(struct ibv_device *dev)
{
    return dev->name;
}

__be64 soft_get_device_guid(struct ibv_device *dev)
{
    return GUINT64_TO_BE(((struct softdev *)dev)->guid);
}

static struct softctx *ctx_new(struct softdev *dev)
{
    struct softctx *ctx = g_new0(struct softctx, 1);
    int ends[2];

    ctx->dev = dev;
    ctx->ibv.device = &dev->ibv;
    ctx->ibv.num_comp_vectors = 2;
    if (pipe2(ends, O_CLOEXEC)) {
        soft_bug("pipe");
    }
    ctx->kernel = ends[0];
    ctx->ibv.cmd_fd = ends[1];
    soft_queue_init(&ctx->async);
    ctx->ibv.async_fd = ctx->async.fd;
    dev->refs++;
    g_ptr_array_add(soft.ctxs, ctx);
    return ctx;
}

/* Contexts that the kernel has: a library may have closed only the descriptor. */
unsigned soft_contexts(struct softdev *dev)
{
    unsigned n = 0;

    for (unsigned i = 0; i < soft.ctxs->len; i++) {
        struct softctx *ctx = soft.ctxs->pdata[i];
        struct pollfd p = {.fd = ctx->kernel};

        n += ctx->dev == dev && !(poll(&p, 1, 0) && (p.revents & POLLHUP));
    }
    return n;
}

static void ctx_free(struct softctx *ctx)
{
    struct softdev *dev = ctx->dev;
    void *e;

    if (ctx->users) {
        soft_bug("a context is closed before its objects are destroyed");
    }
    while ((e = g_queue_pop_head(&ctx->async.q))) {
        g_free(e);
    }
    queue_end(&ctx->async);
    close(ctx->ibv.cmd_fd);
    close(ctx->kernel);
    g_ptr_array_remove(soft.ctxs, ctx);
    g_free(ctx);
    soft_dev_put(dev);
}

struct ibv_context *soft_open_device(struct ibv_device *ibv)
{
    struct softdev *dev = (struct softdev *)ibv;
    struct softctx *ctx = NULL;
    int err = soft_enter("open_device");

    if (!err && (dev->gone || dev->fatal)) {
        err = ENODEV;
    }
    if (!err) {
        ctx = ctx_new(dev);
    }
    soft_leave();
    errno = err ? err : errno;
    return ctx ? &ctx->ibv : NULL;
}

int soft_close_device(struct ibv_context *ibv)
{
    int err = soft_enter("close_device");

    if (!err) {
        ctx_free((struct softctx *)ibv);
    }
    soft_leave();
    return err;
}

/* The connection manager's own context of a device, as its library opens one. */
struct softctx *soft_cma(struct softdev *dev)
{
    if (!dev->cma) {
        dev->cma = ctx_new(dev);
    }
    dev->cma_refs++;
    return dev->cma;
}

static void cma_close(struct softdev *dev)
{
    struct softctx *ctx = dev->cma;

    if (ctx && dev->dead && !dev->cma_refs) {
        dev->cma = NULL;
        ctx_free(ctx); /* may be the end of the device */
    }
}

/* It is closed when a look at all devices has found that it is gone. */
void soft_cma_put(struct softctx *ctx)
{
    ctx->dev->cma_refs--;
    cma_close(ctx->dev);
}

/* With no device left this fails before it looks for those that are gone. */
struct ibv_context **soft_cm_get_devices(int *num)
{
    struct ibv_context **list = NULL;
    int n = 0, err = soft_enter("cm_get_devices");

    for (unsigned i = 0; i < soft.devs->len; i++) {
        n += !((struct softdev *)soft.devs->pdata[i])->gone;
    }
    err = err || n ? err : ENODEV;
    for (unsigned i = soft.devs->len; !err && i-- > 0;) {
        struct softdev *dev = soft.devs->pdata[i];

        dev->dead = dev->gone;
        cma_close(dev);
    }
    if (!err) {
        list = g_new0(struct ibv_context *, n + 1);
        n = 0;
        for (unsigned i = 0; i < soft.devs->len; i++) {
            struct softdev *dev = soft.devs->pdata[i];

            if (!dev->gone) {
                list[n++] = &soft_cma(dev)->ibv;
            }
        }
    }
    soft_leave();
    if (num) {
        *num = err ? 0 : n;
    }
    errno = err ? err : errno;
    return list;
}

void soft_cm_free_devices(struct ibv_context **list)
{
    soft_enter("cm_free_devices");
    for (unsigned i = 0; list[i]; i++) {
        struct softctx *ctx = (struct softctx *)list[i];

        soft_cma_put(ctx);
    }
    soft_leave();
    g_free(list);
}

int soft_query_device(struct ibv_context *ibv, struct ibv_device_attr *attr)
{
    struct softdev *dev = ((struct softctx *)ibv)->dev;
    int err = soft_enter("query_device");

    if (!err && dev->fatal) {
        err = EIO;
    }
    if (!err) {
        memset(attr, 0, sizeof(*attr));
        snprintf(attr->fw_ver, sizeof(attr->fw_ver), "soft");
        attr->node_guid = attr->sys_image_guid = GUINT64_TO_BE(dev->guid);
        attr->max_mr_size = UINT64_MAX;
        attr->page_size_cap = 4096;
        attr->max_qp = attr->max_cq = attr->max_mr = attr->max_pd = 1 << 18;
        attr->max_qp_wr = (int)dev->wr;
        attr->max_sge = attr->max_sge_rd = (int)dev->sge;
        attr->max_cqe = 1 << 20;
        attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = (int)dev->ord;
        attr->max_res_rd_atom = 1 << 20;
        attr->atomic_cap = IBV_ATOMIC_NONE;
        attr->phys_port_cnt = 1;
    }
    soft_leave();
    return err;
}

int soft_query_port(struct ibv_context *ibv, uint8_t port, struct ibv_port_attr *attr)
{
    struct softdev *dev = ((struct softctx *)ibv)->dev;
    int err = soft_enter("query_port");

    if (!err && (dev->fatal || port != 1)) {
        err = dev->fatal ? EIO : EINVAL;
    }
    if (!err) {
        memset(attr, 0, sizeof(*attr));
        attr->state = dev->up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
        attr->phys_state = dev->up ? 5 : 3;
        attr->max_mtu = attr->active_mtu = IBV_MTU_4096;
        attr->gid_tbl_len = SOFT_ADDRESSES;
        attr->pkey_tbl_len = 1;
        attr->max_msg_sz = (uint32_t)MIN(dev->maxmsg, UINT32_MAX);
        attr->active_width = 2;
        attr->active_speed = 32;
        attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    }
    soft_leave();
    return err;
}

ssize_t soft_query_gid_table(struct ibv_context *ibv, struct ibv_gid_entry *entries,
                             size_t max, uint32_t flags)
{
    struct softdev *dev = ((struct softctx *)ibv)->dev;
    int err = soft_enter("query_gid_table");
    ssize_t n = 0;

    if (!err && dev->fatal) {
        err = EIO;
    } else if (!err &&
               (flags || max < dev->n_addresses || max * sizeof(*entries) > UINT16_MAX)) {
        err = EINVAL; /* the length of a kernel's attribute has 16 bits */
    }
    for (unsigned i = 0; !err && i < dev->n_addresses; i++) {
        struct ibv_gid_entry *e = &entries[n++];

        memset(e, 0, sizeof(*e));
        e->gid.raw[10] = e->gid.raw[11] = 0xff;
        memcpy(e->gid.raw + 12, &dev->address[i], 4);
        e->gid_index = i;
        e->port_num = 1;
        e->gid_type = dev->iwarp ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
        e->ndev_ifindex = 1;
    }
    soft_leave();
    return err ? -err : n;
}

/* ---- asynchronous events ---- */

static void async(struct softctx *ctx, struct ibv_async_event e)
{
    soft_queue_put(&ctx->async, g_memdup2(&e, sizeof(e)));
}

void soft_async(struct softdev *dev, enum ibv_event_type type)
{
    for (unsigned i = 0; i < soft.ctxs->len; i++) {
        struct softctx *ctx = soft.ctxs->pdata[i];

        if (ctx->dev == dev) {
            async(ctx,
                  (struct ibv_async_event){.element.port_num = 1, .event_type = type});
        }
    }
}

void soft_async_qp(struct softqp *qp, enum ibv_event_type type)
{
    async(qp->ctx, (struct ibv_async_event){.element.qp = &qp->ibv, .event_type = type});
}

void soft_async_cq(struct softcq *cq)
{
    async(cq->ctx, (struct ibv_async_event){.element.cq = &cq->ibv,
                                            .event_type = IBV_EVENT_CQ_ERR});
}

/* What was not read of a QP or CQ that goes away. */
void soft_async_forget(struct softctx *ctx, const void *element)
{
    for (GList *l = ctx->async.q.head, *next; l; l = next) {
        struct ibv_async_event *e = l->data;
        bool of_qp = e->event_type != IBV_EVENT_CQ_ERR &&
                     (e->event_type <= IBV_EVENT_PATH_MIG_ERR ||
                      e->event_type == IBV_EVENT_QP_LAST_WQE_REACHED);

        next = l->next;
        if ((of_qp || e->event_type == IBV_EVENT_CQ_ERR) && e->element.qp == element) {
            g_free(e);
            g_queue_delete_link(&ctx->async.q, l);
            soft_queue_less(&ctx->async);
        }
    }
}

static unsigned *async_count(struct ibv_async_event *e)
{
    switch (e->event_type) {
    case IBV_EVENT_CQ_ERR:
        return &((struct softcq *)e->element.cq)->async_got;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
        return &((struct softqp *)e->element.qp)->async_got;
    default:
        return NULL;
    }
}

int soft_get_async_event(struct ibv_context *ibv, struct ibv_async_event *event)
{
    struct ibv_async_event *e =
        soft_queue_get(&((struct softctx *)ibv)->async, soft_enter("get_async_event"));
    unsigned *n;

    if (!e) {
        return -1;
    }
    *event = *e;
    n = async_count(e);
    if (n) {
        (*n)++;
    }
    g_free(e);
    soft_leave();
    return 0;
}

void soft_ack_async_event(struct ibv_async_event *event)
{
    unsigned *n;

    soft_enter("ack_async_event");
    n = async_count(event);
    if (n && !(*n)--) {
        soft_bug("an event is acknowledged twice");
    }
    pthread_cond_broadcast(&soft.acked);
    soft_leave();
}

/* ---- memory ---- */

struct ibv_pd *soft_alloc_pd(struct ibv_context *ibv)
{
    struct softctx *ctx = (struct softctx *)ibv;
    struct softpd *pd = NULL;
    int err = soft_enter("alloc_pd");

    if (!err && ctx->dev->fatal) {
        err = EIO;
    }
    if (!err) {
        pd = g_new0(struct softpd, 1);
        pd->ibv.context = ibv;
        pd->ctx = ctx;
        ctx->users++;
        soft.objects++;
    }
    soft_leave();
    errno = err ? err : errno;
    return pd ? &pd->ibv : NULL;
}

int soft_dealloc_pd(struct ibv_pd *ibv)
{
    struct softpd *pd = (struct softpd *)ibv;
    int err = soft_enter("dealloc_pd");

    if (!err && pd->users) {
        err = EBUSY;
    }
    if (!err) {
        pd->ctx->users--;
        soft.objects--;
        g_free(pd);
    }
    soft_leave();
    return err;
}

/*
 * Maps the pages of @mr once more, so that they stay its memory whatever becomes of the
 * addresses, as a NIC has them pinned.  Only if all of it is shared memory.
 */
static void pin(struct softmr *mr)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)mr->ibv.addr & ~(page - 1), first = at, start, end;
    uintptr_t stop = ((uintptr_t)mr->ibv.addr + mr->ibv.length + page - 1) & ~(page - 1);
    char line[512], perms[5];
    uint8_t *to;
    FILE *maps;

    /* Fails for private memory. */
    to = mr->ibv.length ? mremap((void *)at, 0, page, MREMAP_MAYMOVE) : MAP_FAILED;
    if (to == MAP_FAILED) {
        return;
    }
    munmap(to, page);
    maps = fopen("/proc/self/maps", "re");
    to = mmap(NULL, stop - first, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!maps || to == MAP_FAILED) {
        soft_bug("cannot pin");
    }
    while (at < stop && fgets(line, sizeof(line), maps)) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &start, &end, perms) != 3 ||
            end <= at) {
            continue;
        }
        end = MIN(end, stop);
        if (start > at || perms[3] != 's' ||
            mremap((void *)at, 0, end - at, MREMAP_MAYMOVE | MREMAP_FIXED,
                   to + (at - first)) == MAP_FAILED) {
            break;
        }
        at = end;
    }
    fclose(maps);
    if (at < stop) {
        munmap(to, stop - first);
        return;
    }
    mr->pinned = to;
    mr->pinned_len = stop - first;
    mr->mem = to + ((uintptr_t)mr->ibv.addr - first);
}

/* Each number once, in an order that cannot be guessed. */
static uint32_t new_key(void)
{
    return ++soft.next_key * 0x9e3779b1u ^ soft.key_mask;
}

struct ibv_mr *soft_reg_mr(struct ibv_pd *ibv, void *addr, size_t len, int access)
{
    struct softpd *pd = (struct softpd *)ibv;
    struct softmr *mr = NULL;
    int err = soft_enter("reg_mr");

    if (!err && pd->ctx->dev->fatal) {
        err = EIO;
    }
    if (!err && (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
        !(access & IBV_ACCESS_LOCAL_WRITE)) {
        err = EINVAL;
    }
    if (!err && (uintptr_t)addr + len < (uintptr_t)addr) {
        err = EINVAL;
    }
    if (!err) {
        mr = g_new0(struct softmr, 1);
        mr->pd = pd;
        mr->access = access;
        mr->ibv.context = pd->ibv.context;
        mr->ibv.pd = ibv;
        mr->ibv.addr = addr;
        mr->ibv.length = len;
        mr->mem = addr;
        pin(mr);
        mr->ibv.lkey = new_key();
        mr->ibv.rkey = new_key();
        g_hash_table_insert(soft.lkeys, GUINT_TO_POINTER(mr->ibv.lkey), mr);
        g_hash_table_insert(soft.rkeys, GUINT_TO_POINTER(mr->ibv.rkey), mr);
        pd->users++;
        soft.objects++;
    }
    soft_leave();
    errno = err ? err : errno;
    return mr ? &mr->ibv : NULL;
}

int soft_dereg_mr(struct ibv_mr *ibv)
{
    struct softmr *mr = (struct softmr *)ibv;
    int err = soft_enter("dereg_mr");

    if (!err) {
        g_hash_table_remove(soft.lkeys, GUINT_TO_POINTER(ibv->lkey));
        g_hash_table_remove(soft.rkeys, GUINT_TO_POINTER(ibv->rkey));
        if (mr->pinned) {
            munmap(mr->pinned, mr->pinned_len);
        }
        mr->pd->users--;
        soft.objects--;
        g_free(mr);
    }
    soft_leave();
    return err;
}

uint8_t *soft_lookup(GHashTable *keys, struct softpd *pd, uint32_t key, uint64_t addr,
                     uint64_t len, int access)
{
    struct softmr *mr = g_hash_table_lookup(keys, GUINT_TO_POINTER(key));
    uint64_t start = mr ? (uintptr_t)mr->ibv.addr : 0;

    if (!mr || mr->pd != pd || (mr->access & access) != access || addr < start ||
        addr - start > mr->ibv.length || len > mr->ibv.length - (addr - start)) {
        return NULL;
    }
    return mr->mem + (addr - start);
}
