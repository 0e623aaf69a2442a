/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What there is to say about links, for the administrator.  Main thread. */
#include <string.h>

#include "transport/link/internal.h"

static const char *state_of(const struct peer *peer)
{
    static const char *const names[] = {
        [LINK_CONNECTING] = "connecting",
        [LINK_HELLO] = "greeting",
        [LINK_AUTH] = "proving",
        [LINK_UP] = "up",
    };

    if (peer->link) {
        return names[LINK_UP];
    }
    return peer->trying ? names[link_state(peer->trying)] : "waiting";
}

void peer_report(struct peer *peer, struct peer_report *r)
{
    const struct peer_link *l = peer->link ? peer->link : peer->trying;
    uint64_t sent = 0, received = 0;

    memset(r, 0, sizeof(*r));
    r->name = peer->name;
    r->state = state_of(peer);
    r->last_error = peer->last_error ? peer->last_error : "";
    config_format_address(&peer->cfg->address, r->address);
    r->since_ms = (uint64_t)(g_get_monotonic_time() - peer->since) / 1000;
    r->rtt_us = peer->rtt_us;
    r->queued_bytes = queue_bytes(&peer->queue, &r->dropped);
    if (l) {
        link_bytes(l, &sent, &received);
    }
    r->sent_bytes = peer->sent_bytes + sent;
    r->received_bytes = peer->received_bytes + received;
    r->sent_messages = peer->sent_messages;
    r->received_messages = peer->received_messages;
    r->refused = peer->refused;
    r->links = peer->links;
    r->failures = peer->failures;
    r->silences = peer->silences;
    if (peer->link) {
        r->up = true;
        r->silent = link_is_silent(peer->link);
        r->initiator = link_role(peer->link) == PEER_INITIATOR;
        r->version = link_version(peer->link);
    }
}

void peers_report(struct peers_report *r)
{
    memset(r, 0, sizeof(*r));
    r->host_name = peers_self.name;
    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        r->n_peers++;
        r->n_up += p->link != NULL;
    }
    r->strangers = peers_self.strangers;
    r->turned_away = peers_self.turned_away;
    r->undecided = listen_undecided();
}

bool peers_report_listen(unsigned i, char text[CONFIG_ADDRESS_STRLEN], const char **error)
{
    return listen_report(i, text, error);
}
