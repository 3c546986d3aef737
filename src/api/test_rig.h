/*
 * For tests of space-api whole: its own loop, workers and a real database; a node of the test's own
 * stands in for node-api behind a real socket. A test gets a struct rig from rig_setup.
 */
#ifndef API_TEST_RIG_H
#define API_TEST_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "api/api.h"
#include "loop/listen.h"

#define WAIT_MS 60000
#define WORKER "00000000-0000-4000-8000-000000000001"
#define KEY "e2b_0123456789abcdef"
#define OTHER_KEY "e2b_fedcba9876543210"
#define H "Host: x\r\nX-API-KEY: " KEY "\r\n"

struct rig {
	struct loop *loop;
	struct api *api;
	char dir[64], url[128], node_addr[128], keys[128], root_pub[128];
	struct store *store;
	struct key_bundle bundle;
	struct http_server *node;
	struct listener *node_listener;
	int client;
	bool client_eof;
	struct buf in;
	/* what the node saw, and what it shall do */
	unsigned calls, forwards;
	char last_kind[16], last_spec[4096];
	struct capability cap;
	char *last_head;                  /* of a forwarded request */
	const char *answers[4];           /* of the next calls, whole messages; NULL: the usual */
	unsigned n_answers;
	const char *net;                  /* what netlog and netstats say */
	char pem[128];                    /* "" = no TLS */
	const char *console, *metrics;    /* what the usual answers to these say */
	struct http_req *held;
	bool hold;
};

int rig_setup(void **state);
int rig_teardown(void **state);
void rig_start_node(struct rig *g);
void rig_stop_node(struct rig *g);
void rig_restart_api(struct rig *g);
void rig_use_tls(struct rig *g, const char *pem);     /* starts the API anew, with TLS */
void rig_connect_client(struct rig *g);          /* a new connection in the place of the last */
void rig_turn(struct rig *g);                    /* one turn of the loop; what came is in g->in */
/* One request, its whole answer: status, and the message in g->in. */
int rig_ask(struct rig *g, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool rig_has(struct rig *g, const char *want);
/* The value of a string field of the JSON that came. */
void rig_field(struct rig *g, const char *name, char *dst, size_t size);

struct box { char id[ID_SANDBOX_LEN + 1], token[TOKEN_TEXT_MAX]; };
struct box rig_create(struct rig *g, const char *body);

#define HAS(g, want)                                                               \
	do {                                                                       \
		if (!rig_has(g, want))                                             \
			fail_msg("no \"%s\" in \"%.*s\"", want,                   \
				 (int)buf_len(&(g)->in), buf_data(&(g)->in));      \
	} while (0)

#endif
