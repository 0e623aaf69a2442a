/* SPDX-License-Identifier: GPL-2.0-or-later */
/* link/datagrams.c: what waits of other hosts' datagrams for a VM whose worker takes
 * none. */
#include <glib.h>

#include "../../heap.h"
#include "datapath/engine.h"
#include "testdev.h"
#include "transport/link/datagrams.h"
#include "transport/link/internal.h"

/* docs/hosts.md has that. */
#define MOST      (1u << 20)
#define MOST_MADS (256u << 10)

static struct peer host;

static bool ask(const char *network, const struct pvrdma_gid *gid)
{
    return true;
}

static void told(const char *network, const struct pvrdma_gid *gid)
{
}

static void bound(const struct vm *vm, const char *network, const struct pvrdma_gid *gid)
{
}

static void held(const char *network, const struct pvrdma_gid *gid, uint64_t until)
{
}

static const struct directory_engine engine = {
    .name = "test",
    .ask = ask,
    .call = told,
    .give_up = told,
    .bound = bound,
    .unbound = told,
    .held = held,
};

/* Management datagrams find room beside them, as many as there may be. */
static void fill_mads(struct testdev *td, struct peer_datagram d)
{
    _Atomic uint64_t *dropped = &td->vm.dp.datagrams_dropped[DATAGRAM_TOO_MANY];
    uint64_t before = atomic_load(dropped);
    unsigned n = 0;

    d.dqpn = 1;
    d.len = 256;
    while (atomic_load(dropped) == before) {
        peers_self.datagram(&host, &d);
        g_assert_cmpuint(++n, <=, MOST_MADS / 256);
    }
    g_assert_cmpuint(n, >, MOST_MADS / 1024);
    g_assert_cmpuint(atomic_load(&td->vm.dp.inbound_mads), <=, MOST_MADS);
}

/* Datagrams of @len bytes, until one finds no room, and some more. */
static void fill(struct testdev *td, struct peer_datagram *d, uint32_t len)
{
    _Atomic uint64_t *dropped = &td->vm.dp.datagrams_dropped[DATAGRAM_TOO_MANY];
    uint64_t before = atomic_load(dropped);
    size_t used;
    unsigned n = 0;

    d->len = len;
    vm_token_take(&td->vm); /* its worker does nothing */
    used = heap_used();
    while (atomic_load(dropped) == before) {
        peers_self.datagram(&host, d);
        g_assert_cmpuint(++n, <=, MOST / 64); /* none is for nothing */
    }
    for (unsigned i = 0; i < 1000; i++) {
        peers_self.datagram(&host, d);
    }
    g_assert_cmpuint(atomic_load(&td->vm.dp.inbound), <=, MOST);
    g_assert_cmpuint((n - 1) * (uint64_t)len, <=, MOST);
    heap_assert_each("datagrams that wait", used, 1, MOST);
    fill_mads(td, *d);
    vm_token_release(&td->vm);
    while (atomic_load(&td->vm.dp.inbound) || atomic_load(&td->vm.dp.inbound_mads)) {
        g_usleep(1000);
    }
}

static void test_bound(void)
{
    static const uint8_t data[PEER_MAX_DATA];
    struct pvrdma_cmd_create_bind bind = {.gid = {.raw = {0xfe, 0x80, [15] = 1}},
                                          .vlan = 0xfff};
    struct peer_datagram d = {.sgid = {.raw = {0xfe, 0x80, [15] = 2}},
                              .dgid = bind.gid,
                              .dqpn = 0x10002,
                              .data = data};
    struct claim claim = {.owner = {7, 1}, .generation = 1};
    struct testdev *td;

    testdev_start();
    g_assert_cmpint(directory_set_engine(&engine), ==, 0);
    ud_start();
    td = testdev_new("vm");
    testdev_up(td);
    bind.gid_type = ((struct pvrdma_dsr *)testdev_ptr(td, td->dsr))->caps.gid_types;
    testdev_do(td, PVRDMA_CMD_CREATE_BIND, &bind, sizeof(bind));
    g_strlcpy(d.network, td->vm.objects.network, sizeof(d.network));
    g_assert_cmpint(directory_claim(&host, td->vm.objects.network, &d.sgid, &claim, 0),
                    ==, CLAIM_TAKEN);
    fill(td, &d, 0);
    fill(td, &d, 1024);
    fill(td, &d, PEER_MAX_DATA);
    directory_forget(&host, false, NULL, NULL);
    testdev_free(td);
    ud_stop();
    directory_set_engine(NULL);
    testdev_stop();
}

int main(int argc, char **argv)
{
    g_test_init(&argc, &argv, NULL);
    g_test_add_func("/ud/bound", test_bound);
    return g_test_run();
}
