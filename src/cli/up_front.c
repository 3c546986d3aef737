/*
 * Where clients come in: addresses, the domain of the sandboxes' ports, and the certificate. The
 * operator's two files can be root's alone; what space-api reads is one file of its own with both,
 * replaced in one step whenever one of them changes (api/front.h looks at it). Two files that do
 * not belong together, because one of them is still the old one, are refused there, and the next
 * change is looked at again.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "cli/up.h"
#include "loop/listen.h"
#include "loop/tls.h"

#define PEM_MAX (128 << 10)              /* bytes of each of the two files */
#define WATCH_MS 1000
#define PORT_WAIT_MS 3000
#define TLS_PORT_DEFAULT 443
#define LOOPBACK "127.0.0.1"

struct up_seen { ino_t ino; off_t size; struct timespec mtime; };

struct up_front {
	struct loop *loop;
	const struct up_options *o;
	const struct conf *k;
	struct loop_timer timer;
	struct up_seen seen[2];
};

int up_front_options(struct cli *c, const struct up_front_strings *s, struct up_options *o)
{
	uint64_t port = TLS_PORT_DEFAULT;
	char any[CONF_NET_TEXT_MAX];

	if (!s->cert != !s->key)
		return cli_usage_error(c, "--tls-cert and --tls-key belong together");
	if (s->tls_port && !s->cert)
		return cli_usage_error(c, "--tls-port needs --tls-cert and --tls-key");
	if (s->tls_port && (str_to_u64(s->tls_port, 65535, &port) < 0 || !port))
		return cli_usage_error(c, "--tls-port needs a port, not \"%s\"", s->tls_port);
	if (s->listen && conf_ip_address(any, s->listen) < 0)
		return cli_usage_error(c, "--listen needs a numeric address, not \"%s\"", s->listen);
	if (s->listen && !s->cert && !s->plain_http)
		return cli_usage_error(c, "without TLS everybody on the way reads along: give "
					  "--tls-cert and --tls-key, or say --plain-http");
	o->listen = s->listen ? s->listen : LOOPBACK;
	o->tls_cert = s->cert;
	o->tls_key = s->key;
	o->tls_port = (uint16_t)port;
	o->plain_http = s->plain_http != NULL;
	o->domain = s->domain;
	return 0;
}

static int put_address(char dst[128], const char *host, unsigned port)
{
	return str_format(dst, 128, strchr(host, ':') ? "tcp:[%s]:%u" : "tcp:%s:%u", host, port);
}

int up_front_conf(const struct up_options *o, struct conf *k)
{
	int r = put_address(k->api_listen, o->plain_http ? o->listen : LOOPBACK, o->port);

	r |= str_copy(k->plain_http, sizeof(k->plain_http),
		      o->plain_http ? "anywhere" : "loopback");
	if (o->tls_cert)
		r |= put_address(k->tls_listen, o->listen, o->tls_port);
	r |= o->domain ? str_copy(k->domain, sizeof(k->domain), o->domain)
		       : str_format(k->domain, sizeof(k->domain), "localhost:%u", o->port);
	return r;
}

void up_front_url(const struct up_options *o, char dst[160])
{
	bool any = str_eq(o->listen, "0.0.0.0") || str_eq(o->listen, "::");
	const char *host = o->plain_http && !any ? o->listen : LOOPBACK;

	(void)str_format(dst, 160, strchr(host, ':') ? "http://[%s]:%u" : "http://%s:%u", host,
			 o->port);
}

/* ---- the certificate ---- */

static int read_one(const char *path, const char *option, struct buf *b, struct err *e)
{
	char *text = NULL;
	size_t n = 0;
	int r = fd_read_file(AT_FDCWD, path, PEM_MAX, &text, &n);

	if (r < 0)
		return err_errno(e, r, "%s: %s", option, path);
	if (!memmem(text, n, "-----BEGIN ", 11))
		r = err_set(e, -EINVAL, "%s: %s is not PEM", option, path);
	else
		r = buf_put(b, text, n) < 0 || buf_put(b, "\n", 1) < 0 ? -EFBIG : 0;
	explicit_bzero(text, n);
	free(text);
	return r;
}

/* Under another name first: at no time is there a file that its reader may not read. */
static int install(const struct conf *k, struct buf *b, struct err *e)
{
	char path[PATH_MAX], next[PATH_MAX];
	uid_t api = k->users[CONF_USER_API];
	int r = conf_path(k, path, CONF_STATE, "keys/api/tls.pem");

	if (r == 0)
		r = conf_path(k, next, CONF_STATE, "keys/api/tls.next");
	if (r == 0)
		r = fd_write_file(AT_FDCWD, next, buf_data(b), buf_len(b), 0400);
	if (r < 0)
		return err_errno(e, r, "cannot write the certificate for space-api");
	r = up_own(next, api, api, 0400, e);
	if (r >= 0 && rename(next, path) < 0)
		r = err_errno(e, -errno, "%s", path);
	return r;
}

static int read_both(const struct up_options *o, struct buf *b, struct err *e)
{
	int r = read_one(o->tls_cert, "--tls-cert", b, e);

	return r < 0 ? r : read_one(o->tls_key, "--tls-key", b, e);
}

static void forget(struct buf *b)
{
	explicit_bzero((char *)buf_data(b), buf_len(b));
	buf_done(b);
}

int up_front_copy(const struct up_options *o, const struct conf *k, struct err *e)
{
	struct buf b;
	int r;

	if (!o->tls_cert)
		return 0;
	buf_init(&b, 2 * PEM_MAX + 2);
	r = read_both(o, &b, e);
	if (r >= 0)
		r = install(k, &b, e);
	forget(&b);
	return r;
}

static int check_pair(const struct up_options *o, struct err *e)
{
	struct tls_cert *cert = NULL;
	struct buf b;
	int r;

	buf_init(&b, 2 * PEM_MAX + 2);
	r = read_both(o, &b, e);
	if (r >= 0 && (r = tls_cert_load(buf_data(&b), buf_len(&b), &cert, e)) < 0)
		err_wrap(e, "%s and %s", o->tls_cert, o->tls_key);
	tls_cert_free(cert);
	forget(&b);
	return r;
}

/* The daemons of an `up` that was killed may still hold their ports for a moment. */
static int check_port(const char *addr, const char *option, struct err *e)
{
	int64_t start = clock_mono_ms();
	int fd;

	while ((fd = listen_addr(addr, SOCK_STREAM, 0, e)) == -EADDRINUSE &&
	       clock_mono_ms() - start < PORT_WAIT_MS)
		usleep(50000);
	if (fd == -EADDRINUSE)
		return err_set_code(e, fd, "port-taken",
				    "another program listens on %s; choose another port with %s",
				    addr + strlen("tcp:"), option);
	fd_close(fd);
	return fd < 0 ? fd : 0;
}

int up_front_check(const struct up_options *o, const struct conf *k, struct err *e)
{
	int r = o->tls_cert ? check_pair(o, e) : 0;

	if (r >= 0)
		r = check_port(k->api_listen, "--port", e);
	if (r >= 0 && k->tls_listen[0])
		r = check_port(k->tls_listen, "--tls-port", e);
	return r;
}

static struct up_seen look(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 ? (struct up_seen){ st.st_ino, st.st_size, st.st_mtim }
				    : (struct up_seen){ 0 };
}

static bool changed(struct up_front *f)
{
	const struct up_seen now[2] = { look(f->o->tls_cert), look(f->o->tls_key) };
	bool differs = false;

	for (int i = 0; i < 2; i++) {
		differs |= now[i].ino != f->seen[i].ino || now[i].size != f->seen[i].size ||
			   now[i].mtime.tv_sec != f->seen[i].mtime.tv_sec ||
			   now[i].mtime.tv_nsec != f->seen[i].mtime.tv_nsec;
		f->seen[i] = now[i];
	}
	return differs;
}

static void tick(struct loop_timer *t)
{
	struct up_front *f = t->arg;
	struct err e = { 0 };

	if (changed(f)) {
		if (up_front_copy(f->o, f->k, &e) < 0)
			up_say("the certificate stays as it is: %s", e.text);
		else
			up_say("the certificate was read again");
	}
	loop_timer_set(f->loop, &f->timer, WATCH_MS, tick, f);
}

struct up_front *up_front_watch(struct loop *l, const struct up_options *o, const struct conf *k)
{
	struct up_front *f = x_alloc(sizeof(*f));

	*f = (struct up_front){ .loop = l, .o = o, .k = k };
	if (!o->tls_cert)
		return f;
	(void)changed(f);
	loop_timer_set(l, &f->timer, WATCH_MS, tick, f);
	return f;
}

void up_front_free(struct up_front *f)
{
	if (!f)
		return;
	loop_timer_stop(&f->timer);
	free(f);
}
