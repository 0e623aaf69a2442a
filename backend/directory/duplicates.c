/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Two places that were begun from one state of a VM: which of them goes on.
 *
 * Both are the same owner.  The higher generation goes on, of two that are equal the one
 * whose host's name comes first, byte by byte.  That is the same on every host, in
 * whichever order it hears of them, and antisymmetric: the two never both give way, nor
 * both go on once they have heard of each other.
 *
 * A claim alone moves nobody who runs: whoever hears one could repeat it with a higher
 * generation.  A VM has a key, random and told to nobody, that goes where its state goes.
 * A claim is proved by HMAC-SHA256 (RFC 2104) under that key over owner, generation and
 * the host's name.  Only the VM's other places can check it, and only they give way.  A
 * third host cannot; it passes the claim of the one that goes on to the one that does
 * not, and stays with whom it knew until that one has let go.
 *
 * A proof is good for the host that it names, so that to repeat it is of no use; and a
 * generation is of no use again once it was followed by a higher one.
 *
 * Main thread.
 */
#include "directory/entry.h"

#include <glib.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "objects/vm.h"

static char *self; /* this host's name, or NULL */

_Static_assert(sizeof(((struct vm *)0)->identity.proof) == CLAIM_PROOF_LEN, "");

void directory_set_host(const char *name)
{
    g_free(self);
    self = g_strdup(name);
}

bool directory_host_is_before(const char *name)
{
    return self && strcmp(name, self) < 0;
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
    uint8_t any = 0;

    for (size_t i = 0; i < n; i++) {
        any |= bytes[i];
    }
    return !any;
}

bool claim_is_proved(const struct claim *claim)
{
    return claim->host && !is_zero(claim->proof, sizeof(claim->proof));
}

bool directory_has_key(const struct vm *vm)
{
    return !is_zero(vm->identity.key, sizeof(vm->identity.key));
}

void directory_need_key(struct vm *vm)
{
    while (!directory_has_key(vm)) {
        if (getrandom(vm->identity.key, sizeof(vm->identity.key), 0) !=
            sizeof(vm->identity.key)) {
            memset(vm->identity.key, 0, sizeof(vm->identity.key));
        }
        vm->identity.proved = 0;
    }
}

/* Half of it is told: who knows no key has to guess all the same. */
static void prove(const struct vm *vm, const struct claim *claim,
                  uint8_t proof[CLAIM_PROOF_LEN])
{
    GHmac *h = g_hmac_new(G_CHECKSUM_SHA256, vm->identity.key, sizeof(vm->identity.key));
    uint64_t words[] = {GUINT64_TO_LE(claim->owner[0]), GUINT64_TO_LE(claim->owner[1]),
                        GUINT64_TO_LE(claim->generation)};
    uint8_t digest[32];
    gsize len = sizeof(digest);

    g_hmac_update(h, (const guchar *)"pvrdma place of a VM", -1);
    g_hmac_update(h, (const guchar *)words, sizeof(words));
    g_hmac_update(h, (const guchar *)claim->host, -1);
    g_hmac_get_digest(h, digest, &len);
    g_hmac_unref(h);
    memcpy(proof, digest, CLAIM_PROOF_LEN);
}

void rivals_prove(struct vm *vm, struct claim *claim)
{
    claim->host = self;
    if (!self || !directory_has_key(vm)) {
        return;
    }
    if (vm->identity.proved !=
        claim->generation) { /* a VM may hold a thousand addresses */
        prove(vm, claim, vm->identity.proof);
        vm->identity.proved = claim->generation;
    }
    memcpy(claim->proof, vm->identity.proof, sizeof(claim->proof));
}

/* Time says nothing of where they differ. */
bool rivals_is_of(const struct vm *vm, const struct claim *claim)
{
    uint8_t right[CLAIM_PROOF_LEN];
    volatile uint8_t differ = 0;

    if (!claim_is_proved(claim) || !directory_has_key(vm)) {
        return false;
    }
    prove(vm, claim, right);
    for (unsigned i = 0; i < sizeof(right); i++) {
        differ |= right[i] ^ claim->proof[i];
    }
    return !differ;
}

bool claim_is_rival(const struct claim *a, const struct claim *b)
{
    return same_owner(a, b) && claim_is_proved(a) && claim_is_proved(b);
}

bool claim_comes_first(const struct claim *a, const struct claim *b)
{
    if (a->generation != b->generation) {
        return a->generation > b->generation;
    }
    return strcmp(a->host, b->host) < 0;
}

enum rival rivals_judge(const struct entry *e, const struct claim *claim)
{
    struct vm *vm = atomic_load(&e->route.vm);
    struct claim own;

    if (!vm || !self || !moves_claim(e, &own) || !same_owner(&own, claim) ||
        !rivals_is_of(vm, claim) || strcmp(claim->host, self) == 0) {
        return RIVAL_NONE;
    }
    own.host = self;
    return claim_comes_first(claim, &own) ? RIVAL_FIRST : RIVAL_SECOND;
}

void rivals_say(const struct entry *e, const struct claim *claim)
{
    struct vm *vm = atomic_load(&e->route.vm);
    char text[CONFIG_GID_STRLEN];

    config_format_gid(&e->gid, text);
    log_vm(LOG_LVL_WARN, vm,
           "%s: host %s runs another instance of this VM from the same state, which "
           "takes precedence over the one here",
           text, claim->host);
}

enum rival directory_rival(const char *network, const struct pvrdma_gid *gid,
                           const struct claim *claim)
{
    struct entry *e = entry_find(network, gid);
    enum rival rival = e ? rivals_judge(e, claim) : RIVAL_NONE;

    if (rival == RIVAL_FIRST) {
        rivals_say(e, claim);
        moves_release(e);
        atomic_store(&e->route.held_until, 0);
        remote_unbound(e);
        remote_not_contested(e);
        entry_tell(e);
        entry_settle(e);
    }
    return rival;
}
