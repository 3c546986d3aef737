/*
 * The rich error: a negative errno and a sentence. Programs pass `struct err *` as last parameter;
 * every layer may wrap it with its own context; it is printed or sent once, at the top. NULL is
 * accepted everywhere (the sentence is dropped, the code still returned).
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>

#define ERR_TEXT_MAX 512
#define ERR_CODE_MAX 40

struct err {
	int num;                   /* negative errno, 0 = no error */
	char code[ERR_CODE_MAX];   /* stable machine word, e.g. "sandbox-not-found"; "" = derived from num */
	char text[ERR_TEXT_MAX];   /* a sentence for a person; says what to do where something can be done */
};

/* Both return num, so that `return err_set(e, -ENOENT, "...")` reads well. */
int err_set(struct err *e, int num, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_set_code(struct err *e, int num, const char *code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
/* Puts "context: " before the text; keeps num and code; returns num. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* As err_set, with ": " and strerror(-num) at the end. */
int err_errno(struct err *e, int num, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* One table maps errors to HTTP status (used by every HTTP answer) and to a machine word. */
int err_http_status(const struct err *e);
const char *err_code(const struct err *e);         /* never NULL or "" */

#endif
