/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A network that resets connections, for tests: linked with the daemon's own main(), a
 * thread of its own ends a random TCP connection of this process every now and then.  One
 * time in two it is shut down, so that what was sent still arrives; else it is
 * reset, and what either end has queued is lost.
 *
 * PVRDMAD_RESET_US=N: so many microseconds between two, on average (default 20000; 0:
 * never), of the daemon's own processor time, as well: on a machine with other work a
 * connection is to get as far as on one without.  At the end the daemon's log has how
 * many there were.
 *
 * Listening sockets and those that are not connected yet are left alone.
 */
#include <dirent.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/log.h"
#include "base/thread.h"

static pthread_t thread;
static unsigned every_us = 20000;
static _Atomic bool stopping;
static _Atomic unsigned long done;
static unsigned int seed;

static bool is_connection(int fd)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    int protocol = 0;
    socklen_t plen = sizeof(protocol);

    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &plen) == 0 &&
           protocol == IPPROTO_TCP && getpeername(fd, (struct sockaddr *)&a, &len) == 0;
}

/*
 * A random one of the process's connections, by a descriptor of its own: the daemon may
 * close its own at any time, and have the number for something else.  Or -1.  By the
 * kernel's own calls, as below: the thread sanitizer takes a descriptor for memory.
 */
static int choose(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int chosen = -1, n = 0;
    struct dirent *e;

    while (dir && (e = readdir(dir))) {
        int fd = e->d_name[0] == '.' ? -1 : (int)syscall(SYS_dup, atoi(e->d_name));

        if (fd >= 0 && is_connection(fd) && rand_r(&seed) % ++n == 0) {
            int other = chosen;

            chosen = fd;
            fd = other;
        }
        if (fd >= 0) {
            syscall(SYS_close, fd);
        }
    }
    if (dir) {
        closedir(dir);
    }
    return chosen;
}

static void end(int fd)
{
    static const struct sockaddr none = {.sa_family = AF_UNSPEC};

    if (rand_r(&seed) % 2) {
        syscall(SYS_shutdown, fd, SHUT_RDWR);
    } else {
        syscall(SYS_connect, fd, &none, sizeof(none));
    }
    syscall(SYS_close, fd);
    atomic_fetch_add(&done, 1);
}

static uint64_t used_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void *run(void *unused)
{
    while (!atomic_load(&stopping)) {
        unsigned us = every_us / 2 + (unsigned)rand_r(&seed) % every_us;
        uint64_t until = used_us() + us;
        int fd;

        do {
            usleep(us);
        } while (used_us() < until && !atomic_load(&stopping));
        fd = choose();
        if (fd >= 0) {
            end(fd);
        }
    }
    return NULL;
}

__attribute__((constructor)) static void start(void)
{
    const char *us = getenv("PVRDMAD_RESET_US");

    every_us = us ? (unsigned)strtoul(us, NULL, 10) : every_us;
    seed = (unsigned)getpid();
    if (every_us && thread_create(&thread, NULL, run, NULL) != 0) {
        abort();
    }
}

__attribute__((destructor)) static void stop(void)
{
    if (every_us) {
        atomic_store(&stopping, true);
        pthread_join(thread, NULL);
        fprintf(stderr, "<6>connections that were reset: %lu\n", atomic_load(&done));
    }
}
