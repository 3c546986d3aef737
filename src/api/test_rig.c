#include "api/test_rig.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"

static void node_answer(struct rig *g, struct http_req *r, const char *usual_type,
			const char *usual)
{
	const char *a = g->n_answers < 4 ? g->answers[g->n_answers] : NULL;

	if (!a) {
		http_req_answer(r, 200,
				(const struct http_field[]) { { "X-Guest", "1" }, { NULL, NULL } },
				usual_type, usual, strlen(usual));
		return;
	}
	/* "STATUS FIELD VALUE BODY" */
	g->n_answers++;
	char field[64] = "", value[64] = "", body[256] = "";
	int status = 0;
	assert_true(sscanf(a, "%d %63s %63s %255[^\n]", &status, field, value, body) >= 1);
	http_req_answer(r, status,
			(const struct http_field[]) { { field[0] ? field : NULL, value },
						      { NULL, NULL } },
			"application/json", body, strlen(body));
}

static void node_lifecycle_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct rig *g = arg;
	const char *usual = "{\"state\":\"running\"}";

	str_copy(g->last_spec, sizeof(g->last_spec), body);
	if (str_eq(g->last_kind, "console"))
		usual = g->console ? g->console : "{\"text\":\"boot\",\"events\":[]}";
	if (g->net && str_starts(g->last_kind, "net"))
		usual = g->net;
	node_answer(g, r, "application/json", usual);
}

static void save_head(struct rig *g, const struct http_head *h)
{
	struct buf b;

	buf_init(&b, 65536);
	http_put_request(&b, h->method, h->target);
	for (unsigned i = 0; i < h->n_fields; i++)
		http_put_field(&b, h->fields[i].name, h->fields[i].value);
	free(g->last_head);
	g->last_head = buf_take_str(&b);
}

static void node_forward_body(struct http_req *r, const char *body, size_t len, void *arg)
{
	struct rig *g = arg;

	if (g->metrics && str_starts(http_req_head(r)->target, "/metrics"))
		node_answer(g, r, "application/json", g->metrics);
	else
		node_answer(g, r, "text/plain", len ? body : "guest");
}

static void on_node(struct http_req *r, void *arg)
{
	struct rig *g = arg;
	const struct http_head *h = http_req_head(r);
	const char *op = http_get(h, "Space-Op"), *cap = http_get(h, "Space-Capability");
	struct err e = { 0 };

	assert_non_null(op);
	assert_non_null(cap);
	if (cap_verify(cap, strlen(cap), &g->bundle, &g->cap, &e) < 0 ||
	    cap_check_time(&g->cap, clock_wall_ms() / 1000, &e) < 0)
		fail_msg("capability: %s", e.text);
	if (str_eq(op, "lifecycle")) {
		g->calls++;
		str_copy(g->last_kind, sizeof(g->last_kind), h->target + strlen("/lifecycle/"));
		http_req_read_body(r, node_lifecycle_body, g);
		return;
	}
	g->forwards++;
	save_head(g, h);
	if (g->hold)
		g->held = r;
	else
		http_req_read_body(r, node_forward_body, g);
}

static void on_node_accept(int fd, void *arg)
{
	struct rig *g = arg;

	http_server_accept(g->node, fd);
}

void rig_start_node(struct rig *g)
{
	const struct http_server_conf sc = { .head_timeout_ms = WAIT_MS,
					     .idle_timeout_ms = WAIT_MS,
					     .max_conns = 100,
					     .max_body = 1 << 20,
					     .handle = on_node,
					     .arg = g };
	struct err e = { 0 };

	g->node = http_server_new(g->loop, &sc);
	if (listener_new(g->loop, "node", g->node_addr, 0600, on_node_accept, g, &g->node_listener,
			 &e) < 0)
		fail_msg("%s", e.text);
}

void rig_stop_node(struct rig *g)
{
	listener_free(TAKE(g->node_listener));
	http_server_free(TAKE(g->node));
}

static void rig_hash_hex(const char *key, char dst[65])
{
	unsigned char hash[32];

	crypto_hash_sha256(hash, (const unsigned char *)key, strlen(key));
	str_hex(dst, hash, 32);
}

static void make_keys(struct rig *g)
{
	struct key_signer root, k;
	uint8_t root_public[KEY_PUBLIC_BYTES];
	char hex[2 * KEY_PUBLIC_BYTES + 1];
	autofree char *path = x_asprintf("%s/api-000001.key", g->keys),
		      *token = x_asprintf("%s/client-token.key", g->keys);
	autofree char *text = NULL;
	struct err e = { 0 };

	assert_int_equal(key_generate("root", &root, root_public), 0);
	assert_int_equal(key_generate("api-000001", &k, g->bundle.keys[0].public), 0);
	assert_int_equal(key_save(path, &k, &e), 0);
	str_copy(g->bundle.keys[0].kid, sizeof(g->bundle.keys[0].kid), k.kid);
	g->bundle.keys[0].purposes = 7;
	g->bundle.n_keys = 1;
	g->bundle.number = 1;
	assert_int_equal(bundle_sign(&g->bundle, &root, &text, &e), 0);
	assert_int_equal(store_bundle_put(g->store, 1, text, &e), 0);
	str_hex(hex, root_public, sizeof(root_public));
	assert_int_equal(fd_write_file(AT_FDCWD, g->root_pub, hex, strlen(hex), 0644), 0);
	assert_int_equal(
		fd_write_file(AT_FDCWD, token,
			      "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
			      64, 0600),
		0);
	key_signer_done(&root);
	key_signer_done(&k);
}

void rig_connect_client(struct rig *g)
{
	int sv[2];

	if (g->client >= 0)
		close(g->client);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sv), 0);
	g->client = sv[0];
	g->client_eof = false;
	buf_clear(&g->in);
	api_accept(g->api, sv[1]);
}

static void start_api(struct rig *g)
{
	struct err e = { 0 };
	const struct api_conf ac = { .store_url = g->url,
				     .keys_dir = g->keys,
				     .root_pub = g->root_pub,
				     .domain = "box.test:4983",
				     .tls_pem = g->pem[0] ? g->pem : NULL };

	g->api = api_new(g->loop, &ac, &e);
	if (!g->api)
		fail_msg("%s", e.text);
	rig_connect_client(g);
}

void rig_restart_api(struct rig *g)
{
	api_free(g->api);
	start_api(g);
}

void rig_use_tls(struct rig *g, const char *pem)
{
	str_format(g->pem, sizeof(g->pem), "%s/tls.pem", g->dir);
	assert_int_equal(fd_write_file(AT_FDCWD, g->pem, pem, strlen(pem), 0600), 0);
	rig_restart_api(g);
}

int rig_setup(void **state)
{
	struct rig *g = x_alloc(sizeof(*g));
	struct store_key sk;
	struct err e = { 0 };
	char hash[65];

	g->client = -1;
	g->loop = loop_new();
	buf_init(&g->in, 4 << 20);
	str_copy(g->dir, sizeof(g->dir), "/tmp/test-api-XXXXXX");
	assert_non_null(mkdtemp(g->dir));
	str_format(g->url, sizeof(g->url), "sqlite:%s/space.db", g->dir);
	str_format(g->node_addr, sizeof(g->node_addr), "unix:%s/node.sock", g->dir);
	str_format(g->keys, sizeof(g->keys), "%s/keys", g->dir);
	str_format(g->root_pub, sizeof(g->root_pub), "%s/root.pub", g->dir);
	assert_int_equal(mkdir(g->keys, 0700), 0);
	assert_int_equal(key_init(), 0);
	if (store_open(g->url, &g->store, &e) < 0)
		fail_msg("%s", e.text);
	make_keys(g);
	rig_hash_hex(KEY, hash);
	assert_int_equal(store_key_add(g->store, "acme", "first", hash, "e2b_01234567", &sk, &e),
			 0);
	rig_hash_hex(OTHER_KEY, hash);
	assert_int_equal(store_key_add(g->store, "other", "first", hash, "e2b_fedcba98", &sk, &e),
			 0);
	assert_int_equal(store_node_put(g->store, WORKER, g->node_addr, &e), 0);
	assert_int_equal(store_node_seen(g->store, WORKER, 1, "{}", &e), 0);
	assert_int_equal(store_template_put(
				 g->store, "", "base", "base-0123456789abcdef",
				 "{\"memory_mib\":512,\"vcpus\":1,\"disk_bytes\":8589934592}", &e),
			 0);
	rig_start_node(g);
	start_api(g);
	*state = g;
	return 0;
}

int rig_teardown(void **state)
{
	struct rig *g = *state;
	autofree char *cmd = NULL;
	static const char *const names[] = {
		"space.db", "space.db-wal",	   "space.db-shm",	   "node.sock",
		"root.pub", "tls.pem",	   "keys/api-000001.key", "keys/client-token.key"
	};

	api_free(g->api);
	rig_stop_node(g);
	for (int i = 0; i < 3; i++)
		loop_turn(g->loop, 0);
	store_close(g->store);
	loop_free(g->loop);
	close(g->client);
	buf_done(&g->in);
	free(g->last_head);
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		autofree char *path = x_asprintf("%s/%s", g->dir, names[i]);

		unlink(path);
	}
	rmdir(g->keys);
	rmdir(g->dir);
	free(g);
	return 0;
}

void rig_turn(struct rig *g)
{
	ssize_t r = -EAGAIN;

	loop_turn(g->loop, 1);
	while (!g->client_eof && (r = buf_read_fd(&g->in, g->client, 65536)) > 0)
		;
	if (r != -EAGAIN)
		g->client_eof = true;
}

/* One request, its whole answer: status, and the message in g->in. */

static int rig_answer(struct rig *g)
{
	int64_t until = clock_mono_ms() + WAIT_MS;

	while (clock_mono_ms() < until) {
		struct http_head h;
		enum http_error err;
		ssize_t n = buf_len(&g->in) ? http_parse_response(buf_data(&g->in), buf_len(&g->in),
								  "GET", &h, &err)
					    : 0;

		assert_true(n >= 0);
		if (n > 0) {
			size_t want = (size_t)n + (h.body == HTTP_BODY_LENGTH ? h.length : 0);
			int status = h.status;

			http_head_done(&h);
			if (buf_len(&g->in) >= want)
				return status;
		}
		if (g->client_eof)
			return -1;
		rig_turn(g);
	}
	fail_msg("no answer; got \"%.*s\"", (int)buf_len(&g->in), buf_data(&g->in));
	return -1;
}

int rig_ask(struct rig *g, const char *fmt, ...)
{
	char *msg = NULL;
	va_list ap;

	va_start(ap, fmt);
	assert_true(vasprintf(&msg, fmt, ap) > 0);
	va_end(ap);
	if (g->client_eof)
		rig_connect_client(g);
	buf_clear(&g->in);
	assert_int_equal(fd_write_all(g->client, msg, strlen(msg), WAIT_MS), 0);
	free(msg);
	return rig_answer(g);
}

bool rig_has(struct rig *g, const char *want)
{
	autofree char *text = x_strndup(buf_data(&g->in), buf_len(&g->in));

	return strstr(text, want) != NULL;
}


/* The value of a string field of the JSON that came. */
void rig_field(struct rig *g, const char *name, char *dst, size_t size)
{
	autofree char *text = x_strndup(buf_data(&g->in), buf_len(&g->in)),
		      *pattern = x_asprintf("\"%s\":\"", name);
	char *p = strstr(text, pattern);

	assert_non_null(p);
	p += strlen(pattern);
	p[strcspn(p, "\"")] = '\0';
	assert_int_equal(str_copy(dst, size, p), 0);
}

struct box rig_create(struct rig *g, const char *body)
{
	struct box b;

	if (rig_ask(g, "POST /v2/sandboxes HTTP/1.1\r\n" H "Content-Length: %zu\r\n\r\n%s",
		strlen(body), body) != 201)
		fail_msg("%.*s", (int)buf_len(&g->in), buf_data(&g->in));
	rig_field(g, "sandboxID", b.id, sizeof(b.id));
	rig_field(g, "envdAccessToken", b.token, sizeof(b.token));
	return b;
}
