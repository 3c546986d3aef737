/*
 * The command line: one table of commands (main.c), one file per group of commands. Every command
 * gets its parsed common options and returns an exit code: 0 done, 1 failed (said on stderr), 2
 * usage; exec and shell give the code of what they ran.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <stdbool.h>
#include <jansson.h>
#include "base/err.h"
#include "http/client.h"

#define CLI_ANSWER_MAX (16 * 1024 * 1024)
#define CLI_TIMEOUT_MS 90000

struct cli {
	const char *command;
	const struct cli_command *self;   /* its row in the table */
	bool json;                        /* --json: machine-readable output on stdout */
	bool quiet;
	char addr[160];                   /* "tcp:127.0.0.1:4983" */
	char host[128];                   /* for the Host field */
	char api_url[256];
	char api_key[128];
	const char *instance;             /* for up, down, key */
};

struct cli_option {
	const char *name;                 /* "--template" */
	const char *arg;                  /* "NAME"; NULL = a flag */
	const char *help;
	const char **value;               /* set to the argument, or to "1" for a flag */
	bool repeat;                      /* value points to a list of CLI_REPEAT_MAX + 1 entries, NULL-terminated */
};
#define CLI_REPEAT_MAX 64

struct cli_command {
	const char *name;
	const char *usage;                /* what follows "space NAME" */
	const char *help;                 /* one line */
	int (*run)(struct cli *c, int argc, char **argv);     /* argv[0] = name */
	const char *group;                /* heading in `space --help` */
};

extern const struct cli_command cli_commands[];
extern const unsigned cli_commands_len;

/*
 * Parses options anywhere before "--" or before the `stop_after`-th positional argument (-1: all).
 * Handles --json, --quiet and --help itself. Returns the number of positional arguments, moved to
 * the front of argv from index 1 on; -1 = usage error (said), -2 = help was printed.
 */
int cli_parse(struct cli *c, int argc, char **argv, const struct cli_option *opts, int stop_after);
int cli_usage_error(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cli_fail(struct cli *c, const struct err *e);                   /* "space: ..." on stderr, or a JSON object; 1 */
void cli_note(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));      /* stderr, unless quiet */
void cli_print_json(json_t *v);                                     /* stdout, with a final newline */
void cli_print_safe(const char *s);                                 /* stdout; control bytes escaped on a terminal */

/* Credentials: environment, then ~/.config/space/credentials. */
int creds_load(struct cli *c, struct err *e);
int creds_path(char *dst, size_t n, struct err *e);
int creds_save(const char *path, const char *api_url, const char *api_key, uid_t uid, gid_t gid,
	       struct err *e);
int creds_set_url(struct cli *c, const char *url, struct err *e);

/*
 * Calls to the API. *ret is the JSON answer (NULL for 204); an error answer becomes an err with its
 * message.
 */
int api_call(struct cli *c, const char *method, const char *target, json_t *body, json_t **ret,
	     struct err *e);
/* As api_call, with "still waiting" lines on stderr when it takes longer than a second. */
int api_call_progress(struct cli *c, const char *what, const char *method, const char *target,
		      json_t *body, json_t **ret, struct err *e);
/* All sandboxes of the tenant, newest first, page by page. */
int api_list(struct cli *c, json_t **ret, struct err *e);

/* The data plane of one sandbox. */
struct box { char id[64]; char token[160]; char template[64]; };
int box_find(struct cli *c, const char *name, struct box *ret, struct err *e);        /* full ID or a unique beginning */
void box_fields(const struct box *b, struct http_field fields[8], const char *content_type,
		const char *user_auth);
int box_call(struct cli *c, const struct box *b, const char *method, const char *target,
	     json_t *body, json_t **ret, struct err *e);

/* A server stream of the process service (Connect protocol). */
struct stream {
	int fd;
	struct http_head head;
	struct buf rest;
	struct http_dec dec;
	struct buf body;
};
int stream_open(struct cli *c, const struct box *b, const char *target, json_t *request,
		const char *user, struct stream *ret, struct err *e);
/*
 * Next message; 1 = *ret set (caller json_decref), 0 = end of stream in order, negative = error
 * (stream error or cut).
 */
int stream_next(struct stream *s, json_t **ret, struct err *e);
bool stream_has_message(struct stream *s);
void stream_close(struct stream *s);

/*
 * A process in a sandbox with our standard streams; used by exec, shell and up. Gives the exit
 * code, or -1 with e.
 */
struct run_spec {
	char *const *argv; int argc;
	const char *user, *cwd;
	const char *const *env;           /* "K=V", NULL-terminated */
	bool stdin_open, tty;
	int out_fd, err_fd;
};
int run_in_box(struct cli *c, const struct box *b, const struct run_spec *spec, struct err *e);

int cmd_up(struct cli *c, int argc, char **argv);
int cmd_down(struct cli *c, int argc, char **argv);
int cmd_key(struct cli *c, int argc, char **argv);
int cmd_env(struct cli *c, int argc, char **argv);
int cmd_create(struct cli *c, int argc, char **argv);
int cmd_ls(struct cli *c, int argc, char **argv);
int cmd_life(struct cli *c, int argc, char **argv);
int cmd_exec(struct cli *c, int argc, char **argv);
int cmd_shell(struct cli *c, int argc, char **argv);
int cmd_ps(struct cli *c, int argc, char **argv);
int cmd_cp(struct cli *c, int argc, char **argv);
int cmd_logs(struct cli *c, int argc, char **argv);
int cmd_version(struct cli *c, int argc, char **argv);

#endif
