/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Starting threads of the daemon.  Any thread.
 */
#ifndef PVRDMAD_THREAD_H
#define PVRDMAD_THREAD_H

#include <pthread.h>

/*
 * pthread_create(3) of a thread that leaves the signals which end, reload or replace the
 * daemon to the main thread.  Elsewhere one would only end a sleep, and the thread
 * sanitizer would keep it to itself until that thread has something to do.  0 or an
 * errno.
 */
int thread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                  void *arg);

#endif /* PVRDMAD_THREAD_H */
