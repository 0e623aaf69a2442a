/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The transports there are; datapath/transport.h says what one is. */
#ifndef PVRDMAD_TRANSPORTS_H
#define PVRDMAD_TRANSPORTS_H

#include "datapath/transport.h"

/* Both ends on this host: a memory copy. */
extern const struct transport_ops transport_copy;
/* iWARP over TCP to other hosts; what is on this one goes by `copy`, if not forced. */
extern const struct transport_ops transport_tcp;

/* What connected queue pairs have: `copy`, unless another is put here at start. */
extern const struct transport_ops *transport_local;

#endif /* PVRDMAD_TRANSPORTS_H */
