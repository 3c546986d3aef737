#include "api/fields.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "base/str.h"
#include "json/strict.h"

#define BODY_DEPTH_MAX 8

struct field {
	const char *name;
	unsigned versions;
	int (*take)(json_t *v, const char *name, struct fields_create *f, struct err *e);
};

static int wrong_type(const char *name, const char *want, struct err *e)
{
	return err_set(e, -EINVAL, "The field \"%s\" must be %s.", name, want);
}

static int not_built(const char *name, const char *only, struct err *e)
{
	return err_set_code(e, -EINVAL, "not-built-yet",
			    "The field \"%s\" can only be %s: more is not built yet.", name, only);
}

/* ---- what has a meaning ---- */

static int take_template(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_string(v) || json_string_length(v) == 0)
		return wrong_type(name, "the name or ID of a template", e);
	if (str_copy(f->template, sizeof(f->template), json_string_value(v)) < 0)
		return err_set(e, -EINVAL, "The field \"%s\" is longer than %d bytes.", name,
			       FIELDS_TEMPLATE_MAX);
	return 0;
}

static int take_timeout(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_integer(v))
		return wrong_type(name, "a whole number of seconds", e);
	f->timeout_s = json_integer_value(v);
	if (f->timeout_s < 1 || f->timeout_s > FIELDS_TIMEOUT_MAX_S)
		return err_set(e, -EINVAL, "The field \"%s\" must be from 1 to %d seconds.", name,
			       FIELDS_TIMEOUT_MAX_S);
	return 0;
}

int fields_strings(json_t *v, const char *name, json_t **ret, struct err *e)
{
	const char *key;
	json_t *value;

	if (!json_is_object(v))
		return wrong_type(name, "an object of strings", e);
	json_object_foreach(v, key, value)
		if (!json_is_string(value))
			return err_set(e, -EINVAL,
				       "The value of \"%.100s\" in the field \"%s\" must be a string.",
				       key, name);
	if (json_dumpb(v, NULL, 0, JSON_COMPACT) > FIELDS_MAP_MAX)
		return err_set(e, -EMSGSIZE, "The field \"%s\" is larger than %d bytes.", name,
			       FIELDS_MAP_MAX);
	json_decref(*ret);
	*ret = json_incref(v);
	return 0;
}

static int take_metadata(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	return fields_strings(v, name, &f->metadata, e);
}

int fields_env(json_t *v, const char *name, json_t **ret, struct err *e)
{
	int r = fields_strings(v, name, ret, e);
	const char *key;
	json_t *value;

	if (r < 0)
		return r;
	json_object_foreach(v, key, value)
		if (!*key || strchr(key, '='))
			return err_set(e, -EINVAL,
				       "\"%.100s\" in the field \"%s\" is no name of a variable.",
				       key, name);
	return 0;
}

static int take_env(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	return fields_env(v, name, &f->env, e);
}

static int take_auto_pause(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	f->auto_pause = json_is_true(v);
	return 0;
}

static int take_auto_resume_enabled(json_t *v, const char *name, struct fields_create *f,
				    struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	f->auto_resume = json_is_true(v);
	return 0;
}

static int take_internet(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	json_object_set(f->options, name, v);
	f->no_internet = !json_is_true(v);
	return 0;
}

static int take_public_traffic(json_t *v, const char *name, struct fields_create *f,
			       struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	f->no_public_traffic = !json_is_true(v);
	return 0;
}

/* ---- what is not built: only its default ---- */

static int take_true(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_boolean(v))
		return wrong_type(name, "true or false", e);
	return json_is_true(v) ? 0 : not_built(name, "true", e);
}

static int take_empty_array(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_array(v))
		return wrong_type(name, "an array", e);
	return json_array_size(v) == 0 ? 0 : not_built(name, "empty", e);
}

static int take_empty_object(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_object(v))
		return wrong_type(name, "an object", e);
	return json_object_size(v) == 0 ? 0 : not_built(name, "empty", e);
}

static int take_nothing(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	return not_built(name, "left out", e);
}

static int take_table(const struct field *table, size_t n, unsigned version, const char *prefix,
		      json_t *obj, struct fields_create *f, struct err *e);

static const struct field network_fields[] = {
	{ "allowOut", 3, take_empty_array },
	{ "dnsServers", 3, take_empty_array },
	{ "denyOut", 3, take_empty_array },
	{ "rules", 3, take_empty_object },
	{ "egressProxy", 3, take_nothing },
	{ "allowPublicTraffic", 3, take_public_traffic },
	{ "maskRequestHost", 3, take_nothing },
	{ "httpsPorts", 3, take_empty_array },
};

static int take_network(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_object(v))
		return wrong_type(name, "an object", e);
	return take_table(network_fields, ARRAY_LEN(network_fields), FIELDS_V2, "network.", v, f,
			  e);
}

static const struct field iam_fields[] = { { "tokens", 3, take_empty_object } };

static int take_iam(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_object(v))
		return wrong_type(name, "an object", e);
	return take_table(iam_fields, ARRAY_LEN(iam_fields), FIELDS_V2, "iam.", v, f, e);
}

static const struct field auto_resume_fields[] = { { "enabled", 3, take_auto_resume_enabled } };

static int take_auto_resume(json_t *v, const char *name, struct fields_create *f, struct err *e)
{
	if (!json_is_object(v))
		return wrong_type(name, "an object", e);
	return take_table(auto_resume_fields, ARRAY_LEN(auto_resume_fields), FIELDS_V2,
			  "autoResume.", v, f, e);
}

static const struct field create_fields[] = {
	{ "templateID", 3, take_template },
	{ "timeout", 3, take_timeout },
	{ "metadata", 3, take_metadata },
	{ "envVars", 3, take_env },
	{ "autoPause", 3, take_auto_pause },
	{ "autoPauseMemory", 3, take_true },
	{ "autoResume", 3, take_auto_resume },
	{ "secure", 3, take_true },              /* access is always secured */
	{ "allow_internet_access", 3, take_internet },
	{ "network", 3, take_network },
	{ "iam", 3, take_iam },
	{ "mcp", 3, take_nothing },
	{ "volumeMounts", 3, take_empty_array },
};

/*
 * null stands for "left out", also where the schema does not list it: it cannot mean anything else.
 */
static int take_table(const struct field *table, size_t n, unsigned version, const char *prefix,
		      json_t *obj, struct fields_create *f, struct err *e)
{
	const char *key;
	json_t *value;

	json_object_foreach(obj, key, value) {
		char name[128];
		size_t i = 0;
		int r;

		while (i < n && !(str_eq(table[i].name, key) && (table[i].versions & version)))
			i++;
		if (i == n)
			return err_set_code(e, -EINVAL, "unknown-field",
					    "The field \"%s%.100s\" is unknown.", prefix, key);
		if (json_is_null(value))
			continue;
		str_format(name, sizeof(name), "%s%s", prefix, key);
		r = table[i].take(value, name, f, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static json_t *parse(const char *body, size_t n, struct err *e)
{
	json_t *v = strict_parse(body, n, BODY_DEPTH_MAX, e);

	if (v && !json_is_object(v)) {
		json_decref(v);
		err_set(e, -EBADMSG, "The body must be a JSON object.");
		return NULL;
	}
	return v;
}

int fields_create(enum fields_version v, const char *body, size_t n, struct fields_create *ret,
		  struct err *e)
{
	struct fields_create f = { .timeout_s = v == FIELDS_V2 ? 300 : 15 };
	json_t *obj = parse(body, n, e);
	int r;

	if (!obj)
		return e ? e->num : -EBADMSG;
	f.metadata = json_object();
	f.env = json_object();
	f.options = json_object();
	r = take_table(create_fields, ARRAY_LEN(create_fields), v, "", obj, &f, e);
	if (r == 0 && !f.template[0])
		r = err_set(e, -EINVAL, "The field \"templateID\" is missing.");
	json_decref(obj);
	if (r < 0)
		fields_create_done(&f);
	else
		*ret = f;
	return r;
}

void fields_create_done(struct fields_create *f)
{
	json_decref(f->metadata);
	json_decref(f->env);
	json_decref(f->options);
	*f = (struct fields_create){ 0 };
}

int fields_none(const char *body, size_t n, struct err *e)
{
	struct fields_create unused = { 0 };
	json_t *obj;
	int r;

	if (n == 0)
		return 0;
	obj = parse(body, n, e);
	if (!obj)
		return e ? e->num : -EBADMSG;
	r = take_table(NULL, 0, 0, "", obj, &unused, e);
	json_decref(obj);
	return r;
}
