/* See admit_stat.h. */
#include "sbx-manager/admit_stat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const part_names[ADMIT_PART_COUNT] = {
	"signature", "signature-cached", "compare", "connect", "verify", "hand-over", "total",
};

static struct { uint32_t ns[ADMIT_STAT_SAMPLES]; uint64_t n; } parts[ADMIT_PART_COUNT];

int64_t admit_stat_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

int64_t admit_stat_add(enum admit_part part, int64_t since)
{
	int64_t now = admit_stat_now(), d = now - since;

	parts[part].ns[parts[part].n++ % ADMIT_STAT_SAMPLES] = d < 0		? 0
							       : d > UINT32_MAX ? UINT32_MAX
										: (uint32_t)d;
	return now;
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static json_t *part_json(enum admit_part part)
{
	uint32_t sorted[ADMIT_STAT_SAMPLES];
	size_t n = parts[part].n < ADMIT_STAT_SAMPLES ? (size_t)parts[part].n : ADMIT_STAT_SAMPLES;

	memcpy(sorted, parts[part].ns, n * sizeof(sorted[0]));
	qsort(sorted, n, sizeof(sorted[0]), by_size);
	return json_pack("{s:I, s:f, s:f}", "n", (json_int_t)parts[part].n, "p50_us",
			 n ? sorted[n / 2] / 1000.0 : 0.0, "p90_us",
			 n ? sorted[n * 9 / 10] / 1000.0 : 0.0);
}

json_t *admit_stat_json(void)
{
	json_t *all = json_object();

	for (int i = 0; i < ADMIT_PART_COUNT; i++)
		json_object_set_new(all, part_names[i], part_json((enum admit_part)i));
	return all;
}
