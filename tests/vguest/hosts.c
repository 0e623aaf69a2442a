/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Several daemons, as on several hosts.
 *
 * Each has an address of the loopback of its own, 127.A.B.(i + 1), where A and B are from
 * this program's pid, so that test programs may run side by side, and all listen on the
 * same port, as hosts do.  Or they have a network of their own (netns.h).
 */
#include "hosts.h"

#include <arpa/inet.h>
#include <glib/gstdio.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

const char hosts_secret[] = "a secret for tests, and tests only";

static const char *network;

void hosts_use_network(const char *prefix)
{
    network = prefix;
}

char *host_address(unsigned i)
{
    unsigned pid = (unsigned)getpid();

    if (network) {
        return g_strdup_printf("%s%u", network, i + 1);
    }
    return g_strdup_printf("127.%u.%u.%u", 64 + (pid >> 8) % 128, pid & 255, i + 1);
}

static bool port_is_free(unsigned port)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    bool ok;

    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ok = bind(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0;
    close(fd);
    return ok;
}

unsigned hosts_port(void)
{
    static unsigned port;

    for (unsigned i = 0; !port && i < 100; i++) {
        /* Below those that the kernel gives to whoever asks for none. */
        unsigned p = 14820 + ((unsigned)getpid() + i) % 10000;

        port = port_is_free(p) ? p : 0;
    }
    g_assert_cmpuint(port, !=, 0);
    return port;
}

static GPtrArray *secret_files;

static void remove_secrets(void)
{
    for (guint i = 0; i < secret_files->len; i++) {
        g_unlink(secret_files->pdata[i]);
    }
}

char *host_secret_file(const char *secret)
{
    char *path = NULL;
    int fd = g_file_open_tmp("vguest-secret-XXXXXX", &path, NULL); /* mode 0600 */

    g_assert_cmpint(fd, >=, 0);
    g_assert_cmpint(write(fd, secret, strlen(secret)), ==, (gssize)strlen(secret));
    close(fd);
    if (!secret_files) {
        secret_files = g_ptr_array_new();
        atexit(remove_secrets);
    }
    g_ptr_array_add(secret_files, g_strdup(path));
    return path;
}

char *host_peer_group(unsigned peer, const char *secret_path, const char *more)
{
    g_autofree char *address = host_address(peer);

    return g_strdup_printf("[peer host%u]\naddress=%s:%u\nsecret-file=%s\n%s\n", peer,
                           address, hosts_port(), secret_path, more ? more : "");
}

struct vg_daemon *host_start(unsigned i, const struct host_opts *opts)
{
    g_autofree char *own = host_address(i);
    g_autofree char *secret =
        host_secret_file(opts->secret ? opts->secret : hosts_secret);
    GString *keys = g_string_new(opts->daemon_keys ? opts->daemon_keys : "");
    struct vg_daemon_opts o = {.n_vms = opts->n_vms,
                               .poll_us = -1,
                               .nic = own,
                               .nic_keys = opts->nic_keys,
                               .vm_keys =
                                   opts->vm_keys ? opts->vm_keys : "addresses=any"};
    struct vg_daemon *d;

    g_string_append_printf(keys, "\nlisten=%s:%u\n", own, hosts_port());
    if (opts->name) {
        g_string_append_printf(keys, "host-name=%s\n", opts->name);
    } else {
        g_string_append_printf(keys, "host-name=host%u\n", i);
    }
    for (unsigned p = 0; p < opts->n_peers; p++) {
        if (p != i) {
            g_autofree char *group = host_peer_group(p, secret, opts->peer_keys);

            g_string_append(keys, group);
        }
    }
    g_string_append(keys, opts->groups ? opts->groups : "");
    o.daemon_keys = keys->str;
    d = vg_daemon_start(&o);
    g_string_free(keys, TRUE);
    host_int(d, "peers"); /* who answers that listens */
    return d;
}

void hosts_start(struct vg_daemon **host, unsigned n, const struct host_opts *opts)
{
    struct host_opts o = *opts;

    o.n_peers = o.n_peers ? o.n_peers : n;
    for (unsigned i = 0; i < n; i++) {
        host[i] = host_start(i, &o);
    }
    hosts_wait_up(host, n);
}

void hosts_wait_up(struct vg_daemon *const *host, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        for (unsigned k = 0; k < n; k++) {
            if (i != k) {
                host_wait_up(host[i], k, true);
            }
        }
    }
}

void hosts_stop(struct vg_daemon **host, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (host[i]) {
            vg_daemon_stop(host[i]);
            host[i] = NULL;
        }
    }
}

int hosts_run(struct vg_daemon **host, unsigned n)
{
    int ret;

    vgt_daemon = host[0];
    ret = g_test_run();
    vgt_daemon = NULL;
    hosts_stop(host, n);
    return vgt_judged(ret);
}

/* ---- what it says ---- */

static JsonNode *peer_list(const struct vg_daemon *d)
{
    return vg_ctl_json(d, "peer list");
}

static JsonObject *find_peer(JsonNode *list, unsigned peer)
{
    JsonArray *peers = json_object_get_array_member(json_node_get_object(list), "peers");
    g_autofree char *name = g_strdup_printf("host%u", peer);

    for (guint i = 0; i < json_array_get_length(peers); i++) {
        JsonObject *o = json_array_get_object_element(peers, i);

        if (strcmp(json_object_get_string_member(o, "name"), name) == 0) {
            return o;
        }
    }
    g_error("no peer %s", name);
}

char *host_peer_text(const struct vg_daemon *d, unsigned peer, const char *name)
{
    g_autoptr(JsonNode) list = peer_list(d);

    return g_strdup(json_object_get_string_member(find_peer(list, peer), name));
}

int64_t host_peer_int(const struct vg_daemon *d, unsigned peer, const char *name)
{
    g_autoptr(JsonNode) list = peer_list(d);

    return json_object_get_int_member(find_peer(list, peer), name);
}

int64_t host_int(const struct vg_daemon *d, const char *name)
{
    g_autoptr(JsonNode) list = peer_list(d);
    JsonObject *hosts =
        json_object_get_object_member(json_node_get_object(list), "hosts");

    return json_object_get_int_member(hosts, name);
}

static bool is_up(const struct vg_daemon *d, unsigned peer)
{
    g_autofree char *state = host_peer_text(d, peer, "state");

    return strcmp(state, "up") == 0;
}

void host_wait_up(const struct vg_daemon *d, unsigned peer, bool up)
{
    vgt_await(is_up(d, peer) == up);
}

void host_wait_int(const struct vg_daemon *d, unsigned peer, const char *name, int64_t n)
{
    vgt_await(host_peer_int(d, peer, name) >= n);
}

void host_wait_logged(const struct vg_daemon *d, const char *words)
{
    int64_t end = vg_now_ns() + VGT_WAIT_MS * 1000000ll;

    for (;;) {
        g_autofree char *text = NULL;

        g_assert_true(g_file_get_contents(d->log, &text, NULL, NULL));
        if (strstr(text, words)) {
            return;
        }
        if (vg_now_ns() > end) {
            g_error("no \"%s\" in the log", words);
        }
        g_usleep(5000);
    }
}

static bool goes_by(JsonNode *list, const struct vg_qp *qp, const char *transport)
{
    JsonObject *row = vg_qp_row(list, qp->handle);

    return strcmp(json_object_get_string_member(row, "transport"), transport) == 0;
}

bool host_qp_by(const struct vg_qp *qp, const char *transport)
{
    g_autoptr(JsonNode) list = vg_ctl_json(qp->g->d, "qp list vm%u", qp->g->index);

    return goes_by(list, qp, transport);
}

bool host_traffic_by(const struct vgt_traffic *t, unsigned i, const char *transport)
{
    const struct vguest *g = t->s[i].g;
    g_autoptr(JsonNode) list = vg_ctl_json(g->d, "qp list vm%u", g->index);

    for (unsigned q = 0; q < t->nqp; q++) {
        if (!goes_by(list, t->qp[i][q], transport)) {
            return false;
        }
    }
    return true;
}

/* ---- what is said of it ---- */

char *hosts_documented(const char *words)
{
    g_autofree char *text = NULL;
    g_auto(GStrv) lines = NULL;

    g_assert_true(g_file_get_contents(DOCS "/hosts.md", &text, NULL, NULL));
    lines = g_strsplit(text, "\n", -1);
    for (unsigned i = 0; lines[i]; i++) {
        if (strstr(lines[i], words)) {
            return g_strstrip(g_strdup(lines[i]));
        }
    }
    g_error("docs/hosts.md has no \"%s\"", words);
}
