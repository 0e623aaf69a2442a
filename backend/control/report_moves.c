/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the daemon says about VMs that come and go (vm migrate-status), as JSON.  Main
 * thread.
 */
#include "control/control.h"
#include "control/json.h"
#include "frontend/frontend.h"
#include "vm/attach.h"

static const char *const kinds[] = {
    [MIGRATION_NONE] = "none",
    [MIGRATION_SAVED] = "saved",
    [MIGRATION_LOADED] = "loaded",
};

void report_migration(GString *s, struct vm *vm)
{
    struct migration_status st;

    migration_get_status(vm, &st);
    json_begin(s, NULL, '{');
    json_str(s, "name", vm->cfg->name);
    json_bool(s, "attached", vm->attached);
    json_str(s, "state", st.state);
    json_str(s, "last", kinds[st.kind]);
    json_int(s, "bytes", st.bytes);
    json_int(s, "done", st.done);
    json_int(s, "quiesce_us", st.quiesce_us);
    json_int(s, "save_us", st.save_us);
    json_int(s, "load_us", st.load_us);
    json_int(s, "resume_us", st.resume_us);
    json_int(s, "still_us", st.still_us);
    json_str(s, "error", st.error);
    json_end(s, '}');
}
