/* Commands that act inside a sandbox: exec, shell, connect, ps. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/str.h"
#include "cli/cli.h"

/* As docker exec has it: what kept the command from running is no exit code of the command. */
#define EXIT_OURS 125
#define EXIT_CANNOT 126
#define EXIT_NOT_FOUND 127

#define PARSED_RUN(n) if ((n) < 0) return (n) == -2 ? 0 : EXIT_OURS

/* What a run gave, as an exit code; an error is said. */
static int run_exit(struct cli *c, int r, const struct run_result *result, const struct err *e)
{
	if (r >= 0)
		return r;
	cli_fail(c, e);
	return result->refused == RUN_NOT_FOUND ? EXIT_NOT_FOUND
	       : result->refused == RUN_CANNOT	? EXIT_CANNOT
						: EXIT_OURS;
}

static void say_detached(struct cli *c, const struct box *b, int64_t pid)
{
	if (c->json) {
		json_t *v = json_pack("{s:s,s:I}", "id", b->id, "pid", (json_int_t)pid);

		cli_print_json(v);
		json_decref(v);
	} else {
		printf("%lld\n", (long long)pid);
	}
}

int cmd_exec(struct cli *c, int argc, char **argv)
{
	const char *in = NULL, *tty = NULL, *detach = NULL, *user = NULL, *cwd = NULL,
		   *env[CLI_REPEAT_MAX + 1] = { 0 };
	const struct cli_option opts[] = {
		{ "-i, --interactive", NULL, "pass our standard input on", &in, false },
		{ "-t, --tty", NULL, "with a terminal (with -i: ours, raw)", &tty, false },
		{ "-d, --detach", NULL, "print its process number and leave it running", &detach,
		  false },
		{ "-u, --user", "USER", "as this user (default: user)", &user, false },
		{ "-w, --workdir", "DIR", "in this folder", &cwd, false },
		{ "-e, --env", "K=V", "set a variable, or pass on ours (K); may be repeated", env,
		  true },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, 1), r;
	struct run_result result = { 0 };
	struct err e = { 0 };
	struct box b;

	PARSED_RUN(n);
	if (n < 2)
		return cli_usage_error(c, "it needs a sandbox and a command"), EXIT_OURS;
	if (tty && in && !isatty(STDIN_FILENO))
		return cli_usage_error(c, "-it needs a terminal as standard input; use -i alone"),
		       EXIT_OURS;
	if (detach && (in || tty))
		return cli_usage_error(c, "-d goes without -i and -t"), EXIT_OURS;
	r = box_find(c, argv[1], &b, &e);
	if (r >= 0) {
		struct run_spec spec = { .argv = argv + 2,
					 .argc = n - 1,
					 .user = user,
					 .cwd = cwd,
					 .env = env,
					 .stdin_open = in != NULL,
					 .tty = tty != NULL,
					 .detach = detach != NULL,
					 .in_fd = STDIN_FILENO,
					 .out_fd = STDOUT_FILENO,
					 .err_fd = STDERR_FILENO };

		r = run_in_box_full(c, &b, &spec, &result, &e);
		if (r == 0 && detach)
			say_detached(c, &b, result.pid);
	}
	return run_exit(c, r, &result, &e);
}

static int open_shell(struct cli *c, const struct box *b, const char *user)
{
	char *const shell[] = { (char *)"/bin/bash", (char *)"-i", (char *)"-l", NULL };
	const char *env[] = { "LANG=C.UTF-8", "LC_ALL=C.UTF-8", NULL };
	struct run_spec spec = { .argv = shell,
				 .argc = 3,
				 .user = user,
				 .env = env,
				 .stdin_open = true,
				 .tty = true,
				 .in_fd = STDIN_FILENO,
				 .out_fd = STDOUT_FILENO,
				 .err_fd = STDERR_FILENO };
	struct run_result result = { 0 };
	struct err e = { 0 };
	int r = run_in_box_full(c, b, &spec, &result, &e);

	return run_exit(c, r, &result, &e);
}

int cmd_shell(struct cli *c, int argc, char **argv)
{
	const char *user = NULL;
	const struct cli_option opts[] = {
		{ "-u, --user", "USER", "as this user (default: user)", &user, false }, { 0 }
	};
	int n = cli_parse(c, argc, argv, opts, -1);
	struct run_result none = { 0 };
	struct err e = { 0 };
	struct box b;

	PARSED_RUN(n);
	if (n != 1)
		return cli_usage_error(c, n ? "it takes one sandbox; use `space exec` for a command"
					    : "which sandbox?"),
		       EXIT_OURS;
	if (!isatty(STDIN_FILENO))
		return cli_usage_error(c, "standard input is not a terminal; use `space exec -i`"),
		       EXIT_OURS;
	if (box_find(c, argv[1], &b, &e) < 0)
		return run_exit(c, -1, &none, &e);
	return open_shell(c, &b, user);
}

/* "Wakes it if need be" is the server's work: one call for a running, a paused sandbox alike. */
static int wake(struct cli *c, const char *id, uint64_t seconds, json_t **ret, struct err *e)
{
	json_t *body = json_object();
	char target[96];
	int r;

	if (seconds)
		json_object_set_new(body, "timeoutSeconds", json_integer((json_int_t)seconds));
	(void)str_format(target, sizeof(target), "/v1/sandboxes/%s/connect", id);
	r = api_call_progress(c, "waking", "POST", target, body, ret, e);
	json_decref(body);
	return r;
}

int cmd_connect(struct cli *c, int argc, char **argv)
{
	const char *user = NULL, *timeout = NULL, *no_shell = NULL;
	const struct cli_option opts[] = {
		{ "-u, --user", "USER", "as this user (default: user)", &user, false },
		{ "--timeout", "TIME", "life from now on, never made shorter", &timeout,
		  false },
		{ "--no-shell", NULL, "wake it and print its ID only", &no_shell, false },
		{ 0 },
	};
	int n = cli_parse(c, argc, argv, opts, -1), r;
	json_t *answer = NULL;
	struct err e = { 0 };
	struct box b = { 0 };
	uint64_t seconds = 0;

	PARSED_RUN(n);
	if (n != 1)
		return cli_usage_error(c, "which sandbox?"), EXIT_OURS;
	if (timeout && (cli_seconds(timeout, &seconds) < 0 || !seconds))
		return cli_usage_error(c, "--timeout needs seconds, or 30m, 12h, 7d"), EXIT_OURS;
	r = box_id(c, argv[1], b.id, &e);
	if (r >= 0)
		r = wake(c, b.id, seconds, &answer, &e);
	if (r < 0)
		return cli_fail(c, &e), EXIT_OURS;
	if (c->json || no_shell || !isatty(STDIN_FILENO)) {
		cli_print_sandbox(c, answer);
		json_decref(answer);
		return 0;
	}
	json_decref(answer);
	if (box_find(c, argv[1], &b, &e) < 0)
		return cli_fail(c, &e), EXIT_OURS;
	return open_shell(c, &b, user);
}

/* The command in one cell, as a person would type it. */
static char *command_line(json_t *config)
{
	json_t *args = json_object_get(config, "args"), *a;
	char *line = x_strdup(json_string_value(json_object_get(config, "cmd")) ?: "");
	size_t i;

	json_array_foreach(args, i, a) {
		const char *s = json_string_value(a) ?: "";
		bool plain = *s && !strpbrk(s, " \t\n\"'\\$&|;<>()*?`!#~");
		char *longer = x_asprintf(plain ? "%s %s" : "%s '%s'", line, s);

		free(line);
		line = longer;
	}
	return line;
}

int cmd_ps(struct cli *c, int argc, char **argv)
{
	static const char *const heads[] = { "PID", "TAG", "COMMAND" };
	int n = cli_parse(c, argc, argv, NULL, -1);
	struct err e = { 0 };
	struct table t;
	struct box b;
	json_t *answer, *list, *p, *empty = NULL;
	size_t i;

	PARSED(n);
	if (n != 1)
		return cli_usage_error(c, "which sandbox?");
	empty = json_object();
	int r = box_find(c, argv[1], &b, &e);
	if (r >= 0)
		r = box_call(c, &b, "POST", "/process.Process/List", empty, &answer, &e);
	json_decref(empty);
	if (r < 0)
		return cli_fail(c, &e);
	list = json_object_get(answer, "processes");
	if (c->json) {
		json_t *none = json_array();

		cli_print_json(list ? list : none);
		json_decref(none);
	} else {
		table_init(&t, ARRAY_LEN(heads), heads);
		json_array_foreach(list, i, p) {
			autofree char *line = command_line(json_object_get(p, "config"));

			table_addf(&t, "%lld",
				   (long long)json_integer_value(json_object_get(p, "pid")));
			table_add(&t, json_string_value(json_object_get(p, "tag")));
			table_add(&t, line);
		}
		table_print(&t);
	}
	json_decref(answer);
	return 0;
}
