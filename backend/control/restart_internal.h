/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What restart.c writes and adopt.c reads. */
#ifndef PVRDMAD_RESTART_INTERNAL_H
#define PVRDMAD_RESTART_INTERNAL_H

#include "state.h"

/* Where the number of the memfd is, for the new program. */
#define RESTART_ENV "PVRDMAD_HANDOVER"

/* When it began, and who waits for the answer; once, first. */
#define RESTART_HEAD STATE_TAG('H', 'E', 'A', 'D')
/* A listening socket. */
#define RESTART_SOCKET STATE_TAG('S', 'O', 'C', 'K')
/* A VM, with or without a VMM. */
#define RESTART_VM STATE_TAG('V', 'M', ' ', ' ')

/* Of all three. */
#define RESTART_SECTION_VERSION 1u

#endif /* PVRDMAD_RESTART_INTERNAL_H */
