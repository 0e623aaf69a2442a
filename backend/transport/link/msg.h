/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The messages of a link between two daemons; see msg.c and docs/peer-protocol.md. */
#ifndef PVRDMAD_LINK_MSG_H
#define PVRDMAD_LINK_MSG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pvrdma/abi.h"

/* What either side sends first, in front of its HELLO. */
#define PEER_MAGIC     "pvrdma peer link"
#define PEER_MAGIC_LEN 16u

#define PEER_VERSION_MIN 1u
#define PEER_VERSION_MAX 1u

#define PEER_MSG_HEADER    8u     /* type, flags, a reserved byte, length of the rest */
#define PEER_MSG_MAX_BODY  16384u /* of any message */
#define PEER_MSG_MAX_EARLY 512u   /* of one before the sender has proved who it is */
#define PEER_NAME_MAX      63u    /* of a host or a network, without the NUL */
#define PEER_NONCE_LEN     32u
#define PEER_PROOF_LEN     32u
#define PEER_PLACE_LEN     16u   /* proof of where a VM is */
#define PEER_MAX_DATA      4096u /* of a datagram */
/* The longest message that peer_msg_put() makes. */
#define PEER_MSG_MAX (PEER_MSG_HEADER + 256u + PEER_MAX_DATA)

enum peer_msg_type {
    /* Of the link itself. */
    PEER_MSG_HELLO = 1,
    PEER_MSG_AUTH = 2,
    PEER_MSG_PING = 3,
    PEER_MSG_PONG = 4,
    PEER_MSG_CLOSE = 5,
    /* Of the directory. */
    PEER_MSG_ASK = 16,
    PEER_MSG_CLAIM = 17,
    PEER_MSG_UNCLAIM = 18,
    PEER_MSG_HOLD = 19,
    PEER_MSG_PROVED = 20,
    /* Of connections. */
    PEER_MSG_BIND = 32,
    PEER_MSG_BIND_ANSWER = 33,
    PEER_MSG_DATAGRAM = 48,
    /* Of channels, to those that have PEER_FEATURE_CHANNELS. */
    PEER_MSG_NIC = 64,
    PEER_MSG_CHANNEL = 65,
    PEER_MSG_CHANNEL_ANSWER = 66,
};

#define PEER_FEATURE_CHANNELS UINT64_C(1)

/* Why a link ends. */
enum peer_close {
    PEER_CLOSE_STOPPING = 1, /* the daemon ends, or has no such peer any more */
    PEER_CLOSE_VERSION = 2,  /* no protocol version or needed feature in common */
    PEER_CLOSE_UNKNOWN = 3,  /* no [peer] group for that name and address */
    PEER_CLOSE_NOT_ME = 4,   /* another name was called */
    PEER_CLOSE_PROOF = 5,    /* not the same secret */
    PEER_CLOSE_CROSSED = 6,  /* there is another link to that host */
    PEER_CLOSE_PROTOCOL = 7, /* malformed message */
};

struct peer_hello {
    uint16_t min_version, max_version;
    uint32_t timeout_ms;      /* of silence, after which the sender gives the link up */
    uint64_t features, needs; /* can do; insists on: nothing yet */
    uint8_t instance[16];     /* random, of the process */
    uint8_t nonce[PEER_NONCE_LEN];
    char from[PEER_NAME_MAX + 1], to[PEER_NAME_MAX + 1]; /* hosts' names */
};

/*
 * About an address.  ASK: the first two, the rest is zero.  UNCLAIM as an answer to ASK
 * has no owner: nobody here has it.  Nor needs HOLD one: whoever has it there.  PROVED is
 * CLAIM with the name of the host that claims: the sender, or one whose claim it passes
 * on.
 */
struct peer_claim {
    char network[PEER_NAME_MAX + 1];
    struct pvrdma_gid gid;
    uint64_t owner[2]; /* random, of the VM's attachment */
    uint64_t generation;
    uint32_t hold_ms; /* CLAIM, HOLD: its owner stands still, at most so long; 0: no */
    char host[PEER_NAME_MAX + 1];  /* PROVED: who claims ... */
    uint8_t proof[PEER_PLACE_LEN]; /* ... and what shows the VM's other places that */
};

/* "QP sqpn of sgid wants to be connected with QP dqpn of dgid." */
struct peer_bind {
    char network[PEER_NAME_MAX + 1];
    struct pvrdma_gid sgid, dgid;
    uint32_t sqpn, dqpn;
    uint32_t psn; /* the first that the asking QP sends */
    uint32_t flags;
    uint64_t incarnation; /* of the asking QP's connection */
    uint64_t token[2];    /* random, one-time: the MPA request must show it */
};

enum peer_bind_result {
    PEER_BIND_OK,
    PEER_BIND_NOT_YET, /* the QP is not there or not ready: ask again */
    PEER_BIND_BUSY,    /* I asked you at the same time: wait */
    PEER_BIND_REFUSED,
    PEER_BIND_RESULTS,
};

struct peer_bind_answer {
    uint64_t token[2];
    uint64_t incarnation;
    uint8_t result; /* enum peer_bind_result */
};

enum { PEER_DATAGRAM_IMM = 1, PEER_DATAGRAM_SOLICITED = 2 };

struct peer_datagram {
    char network[PEER_NAME_MAX + 1];
    struct pvrdma_gid sgid, dgid;
    uint32_t sqpn, dqpn, qkey;
    uint32_t flow_label; /* 20 bits */
    uint32_t imm;        /* as the guest wrote it */
    uint8_t traffic_class, hop_limit;
    uint8_t flags;
    /* NULL for peer_msg_put(): the last @len bytes of the message are left to the caller.
     * Of a parsed one it points into the input. */
    const uint8_t *data;
    uint32_t len;
};

/* One of the sender's RDMA NICs that are up.  The last of them ends the list, which takes
 * the place of what was said before. */
#define PEER_MAX_NICS 16u
struct peer_nic {
    uint8_t n, i;              /* of so many, from 0; n is 0: there are none */
    struct pvrdma_gid address; /* of IP */
    char fabric[PEER_NAME_MAX + 1];
};

enum { PEER_CHANNEL_WANT = 1 };

/*
 * "I will connect a channel between the VMs from and to": the sender's and the
 * receiver's.  With flag WANT: "please do", and the token is the answer's only.
 */
struct peer_channel {
    uint64_t token[2]; /* random, one-time: the CM's request must show it */
    char network[PEER_NAME_MAX + 1];
    uint64_t from[2], to[2]; /* owners */
    struct pvrdma_gid from_nic, to_nic;
    uint16_t receives; /* that the sender will have posted ... */
    uint32_t size;     /* ... of that size */
    uint8_t flags;
};

enum peer_channel_result {
    PEER_CHANNEL_OK,
    PEER_CHANNEL_NOT_NOW, /* it may be asked for again, later */
    PEER_CHANNEL_REFUSED, /* not with that NIC, or not at all */
    PEER_CHANNEL_RESULTS,
};

struct peer_channel_answer {
    uint64_t token[2];
    uint8_t result;    /* enum peer_channel_result */
    uint16_t port;     /* OK: of the connection manager; likewise what follows */
    uint16_t receives; /* that the receiver has posted */
    uint32_t size;
};

struct peer_msg {
    uint16_t type; /* enum peer_msg_type */
    union {
        struct peer_hello hello;
        uint8_t proof[PEER_PROOF_LEN]; /* AUTH */
        uint64_t stamp;                /* PING, PONG: the asker's, sent back */
        uint16_t reason;               /* CLOSE: enum peer_close, or one of later days */
        struct peer_claim claim;       /* ASK, CLAIM, UNCLAIM, HOLD, PROVED */
        struct peer_bind bind;
        struct peer_bind_answer answer;
        struct peer_datagram datagram;
        struct peer_nic nic;
        struct peer_channel channel;
        struct peer_channel_answer channel_answer;
    };
};

enum peer_msg_verdict {
    PEER_MSG_OK,
    PEER_MSG_MORE, /* it is not all here yet */
    PEER_MSG_SKIP, /* of a type that is not known, and need not be */
    PEER_MSG_BAD,
};

/* The length of the message, which is at most PEER_MSG_MAX; @out has room for that. */
size_t peer_msg_put(const struct peer_msg *m, uint8_t *out);

/*
 * Parse the message that @in begins with.  @size: its length, as far as it is known yet;
 * @max_body: a longer one is bad.
 */
enum peer_msg_verdict peer_msg_get(const uint8_t *in, size_t len, size_t max_body,
                                   struct peer_msg *m, size_t *size);

/* The version to use, 0: none. */
unsigned peer_msg_version(const struct peer_hello *a, const struct peer_hello *b);

/* For people; "?" for unknown ones. */
const char *peer_close_text(unsigned reason);

#endif /* PVRDMAD_LINK_MSG_H */
