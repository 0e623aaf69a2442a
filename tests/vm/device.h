/* SPDX-License-Identifier: GPL-2.0-or-later */
/* A verbs device by its name. */
#ifndef TESTS_VM_DEVICE_H
#define TESTS_VM_DEVICE_H

#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What the kernel has, beside what the library has said of it. */
static inline void device_print_folder(const char *path)
{
    DIR *dir = opendir(path);
    struct dirent *entry;

    fprintf(stderr, "%s:", path);
    if (!dir) {
        fprintf(stderr, " %s\n", strerror(errno));
        return;
    }
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] != '.') {
            fprintf(stderr, " %s", entry->d_name);
        }
    }
    fprintf(stderr, "\n");
    closedir(dir);
}

/*
 * @name: NULL for the first.  NULL: there is none, or it cannot be opened: which of both,
 * and why, has been printed, and errno is set.
 */
static inline struct ibv_context *device_open(const char *name)
{
    struct ibv_device **list;
    struct ibv_context *ctx = NULL;
    bool found = false;
    int count = 0, error;

    errno = 0;
    list = ibv_get_device_list(&count);
    error = errno;
    for (int i = 0; i < count && !found; i++) {
        found = !name || !strcmp(ibv_get_device_name(list[i]), name);
        if (found) {
            errno = 0;
            ctx = ibv_open_device(list[i]);
            error = errno;
        }
    }
    if (!ctx) {
        fprintf(stderr, "%s: %s, errno %d (%s); devices:", name ? name : "first device",
                found  ? "ibv_open_device() failed"
                : list ? "not in the list"
                       : "no list",
                error, strerror(error));
        for (int i = 0; i < count; i++) {
            fprintf(stderr, " %s", ibv_get_device_name(list[i]));
        }
        fprintf(stderr, "\n");
        device_print_folder("/sys/class/infiniband");
        device_print_folder("/sys/class/infiniband_verbs");
        device_print_folder("/dev/infiniband");
    }
    if (list) {
        ibv_free_device_list(list);
    }
    if (!ctx) {
        errno = found && error ? error : ENODEV;
    }
    return ctx;
}

#endif /* TESTS_VM_DEVICE_H */
