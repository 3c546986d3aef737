/* The network of a sandbox: its flow log, its counters. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

#define FOLLOW_MS 1000

static const char *text_of(json_t *v, const char *key)
{
	const char *s = json_string_value(json_object_get(v, key));

	return s && *s ? s : "-";
}

static json_int_t number_of(json_t *v, const char *key)
{
	return json_integer_value(json_object_get(v, key));
}

/* ---- log ---- */

struct net_log {
	char id[64];
	json_int_t after;
	char epoch[80];
	json_t *list;                    /* with --json: all records so far */
	bool follow;                     /* with --json: a record is one line */
};

static char *safe_of(json_t *rec, const char *key)
{
	return text_safe(text_of(rec, key), strlen(text_of(rec, key)));
}

/* Where it went or came to; an IPv6 address in brackets. */
static char *place_of(json_t *rec)
{
	const char *addr = text_of(rec, "address");
	autofree char *text = x_asprintf(strchr(addr, ':') ? "[%s]:%lld" : "%s:%lld", addr,
					 (long long)number_of(rec, "port"));

	return text_safe(text, strlen(text));
}

/*
 * One line a record, with columns that are the same for all, since they come one by one. "begun" is
 * a flow that goes on.
 */
static void print_record(json_t *rec)
{
	bool refused = str_eq(text_of(rec, "verdict"), "refuse"),
	     open = !json_object_get(rec, "endTime") && !refused;
	autofree char *place = place_of(rec), *name = safe_of(rec, "name"),
		      *reason = safe_of(rec, "reason"), *when = safe_of(rec, "time"),
		      *proto = safe_of(rec, "protocol"), *dir = safe_of(rec, "direction");
	char up[16], down[16];

	text_bytes((uint64_t)number_of(rec, "bytesUp"), up);
	text_bytes((uint64_t)number_of(rec, "bytesDown"), down);
	printf("%s  %-3s  %-4s  %-7s  %-24s  %9s up  %9s down  %s%s%s\n", when, dir, proto,
	       refused ? "refused" : open ? "begun" : "ended", place, up, down, name,
	       str_eq(reason, "-") ? "" : "  ", str_eq(reason, "-") ? "" : reason);
}

static void print_json_line(json_t *rec)
{
	autofree char *line = json_dumps(rec, JSON_COMPACT | JSON_SORT_KEYS),
		      *safe = text_json_safe(line);

	puts(safe);
}

static int log_page(struct cli *c, struct net_log *l, json_t **ret, struct err *e)
{
	char target[160];

	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s/net/log?after=%lld", l->id,
			 (long long)l->after);
	return api_call(c, "GET", target, NULL, ret, e);
}

/* 1: there was something, ask at once for more; 0: that was all for now. */
static int log_round(struct cli *c, struct net_log *l, struct err *e)
{
	json_t *page, *rec;
	const char *epoch;
	size_t i, n;
	int r = log_page(c, l, &page, e);

	if (r < 0)
		return r;
	epoch = json_string_value(json_object_get(page, "epoch")) ?: "";
	if (l->epoch[0] && !str_eq(l->epoch, epoch)) {
		cli_note(c, "the network gateway was started again; its connections have ended");
		l->after = 0;
		l->epoch[0] = '\0';
		json_decref(page);
		return 1;
	}
	(void)str_copy(l->epoch, sizeof(l->epoch), epoch);
	if (number_of(page, "lost") > 0)
		cli_note(c, "%lld older records are not kept any more",
			 (long long)number_of(page, "lost"));
	n = json_array_size(json_object_get(page, "records"));
	json_array_foreach(json_object_get(page, "records"), i, rec)
		if (l->list)
			json_array_append(l->list, rec);
		else if (c->json)
			print_json_line(rec);
		else
			print_record(rec);
	l->after = number_of(page, "next");
	json_decref(page);
	return n > 0;
}

static int log_all(struct cli *c, struct net_log *l, struct err *e)
{
	for (;;) {
		int r = log_round(c, l, e);

		if (r == -ENOENT && l->epoch[0]) {
			cli_note(c, "the sandbox %s is gone", l->id);
			return 0;
		}
		if (r == 1 || (l->follow && l->epoch[0] && (r == -EAGAIN || r == -ETIMEDOUT)))
			r = r == 1 ? 1 : 0;
		if (r < 0 || (r == 0 && !l->follow))
			return r;
		if (fflush(stdout) == EOF)
			return 0;
		if (r == 0)
			poll(NULL, 0, FOLLOW_MS);
	}
}

static int net_log(struct cli *c, const char *name, bool follow)
{
	struct net_log l = { .follow = follow };
	struct err e = { 0 };
	int r = creds_load(c, &e);

	if (r >= 0)
		r = box_id(c, name, l.id, &e);
	if (r >= 0 && c->json && !follow)
		l.list = json_array();
	if (r >= 0)
		r = log_all(c, &l, &e);
	if (r >= 0 && l.list)
		cli_print_json(l.list);
	json_decref(l.list);
	return r < 0 ? cli_fail(c, &e) : 0;
}

/* ---- stats ---- */

static void print_stats(json_t *v)
{
	static const char *const heads[] = { "COUNTER", "VALUE" };
	struct table t;
	const char *name;
	json_t *n;

	table_init(&t, ARRAY_LEN(heads), heads);
	table_add(&t, "gateway");
	table_add(&t, text_of(v, "gateway"));
	table_add(&t, "internet");
	table_add(&t, json_is_true(json_object_get(v, "internet")) ? "yes" : "no");
	if (!str_eq(text_of(v, "reason"), "-")) {
		table_add(&t, "reason");
		table_add(&t, text_of(v, "reason"));
	}
	json_object_foreach(json_object_get(v, "counters"), name, n) {
		table_add(&t, name);
		table_addf(&t, "%lld", (long long)json_integer_value(n));
	}
	table_print(&t);
}

static int net_stats(struct cli *c, const char *name)
{
	struct err e = { 0 };
	char id[64], target[128];
	json_t *v;
	int r = creds_load(c, &e);

	if (r >= 0)
		r = box_id(c, name, id, &e);
	if (r < 0)
		return cli_fail(c, &e);
	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s/net/stats", id);
	r = api_call(c, "GET", target, NULL, &v, &e);
	if (r < 0)
		return cli_fail(c, &e);
	if (c->json)
		cli_print_json(v);
	else
		print_stats(v);
	json_decref(v);
	return 0;
}

int cmd_net(struct cli *c, int argc, char **argv)
{
	const char *follow = NULL;
	const struct cli_option opts[] = {
		{ "-f, --follow", NULL, "go on with what comes (log)", &follow, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1);

	PARSED(n);
	if (n == 2 && str_eq(argv[1], "log"))
		return net_log(c, argv[2], follow != NULL);
	if (n == 2 && str_eq(argv[1], "stats") && !follow)
		return net_stats(c, argv[2]);
	return cli_usage_error(c, "`space net log SANDBOX` or `space net stats SANDBOX`");
}
