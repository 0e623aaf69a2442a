/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Fuzzer of MPA's start: what a peer sends before anything is known of it.
 *
 * An input is what this side wishes (six bytes: bits, RTR kinds, depths), whether it
 * awaits a Request or a Reply, and the peer's bytes.  Each beginning of these must be
 * judged as the whole is; what parses must come out the same again after mpa_put(); what
 * is concluded from it must keep to both sides' wishes, and our answer to a Request
 * must be good for an initiator.
 *
 * The corpus has to get each conclusion there is (fuzz_reached_all).
 */
#include "fuzz.h"
#include "transport/iwarp/wire/mpa.h"

#define WISHES 6u

/* What has come about. */
static struct {
    bool bad, incomplete;
    /* By enum mpa_rtr. */
    bool accepted[MPA_RTR_READ + 1], concluded[MPA_RTR_READ + 1];
    bool plain_request, plain_reply, markers, data;
    bool rejected, other_kind, small_ird, no_rtr;
} reached;

static struct mpa_config wishes(const uint8_t *in)
{
    struct mpa_config c = {
        .enhanced = in[0] & 1,
        .crc = in[0] & 2,
        .p2p = in[0] & 4,
        .rtr = in[1] & 7,
        .ird = in[2],
        .max_ird = in[2] + in[3],
        .ord = in[4],
    };

    if (in[0] & 8) {
        c.ird = c.max_ird = MPA_DEPTH_BY_ULP;
    }
    if (in[0] & 16) {
        c.ord = MPA_DEPTH_BY_ULP;
    }
    return c;
}

static bool one_rtr(enum mpa_rtr rtr)
{
    return rtr == MPA_RTR_SEND || rtr == MPA_RTR_WRITE || rtr == MPA_RTR_READ;
}

/* mpa_get() of each beginning of @in; the last one's verdict. */
static enum iwarp_error get(enum mpa_kind kind, const uint8_t *in, size_t len,
                            struct mpa_frame *f, bool *complete)
{
    enum iwarp_error e = IWARP_OK, before = IWARP_OK;
    size_t size = 0, told = 0;

    *complete = false;
    for (size_t n = 0; n <= len; n++) {
        /* With nothing behind it, for the sanitizer. */
        uint8_t *part = g_memdup2(in, n);

        e = mpa_get(kind, part, n, f, &size);
        g_free(part);
        CHECK(!before || e == before);
        CHECK(e == IWARP_OK || e == MPA_BAD_STARTUP);
        if (!e) {
            CHECK(size >= told && size <= MPA_MAX_STARTUP);
            CHECK(!*complete || size == told);
            *complete = n >= size;
            told = size;
        }
        before = e;
    }
    /* For @f's data. */
    return mpa_get(kind, in, len, f, &size);
}

static void same(const struct mpa_frame *a, const struct mpa_frame *b)
{
    CHECK(a->kind == b->kind && a->revision == b->revision && a->markers == b->markers &&
          a->crc == b->crc && a->reject == b->reject && a->enhanced == b->enhanced &&
          a->p2p == b->p2p && a->rtr == b->rtr && a->ird == b->ird && a->ord == b->ord &&
          a->data_len == b->data_len);
    CHECK(!a->data_len || memcmp(a->data, b->data, a->data_len) == 0);
}

static void respond(const struct mpa_config *own, const struct mpa_frame *req)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_frame reply, back;
    struct mpa_agreed a;
    size_t size;

    mpa_accept(own, req, &reply, &a);
    CHECK(a.crc == (own->crc || req->crc) && a.send_markers == req->markers);
    CHECK(a.enhanced == req->enhanced && a.p2p == (req->enhanced && req->p2p));
    CHECK(!a.rtr || (one_rtr(a.rtr) && (a.rtr & own->rtr & req->rtr)));
    reached.accepted[a.rtr] = reached.accepted[a.rtr] || a.p2p;
    reached.plain_request = reached.plain_request || !a.enhanced;
    reached.markers = reached.markers || a.send_markers;
    if (req->enhanced && req->ord != MPA_DEPTH_BY_ULP) {
        CHECK(a.ird <= own->max_ird && a.ird <= req->ord);
    }
    if (req->enhanced && req->ird != MPA_DEPTH_BY_ULP) {
        CHECK(a.ord <= own->ord && a.ord <= req->ird);
    }
    CHECK(mpa_get(MPA_REPLY, bytes, mpa_put(&reply, bytes), &back, &size) == IWARP_OK);
    same(&reply, &back);
    CHECK(!back.reject && !back.markers);
    CHECK(reply.enhanced == req->enhanced);
}

static void conclude(const struct mpa_config *own, const struct mpa_frame *reply)
{
    struct mpa_agreed a;
    enum iwarp_error e = mpa_conclude(own, reply, &a);

    CHECK(a.rejected == reply->reject);
    reached.rejected = reached.rejected || a.rejected;
    reached.other_kind = reached.other_kind || e == MPA_BAD_STARTUP;
    reached.small_ird = reached.small_ird || e == MPA_SMALL_IRD;
    reached.no_rtr = reached.no_rtr || e == MPA_NO_RTR;
    if (e) {
        CHECK(e == MPA_BAD_STARTUP || e == MPA_SMALL_IRD || e == MPA_NO_RTR);
        return;
    }
    if (reply->reject) {
        return;
    }
    reached.concluded[a.rtr] = true;
    reached.plain_reply = reached.plain_reply || !a.enhanced;
    CHECK(a.crc == (own->crc || reply->crc) && a.send_markers == reply->markers);
    CHECK(a.enhanced == own->enhanced && a.enhanced == reply->enhanced);
    CHECK(a.p2p == (own->enhanced && own->p2p && reply->p2p));
    CHECK(a.p2p ? one_rtr(a.rtr) && (a.rtr & own->rtr & reply->rtr) : !a.rtr);
    CHECK(a.ird <= MAX(own->max_ird, own->ird) && a.ord <= own->ord);
    if (a.enhanced && own->ird != MPA_DEPTH_BY_ULP && reply->ord != MPA_DEPTH_BY_ULP) {
        CHECK(a.ird >= reply->ord);
    }
}

bool fuzz_reached_all(void)
{
    const struct fuzz_reached all[] = {
        {"a frame that is wrong", reached.bad},
        {"the beginning of one", reached.incomplete},
        {"private data", reached.data},
        {"markers", reached.markers},
        {"a Request of revision 1", reached.plain_request},
        {"one accepted to be ready by a Send", reached.accepted[MPA_RTR_SEND]},
        {"by a Write", reached.accepted[MPA_RTR_WRITE]},
        {"by a Read", reached.accepted[MPA_RTR_READ]},
        {"by nothing that both can", reached.accepted[MPA_RTR_NONE]},
        {"a Reply of revision 1", reached.plain_reply},
        {"one that rejects", reached.rejected},
        {"one of another kind than the Request", reached.other_kind},
        {"one that wants more reads than there can be", reached.small_ird},
        {"one with no way to be ready", reached.no_rtr},
        {"one that is ready without", reached.concluded[MPA_RTR_NONE]},
        {"by a Send", reached.concluded[MPA_RTR_SEND]},
        {"by a Write", reached.concluded[MPA_RTR_WRITE]},
        {"by a Read", reached.concluded[MPA_RTR_READ]},
    };
    bool ok = true;

    for (unsigned i = 0; i < G_N_ELEMENTS(all); i++) {
        if (!all[i].is) {
            printf("%u, %s, never comes about\n", i, all[i].what);
            ok = false;
        }
    }
    return ok;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t bytes[MPA_MAX_STARTUP];
    struct mpa_config own;
    struct mpa_frame f, back;
    enum mpa_kind kind;
    bool complete;
    size_t n;

    if (size < WISHES) {
        return 0;
    }
    own = wishes(data);
    kind = data[5] & 1 ? MPA_REPLY : MPA_REQUEST;
    data += WISHES;
    size -= WISHES;
    size = MIN(size, MPA_MAX_STARTUP + 40);
    if (get(kind, data, size, &f, &complete)) {
        reached.bad = true;
        return 0;
    }
    if (!complete) {
        reached.incomplete = true;
        return 0;
    }
    reached.data = reached.data || f.data_len;
    CHECK(f.data >= data && f.data_len <= size - (size_t)(f.data - data));
    n = mpa_put(&f, bytes);
    CHECK(n == (size_t)(f.data - data) + f.data_len);
    CHECK(mpa_get(kind, bytes, n, &back, &n) == IWARP_OK);
    same(&f, &back);
    if (kind == MPA_REQUEST) {
        respond(&own, &f);
    } else {
        conclude(&own, &f);
    }
    return 0;
}
