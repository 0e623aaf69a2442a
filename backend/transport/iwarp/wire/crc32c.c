/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * CRC32C for MPA (RFC 5044 4.4), by ISA-L, which takes the processor's fastest way.
 *
 * ISA-L's crc32_iscsi() inverts neither what it is given nor what it returns, so the
 * value between two calls is the plain register: begin with CRC32C_INIT, hand each
 * result on, and let crc32c_put() invert and order the bytes at the end.
 *
 * ISA-L's code for AVX-512 leaves the upper halves of the vector registers in use, after
 * which all SSE code, and that is what the compiler makes of ours, is slow: 130 ns for a
 * message.  So they are cleared here.
 *
 * Whoever may change the bytes meanwhile (a guest, its own buffers) must not be able to
 * make a sum that does not fit what was sent: what is sent is copied, and then summed.
 *
 * Threads: any; there is no state.
 */
#include <isa-l/crc.h>

#include "transport/iwarp/wire/crc32c.h"

/* ISA-L takes an int. */
#define MOST 0x40000000u

static void clear_upper_halves(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx")) {
        __asm__ volatile("vzeroupper" ::: "memory");
    }
#endif
}

uint32_t crc32c_add(uint32_t crc, const void *data, size_t len)
{
    /* It only reads, its prototype notwithstanding. */
    unsigned char *p = (unsigned char *)(uintptr_t)data;

    while (len) {
        size_t n = MIN(len, MOST);

        crc = crc32_iscsi(p, (int)n, crc);
        p += n;
        len -= n;
    }
    clear_upper_halves();
    return crc;
}
