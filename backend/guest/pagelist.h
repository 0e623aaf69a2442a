/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Lists of guest pages: 2 MiB for each GiB.  Their memory, and their way into a state
 * stream and out of it.  pagelist.c.  Main thread; in a coroutine the main loop may turn
 * in all but pagelist_alloc().
 */
#ifndef PVRDMAD_GUEST_PAGELIST_H
#define PVRDMAD_GUEST_PAGELIST_H

#include <stddef.h>
#include <stdint.h>

#include "base/state_stream.h"

/* @size bytes with anything in them; NULL: there is no memory. */
void *pagelist_alloc(size_t size);

/* @p: NULL, or of pagelist_alloc(@size). */
void pagelist_free(void *p, size_t size);
/*
 * The pages of any memory of malloc(), before it is freed: some at a time, as free()
 * gives them all back in one go.  What was there is lost.
 */
void pagelist_give_back(void *p, size_t size);

/*
 * @n addresses of guest pages.  What is loaded are whole pages; what is there, if
 * anything, is to be asked when they are used: the memory may come later.
 */
void pagelist_save(const uint64_t *page, uint32_t n, struct state_out *s);
void pagelist_load(uint64_t *page, uint32_t n, struct state_in *s);

#endif /* PVRDMAD_GUEST_PAGELIST_H */
