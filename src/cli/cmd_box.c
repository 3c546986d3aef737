/* Commands about sandboxes: create, ls, inspect, env. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"
#include "state/state.h"

#define CREATE_SECONDS_DEFAULT 86400

int cli_seconds(const char *text, uint64_t *ret)
{
	static const struct { char letter; uint64_t seconds; } units[] = {
		{ 's', 1 }, { 'm', 60 }, { 'h', 3600 }, { 'd', 86400 }, { 'w', 604800 }
	};
	size_t n = strlen(text);
	uint64_t unit = 1;

	for (size_t i = 0; n > 1 && i < ARRAY_LEN(units); i++) {
		if (text[n - 1] != units[i].letter)
			continue;
		unit = units[i].seconds;
		n--;
		break;
	}
	if (str_to_u64_n(text, n, CLI_SECONDS_MAX / unit, ret) < 0)
		return -EINVAL;
	*ret *= unit;
	return 0;
}

static int add_pairs(struct cli *c, const char *what, const char **pairs, json_t *v)
{
	for (int i = 0; pairs[i]; i++) {
		const char *eq = strchr(pairs[i], '=');

		if (!eq || eq == pairs[i])
			return cli_usage_error(c, "%s needs NAME=VALUE, not \"%s\"", what,
					       pairs[i]);
		if (!str_utf8_ok(pairs[i], strlen(pairs[i])))
			return cli_usage_error(c, "%s: \"%s\" is not UTF-8", what, pairs[i]);
		autofree char *k = x_strndup(pairs[i], (size_t)(eq - pairs[i]));
		json_object_set_new(v, k, json_string(eq + 1));
	}
	return 0;
}

static int add_lifecycle(struct cli *c, const char *on_timeout, const char *auto_resume,
			 json_t *body)
{
	if (on_timeout && !str_eq(on_timeout, "kill") && !str_eq(on_timeout, "pause"))
		return cli_usage_error(c, "--on-timeout is kill or pause, not \"%s\"", on_timeout);
	if (on_timeout)
		json_object_set_new(body, "onTimeout", json_string(on_timeout));
	if (auto_resume)
		json_object_set_new(body, "autoResume", json_true());
	return 0;
}

int cli_get_sandbox(struct cli *c, const char *id, json_t **ret, struct err *e)
{
	char target[96];
	int r;

	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s", id);
	r = api_call(c, "GET", target, NULL, ret, e);
	if (r == -ENOENT)
		return err_set_code(e, r, "sandbox-not-found",
				    "there is no sandbox %s; `space ls --all` lists yours", id);
	return r;
}

/* The agent's token is no matter of a terminal's history; that of the ports --private asks for. */
void cli_print_sandbox(struct cli *c, json_t *v)
{
	json_object_del(v, "accessToken");
	if (c->json) {
		cli_print_json(v);
		return;
	}
	cli_print_safe(json_string_value(json_object_get(v, "id")) ?: "");
	putchar('\n');
}

static int create(struct cli *c, json_t *body)
{
	json_t *answer = NULL;
	struct err e = { 0 };
	int r = creds_load(c, &e);

	if (r >= 0)
		r = api_call_progress(c, "creating", "POST", "/v1/sandboxes", body, &answer, &e);
	if (r < 0)
		return cli_fail(c, &e);
	cli_print_sandbox(c, answer);
	json_decref(answer);
	return 0;
}

int cmd_create(struct cli *c, int argc, char **argv)
{
	const char *template = NULL, *timeout = NULL, *name = NULL, *on_timeout = NULL,
		   *auto_resume = NULL, *no_internet = NULL, *private = NULL;
	const char *env[CLI_REPEAT_MAX + 1] = { 0 }, *meta[CLI_REPEAT_MAX + 1] = { 0 };
	const struct cli_option opts[] = {
		{ "-T, --template", "NAME", "template to start from (default: base)", &template,
		  false },
		{ "--name", "NAME", "how you call it: its metadata \"name\"", &name, false },
		{ "--timeout", "TIME", "its life: seconds, or 30m, 12h, 7d (default: a day)",
		  &timeout, false },
		{ "--on-timeout", "kill|pause", "what happens then (default: kill)", &on_timeout,
		  false },
		{ "--auto-resume", NULL, "a paused one wakes when it is used", &auto_resume,
		  false },
		{ "--no-internet", NULL, "it reaches nothing outside", &no_internet, false },
		{ "--private", NULL, "its ports want its traffic token", &private, false },
		{ "-e, --env", "K=V", "environment of all its commands; may be repeated", env,
		  true },
		{ "-l, --label, --meta", "K=V", "metadata; may be repeated", meta, true },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	uint64_t seconds = CREATE_SECONDS_DEFAULT;
	json_t *envs, *metas, *body;

	PARSED(n);
	if (n > 1 || (n == 1 && template))
		return cli_usage_error(c, "it takes one template");
	if (timeout && (cli_seconds(timeout, &seconds) < 0 || !seconds))
		return cli_usage_error(c, "--timeout needs seconds, or 30m, 12h, 7d, not \"%s\"",
				       timeout);
	if (name && (!*name || strlen(name) > CLI_NAME_MAX))
		return cli_usage_error(c, "--name needs 1 to %d bytes", CLI_NAME_MAX);
	envs = json_object();
	metas = json_object();
	body = json_pack("{s:s,s:I,s:o,s:o}", "template", n ? argv[1] : template ?: "base",
			 "timeoutSeconds", (json_int_t)seconds, "env", envs, "metadata", metas);
	if (!body)
		return cli_usage_error(c, "the name of the template is not UTF-8");
	if (no_internet)
		json_object_set_new(body, "internet", json_false());
	if (private)
		json_object_set_new(body, "publicTraffic", json_false());
	if (!(r = add_pairs(c, "--env", env, envs)) &&
	    !(r = add_pairs(c, "--label", meta, metas)) &&
	    !(r = add_lifecycle(c, on_timeout, auto_resume, body))) {
		if (name && json_object_set_new(metas, "name", json_string(name)) < 0)
			r = cli_usage_error(c, "--name is not UTF-8");
		else
			r = create(c, body);
	}
	json_decref(body);
	return r;
}

/* ---- ls ---- */

struct filter { const char *states; const char **labels; const char *template, *name; };

static const char *text_of(json_t *v, const char *key)
{
	const char *s = json_string_value(json_object_get(v, key));

	return s && *s ? s : "-";
}

static const char *name_of(json_t *v)
{
	return text_of(json_object_get(v, "metadata"), "name");
}

/* What `ls` leaves out unless asked for: nothing of it takes part in anything. */
static bool is_at_rest(const char *state)
{
	return str_eq(state, "stopped") || str_eq(state, "suspended") || str_eq(state, "failed");
}

static bool in_list(const char *csv, const char *word)
{
	size_t n = strlen(word);

	for (const char *p = csv; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (strncmp(p, word, n) == 0 && (p[n] == ',' || !p[n]))
			return true;
	return false;
}

/* "K=V", or "K": any value. */
static bool has_label(json_t *v, const char *label)
{
	size_t n = strcspn(label, "=");
	autofree char *key = x_strndup(label, n);
	const char *value = json_string_value(
		json_object_get(json_object_get(v, "metadata"), key));

	return value && (!label[n] || str_eq(value, label + n + 1));
}

static bool fits(json_t *v, const struct filter *f, bool all)
{
	const char *state = text_of(v, "state");

	if (f->states ? !in_list(f->states, state) : !all && is_at_rest(state))
		return false;
	if (f->template && !str_eq(text_of(v, "templateName"), f->template) &&
	    !str_eq(text_of(v, "template"), f->template))
		return false;
	if (f->name && !str_eq(name_of(v), f->name))
		return false;
	for (int i = 0; f->labels[i]; i++)
		if (!has_label(v, f->labels[i]))
			return false;
	return true;
}

static int check_states(struct cli *c, const char *csv)
{
	for (const char *p = csv; p && *p; p += *p == ',') {
		size_t n = strcspn(p, ",");
		unsigned s = LIFE_NONE + 1;

		while (s < LIFE_STATE_COUNT && !(strlen(life_state_names[s]) == n &&
						 strncmp(life_state_names[s], p, n) == 0))
			s++;
		if (s == LIFE_STATE_COUNT)
			return cli_usage_error(
				c,
				"there is no state \"%.*s\"; running, paused, stopped, failed are some",
				(int)n, p);
		p += n;
	}
	return 0;
}

/* docker's --filter KEY=VALUE. */
static int take_filters(struct cli *c, const char **filters, struct filter *f)
{
	size_t n = 0;

	while (f->labels[n])
		n++;
	for (int i = 0; filters[i]; i++) {
		const char *s = filters[i];

		if (str_starts(s, "state=") || str_starts(s, "status="))
			f->states = strchr(s, '=') + 1;
		else if (str_starts(s, "name="))
			f->name = strchr(s, '=') + 1;
		else if (str_starts(s, "template="))
			f->template = strchr(s, '=') + 1;
		else if (str_starts(s, "label=") && n < CLI_REPEAT_MAX)
			f->labels[n++] = strchr(s, '=') + 1;
		else
			return cli_usage_error(
				c, "--filter knows state=, name=, template= and label=, not \"%s\"",
				s);
	}
	return check_states(c, f->states);
}

static void add_time(struct table *t, const char *iso, bool since)
{
	int64_t at, now = clock_wall_ms();
	char text[16];

	if (clock_parse_iso(iso, &at) < 0) {
		table_add(t, "-");
		return;
	}
	text_age(since ? now - at : at - now, text);
	table_add(t, text);
}

static void print_list(json_t *list)
{
	static const char *const heads[] = { "SANDBOX",	   "STATE", "TEMPLATE", "AGE", "LEFT",
					     "GENERATION", "NAME",  "REASON" };
	struct table t;
	json_t *v;
	size_t i;

	table_init(&t, ARRAY_LEN(heads), heads);
	json_array_foreach(list, i, v) {
		const char *name = text_of(v, "templateName");

		table_add(&t, text_of(v, "id"));
		table_add(&t, text_of(v, "state"));
		table_add(&t, *name == '-' ? text_of(v, "template") : name);
		add_time(&t, text_of(v, "createdAt"), true);
		add_time(&t, text_of(v, "endAt"), false);
		table_addf(&t, "%lld",
			   (long long)json_integer_value(json_object_get(v, "generation")));
		table_add(&t, name_of(v));
		table_add(&t, text_of(v, "reason"));
	}
	table_print(&t);
}

int cmd_ls(struct cli *c, int argc, char **argv)
{
	const char *all = NULL, *ids = NULL, *labels[CLI_REPEAT_MAX + 1] = { 0 },
		   *filters[CLI_REPEAT_MAX + 1] = { 0 };
	struct filter f = { .labels = labels };
	const struct cli_option opts[] = {
		{ "-a, --all", NULL, "stopped and failed ones too", &all, false },
		{ "-q", NULL, "IDs only", &ids, false },
		{ "--state", "STATE", "only in this state; several: running,paused", &f.states,
		  false },
		{ "-l, --label", "K=V", "only with this metadata (K: any value); may be repeated",
		  labels, true },
		{ "--template", "NAME", "only of this template", &f.template, false },
		{ "-f, --filter", "KEY=VALUE", "as docker: state=, label=, name=, template=",
		  filters, true },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	struct err e = { 0 };
	json_t *list;

	PARSED(n);
	if (n > 0)
		return cli_usage_error(c, "it takes no arguments; `space inspect` shows one");
	if ((r = take_filters(c, filters, &f)))
		return r;
	if (creds_load(c, &e) < 0 || api_list(c, &list, &e) < 0)
		return cli_fail(c, &e);
	for (size_t i = json_array_size(list); i-- > 0;)
		if (!fits(json_array_get(list, i), &f, all))
			json_array_remove(list, i);
	if (c->json) {
		cli_print_json(list);
	} else if (ids || c->quiet) {
		for (size_t i = 0; i < json_array_size(list); i++) {
			cli_print_safe(text_of(json_array_get(list, i), "id"));
			putchar('\n');
		}
	} else {
		print_list(list);
	}
	json_decref(list);
	return 0;
}

int cmd_inspect(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1), failed = 0;
	json_t *list, *v;

	PARSED(n);
	if (!n)
		return cli_usage_error(c, "which sandbox?");
	list = json_array();
	for (int i = 1; i <= n; i++) {
		struct err e = { 0 };
		char id[64];

		c->request_id[0] = '\0';
		if (box_id(c, argv[i], id, &e) == 0 && cli_get_sandbox(c, id, &v, &e) == 0)
			json_array_append_new(list, v);
		else
			failed = cli_failed_one(c, argv[i], list, &e);
	}
	cli_print_json(list);
	json_decref(list);
	return failed;
}

/* For eval: whatever the value holds, it is one word. */
static void print_export(const char *name, const char *value)
{
	printf("export %s='", name);
	for (const char *p = value; *p; p++) {
		if (*p == '\'')
			fputs("'\\''", stdout);
		else
			putchar(*p);
	}
	fputs("'\n", stdout);
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
	print_export("E2B_API_URL", c->api_url);
	print_export("E2B_SANDBOX_URL", c->api_url);
	print_export("E2B_API_KEY", c->api_key);
	return 0;
}
