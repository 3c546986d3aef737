/*
 * Reads cases from standard input and prints our verdict about each, one line a case (see cases.mjs
 * for both formats):
 *
 *	ok MINOR METHOD|STATUS TARGET NAME=VALUE,... BODY REST     all texts in hex; REST = bytes behind the message
 *	no ERROR                                                   refused; the number of enum http_error
 *	more                                                       not whole at the end of the input
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/alloc.h"
#include "http/http.h"

#define CASE_MAX (1 << 20)

static void put_hex(const char *p, size_t n)
{
	if (n == 0)
		putchar('-');
	for (size_t i = 0; i < n; i++)
		printf("%02x", (unsigned char)p[i]);
}

static void print_ok(const struct http_head *h, const struct buf *body, size_t rest)
{
	printf("ok %d ", h->minor);
	if (h->is_request)
		printf("%s ", h->method);
	else
		printf("%d ", h->status);
	put_hex(h->is_request ? h->target : "", h->is_request ? strlen(h->target) : 0);
	putchar(' ');
	if (h->n_fields == 0)
		putchar('-');
	for (unsigned i = 0; i < h->n_fields; i++) {
		if (i > 0)
			putchar(',');
		put_hex(h->fields[i].name, strlen(h->fields[i].name));
		putchar('=');
		put_hex(h->fields[i].value, strlen(h->fields[i].value));
	}
	putchar(' ');
	put_hex(buf_data(body), buf_len(body));
	printf(" %zu\n", rest);
}

static void judge_body(const struct http_head *h, const char *p, size_t n)
{
	struct http_dec d;
	struct buf body;
	enum http_error err;
	size_t at = 0, used, n_data;
	const char *data;
	int r;

	buf_init(&body, CASE_MAX);
	http_dec_init(&d, h, UINT64_MAX);
	do {
		r = http_dec_feed(&d, p + at, n - at, &used, &data, &n_data, &err);
		if (r >= 0)
			buf_put(&body, data, n_data);
		at += used;
	} while (r == 0 && used > 0);
	if (r < 0)
		printf("no %d\n", (int)err);
	else if (r == 0 && http_dec_eof(&d) < 0)
		printf("more\n");
	else
		print_ok(h, &body, n - at);
	buf_done(&body);
}

static void judge(unsigned kind, const char *p, size_t n)
{
	static const char *const methods[] = { NULL, "GET", "HEAD", "CONNECT" };
	struct http_head h;
	enum http_error err;
	ssize_t len = kind == 0 ? http_parse_request(p, n, &h, &err)
				: http_parse_response(p, n, methods[kind], &h, &err);

	if (len < 0) {
		printf("no %d\n", (int)err);
	} else if (len == 0) {
		printf("more\n");
	} else {
		judge_body(&h, p + len, n - (size_t)len);
		http_head_done(&h);
	}
}

int main(void)
{
	unsigned char head[5];

	while (fread(head, 1, sizeof(head), stdin) == sizeof(head)) {
		size_t n = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 |
			   (size_t)head[4] << 24;
		if (head[0] > 3 || n > CASE_MAX) {
			fprintf(stderr, "malformed case\n");
			return 1;
		}
		/* Exactly this size, so that a sanitizer sees a read past the end. */
		autofree char *p = malloc(n > 0 ? n : 1);
		if (!p || fread(p, 1, n, stdin) != n)
			return 1;
		judge(head[0], p, n);
	}
	return ferror(stdin) || fflush(stdout) != 0;
}
