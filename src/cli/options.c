/* The option parser that serves all commands, and what they say. */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

#define HELP_LEFT 26

static void print_help_line(const char *left, const char *help)
{
	/* Long options stand in one column, whether they have a short form or not. */
	const char *indent = left[0] == '-' && left[1] == '-' ? "    " : "";
	size_t n = strlen(indent) + strlen(left);

	if (n > HELP_LEFT)
		printf("  %s%s\n  %*s %s\n", indent, left, HELP_LEFT, "", help);
	else
		printf("  %s%-*s %s\n", indent, (int)(HELP_LEFT - strlen(indent)), left, help);
}

static void print_command_help(const struct cli_command *k, const struct cli_option *opts)
{
	printf("Usage: space %s%s%s\n\n%c%s.\n", k->name, *k->usage ? " " : "", k->usage,
	       k->help[0] >= 'a' && k->help[0] <= 'z' ? k->help[0] - 0x20 : k->help[0],
	       k->help + 1);
	puts("\nOptions:");
	for (const struct cli_option *o = opts; o && o->name; o++) {
		char left[64];

		(void)str_format(left, sizeof(left), "%s%s%s", o->name, o->arg ? " " : "",
				 o->arg ? o->arg : "");
		print_help_line(left, o->help);
	}
	print_help_line("--json", "machine-readable output (man space: its fields)");
	print_help_line("--quiet", "no progress, no hints");
	print_help_line("-h, --help", "this text");
	if (k->more)
		printf("\n%s\n", k->more);
}

/* Is `arg` (n bytes) one of the names of the option? "-e, --env" has two. */
static bool has_name(const struct cli_option *o, const char *arg, size_t n)
{
	for (const char *p = o->name; *p;) {
		size_t len = strcspn(p, ",");

		if (len == n && strncmp(p, arg, n) == 0)
			return true;
		p += len;
		p += strspn(p, ", ");
	}
	return false;
}

/* "--name", "--name=value", "-n", and "-nvalue" when it takes one. */
static const struct cli_option *find_option(const struct cli_option *opts, const char *arg,
					    const char **inline_value)
{
	bool is_long = str_starts(arg, "--");
	size_t n = is_long ? strcspn(arg, "=") : 2;

	*inline_value = NULL;
	for (const struct cli_option *o = opts; o && o->name; o++) {
		if (!has_name(o, arg, n) || (arg[n] && !o->arg))
			continue;
		if (arg[n])
			*inline_value = arg + n + (is_long ? 1 : 0);
		return o;
	}
	return NULL;
}

static int store_value(struct cli *c, const struct cli_option *o, const char *value)
{
	if (!o->repeat) {
		*o->value = value;
		return 0;
	}
	for (int i = 0; i < CLI_REPEAT_MAX; i++) {
		if (!o->value[i]) {
			o->value[i] = value;
			return 0;
		}
	}
	cli_usage_error(c, "%s was given more than %d times", o->name, CLI_REPEAT_MAX);
	return -1;
}

static int parse_common(struct cli *c, const char *a, const struct cli_option *opts)
{
	if (str_eq(a, "--json"))
		c->json = true;
	else if (str_eq(a, "--quiet"))
		c->quiet = true;
	else if (str_eq(a, "--help") || str_eq(a, "-h")) {
		print_command_help(c->self, opts);
		return -2;
	} else {
		cli_usage_error(c, "unknown option %s", a);
		return -1;
	}
	return 0;
}

/* "-it": every letter is a flag, and the last one may take a value ("-ite K=V"). */
static int parse_bundle(struct cli *c, const char *a, const struct cli_option *opts,
			const struct cli_option **ret_last)
{
	const struct cli_option *found[16];
	size_t n = 0;

	*ret_last = NULL;
	if (a[0] != '-' || a[1] == '-' || !a[1] || !a[2])
		return 0;
	for (const char *p = a + 1; *p; p++) {
		char one[3] = { '-', *p, '\0' };
		const char *unused;
		const struct cli_option *o = find_option(opts, one, &unused);

		if (!o || n == ARRAY_LEN(found) || (o->arg && p[1]))
			return 0;
		found[n++] = o;
	}
	for (size_t i = 0; i < n; i++)
		if (!found[i]->arg && store_value(c, found[i], "1"))
			return -1;
	if (found[n - 1]->arg)
		*ret_last = found[n - 1];
	return 1;
}

/* The option at argv[*i], with its value from the next word if need be. 0, or as cli_parse. */
static int parse_option(struct cli *c, int argc, char **argv, int *i,
			const struct cli_option *opts)
{
	const char *value;
	const struct cli_option *o = find_option(opts, argv[*i], &value);

	if (!o) {
		int r = parse_bundle(c, argv[*i], opts, &o);

		if (r < 0 || (r && !o))
			return r < 0 ? r : 0;
		if (!r)
			return parse_common(c, argv[*i], opts);
	}
	if (o->arg && !value) {
		if (*i + 1 >= argc) {
			cli_usage_error(c, "%s needs %s", o->name, o->arg);
			return -1;
		}
		value = argv[++*i];
	}
	return store_value(c, o, o->arg ? value : "1");
}

int cli_parse(struct cli *c, int argc, char **argv, const struct cli_option *opts, int stop_after)
{
	bool rest = false;
	int n = 0, r;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i];

		rest = rest || (stop_after >= 0 && n >= stop_after);
		if (!rest && str_eq(a, "--")) {
			rest = true;
			continue;
		}
		if (rest || a[0] != '-' || !a[1]) {
			/*
			 * "SANDBOX -- COMMAND": the marker right behind the last own argument is
			 * ours.
			 */
			if (!(str_eq(a, "--") && n == stop_after))
				argv[++n] = argv[i];
			else
				stop_after = -1;
			continue;
		}
		r = parse_option(c, argc, argv, &i, opts);
		if (r < 0)
			return r;
	}
	argv[n + 1] = NULL;
	return n;
}

/* One line on stderr, harmless whatever the arguments hold. */
static void __attribute__((format(printf, 3, 0))) say(const char *before, const char *after,
						      const char *fmt, va_list ap)
{
	autofree char *raw = NULL, *text = NULL;

	if (vasprintf(&raw, fmt, ap) < 0)
		abort();
	text = text_safe(raw, strlen(raw));
	fprintf(stderr, "%s%s%s\n", before, text, after);
}

int cli_usage_error(struct cli *c, const char *fmt, ...)
{
	autofree char *before = x_asprintf("space %s: ", c->command),
		      *after = x_asprintf("; see `space %s --help`", c->command);
	va_list ap;

	va_start(ap, fmt);
	say(before, after, fmt, ap);
	va_end(ap);
	return 2;
}

int cli_fail(struct cli *c, const struct err *e)
{
	autofree char *text = text_safe(e->text, strlen(e->text)),
		      *id = text_safe(c->request_id, strlen(c->request_id));

	if (c->json) {
		json_t *v = json_pack("{s:s,s:s}", "code", err_code(e), "message", text);

		if (id[0])
			json_object_set_new(v, "request_id", json_string(id));
		v = json_pack("{s:o}", "error", v);
		cli_print_json(v);
		json_decref(v);
	}
	if (id[0])
		fprintf(stderr, "space %s: %s (request %s)\n", c->command, text, id);
	else
		fprintf(stderr, "space %s: %s\n", c->command, text);
	return 1;
}

void cli_note(struct cli *c, const char *fmt, ...)
{
	va_list ap;

	if (c->quiet)
		return;
	va_start(ap, fmt);
	say("", "", fmt, ap);
	va_end(ap);
}

bool cli_nohup(void)
{
	struct sigaction at_start;

	return sigaction(SIGHUP, NULL, &at_start) == 0 && at_start.sa_handler == SIG_IGN;
}

void cli_print_json(json_t *v)
{
	autofree char *s = json_dumps(v, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_SORT_KEYS);
	autofree char *safe = text_json_safe(s ? s : "null");

	puts(safe);
}

void cli_print_safe(const char *s)
{
	autofree char *p = text_safe(s, strlen(s));

	fputs(p, stdout);
}

/* ---- did you mean? ---- */

#define WORD_MAX 24

/* What people type who come from elsewhere. */
static const struct { const char *word, *command; } elsewhere[] = {
	{ "run", "create" },	   { "new", "create" },	   { "rm", "kill" },
	{ "delete", "kill" },	   { "remove", "kill" },   { "destroy", "kill" },
	{ "list", "ls" },	   { "get", "ls" },	   { "describe", "inspect" },
	{ "show", "inspect" },	   { "info", "inspect" },  { "ssh", "shell" },
	{ "attach", "shell" },	   { "bash", "shell" },	   { "sh", "shell" },
	{ "copy", "cp" },	   { "scp", "cp" },	   { "unpause", "resume" },
	{ "stats", "metrics" },	   { "top", "metrics" },   { "log", "logs" },
	{ "restart", "start" },	   { "terminate", "kill" }, { "set-timeout", "timeout" },
	{ "login", "key" },	   { "keys", "key" },	   { "processes", "ps" },
};

/* Edits (insert, delete, replace, swap of neighbours) between two short words. */
static size_t distance(const char *a, const char *b)
{
	size_t d[WORD_MAX + 1][WORD_MAX + 1], n = strlen(a), m = strlen(b);

	if (n > WORD_MAX || m > WORD_MAX)
		return SIZE_MAX;
	for (size_t i = 0; i <= n; i++) {
		for (size_t k = 0; k <= m; k++) {
			size_t best = i + k;

			if (i && k) {
				best = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
				if (d[i - 1][k] + 1 < best)
					best = d[i - 1][k] + 1;
				if (d[i][k - 1] + 1 < best)
					best = d[i][k - 1] + 1;
				if (i > 1 && k > 1 && a[i - 1] == b[k - 2] &&
				    a[i - 2] == b[k - 1] && d[i - 2][k - 2] + 1 < best)
					best = d[i - 2][k - 2] + 1;
			}
			d[i][k] = best;
		}
	}
	return d[n][m];
}

const char *cli_did_you_mean(const char *word)
{
	const char *best = NULL;
	size_t least = strlen(word) > 3 ? 3 : 2;        /* at most 2 edits, 1 in a short word */

	for (size_t i = 0; i < ARRAY_LEN(elsewhere); i++)
		if (str_eq(elsewhere[i].word, word))
			return elsewhere[i].command;
	for (unsigned i = 0; i < cli_commands_len; i++) {
		size_t n = distance(word, cli_commands[i].name);

		if (n < least) {
			least = n;
			best = cli_commands[i].name;
		}
	}
	return best;
}
