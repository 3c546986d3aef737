#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"

/*
 * What an error is for a client: its HTTP status and its machine word. What is not listed is 500
 * "internal".
 */
static const struct err_class {
	int num;
	int status;
	const char *word;
} err_classes[] = {
	{ EINVAL, 400, "invalid" },
	{ ERANGE, 400, "out-of-range" },
	{ EILSEQ, 400, "malformed" },
	{ EBADMSG, 400, "malformed" },
	{ ENAMETOOLONG, 400, "name-too-long" },
	{ ENOTDIR, 400, "not-a-directory" },
	{ EISDIR, 400, "is-a-directory" },
	{ ENOKEY, 401, "unauthenticated" },
	{ EKEYREJECTED, 401, "unauthenticated" },
	{ EKEYEXPIRED, 401, "expired" },
	{ EACCES, 403, "denied" },
	{ EPERM, 403, "denied" },
	{ ENOENT, 404, "not-found" },
	{ ESRCH, 404, "not-found" },
	{ EEXIST, 409, "exists" },
	{ EBUSY, 409, "busy" },
	{ ESTALE, 409, "replaced" },
	{ ECANCELED, 409, "cancelled" },
	{ ENOTEMPTY, 409, "not-empty" },
	{ E2BIG, 413, "too-large" },
	{ EFBIG, 413, "too-large" },
	{ EMSGSIZE, 413, "too-large" },
	{ EMEDIUMTYPE, 415, "unsupported-media-type" },
	{ EREMCHG, 421, "misdirected" },
	{ EPROTONOSUPPORT, 426, "upgrade-required" },
	{ EUSERS, 429, "limit-reached" },
	{ ENOSYS, 501, "not-implemented" },
	{ EOPNOTSUPP, 501, "not-implemented" },
	{ EPROTO, 502, "protocol" },
	{ ECONNRESET, 502, "connection-lost" },
	{ EPIPE, 502, "connection-lost" },
	{ ENOTCONN, 502, "connection-lost" },
	{ ECONNREFUSED, 503, "unavailable" },
	{ EHOSTDOWN, 503, "unavailable" },
	{ EHOSTUNREACH, 503, "unavailable" },
	{ EAGAIN, 503, "try-again" },
	{ ENOBUFS, 503, "overloaded" },
	{ ENOMEM, 503, "overloaded" },
	{ EMFILE, 503, "overloaded" },
	{ ENFILE, 503, "overloaded" },
	{ ETIMEDOUT, 504, "timeout" },
	{ ETIME, 504, "timeout" },
	{ ENOSPC, 507, "no-space" },
	{ EDQUOT, 507, "no-space" },
};

static const struct err_class *err_class_of(const struct err *e)
{
	for (size_t i = 0; i < ARRAY_LEN(err_classes); i++)
		if (e->num == -err_classes[i].num)
			return &err_classes[i];
	return NULL;
}

/* Through a second buffer, because the arguments may point into e. */
static void err_vset(struct err *e, int num, const char *code, const char *fmt, va_list ap)
{
	char text[ERR_TEXT_MAX];

	vsnprintf(text, sizeof(text), fmt, ap);
	str_copy(e->text, sizeof(e->text), text);
	if (code != e->code)
		str_copy(e->code, sizeof(e->code), code);
	e->num = num;
}

int err_set(struct err *e, int num, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return num;
	va_start(ap, fmt);
	err_vset(e, num, "", fmt, ap);
	va_end(ap);
	return num;
}

int err_set_code(struct err *e, int num, const char *code, const char *fmt, ...)
{
	va_list ap;

	if (!e)
		return num;
	va_start(ap, fmt);
	err_vset(e, num, code, fmt, ap);
	va_end(ap);
	return num;
}

int err_errno(struct err *e, int num, const char *fmt, ...)
{
	/* Not strerror(3): that one looks for translations. */
	const char *why = strerrordesc_np(-num);
	size_t n;
	va_list ap;

	if (!e)
		return num;
	va_start(ap, fmt);
	err_vset(e, num, "", fmt, ap);
	va_end(ap);
	n = strlen(e->text);
	if (why)
		str_format(e->text + n, sizeof(e->text) - n, ": %s", why);
	else
		str_format(e->text + n, sizeof(e->text) - n, ": error %d", -num);
	return num;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
	char old[ERR_TEXT_MAX];
	size_t n;
	va_list ap;

	if (!e)
		return 0;
	str_copy(old, sizeof(old), e->text);
	va_start(ap, fmt);
	err_vset(e, e->num, e->code, fmt, ap);
	va_end(ap);
	n = strlen(e->text);
	str_format(e->text + n, sizeof(e->text) - n, ": %s", old);
	return e->num;
}

int err_http_status(const struct err *e)
{
	const struct err_class *c = err_class_of(e);

	return c ? c->status : 500;
}

const char *err_code(const struct err *e)
{
	const struct err_class *c;

	if (e->code[0])
		return e->code;
	c = err_class_of(e);
	return c ? c->word : "internal";
}
