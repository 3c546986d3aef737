#include "spaced-guest/channel.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/str.h"
#include "spaced-guest/agent.h"
#include "spaced-guest/serve.h"

#define CHANNEL_ROUNDS 8 /* in one turn, so that commands are served between */
#define CHANNEL_POLL_US 2000
#define PORTS "/sys/class/virtio-ports"

struct channel {
	struct agent *a;
	struct ev_watch watch;
	struct mux *mux;
	bool readable, writable;
	bool socket;
};

static int open_named(const char *name, struct err *e)
{
	DIR *d = opendir(PORTS);
	struct dirent *de;
	int fd = -ENOENT;

	while (d && (de = readdir(d))) {
		char path[300];
		autofree char *text = NULL;
		size_t n;

		str_format(path, sizeof(path), PORTS "/%s/name", de->d_name);
		if (de->d_name[0] == '.' || fd_read_file(AT_FDCWD, path, 128, &text, &n) < 0)
			continue;
		while (n && text[n - 1] == '\n')
			text[--n] = '\0';
		if (!str_eq(text, name))
			continue;
		str_format(path, sizeof(path), "/dev/%s", de->d_name);
		fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
		if (fd < 0)
			fd = err_errno(e, -errno, "cannot open %s", path);
		break;
	}
	if (d)
		closedir(d);
	return fd;
}

int channel_find_port(const char *name, int timeout_ms, struct err *e)
{
	int64_t until = clock_mono_ms() + timeout_ms;

	for (;;) {
		int fd = open_named(name, e);

		if (fd != -ENOENT)
			return fd;
		if (clock_mono_ms() >= until)
			return err_set(e, -ENOENT, "there is no virtio port '%s'", name);
		usleep(CHANNEL_POLL_US);
	}
}

static void on_port(struct ev_watch *w, uint32_t events)
{
	struct channel *c = CONTAINER_OF(w, struct channel, watch);

	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
		c->readable = true;
	if (events & (EPOLLOUT | EPOLLERR))
		c->writable = true;
	if ((events & EPOLLHUP) && !c->socket && mux_ready(c->mux)) {
		log_info("host detached");
		mux_drop(c->mux);
	}
}

struct channel *channel_open(struct agent *a, int fd, struct err *e)
{
	struct channel *c = x_alloc(sizeof(*c));
	struct stat st;
	int r;

	c->a = a;
	c->watch.fd = fd;
	c->watch.fn = on_port;
	c->mux = mux_new(MUX_GUEST);
	c->socket = fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
	c->readable = c->writable = true;
	r = fd_set_nonblock(fd, true);
	if (r == 0)
		r = fd_set_cloexec(fd, true);
	if (r == 0)
		r = ev_watch_set(a->ev, &c->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
	if (r == 0)
		return c;
	err_errno(e, r, "cannot use the guest channel");
	channel_free(c);
	return NULL;
}

void channel_free(struct channel *c)
{
	if (!c)
		return;
	mux_free(c->mux);
	fd_close(c->watch.fd);
	free(c);
}

static bool channel_read(struct channel *c)
{
	size_t room;
	void *p = mux_in_reserve(c->mux, &room);
	ssize_t n;

	if (!p)
		return false;
	n = read(c->watch.fd, p, room);
	if (n > 0) {
		mux_in_commit(c->mux, (size_t)n);
		return true;
	}
	if (n < 0 && errno == EINTR)
		return true;
	c->readable = false;
	if (c->socket && (n == 0 || errno != EAGAIN))
		c->a->quit = true;
	return false;
}

static bool channel_write(struct channel *c)
{
	struct buf *out = mux_out(c->mux);
	ssize_t n;

	if (buf_len(out) == 0)
		return false;
	n = buf_write_fd(out, c->watch.fd);
	if (n > 0)
		return true;
	c->writable = false;
	if (c->socket && n != -EAGAIN)
		c->a->quit = true;
	return false;
}

bool channel_run(struct channel *c)
{
	bool busy = true;

	for (int i = 0; busy && i < CHANNEL_ROUNDS; i++) {
		struct mux_event e;

		busy = c->readable && channel_read(c);
		while (mux_next(c->mux, &e))
			serve_event(c->a, c->mux, &e);
		if (serve_pump(c->a))
			busy = true;
		if (c->writable && channel_write(c))
			busy = true;
	}
	return busy;
}
