/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * linkcheck: an interface goes down and up while commands run, some of which the device
 * refuses.
 *
 *   linkcheck -d DEVICE -n ROUNDS INTERFACE
 *
 * The device's PDs are used up first; from then on one more is refused, and one that is
 * given back can be had again.  So it is until INTERFACE, which is up, was down ROUNDS
 * times.  Prints "N refused, N made, N errors"; exits 0 only without errors.
 *
 * Threads: the main one makes and ends PDs, the other switches the interface.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "device.h"
#include "die.h"
#include "options.h"

#define MAX_PDS  65536u
#define PAUSE_US 3000 /* what is told to the device is told by a work item */

static struct options o = {.number = 50};
static const char *interface;
static atomic_bool ended;

static void *switcher(void *unused)
{
    struct ifreq ifr = {0};
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    (void)unused;
    DIE_IF(fd < 0, "socket");
    strncpy(ifr.ifr_name, interface, sizeof(ifr.ifr_name) - 1);
    DIE_IF(ioctl(fd, SIOCGIFFLAGS, &ifr), interface);
    for (unsigned long long i = 0; i < 2 * o.number; i++) {
        ifr.ifr_flags ^= IFF_UP;
        DIE_IF(ioctl(fd, SIOCSIFFLAGS, &ifr), interface);
        usleep(PAUSE_US);
    }
    atomic_store(&ended, true);
    close(fd);
    return NULL;
}

int main(int argc, char **argv)
{
    static struct ibv_pd *pd[MAX_PDS];
    unsigned n = 0, refused = 0, made = 0, errors = 0;
    struct ibv_context *ctx;
    pthread_t thread;
    int full; /* the errno of one too many */

    interface = argc > 1 ? argv[--argc] : "";
    if (!options_read(&o, argc, argv, 'n', 0)) {
        fprintf(stderr, "usage: linkcheck -d DEVICE -n ROUNDS INTERFACE\n");
        return 2;
    }
    ctx = device_open(o.device);
    if (!ctx) {
        return 1;
    }
    while (n < MAX_PDS && (pd[n] = ibv_alloc_pd(ctx))) {
        n++;
    }
    full = errno;
    DIE_IF(n == 0 || n == MAX_PDS, "PDs");
    DIE_IF(pthread_create(&thread, NULL, switcher, NULL), "thread");
    while (!atomic_load(&ended) && !errors) {
        errors += ibv_alloc_pd(ctx) || errno != full;
        refused++;
        if (refused % 4 == 0) {
            errors += ibv_dealloc_pd(pd[n - 1]) != 0;
            pd[n - 1] = ibv_alloc_pd(ctx);
            errors += !pd[n - 1];
            made++;
        }
    }
    pthread_join(thread, NULL);
    printf("%u refused, %u made, %u errors\n", refused, made, errors);
    return errors ? 1 : 0;
}
