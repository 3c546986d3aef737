/*
 * The command line: one table of commands (main.c), one file per group of commands. Every command
 * gets its parsed common options and returns an exit code: 0 done, 1 failed (said on stderr), 2
 * usage; exec and shell give the code of what they ran.
 */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include <pthread.h>
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
	char request_id[80];              /* of the last answer that was an error; "" = none */
	char addr[160];                   /* "tcp:127.0.0.1:4983"; "": `name` was not looked up yet */
	char host[128];                   /* for the Host field */
	char name[128], port[6];          /* of the URL */
	bool tls;                         /* https */
	char api_url[256];
	char api_key[128];
	const char *instance;             /* for up, down, key */
};

struct cli_option {
	const char *name;                 /* "--template", or with a short form "-t, --template" */
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
	const char *more;                 /* what `space NAME --help` teaches: sentences and examples; may be NULL */
};

extern const struct cli_command cli_commands[];
extern const unsigned cli_commands_len;

/*
 * Parses options anywhere before "--" or before the `stop_after`-th positional argument (-1: all).
 * Short flags may stand in one word ("-it"), a value may follow its option in the same word
 * ("--env=A=1", "-eA=1"). Handles --json, --quiet and --help itself. Returns the number of positional arguments, moved to
 * the front of argv from index 1 on; -1 = usage error (said), -2 = help was printed.
 */
int cli_parse(struct cli *c, int argc, char **argv, const struct cli_option *opts, int stop_after);
int cli_usage_error(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int cli_fail(struct cli *c, const struct err *e);                   /* "space: ..." on stderr, or a JSON object; 1 */
void cli_note(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));      /* stderr, unless quiet */
void cli_print_json(json_t *v);                                     /* stdout, with a final newline; text_json_safe */
void cli_print_safe(const char *s);                                 /* stdout, through text_safe */
bool cli_nohup(void);                                               /* SIGHUP was ignored when we began: nohup(1) */
/* The command or word that the user may have meant; NULL = none is near. */
const char *cli_did_you_mean(const char *word);
#define PARSED(n) if ((n) < 0) return (n) == -2 ? 0 : 2

/*
 * text.c: what others wrote (names, metadata, log lines, errors of a server or a sandbox) before it
 * is shown to a person. Copies: the caller frees.
 */
/*
 * As str_printable, and without what turns the direction of a line or ends it (U+2028, U+2029,
 * bidirectional controls): one line, no control, nothing that moves a cursor.
 */
char *text_safe(const char *s, size_t n);
/* JSON text with the same characters as \uNNNN: it means the same, and is harmless to look at. */
char *text_json_safe(const char *json);
void text_age(int64_t ms, char dst[16]);                            /* "42s", "17m", "3h", "12d" */
void text_bytes(uint64_t n, char dst[16]);                          /* "17 B", "1.5 KiB", "12 GiB" */

/* A table on stdout: every cell goes through text_safe, columns are as wide as they have to be. */
struct table { char **cells; size_t n, room, cols; };
void table_init(struct table *t, size_t cols, const char *const *heads);
void table_add(struct table *t, const char *cell);                  /* row by row */
void table_addf(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void table_print(struct table *t);                                  /* and frees */
void table_done(struct table *t);                                   /* frees; may be called again */

/* Credentials: environment, then ~/.config/space/credentials. */
int creds_load(struct cli *c, struct err *e);
int creds_path(char *dst, size_t n, struct err *e);
int creds_save(const char *path, const char *api_url, const char *api_key, uid_t uid, gid_t gid,
	       struct err *e);
int creds_set_url(struct cli *c, const char *url, struct err *e);

/*
 * dial.c, tls_pump.c: a connected, plain descriptor, whatever the URL says. `cli` is a struct cli.
 * tls_pump owns net, also when it fails.
 */
int cli_dial(void *cli, int timeout_ms, struct err *e);
int tls_pump(int net, const char *name, int64_t end_ms, struct err *e);

/*
 * Calls to the API. *ret is the JSON answer (NULL for 204); an error answer becomes an err with its
 * message.
 */
int api_call(struct cli *c, const char *method, const char *target, json_t *body, json_t **ret,
	     struct err *e);
/*
 * An answer of 300 or more as an err: its sentence, its code; the request's ID goes to
 * c->request_id. Returns e's number: -ENOENT for 404, -EACCES 401, -EBUSY 409, -ENOSYS 501, ...
 */
int api_error(struct cli *c, int status, const char *req_id, const char *body, size_t n,
	      struct err *e);
/* Between the two a line on a terminal says, from the first second on, that something goes on. */
struct progress {
	const char *what;
	bool thread, done;
	pthread_t id;
	pthread_mutex_t lock;
	pthread_cond_t cond;
};
/* As api_call, with progress. */
int api_call_progress(struct cli *c, const char *what, const char *method, const char *target,
		      json_t *body, json_t **ret, struct err *e);
/* All sandboxes of the tenant, newest first, page by page. */
int api_list(struct cli *c, json_t **ret, struct err *e);

#define CLI_SECONDS_MAX (10 * 365 * 86400ULL)
int cli_seconds(const char *text, uint64_t *ret);                   /* "90", "90s", "30m", "12h", "7d", "2w"; -EINVAL */
int cli_get_sandbox(struct cli *c, const char *id, json_t **ret, struct err *e);      /* in the form of /v1 */
void cli_print_sandbox(struct cli *c, json_t *v);                  /* its ID, with --json all but its agent's token */
/*
 * One of several sandboxes failed: said on stderr, with --json an entry {"id", "error"} in the list
 * of results; 1.
 */
int cli_failed_one(struct cli *c, const char *name, json_t *results, const struct err *e);

#define CLI_NAME_MAX 128                /* bytes of a name that a sandbox is called by */
/*
 * The sandbox that a person means: its whole ID (not looked up), else the metadata "name", else the
 * beginning of an ID; -ENOENT, -EINVAL when it fits several.
 */
int box_id(struct cli *c, const char *name, char id[64], struct err *e);

/* The data plane of one sandbox. */
#define BOX_NOT_RUNNING                                                                            \
	"the sandbox does not run; `space resume` wakes a paused one, `space start` boots a stopped one"
struct box { char id[64]; char token[160]; char template[64]; };
int box_find(struct cli *c, const char *name, struct box *ret, struct err *e);        /* as box_id, with its token */
void box_fields(const struct box *b, struct http_field fields[8], const char *content_type,
		const char *user_auth);
int box_call(struct cli *c, const struct box *b, const char *method, const char *target,
	     json_t *body, json_t **ret, struct err *e);
int box_call_as(struct cli *c, const struct box *b, const char *user, const char *method,
		const char *target, json_t *body, json_t **ret, struct err *e);
/* The rest of an answer of 300 or more is read (a few KiB) and becomes the error. */
int box_answer_error(struct cli *c, const struct http_head *head, struct buf *rest, int fd,
		     struct err *e);
/* "Basic ..." that names the user to the agent. */
int box_user(const char *user, char *dst, size_t n, struct err *e);

/* A server stream of the process service (Connect protocol). */
struct stream {
	int fd;
	struct http_head head;
	struct buf rest;
	struct http_dec dec;
	struct buf body;
	bool whole;                       /* the body has ended */
};
int stream_open(struct cli *c, const struct box *b, const char *target, json_t *request,
		const char *user, struct stream *ret, struct err *e);
/* The answer to a request whose body the caller has sent on s->fd; stream_close in any case. */
int stream_answer(struct cli *c, struct stream *s, int timeout_ms, struct err *e);
/*
 * The next message; 1 = *ret set (caller json_decref), 0 = end of stream in order, -EAGAIN = not
 * here yet (wait for s->fd), other negative = error (stream error or cut).
 */
int stream_next(struct stream *s, json_t **ret, struct err *e);
/* True: stream_next may have more without waiting for the descriptor. */
bool stream_has_more(const struct stream *s);
void stream_close(struct stream *s);

/*
 * A process in a sandbox with our standard streams; used by exec, shell, cp and up. Gives the exit
 * code (128 + N for signal N), or -1 with e. What could not be started is an error too: RUN_CANNOT,
 * RUN_NOT_FOUND in ret_refused say that the sandbox said so.
 */
enum run_refused { RUN_STARTED, RUN_CANNOT, RUN_NOT_FOUND };
struct run_spec {
	char *const *argv; int argc;
	const char *user, *cwd;
	const char *const *env;           /* "K=V", NULL-terminated */
	bool stdin_open, tty;
	bool detach;                      /* returns 0 once it runs */
	int in_fd, out_fd, err_fd;        /* in_fd counts with stdin_open */
	/* Instead of descriptors; `which`: 0 = stdout, 1 = stderr. in gives 0 at its end. */
	ssize_t (*in)(void *arg, char *dst, size_t n);
	int (*out)(void *arg, int which, const char *p, size_t n, struct err *e);
	void *in_arg, *out_arg;
};
int run_in_box(struct cli *c, const struct box *b, const struct run_spec *spec, struct err *e);
/* The same with what else there is to know. */
struct run_result { enum run_refused refused; int64_t pid; };
int run_in_box_full(struct cli *c, const struct box *b, const struct run_spec *spec,
		    struct run_result *ret, struct err *e);
/* The exit code for the end of a process as the agent says it: "signal: terminated" is 143. */
int run_code(int code, const char *status, const char *error);

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
int cmd_connect(struct cli *c, int argc, char **argv);
int cmd_timeout(struct cli *c, int argc, char **argv);
int cmd_metrics(struct cli *c, int argc, char **argv);
int cmd_resume(struct cli *c, int argc, char **argv);
int cmd_inspect(struct cli *c, int argc, char **argv);
int cmd_net(struct cli *c, int argc, char **argv);
int cmd_port_forward(struct cli *c, int argc, char **argv);
int cmd_version(struct cli *c, int argc, char **argv);

#endif
