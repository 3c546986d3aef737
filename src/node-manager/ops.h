/*
 * The table of operations: who may ask for what in which state, and what it does (nm_ops.h says
 * what each means).
 */
#ifndef NODE_MANAGER_OPS_H
#define NODE_MANAGER_OPS_H

#include "node-manager/nm.h"

#define OPS_CONNECT_WAIT_MS 3000

/*
 * All that node-manager and its children may do (capabilities(7)): what the table's rows need,
 * together.
 */
uint64_t ops_caps(void);
uint64_t ops_main_caps(void);            /* what the main process itself needs in force */
/* For ipc_server_conf; arg is the struct nm. */
const struct ipc_handler *ops_handlers(void);

#endif
