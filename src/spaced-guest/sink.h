/*
 * Writing a file in pieces. The first SINK_DIRECT_FROM bytes go through the page cache; what
 * follows is gathered and written past it (O_DIRECT, open(2)): under emulation the page cache costs
 * more than all the rest of an upload (seen: half of the time), and the guest's memory stays the
 * user's. A file system that refuses gets ordinary writes. At most SINK_STAGES_MAX files are
 * gathered at once, the others are written as they come.
 */
#ifndef GUEST_SINK_H
#define GUEST_SINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SINK_DIRECT_FROM (1 << 20)
#define SINK_STAGE_BYTES (480 << 10)     /* 120 pages: within one request of virtio-blk (126 segments) */
#define SINK_STAGES_MAX 8

struct sink {
	int fd;                          /* -1 = closed */
	bool regular, refused;           /* refused: no O_DIRECT here */
	uint64_t offset;                 /* bytes written */
	char *stage;
	size_t staged;
	unsigned *stages;                /* how many there are, shared by all sinks */
};

void sink_init(struct sink *s, unsigned *stages);
void sink_open(struct sink *s, int fd, bool regular);                    /* owns fd */
int sink_write(struct sink *s, const char *p, size_t n);                 /* 0 or errno */
int sink_end(struct sink *s);                                            /* writes what was gathered, closes */
void sink_done(struct sink *s);                                          /* drops what was gathered, closes */

#endif
