#include "ipc/ipc.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/str.h"
#include "json/strict.h"

json_t *ipc_parse_json(const char *p, size_t n, unsigned max_depth, struct err *e)
{
	return strict_parse(p, n, max_depth, e);
}

static const void *field_at(const struct ipc_field *f, const void *st)
{
	return (const char *)st + f->off;
}

/* ---- One pair of functions for each type ---- */

static json_t *put_str(const struct ipc_field *f, const void *p)
{
	size_t n = strnlen(p, f->size);

	if (n == f->size)
		return NULL;
	return json_stringn(p, n);       /* NULL when it is not UTF-8 */
}

static int get_str(const struct ipc_field *f, json_t *v, void *p)
{
	size_t n = json_string_length(v);

	if (!json_is_string(v) || n >= f->size || memchr(json_string_value(v), '\0', n))
		return -EBADMSG;
	memcpy(p, json_string_value(v), n + 1);
	return 0;
}

static json_t *put_u64(const struct ipc_field *f, const void *p)
{
	uint64_t n = *(const uint64_t *)p;

	if (n > (uint64_t)STRICT_INT_MAX || (f->max && n > f->max))
		return NULL;
	return json_integer((json_int_t)n);
}

static int get_u64(const struct ipc_field *f, json_t *v, void *p)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n < 0 || n > STRICT_INT_MAX || (f->max && (uint64_t)n > f->max))
		return -EBADMSG;
	*(uint64_t *)p = (uint64_t)n;
	return 0;
}

static json_t *put_i64(const struct ipc_field *f, const void *p)
{
	int64_t n = *(const int64_t *)p;

	if (n > STRICT_INT_MAX || n < -STRICT_INT_MAX)
		return NULL;
	return json_integer(n);
}

static int get_i64(const struct ipc_field *f, json_t *v, void *p)
{
	json_int_t n = json_integer_value(v);

	if (!json_is_integer(v) || n > STRICT_INT_MAX || n < -STRICT_INT_MAX)
		return -EBADMSG;
	*(int64_t *)p = n;
	return 0;
}

static json_t *put_bool(const struct ipc_field *f, const void *p)
{
	return json_boolean(*(const bool *)p);
}

static int get_bool(const struct ipc_field *f, json_t *v, void *p)
{
	if (!json_is_boolean(v))
		return -EBADMSG;
	*(bool *)p = json_is_true(v);
	return 0;
}

static json_t *put_json(const struct ipc_field *f, const void *p)
{
	return json_incref(*(json_t *const *)p);
}

static int get_json(const struct ipc_field *f, json_t *v, void *p)
{
	*(json_t **)p = json_incref(v);
	return 0;
}

/* An optional field is left out when it is "", 0, false or NULL. */
static bool empty_str(const void *p) { return !*(const char *)p; }
static bool empty_u64(const void *p) { return !*(const uint64_t *)p; }
static bool empty_bool(const void *p) { return !*(const bool *)p; }
static bool empty_json(const void *p) { return !*(json_t *const *)p; }

static const struct {
	json_t *(*put)(const struct ipc_field *f, const void *p);
	int (*get)(const struct ipc_field *f, json_t *v, void *p);
	bool (*empty)(const void *p);
	const char *word;
} ipc_types[] = {
	[IPC_STR] = { put_str, get_str, empty_str, "a string that fits" },
	[IPC_U64] = { put_u64, get_u64, empty_u64, "a whole number in its range" },
	[IPC_I64] = { put_i64, get_i64, empty_u64, "a whole number" },
	[IPC_BOOL] = { put_bool, get_bool, empty_bool, "true or false" },
	[IPC_JSON] = { put_json, get_json, empty_json, "a value" },
};

/* ---- Tables ---- */

json_t *ipc_encode(const struct ipc_field *fields, const void *st)
{
	json_t *obj = json_object();

	for (const struct ipc_field *f = fields; f && f->name; f++) {
		const void *p = field_at(f, st);
		json_t *v;

		if (f->optional && ipc_types[f->type].empty(p))
			continue;
		v = ipc_types[f->type].put(f, p);
		if (!v || json_object_set_new(obj, f->name, v) < 0) {
			json_decref(obj);
			return NULL;
		}
	}
	return obj;
}

static int ipc_decode_fields(const struct ipc_field *fields, json_t *obj, void *st, struct err *e)
{
	size_t found = 0;

	for (const struct ipc_field *f = fields; f && f->name; f++) {
		json_t *v = json_object_get(obj, f->name);

		if (!v && f->optional)
			continue;
		if (!v)
			return err_set(e, -EBADMSG, "field \"%s\" is missing", f->name);
		if (ipc_types[f->type].get(f, v, (char *)st + f->off) < 0)
			return err_set(e, -EBADMSG, "field \"%s\" is not %s", f->name,
				       ipc_types[f->type].word);
		found++;
	}
	if (found != json_object_size(obj))
		return err_set(e, -EBADMSG, "there is a field that nobody knows");
	return 0;
}

int ipc_decode(const struct ipc_field *fields, json_t *obj, void *st, size_t st_size, struct err *e)
{
	int r;

	if (st)
		memset(st, 0, st_size);
	if (obj && !json_is_object(obj))
		return err_set(e, -EBADMSG, "not an object");
	r = ipc_decode_fields(fields, obj, st, e);
	if (r < 0)
		ipc_done(fields, st);
	return r;
}

void ipc_done(const struct ipc_field *fields, void *st)
{
	for (const struct ipc_field *f = fields; f && f->name; f++) {
		json_t **p = (json_t **)((char *)st + f->off);

		if (f->type != IPC_JSON)
			continue;
		json_decref(*p);
		*p = NULL;
	}
}
