/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about RDMA NICs of this host, as JSON.  Main thread.
 */
#include "control/control.h"
#include "control/json.h"
#include "transport/rnic/nic.h"
#include "transport/rnic/pair.h"

static void report_nic(GString *s, const struct rnic_nic *nic)
{
    char address[CONFIG_GID_STRLEN];
    const struct nic_config *cfg = nic->cfg;
    struct rnic_nic_usage u;

    config_format_gid(&cfg->address, address);
    json_begin(s, NULL, '{');
    json_str(s, "name", cfg->name);
    json_str(s, "device", cfg->device);
    json_str(s, "address", address);
    json_str(s, "fabric", cfg->fabric);
    if (cfg->networks) { /* else all */
        json_begin(s, "networks", '[');
        for (char **net = cfg->networks; *net; net++) {
            json_str(s, NULL, *net);
        }
        json_end(s, ']');
    }
    json_str(s, "state", rnic_state_name(nic->state));
    json_str(s, "reason", nic->reason);
    json_int(s, "since_ms", (uint64_t)(g_get_monotonic_time() - nic->since) / 1000);
    json_int(s, "events", nic->events);
    json_int(s, "failures", nic->failures);
    json_int(s, "channels", rnic_nic_channels(nic));
    rnic_nic_usage(nic, &u);
    json_int(s, "in_flight", u.bytes);
    json_int(s, "max_in_flight", u.max_bytes);
    json_int(s, "requests", u.requests);
    json_int(s, "max_requests", u.max_requests);
    json_int(s, "waiting_vms", u.waiting);
    if (nic->dev.kind) {
        json_str(s, "kind", nic->dev.kind);
        json_int(s, "port", nic->dev.port);
        json_int(s, "mtu", nic->dev.mtu);
        json_int(s, "mbit_s", nic->dev.mbit_s);
        json_bool(s, "atomics", nic->dev.atomics);
        json_int(s, "max_reads", nic->dev.max_reads);
    }
    json_end(s, '}');
}

void report_nics(GString *s)
{
    json_begin(s, "nics", '[');
    for (struct rnic_nic *nic = rnic_nic_next(NULL); nic; nic = rnic_nic_next(nic)) {
        report_nic(s, nic);
    }
    json_end(s, ']');
}
