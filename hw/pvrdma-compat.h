/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What differs between the QEMU versions that the pvrdma device builds with:
 * headers that moved after 10.0, and constants that became const.  And what
 * build-qemu.sh adds to QEMU's own files.
 */
#ifndef HW_RDMA_PVRDMA_COMPAT_H
#define HW_RDMA_PVRDMA_COMPAT_H

#if __has_include("system/address-spaces.h")
#include "system/address-spaces.h"
#include "system/ramblock.h"
#else
#include "exec/address-spaces.h"
#include "exec/ramblock.h"
#endif

#if __has_include("hw/core/boards.h")
#include "hw/core/boards.h"
#else
#include "hw/boards.h"
#endif

#if __has_include("hw/core/qdev-properties.h")
#include "hw/core/qdev-properties.h"
#else
#include "hw/qdev-properties.h"
#endif

/* In system/cpus.c: counts what wanted the VM stopped, also if it was. */
extern unsigned int vm_stop_calls;

/* What class_init gets. */
#if QEMU_VERSION_MAJOR > 10 || QEMU_VERSION_MINOR > 0
typedef const void PVRDMAClassData;
#else
typedef void PVRDMAClassData;
#endif

#endif
