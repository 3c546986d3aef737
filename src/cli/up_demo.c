/*
 * The main job in front of the user's eyes: a sandbox is made, runs a program with its own kernel,
 * and goes.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/str.h"
#include "cli/up.h"

static int demo_run(struct cli *c, const char *id, struct err *e)
{
	char *const argv[] = { (char *)"/bin/bash", (char *)"-l", (char *)"-c", (char *)"uname -a",
			       NULL };
	struct run_spec spec = { .argv = argv, .argc = 4, .out_fd = 2, .err_fd = 2 };
	struct box b;
	int r = box_find(c, id, &b, e);

	if (r < 0)
		return r;
	up_say("$ uname -a        (inside the sandbox)");
	r = run_in_box(c, &b, &spec, e);
	return r > 0 ? err_set(e, -EIO, "the program ended with exit code %d", r) : r;
}

int up_demo(struct cli *c, struct err *e)
{
	int64_t start = clock_mono_ms();
	char id[64], target[96];
	json_t *body = json_pack("{s:s,s:i}", "templateID", "base", "timeout", 300), *answer = NULL;
	struct err ignored = { 0 };
	int r = api_call(c, "POST", "/v2/sandboxes", body, &answer, e);

	json_decref(body);
	if (r < 0)
		return err_wrap(e, "the first sandbox");
	(void)str_copy(id, sizeof(id), json_string_value(json_object_get(answer, "sandboxID")));
	json_decref(answer);
	up_say("sandbox %s runs (%d ms)", id, (int)(clock_mono_ms() - start));
	r = demo_run(c, id, e);
	(void)str_format(target, sizeof(target), "/sandboxes/%s", id);
	answer = NULL;
	(void)api_call(c, "DELETE", target, NULL, &answer, &ignored);
	json_decref(answer);
	if (r < 0)
		return r;
	up_say("that was a microVM with a kernel of its own. Go on, in another terminal:");
	up_say("  id=$(space create)");
	up_say("  space exec $id -- python3 -c 'print(6 * 7)'");
	up_say("  space shell $id");
	up_say("or with an SDK that you use already:");
	up_say("  eval \"$(space env)\"; python3 -m venv venv; venv/bin/pip install e2b");
	up_say("  venv/bin/python -c 'from e2b import Sandbox; s = Sandbox.create(\"base\"); "
	       "print(s.commands.run(\"uname -a\").stdout); s.kill()'");
	return 0;
}
