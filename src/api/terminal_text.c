#include "api/terminal_text.h"

#include <errno.h>
#include <nettle/sha1.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "json/strict.h"

#define GUID "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"      /* RFC 6455 1.3 */
#define KEY_LEN 24                               /* base64 of 16 bytes */
#define MESSAGE_DEPTH 1
#define EVENT_DEPTH 8
#define EVENT_DATA_MAX 65536
#define HEX "0123456789abcdef"

/* ---- handshake ---- */

static void accept_of(const char *key, char dst[TERMINAL_ACCEPT_LEN + 1])
{
	struct sha1_ctx ctx;
	uint8_t hash[SHA1_DIGEST_SIZE];

	sha1_init(&ctx);
	sha1_update(&ctx, strlen(key), (const uint8_t *)key);
	sha1_update(&ctx, strlen(GUID), (const uint8_t *)GUID);
	sha1_digest(&ctx, sizeof(hash), hash);
	str_b64(dst, hash, sizeof(hash));
}

static bool key_ok(const char *key)
{
	uint8_t raw[KEY_LEN];
	size_t n;

	return strlen(key) == KEY_LEN && str_unb64(raw, sizeof(raw), key, KEY_LEN, &n) == 0 &&
	       n == 16;
}

/* One token of the list: 0 taken or of no interest to us, -EINVAL. */
static int take_protocol(const char *p, size_t n, struct terminal_hello *ret, struct err *e)
{
	const size_t prefix = strlen(TERMINAL_TICKET_PREFIX);

	if (n == strlen(TERMINAL_PROTOCOL) && memcmp(p, TERMINAL_PROTOCOL, n) == 0) {
		ret->protocol = true;
		return 0;
	}
	if (n < prefix || memcmp(p, TERMINAL_TICKET_PREFIX, prefix) != 0)
		return 0;
	if (ret->ticket[0] || n - prefix != sizeof(ret->ticket) - 1)
		return err_set(e, -EINVAL, "The ticket in Sec-WebSocket-Protocol is malformed.");
	memcpy(ret->ticket, p + prefix, n - prefix);
	return str_is(ret->ticket, n - prefix, n - prefix, HEX)
		       ? 0
		       : err_set(e, -EINVAL,
				 "The ticket in Sec-WebSocket-Protocol is malformed.");
}

static int take_protocols(const struct http_head *h, struct terminal_hello *ret, struct err *e)
{
	const char *p = http_get(h, "Sec-WebSocket-Protocol");
	int r = 0;

	if (!p)
		return 0;
	if (http_count(h, "Sec-WebSocket-Protocol") > 1)
		return err_set(e, -EINVAL, "Sec-WebSocket-Protocol must be there once.");
	while (*p && r == 0) {
		size_t n = strcspn(p, ", \t");

		if (n > 0)
			r = take_protocol(p, n, ret, e);
		p += n;
		p += strspn(p, ", \t");
	}
	if (r == 0 && !ret->protocol)
		return err_set(e, -EINVAL, "Sec-WebSocket-Protocol must name " TERMINAL_PROTOCOL
					   ", the only one that this path speaks.");
	return r;
}

int terminal_hello(const struct http_head *h, struct terminal_hello *ret, struct err *e)
{
	const char *version = http_get(h, "Sec-WebSocket-Version"),
		   *key = http_get(h, "Sec-WebSocket-Key");

	*ret = (struct terminal_hello){ 0 };
	if (!h->upgrade || !http_has_token(h, "Upgrade", "websocket") || h->minor != 1)
		return err_set(e, -EPROTONOSUPPORT, "This path speaks WebSocket.");
	if (!version || !str_eq(version, "13") || http_count(h, "Sec-WebSocket-Version") > 1)
		return err_set(e, -EPROTONOSUPPORT, "Only version 13 of WebSocket (RFC 6455) is spoken.");
	if (h->body != HTTP_BODY_NONE && !(h->body == HTTP_BODY_LENGTH && h->length == 0))
		return err_set(e, -EINVAL, "A handshake has no body.");
	if (!key || http_count(h, "Sec-WebSocket-Key") > 1 || !key_ok(key))
		return err_set(e, -EINVAL,
			       "Sec-WebSocket-Key must be there once, with 16 bytes in base64.");
	accept_of(key, ret->accept);
	return take_protocols(h, ret, e);
}

static bool in_list(const char *list, const char *word)
{
	size_t len = strlen(word);

	while (*list) {
		size_t n = strcspn(list, " ");

		if (n == len && strncasecmp(list, word, n) == 0)
			return true;
		list += n;
		list += strspn(list, " ");
	}
	return false;
}

int terminal_origin(const struct http_head *h, const char *allowed, struct err *e)
{
	static const char *const schemes[] = { "http://", "https://" };
	const char *origin = http_get(h, "Origin");

	if (!origin)
		return -ENOENT;
	if (http_count(h, "Origin") == 1 && strlen(origin) <= TERMINAL_ORIGIN_MAX) {
		/* Which scheme the browser speaks is known to the proxy before us alone. */
		for (size_t i = 0; i < ARRAY_LEN(schemes) && h->host; i++)
			if (str_starts(origin, schemes[i]) &&
			    str_ieq(origin + strlen(schemes[i]), h->host))
				return 0;
		if (in_list(allowed, origin))
			return 0;
	}
	return err_set_code(
		e, -EACCES, "origin-refused", "Pages of this Origin may not open terminals here.");
}

/* ---- query ---- */

static int ask_number(const char *name, const char *value, uint64_t min, uint64_t max,
		      uint64_t *ret, struct err *e)
{
	if (str_to_u64(value, max, ret) < 0 || *ret < min)
		return err_set(e, -EINVAL, "\"%s\" must be a number from %llu to %llu.", name,
			       (unsigned long long)min, (unsigned long long)max);
	return 0;
}

static int ask_cols(const char *v, struct terminal_ask *a, struct err *e)
{
	uint64_t n;
	int r = ask_number("cols", v, 1, TERMINAL_SIZE_MAX, &n, e);

	a->cols = r < 0 ? 0 : (uint16_t)n;
	return r;
}

static int ask_rows(const char *v, struct terminal_ask *a, struct err *e)
{
	uint64_t n;
	int r = ask_number("rows", v, 1, TERMINAL_SIZE_MAX, &n, e);

	a->rows = r < 0 ? 0 : (uint16_t)n;
	return r;
}

static int ask_pid(const char *v, struct terminal_ask *a, struct err *e)
{
	uint64_t n;
	int r = ask_number("pid", v, 1, INT32_MAX, &n, e);

	a->pid = r < 0 ? 0 : (uint32_t)n;
	return r;
}

static int ask_window(const char *v, struct terminal_ask *a, struct err *e)
{
	uint64_t n;
	int r = ask_number("window", v, TERMINAL_WINDOW_MIN, TERMINAL_WINDOW_MAX, &n, e);

	a->window = r < 0 ? 0 : (uint32_t)n;
	return r;
}

static int ask_session(const char *v, struct terminal_ask *a, struct err *e)
{
	if (!str_is(v, 2 * TERMINAL_SESSION_BYTES, 2 * TERMINAL_SESSION_BYTES, HEX))
		return err_set(e, -EINVAL, "\"session\" must be 32 hex digits.");
	return str_copy(a->session, sizeof(a->session), v);
}

static int ask_user(const char *v, struct terminal_ask *a, struct err *e)
{
	if (!str_is(v, 1, TERMINAL_USER_MAX,
		    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"))
		return err_set(e, -EINVAL, "\"user\" is not the name of a user.");
	return str_copy(a->user, sizeof(a->user), v);
}

static const struct {
	const char *name;
	int (*take)(const char *value, struct terminal_ask *a, struct err *e);
} asks[] = {
	{ "cols", ask_cols },	    { "rows", ask_rows },     { "pid", ask_pid },
	{ "session", ask_session }, { "window", ask_window }, { "user", ask_user },
};

static int ask_pair(const char *p, size_t n, unsigned *seen, struct terminal_ask *a, struct err *e)
{
	const char *eq = memchr(p, '=', n);
	size_t len = eq ? (size_t)(eq - p) : n, rest = eq ? n - len - 1 : 0;
	autofree char *value = x_alloc(rest + 1);

	if (str_pct_decode(value, rest + 1, eq ? eq + 1 : p, rest, true) < 0)
		return err_set(e, -EINVAL, "The query of the address is malformed.");
	for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
		if (strlen(asks[i].name) != len || memcmp(asks[i].name, p, len) != 0)
			continue;
		if (*seen & 1U << i)
			return err_set(e, -EINVAL, "\"%s\" is there twice.", asks[i].name);
		*seen |= 1U << i;
		return asks[i].take(value, a, e);
	}
	return err_set_code(e, -EINVAL, "unknown-parameter",
			    "There is no such parameter as \"%.*s\".",
			    (int)(len < 40 ? len : 40), p);
}

int terminal_ask(const char *target, struct terminal_ask *ret, struct err *e)
{
	const char *p = target + strcspn(target, "?");
	unsigned seen = 0;
	int r = 0;

	*ret = (struct terminal_ask){ .cols = 80, .rows = 24 };
	p += *p == '?';
	while (*p && r == 0) {
		size_t n = strcspn(p, "&");

		if (n > 0)
			r = ask_pair(p, n, &seen, ret, e);
		p += n;
		p += *p == '&';
	}
	if (r == 0 && ret->pid && ret->session[0])
		return err_set(e, -EINVAL, "\"pid\" and \"session\" cannot both be there.");
	if (r == 0 && ret->user[0] && (ret->pid || ret->session[0]))
		return err_set(e, -EINVAL,
			       "\"user\" is for a new shell, not for one that is there.");
	return r;
}

/* ---- control messages ---- */

static int message_number(const json_t *j, const char *name, json_int_t max, uint32_t *ret,
			  struct err *e)
{
	const json_t *v = json_object_get(j, name);

	if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max)
		return err_set(e, -EINVAL, "\"%s\" must be a number from 1 to %lld.", name,
			       (long long)max);
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

static int message_resize(const json_t *j, struct terminal_message *ret, struct err *e)
{
	uint32_t cols, rows;
	int r = message_number(j, "cols", TERMINAL_SIZE_MAX, &cols, e);

	if (r == 0)
		r = message_number(j, "rows", TERMINAL_SIZE_MAX, &rows, e);
	if (r < 0)
		return r;
	ret->cols = (uint16_t)cols;
	ret->rows = (uint16_t)rows;
	return 0;
}

static int message_ack(const json_t *j, struct terminal_message *ret, struct err *e)
{
	return message_number(j, "bytes", TERMINAL_WINDOW_MAX, &ret->bytes, e);
}

static const struct {
	const char *type;
	enum terminal_kind kind;
	size_t fields;
	int (*take)(const json_t *j, struct terminal_message *ret, struct err *e);
} kinds[] = {
	{ "resize", TERMINAL_RESIZE, 3, message_resize },
	{ "redraw", TERMINAL_REDRAW, 1, NULL },
	{ "ack", TERMINAL_ACK, 2, message_ack },
	{ "ping", TERMINAL_PING, 1, NULL },
};

static int message_of(const json_t *j, struct terminal_message *ret, struct err *e)
{
	const char *type = json_string_value(json_object_get(j, "type"));

	for (size_t i = 0; type && i < ARRAY_LEN(kinds); i++) {
		if (!str_eq(type, kinds[i].type))
			continue;
		ret->kind = kinds[i].kind;
		if (json_object_size(j) != kinds[i].fields)
			return err_set(e, -EINVAL, "A \"%s\" has %zu fields.", type,
				       kinds[i].fields);
		return kinds[i].take ? kinds[i].take(j, ret, e) : 0;
	}
	return err_set(e, -EINVAL, "\"type\" must be resize, redraw, ack or ping.");
}

int terminal_message(const char *p, size_t n, struct terminal_message *ret, struct err *e)
{
	json_t *j;
	int r;

	*ret = (struct terminal_message){ 0 };
	if (n > TERMINAL_TEXT_MAX)
		return err_set(e, -EMSGSIZE, "A control message has at most %d bytes.",
			       TERMINAL_TEXT_MAX);
	j = strict_parse(p, n, MESSAGE_DEPTH, e);
	if (!j)
		return -EBADMSG;
	r = message_of(j, ret, e);
	json_decref(j);
	return r;
}

/* ---- events of the process service ---- */

static int bad_event(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "The sandbox answered with something that is no %s.", what);
}

static int event_data(const json_t *data, struct terminal_event *ret, struct err *e)
{
	const json_t *v = json_object_get(data, "pty");
	size_t len = json_string_length(v);

	if (!v && (json_object_get(data, "stdout") || json_object_get(data, "stderr")))
		return err_set(e, -EINVAL, "That command runs without a terminal.");
	if (!json_is_string(v) || len > STR_B64_LEN(EVENT_DATA_MAX))
		return bad_event(e, "output of a terminal");
	ret->kind = TERMINAL_EV_DATA;
	ret->data = x_alloc(len + 1);
	if (len > 0 && str_unb64(ret->data, len, json_string_value(v), len, &ret->len) < 0)
		return bad_event(e, "output of a terminal");
	return 0;
}

/* "signal: killed (core dumped)" is how the service says it (Go's words, lower case). */
static void signal_name(const char *status, char dst[16])
{
	str_copy(dst, 16, "unknown");
	if (!status || !str_starts(status, "signal: "))
		return;
	status += strlen("signal: ");
	for (int sig = 1; sig < NSIG; sig++) {
		const char *words = sigdescr_np(sig), *name = sigabbrev_np(sig);
		size_t n = words ? strlen(words) : 0;

		if (words && name && strncasecmp(status, words, n) == 0 &&
		    (status[n] == '\0' || status[n] == ' '))
			str_format(dst, 16, "SIG%s", name);
	}
}

static int event_end(const json_t *end, struct terminal_event *ret, struct err *e)
{
	const json_t *code = json_object_get(end, "exitCode");

	/* proto3's JSON may leave out a zero. */
	if (!json_is_object(end) ||
	    (code && (!json_is_integer(code) || json_integer_value(code) < -1 ||
		      json_integer_value(code) > 255)))
		return bad_event(e, "end of a command");
	ret->kind = TERMINAL_EV_END;
	ret->code = (int)json_integer_value(code);
	if (ret->code < 0)
		signal_name(json_string_value(json_object_get(end, "status")), ret->signal);
	return 0;
}

static int event_of(const json_t *j, struct terminal_event *ret, struct err *e)
{
	const json_t *ev = json_object_get(j, "event"), *start = json_object_get(ev, "start"),
		     *data = json_object_get(ev, "data"), *end = json_object_get(ev, "end"),
		     *pid = json_object_get(start, "pid");

	if (start) {
		if (!json_is_integer(pid) || json_integer_value(pid) < 1 ||
		    json_integer_value(pid) > INT32_MAX)
			return bad_event(e, "start of a command");
		ret->kind = TERMINAL_EV_START;
		ret->pid = (uint32_t)json_integer_value(pid);
		return 0;
	}
	if (data)
		return event_data(data, ret, e);
	return end ? event_end(end, ret, e) : 0;
}

static void event_last(const json_t *j, struct terminal_event *ret)
{
	const json_t *error = json_object_get(j, "error");
	const char *code = json_string_value(json_object_get(error, "code")),
		   *text = json_string_value(json_object_get(error, "message"));

	ret->kind = error ? TERMINAL_EV_FAILED : TERMINAL_EV_LAST;
	str_copy(ret->error, sizeof(ret->error), code ? code : "unknown");
	str_copy(ret->text, sizeof(ret->text), text ? text : "");
}

int terminal_event(const char *p, size_t n, bool last, struct terminal_event *ret, struct err *e)
{
	json_t *j = strict_parse(p, n, EVENT_DEPTH, e);
	int r = 0;

	*ret = (struct terminal_event){ 0 };
	if (!j)
		return bad_event(e, "event");
	if (last)
		event_last(j, ret);
	else
		r = event_of(j, ret, e);
	json_decref(j);
	if (r < 0)
		terminal_event_done(ret);
	return r;
}

void terminal_event_done(struct terminal_event *ev)
{
	free(ev->data);
	ev->data = NULL;
}
