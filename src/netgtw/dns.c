/*
 * The DNS proxy. The guest may ask any address: whoever listens there, here it is the gateway that
 * answers, over UDP (datagrams come from inside) and TCP (port 53 is not dialled). A question is
 * read strictly and asked anew of the node's nameservers with an ID of our own; the answer is read
 * strictly and written anew, without the addresses that outside would not dial.
 *
 * c-ares does what is between: the UDP exchange, the match of ID and question, TCP when an answer
 * was truncated. Each attempt has a channel of its own, for one nameserver: so each has a port and
 * an ID that nobody knows, and what one nameserver does touches no other question. Its sockets
 * come from outside, connected; the address that c-ares is told (DNS_FAKE) means nothing. Its
 * time-outs are not used: there is a timer here. A channel is never destroyed inside one of its own
 * callbacks: those only note what happened, query_after looks.
 *
 * Attempts go around the nameservers twice, from the one that answered last. The next one begins
 * when the last one has failed or had its time; those before go on listening, and the first good
 * answer to any of them ends the question. GTW_DNS_ATTEMPTS listen at once: one more takes the
 * place of the oldest. When all have been made, the question waits for those that still listen,
 * until the time of the last one is over.
 */
#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "loop/conn.h"
#include "netgtw/dns_msg.h"
#include "netgtw/gtw.h"

#define DNS_FAKE 0xc0000201u         /* 192.0.2.1: c-ares wants an address and uses it for nothing */
#define DNS_FIRST_MS 1500            /* until the next one is asked; in the second round DNS_SECOND_MS */
#define DNS_SECOND_MS 2500
#define DNS_TCP_IDLE_MS 15000        /* a connection without a question that waits */
#define DNS_TCP_PENDING 16           /* questions of one connection that wait; then it is not read */
#define DNS_TCP_OUT_MAX (4 * (2 + DNS_MESSAGE_MAX))      /* answers that are not taken; more are dropped */

struct dns_conn {
	struct list node;
	struct dns *d;
	struct conn *conn;
	struct addr asked;
	unsigned pending;
};

struct attempt {
	struct query *q;
	struct ares_channeldata *ch;         /* NULL: it does not listen (any more) */
	struct loop_io socks[GTW_DNS_SOCKS];
	unsigned number, server;
	bool failed;                         /* nothing more comes of it; query_after ends it */
};

struct query {
	struct list node;
	struct dns *d;
	struct dns_question question;
	struct in_msg from;                  /* UDP: who asked what */
	struct dns_conn *conn;               /* TCP; NULL also when it is gone */
	bool tcp;
	bool done;                           /* was answered */
	bool floor;                          /* of the answer: an address was in the floor, the first is */
	struct addr floor_addr;
	struct attempt attempts[GTW_DNS_ATTEMPTS], *last;
	unsigned first, n_attempts;          /* which nameserver began; attempts made */
	struct loop_timer timer;             /* the time of the last attempt */
	size_t asked_len;
};

struct dns {
	struct gtw *g;
	struct list queries, conns;
	size_t n_queries, n_conns;
	bool knows_servers, internet;
	unsigned first, n_servers;           /* which is asked first; how many there are */
	uint8_t out[DNS_MESSAGE_MAX + 2];    /* with the length that TCP has before it */
};

/* ---- Answers and their records ---- */

static void dns_log(struct dns *d, const struct query *q, bool refused, enum flow_why why,
		    const struct addr *about, size_t len)
{
	char name[DNS_NAME_TEXT] = "";
	int64_t now = clock_wall_ms();

	if (q->question.name.len)
		dns_name_text(&q->question.name, name);
	flowlog_add(&d->g->log, &(struct flow_record) { .flow = d->g->log.next_flow++,
							.t_ms = now,
							.end_ms = now,
							.dir = FLOW_DNS,
							.proto = q->tcp ? FLOW_TCP : FLOW_UDP,
							.addr = *about,
							.refused = refused,
							.why = why,
							.name = name,
							.up = q->asked_len,
							.down = len });
}

static void dns_send(struct query *q, size_t len)
{
	struct dns *d = q->d;

	if (!q->tcp) {
		q->from.size = (uint32_t)len;
		gtw_tell_inside(d->g, &q->from, d->out + 2);
		return;
	}
	if (!q->conn)
		return;
	d->out[0] = (uint8_t)(len >> 8);
	d->out[1] = (uint8_t)len;
	/* Who does not take his answers loses some, whole ones. */
	conn_write(q->conn->conn, d->out, len + 2);
}

static void dns_say(struct query *q, enum dns_rcode rcode, enum flow_why why)
{
	struct dns *d = q->d;
	size_t len = dns_answer_own(&q->question, rcode, d->out + 2);
	bool failed = rcode == DNS_SERVFAIL;

	if (why == WHY_LIMIT)
		gtw_count(d->g, COUNT_LIMIT, 1);
	if (why != WHY_NONE)
		gtw_count(d->g, failed ? COUNT_DNS_FAILED : COUNT_DNS_REFUSED, 1);
	dns_log(d, q, why != WHY_NONE, why, &q->from.asked, len);
	dns_send(q, len);
}

static bool dns_may_tell(const struct addr *a, void *arg)
{
	struct query *q = arg;
	struct gtw *g = q->d->g;
	struct out_req r = { .magic = PROTO_MAGIC, .kind = OUT_CHECK, .addr = *a };
	enum out_answer answer = gtw_ask_outside(g, &r, NULL);

	/* Without a way out for IPv6 the guest would try it for nothing. */
	if (answer == OUT_NO_ROUTE && a->family == 4)
		answer = OUT_OK;
	if (answer == OUT_FLOOR && !q->floor) {
		q->floor = true;
		q->floor_addr = *a;
	}
	if (answer == OUT_OK) {
		char name[DNS_NAME_TEXT];

		dns_name_text(&q->question.name, name);
		flowlog_name_put(&g->log, a, name);
	}
	return answer == OUT_OK;
}

/* What a nameserver said. 0: the guest has its answer; negative: ask another one. */
static int dns_upstream(struct query *q, const uint8_t *p, size_t n)
{
	struct dns *d = q->d;
	size_t max = q->tcp ? DNS_MESSAGE_MAX : q->question.udp_size;
	struct dns_answer a;
	int r;

	q->floor = false;
	r = dns_answer_pass(&q->question, p, n, dns_may_tell, q, d->out + 2, max, &a);
	if (r < 0)
		return r;
	if (q->floor)
		gtw_count(d->g, COUNT_DNS_FLOOR, 1);
	dns_log(d, q, q->floor, q->floor ? WHY_FLOOR : WHY_NONE,
		q->floor ? &q->floor_addr : &q->from.asked, a.len);
	dns_send(q, a.len);
	return 0;
}

/* ---- c-ares: its sockets, its callback ---- */

static ares_socket_t cares_socket(int family, int type, int protocol, void *arg)
{
	struct attempt *a = arg;
	struct out_req r = { .magic = PROTO_MAGIC, .index = a->server,
			     .kind = type == SOCK_STREAM ? OUT_DNS_TCP : OUT_DNS_UDP };
	int fd = -1;
	enum out_answer answer = gtw_ask_outside(a->q->d->g, &r, &fd);

	if (answer == OUT_OK && fd >= 0)
		return fd;
	fd_close(fd);
	errno = ECONNREFUSED;
	return ARES_SOCKET_BAD;
}

static struct loop_io *cares_find(struct attempt *a, int fd)
{
	for (int i = 0; i < GTW_DNS_SOCKS; i++) {
		if (a->socks[i].loop && a->socks[i].fd == fd)
			return &a->socks[i];
	}
	return NULL;
}

static int cares_close(ares_socket_t fd, void *arg)
{
	struct loop_io *s = cares_find(arg, fd);

	if (s)
		loop_del(s);
	fd_close(fd);
	return 0;
}

/* outside has connected it. */
static int cares_connect(ares_socket_t fd, const struct sockaddr *sa, ares_socklen_t n, void *arg)
{
	return 0;
}

static ares_ssize_t cares_recv(ares_socket_t fd, void *p, size_t n, int flags,
			       struct sockaddr *from, ares_socklen_t *from_len, void *arg)
{
	struct sockaddr_in fake = { .sin_family = AF_INET, .sin_port = htons(53),
				    .sin_addr.s_addr = htonl(DNS_FAKE) };

	/* The socket is connected: the kernel gives nothing of anybody else. */
	if (from && from_len && *from_len >= sizeof(fake)) {
		memcpy(from, &fake, sizeof(fake));
		*from_len = sizeof(fake);
	}
	return recv(fd, p, n, flags);
}

static ares_ssize_t cares_send(ares_socket_t fd, const struct iovec *v, int n, void *arg)
{
	return n < 1 ? 0 : send(fd, v[0].iov_base, v[0].iov_len, MSG_NOSIGNAL);
}

static const struct ares_socket_functions cares_functions = {
	.asocket = cares_socket,
	.aclose = cares_close,
	.aconnect = cares_connect,
	.arecvfrom = cares_recv,
	.asendv = cares_send,
};

static void query_after(struct query *q, bool due);

static void cares_on_io(struct loop_io *io, uint32_t events)
{
	struct attempt *a = io->arg;
	bool bad = (events & (EPOLLERR | EPOLLHUP)) != 0;
	bool in = bad || (events & EPOLLIN), out = (events & EPOLLOUT) != 0;

	ares_process_fd(a->ch, in ? io->fd : ARES_SOCKET_BAD, out ? io->fd : ARES_SOCKET_BAD);
	query_after(a->q, false);
}

static void cares_state(void *arg, ares_socket_t fd, int in, int out)
{
	struct attempt *a = arg;
	struct loop_io *s = cares_find(a, fd);
	uint32_t events = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u);

	for (int i = 0; !s && events && i < GTW_DNS_SOCKS; i++) {
		if (a->socks[i].loop)
			continue;
		if (loop_add(a->q->d->g->loop, &a->socks[i], fd, events, cares_on_io, a) < 0)
			a->failed = true;
		return;
	}
	if (s && events)
		loop_mod(s, events);
	else if (s)
		loop_del(s);
	else if (events)
		a->failed = true;
}

static void cares_done(void *arg, int status, int timeouts, unsigned char *p, int n)
{
	struct attempt *a = arg;
	struct query *q = a->q;

	if (status == ARES_EDESTRUCTION || q->done)
		return;
	if (status == ARES_SUCCESS && p && n > 0 && dns_upstream(q, p, (size_t)n) == 0) {
		q->done = true;
		q->d->first = a->server;
	} else {
		a->failed = true;
	}
}

static int cares_channel(struct attempt *a)
{
	struct in_addr fake = { .s_addr = htonl(DNS_FAKE) };
	struct ares_options o = {
		/* What the nameserver says is looked at here, refusals too. */
		.flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES | ARES_FLAG_NOCHECKRESP,
		.timeout = 60000, .tries = 1, .ndots = 1, .servers = &fake, .nservers = 1,
		.lookups = "b", .sock_state_cb = cares_state, .sock_state_cb_data = a };
	/* All that it would otherwise look up in files. */
	int mask = ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_NDOTS |
		   ARES_OPT_SERVERS | ARES_OPT_LOOKUPS | ARES_OPT_DOMAINS | ARES_OPT_SORTLIST |
		   ARES_OPT_SOCK_STATE_CB;

	if (ares_init_options(&a->ch, &o, mask) != ARES_SUCCESS) {
		a->ch = NULL;
		return -ENOMEM;
	}
	ares_set_socket_functions(a->ch, &cares_functions, a);
	return 0;
}

/* ---- A question ---- */

static void attempt_end(struct attempt *a)
{
	ares_channel ch = TAKE(a->ch);

	if (ch)
		ares_destroy(ch);
	for (int i = 0; i < GTW_DNS_SOCKS; i++)
		loop_del(&a->socks[i]);
	a->failed = false;
}

static void conn_pending(struct dns_conn *c, int change);

static void query_free(struct query *q)
{
	struct dns *d = q->d;

	q->done = true;
	for (int i = 0; i < GTW_DNS_ATTEMPTS; i++)
		attempt_end(&q->attempts[i]);
	loop_timer_stop(&q->timer);
	if (q->conn)
		conn_pending(q->conn, -1);
	list_del(&q->node);
	d->n_queries--;
	free(q);
}

static void query_on_timer(struct loop_timer *t)
{
	query_after(t->arg, true);
}

/* A place for one more: a free one, or that of the oldest. */
static struct attempt *query_place(struct query *q)
{
	struct attempt *oldest = q->attempts;

	for (int i = 0; i < GTW_DNS_ATTEMPTS; i++) {
		struct attempt *a = &q->attempts[i];

		if (!a->ch)
			return a;
		if (a->number < oldest->number)
			oldest = a;
	}
	attempt_end(oldest);
	return oldest;
}

/* One more attempt; q->done or its `failed` may be said at once. */
static void query_ask(struct query *q)
{
	struct dns *d = q->d;
	struct attempt *a = query_place(q);
	uint8_t packet[DNS_QUESTION_MAX];
	uint16_t id = 0;
	size_t n;

	q->last = a;
	a->q = q;
	a->number = q->n_attempts++;
	a->server = (q->first + a->number) % d->n_servers;
	loop_timer_set(d->g->loop, &q->timer,
		       a->number < d->n_servers ? DNS_FIRST_MS : DNS_SECOND_MS, query_on_timer, q);
	if (getrandom(&id, sizeof(id), 0) != sizeof(id) || cares_channel(a) < 0)
		return;
	n = dns_question_write(&q->question, id, packet);
	ares_send(a->ch, packet, (int)n, cares_done, a);
}

/* Ends what has failed. Returns how many still listen. */
static unsigned query_listening(struct query *q)
{
	unsigned n = 0;

	for (int i = 0; i < GTW_DNS_ATTEMPTS; i++) {
		if (q->attempts[i].failed)
			attempt_end(&q->attempts[i]);
		n += q->attempts[i].ch != NULL;
	}
	return n;
}

/*
 * What has become of the attempts: the end, the next one, or they go on. due: the last one has had
 * its time. q may be gone.
 */
static void query_after(struct query *q, bool due)
{
	while (!q->done) {
		unsigned listening = query_listening(q);
		bool more = q->n_attempts < 2 * q->d->n_servers;

		if (!due && (more ? q->last->ch != NULL : listening > 0))
			return;
		if (more) {
			due = false;
			query_ask(q);
		} else {
			dns_say(q, DNS_SERVFAIL, WHY_UPSTREAM);
			q->done = true;
		}
	}
	query_free(q);
}

/* What outside has of nameservers stays as it is: it is asked once, when one is needed. */
static void dns_know_servers(struct dns *d)
{
	struct out_req r = { .magic = PROTO_MAGIC, .kind = OUT_DNS_UDP };

	d->knows_servers = true;
	for (; r.index < GTW_NAMESERVERS_MAX; r.index++) {
		int fd;
		enum out_answer answer = gtw_ask_outside(d->g, &r, &fd);

		fd_close(fd);
		d->internet = answer != OUT_INTERNET;
		if (!d->internet || answer == OUT_INDEX)
			return;
		d->n_servers++;
	}
}

/* Whether a nameserver can be asked at all. */
static enum flow_why dns_way_out(struct dns *d)
{
	if (!d->knows_servers)
		dns_know_servers(d);
	return !d->internet ? WHY_INTERNET : d->n_servers == 0 ? WHY_UPSTREAM : WHY_NONE;
}

/* The answers that need no nameserver. true: said. */
static bool dns_at_once(struct query *q, int code)
{
	struct gtw *g = q->d->g;
	enum dns_treat treat = dns_treat(q->question.type);
	enum flow_why why;

	if (code != DNS_NOERROR)
		dns_say(q, (enum dns_rcode)code, WHY_MALFORMED);
	else if (!g->open || g->closed)
		dns_say(q, DNS_REFUSED, WHY_NOT_OPEN);
	else if (q->d->n_queries >= g->conf.limits.v[LIMIT_DNS_PENDING] ||
		 !bucket_one(&g->dns_rate, clock_mono_us()))
		dns_say(q, DNS_REFUSED, WHY_LIMIT);
	else if (dns_name_closed(&q->question.name))
		dns_say(q, DNS_NXDOMAIN, WHY_FLOOR);
	else if (treat == DNS_REFUSE)
		dns_say(q, DNS_REFUSED, WHY_TYPE);
	else if (treat == DNS_EMPTY)
		dns_say(q, DNS_NOERROR, WHY_NONE);
	else if ((why = dns_way_out(q->d)) != WHY_NONE)
		dns_say(q, why == WHY_INTERNET ? DNS_REFUSED : DNS_SERVFAIL, why);
	else
		return false;
	return true;
}

static void dns_question(struct dns *d, const struct in_msg *from, struct dns_conn *conn,
			 const uint8_t *p, size_t n)
{
	struct query first = { .d = d, .tcp = conn != NULL, .conn = conn, .from = *from,
			       .first = d->first, .asked_len = n };
	int code = dns_question_read(p, n, &first.question);
	struct query *q;

	if (code < 0)
		return;
	gtw_count(d->g, COUNT_DNS, 1);
	if (dns_at_once(&first, code))
		return;
	q = x_alloc(sizeof(*q));
	*q = first;
	list_add_tail(&d->queries, &q->node);
	d->n_queries++;
	if (conn)
		conn_pending(conn, 1);
	query_ask(q);
	query_after(q, false);
}

void dns_datagram(struct gtw *g, const struct in_msg *m, const uint8_t *p, size_t n)
{
	struct in_msg from = *m;

	if (!gtw_is_guest(g, &m->guest) || m->asked.family != m->guest.family)
		return;
	from.kind = IN_DATAGRAM;
	dns_question(g->dns, &from, NULL, p, n);
}

/* ---- TCP ---- */

static void conn_end(struct dns_conn *c)
{
	struct dns *d = c->d;

	LIST_FOR(&d->queries, q, struct query, node) {
		if (q->conn == c)
			q->conn = NULL;
	}
	conn_free(c->conn);
	list_del(&c->node);
	d->n_conns--;
	free(c);
}

/* Who has many answers to come, or does not take those that he has, is not heard any further. */
static bool conn_full(const struct dns_conn *c)
{
	return c->pending >= DNS_TCP_PENDING || conn_out_len(c->conn) > 0;
}

static void conn_pending(struct dns_conn *c, int change)
{
	c->pending = (unsigned)((int)c->pending + change);
	conn_pause(c->conn, conn_full(c));
	if (change < 0)
		conn_kick(c->conn);
	conn_set_timeout(c->conn, c->pending ? 0 : DNS_TCP_IDLE_MS);
}

/* The next question, if it has come whole. 0: not yet; negative: it is none. */
static int conn_question(struct dns_conn *c)
{
	struct in_msg from = { .asked = c->asked };
	struct buf *in = conn_in(c->conn);
	const uint8_t *p = (const uint8_t *)buf_data(in);
	uint8_t question[DNS_QUESTION_MAX];
	size_t n;

	if (buf_len(in) < 2)
		return 0;
	n = (size_t)p[0] << 8 | p[1];
	if (n < DNS_HEAD || n > DNS_QUESTION_MAX)
		return -EBADMSG;
	if (buf_len(in) < 2 + n)
		return 0;
	memcpy(question, p + 2, n);
	buf_consume(in, 2 + n);
	dns_question(c->d, &from, c, question, n);
	return 1;
}

static int conn_questions(struct dns_conn *c)
{
	int r = 1;

	while (r > 0 && !conn_full(c)) {
		r = conn_question(c);
		if (r > 0)
			conn_pending(c, 0);
	}
	return r;
}

static void conn_on_event(struct conn *conn, enum conn_event ev, void *arg)
{
	struct dns_conn *c = arg;
	int r = ev == CONN_ERROR || ev == CONN_TIMEOUT ? -ECONNABORTED : conn_questions(c);

	if (r < 0 || (conn_eof(conn) && c->pending == 0 && conn_out_len(conn) == 0))
		conn_end(c);
}

void dns_accept(struct gtw *g, int fd, const struct addr *asked)
{
	struct dns *d = g->dns;
	enum flow_why why = !g->open || g->closed ? WHY_NOT_OPEN
			    : d->n_conns >= g->conf.limits.v[LIMIT_DNS_TCP] ? WHY_LIMIT
									    : WHY_NONE;
	struct dns_conn *c;

	if (why != WHY_NONE) {
		flow_refused(g, FLOW_OUT, FLOW_TCP, asked, why);
		gtw_reset(fd);
		return;
	}
	c = x_alloc(sizeof(*c));
	c->d = d;
	c->asked = *asked;
	list_add_tail(&d->conns, &c->node);
	d->n_conns++;
	c->conn = conn_new(g->loop, fd, 2 * (2 + DNS_QUESTION_MAX), DNS_TCP_OUT_MAX, conn_on_event,
			   c);
	if (c->conn)
		conn_set_timeout(c->conn, DNS_TCP_IDLE_MS);
	else
		conn_end(c);
}

void dns_end_all(struct gtw *g)
{
	struct dns *d = g->dns;

	if (!d)
		return;
	LIST_FOR_SAFE(&d->queries, q, struct query, node)
		query_free(q);
	LIST_FOR_SAFE(&d->conns, c, struct dns_conn, node)
		conn_end(c);
}

int dns_start(struct gtw *g)
{
	if (ares_library_init(ARES_LIB_INIT_ALL) != ARES_SUCCESS)
		return -ENOMEM;
	g->dns = x_alloc(sizeof(*g->dns));
	g->dns->g = g;
	list_init(&g->dns->queries);
	list_init(&g->dns->conns);
	return 0;
}

void dns_stop(struct gtw *g)
{
	dns_end_all(g);
	free(TAKE(g->dns));
}
