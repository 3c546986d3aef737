/*
 * What still runs when all services but node-manager have ended: executions that nobody could stop
 * in order (a service that died again and again). Without this their VMMs would keep the storage
 * busy. The sandboxes' records are brought up to date by the next `space up`.
 */
#include <errno.h>
#include <unistd.h>

#include <jansson.h>

#include "base/str.h"
#include "cli/up.h"
#include "ipc/nm_ops.h"

#define LEFT_CALL_MS 15000
#define LEFT_PAGES_MAX 64

static int destroy_one(struct ipc_sync *nm, const json_t *item, struct err *e)
{
	struct nm_exec q = { .generation = (uint64_t)json_integer_value(
				     json_object_get(item, "generation")) };
	const char *id = json_string_value(json_object_get(item, "sandbox"));

	if (!id || str_copy(q.sandbox, sizeof(q.sandbox), id) < 0)
		return err_set(e, -EBADMSG, "node-manager names an execution without its sandbox");
	return ipc_sync_call(nm, &nm_ops[NM_DESTROY], "up-end", &q, NULL, 0, NULL, NULL, NULL,
			     LEFT_CALL_MS, e);
}

/* One page of the list; from the beginning again when it has changed. 0 at the end. */
static int destroy_page(struct ipc_sync *nm, uint64_t *cursor, struct err *e)
{
	struct nm_list q = { .cursor = *cursor };
	struct nm_list_rep rep = { 0 };
	bool changed = false;
	json_t *item;
	size_t i;
	int r = ipc_sync_call(nm, &nm_ops[NM_LIST], "up-end", &q, NULL, 0, &rep, NULL, NULL,
			      LEFT_CALL_MS, e);

	if (r < 0)
		return r;
	json_array_foreach(rep.items, i, item) {
		const char *kind = json_string_value(json_object_get(item, "kind"));

		if (r < 0 || !kind || !str_eq(kind, "execution"))
			continue;
		up_say("ending what is left of sandbox %s",
		       json_string_value(json_object_get(item, "sandbox")));
		r = destroy_one(nm, item, e);
		changed = true;
	}
	*cursor = changed ? 0 : rep.next;
	ipc_done(nm_ops[NM_LIST].rep, &rep);
	return r < 0 ? r : changed || rep.next ? 1 : 0;
}

int up_destroy_left(const struct conf *k, struct err *e)
{
	char path[PATH_MAX];
	struct ipc_sync *nm = NULL;
	uint64_t cursor = 0;
	int r = conf_path(k, path, CONF_RUN, "nm/nm.sock");

	if (r < 0)
		return err_errno(e, r, "node-manager's socket");
	if (access(path, F_OK) < 0)
		return 0;                /* it never ran */
	r = ipc_sync_open(path, 0, &nm, e);
	if (r == 0)
		r = 1;
	for (int i = 0; r > 0 && i < LEFT_PAGES_MAX; i++)
		r = destroy_page(nm, &cursor, e);
	ipc_sync_close(nm);
	return r < 0 ? r : 0;
}
