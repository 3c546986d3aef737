/* Doubly linked list with the node embedded in its owner (see CONTAINER_OF in alloc.h). */
#ifndef BASE_LIST_H
#define BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include "base/alloc.h"

struct list { struct list *next, *prev; };

static inline void list_init(struct list *l) { l->next = l->prev = l; }
static inline bool list_empty(const struct list *l) { return l->next == l; }
static inline void list_add_tail(struct list *head, struct list *n)
{
	n->prev = head->prev;
	n->next = head;
	head->prev->next = n;
	head->prev = n;
}
/* Safe on a node that is not linked but was list_init'ed; leaves the node list_init'ed. */
static inline void list_del(struct list *n)
{
	n->prev->next = n->next;
	n->next->prev = n->prev;
	list_init(n);
}
#define LIST_FOR(head, var, type, member) \
	for (type *var = CONTAINER_OF((head)->next, type, member); &var->member != (head); \
	     var = CONTAINER_OF(var->member.next, type, member))
/* The current element may be removed and freed in the body. */
#define LIST_FOR_SAFE(head, var, type, member) \
	for (type *var = CONTAINER_OF((head)->next, type, member), \
	     *var##_next_ = CONTAINER_OF(var->member.next, type, member); &var->member != (head); \
	     var = var##_next_, var##_next_ = CONTAINER_OF(var->member.next, type, member))

#endif
