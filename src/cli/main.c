/* The table of commands, the option parser that serves all of them, and what they print. */
#include <locale.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

const struct cli_command cli_commands[] = {
	{ "up", "[--detach] [--size SIZE] [--port PORT] [--instance NAME]",
	  "run a node on this machine (root)", cmd_up, "The node" },
	{ "down", "[--instance NAME]", "stop all sandboxes and the node (root)", cmd_down, "The node" },
	{ "key", "new|ls|revoke|rotate|reset [...]", "API keys and signing keys (root)", cmd_key, "The node" },
	{ "env", "", "print the exports that move an existing agent here", cmd_env, "The node" },
	{ "create", "[--template NAME] [--timeout SECONDS] [--env K=V] [--meta K=V]",
	  "make a sandbox and print its ID", cmd_create, "Sandboxes" },
	{ "ls", "[--all]", "list sandboxes", cmd_ls, "Sandboxes" },
	{ "stop", "SANDBOX...", "end the VM, keep the disk", cmd_life, "Sandboxes" },
	{ "start", "SANDBOX...", "boot from the kept disk; a running one is started anew", cmd_life, "Sandboxes" },
	{ "kill", "SANDBOX...", "delete sandboxes; nothing stays", cmd_life, "Sandboxes" },
	{ "exec", "[-i] [-t] [-u USER] [-w DIR] [-e K=V] SANDBOX [--] COMMAND [ARG...]",
	  "run a command and give its exit code", cmd_exec, "Inside a sandbox" },
	{ "shell", "[-u USER] SANDBOX", "a login shell in a terminal", cmd_shell, "Inside a sandbox" },
	{ "ps", "SANDBOX", "commands that run in a sandbox", cmd_ps, "Inside a sandbox" },
	{ "cp", "SOURCE DESTINATION", "copy a file: SANDBOX:PATH on one side, a path or - on the other",
	  cmd_cp, "Inside a sandbox" },
	{ "logs", "SANDBOX", "console and events of a sandbox", cmd_logs, "Inside a sandbox" },
	{ "version", "", "print the version", cmd_version, "Other" },
};
const unsigned cli_commands_len = ARRAY_LEN(cli_commands);

static const struct cli_command *find_command(const char *name)
{
	for (unsigned i = 0; i < cli_commands_len; i++)
		if (str_eq(cli_commands[i].name, name))
			return &cli_commands[i];
	return NULL;
}

static void print_help(FILE *f)
{
	const char *group = "";

	fputs("Usage: space COMMAND [OPTIONS] [ARGUMENTS]\n", f);
	for (unsigned i = 0; i < cli_commands_len; i++) {
		const struct cli_command *k = &cli_commands[i];

		if (!str_eq(group, k->group))
			fprintf(f, "\n%s:\n", k->group);
		group = k->group;
		fprintf(f, "  %-8s %s\n", k->name, k->help);
	}
	fputs("\nEvery command takes --json, --quiet and --help. Names of sandboxes may be cut short.\n"
	      "Begin with: sudo space up, then: space create; space exec ID -- uname -a\n", f);
}

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

static const struct cli_option *find_option(const struct cli_option *opts, const char *arg, const char **inline_value)
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
		print_command_help(find_command(c->command), opts);
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
			/* "SANDBOX -- COMMAND": the marker right behind the last own argument is ours. */
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
		json_t *v = json_pack("{s:{s:s,s:s}}", "error", "code", err_code(e), "message", e->text);

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

int cmd_version(struct cli *c, int argc, char **argv)
{
	int n = cli_parse(c, argc, argv, NULL, -1);

	if (n < 0)
		return n == -2 ? 0 : 2;
	if (c->json)
		printf("{\"version\": \"%s\"}\n", SPACE_VERSION);
	else
		printf("space %s\n", SPACE_VERSION);
	return 0;
}

int main(int argc, char **argv)
{
	struct cli c = { .command = "", .instance = "default" };
	const struct cli_command *k;

	signal(SIGPIPE, SIG_IGN);
	if (argc < 2 || str_eq(argv[1], "--help") || str_eq(argv[1], "-h") || str_eq(argv[1], "help")) {
		print_help(argc < 2 ? stderr : stdout);
		return argc < 2 ? 2 : 0;
	}
	if (str_eq(argv[1], "--version"))
		argv[1] = (char *)"version";
	k = find_command(argv[1]);
	if (!k) {
		fprintf(stderr, "space: there is no command \"%s\"; `space --help` lists them\n", argv[1]);
		return 2;
	}
	c.command = k->name;
	return k->run(&c, argc - 1, argv + 1);
}
