#include "spaced-guest/multipart.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/str.h"

#define PIECE 32768
#define PARAM_MAX 4200                           /* a file name is a path */

/*
 * PREAMBLE is data that nobody gets; a CRLF is put before the input, so that the first boundary
 * looks like all others.
 */
enum state { PREAMBLE, AFTER_BOUNDARY, HEAD, DATA, EPILOGUE };

struct multipart {
	const struct multipart_ops *ops;
	void *arg;
	enum state state;
	char delim[MULTIPART_BOUNDARY_MAX + 5];  /* CRLF "--" boundary */
	size_t delim_len;
	struct buf in;
};

/* A parameter of a field value, with or without quotes; false = absent or too long. */
static bool get_param(const char *value, const char *name, char *dst, size_t size)
{
	size_t name_len = strlen(name), n = 0;
	const char *p = strchr(value, ';');

	while (p) {
		bool quoted, ours;

		p++;
		p += strspn(p, " \t");
		ours = strncasecmp(p, name, name_len) == 0 && p[name_len] == '=';
		p += strcspn(p, "=;");
		if (*p != '=') {
			p = *p ? p : NULL;
			continue;
		}
		quoted = *++p == '"';
		p += quoted;
		for (n = 0; *p && (quoted ? *p != '"' : *p != ';'); p++) {
			if (quoted && *p == '\\' && (p[1] == '"' || p[1] == '\\'))
				p++;
			if (n + 1 < size)
				dst[n] = *p;
			n++;
		}
		if (ours) {
			if (n >= size)
				return false;
			dst[n] = '\0';
			return true;
		}
		p = strchr(p, ';');
	}
	return false;
}

/*
 * Browsers and SDKs write these three as percent escapes (HTML, multipart/form-data encoding), and
 * nothing else.
 */
static void unescape(char *s)
{
	static const struct {
		const char *from;
		char to;
	} table[] = { { "%22", '"' }, { "%0D", '\r' }, { "%0A", '\n' } };
	char *dst = s;

	while (*s) {
		size_t i = 0;

		while (i < ARRAY_LEN(table) && strncmp(s, table[i].from, 3) != 0)
			i++;
		*dst++ = i < ARRAY_LEN(table) ? table[i].to : *s;
		s += i < ARRAY_LEN(table) ? 3 : 1;
	}
	*dst = '\0';
}

struct multipart *multipart_new(const char *content_type, const struct multipart_ops *ops,
				void *arg)
{
	char boundary[MULTIPART_BOUNDARY_MAX + 1];
	struct multipart *m;

	if (!get_param(content_type, "boundary", boundary, sizeof(boundary)) || !boundary[0])
		return NULL;
	m = x_alloc(sizeof(*m));
	m->ops = ops;
	m->arg = arg;
	str_format(m->delim, sizeof(m->delim), "\r\n--%s", boundary);
	m->delim_len = strlen(m->delim);
	buf_init(&m->in, PIECE + MULTIPART_HEAD_MAX + sizeof(m->delim));
	buf_puts(&m->in, "\r\n");
	return m;
}

void multipart_free(struct multipart *m)
{
	if (!m)
		return;
	buf_done(&m->in);
	free(m);
}

bool multipart_complete(const struct multipart *m)
{
	return m->state == EPILOGUE;
}

static int part_begin(struct multipart *m, char *head)
{
	char name[256], *filename = NULL, *save, *line;
	autofree char *file = x_alloc(PARAM_MAX);
	bool has_name = false;

	for (line = strtok_r(head, "\r\n", &save); line; line = strtok_r(NULL, "\r\n", &save)) {
		char *colon = strchr(line, ':');

		if (!colon)
			return -EBADMSG;
		*colon++ = '\0';
		if (!str_ieq(line, "Content-Disposition"))
			continue;
		has_name = get_param(colon, "name", name, sizeof(name));
		if (get_param(colon, "filename", file, PARAM_MAX)) {
			unescape(file);
			filename = file;
		}
	}
	return m->ops->begin(m->arg, has_name ? name : NULL, filename);
}

/* Each step: 1 = made progress, 0 = needs more input, < 0 = error. */
static int step_data(struct multipart *m)
{
	const char *p = buf_data(&m->in),
		   *found = memmem(p, buf_len(&m->in), m->delim, m->delim_len);
	size_t n = found ? (size_t)(found - p) : buf_len(&m->in);
	int r = 0;

	if (!found)
		n = n >= m->delim_len ? n - (m->delim_len - 1) : 0;
	if (n && m->state == DATA)
		r = m->ops->data(m->arg, p, n);
	if (r < 0)
		return r;
	buf_consume(&m->in, n);
	if (!found)
		return 0;
	buf_consume(&m->in, m->delim_len);
	if (m->state == DATA)
		r = m->ops->end(m->arg);
	m->state = AFTER_BOUNDARY;
	return r < 0 ? r : 1;
}

static int step_after(struct multipart *m)
{
	const char *p = buf_data(&m->in);
	size_t n = buf_len(&m->in), i = 0;

	if (n < 2)
		return 0;
	if (p[0] == '-' && p[1] == '-') {
		m->state = EPILOGUE;
		return 1;
	}
	while (i < n && (p[i] == ' ' || p[i] == '\t'))
		i++;
	if (n - i < 2)
		return i > 256 ? -EBADMSG : 0;
	if (p[i] != '\r' || p[i + 1] != '\n')
		return -EBADMSG;
	/* The CRLF stays, so that an empty head (CRLF CRLF) is found like any other. */
	buf_consume(&m->in, i);
	m->state = HEAD;
	return 1;
}

static int step_head(struct multipart *m)
{
	const char *p = buf_data(&m->in), *found = memmem(p, buf_len(&m->in), "\r\n\r\n", 4);
	autofree char *head = NULL;

	if (!found)
		return buf_len(&m->in) > MULTIPART_HEAD_MAX ? -EBADMSG : 0;
	if (found - p > MULTIPART_HEAD_MAX)
		return -EBADMSG;
	head = x_strndup(p, (size_t)(found - p));
	buf_consume(&m->in, (size_t)(found - p) + 4);
	m->state = DATA;
	return part_begin(m, head) < 0 ? -EBADMSG : 1;
}

static int step_epilogue(struct multipart *m)
{
	buf_clear(&m->in);
	return 0;
}

static int (*const steps[])(struct multipart *m) = {
	[PREAMBLE] = step_data, [AFTER_BOUNDARY] = step_after, [HEAD] = step_head,
	[DATA] = step_data,	[EPILOGUE] = step_epilogue,
};

int multipart_feed(struct multipart *m, const char *p, size_t n)
{
	while (n) {
		size_t k = n < PIECE ? n : PIECE;
		int r;

		if (buf_put(&m->in, p, k) < 0)
			return -EBADMSG;
		p += k;
		n -= k;
		do
			r = steps[m->state](m);
		while (r > 0);
		if (r < 0)
			return r;
	}
	return 0;
}
