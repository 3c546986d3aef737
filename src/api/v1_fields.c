#include "api/v1_fields.h"

#include <errno.h>
#include <string.h>
#include "base/str.h"
#include "json/strict.h"

#define DEPTH_MAX 4

static int wrong_type(const char *name, const char *want, struct err *e)
{
	return err_set(e, -EINVAL, "The field \"%s\" must be %s.", name, want);
}

static int take_template(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	if (!json_is_string(v) || json_string_length(v) == 0)
		return wrong_type(name, "the name or ID of a template", e);
	if (str_copy(b->template, sizeof(b->template), json_string_value(v)) < 0)
		return err_set(e, -EINVAL, "The field \"%s\" is longer than %d bytes.", name,
			       FIELDS_TEMPLATE_MAX);
	return 0;
}

/* 60 and 60.0 are the same number in JSON. */
static int take_seconds(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	double d = json_number_value(v);

	if (!json_is_number(v) || !(d >= 1 && d <= FIELDS_TIMEOUT_MAX_S) ||
	    d != (double)(int64_t)d)
		return err_set(e, -EINVAL,
			       "The field \"%s\" must be a whole number from 1 to %d.", name,
			       FIELDS_TIMEOUT_MAX_S);
	b->timeout_s = (int64_t)d;
	return 0;
}

static int take_bool(json_t *v, const char *name, bool *ret, struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	*ret = json_is_true(v);
	return 0;
}

static int take_auto_resume(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	return take_bool(v, name, &b->auto_resume, e);
}

static int take_only_extend(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	return take_bool(v, name, &b->only_extend, e);
}

static int take_internet(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	bool yes = true;
	int r = take_bool(v, name, &yes, e);

	b->no_internet = !yes;
	return r;
}

static int take_public_traffic(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	bool yes = true;
	int r = take_bool(v, name, &yes, e);

	b->no_public_traffic = !yes;
	return r;
}

static int take_on_timeout(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	const char *s = json_string_value(v);

	if (!str_eq(s, "kill") && !str_eq(s, "pause"))
		return wrong_type(name, "\"kill\" or \"pause\"", e);
	b->end_pauses = str_eq(s, "pause");
	return 0;
}

static int take_metadata(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	return fields_strings(v, name, &b->metadata, e);
}

static int take_env(json_t *v, const char *name, struct v1_body *b, struct err *e)
{
	return fields_env(v, name, &b->env, e);
}

const struct v1_field v1_nothing[] = { { NULL } };
const struct v1_field v1_create[] = {
	{ "template", take_template, true },
	{ "timeoutSeconds", take_seconds },
	{ "onTimeout", take_on_timeout },
	{ "autoResume", take_auto_resume },
	{ "internet", take_internet },
	{ "publicTraffic", take_public_traffic },
	{ "metadata", take_metadata },
	{ "env", take_env },
	{ NULL },
};
const struct v1_field v1_resume[] = {
	{ "timeoutSeconds", take_seconds },
	{ NULL },
};
const struct v1_field v1_timeout[] = {
	{ "timeoutSeconds", take_seconds, true },
	{ "onlyExtend", take_only_extend },
	{ NULL },
};

static int take_field(const struct v1_field *fields, const char *key, json_t *v,
		      struct v1_body *b, struct err *e)
{
	for (const struct v1_field *f = fields; f->name; f++)
		if (str_eq(f->name, key))
			return f->take(v, f->name, b, e);
	return err_set_code(e, -EINVAL, "unknown-field", "The field \"%.100s\" is unknown.", key);
}

static int take_all(json_t *obj, const struct v1_field *fields, struct v1_body *b, struct err *e)
{
	const char *key;
	json_t *v;
	int r = 0;

	json_object_foreach(obj, key, v) {
		r = take_field(fields, key, v, b, e);
		if (r < 0)
			return r;
	}
	for (const struct v1_field *f = fields; f->name; f++)
		if (f->required && !json_object_get(obj, f->name))
			return err_set(e, -EINVAL, "The field \"%s\" is missing.", f->name);
	return 0;
}

int v1_body_take(const char *body, size_t n, const struct v1_field *fields, struct v1_body *ret,
		 struct err *e)
{
	struct v1_body b = { 0 };
	json_t *obj = n == 0 ? json_object() : strict_parse(body, n, DEPTH_MAX, e);
	int r;

	if (!obj)
		return e ? e->num : -EBADMSG;
	r = json_is_object(obj) ? take_all(obj, fields, &b, e)
				: err_set(e, -EBADMSG, "The body must be a JSON object.");
	json_decref(obj);
	if (r < 0)
		v1_body_done(&b);
	else
		*ret = b;
	return r;
}

void v1_body_done(struct v1_body *b)
{
	json_decref(b->metadata);
	json_decref(b->env);
	*b = (struct v1_body){ 0 };
}
