/* Sandboxes as JSON: E2B's objects (facts: e2b-protocol, 1.3) and ours. */
#include <string.h>
#include "api/api.h"
#include "base/clock.h"
#include "base/str.h"
#include "json/strict.h"

#define CLIENT_ID "space"                    /* deprecated in E2B's schema, and required by it */
#define ENVD_VERSION "0.6.13"                /* the protocol that the agent speaks, not its own version */
#define MAP_DEPTH_MAX 4

/*
 * E2B knows two states; what has a disk and no execution is a paused one to its clients. "" = not
 * shown to them.
 */
static const char *const e2b_states[LIFE_STATE_COUNT] = {
	[LIFE_NONE] = "",
	[LIFE_CREATING] = "running",
	[LIFE_RUNNING] = "running",
	[LIFE_PAUSING] = "paused",
	[LIFE_PAUSED] = "paused",
	[LIFE_RESUMING] = "running",
	[LIFE_SUSPENDING] = "paused",
	[LIFE_SUSPENDED] = "paused",
	[LIFE_RESTORING] = "running",
	[LIFE_MOVING] = "running",
	[LIFE_STOPPING] = "paused",
	[LIFE_STOPPED] = "paused",
	[LIFE_STARTING] = "running",
	[LIFE_FORKING] = "running",
	[LIFE_ROLLING_BACK] = "running",
	[LIFE_DELETING] = "",
	[LIFE_FAILED] = "",
};

bool object_visible(const struct store_sandbox *b)
{
	return e2b_states[b->observed][0] != '\0' && b->desired != LIFE_NONE;
}

static json_t *map_of(const char *text)
{
	json_t *v = text && *text ? strict_parse(text, strlen(text), MAP_DEPTH_MAX, NULL) : NULL;

	return v ? v : json_object();
}

static void put_time(json_t *o, const char *name, int64_t ms)
{
	char iso[CLOCK_ISO_LEN];

	clock_iso(iso, ms);
	json_object_set_new(o, name, json_string(iso));
}

static void put_token(struct api *a, json_t *o, const struct store_sandbox *b)
{
	char token[TOKEN_TEXT_MAX];

	token_make(keys_token(a), b->id, token);
	json_object_set_new(o, "envdAccessToken", json_string(token));
}

/* null: its ports need none. */
static void put_traffic_token(struct api *a, json_t *o, const char *name,
			      const struct store_sandbox *b)
{
	char token[TOKEN_TRAFFIC_MAX];

	token_traffic(keys_token(a), b->id, token);
	json_object_set_new(o, name, b->public_traffic ? json_null() : json_string(token));
	explicit_bzero(token, sizeof(token));
}

static json_t *common(const struct store_sandbox *b)
{
	json_t *o = json_pack("{s:s,s:s,s:s,s:s}", "sandboxID", b->id, "templateID", b->template,
			      "clientID", CLIENT_ID, "envdVersion", ENVD_VERSION);

	if (b->template_name[0])
		json_object_set_new(o, "alias", json_string(b->template_name));
	return o;
}

json_t *object_created(struct api *a, const struct store_sandbox *b)
{
	json_t *o = common(b);

	put_token(a, o, b);
	put_traffic_token(a, o, "trafficAccessToken", b);
	json_object_set_new(o, "domain", json_string(a->domain));
	return o;
}

json_t *object_listed(struct api *a, const struct store_sandbox *b)
{
	json_t *o = common(b);

	put_time(o, "startedAt", b->started_ms ? b->started_ms : b->created_ms);
	/* One that is paused has no end; the schema wants one, and it is said since when. */
	put_time(o, "endAt",
		 b->end_ms	? b->end_ms
		 : b->paused_ms ? b->paused_ms
				: b->created_ms);
	json_object_set_new(o, "state", json_string(e2b_states[b->observed]));
	json_object_set_new(o, "cpuCount", json_integer((json_int_t)b->vcpus));
	json_object_set_new(o, "memoryMB", json_integer((json_int_t)b->memory_mib));
	json_object_set_new(o, "diskSizeMB", json_integer((json_int_t)b->disk_mib));
	json_object_set_new(o, "metadata", map_of(b->metadata));
	json_object_set_new(o, "volumeMounts", json_array());
	return o;
}

json_t *object_detail(struct api *a, const struct store_sandbox *b)
{
	json_t *o = object_listed(a, b);

	put_token(a, o, b);
	json_object_set_new(o, "domain", json_string(a->domain));
	json_object_set_new(o, "allowInternetAccess", json_boolean(b->internet));
	json_object_set_new(o, "network",
			    json_pack("{s:b}", "allowPublicTraffic", b->public_traffic));
	json_object_set_new(o, "lifecycle",
			    json_pack("{s:s,s:b}", "onTimeout", b->end_pauses ? "pause" : "kill",
				      "autoResume", b->auto_resume));
	if (str_eq(e2b_states[b->observed], "paused"))
		json_object_set_new(o, "pauseMode",
				    json_string(b->observed == LIFE_STOPPED ||
								b->observed == LIFE_STOPPING
							? "filesystem"
							: "full"));
	return o;
}

json_t *object_v1(struct api *a, const struct store_sandbox *b)
{
	json_t *o =
		json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:I,s:s}", "id", b->id, "template", b->template,
			  "templateName", b->template_name, "state", life_state_names[b->observed],
			  "desired", life_state_names[b->desired], "reason", b->reason,
			  "generation", (json_int_t)b->generation, "worker", b->worker);

	put_time(o, "createdAt", b->created_ms);
	if (b->started_ms)
		put_time(o, "startedAt", b->started_ms);
	if (b->end_ms)
		put_time(o, "endAt", b->end_ms);
	json_object_set_new(o, "timeoutSeconds", json_integer(b->timeout_ms / 1000));
	json_object_set_new(o, "onTimeout", json_string(b->end_pauses ? "pause" : "kill"));
	json_object_set_new(o, "autoResume", json_boolean(b->auto_resume));
	json_object_set_new(o, "internet", json_boolean(b->internet));
	json_object_set_new(o, "publicTraffic", json_boolean(b->public_traffic));
	json_object_set_new(o, "cpuCount", json_integer((json_int_t)b->vcpus));
	json_object_set_new(o, "memoryMiB", json_integer((json_int_t)b->memory_mib));
	json_object_set_new(o, "diskMiB", json_integer((json_int_t)b->disk_mib));
	json_object_set_new(o, "metadata", map_of(b->metadata));
	return o;
}

void object_v1_access(struct api *a, json_t *o, const struct store_sandbox *b)
{
	char token[TOKEN_TEXT_MAX];

	token_make(keys_token(a), b->id, token);
	json_object_set_new(o, "accessToken", json_string(token));
	put_traffic_token(a, o, "trafficToken", b);
	json_object_set_new(o, "domain", json_string(a->domain));
}
