#include "api/front.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "api/host.h"
#include "api/stream.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "loop/tls.h"

#define CERT_SOON_S (7 * 24 * 3600)

/* What tells one file from the next. */
struct front_seen { ino_t ino; off_t size; struct timespec mtime; };

struct front {
	struct api *api;
	struct tls_server *tls;
	char path[300];
	struct loop_timer timer;
	bool asking;
	struct front_seen seen;
	/* the job's */
	struct front_seen found;
	struct tls_cert *cert;           /* NULL: nothing new, or the error */
	struct err err;
};

/* ---- the certificate ---- */

static bool same_file(const struct front_seen *a, const struct front_seen *b)
{
	return a->ino == b->ino && a->size == b->size && a->mtime.tv_sec == b->mtime.tv_sec &&
	       a->mtime.tv_nsec == b->mtime.tv_nsec;
}

static int load(struct front *f)
{
	char *text = NULL;
	size_t n = 0;
	int r = fd_read_regular(AT_FDCWD, f->path, TLS_PEM_MAX, &text, &n);

	if (r < 0)
		return err_errno(&f->err, r, "%s", f->path);
	r = tls_cert_load(text, n, &f->cert, &f->err);
	explicit_bzero(text, n);
	free(text);
	return r < 0 ? err_wrap(&f->err, "%s", f->path) : 0;
}

/* In a worker. One that was refused is not read again before it changes. */
static void look(void *arg)
{
	struct front *f = arg;
	struct stat st;

	if (stat(f->path, &st) < 0) {
		err_errno(&f->err, -errno, "%s", f->path);
		return;
	}
	f->found = (struct front_seen){ st.st_ino, st.st_size, st.st_mtim };
	if (!same_file(&f->found, &f->seen))
		load(f);
}

static void take(struct front *f)
{
	int64_t left_s;

	tls_server_set_cert(f->tls, TAKE(f->cert));
	left_s = tls_server_cert_end(f->tls) - clock_wall_ms() / 1000;
	if (left_s < CERT_SOON_S)
		log_warn("the certificate ends soon, or has ended", F_INT("hours", left_s / 3600));
	else
		log_info("certificate", F_INT("days", left_s / 86400));
}

static void looked(void *arg)
{
	static struct log_limit limit;
	struct front *f = arg;
	bool changed = f->found.ino && !same_file(&f->found, &f->seen);

	f->asking = false;
	if (f->cert)
		take(f);
	else if (f->err.num && (changed || log_limit_ok(&limit, 6)))
		log_warn("the certificate was not read; the one before stays", F_ERR(&f->err));
	if (f->found.ino)
		f->seen = f->found;
	f->found = (struct front_seen){ 0 };
	f->err = (struct err){ 0 };
}

static void tick(struct loop_timer *t)
{
	struct front *f = t->arg;

	if (!f->asking && work_add(f->api->quick, NULL, look, looked, f) == 0)
		f->asking = true;
	loop_timer_set(f->api->loop, &f->timer, FRONT_POLL_MS, tick, f);
}

/* ---- connections ---- */

/* Of nobody: let in, and told so in the protocol that was asked for. */
static void on_route(void *arg, const struct api_route *r, const struct err *e)
{
	struct tls *t = arg;

	if (r)
		tls_answer(t, r->public_traffic ? TLS_HTTP1_OR_H2 : TLS_HTTP1);
	else
		tls_answer(t, e->num == -ENOENT ? TLS_HTTP1_OR_H2 : TLS_UNAVAILABLE);
}

static void on_hello(struct tls *t, const char *name, bool only_h2, void *arg)
{
	struct front *f = arg;
	struct host h = host_parse(name, f->api->domain_host);

	if (name && (h.kind == HOST_UNKNOWN || !tls_server_names(f->tls, name)))
		tls_answer(t, TLS_REFUSE);
	else if (h.kind == HOST_PREVIEW && only_h2 && h.port != ROUTES_CONTROL_PORT &&
		 id_sandbox_ok(h.id))
		route_get(f->api, h.id, on_route, t);
	else
		tls_answer(t, TLS_HTTP1);
}

static void on_ready(struct tls *t, int plain, void *arg)
{
	struct front *f = arg;
	struct api *a = f->api;
	struct host h = host_parse(tls_name(t), a->domain_host);
	struct stream_ask ask = { .kind = STREAM_H2, .port = h.port };

	if (!tls_is_h2(t)) {
		http_server_accept(a->http, plain);
	} else if (a->n_streams >= API_STREAMS_MAX) {
		fd_close(plain);
	} else {
		str_copy(ask.sandbox, sizeof(ask.sandbox), h.id);
		stream_start_h2(a, plain, &ask);
	}
}

int front_check(struct call *c, const struct http_head *h, struct err *e)
{
	struct tls *t = tls_of(http_req_fd(c->req));

	if (!t || !tls_name(t) || host_same(h->host, tls_name(t)))
		return 0;
	return err_set(e, -EREMCHG,
		       "The connection was made for another host than the request names.");
}

/* ---- life ---- */

struct front *front_new(struct api *a, const char *pem_path, struct err *e)
{
	struct front *f = x_alloc(sizeof(*f));
	const struct tls_conf tc = {
		.loop = a->loop,
		.handshake_ms = FRONT_HANDSHAKE_MS,
		.max_handshakes = FRONT_HANDSHAKES_MAX,
		.max_conns = FRONT_CONNS_MAX,
		.hello = on_hello,
		.ready = on_ready,
		.arg = f,
	};

	f->api = a;
	f->tls = tls_server_new(&tc);
	if (str_copy(f->path, sizeof(f->path), pem_path) < 0) {
		err_set(e, -ENAMETOOLONG, "%s is too long", pem_path);
		front_free(f);
		return NULL;
	}
	look(f);
	if (!f->cert) {
		*e = f->err;
		front_free(f);
		return NULL;
	}
	looked(f);
	loop_timer_set(a->loop, &f->timer, FRONT_POLL_MS, tick, f);
	return f;
}

/* After the workers have ended. */
void front_free(struct front *f)
{
	if (!f)
		return;
	loop_timer_stop(&f->timer);
	tls_cert_free(f->cert);
	tls_server_free(f->tls);
	free(f);
}

void front_accept(struct front *f, int fd)
{
	tls_server_accept(f->tls, fd);
}
