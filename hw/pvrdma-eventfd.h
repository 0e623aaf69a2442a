/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Eventfds that are shared with the daemon.
 */
#ifndef HW_RDMA_PVRDMA_EVENTFD_H
#define HW_RDMA_PVRDMA_EVENTFD_H

/**
 * pvrdma_eventfd_setup: get ready for signals; any number of times
 *
 * Returns: false with errno set if the kernel has no asynchronous I/O to give:
 * every signal will fail then.
 */
bool pvrdma_eventfd_setup(void);

/* Count one, and wake who waits for that; false: the reader was not told. */
bool pvrdma_eventfd_signal(int fd);

/* Take what was counted; false if there is nothing. */
bool pvrdma_eventfd_take(int fd);

#endif
