#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/str.h"

#define LOG_LINE_MAX 8192
#define LOG_TAIL ",\"cut\":true}\n"            /* there is always room for it */
#define LOG_WINDOW_MS 60000

static const char *const log_level_names[] = {
	[LOG_LEVEL_DEBUG] = "debug",
	[LOG_LEVEL_INFO] = "info",
	[LOG_LEVEL_WARN] = "warn",
	[LOG_LEVEL_ERROR] = "error",
};
_Static_assert(ARRAY_LEN(log_level_names) == LOG_LEVEL_ERROR + 1, "every level has a name");

static const char *log_prog = "", *log_instance = "";
static enum log_level log_min = LOG_LEVEL_INFO;
static int log_fd = 2;

/*
 * A line in the making. What does not fit as a whole field is left out and marked, so a line is
 * always valid JSON.
 */
struct log_line {
	char text[LOG_LINE_MAX];
	size_t len;
	bool cut;
};

void log_open(const char *prog, const char *instance)
{
	log_prog = prog ? prog : "";
	log_instance = instance ? instance : "";
}

void log_set_level(enum log_level min)
{
	log_min = min;
}

void log_set_fd(int fd)
{
	log_fd = fd;
}

static bool log_raw(struct log_line *l, const char *s, size_t n)
{
	if (n > sizeof(l->text) - sizeof(LOG_TAIL) - l->len)
		return false;
	memcpy(l->text + l->len, s, n);
	l->len += n;
	return true;
}

/* Length of the valid UTF-8 sequence at s, at most 4 bytes; 0 = none. */
static size_t log_utf8(const char *s)
{
	size_t most = strnlen(s, 4);

	for (size_t n = 1; n <= most; n++)
		if (str_utf8_ok(s, n))
			return n;
	return 0;
}

/* One character of s, escaped; returns the bytes consumed, 0 = no room. */
static size_t log_char(struct log_line *l, const char *s)
{
	unsigned char c = (unsigned char)*s;
	size_t n = log_utf8(s);
	unsigned control;
	char esc[8];

	if (n == 0)
		return log_raw(l, "\\ufffd", 6) ? 1 : 0;
	if (c == '"' || c == '\\') {
		esc[0] = '\\';
		esc[1] = (char)c;
		return log_raw(l, esc, 2) ? 1 : 0;
	}
	/* A terminal that shows a log must not obey it. */
	if (str_control(s, &control) > 0) {
		str_format(esc, sizeof(esc), "\\u%04x", control);
		return log_raw(l, esc, 6) ? n : 0;
	}
	return log_raw(l, s, n) ? n : 0;
}

/* A JSON string. When it does not fit, its beginning stands there and the line is marked. */
static void log_string(struct log_line *l, const char *s)
{
	size_t room = sizeof(l->text) - sizeof(LOG_TAIL);

	if (!s) {
		log_raw(l, "null", 4);
		return;
	}
	l->text[l->len++] = '"';
	while (*s) {
		size_t n = room - l->len > 8 ? log_char(l, s) : 0;

		if (n == 0) {
			l->cut = true;
			break;
		}
		s += n;
	}
	l->text[l->len++] = '"';
}

static bool log_key(struct log_line *l, const char *key)
{
	size_t n = strlen(key);

	/* Room for the key, its quotes and the shortest value, or for a number. */
	if (l->cut || sizeof(l->text) - sizeof(LOG_TAIL) - l->len < n + 32) {
		l->cut = true;
		return false;
	}
	l->text[l->len] = l->len ? ',' : '{';
	l->len++;
	log_string(l, key);
	l->text[l->len++] = ':';
	return true;
}

static void log_pair(struct log_line *l, const char *key, const char *value)
{
	if (log_key(l, key))
		log_string(l, value);
}

static void log_number(struct log_line *l, const char *key, const char *digits)
{
	if (log_key(l, key))
		log_raw(l, digits, strlen(digits));
}

static void log_field(struct log_line *l, const struct log_field *f)
{
	char digits[24];

	switch (f->type) {
	case LOG_FIELD_STR:
		log_pair(l, f->key, f->s);
		break;
	case LOG_FIELD_INT:
		str_format(digits, sizeof(digits), "%" PRId64, f->i);
		log_number(l, f->key, digits);
		break;
	case LOG_FIELD_UINT:
		str_format(digits, sizeof(digits), "%" PRIu64, f->u);
		log_number(l, f->key, digits);
		break;
	case LOG_FIELD_ERR:
		log_pair(l, "code", f->e ? err_code(f->e) : NULL);
		log_pair(l, f->key, f->e ? f->e->text : NULL);
		break;
	}
}

void log_write(enum log_level level, const char *msg, const struct log_field *fields)
{
	struct log_line l = { .len = 0 };
	char when[CLOCK_ISO_LEN];
	int saved = errno;
	ssize_t r;

	if (level < log_min)
		return;
	clock_iso(when, clock_wall_ms());
	log_pair(&l, "t", when);
	log_pair(&l, "level", log_level_names[level]);
	log_pair(&l, "prog", log_prog);
	log_pair(&l, "inst", log_instance);
	log_pair(&l, "msg", msg);
	for (; fields->key; fields++)
		log_field(&l, fields);
	if (l.cut) {
		memcpy(l.text + l.len, LOG_TAIL, sizeof(LOG_TAIL) - 1);
		l.len += sizeof(LOG_TAIL) - 1;
	} else {
		l.text[l.len++] = '}';
		l.text[l.len++] = '\n';
	}
	do
		r = write(log_fd, l.text, l.len);
	while (r < 0 && errno == EINTR);
	errno = saved;
}

int log_limit_ok(struct log_limit *l, unsigned per_min)
{
	uint64_t now = (uint64_t)clock_mono_ms();

	if (l->window_start_ms == 0 || now - l->window_start_ms >= LOG_WINDOW_MS) {
		unsigned dropped = l->dropped;

		*l = (struct log_limit){ .window_start_ms = now };
		if (dropped)
			log_warn("log lines dropped", F_UINT("count", dropped));
	}
	if (l->count >= per_min) {
		l->dropped++;
		return 0;
	}
	l->count++;
	return 1;
}
