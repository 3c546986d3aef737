/* What the control routes do; all of it in worker threads. */
#include <errno.h>
#include "api/api.h"
#include "api/fields.h"
#include "base/str.h"

/* ---- get ---- */

void run_get(struct call *c, struct store *s)
{
	struct store_sandbox b = { 0 };
	int r = call_load(c, s, &b);

	if (r == 0 && object_visible(&b))
		call_json(c, 200, object_detail(c->api, &b));
	else if (r == 0)
		call_not_found(c);
	store_sandbox_done(&b);
}

/* ---- changes ---- */

void run_delete(struct call *c, struct store *s)
{
	if (change_run(c, s, LIFE_EV_DELETE) == 0)
		c->status = 204;
}
