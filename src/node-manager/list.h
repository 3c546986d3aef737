/*
 * Everything of this instance in the kernel and on disk, with a record or without: the operation
 * `list`.
 */
#ifndef NODE_MANAGER_LIST_H
#define NODE_MANAGER_LIST_H

#include "node-manager/child.h"

#define LIST_PAGE_ITEMS 250              /* of at most 150 bytes: below IPC_MSG_MAX */

/* In a child. Cursor: number of the first item wanted; the order is by kind and name. */
int list_run(struct child_task *t, struct err *e);

#endif
