/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Starting threads of the daemon.  Any thread.
 */
#ifndef PVRDMAD_BASE_THREAD_H
#define PVRDMAD_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Those that end, reload or replace the daemon: the main thread alone takes them. */
void thread_main_signals(sigset_t *set);

/*
 * pthread_create(3) of a thread that leaves these to the main thread.  Elsewhere one
 * would only end a sleep, and the thread sanitizer would keep it to itself until that
 * thread has something to do.  0 or an errno.
 */
int thread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                  void *arg);

#endif /* PVRDMAD_BASE_THREAD_H */
