/* Changes of state, for one or several sandboxes: stop, start, pause, resume, kill, timeout. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

/* They differ in their request only. */
static const struct life { const char *name, *method, *after, *doing; } life[] = {
	{ "stop", "POST", "/stop", "stopping" },
	{ "start", "POST", "/start", "starting" },
	{ "pause", "POST", "/pause", "pausing" },
	{ "resume", "POST", "/resume", "resuming" },
	{ "timeout", "POST", "/timeout", "setting the time" },
	{ "kill", "DELETE", "", "deleting" },
};

static const struct life *life_of(const char *command)
{
	unsigned k = 0;

	while (k + 1 < ARRAY_LEN(life) && !str_eq(life[k].name, command))
		k++;
	return &life[k];
}

/* One sandbox; what was done goes to `results`. */
static int life_one(struct cli *c, const char *name, json_t *body, json_t *results, struct err *e)
{
	const struct life *l = life_of(c->command);
	char target[128], id[64];
	json_t *answer = NULL;
	int r = box_id(c, name, id, e);

	if (r < 0)
		return r;
	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s%s", id, l->after);
	r = api_call_progress(c, l->doing, l->method, target, body, &answer, e);
	if (r == -ENOENT)
		return err_set_code(e, r, "sandbox-not-found",
				    "there is no sandbox %s; `space ls --all` lists yours", id);
	if (r < 0)
		return err_wrap(e, "%s", id);
	if (!c->json)
		printf("%s\n", id);
	json_array_append_new(results, answer ?: json_pack("{s:s}", "id", id));
	return 0;
}

/* With --json one document says it all: what failed stands in the list beside what was done. */
int cli_failed_one(struct cli *c, const char *name, json_t *results, const struct err *e)
{
	json_t *v, *why;
	autofree char *safe = text_safe(name, strlen(name)),
		      *text = text_safe(e->text, strlen(e->text));

	if (!c->json)
		return cli_fail(c, e);
	why = json_pack("{s:s,s:s}", "code", err_code(e), "message", text);
	if (c->request_id[0])
		json_object_set_new(why, "request_id", json_string(c->request_id));
	v = json_pack("{s:s,s:o}", "id", safe, "error", why);
	json_array_append_new(results, v);
	return 1;
}

static int life_all(struct cli *c, char *const *names, int n, json_t *body)
{
	json_t *results = json_array();
	int failed = 0;

	for (int i = 0; i < n; i++) {
		struct err e = { 0 };

		c->request_id[0] = '\0';
		if (life_one(c, names[i], body, results, &e) < 0)
			failed = cli_failed_one(c, names[i], results, &e);
	}
	if (c->json)
		cli_print_json(results);
	json_decref(results);
	return failed;
}

int cmd_life(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);

	PARSED(n);
	if (!n)
		return cli_usage_error(c, "which sandbox?");
	return life_all(c, argv + 1, n, NULL);
}

int cmd_resume(struct cli *c, int argc, char **argv)
{
	const char *timeout = NULL;
	const struct cli_option opts[] = {
		{ "--timeout", "TIME", "its life from now on: seconds, or 30m, 12h, 7d", &timeout,
		  false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	uint64_t seconds;
	json_t *body;

	PARSED(n);
	if (!n)
		return cli_usage_error(c, "which sandbox?");
	if (timeout && (cli_seconds(timeout, &seconds) < 0 || !seconds))
		return cli_usage_error(c, "--timeout needs seconds, or 30m, 12h, 7d, not \"%s\"",
				       timeout);
	body = timeout ? json_pack("{s:I}", "timeoutSeconds", (json_int_t)seconds) : NULL;
	r = life_all(c, argv + 1, n, body);
	json_decref(body);
	return r;
}

/* The time stands last, so that several sandboxes may stand before it. */
int cmd_timeout(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1), r;
	uint64_t seconds;
	json_t *body;

	PARSED(n);
	if (n < 2)
		return cli_usage_error(c, "it needs a sandbox and a time");
	if (cli_seconds(argv[n], &seconds) < 0 || !seconds)
		return cli_usage_error(c, "\"%s\" is no time; give 1 second or more, or 30m, 7d",
				       argv[n]);
	body = json_pack("{s:I}", "timeoutSeconds", (json_int_t)seconds);
	r = life_all(c, argv + 1, n - 1, body);
	json_decref(body);
	return r;
}
