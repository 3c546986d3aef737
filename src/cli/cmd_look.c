/* What goes on in a sandbox: logs, metrics. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/cli.h"

#define FOLLOW_MS 1000
#define WATCH_SECONDS_DEFAULT 2
#define WATCH_SECONDS_MAX 3600
#define TAIL_LINES_MAX 1000000
#define OVERLAP_BYTES 512

static const char *text_of(json_t *v, const char *key)
{
	const char *s = json_string_value(json_object_get(v, key));

	return s && *s ? s : "-";
}

/* ---- logs ---- */

static const char *console_of(json_t *v)
{
	return json_string_value(json_object_get(v, "text")) ?: "";
}

/*
 * A sandbox writes its console as it likes. So that no line of it looks like an event, each line
 * says where it comes from. The bytes as they are: --json.
 */
static void print_console_line(const char *line, size_t n)
{
	autofree char *safe = text_safe(line, n);

	printf("console | %s\n", safe);
}

static void print_event(json_t *ev)
{
	char when[CLOCK_ISO_LEN];
	const char *time = json_string_value(json_object_get(ev, "time"));

	if (!time) {
		clock_iso(when, json_integer_value(json_object_get(ev, "t")));
		time = when;
	}
	fputs("event   | ", stdout);
	cli_print_safe(time);
	putchar(' ');
	cli_print_safe(text_of(ev, "text"));
	putchar('\n');
}

/* The last `lines` lines of the text begin here. */
static const char *tail_of(const char *text, size_t lines)
{
	const char *p = text + strlen(text);

	if (p > text && p[-1] == '\n')
		p--;
	while (p > text && !(p[-1] == '\n' && --lines == 0))
		p--;
	return p;
}

/* Whole lines of the text; a rest without an end stays when `whole`. Gives what was used. */
static size_t print_console(const char *text, bool whole)
{
	const char *p = text;

	while (*p) {
		size_t n = strcspn(p, "\n"), len = n;

		if (!p[n] && whole)
			break;
		while (len && p[len - 1] == '\r')
			len--;
		if (len)
			print_console_line(p, len);
		p += n + (p[n] == '\n');
	}
	return (size_t)(p - text);
}

/*
 * What of `now` is behind the end of `before`: both are the end of the same growing text. Looks for
 * the last bytes of the old one; all of it is new when they are not there.
 */
static const char *new_part(const char *before, const char *now)
{
	size_t n = strlen(before), k = n < OVERLAP_BYTES ? n : OVERLAP_BYTES;
	const char *end = before + n - k, *at = now, *found = NULL;

	if (!n)
		return now;
	if (strncmp(now, before, n) == 0)
		return now + n;
	while ((at = strstr(at, end))) {
		found = at + k;
		at++;
	}
	return found ? found : now;
}

static int logs_get(struct cli *c, const char *id, bool first, json_t **ret, struct err *e)
{
	char target[128];

	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s/logs", id);
	return first ? api_call_progress(c, "reading", "GET", target, NULL, ret, e)
		     : api_call(c, "GET", target, NULL, ret, e);
}

/* Until the sandbox goes, or nobody reads any more. */
static int logs_follow(struct cli *c, const char *id, json_t *answer, struct err *e)
{
	autofree char *before = x_strdup(console_of(answer));
	size_t events = json_array_size(json_object_get(answer, "events"));

	for (;;) {
		json_t *next, *list;
		const char *fresh;
		int r;

		if (fflush(stdout) == EOF)
			return 0;
		poll(NULL, 0, FOLLOW_MS);
		r = logs_get(c, id, false, &next, e);
		if (r == -ENOENT) {
			cli_note(c, "the sandbox %s is gone", id);
			return 0;
		}
		if (r == -EAGAIN || r == -ETIMEDOUT)
			continue;
		if (r < 0)
			return r;
		list = json_object_get(next, "events");
		for (size_t i = events; i < json_array_size(list); i++)
			print_event(json_array_get(list, i));
		if (json_array_size(list) > events)
			events = json_array_size(list);
		fresh = new_part(before, console_of(next));
		size_t used = print_console(fresh, true);
		char *kept = x_strndup(console_of(next),
				       (size_t)(fresh - console_of(next)) + used);

		free(before);
		before = kept;
		json_decref(next);
	}
}

int cmd_logs(struct cli *c, int argc, char **argv)
{
	const char *follow = NULL, *tail = NULL;
	const struct cli_option opts[] = {
		{ "-f, --follow", NULL, "go on with what comes", &follow, false },
		{ "-n, --tail", "LINES", "only the last lines of the console", &tail, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	uint64_t lines = 0;
	struct err e = { 0 };
	char id[64];
	json_t *answer, *ev;
	size_t i;

	PARSED(n);
	if (n != 1)
		return cli_usage_error(c, "which sandbox?");
	if (tail && (str_to_u64(tail, TAIL_LINES_MAX, &lines) < 0))
		return cli_usage_error(c, "--tail needs a number of lines");
	if (follow && c->json)
		return cli_usage_error(c, "--follow has no --json");
	r = box_id(c, argv[1], id, &e);
	if (r >= 0)
		r = logs_get(c, id, true, &answer, &e);
	if (r < 0)
		return cli_fail(c, &e);
	if (c->json) {
		cli_print_json(answer);
	} else {
		const char *text = console_of(answer);

		json_array_foreach(json_object_get(answer, "events"), i, ev)
			print_event(ev);
		if (!tail || lines)
			print_console(tail ? tail_of(text, lines) : text, false);
		if (follow)
			r = logs_follow(c, id, answer, &e);
	}
	json_decref(answer);
	return r < 0 ? cli_fail(c, &e) : 0;
}

/* ---- metrics ---- */

/* The newest sample with the sandbox's ID; an empty object while there is none. */
static int metrics_one(struct cli *c, const char *id, json_t *list, struct err *e)
{
	char target[128];
	json_t *answer, *last;
	int r;

	(void)str_format(target, sizeof(target), "/sandboxes/%s/metrics", id);
	r = api_call(c, "GET", target, NULL, &answer, e);
	if (r < 0)
		return r == -ENOENT ? err_set_code(e, r, "sandbox-not-found",
						   "there is no sandbox %s that runs", id)
				    : err_wrap(e, "%s", id);
	last = json_array_size(answer) ? json_array_get(answer, json_array_size(answer) - 1) : NULL;
	last = last ? json_copy(last) : json_object();
	json_object_set_new(last, "id", json_string(id));
	json_array_append_new(list, last);
	json_decref(answer);
	return 0;
}

static void add_part(struct table *t, json_t *m, const char *used_name, const char *total_name)
{
	double used = json_number_value(json_object_get(m, used_name)),
	       total = json_number_value(json_object_get(m, total_name));
	char a[16], b[16];

	text_bytes(used > 0 ? (uint64_t)used : 0, a);
	text_bytes(total > 0 ? (uint64_t)total : 0, b);
	table_addf(t, "%s / %s", a, b);
	if (total > 0)
		table_addf(t, "%.0f%%", 100 * used / total);
	else
		table_add(t, "-");
}

static void metrics_print(json_t *list)
{
	static const char *const heads[] = { "SANDBOX", "CPU", "CPUS", "MEMORY USED / ALL", "MEM",
					     "DISK USED / ALL", "DISK" };
	struct table t;
	json_t *m;
	size_t i;

	table_init(&t, ARRAY_LEN(heads), heads);
	json_array_foreach(list, i, m) {
		table_add(&t, text_of(m, "id"));
		if (!json_object_get(m, "memTotal")) {
			for (size_t k = 1; k < ARRAY_LEN(heads); k++)
				table_add(&t, "-");
			continue;
		}
		table_addf(&t, "%.1f%%", json_number_value(json_object_get(m, "cpuUsedPct")));
		table_addf(&t, "%.0f", json_number_value(json_object_get(m, "cpuCount")));
		add_part(&t, m, "memUsed", "memTotal");
		add_part(&t, m, "diskUsed", "diskTotal");
	}
	table_print(&t);
}

/* The IDs that were asked for, or all that run. */
static int metrics_ids(struct cli *c, char *const *names, int n, json_t *ids, struct err *e)
{
	json_t *list, *v;
	size_t i;
	int r = creds_load(c, e);

	for (int k = 0; k < n && r >= 0; k++) {
		char id[64];

		r = box_id(c, names[k], id, e);
		if (r >= 0)
			json_array_append_new(ids, json_string(id));
	}
	if (r < 0 || n)
		return r;
	r = api_list(c, &list, e);
	if (r < 0)
		return r;
	json_array_foreach(list, i, v)
		if (str_eq(text_of(v, "state"), "running"))
			json_array_append(ids, json_object_get(v, "id"));
	json_decref(list);
	return 0;
}

static int metrics_round(struct cli *c, char *const *names, int n, bool clear)
{
	json_t *ids = json_array(), *list = json_array(), *id;
	struct err e = { 0 };
	int r = metrics_ids(c, names, n, ids, &e), failed = 0;
	size_t i;

	if (r < 0)
		failed = cli_fail(c, &e);
	json_array_foreach(ids, i, id) {
		e = (struct err){ 0 };
		if (metrics_one(c, json_string_value(id), list, &e) < 0 && n)
			failed = cli_failed_one(c, json_string_value(id), list, &e);
	}
	if (clear)
		fputs("\033[H\033[J", stdout);
	if (c->json && r >= 0)
		cli_print_json(list);
	else if (r >= 0)
		metrics_print(list);
	json_decref(ids);
	json_decref(list);
	return failed;
}

int cmd_metrics(struct cli *c, int argc, char **argv)
{
	const char *watch = NULL, *interval = NULL;
	const struct cli_option opts[] = {
		{ "-w, --watch", NULL, "again and again, until Ctrl-C", &watch, false },
		{ "--interval", "SECONDS", "between two looks (with --watch; default 2)",
		  &interval, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	uint64_t seconds = WATCH_SECONDS_DEFAULT;

	PARSED(n);
	if (interval && (str_to_u64(interval, WATCH_SECONDS_MAX, &seconds) < 0 || !seconds))
		return cli_usage_error(c, "--interval needs a number of seconds");
	for (;;) {
		r = metrics_round(c, argv + 1, n, watch && !c->json && isatty(STDOUT_FILENO));
		if (!watch || r || fflush(stdout) == EOF)
			return r;
		poll(NULL, 0, (int)seconds * 1000);
	}
}
