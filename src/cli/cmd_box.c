/* Commands about sandboxes as a whole: create, ls, stop, start, kill, logs, env. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"

#define CREATE_TIMEOUT_DEFAULT "86400"
#define PARSED(n) if ((n) < 0) return (n) == -2 ? 0 : 2

static int pairs_to_json(struct cli *c, const char *what, const char **pairs, json_t **ret)
{
	json_t *v = json_object();

	for (int i = 0; pairs[i]; i++) {
		const char *eq = strchr(pairs[i], '=');

		if (!eq || eq == pairs[i]) {
			json_decref(v);
			return cli_usage_error(c, "%s needs NAME=VALUE, not \"%s\"", what,
					       pairs[i]);
		}
		autofree char *k = x_strndup(pairs[i], (size_t)(eq - pairs[i]));
		json_object_set_new(v, k, json_string(eq + 1));
	}
	*ret = v;
	return 0;
}

int cmd_create(struct cli *c, int argc, char **argv)
{
	const char *template = "base", *timeout = CREATE_TIMEOUT_DEFAULT;
	const char *env[CLI_REPEAT_MAX + 1] = { 0 }, *meta[CLI_REPEAT_MAX + 1] = { 0 };
	const struct cli_option opts[] = {
		{ "--template", "NAME", "template to start from (default: base)", &template,
		  false },
		{ "--timeout", "SECONDS", "life time, after which it is deleted (default: a day)",
		  &timeout, false },
		{ "--env", "K=V", "environment of all its commands; may be repeated", env, true },
		{ "--meta", "K=V", "metadata; may be repeated", meta, true },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	json_t *envs, *metas, *answer;
	struct err e = { 0 };
	uint64_t seconds;

	PARSED(n);
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments");
	if (str_to_u64(timeout, 10 * 365 * 86400ULL, &seconds) < 0 || !seconds)
		return cli_usage_error(c, "--timeout needs a number of seconds, not \"%s\"",
				       timeout);
	if ((r = pairs_to_json(c, "--env", env, &envs)) ||
	    (r = pairs_to_json(c, "--meta", meta, &metas)))
		return r;
	json_t *body = json_pack("{s:s,s:I,s:o,s:o}", "templateID", template, "timeout",
				 (json_int_t)seconds, "envVars", envs, "metadata", metas);
	r = creds_load(c, &e);
	if (r >= 0)
		r = api_call_progress(c, "creating", "POST", "/v2/sandboxes", body, &answer, &e);
	json_decref(body);
	if (r < 0)
		return cli_fail(c, &e);
	if (c->json) {
		json_object_del(answer, "envdAccessToken");
		cli_print_json(answer);
	} else {
		printf("%s\n", json_string_value(json_object_get(answer, "sandboxID")));
	}
	json_decref(answer);
	return 0;
}

static void print_age(const char *iso)
{
	int64_t t;

	if (!iso || clock_parse_iso(iso, &t) < 0) {
		printf("%-8s", "-");
		return;
	}
	int64_t s = (clock_wall_ms() - t) / 1000;
	char text[32];

	static const struct {
		int64_t below, unit;
		char letter;
	} units[] = {
		{ 120, 1, 's' }, { 7200, 60, 'm' }, { 172800, 3600, 'h' }, { INT64_MAX, 86400, 'd' }
	};
	size_t u = 0;

	while (s >= units[u].below)
		u++;
	(void)str_format(text, sizeof(text), "%lld%c", (long long)(s / units[u].unit),
			 units[u].letter);
	printf("%-8s", text);
}

static const char *text_of(json_t *v, const char *key)
{
	const char *s = json_string_value(json_object_get(v, key));

	return s ? s : "-";
}

static bool is_at_rest(const char *state)
{
	return str_eq(state, "stopped") || str_eq(state, "suspended") || str_eq(state, "failed");
}

int cmd_ls(struct cli *c, int argc, char **argv)
{
	const char *all = NULL;
	const struct cli_option opts[] = {
		{ "--all", NULL, "stopped and failed ones too", &all, false }, { 0 }
	};
	int n = cli_parse(c, argc, argv, opts, -1);
	struct err e = { 0 };
	json_t *list, *v;
	size_t i;

	PARSED(n);
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments");
	if (creds_load(c, &e) < 0 || api_list(c, &list, &e) < 0)
		return cli_fail(c, &e);
	for (i = json_array_size(list); i-- > 0 && !all;)
		if (is_at_rest(text_of(json_array_get(list, i), "state")))
			json_array_remove(list, i);
	if (c->json) {
		cli_print_json(list);
		json_decref(list);
		return 0;
	}
	printf("%-22s %-10s %-10s %-8s %s\n", "SANDBOX", "STATE", "TEMPLATE", "AGE", "GENERATION");
	json_array_foreach(list, i, v) {
		printf("%-22s %-10s ", text_of(v, "id"), text_of(v, "state"));
		cli_print_safe(text_of(v, "templateName"));
		printf("%*s ", (int)(10 - strlen(text_of(v, "templateName"))), "");
		print_age(text_of(v, "createdAt"));
		printf(" %lld%s", (long long)json_integer_value(json_object_get(v, "generation")),
		       json_string_length(json_object_get(v, "reason")) ? "  " : "\n");
		if (json_string_length(json_object_get(v, "reason"))) {
			cli_print_safe(text_of(v, "reason"));
			putchar('\n');
		}
	}
	json_decref(list);
	return 0;
}

/* stop, start and kill differ in their request only. */
static const struct { const char *name, *method, *before, *after, *doing; } life[] = {
	{ "stop", "POST", "/v1/sandboxes/", "/stop", "stopping" },
	{ "start", "POST", "/v1/sandboxes/", "/start", "starting" },
	{ "kill", "DELETE", "/sandboxes/", "", "deleting" },
};

static int life_one(struct cli *c, const char *name, json_t *results, struct err *e)
{
	unsigned k = 0;
	char target[128];
	struct box b;
	json_t *answer = NULL;
	int r = box_find(c, name, &b, e);

	while (k + 1 < ARRAY_LEN(life) && !str_eq(life[k].name, c->command))
		k++;
	if (r < 0)
		return r;
	if (str_format(target, sizeof(target), "%s%s%s", life[k].before, b.id, life[k].after) < 0)
		return err_set(e, -EINVAL, "the ID is too long");
	r = api_call_progress(c, life[k].doing, life[k].method, target, NULL, &answer, e);
	if (r < 0)
		return err_wrap(e, "%s", b.id);
	if (!c->json)
		printf("%s\n", b.id);
	json_array_append_new(results, answer ? answer : json_pack("{s:s}", "sandboxID", b.id));
	return 0;
}

/* With --json one document says it all: what failed stands in the list beside what was done. */
static int life_failed(struct cli *c, const char *name, json_t *results, const struct err *e)
{
	if (!c->json)
		return cli_fail(c, e);
	json_array_append_new(results, json_pack("{s:s,s:{s:s,s:s}}", "sandboxID", name, "error",
						 "code", err_code(e), "message", e->text));
	return 1;
}

int cmd_life(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1), failed = 0;
	json_t *results;

	PARSED(n);
	if (!n)
		return cli_usage_error(c, "which sandbox?");
	results = json_array();
	for (int i = 1; i <= n; i++) {
		struct err e = { 0 };

		if (life_one(c, argv[i], results, &e) < 0)
			failed = life_failed(c, argv[i], results, &e);
	}
	if (c->json)
		cli_print_json(results);
	json_decref(results);
	return failed;
}

int cmd_logs(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);
	char target[128];
	struct err e = { 0 };
	struct box b;
	json_t *answer, *ev;
	size_t i;

	PARSED(n);
	if (n != 1)
		return cli_usage_error(c, "which sandbox?");
	if (box_find(c, argv[1], &b, &e) < 0)
		return cli_fail(c, &e);
	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s/logs", b.id);
	if (api_call_progress(c, "reading", "GET", target, NULL, &answer, &e) < 0)
		return cli_fail(c, &e);
	if (c->json) {
		cli_print_json(answer);
	} else {
		json_array_foreach(json_object_get(answer, "events"), i, ev) {
			cli_print_safe(text_of(ev, "time"));
			putchar(' ');
			cli_print_safe(text_of(ev, "text"));
			putchar('\n');
		}
		autofree char *console = x_strdup(text_of(answer, "text"));
		char *save = NULL;

		/* Line by line, so that new lines stay and every other control byte is shown. */
		for (char *line = strtok_r(console, "\r\n", &save); line;
		     line = strtok_r(NULL, "\r\n", &save)) {
			cli_print_safe(line);
			putchar('\n');
		}
	}
	json_decref(answer);
	return 0;
}

int cmd_env(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);
	struct err e = { 0 };

	PARSED(n);
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments");
	if (creds_load(c, &e) < 0)
		return cli_fail(c, &e);
	if (c->json) {
		json_t *v = json_pack("{s:s,s:s,s:s}", "E2B_API_URL", c->api_url, "E2B_SANDBOX_URL",
				      c->api_url, "E2B_API_KEY", c->api_key);

		cli_print_json(v);
		json_decref(v);
		return 0;
	}
	printf("export E2B_API_URL='%s'\nexport E2B_SANDBOX_URL='%s'\nexport E2B_API_KEY='%s'\n",
	       c->api_url, c->api_url, c->api_key);
	return 0;
}
