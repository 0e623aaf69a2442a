/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Listening UNIX sockets and their files.  Main thread only.
 */
#ifndef PVRDMAD_HANDOVER_SOCKFILE_H
#define PVRDMAD_HANDOVER_SOCKFILE_H

#include <sys/stat.h>
#include <sys/types.h>

#include "handover.h"

struct sockfile {
    char *path;
    dev_t dev; /* of the file, to remove no other's */
    ino_t ino;
};

/*
 * A non-blocking listening socket at @path, whose file has @mode from its first
 * moment on.  A socket left over by a dead process is replaced.  Or a negative errno:
 * -EADDRINUSE: somebody answers there; -EEXIST: something else is there.
 */
int sockfile_listen(struct sockfile *f, const char *path, mode_t mode, int backlog);

/* The listening socket @fd and its file stay for another daemon. */
void sockfile_hand_over(const struct sockfile *f, int fd, struct handover_out *h);
/* The next sockfile_listen() for the same path gets it, if the file is still there. */
void sockfile_take_over(struct handover_in *h, struct state_in *s);
/* Close those that nobody wanted, and remove their files. */
void sockfile_drop_rest(void);

/* Remove the file, if it is still the one that was made. */
void sockfile_remove(struct sockfile *f);

#endif /* PVRDMAD_HANDOVER_SOCKFILE_H */
