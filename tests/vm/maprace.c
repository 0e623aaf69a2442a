/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * maprace: one processor switches a PCI function's memory decoding off and on, as
 * drivers do when they come and go, while another reads registers of a second one.
 *
 *   maprace CONFIG RESOURCE SECONDS
 *
 * CONFIG: the configuration space of the first (sysfs); it has no driver.  RESOURCE:
 * a BAR of the second, whose first word must not change.  Prints "N switches, N
 * reads, N errors"; exits 0 only without errors.
 *
 * Threads: the main one switches on processor 0, a reader runs on processor 1.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "die.h"

#define PCI_COMMAND        4
#define PCI_COMMAND_MEMORY 2

static volatile uint32_t *words;
static atomic_bool done;
static unsigned long reads, errors;

static void run_on(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    DIE_IF(sched_setaffinity(0, sizeof(set), &set), "sched_setaffinity");
}

static void *reader(void *arg)
{
    uint32_t first;

    (void)arg;
    run_on(1);
    first = words[0];
    while (!atomic_load(&done)) {
        errors += words[0] != first;
        reads++;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned long switches = 0;
    uint16_t command, off;
    pthread_t thread;
    int config, bar;
    time_t end;

    if (argc != 4) {
        fprintf(stderr, "usage: maprace CONFIG RESOURCE SECONDS\n");
        return 2;
    }
    config = open(argv[1], O_RDWR);
    bar = open(argv[2], O_RDWR);
    DIE_IF(config < 0 || bar < 0, "open");
    words = mmap(NULL, 4096, PROT_READ, MAP_SHARED, bar, 0);
    DIE_IF(words == MAP_FAILED, "mmap");
    DIE_IF(pread(config, &command, 2, PCI_COMMAND) != 2, "pread");
    command |= PCI_COMMAND_MEMORY;
    off = (uint16_t)(command & ~PCI_COMMAND_MEMORY);
    end = time(NULL) + atoi(argv[3]);
    run_on(0);
    DIE_IF(pthread_create(&thread, NULL, reader, NULL), "pthread_create");
    while (time(NULL) < end) {
        DIE_IF(pwrite(config, &off, 2, PCI_COMMAND) != 2 ||
                   pwrite(config, &command, 2, PCI_COMMAND) != 2,
               "pwrite");
        switches++;
    }
    atomic_store(&done, true);
    pthread_join(thread, NULL);
    printf("%lu switches, %lu reads, %lu errors\n", switches, reads, errors);
    return errors ? 1 : 0;
}
