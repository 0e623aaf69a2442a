/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The admin socket that pvrdmactl speaks to.
 *
 * A UNIX stream socket of mode 0600: whoever may open it may do everything the
 * daemon can, so file permissions are the access control.  A request is one
 * line with a JSON object, its answer another line:
 *
 *   {"cmd": "status"}
 *   {"cmd": "vm-list"}
 *   {"cmd": "vm-add", "name": NAME, "set": {KEY: "VALUE", ...}}
 *   {"cmd": "vm-remove" | "vm-pause" | "vm-resume", "name": NAME}
 *   {"cmd": "qp-list", "name": NAME, "after": HANDLE}     (after: optional)
 *   {"cmd": "vm-migrate-status", "name": NAME}            (name: optional)
 *   {"cmd": "counters", "name": NAME}                     (name: optional)
 *   {"cmd": "peer-list"}
 *   {"cmd": "reload"}
 *   {"cmd": "restart"}      (the new daemon answers and ends the connection)
 *
 *   {"ok": true, "result": {...}}
 *   {"ok": false, "error": "text"}
 *
 * Main thread only.
 */
#ifndef PVRDMAD_CONTROL_H
#define PVRDMAD_CONTROL_H

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"
#include "handover/handover.h"

#define CONTROL_MAX_CLIENTS 16u
#define CONTROL_IDLE_S      60     /* seconds that a client may be silent */
#define CONTROL_MAX_REQUEST 16384u /* bytes of a line */
#define CONTROL_MAX_DEPTH   4u     /* nesting of a request */
#define CONTROL_MAX_SET     16u    /* keys in vm-add */
#define CONTROL_QP_PAGE     512u   /* rows in one answer to qp-list */

/* Listen on cfg->control_socket; @cfg must stay valid until control_close(). */
bool control_listen(const struct daemon_config *cfg, GError **errp);
void control_close(void);

/* The listening socket goes to another daemon. */
void control_hand_over(struct handover_out *h);
/*
 * The connection of the request that is being begun; -1: nobody's.  Not after the main
 * loop has turned.
 */
int control_client(void);

/* ---- inside control/, and for tests ---- */

/* For tests: another time than CONTROL_IDLE_S, for clients to come. */
void control_set_idle(unsigned ms);

enum control_cmd {
    CONTROL_STATUS,
    CONTROL_VM_LIST,
    CONTROL_VM_ADD,
    CONTROL_VM_REMOVE,
    CONTROL_VM_PAUSE,
    CONTROL_VM_RESUME,
    CONTROL_VM_MIGRATE_STATUS,
    CONTROL_QP_LIST,
    CONTROL_COUNTERS,
    CONTROL_PEER_LIST,
    CONTROL_NIC_LIST,
    CONTROL_RELOAD,
    CONTROL_RESTART,
};

struct control_request {
    enum control_cmd cmd;
    char *name;     /* NULL if not given; else a valid VM name */
    uint32_t after; /* qp-list: only handles above this one */
    unsigned n_set;
    char *key[CONTROL_MAX_SET], *value[CONTROL_MAX_SET];
};

/*
 * Parse one request (without its newline).  NULL with errp for anything that is
 * not exactly one of the requests above.
 */
struct control_request *control_request_parse(const char *line, size_t len,
                                              GError **errp);
void control_request_free(struct control_request *req);

/* Execute a line; the answer, with its newline, is to be freed with g_free. */
char *control_handle(const struct daemon_config *cfg, const char *line, size_t len);

/* report*.c: what the daemon says about itself, as members of an object of JSON. */
struct vm;
void report_status(GString *s, const struct daemon_config *cfg);
void report_failed(GString *s);
/* Adds members "hosts", about this one, and "peers". */
void report_peers(GString *s);
/* Adds member "nics". */
void report_nics(GString *s);
/* "vms": an array of what @report writes for each. */
void report_all(GString *s, void (*report)(GString *s, struct vm *vm));
void report_vm(GString *s, struct vm *vm);
/* Of a VM and of its counters: members "objects" and "memory". */
void report_objects(GString *s, struct vm *vm);
void report_memory(GString *s, struct vm *vm);
void report_migration(GString *s, struct vm *vm);
void report_counters(GString *s, struct vm *vm);
/* Adds members "qps" and, if there are more rows, "next" (for "after"). */
void report_qps(GString *s, struct vm *vm, uint32_t after);

#endif /* PVRDMAD_CONTROL_H */
