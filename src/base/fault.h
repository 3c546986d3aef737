/*
 * Failpoints: named steps that a test can make fail, in every build. They obey only the file
 * RUN/failpoints, which must be a regular file owned by root and writable by nobody else; one line
 * each:
 *
 *	NAME ACTION [ARG] [COUNT]        e.g. "sbx.create.after-disk crash", "nm.spawn error 28", "api.place delay 500 1"
 *
 * crash = SIGKILL to oneself; error N = the macro gives -N; delay MS. COUNT = how often (default:
 * always), counted per process. The file is stat'ed at most once in 100 ms. Every injected fault is
 * appended to the file RUN/faults.log as one JSON line (time, program, pid, name, action), if that
 * file exists and is writable.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stddef.h>

void fault_open(const char *run_dir, const char *prog);     /* also reads RUN/clock-shift-ms */
int fault_hit(const char *name);                            /* 0, or a negative errno to return */
void fault_poll(void);                                      /* looks at both files again when 100 ms have passed; clock_wall_ms calls it */
int fault_count(void);                                      /* failpoints set now (for `up` to say so) */

/* In straight-line code: `r = FAULT("sbx.create.after-disk"); if (r < 0) return err_set(...)`. */
#define FAULT(name) fault_hit(name)

#endif
