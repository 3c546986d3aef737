#include "spaced-guest/decode.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

#define HEX "0123456789abcdef"

void envs_done(struct envs *e)
{
	for (size_t i = 0; i < e->n; i++)
		free(e->v[i]);
	free(e->v);
	*e = (struct envs){ 0 };
}

/*
 * Whether it has at most so many values and names: a value of one byte takes some hundred in the
 * parser's tree (seen: 8 MiB of "{}," took all memory of a guest). Counted is what stands before
 * them, until the parser would find an error.
 */
static bool has_few_values(const char *p, size_t n)
{
	bool in_string = false;
	size_t values = 1;

	for (size_t i = 0; i < n && values <= DECODE_VALUES_MAX; i++) {
		if (p[i] == '"')
			in_string = !in_string;
		else if (in_string)
			i += p[i] == '\\';
		else
			values += p[i] == ',' || p[i] == ':' || p[i] == '[' || p[i] == '{';
	}
	return values <= DECODE_VALUES_MAX;
}

static json_t *parse(const char *body, size_t n, struct err *e)
{
	json_error_t je;
	json_t *j;

	if (n > DECODE_BODY_MAX) {
		err_set(e, -EINVAL, "the message is longer than %d bytes", DECODE_BODY_MAX);
		return NULL;
	}
	if (!has_few_values(body, n)) {
		err_set(e, -EINVAL, "the message has more than %d values", DECODE_VALUES_MAX);
		return NULL;
	}
	j = json_loadb(body, n, JSON_REJECT_DUPLICATES, &je);
	if (!j)
		err_set(e, -EINVAL, "the message is no valid JSON: %s", je.text);
	else if (!json_is_object(j))
		err_set(e, -EINVAL, "the message is no JSON object");
	else
		return j;
	json_decref(j);
	return NULL;
}

/*
 * jansson needs many times as long for a character as base64 does (seen: 9 of 10 parts of the time
 * that input for a command took), so one long base64 text is taken out of a message before it is
 * parsed. MARK stands in its place; where the bytes belong is still the parser's word.
 */
#define LONG_TEXT 1024
#define MARK "!" /* in no base64 */

struct cut {
	const char *text;                        /* NULL = none was taken out */
	size_t n;
	bool used;
};

/* A client that wrote the mark itself means the mark. */
static bool has_mark(const char *p, size_t n)
{
	return memmem(p, n, "\"" MARK "\"", 3) || memmem(p, n, "\\u0021", 6);
}

/* The message without its long text, caller frees; NULL: there is none. */
static char *cut_out(const char *body, size_t n, struct cut *ret, size_t *ret_n)
{
	const char *p = body, *end = body + n;
	size_t run = 0;
	char *rest;

	while ((p = memchr(p, '"', (size_t)(end - p)))) {
		p++;
		run = str_b64_span(p, (size_t)(end - p));
		if (run >= LONG_TEXT && p + run < end && p[run] == '"' &&
		    (p - body < 2 || p[-2] != '\\'))
			break;
		p += run;
	}
	if (!p || has_mark(body, (size_t)(p - body)) ||
	    has_mark(p + run, (size_t)(end - p) - run))
		return NULL;
	*ret = (struct cut){ .text = p, .n = run };
	*ret_n = n - run + strlen(MARK);
	rest = x_alloc(*ret_n);
	memcpy(rest, body, (size_t)(p - body));
	memcpy(rest + (p - body), MARK, strlen(MARK));
	memcpy(rest + (p - body) + strlen(MARK), p + run, (size_t)(end - p) - run);
	return rest;
}

/* A member by either of its names; null counts as absent. */
static const json_t *get2(const json_t *o, const char *name, const char *other)
{
	const json_t *v = json_object_get(o, name);

	if (!v && other)
		v = json_object_get(o, other);
	return json_is_null(v) ? NULL : v;
}

static const json_t *get(const json_t *o, const char *name)
{
	return get2(o, name, NULL);
}

static int wrong(struct err *e, const char *name, const char *what)
{
	return err_set(e, -EINVAL, "'%s' must be %s", name, what);
}

static int get_text(const json_t *o, const char *name, char **ret, struct err *e)
{
	const json_t *v = get(o, name);

	if (!v)
		return 0;
	if (!json_is_string(v))
		return wrong(e, name, "a string");
	*ret = x_strdup(json_string_value(v));
	return 0;
}

static int get_fixed(const json_t *o, const char *name, char *dst, size_t size, struct err *e)
{
	const json_t *v = get(o, name);

	if (!v)
		return 0;
	if (!json_is_string(v))
		return wrong(e, name, "a string");
	if (str_copy(dst, size, json_string_value(v)) < 0)
		return err_set(e, -EINVAL, "'%s' is longer than %zu bytes", name, size - 1);
	return 0;
}

/* Numbers come as JSON numbers or (64 bit) as decimal strings. */
static int number(const json_t *v, const char *name, uint64_t max, uint64_t *ret, struct err *e)
{
	if (json_is_string(v) && str_to_u64(json_string_value(v), max, ret) == 0)
		return 0;
	if (json_is_integer(v) && json_integer_value(v) >= 0 &&
	    (uint64_t)json_integer_value(v) <= max) {
		*ret = (uint64_t)json_integer_value(v);
		return 0;
	}
	return wrong(e, name, "a number in its range");
}

static int get_number(const json_t *o, const char *name, uint64_t max, uint64_t *ret, struct err *e)
{
	const json_t *v = get(o, name);

	return v ? number(v, name, max, ret, e) : 0;
}

static int get_object(const json_t *o, const char *name, bool needed, const json_t **ret,
		      struct err *e)
{
	*ret = get(o, name);
	if (!*ret)
		return needed ? err_set(e, -EINVAL, "'%s' is missing", name) : 0;
	return json_is_object(*ret) ? 0 : wrong(e, name, "an object");
}

static int get_envs(const json_t *o, const char *name, struct envs *ret, struct err *e)
{
	const json_t *v, *value;
	const char *key;
	int r = get_object(o, name, false, &v, e);

	if (r < 0 || !v)
		return r;
	if (json_object_size(v) > DECODE_ENVS_MAX)
		return err_set(e, -EINVAL, "'%s' has more than %d entries", name, DECODE_ENVS_MAX);
	ret->v = x_array(json_object_size(v) + 1, sizeof(char *));
	json_object_foreach((json_t *)v, key, value) {
		if (!json_is_string(value) || !*key || strchr(key, '='))
			return err_set(e, -EINVAL,
				       "'%s' must have names without '=' and string values", name);
		ret->v[ret->n++] = x_asprintf("%s=%s", key, json_string_value(value));
	}
	return 0;
}

static int get_base64(const json_t *v, struct cut *cut, const char *name, size_t max,
		      uint8_t **ret, size_t *ret_n, struct err *e)
{
	const char *text = json_string_value(v);
	size_t n, len;

	if (!json_is_string(v))
		return wrong(e, name, "base64 text");
	len = json_string_length(v);
	if (cut && cut->text && str_eq(text, MARK)) {
		text = cut->text;
		len = cut->n;
		cut->used = true;
	}
	n = len / 4 * 3;
	if (n > max + 2)
		return err_set(e, -EINVAL, "'%s' is longer than %zu bytes", name, max);
	*ret = x_alloc(n + 1);
	if (len && str_unb64(*ret, n, text, len, ret_n) < 0)
		return wrong(e, name, "base64 text");
	return 0;
}

static int get_size(const json_t *pty, uint16_t *cols, uint16_t *rows, struct err *e)
{
	const json_t *size;
	uint64_t c = 80, w = 24;
	int r = get_object(pty, "size", false, &size, e);

	if (r < 0)
		return r;
	if (size) {
		r = get_number(size, "cols", DECODE_TTY_MAX, &c, e);
		if (r == 0)
			r = get_number(size, "rows", DECODE_TTY_MAX, &w, e);
	}
	*cols = (uint16_t)c;
	*rows = (uint16_t)w;
	return r;
}

static int get_argv(const json_t *proc, char ***ret, struct err *e)
{
	const json_t *cmd = get(proc, "cmd"), *args = get(proc, "args");
	size_t n = json_array_size(args);

	if (!json_is_string(cmd) || json_string_length(cmd) == 0)
		return wrong(e, "cmd", "a string that is not empty");
	if (args && !json_is_array(args))
		return wrong(e, "args", "an array");
	if (n > DECODE_ARGS_MAX)
		return err_set(e, -EINVAL, "there are more than %d arguments", DECODE_ARGS_MAX);
	*ret = x_array(n + 2, sizeof(char *));
	(*ret)[0] = x_strdup(json_string_value(cmd));
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(args, i);

		if (!json_is_string(v))
			return wrong(e, "args", "an array of strings");
		(*ret)[i + 1] = x_strdup(json_string_value(v));
	}
	return 0;
}

static int start_from(const json_t *j, struct start_req *ret, struct err *e)
{
	const json_t *proc, *pty, *in;
	int r = get_object(j, "process", true, &proc, e);

	if (r < 0)
		return r;
	if ((r = get_argv(proc, &ret->argv, e)) < 0 ||
	    (r = get_envs(proc, "envs", &ret->envs, e)) < 0 ||
	    (r = get_text(proc, "cwd", &ret->cwd, e)) < 0 ||
	    (r = get_text(j, "tag", &ret->tag, e)) < 0)
		return r;
	if (ret->tag && strlen(ret->tag) > DECODE_TAG_MAX)
		return err_set(e, -EINVAL, "the tag is longer than %d bytes", DECODE_TAG_MAX);
	in = get(j, "stdin");
	if (in && !json_is_boolean(in))
		return wrong(e, "stdin", "true or false");
	ret->stdin_pipe = !in || json_is_true(in);
	r = get_object(j, "pty", false, &pty, e);
	if (r < 0 || !pty)
		return r;
	ret->pty = true;
	return get_size(pty, &ret->cols, &ret->rows, e);
}

int decode_start(const char *body, size_t n, struct start_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? start_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

void start_req_done(struct start_req *r)
{
	for (char **p = r->argv; p && *p; p++)
		free(*p);
	free(r->argv);
	envs_done(&r->envs);
	free(r->cwd);
	free(r->tag);
	*r = (struct start_req){ 0 };
}

static int selector_from(const json_t *j, struct selector *ret, struct err *e)
{
	const json_t *sel, *pid, *tag;
	uint64_t v;
	int r = get_object(j, "process", true, &sel, e);

	if (r < 0)
		return r;
	pid = get(sel, "pid");
	tag = get(sel, "tag");
	if (!pid == !tag)
		return err_set(e, -EINVAL, "'process' must have either a pid or a tag");
	if (tag)
		return get_fixed(sel, "tag", ret->tag, sizeof(ret->tag), e);
	r = number(pid, "pid", INT32_MAX, &v, e);
	if (r == 0)
		ret->pid = (int)v;
	return r;
}

int decode_selector(const char *body, size_t n, struct selector *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? selector_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

static int input_data_from(const json_t *j, struct cut *cut, struct input_req *ret, struct err *e)
{
	const json_t *in, *v, *pty;
	int r = get_object(j, "input", true, &in, e);

	if (r < 0)
		return r;
	v = get(in, "stdin");
	pty = get(in, "pty");
	if (!v == !pty)
		return err_set(e, -EINVAL, "'input' must have either stdin or pty");
	ret->pty = pty;
	return get_base64(v ? v : pty, cut, v ? "stdin" : "pty", DECODE_BODY_MAX, &ret->data,
			  &ret->n, e);
}

struct input_msg { enum stream_input what; struct input_req q; };

static int input_from(const json_t *j, struct cut *cut, struct input_msg *ret, struct err *e)
{
	int r = selector_from(j, &ret->q.sel, e);

	return r < 0 ? r : input_data_from(j, cut, &ret->q, e);
}

static int stream_input_from(const json_t *j, struct cut *cut, struct input_msg *ret, struct err *e)
{
	const json_t *start, *data, *ping;
	int r;

	if ((r = get_object(j, "start", false, &start, e)) < 0 ||
	    (r = get_object(j, "data", false, &data, e)) < 0 ||
	    (r = get_object(j, "keepalive", false, &ping, e)) < 0)
		return r;
	if (!!start + !!data + !!ping != 1)
		return err_set(e, -EINVAL,
			       "a message must have one of 'start', 'data' and 'keepalive'");
	ret->what = start  ? STREAM_INPUT_START
		    : data ? STREAM_INPUT_DATA
			   : STREAM_INPUT_KEEPALIVE;
	if (start)
		return selector_from(start, &ret->q.sel, e);
	return data ? input_data_from(data, cut, &ret->q, e) : 0;
}

typedef int input_from_fn(const json_t *j, struct cut *cut, struct input_msg *ret, struct err *e);

static int decode_with(const char *body, size_t n, struct cut *cut, input_from_fn *from,
		       struct input_msg *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? from(j, cut, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

static int decode_bytes(const char *body, size_t n, input_from_fn *from, struct input_msg *ret,
			struct err *e)
{
	struct cut cut = { 0 };
	size_t n_rest;
	autofree char *rest = n <= DECODE_BODY_MAX ? cut_out(body, n, &cut, &n_rest) : NULL;
	int r;

	if (rest) {
		r = decode_with(rest, n_rest, &cut, from, ret, e);
		if (cut.used)
			return r;
		/* It was something else: the message is read as it is. */
		input_req_done(&ret->q);
		*ret = (struct input_msg){ 0 };
	}
	return decode_with(body, n, NULL, from, ret, e);
}

int decode_input(const char *body, size_t n, struct input_req *ret, struct err *e)
{
	struct input_msg m = { 0 };
	int r = decode_bytes(body, n, input_from, &m, e);

	*ret = m.q;
	return r;
}

int decode_stream_input(const char *body, size_t n, enum stream_input *ret_what,
			struct input_req *ret, struct err *e)
{
	struct input_msg m = { 0 };
	int r = decode_bytes(body, n, stream_input_from, &m, e);

	*ret = m.q;
	*ret_what = m.what;
	return r;
}

void input_req_done(struct input_req *r)
{
	free(r->data);
	r->data = NULL;
}

int decode_nothing(const char *body, size_t n, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? 0 : -EINVAL;

	json_decref(j);
	return r;
}

static const struct { const char *name; int number; } signals[] = {
	{ "SIGNAL_SIGKILL", SIGKILL },
	{ "SIGNAL_SIGTERM", SIGTERM },
	/* Ours: what a terminal or its end sends. */
	{ "SIGNAL_SIGHUP", SIGHUP },
	{ "SIGNAL_SIGINT", SIGINT },
	{ "SIGNAL_SIGQUIT", SIGQUIT },
};

static int signal_from(const json_t *j, struct signal_req *ret, struct err *e)
{
	const json_t *v = get(j, "signal");
	int r = selector_from(j, &ret->sel, e);

	if (r < 0)
		return r;
	for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
		if ((json_is_string(v) && str_eq(json_string_value(v), signals[i].name)) ||
		    (json_is_integer(v) && json_integer_value(v) == signals[i].number)) {
			ret->sig = signals[i].number;
			return 0;
		}
	}
	return err_set(e, -EINVAL, "'signal' must be SIGNAL_SIGKILL, TERM, HUP, INT or QUIT");
}

int decode_signal(const char *body, size_t n, struct signal_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? signal_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

static int update_from(const json_t *j, struct update_req *ret, struct err *e)
{
	const json_t *pty;
	int r = selector_from(j, &ret->sel, e);

	if (r == 0)
		r = get_object(j, "pty", true, &pty, e);
	return r < 0 ? r : get_size(pty, &ret->cols, &ret->rows, e);
}

int decode_update(const char *body, size_t n, struct update_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? update_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

int decode_path(const char *body, size_t n, struct path_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	uint64_t depth = 0;
	int r = j ? get_text(j, "path", &ret->path, e) : -EINVAL;

	if (r == 0)
		r = get_number(j, "depth", UINT32_MAX, &depth, e);
	json_decref(j);
	if (r < 0)
		return r;
	ret->depth = (uint32_t)depth;
	if (!ret->path)
		ret->path = x_strdup("");        /* proto3 JSON leaves it out */
	return 0;
}

int decode_move(const char *body, size_t n, struct path_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? get_text(j, "source", &ret->path, e) : -EINVAL;

	if (r == 0)
		r = get_text(j, "destination", &ret->destination, e);
	json_decref(j);
	if (r < 0)
		return r;
	if (!ret->path || !*ret->path || !ret->destination || !*ret->destination)
		return err_set(e, -EINVAL, "'source' and 'destination' must be there");
	return 0;
}

static int get_bool(const json_t *o, const char *name, const char *other, bool *ret, struct err *e)
{
	const json_t *v = get2(o, name, other);

	if (v && !json_is_boolean(v))
		return wrong(e, name, "true or false");
	*ret = json_is_true(v);
	return 0;
}

static int watch_from(const json_t *j, struct path_req *ret, struct err *e)
{
	int r = get_text(j, "path", &ret->path, e);

	if (r < 0 || (r = get_bool(j, "recursive", NULL, &ret->recursive, e)) < 0 ||
	    (r = get_bool(j, "includeEntry", "include_entry", &ret->entries, e)) < 0 ||
	    (r = get_bool(j, "allowNetworkMounts", "allow_network_mounts", &ret->network, e)) < 0)
		return r;
	if (!ret->path)
		ret->path = x_strdup("");
	return 0;
}

int decode_watch(const char *body, size_t n, struct path_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? watch_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

int decode_watcher(const char *body, size_t n, struct watcher_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	const json_t *v;
	int r = -EINVAL;

	if (!j)
		return r;
	v = get2(j, "watcherId", "watcher_id");
	if (!json_is_string(v))
		wrong(e, "watcherId", "a string");
	else if (str_copy(ret->id, sizeof(ret->id), json_string_value(v)) < 0)
		err_set(e, -ENOENT, "there is no such watcher");
	else
		r = 0;
	if (r < 0)
		r = e->num;
	json_decref(j);
	return r;
}

void path_req_done(struct path_req *r)
{
	free(r->path);
	free(r->destination);
	*r = (struct path_req){ 0 };
}

/* The texts of /init: all are needed unless they may be empty. */
static int init_texts(const json_t *j, struct init_req *q, struct err *e)
{
	const struct {
		const char *name;
		char *dst;
		size_t size, min;
		const char *alphabet;
	} texts[] = {
		{ "sandbox", q->sandbox, sizeof(q->sandbox), 1,
		  "abcdefghijklmnopqrstuvwxyz0123456789" },
		{ "tenant", q->tenant, sizeof(q->tenant), 0, NULL },
		{ "template", q->template, sizeof(q->template), 0, NULL },
		{ "hostname", q->hostname, sizeof(q->hostname), 1,
		  "abcdefghijklmnopqrstuvwxyz0123456789-." },
		{ "machine_id", q->machine_id, sizeof(q->machine_id), 32, HEX },
		{ "boot_id", q->boot_id, sizeof(q->boot_id), 36, HEX "-" },
		{ "access_token", q->access_token, sizeof(q->access_token), 16, HEX },
		{ "default_user", q->default_user, sizeof(q->default_user), 0, NULL },
	};

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		int r = get_fixed(j, texts[i].name, texts[i].dst, texts[i].size, e);

		if (r < 0)
			return r;
		if (strlen(texts[i].dst) < texts[i].min)
			return err_set(e, -EINVAL, "'%s' is missing or too short", texts[i].name);
		if (texts[i].alphabet &&
		    !str_is(texts[i].dst, texts[i].min, texts[i].size, texts[i].alphabet))
			return err_set(e, -EINVAL, "'%s' has a wrong character", texts[i].name);
	}
	return 0;
}

static int init_from(const json_t *j, struct init_req *q, struct err *e)
{
	autofree uint8_t *entropy = NULL;
	char activation[33] = "";
	uint64_t wall = 0;
	int r = init_texts(j, q, e);

	if (r < 0 || (r = get_number(j, "generation", INT64_MAX, &q->generation, e)) < 0 ||
	    (r = get_number(j, "wall_ms", INT64_MAX / 1000000, &wall, e)) < 0 ||
	    (r = get_fixed(j, "activation", activation, sizeof(activation), e)) < 0 ||
	    (r = get_base64(get(j, "entropy"), NULL, "entropy", DECODE_ENTROPY_MAX, &entropy,
			    &q->n_entropy, e)) < 0 ||
	    (r = get_envs(j, "env", &q->envs, e)) < 0 ||
	    (r = get_text(j, "default_workdir", &q->default_workdir, e)) < 0)
		return r;
	if (str_unhex(q->activation, sizeof(q->activation), activation) < 0)
		return wrong(e, "activation", "32 hex digits");
	if (q->n_entropy < DECODE_ENTROPY_MIN || q->n_entropy > DECODE_ENTROPY_MAX)
		return err_set(e, -EINVAL, "'entropy' must have %d to %d bytes", DECODE_ENTROPY_MIN,
			       DECODE_ENTROPY_MAX);
	if (wall == 0)
		return err_set(e, -EINVAL, "'wall_ms' is missing");
	memcpy(q->entropy, entropy, q->n_entropy);
	explicit_bzero(entropy, q->n_entropy);
	q->wall_ms = (int64_t)wall;
	if (q->default_workdir && !*q->default_workdir) {
		free(q->default_workdir);
		q->default_workdir = NULL;
	}
	return 0;
}

int decode_init(const char *body, size_t n, struct init_req *ret, struct err *e)
{
	json_t *j = parse(body, n, e);
	int r = j ? init_from(j, ret, e) : -EINVAL;

	json_decref(j);
	return r;
}

void init_req_done(struct init_req *r)
{
	envs_done(&r->envs);
	free(r->default_workdir);
	explicit_bzero(r, sizeof(*r));
}

int decode_prepare(const char *body, size_t n, bool *ret_warm, struct err *e)
{
	json_t *j = parse(body, n, e);

	if (!j)
		return -EINVAL;
	*ret_warm = json_is_true(get(j, "warm"));
	json_decref(j);
	return 0;
}
