/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The transports there are; datapath/transport.h says what one is. */
#ifndef PVRDMAD_TRANSPORTS_H
#define PVRDMAD_TRANSPORTS_H

#include "datapath/transport.h"

/* Both ends on this host: a memory copy. */
extern const struct transport_ops transport_copy;

/* What queue pairs begin with: `copy`, unless a test puts another here at start. */
extern const struct transport_ops *transport_local;

#endif /* PVRDMAD_TRANSPORTS_H */
