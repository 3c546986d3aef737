/* The option parser that serves all commands, and what they print. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

static void print_command_help(const struct cli_command *k, const struct cli_option *opts)
{
	printf("Usage: space %s %s\n\n%s.\n", k->name, k->usage, k->help);
	for (const struct cli_option *o = opts; o && o->name; o++) {
		char left[64];

		(void)str_format(left, sizeof(left), "%s %s", o->name, o->arg ? o->arg : "");
		printf("  %-24s %s\n", left, o->help);
	}
	printf("  %-24s %s\n", "--json", "machine-readable output");
	printf("  %-24s %s\n", "--quiet", "no progress, no hints");
}

static const struct cli_option *find_option(const struct cli_option *opts, const char *arg,
					    const char **inline_value)
{
	*inline_value = NULL;
	for (const struct cli_option *o = opts; o && o->name; o++) {
		size_t n = strlen(o->name);

		if (strncmp(arg, o->name, n))
			continue;
		if (!arg[n])
			return o;
		if (arg[n] == '=' && o->arg && n > 2) {
			*inline_value = arg + n + 1;
			return o;
		}
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
	return cli_usage_error(c, "%s was given more than %d times", o->name, CLI_REPEAT_MAX);
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

int cli_parse(struct cli *c, int argc, char **argv, const struct cli_option *opts, int stop_after)
{
	int n = 0;

	bool rest = false;

	for (int i = 1; i < argc; i++) {
		const char *a = argv[i], *value;
		const struct cli_option *o;
		int r;

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
		o = find_option(opts, a, &value);
		if (!o) {
			r = parse_common(c, a, opts);
			if (r < 0)
				return r;
			continue;
		}
		if (o->arg && !value) {
			if (i + 1 >= argc) {
				cli_usage_error(c, "%s needs %s", o->name, o->arg);
				return -1;
			}
			value = argv[++i];
		}
		if (store_value(c, o, o->arg ? value : "1"))
			return -1;
	}
	argv[n + 1] = NULL;
	return n;
}

int cli_usage_error(struct cli *c, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fprintf(stderr, "space %s: ", c->command);
	vfprintf(stderr, fmt, ap);
	fprintf(stderr, "; see `space %s --help`\n", c->command);
	va_end(ap);
	return 2;
}

int cli_fail(struct cli *c, const struct err *e)
{
	autofree char *text = str_printable(e->text, strlen(e->text));

	if (c->json) {
		json_t *v = json_pack("{s:{s:s,s:s}}", "error", "code", err_code(e), "message",
				      e->text);

		cli_print_json(v);
		json_decref(v);
	}
	fprintf(stderr, "space %s: %s\n", c->command, text);
	return 1;
}

void cli_note(struct cli *c, const char *fmt, ...)
{
	va_list ap;

	if (c->quiet)
		return;
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
}

void cli_print_json(json_t *v)
{
	autofree char *s = json_dumps(v, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_SORT_KEYS);

	puts(s ? s : "null");
}

void cli_print_safe(const char *s)
{
	if (isatty(STDOUT_FILENO)) {
		autofree char *p = str_printable(s, strlen(s));

		fputs(p, stdout);
	} else {
		fputs(s, stdout);
	}
}
