/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * VERSION: agreeing with the client on protocol and capabilities.
 *
 * The client's JSON is parsed from a bounded message after checks that do not
 * depend on the parser: one terminating NUL, UTF-8, limited nesting.  Of its
 * members one matters to us (what a client can take per data message bounds its
 * own requests).  The answer is one of few constants, the longest that is not
 * longer than the client's text: stock QEMU takes a reply only up to the size of
 * its request.  Shorter ones leave out what equals the protocol's defaults or
 * does no harm if it is not known.
 */
#include <json-glib/json-glib.h>
#include <string.h>

#include "frontend/conn.h"

#define MAX_DEPTH 8

/* Default of the specification. */
#define DEFAULT_MSG_FDS 1

#define FULL_ANSWER                                                         \
    "{\"capabilities\":{\"max_msg_fds\":16,\"max_data_xfer_size\":1048576," \
    "\"max_dma_maps\":4096,\"pgsizes\":4096,\"write_multiple\":false}}"

static const char *const answers[] = {
    FULL_ANSWER,
    "{\"capabilities\":{\"max_msg_fds\":16,\"max_dma_maps\":4096}}",
    "{\"capabilities\":{\"max_msg_fds\":16}}",
    "{}",
};

/* Nesting of the text, strings skipped; the parser recurses that deep. */
static bool depth_ok(const char *text)
{
    bool in_string = false;
    int depth = 0;

    for (; *text; text++) {
        if (in_string) {
            if (*text == '\\' && text[1]) {
                text++;
            } else if (*text == '"') {
                in_string = false;
            }
        } else if (*text == '"') {
            in_string = true;
        } else if (*text == '{' || *text == '[') {
            if (++depth > MAX_DEPTH) {
                return false;
            }
        } else if (*text == '}' || *text == ']') {
            depth--;
        }
    }
    return true;
}

/* An integer member in [0, max]; absent: *value stays.  False: not that. */
static bool get_number(JsonObject *o, const char *name, int64_t max, int64_t *value)
{
    JsonNode *node = json_object_get_member(o, name);
    int64_t v;

    if (!node) {
        return true;
    }
    if (!JSON_NODE_HOLDS_VALUE(node) || json_node_get_value_type(node) != G_TYPE_INT64) {
        return false;
    }
    v = json_node_get_int(node);
    if (v < 0 || v > max) {
        return false;
    }
    *value = v;
    return true;
}

static const char *read_caps(JsonNode *root, struct vfu_client *client)
{
    int64_t fds = client->max_msg_fds;
    int64_t unused = 0;
    JsonNode *node;
    JsonObject *caps;

    if (!root || !JSON_NODE_HOLDS_OBJECT(root)) {
        return "VERSION: the JSON text is not an object";
    }
    node = json_object_get_member(json_node_get_object(root), "capabilities");
    if (!node) {
        return NULL;
    }
    if (!JSON_NODE_HOLDS_OBJECT(node)) {
        return "VERSION: capabilities is not an object";
    }
    caps = json_node_get_object(node);
    if (!get_number(caps, "max_msg_fds", INT32_MAX, &fds) ||
        !get_number(caps, "max_data_xfer_size", INT64_MAX, &unused) ||
        !get_number(caps, "max_dma_maps", INT64_MAX, &unused) ||
        !get_number(caps, "pgsizes", INT64_MAX, &unused)) {
        return "VERSION: a capability is not a number in range";
    }
    client->max_msg_fds = (uint32_t)fds;
    return NULL;
}

/* @text: @len bytes with the NUL. */
static const char *read_json(const char *text, uint32_t len, struct vfu_client *client)
{
    JsonParser *parser;
    const char *why;

    if (text[len - 1] != '\0' || memchr(text, '\0', len) != text + len - 1) {
        return "VERSION: the JSON text does not end in one NUL";
    }
    if (!g_utf8_validate(text, len - 1, NULL) || !depth_ok(text)) {
        return "VERSION: the JSON text is malformed";
    }
    parser = json_parser_new();
    if (json_parser_load_from_data(parser, text, len - 1, NULL)) {
        why = read_caps(json_parser_get_root(parser), client);
    } else {
        why = "VERSION: the JSON text is malformed";
    }
    g_object_unref(parser);
    return why;
}

const char *vfu_version(struct vfu_conn *c, const struct vfu_msg *m, struct vfu_reply *r)
{
    struct vfio_user_version v;
    const char *answer = NULL, *why;
    uint32_t room, len = 0;
    uint8_t *out;

    if (m->len < sizeof(v) || m->nfds != 0) {
        return "VERSION: wrong size";
    }
    memcpy(&v, m->body, sizeof(v));
    if (v.major != VFIO_USER_MAJOR) {
        return "VERSION: unknown protocol version";
    }
    room = m->len - sizeof(v);
    c->client.max_msg_fds = DEFAULT_MSG_FDS;
    if (room > 0) {
        why = read_json((const char *)m->body + sizeof(v), room, &c->client);
        if (why) {
            return why;
        }
    }
    for (unsigned i = 0; i < G_N_ELEMENTS(answers) && !answer; i++) {
        len = (uint32_t)strlen(answers[i]) + 1;
        if (len <= room) {
            answer = answers[i];
        }
    }
    out = vfu_reply_alloc(r, sizeof(v) + (answer ? len : 0));
    if (!out) {
        return "out of memory";
    }
    v.minor = VFIO_USER_MINOR;
    memcpy(out, &v, sizeof(v));
    if (answer) {
        memcpy(out + sizeof(v), answer, len);
    }
    return NULL;
}
