/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about other hosts' daemons, as JSON.  Main thread.
 */
#include "control/control.h"
#include "control/json.h"
#include "transport/link/peer.h"

static void report_listen(GString *s)
{
    char text[CONFIG_ADDRESS_STRLEN];
    const char *error;

    json_begin(s, "listen", '[');
    for (unsigned i = 0; peers_report_listen(i, text, &error); i++) {
        json_begin(s, NULL, '{');
        json_str(s, "address", text);
        if (error) {
            json_str(s, "error", error);
        }
        json_end(s, '}');
    }
    json_end(s, ']');
}

static void report_peer(GString *s, struct peer *peer)
{
    struct peer_report r;

    peer_report(peer, &r);
    json_begin(s, NULL, '{');
    json_str(s, "name", r.name);
    json_str(s, "address", r.address);
    json_str(s, "state", r.state);
    json_int(s, "since_ms", r.since_ms);
    if (r.up) {
        json_bool(s, "silent", r.silent);
        json_bool(s, "called", r.initiator);
        json_int(s, "version", r.version);
        json_int(s, "rtt_us", r.rtt_us);
    }
    json_int(s, "queued_bytes", r.queued_bytes);
    json_int(s, "sent_bytes", r.sent_bytes);
    json_int(s, "received_bytes", r.received_bytes);
    json_int(s, "sent_messages", r.sent_messages);
    json_int(s, "received_messages", r.received_messages);
    json_int(s, "dropped_messages", r.dropped);
    json_int(s, "refused_messages", r.refused);
    json_int(s, "links", r.links);
    json_int(s, "failures", r.failures);
    json_int(s, "silences", r.silences);
    json_str(s, "last_error", r.last_error);
    json_end(s, '}');
}

void report_peers(GString *s)
{
    struct peers_report r;

    peers_report(&r);
    json_begin(s, "hosts", '{');
    if (r.host_name) {
        json_str(s, "host_name", r.host_name);
    }
    report_listen(s);
    json_int(s, "peers", r.n_peers);
    json_int(s, "peers_up", r.n_up);
    json_int(s, "undecided", r.undecided);
    json_int(s, "strangers", r.strangers);
    json_int(s, "turned_away", r.turned_away);
    json_end(s, '}');
    json_begin(s, "peers", '[');
    for (struct peer *p = peer_next(NULL); p; p = peer_next(p)) {
        report_peer(s, p);
    }
    json_end(s, ']');
}
