/* The DNS proxy through the real processes: the test is the guest and the nameserver. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/str.h"
#include "netgtw/dns_msg.h"
#include "netgtw/test_rig.h"

#define LATE_QUESTIONS 4000              /* more than the kernel keeps answers for */

static const char *netgtw_path;
static struct rig rig;
static int upstream, upstream_tcp;

/* ---- Messages by hand ---- */

struct msg { uint8_t p[65535]; size_t n; };

static void m16(struct msg *m, unsigned v)
{
	m->p[m->n++] = (uint8_t)(v >> 8);
	m->p[m->n++] = (uint8_t)v;
}

static void m_name(struct msg *m, const char *name)
{
	while (*name) {
		size_t len = strcspn(name, ".");

		m->p[m->n++] = (uint8_t)len;
		memcpy(m->p + m->n, name, len);
		m->n += len;
		name += len + (name[len] == '.');
	}
	m->p[m->n++] = 0;
}

static struct msg question(unsigned id, const char *name, unsigned type, unsigned edns)
{
	struct msg m = { .n = 0 };

	m16(&m, id);
	m16(&m, 0x0100);
	m16(&m, 1);
	m16(&m, 0);
	m16(&m, 0);
	m16(&m, edns ? 1 : 0);
	m_name(&m, name);
	m16(&m, type);
	m16(&m, 1);
	if (edns) {
		m_name(&m, "");
		m16(&m, DNS_OPT);
		m16(&m, edns);
		m16(&m, 0);
		m16(&m, 0);
		m16(&m, 0);
	}
	return m;
}

/* An answer to what was asked, with these records; an OPT of the question is not repeated. */
static struct msg answer(const struct msg *asked, unsigned flags)
{
	struct msg m = { .n = 12 };
	size_t end = 12;

	memcpy(m.p, asked->p, 12);
	m.p[2] = (uint8_t)(flags >> 8);
	m.p[3] = (uint8_t)flags;
	memset(m.p + 6, 0, 6);
	while (asked->p[end] != 0)
		end += asked->p[end] + 1u;
	end += 5;
	memcpy(m.p + 12, asked->p + 12, end - 12);
	m.n = end;
	return m;
}

static void record(struct msg *m, int section, const char *owner, unsigned type, const void *data,
		   size_t n)
{
	if (owner)
		m_name(m, owner);
	else
		m16(m, 0xc00c);
	m16(m, type);
	m16(m, 1);
	m16(m, 0);
	m16(m, 300);
	m16(m, (unsigned)n);
	memcpy(m->p + m->n, data, n);
	m->n += n;
	m->p[7 + 2 * section]++;
}

static void record_name(struct msg *m, const char *owner, unsigned type, const char *name)
{
	struct msg data = { .n = 0 };

	m_name(&data, name);
	record(m, 0, owner, type, data.p, data.n);
}

static void record_a(struct msg *m, const char *owner, const char *addr)
{
	struct addr a;

	assert_int_equal(addr_parse(addr, &a), 0);
	record(m, 0, owner, a.family == 4 ? DNS_A : DNS_AAAA, a.ip, a.family == 4 ? 4 : 16);
}

static unsigned flags_of(const struct msg *m) { return (unsigned)m->p[2] << 8 | m->p[3]; }
static unsigned count_of(const struct msg *m) { return (unsigned)m->p[6] << 8 | m->p[7]; }

/* ---- Guest and nameserver ---- */

/* room: of what it has not read, 0 = as usual. */
static int guest_socket(const char *server, int type, int room)
{
	struct sockaddr_storage ss;
	struct addr a;
	socklen_t n;
	int fd;

	assert_int_equal(addr_parse(server, &a), 0);
	a.port = 53;
	n = addr_to_sockaddr(&a, &ss);
	fd = rig_socket(&rig, RIG_GUEST, ss.ss_family, type);
	if (room)
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room)), 0);
	if (connect(fd, (struct sockaddr *)&ss, n) < 0)
		assert_int_equal(errno, EINPROGRESS);
	return fd;
}

static int guest_udp(const char *server) { return guest_socket(server, SOCK_DGRAM, 0); }

static struct msg get(int fd)
{
	struct msg m;
	ssize_t n;

	if (!rig_wait(fd, POLLIN, RIG_WAIT_MS))
		fail_msg("no datagram");
	n = recv(fd, m.p, sizeof(m.p), 0);
	assert_true(n >= 12);
	m.n = (size_t)n;
	return m;
}

static struct sockaddr_storage asker;
static socklen_t asker_len;

static struct msg asked_of(int nameserver)
{
	struct msg m;
	ssize_t n;

	if (!rig_wait(nameserver, POLLIN, RIG_WAIT_MS))
		fail_msg("the nameserver is not asked");
	asker_len = sizeof(asker);
	n = recvfrom(nameserver, m.p, sizeof(m.p), 0, (struct sockaddr *)&asker, &asker_len);
	assert_true(n >= 12);
	m.n = (size_t)n;
	return m;
}

static struct msg upstream_get(void) { return asked_of(upstream); }

static void upstream_say(const struct msg *m)
{
	assert_int_equal(sendto(upstream, m->p, m->n, 0, (struct sockaddr *)&asker, asker_len),
			 m->n);
}

/* One attempt, to be answered when others have been made since. */
struct asked { int nameserver; struct msg m; struct sockaddr_storage from; socklen_t from_len; };

static struct asked attempt(int nameserver)
{
	struct msg m = asked_of(nameserver);

	return (struct asked){ nameserver, m, asker, asker_len };
}

static void say(const struct asked *a, const struct msg *m)
{
	assert_int_equal(sendto(a->nameserver, m->p, m->n, 0, (const struct sockaddr *)&a->from,
				a->from_len),
			 m->n);
}

static void say_code(const struct asked *a, enum dns_rcode code)
{
	struct msg m = answer(&a->m, 0x8180u | code);

	say(a, &m);
}

static void say_addr(const struct asked *a, const char *addr)
{
	struct msg m = answer(&a->m, 0x8180);

	record_a(&m, NULL, addr);
	say(a, &m);
}

static void ask(int fd, const struct msg *m)
{
	assert_int_equal(send(fd, m->p, m->n, 0), m->n);
}

/* What the guest gets when the nameserver says this; asked over UDP at the usual address. */
static struct msg exchange(const char *name, unsigned type, void (*fill)(struct msg *m),
			   unsigned flags)
{
	int fd = guest_udp(GTW_HOST_V4);
	struct msg q = question(77, name, type, 0), up, said, got;

	ask(fd, &q);
	up = upstream_get();
	said = answer(&up, flags);
	if (fill)
		fill(&said);
	upstream_say(&said);
	got = get(fd);
	close(fd);
	assert_int_equal((unsigned)got.p[0] << 8 | got.p[1], 77);
	assert_true(flags_of(&got) & 0x8000);
	return got;
}

static struct msg at_once(const struct msg *q)
{
	int fd = guest_udp(GTW_HOST_V4);
	struct msg got;

	ask(fd, q);
	got = get(fd);
	close(fd);
	assert_false(rig_wait(upstream, POLLIN, 0));
	return got;
}

/* ---- Tests ---- */

static void fill_plain(struct msg *m) { record_a(m, NULL, "9.9.10.2"); }

static void test_answer(void **state)
{
	const char *const servers[] = { GTW_HOST_V4, GTW_HOST_V6, "8.8.8.8", "2a10:9999::8" };
	json_t *log, *o;

	/* Whatever address is asked, the answer comes from there. */
	for (size_t i = 0; i < ARRAY_LEN(servers); i++) {
		int fd = guest_udp(servers[i]);
		struct msg q = question(0x1234, "Www.Example.Com", DNS_A, 0), up, said, got;

		ask(fd, &q);
		up = upstream_get();
		/* Another ID, the same question. */
		assert_int_equal(up.n, q.n);
		assert_memory_equal(up.p + 4, q.p + 4, q.n - 4);
		said = answer(&up, 0x8180);
		record_a(&said, NULL, "9.9.10.2");
		upstream_say(&said);
		got = get(fd);
		assert_int_equal(flags_of(&got), 0x8180);
		assert_int_equal(count_of(&got), 1);
		assert_memory_equal(got.p + 12, q.p + 12, q.n - 12);
		assert_memory_equal(got.p + got.n - 4, "\x09\x09\x0a\x02", 4);
		close(fd);
	}
	log = rig_log(&rig);
	o = rig_find(log, "dns", NULL);
	assert_string_equal(json_string_value(json_object_get(o, "name")), "www.example.com");
	assert_string_equal(json_string_value(json_object_get(o, "verdict")), "allow");
	json_decref(log);
}

static void fill_mixed(struct msg *m)
{
	record_a(m, NULL, "10.0.0.1");
	record_a(m, NULL, "9.9.10.2");
	record_a(m, NULL, "169.254.169.254");
	record_a(m, NULL, "9.9.10.1");
}

static void fill_private(struct msg *m)
{
	record_name(m, NULL, DNS_CNAME, "inner.example.com");
	record_a(m, "inner.example.com", "192.168.7.7");
}

static void test_floor(void **state)
{
	struct msg got = exchange("mixed.example.com", DNS_A, fill_mixed, 0x8180);
	json_t *log;

	/* One of four: private, metadata and the node's own are taken out. */
	assert_int_equal(count_of(&got), 1);
	assert_memory_equal(got.p + got.n - 4, "\x09\x09\x0a\x02", 4);
	got = exchange("rebind.example.com", DNS_A, fill_private, 0x8180);
	assert_int_equal(flags_of(&got) & 15, DNS_NOERROR);
	assert_int_equal(count_of(&got), 1);                 /* the CNAME */
	log = rig_log(&rig);
	assert_string_equal(json_string_value(
				    json_object_get(rig_find(log, "dns", NULL), "reason")),
			    "floor");
	assert_non_null(rig_find(log, "dns", "192.168.7.7"));
	json_decref(log);
	assert_true(rig_counter(&rig, "dns_floor") >= 2);
}

static void fill_chain(struct msg *m)
{
	record_name(m, NULL, DNS_CNAME, "a.example.com");
	record_name(m, "a.example.com", DNS_CNAME, "b.example.net");
	record_a(m, "b.example.net", "9.9.10.2");
	record_a(m, "other.example.net", "9.9.10.3");
}

static void test_chain(void **state)
{
	struct msg got = exchange("chain.example.com", DNS_A, fill_chain, 0x8180);

	/* What does not belong to the question is not passed on. */
	assert_int_equal(count_of(&got), 3);
}

static void fill_aaaa(struct msg *m) { record_a(m, NULL, "2a10:9999::2"); }
static void fill_v6_floor(struct msg *m)
{
	record_a(m, NULL, "fd00::2");
	record_a(m, NULL, "64:ff9b::a00:1");
}

static void test_aaaa(void **state)
{
	struct msg got = exchange("six.example.com", DNS_AAAA, fill_aaaa, 0x8180);

	assert_int_equal(count_of(&got), 1);
	got = exchange("six-floor.example.com", DNS_AAAA, fill_v6_floor, 0x8180);
	assert_int_equal(count_of(&got), 0);
	assert_int_equal(flags_of(&got) & 15, DNS_NOERROR);
	/* A node without a way out for IPv6 does not tell of such addresses. */
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch",
	       "route del ::/0\naddr del 2a10:9999::1/64 dev wan\n");
	got = exchange("six.example.com", DNS_AAAA, fill_aaaa, 0x8180);
	assert_int_equal(count_of(&got), 0);
	rig_sh(&rig, RIG_NODE, "/usr/sbin/ip", "-batch",
	       "addr add 2a10:9999::1/64 dev wan nodad\nroute replace ::/0 via 2a10:9999::2\n");
}

static void fill_nothing(struct msg *m)
{
	struct msg data = { .n = 0 };

	m_name(&data, "ns.example.com");
	m_name(&data, "admin.example.com");
	for (int i = 0; i < 10; i++)
		m16(&data, (unsigned)i);
	record(m, 1, "example.com", DNS_SOA, data.p, data.n);
}

static void test_nxdomain(void **state)
{
	struct msg got = exchange("host.search.example.com", DNS_A, fill_nothing, 0x8183);

	assert_int_equal(flags_of(&got) & 15, DNS_NXDOMAIN);
	assert_int_equal(count_of(&got), 0);
	assert_int_equal(got.p[9], 1);
}

static void fill_big(struct msg *m)
{
	char text[256];

	memset(text, 'x', sizeof(text));
	text[0] = (char)255;
	for (int i = 0; i < 8; i++)
		record(m, 0, NULL, DNS_TXT, text, 256);
}

static void tcp_say(int fd, const struct msg *m)
{
	uint8_t len[2] = { (uint8_t)(m->n >> 8), (uint8_t)m->n };

	rig_send(fd, len, 2);
	rig_send(fd, m->p, m->n);
}

static int guest_tcp_ask(const struct msg *q)
{
	int fd = rig_connect(&rig, RIG_GUEST, GTW_HOST_V4, 53);

	assert_true(fd >= 0);
	tcp_say(fd, q);
	return fd;
}

static struct msg tcp_get(int fd)
{
	uint8_t len[2];
	struct msg m;

	assert_int_equal(rig_recv(fd, len, 2), 2);
	m.n = (size_t)len[0] << 8 | len[1];
	assert_int_equal(rig_recv(fd, m.p, m.n), m.n);
	return m;
}

/* The nameserver has more than fits; it is asked over TCP, and so are we. */
static void test_truncation(void **state)
{
	struct msg q = question(5, "big.example.com", DNS_TXT, 0), up, said, got;
	int fd = guest_udp(GTW_HOST_V4), tcp = -1;

	for (int over_tcp = 0; over_tcp < 2; over_tcp++) {
		int up_tcp;

		if (over_tcp)
			tcp = guest_tcp_ask(&q);
		else
			ask(fd, &q);
		up = upstream_get();
		said = answer(&up, 0x8380);
		upstream_say(&said);
		up_tcp = rig_accept(upstream_tcp);
		up = tcp_get(up_tcp);
		said = answer(&up, 0x8180);
		fill_big(&said);
		tcp_say(up_tcp, &said);
		got = over_tcp ? tcp_get(tcp) : get(fd);
		assert_int_equal(flags_of(&got) & 0x0200, over_tcp ? 0 : 0x0200);
		assert_int_equal(count_of(&got), over_tcp ? 8 : 0);
		close(up_tcp);
	}
	close(fd);
	close(tcp);
}

/* Several questions on one connection, answered in another order. */
static void test_tcp_pipeline(void **state)
{
	struct msg q1 = question(1, "one.example.com", DNS_A, 0),
		   q2 = question(2, "two.example.com", DNS_A, 0);
	struct msg up1, up2, said, got;
	struct sockaddr_storage first;
	socklen_t first_len;
	int fd = guest_tcp_ask(&q1);

	tcp_say(fd, &q2);
	shutdown(fd, SHUT_WR);
	up1 = upstream_get();
	first = asker;
	first_len = asker_len;
	up2 = upstream_get();
	/* Each question has a port of its own. */
	assert_memory_not_equal(&first, &asker, sizeof(struct sockaddr_storage) / 16);
	said = answer(&up2, 0x8180);
	fill_plain(&said);
	upstream_say(&said);
	got = tcp_get(fd);
	assert_int_equal(got.p[1], up2.p[13] == 't' ? 2 : 1);
	asker = first;
	asker_len = first_len;
	said = answer(&up1, 0x8180);
	fill_plain(&said);
	upstream_say(&said);
	got = tcp_get(fd);
	assert_true(rig_ended(fd));
	close(fd);
}

/*
 * Many questions that are answered at once, of one that reads when it has asked them all and said
 * its end: there is an answer to each.
 */
static void test_tcp_late_reader(void **state)
{
	static const char *const args[] = { "--limit", "dns-per-s=0", NULL };
	struct rig_conf c = { .program = netgtw_path, .main_args = args };
	struct msg q = question(1, "x.example.com", DNS_HTTPS, 0);
	static uint8_t all[LATE_QUESTIONS * 64];
	uint64_t heard = 0;
	size_t n = 0;
	int fd;

	rig_fresh(&rig, &c);
	fd = guest_socket(GTW_HOST_V4, SOCK_STREAM, 4096);
	for (int i = 0; i < LATE_QUESTIONS; i++, n += 2 + q.n) {
		all[n + 1] = (uint8_t)q.n;
		memcpy(all + n + 2, q.p, q.n);
	}
	rig_send(fd, all, n);
	shutdown(fd, SHUT_WR);
	/* It goes no further: it has heard all, or waits for its answers to be taken. */
	for (int same = 0; same < 10; same = rig_counter(&rig, "dns") == heard ? same + 1 : 0)
		heard = rig_counter(&rig, "dns");
	for (int i = 0; i < LATE_QUESTIONS; i++)
		assert_int_equal(tcp_get(fd).n, q.n);
	assert_true(rig_ended(fd));
	close(fd);
	c.main_args = NULL;
	rig_fresh(&rig, &c);
}

static void test_bad_questions(void **state)
{
	struct msg m = question(9, "x.example.com", DNS_A, 0), got;

	m.p[5] = 2;                                          /* two questions, one there */
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_FORMERR);
	m = question(9, "x.example.com", DNS_A, 0);
	m.p[2] = 0x28;                                       /* an update */
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_NOTIMP);
	m = question(9, "x.example.com", 255, 0);            /* ANY */
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_REFUSED);
	m = question(9, "x.example.com", 252, 0);            /* AXFR */
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_REFUSED);
	m = question(9, "x.example.com", DNS_HTTPS, 1232);
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_NOERROR);
	assert_int_equal(count_of(&got), 0);
	m = question(9, "x.example.com", DNS_A, 0);
	m.p[m.n++] = 0;                                      /* a byte too much */
	got = at_once(&m);
	assert_int_equal(flags_of(&got) & 15, DNS_FORMERR);
}

/* Nobody is asked for the names of the floor's addresses, by whatever type. */
static void test_floor_names(void **state)
{
	static const uint16_t types[] = { DNS_PTR, DNS_CNAME, DNS_SOA, DNS_NS, DNS_TXT, DNS_A,
					  DNS_HTTPS, 255 };

	for (size_t i = 0; i < ARRAY_LEN(types); i++) {
		struct msg m = question(9, "1.0.168.192.in-addr.arpa", types[i], 0);
		struct msg got = at_once(&m);

		assert_int_equal(flags_of(&got) & 15, DNS_NXDOMAIN);
	}
}

/* Forged answers do not count, and a malformed one is no answer. */
static void test_forged(void **state)
{
	int fd = guest_udp(GTW_HOST_V4), other = rig_udp(&rig, RIG_INTERNET, "9.9.10.2", 53);
	struct msg q = question(3, "forged.example.com", DNS_A, 0), up, said, got;

	ask(fd, &q);
	up = upstream_get();
	said = answer(&up, 0x8180);
	record_a(&said, NULL, "9.9.10.66");
	sendto(other, said.p, said.n, 0, (struct sockaddr *)&asker, asker_len); /* another sender */
	said.p[0] ^= 0xff;
	upstream_say(&said);                                 /* another ID */
	said = answer(&up, 0x8180);
	record_a(&said, NULL, "9.9.10.2");
	upstream_say(&said);
	got = get(fd);
	assert_memory_equal(got.p + got.n - 4, "\x09\x09\x0a\x02", 4);
	/* A record that is longer than the message: the next attempt is asked. */
	ask(fd, &q);
	up = upstream_get();
	said = answer(&up, 0x8180);
	record_a(&said, NULL, "9.9.10.2");
	said.n -= 2;
	upstream_say(&said);
	up = upstream_get();
	said = answer(&up, 0x8180);
	record_a(&said, NULL, "9.9.10.2");
	upstream_say(&said);
	got = get(fd);
	assert_int_equal(count_of(&got), 1);
	close(fd);
	close(other);
}

static void test_upstream_fails(void **state)
{
	int fd = guest_udp(GTW_HOST_V4);
	struct msg q = question(4, "dead.example.com", DNS_A, 0), got;
	int64_t before = clock_mono_ms();

	close(upstream);
	ask(fd, &q);
	got = get(fd);
	assert_int_equal(flags_of(&got) & 15, DNS_SERVFAIL);
	/* The time-outs of its two attempts are 4 s together. */
	assert_true(clock_mono_ms() - before < 4000);
	close(fd);
	upstream = rig_udp(&rig, RIG_INTERNET, "9.9.10.53", 53);
}

static void fresh(bool open, const char *const *main_args, const char *const *outside_args)
{
	struct rig_conf c = { .program = netgtw_path,
			      .main_args = main_args,
			      .outside_args = outside_args };

	rig_stop_processes(&rig);
	rig_start(&rig, &c);
	rig_install(&rig);
	if (open)
		rig_open(&rig);
}

/* ---- Several attempts ---- */

static const char *const two_servers[] = { "--internet", "yes", "--nameserver", "9.9.10.53",
					   "--nameserver", "9.9.10.54", NULL };

/* A question of the guest, and what main had of descriptors before. */
struct wait { int fd, second; size_t before; };

static struct wait wait_begin(const char *const *outside_args)
{
	struct msg q = question(21, "late.example.com", DNS_A, 0);
	struct wait w = { .second = rig_udp(&rig, RIG_INTERNET, "9.9.10.54", 53) };

	fresh(true, NULL, outside_args);
	exchange("before.example.com", DNS_A, fill_plain, 0x8180);
	w.before = rig_main_fds(&rig);
	w.fd = guest_udp(GTW_HOST_V4);
	ask(w.fd, &q);
	return w;
}

/* Nothing of the question is left, and what is said to its attempts now reaches nobody. */
static void wait_over(struct wait *w)
{
	struct msg m;

	assert_int_equal(rig_main_fds(&rig), w->before);
	assert_false(rig_wait(w->fd, POLLIN, 0));
	while (rig_wait(upstream, POLLIN, 0))
		(void)!recv(upstream, m.p, sizeof(m.p), 0);
	close(w->fd);
	close(w->second);
}

static void is_answer(const struct msg *m, const char *addr)
{
	struct addr a;

	assert_int_equal(addr_parse(addr, &a), 0);
	assert_int_equal(flags_of(m) & 15, DNS_NOERROR);
	assert_int_equal(count_of(m), 1);
	assert_memory_equal(m->p + m->n - 4, a.ip, 4);
}

/* The first nameserver answers when the second one has been asked already. */
static void test_late(void **state)
{
	struct wait w = wait_begin(two_servers);
	struct asked first = attempt(upstream), second = attempt(w.second);
	struct msg m, got;

	m = answer(&first.m, 0x8180);
	record_a(&m, NULL, "9.9.10.66");
	m.p[0] ^= 0xff;                                      /* another ID */
	say(&first, &m);
	m.p[0] ^= 0xff;
	m.p[13] = 'm';                                       /* another question */
	say(&first, &m);
	m = answer(&second.m, 0x8180);
	record_a(&m, NULL, "9.9.10.66");
	m.p[0] = first.m.p[0];
	m.p[1] = first.m.p[1] ^ (m.p[1] == first.m.p[1]);    /* the ID of another attempt */
	say(&second, &m);
	say_addr(&first, "9.9.10.2");
	got = get(w.fd);
	is_answer(&got, "9.9.10.2");
	assert_int_equal(rig_main_fds(&rig), w.before);
	say_addr(&second, "9.9.10.66");
	/* Who answered is asked first. */
	got = exchange("after.example.com", DNS_A, fill_plain, 0x8180);
	is_answer(&got, "9.9.10.2");
	wait_over(&w);
}

/* A nameserver that needs 2 s for everything, and no other. */
static void test_always_late(void **state)
{
	struct wait w = wait_begin(NULL);

	for (int i = 0; i < 2; i++) {
		struct msg q = question(22, "late.example.com", DNS_A, 0), got;
		struct asked first = attempt(upstream), second;

		poll(NULL, 0, 2000);
		say_addr(&first, "9.9.10.2");
		got = get(w.fd);
		is_answer(&got, "9.9.10.2");
		second = attempt(upstream);
		say_addr(&second, "9.9.10.66");
		if (i == 0)
			ask(w.fd, &q);
	}
	wait_over(&w);
}

/* That all others cannot or will not answer does not end what may still be answered. */
static void test_fails_then_late(void **state)
{
	struct wait w = wait_begin(two_servers);
	struct asked first = attempt(upstream), other;
	struct msg got;

	other = attempt(w.second);
	say_code(&other, DNS_SERVFAIL);
	other = attempt(upstream);
	say_code(&other, DNS_REFUSED);
	other = attempt(w.second);
	say_code(&other, DNS_SERVFAIL);
	assert_false(rig_wait(w.fd, POLLIN, 200));
	assert_int_equal(rig_main_fds(&rig), w.before + 1);
	say_addr(&first, "9.9.10.2");
	got = get(w.fd);
	is_answer(&got, "9.9.10.2");
	wait_over(&w);
	/* But when the last one that listens fails too, that is the end. */
	w = wait_begin(two_servers);
	first = attempt(upstream);
	for (int i = 0; i < 3; i++) {
		other = attempt(i % 2 ? upstream : w.second);
		say_code(&other, DNS_SERVFAIL);
	}
	say_code(&first, DNS_REFUSED);
	got = get(w.fd);
	assert_int_equal(flags_of(&got) & 15, DNS_SERVFAIL);
	wait_over(&w);
}

/* "There is no such name" is an answer like any other. */
static void test_late_no(void **state)
{
	struct wait w = wait_begin(two_servers);
	struct asked first = attempt(upstream), second = attempt(w.second);
	struct msg got;

	say_code(&first, DNS_NXDOMAIN);
	got = get(w.fd);
	assert_int_equal(flags_of(&got) & 15, DNS_NXDOMAIN);
	say_addr(&second, "9.9.10.66");
	wait_over(&w);
}

/* A late answer that is truncated: that attempt goes on over TCP, and again others are made. */
static void test_late_over_tcp(void **state)
{
	struct wait w = wait_begin(two_servers);
	struct asked first = attempt(upstream), other = attempt(w.second);
	struct msg m = answer(&first.m, 0x8380), got;
	int tcp;

	say(&first, &m);
	tcp = rig_accept(upstream_tcp);
	m = tcp_get(tcp);
	other = attempt(upstream);
	assert_int_equal(rig_main_fds(&rig), w.before + 4);
	m = answer(&m, 0x8180);
	record_a(&m, NULL, "9.9.10.2");
	tcp_say(tcp, &m);
	got = get(w.fd);
	is_answer(&got, "9.9.10.2");
	say_addr(&other, "9.9.10.66");
	close(tcp);
	wait_over(&w);
}

/* Nobody answers: three attempts listen at once, not more, and nothing is left in the end. */
static void test_silence(void **state)
{
	struct wait w = wait_begin(two_servers);
	struct asked attempts[4];
	struct msg got;

	for (int i = 0; i < 4; i++) {
		attempts[i] = attempt(i % 2 ? w.second : upstream);
		assert_int_equal(rig_main_fds(&rig), w.before + (i < 3 ? (size_t)i + 1 : 3));
	}
	/* The first was given up for the last. */
	say_addr(&attempts[0], "9.9.10.66");
	got = get(w.fd);
	assert_int_equal(flags_of(&got) & 15, DNS_SERVFAIL);
	wait_over(&w);
}

/* When all is revoked, questions end with all of their attempts. */
static void test_revoked_while_waiting(void **state)
{
	struct wait w = wait_begin(two_servers);

	attempt(upstream);
	attempt(w.second);
	assert_int_equal(rig_main_fds(&rig), w.before + 2);
	rig_revoke(&rig, 0);
	wait_over(&w);
	fresh(true, NULL, NULL);
}

static void test_name_in_log(void **state)
{
	int listener = rig_listen(&rig, RIG_INTERNET, "9.9.10.2", 8080), a, b;
	json_t *log;

	exchange("shop.example.com", DNS_A, fill_plain, 0x8180);
	a = rig_connect(&rig, RIG_GUEST, "9.9.10.2", 8080);
	assert_true(a >= 0);
	b = rig_accept(listener);
	close(b);
	assert_true(rig_ended(a));
	log = rig_log(&rig);
	assert_string_equal(json_string_value(
				    json_object_get(rig_find(log, "out", "9.9.10.2"), "name")),
			    "shop.example.com");
	json_decref(log);
	close(a);
	close(listener);
}

static void test_refused(void **state)
{
	static const char *const slow[] = { "--limit", "dns-per-s=2", "--limit", "dns-pending=8",
					    NULL };
	static const char *const closed[] = { "--internet", "no", "--nameserver", "9.9.10.53",
					      NULL };
	static const char *const none[] = { "--internet", "yes", NULL };
	struct msg q = question(6, "limit.example.com", DNS_A, 0), got;
	int fd, refused = 0;

	fresh(false, NULL, NULL);
	got = at_once(&q);
	assert_int_equal(flags_of(&got) & 15, DNS_REFUSED);
	fresh(true, NULL, closed);
	for (int i = 0; i < 2; i++) {
		got = at_once(&q);
		assert_int_equal(flags_of(&got) & 15, DNS_REFUSED);
	}
	fresh(true, NULL, none);
	for (int i = 0; i < 2; i++) {
		got = at_once(&q);
		assert_int_equal(flags_of(&got) & 15, DNS_SERVFAIL);
	}
	fresh(true, slow, NULL);
	fd = guest_udp(GTW_HOST_V4);
	for (int i = 0; i < 20; i++)
		ask(fd, &q);
	for (int i = 0; i < 10; i++) {
		got = get(fd);
		refused += (flags_of(&got) & 15) == DNS_REFUSED;
	}
	assert_int_equal(refused, 10);
	close(fd);
}

/* The guest as the test's user would see it: nobody else's datagrams, none that is too long. */
static void test_flood(void **state)
{
	struct msg q = question(8, "flood.example.com", DNS_A, 0), got;
	int fd;

	fresh(true, NULL, NULL);
	fd = guest_udp(GTW_HOST_V4);
	for (int i = 0; i < 5000; i++)
		send(fd, q.p, q.n, MSG_DONTWAIT);
	/* At most as many as may wait have gone out, and it still works for the next one. */
	got = get(fd);
	close(fd);
	while (rig_wait(upstream, POLLIN, 100))
		recv(upstream, got.p, sizeof(got.p), 0);
	fresh(true, NULL, NULL);
	got = exchange("after.example.com", DNS_A, fill_plain, 0x8180);
	assert_int_equal(count_of(&got), 1);
}

static int start(void **state)
{
	struct rig_conf c = { .program = netgtw_path };

	rig_net(&rig);
	upstream = rig_udp(&rig, RIG_INTERNET, "9.9.10.53", 53);
	upstream_tcp = rig_listen(&rig, RIG_INTERNET, "9.9.10.53", 53);
	rig_start(&rig, &c);
	rig_install(&rig);
	rig_open(&rig);
	return 0;
}

static int stop(void **state)
{
	close(upstream);
	close(upstream_tcp);
	rig_stop(&rig);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answer),	   cmocka_unit_test(test_floor),
		cmocka_unit_test(test_chain),	   cmocka_unit_test(test_aaaa),
		cmocka_unit_test(test_nxdomain),   cmocka_unit_test(test_truncation),
		cmocka_unit_test(test_tcp_pipeline), cmocka_unit_test(test_tcp_late_reader),
		cmocka_unit_test(test_bad_questions),
		cmocka_unit_test(test_floor_names),
		cmocka_unit_test(test_forged),	   cmocka_unit_test(test_upstream_fails),
		cmocka_unit_test(test_late),	   cmocka_unit_test(test_always_late),
		cmocka_unit_test(test_fails_then_late), cmocka_unit_test(test_late_no),
		cmocka_unit_test(test_late_over_tcp), cmocka_unit_test(test_silence),
		cmocka_unit_test(test_revoked_while_waiting),
		cmocka_unit_test(test_name_in_log), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_flood),
	};

	if (argc != 2)
		return 2;
	netgtw_path = argv[1];
	return cmocka_run_group_tests_name("dns", tests, start, stop);
}
