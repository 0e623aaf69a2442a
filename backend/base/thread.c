/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Starting threads of the daemon. */
#include "thread.h"

void thread_main_signals(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR2);
}

int thread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                  void *arg)
{
    sigset_t ours, old;
    int err;

    /* It begins with its creator's mask. */
    thread_main_signals(&ours);
    pthread_sigmask(SIG_BLOCK, &ours, &old);
    err = pthread_create(thread, attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}
