/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What can be configured for another host: the keys of [peer NAME], and addresses.
 *
 * The secret is read with the group, so that what is wrong with it is said when the
 * key file is read.  Main thread only.
 */
#include "config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DEFAULT_MAX_QUEUED (UINT64_C(4) << 20)

/* ---- addresses ---- */

/* @port: NULL if there is none. */
static bool parse_host(const char *host, const char *port, struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    guint64 n = CONFIG_PEER_PORT;

    memset(out, 0, sizeof(*out));
    if (port && !g_ascii_string_to_unsigned(port, 10, 1, 65535, &n, NULL)) {
        return false;
    }
    if (inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)n);
        return (ntohl(v4->sin_addr.s_addr) >> 28) != 14; /* multicast */
    }
    if (inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)n);
        return !IN6_IS_ADDR_MULTICAST(&v6->sin6_addr) &&
               !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
               !IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr); /* of which link? */
    }
    return false;
}

bool config_parse_address(const char *text, struct sockaddr_storage *address)
{
    g_autofree char *host = g_strdup(text);
    char *colon = strrchr(host, ':'), *close = strchr(host, ']');

    if (host[0] == '[') {
        if (!close || (close[1] && close[1] != ':') || !strchr(host, ':')) {
            return false;
        }
        *close = 0;
        return strchr(host + 1, ':') &&
               parse_host(host + 1, close[1] ? close + 2 : NULL, address);
    }
    if (colon && strchr(host, ':') == colon) { /* the only one: not IPv6's */
        *colon = 0;
        return parse_host(host, colon + 1, address);
    }
    return parse_host(host, NULL, address);
}

bool config_same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    if (a->ss_family != b->ss_family) {
        return false;
    }
    if (a->ss_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
               ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return a->ss_family == AF_INET6 &&
           IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr,
                              &((const struct sockaddr_in6 *)b)->sin6_addr);
}

bool config_any_host(const struct sockaddr_storage *address)
{
    if (address->ss_family == AF_INET) {
        return !((const struct sockaddr_in *)address)->sin_addr.s_addr;
    }
    return address->ss_family == AF_INET6 &&
           IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

void config_format_address(const struct sockaddr_storage *address,
                           char text[CONFIG_ADDRESS_STRLEN])
{
    char host[INET6_ADDRSTRLEN] = "";

    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;

        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        g_snprintf(text, CONFIG_ADDRESS_STRLEN, "%s:%u", host, ntohs(v4->sin_port));
    } else if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;

        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
        g_snprintf(text, CONFIG_ADDRESS_STRLEN, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        g_strlcpy(text, "-", CONFIG_ADDRESS_STRLEN);
    }
}

/* ---- [peer NAME] ---- */

struct peer_config *config_peer_new(const char *name, GError **errp)
{
    struct peer_config *peer;

    if (!config_valid_name(name)) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "the name must be 1 to 63 letters, digits, '_', '.' or '-'");
        return NULL;
    }
    peer = g_new0(struct peer_config, 1);
    peer->name = g_strdup(name);
    peer->max_queued = DEFAULT_MAX_QUEUED;
    return peer;
}

bool config_peer_set(struct peer_config *peer, const char *key, const char *value,
                     GError **errp)
{
    if (strcmp(key, "address") == 0) {
        return (config_parse_address(value, &peer->address) &&
                !config_any_host(&peer->address)) ||
               config_fail(
                   errp, key,
                   "is not ADDRESS or ADDRESS:PORT of a host; link-local addresses are "
                   "not supported");
    }
    if (strcmp(key, "secret-file") == 0) {
        if (!*value) {
            return config_fail(errp, key, "is empty");
        }
        g_free(peer->secret_file);
        peer->secret_file = g_canonicalize_filename(value, NULL);
        return true;
    }
    if (strcmp(key, "max-queued") == 0) {
        return config_parse_size(key, value, 1u << 16, 1u << 30, &peer->max_queued, errp);
    }
    return config_fail(errp, key, "unknown key");
}

/* Whoever can write it can link; whoever can read it, too. */
static bool check_secret_file(int fd, const char *path, GError **errp)
{
    struct stat st;

    if (fstat(fd, &st) < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "secret-file: %s: %s", path,
                    g_strerror(errno));
        return false;
    }
    if (!S_ISREG(st.st_mode)) {
        g_set_error(errp, PVRDMA_ERROR, 0, "secret-file: %s is not a file", path);
        return false;
    }
    if (st.st_mode & (S_IRWXO | S_IWGRP)) {
        g_set_error(errp, PVRDMA_ERROR, 0,
                    "secret-file: %s has mode %03o: others must not read it, nor the "
                    "group write it",
                    path, (unsigned)st.st_mode & 0777);
        return false;
    }
    return true;
}

static ssize_t read_all(int fd, uint8_t *buf, size_t size)
{
    size_t len = 0;

    while (len < size) {
        ssize_t n = read(fd, buf + len, size - len);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    return (ssize_t)len;
}

static bool read_secret(struct peer_config *peer, GError **errp)
{
    uint8_t buf[CONFIG_MAX_SECRET + 1];
    int fd = open(peer->secret_file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t n;

    if (fd < 0) {
        g_set_error(errp, PVRDMA_ERROR, 0, "secret-file: %s: %s", peer->secret_file,
                    g_strerror(errno));
        return false;
    }
    if (!check_secret_file(fd, peer->secret_file, errp)) {
        close(fd);
        return false;
    }
    n = read_all(fd, buf, sizeof(buf));
    close(fd);
    /* An editor ends the last line; the other host's may not have. */
    while (n > 0 && n <= CONFIG_MAX_SECRET && strchr("\r\n", buf[n - 1]) && buf[n - 1]) {
        n--;
    }
    if (n < (ssize_t)CONFIG_MIN_SECRET || n > (ssize_t)CONFIG_MAX_SECRET) {
        explicit_bzero(buf, sizeof(buf));
        g_set_error(errp, PVRDMA_ERROR, 0, "secret-file: %s must have %u to %u bytes",
                    peer->secret_file, CONFIG_MIN_SECRET, CONFIG_MAX_SECRET);
        return false;
    }
    peer->secret = g_memdup2(buf, (size_t)n);
    peer->secret_len = (size_t)n;
    explicit_bzero(buf, sizeof(buf));
    return true;
}

bool config_peer_finish(const struct daemon_config *cfg, struct peer_config *peer,
                        GError **errp)
{
    if (!cfg->n_listen) {
        return config_fail(errp, "listen", "is missing in [daemon], and peers need it");
    }
    if (!config_valid_name(cfg->host_name)) {
        return config_fail(
            errp, "host-name",
            "is missing in [daemon], and the system's host name is not a valid one");
    }
    if (strcmp(peer->name, cfg->host_name) == 0) {
        return config_fail(errp, "name", "is this host's own host-name");
    }
    if (peer->address.ss_family == AF_UNSPEC) {
        return config_fail(errp, "address", "is missing");
    }
    if (!peer->secret_file) {
        return config_fail(errp, "secret-file", "is missing");
    }
    return read_secret(peer, errp);
}

void config_peer_free(struct peer_config *peer)
{
    if (!peer) {
        return;
    }
    if (peer->secret) {
        explicit_bzero(peer->secret, peer->secret_len);
    }
    g_free(peer->secret);
    g_free(peer->secret_file);
    g_free(peer->name);
    g_free(peer);
}

bool config_peer_same(const struct peer_config *a, const struct peer_config *b)
{
    return memcmp(&a->address, &b->address, sizeof(a->address)) == 0 &&
           a->secret_len == b->secret_len &&
           memcmp(a->secret, b->secret, a->secret_len) == 0 &&
           a->max_queued == b->max_queued;
}
