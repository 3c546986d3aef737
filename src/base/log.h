/*
 * Structured log: one JSON object a line on stderr, written with one write(2). A constant sentence,
 * then typed fields. Text from outside is JSON-escaped, so it cannot forge a line. Only programs
 * log; libraries return errors. Secrets never: `struct secret` (secret.h) has no field type.
 *
 *	log_info("sandbox created", F_STR("sandbox", id), F_INT("ms", ms));
 *
 * The line: {"t":"2026-01-02T03:04:05.678Z","level":"info","prog":"space-api","inst":"default",
 *            "req":"...","msg":"sandbox created","sandbox":"...","ms":12}
 */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum log_level { LOG_LEVEL_DEBUG, LOG_LEVEL_INFO, LOG_LEVEL_WARN, LOG_LEVEL_ERROR };
enum log_type { LOG_FIELD_STR, LOG_FIELD_INT, LOG_FIELD_UINT, LOG_FIELD_ERR };

struct log_field {
	const char *key;
	enum log_type type;
	const char *s;
	int64_t i;
	uint64_t u;
	const struct err *e;
};

#define F_STR(k, v) ((struct log_field){ .key = (k), .type = LOG_FIELD_STR, .s = (v) })
#define F_INT(k, v) ((struct log_field){ .key = (k), .type = LOG_FIELD_INT, .i = (int64_t)(v) })
#define F_UINT(k, v) ((struct log_field){ .key = (k), .type = LOG_FIELD_UINT, .u = (uint64_t)(v) })
#define F_ERR(v) ((struct log_field){ .key = "error", .type = LOG_FIELD_ERR, .e = (v) })   /* code and text */
#define F_REQ(v) ((struct log_field){ .key = "req", .type = LOG_FIELD_STR, .s = (v) })     /* request ID */
#define F_END ((struct log_field){ .key = NULL })

void log_open(const char *prog, const char *instance);   /* strings must outlive the program */
void log_set_level(enum log_level min);
void log_set_fd(int fd);                                 /* default 2 */
void log_write(enum log_level level, const char *msg, const struct log_field *fields);   /* ends with F_END */

#define log_at_(level, msg, ...) log_write((level), (msg), (const struct log_field[]){ __VA_ARGS__ __VA_OPT__(,) F_END })
#define log_debug(msg, ...) log_at_(LOG_LEVEL_DEBUG, msg, __VA_ARGS__)
#define log_info(msg, ...) log_at_(LOG_LEVEL_INFO, msg, __VA_ARGS__)
#define log_warn(msg, ...) log_at_(LOG_LEVEL_WARN, msg, __VA_ARGS__)
#define log_error(msg, ...) log_at_(LOG_LEVEL_ERROR, msg, __VA_ARGS__)

/*
 * For what a peer or guest can trigger at will: at most `per_min` lines a minute from one place,
 * then one line that says how many were dropped.
 */
struct log_limit { uint64_t window_start_ms; unsigned count, dropped; };
int log_limit_ok(struct log_limit *l, unsigned per_min);

#endif
