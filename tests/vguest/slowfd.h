/* SPDX-License-Identifier: GPL-2.0-or-later */
/* For tests of virtual guests and of the frontend: what nobody should wait for. */
#ifndef VGUEST_SLOWFD_H
#define VGUEST_SLOWFD_H

/* A TCP socket whose close() takes until @peer has read what was sent, for hours. */
int slow_to_close(int *peer);

#endif /* VGUEST_SLOWFD_H */
