/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Writing JSON; see json.h.  No state but the string. */
#include "control/json.h"

#include <string.h>

static void quoted(GString *s, const char *text)
{
    g_autofree char *valid = NULL;

    /* Paths and lines of the key file may be anything. */
    if (!g_utf8_validate(text, -1, NULL)) {
        text = valid = g_utf8_make_valid(text, -1);
    }
    g_string_append_c(s, '"');
    for (; *text; text++) {
        unsigned char c = *text;

        if (c == '"' || c == '\\') {
            g_string_append_c(s, '\\');
            g_string_append_c(s, c);
        } else if (c < 0x20 || c == 0x7f) {
            g_string_append_printf(s, "\\u%04x", c);
        } else {
            g_string_append_c(s, c);
        }
    }
    g_string_append_c(s, '"');
}

static void head(GString *s, const char *name)
{
    if (s->len && !strchr("{[", s->str[s->len - 1])) {
        g_string_append_c(s, ',');
    }
    if (name) {
        quoted(s, name);
        g_string_append_c(s, ':');
    }
}

void json_begin(GString *s, const char *name, char bracket)
{
    head(s, name);
    g_string_append_c(s, bracket);
}

void json_end(GString *s, char bracket)
{
    g_string_append_c(s, bracket);
}

void json_int(GString *s, const char *name, uint64_t value)
{
    char text[24];

    head(s, name);
    /* As the signed number that readers of JSON take. */
    g_snprintf(text, sizeof(text), "%" G_GINT64_FORMAT, (gint64)value);
    g_string_append(s, text);
}

void json_bool(GString *s, const char *name, bool value)
{
    head(s, name);
    g_string_append(s, value ? "true" : "false");
}

void json_str(GString *s, const char *name, const char *value)
{
    head(s, name);
    quoted(s, value);
}
