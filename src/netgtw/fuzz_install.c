/*
 * GTW_INSTALL as packets of the control socket, one a line: the first that is taken pins the
 * identity. Nobody else is taken after it, and the attempt never falls.
 */
#include <assert.h>
#include <string.h>

#include "base/alloc.h"
#include "base/str.h"
#include "ipc/msg.h"
#include "netgtw/install.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct seen { struct gtw_conf conf; struct identity id; bool installed; };

static void install(struct seen *s, const struct gtw_install *i)
{
	struct identity id = { 0 };
	struct err e = { 0 };

	if (install_check(i, &s->conf, s->installed ? &s->id : NULL, &id, &e) < 0) {
		assert(e.num < 0 && e.text[0] && !id.sandbox[0]);
		return;
	}
	assert(id_check(&id, NULL) == 0 && str_eq(id.sandbox, s->conf.sandbox));
	assert(id.generation == s->conf.generation && str_eq(id.worker, s->conf.worker));
	if (s->installed) {
		assert(id.attempt >= s->id.attempt);
		s->id.attempt = id.attempt;
		assert(id_compare(&id, &s->id, NULL) == ID_MATCH);
	}
	s->id = id;
	s->installed = true;
	/* The same once more is fine. */
	assert(install_check(i, &s->conf, &s->id, &id, NULL) == 0);
}

static void packet(struct seen *s, const char *p, size_t n)
{
	const struct ipc_op *op = &gtw_ops[GTW_INSTALL];
	autofree struct gtw_install *i = x_alloc(sizeof(*i));
	struct ipc_request q;

	if (n > IPC_MSG_MAX || ipc_request_parse(p, n, &q, NULL) < 0)
		return;
	if (str_eq(q.op, op->name) && ipc_decode(op->req, q.a, i, sizeof(*i), NULL) == 0) {
		install(s, i);
		ipc_done(op->req, i);
	}
	ipc_request_done(&q);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct seen s = { .conf = { .sandbox = "i0123456789abcdefghij",
				    .worker = "0b0e8a5e-5d0c-4d55-9c1a-000000000001",
				    .generation = 7 } };
	const char *p = (const char *)data;

	while (size > 0) {
		const char *end = memchr(p, '\n', size);
		size_t n = end ? (size_t)(end - p) : size;

		packet(&s, p, n);
		n += end != NULL;
		p += n;
		size -= n;
	}
	return 0;
}
