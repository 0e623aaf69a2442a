/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for lists of guest pages: 2 MiB for each GiB.  pagelist.c.  Main thread; in a
 * coroutine the main loop may turn in pagelist_free().
 */
#ifndef PVRDMAD_GUEST_PAGELIST_H
#define PVRDMAD_GUEST_PAGELIST_H

#include <stddef.h>

/* @size bytes with anything in them; NULL: there is no memory. */
void *pagelist_alloc(size_t size);

/* @p: NULL, or of pagelist_alloc(@size). */
void pagelist_free(void *p, size_t size);

#endif /* PVRDMAD_GUEST_PAGELIST_H */
