/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What hw/pvrdma-doorbell.c and -eventfd.c need of QEMU's header of this name. */
#ifndef QEMU_SHIM_OSDEP_H
#define QEMU_SHIM_OSDEP_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#endif
