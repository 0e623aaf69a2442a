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

/* Changes of KVM's interrupt routes are any accelerator's from 11.1 on. */
#include "system/kvm.h"
#if QEMU_VERSION_MAJOR > 11 || (QEMU_VERSION_MAJOR == 11 && \
                                QEMU_VERSION_MINOR >= 1)
#include "system/accel-irq.h"
typedef AccelRouteChange PVRDMARouteChange;
#define pvrdma_begin_route_changes() accel_irqchip_begin_route_changes()
#define pvrdma_commit_route_changes(c) accel_irqchip_commit_route_changes(c)
#else
typedef KVMRouteChange PVRDMARouteChange;
#define pvrdma_begin_route_changes() kvm_irqchip_begin_route_changes(kvm_state)
#define pvrdma_commit_route_changes(c) kvm_irqchip_commit_route_changes(c)
#endif

/*
 * From 11.1 on another handler is asked what is left to be sent, which there is
 * not here yet: a migration is not held back.
 */
#define PVRDMA_TELLS_PENDING (QEMU_VERSION_MAJOR < 11 || \
                              (QEMU_VERSION_MAJOR == 11 && \
                               QEMU_VERSION_MINOR < 1))

/* In system/cpus.c: counts what wanted the VM stopped, also if it was. */
extern unsigned int vm_stop_calls;

/* What class_init gets. */
#if QEMU_VERSION_MAJOR > 10 || QEMU_VERSION_MINOR > 0
typedef const void PVRDMAClassData;
#else
typedef void PVRDMAClassData;
#endif

#endif
