#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "base/fault.h"
#include "base/str.h"

#define CLOCK_MS_MAX 253402300799999        /* 9999-12-31T23:59:59.999Z */

static _Atomic int64_t clock_shift;

static int64_t clock_us(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (int64_t)ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

int64_t clock_wall_ms(void)
{
	fault_poll();
	return clock_us(CLOCK_REALTIME) / 1000 +
	       atomic_load_explicit(&clock_shift, memory_order_relaxed);
}

int64_t clock_mono_ms(void)
{
	return clock_us(CLOCK_MONOTONIC) / 1000;
}

int64_t clock_mono_us(void)
{
	return clock_us(CLOCK_MONOTONIC);
}

void clock_set_shift_ms(int64_t shift)
{
	atomic_store_explicit(&clock_shift, shift, memory_order_relaxed);
}

/*
 * Days since 1970 of a date in the Gregorian calendar. gmtime(3) and timegm(3) read the time zone's
 * file.
 */
static int64_t clock_days(int64_t year, int64_t month, int64_t day)
{
	int64_t y = month <= 2 ? year - 1 : year;               /* years start in March: the leap day is their last */
	int64_t yday = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;

	return y * 365 + y / 4 - y / 100 + y / 400 + yday - 719468;
}

static void clock_date(int64_t days, int *year, int *month, int *day)
{
	int64_t z = days + 719468, era = z / 146097, doe = z % 146097;
	int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
	int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
	int64_t mp = (5 * doy + 2) / 153;

	*day = (int)(doy - (153 * mp + 2) / 5 + 1);
	*month = (int)(mp < 10 ? mp + 3 : mp - 9);
	*year = (int)(yoe + era * 400 + (*month <= 2));
}

void clock_iso(char dst[CLOCK_ISO_LEN], int64_t wall_ms)
{
	int year, month, day;
	int64_t ms;

	if (wall_ms < 0)
		wall_ms = 0;
	if (wall_ms > CLOCK_MS_MAX)
		wall_ms = CLOCK_MS_MAX;
	clock_date(wall_ms / 86400000, &year, &month, &day);
	ms = wall_ms % 86400000;
	str_format(dst, CLOCK_ISO_LEN, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", year, month, day,
		   (int)(ms / 3600000), (int)(ms / 60000 % 60), (int)(ms / 1000 % 60),
		   (int)(ms % 1000));
}

/* Exactly `digits` digits, then the byte `end` (0 = whatever follows). */
static int clock_num(const char **s, size_t digits, char end, uint64_t max, int64_t *ret)
{
	uint64_t v;

	if (strnlen(*s, digits) < digits || str_to_u64_n(*s, digits, max, &v) < 0)
		return -EINVAL;
	*s += digits;
	if (end && *(*s)++ != end)
		return -EINVAL;
	*ret = (int64_t)v;
	return 0;
}

static int clock_fraction(const char **s, int64_t *ret_ms)
{
	int digits = 0;

	*ret_ms = 0;
	if (**s != '.')
		return 0;
	for (++*s; **s >= '0' && **s <= '9'; ++*s, digits++)
		if (digits < 3)
			*ret_ms = *ret_ms * 10 + (**s - '0');
	if (digits < 1 || digits > 9)
		return -EINVAL;
	for (; digits < 3; digits++)
		*ret_ms *= 10;
	return 0;
}

static int clock_zone(const char *s, int64_t *ret_minutes)
{
	int64_t h, m;
	int sign = *s == '-' ? -1 : 1;

	*ret_minutes = 0;
	if (str_eq(s, "Z"))
		return 0;
	if (*s != '+' && *s != '-')
		return -EINVAL;
	s++;
	if (clock_num(&s, 2, ':', 23, &h) < 0 || clock_num(&s, 2, 0, 59, &m) < 0 || *s)
		return -EINVAL;
	*ret_minutes = sign * (h * 60 + m);
	return 0;
}

int clock_parse_iso(const char *s, int64_t *ret_wall_ms)
{
	static const int month_days[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	int64_t year, month, day, h, m, sec, ms, zone, v;
	bool leap;

	if (clock_num(&s, 4, '-', 9999, &year) < 0 || clock_num(&s, 2, '-', 12, &month) < 0 ||
	    clock_num(&s, 2, 'T', 31, &day) < 0 || clock_num(&s, 2, ':', 23, &h) < 0 ||
	    clock_num(&s, 2, ':', 59, &m) < 0 || clock_num(&s, 2, 0, 59, &sec) < 0 ||
	    clock_fraction(&s, &ms) < 0 || clock_zone(s, &zone) < 0)
		return -EINVAL;
	leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
	if (year < 1 || month < 1 || day < 1 ||
	    day > month_days[month - 1] + (month == 2 && leap))
		return -EINVAL;
	v = (((clock_days(year, month, day) * 24 + h) * 60 + m - zone) * 60 + sec) * 1000 + ms;
	if (v < 0)
		return -ERANGE;
	if (v > CLOCK_MS_MAX)
		return -EINVAL;
	*ret_wall_ms = v;
	return 0;
}
