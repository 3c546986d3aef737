/* The one clock. Tests shift it with the file RUN/clock-shift-ms (root-owned; see fault.h). */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stddef.h>
#include <stdint.h>

int64_t clock_wall_ms(void);                     /* Unix time, shifted */
int64_t clock_mono_ms(void);                     /* CLOCK_MONOTONIC, never shifted: for time-outs and intervals */
int64_t clock_mono_us(void);
void clock_set_shift_ms(int64_t shift);          /* called by fault_open */
#define CLOCK_ISO_LEN 25
void clock_iso(char dst[CLOCK_ISO_LEN], int64_t wall_ms);    /* 2026-01-02T03:04:05.678Z (RFC 3339) */
int clock_parse_iso(const char *s, int64_t *ret_wall_ms);      /* -EINVAL: is none; -ERANGE: before 1970 */

#endif
