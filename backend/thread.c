/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Starting threads of the daemon. */
#include "thread.h"

#include <signal.h>

int thread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *),
                  void *arg)
{
    sigset_t ours, old;
    int err;

    /* It begins with its creator's mask. */
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGHUP);
    sigaddset(&ours, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &ours, &old);
    err = pthread_create(thread, attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return err;
}
