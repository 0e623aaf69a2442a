/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Writing JSON into a string as it is made.  A tree of nodes, and its walk in one
 * piece at the end, took ten times as long for 1,024 VMs, on the thread that serves
 * all of them.
 *
 * The caller keeps the structure right: members in objects, values in arrays.
 */
#ifndef PVRDMAD_JSON_H
#define PVRDMAD_JSON_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

/* @name: of the member; NULL: a value in an array. */
void json_begin(GString *s, const char *name, char bracket); /* '{' or '[' */
void json_end(GString *s, char bracket);                     /* '}' or ']' */
void json_int(GString *s, const char *name, uint64_t value);
void json_bool(GString *s, const char *name, bool value);
void json_str(GString *s, const char *name, const char *value);

#endif /* PVRDMAD_JSON_H */
