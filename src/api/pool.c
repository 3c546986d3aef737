/*
 * Idle connections to nodes, newest first. Whatever happens on an idle connection ends it: its
 * node-api went away, or sends what nobody asked for.
 */
#include <stdlib.h>
#include "api/api.h"
#include "base/alloc.h"
#include "base/str.h"
#include "http/forward.h"
#include "loop/conn.h"

struct idle {
	struct list node;
	struct api *api;
	struct conn *conn;
	char addr[200];
};

static struct conn *idle_remove(struct idle *i)
{
	struct conn *c = i->conn;

	list_del(&i->node);
	i->api->n_pool--;
	free(i);
	return c;
}

static void idle_event(struct conn *c, enum conn_event ev, void *arg)
{
	if (ev != CONN_DRAINED)
		conn_free(idle_remove(arg));
}

static void unused_event(struct conn *c, enum conn_event ev, void *arg)
{
}

struct conn *pool_get(struct api *a, const char *addr, bool fresh, struct err *e)
{
	LIST_FOR_SAFE(&a->pool, i, struct idle, node) {
		struct conn *c;

		if (fresh || !str_eq(i->addr, addr))
			continue;
		c = idle_remove(i);
		conn_set_timeout(c, 0);
		conn_set_fn(c, unused_event, NULL);
		return c;
	}
	return conn_dial(a->loop, addr, FORWARD_BUFFER_BYTES, FORWARD_BUFFER_BYTES, unused_event,
			 NULL, e);
}

void pool_put(struct api *a, const char *addr, struct conn *c)
{
	struct idle *i;

	if (a->stopping || a->n_pool >= API_POOL_MAX) {
		conn_free(c);
		return;
	}
	i = x_alloc(sizeof(*i));
	i->api = a;
	i->conn = c;
	str_copy(i->addr, sizeof(i->addr), addr);
	i->node.next = a->pool.next;             /* in front */
	i->node.prev = &a->pool;
	a->pool.next->prev = &i->node;
	a->pool.next = &i->node;
	a->n_pool++;
	conn_set_fn(c, idle_event, i);
	conn_set_timeout(c, API_POOL_IDLE_MS);
}

void pool_clear(struct api *a)
{
	LIST_FOR_SAFE(&a->pool, i, struct idle, node)
		conn_free(idle_remove(i));
}
