#include "spaced-guest/users.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"

#define PASSWD_FIELDS 7
#define GROUP_FIELDS 4

/* Cuts one line at its colons; the number of fields. The last field keeps what is left. */
static size_t split(char *line, char **fields, size_t max)
{
	size_t n = 0;

	while (n < max) {
		fields[n++] = line;
		line = n < max ? strchr(line, ':') : NULL;
		if (!line)
			break;
		*line++ = '\0';
	}
	return n;
}

static bool parse_id(const char *s, uint32_t *ret)
{
	uint64_t v;

	if (str_to_u64(s, UINT32_MAX - 1, &v) < 0)
		return false;
	*ret = (uint32_t)v;
	return true;
}

static bool has_member(char *members, const char *name)
{
	char *save, *m;

	for (m = strtok_r(members, ",", &save); m; m = strtok_r(NULL, ",", &save))
		if (str_eq(m, name))
			return true;
	return false;
}

static void add_groups(char *group, struct user *u)
{
	char *save, *line, *f[GROUP_FIELDS];
	unsigned n = 0;

	for (line = strtok_r(group, "\n", &save); line && n < USERS_ENTRIES_MAX;
	     line = strtok_r(NULL, "\n", &save), n++) {
		gid_t gid;

		if (split(line, f, GROUP_FIELDS) != GROUP_FIELDS || !parse_id(f[2], &gid) ||
		    gid == u->gid)
			continue;
		if (u->n_groups < USERS_GROUPS_MAX && has_member(f[3], u->name))
			u->groups[u->n_groups++] = gid;
	}
}

int user_parse(char *passwd, char *group, const char *name, struct user *ret)
{
	char *save, *line, *f[PASSWD_FIELDS];
	unsigned n = 0;

	for (line = strtok_r(passwd, "\n", &save); line && n < USERS_ENTRIES_MAX;
	     line = strtok_r(NULL, "\n", &save), n++) {
		struct user u = { 0 };

		if (split(line, f, PASSWD_FIELDS) != PASSWD_FIELDS || !str_eq(f[0], name))
			continue;
		if (!*f[0] || str_copy(u.name, sizeof(u.name), f[0]) < 0 ||
		    !parse_id(f[2], &u.uid) || !parse_id(f[3], &u.gid))
			return -ENOENT;
		if (f[5][0] != '/' || str_copy(u.home, sizeof(u.home), f[5]) < 0)
			str_copy(u.home, sizeof(u.home), "/");
		u.groups[u.n_groups++] = u.gid;
		if (group)
			add_groups(group, &u);
		*ret = u;
		return 0;
	}
	return -ENOENT;
}

int user_find(const char *name, struct user *ret)
{
	autofree char *passwd = NULL, *group = NULL;
	int r = fd_read_regular(AT_FDCWD, "/etc/passwd", USERS_FILE_MAX, &passwd, NULL);

	if (r < 0)
		return -ENOENT;
	if (fd_read_regular(AT_FDCWD, "/etc/group", USERS_FILE_MAX, &group, NULL) < 0)
		group = NULL;
	return user_parse(passwd, group, name, ret);
}

/* ---- names for numbers ---- */

struct id_name { uint32_t id; const char *name; };

struct id_table {
	char *text;
	struct id_name *ids;
	size_t n;
	char number[16];
};

struct users_names { struct id_table users, groups; };

static void id_table_load(struct id_table *t, const char *path)
{
	char *save, *line, *f[GROUP_FIELDS];

	if (fd_read_regular(AT_FDCWD, path, USERS_FILE_MAX, &t->text, NULL) < 0) {
		t->text = NULL;
		return;
	}
	t->ids = x_array(USERS_ENTRIES_MAX, sizeof(*t->ids));
	for (line = strtok_r(t->text, "\n", &save); line && t->n < USERS_ENTRIES_MAX;
	     line = strtok_r(NULL, "\n", &save))
		if (split(line, f, GROUP_FIELDS) == GROUP_FIELDS &&
		    parse_id(f[2], &t->ids[t->n].id))
			t->ids[t->n++].name = f[0];
}

static const char *id_table_get(struct id_table *t, uint32_t id)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->ids[i].id == id)
			return t->ids[i].name;
	str_format(t->number, sizeof(t->number), "%u", id);
	return t->number;
}

struct users_names *users_names_new(void)
{
	struct users_names *n = x_alloc(sizeof(*n));

	id_table_load(&n->users, "/etc/passwd");
	id_table_load(&n->groups, "/etc/group");
	return n;
}

void users_names_free(struct users_names *n)
{
	if (!n)
		return;
	free(n->users.text);
	free(n->users.ids);
	free(n->groups.text);
	free(n->groups.ids);
	free(n);
}

const char *users_name(struct users_names *n, uid_t uid)
{
	return id_table_get(&n->users, uid);
}

const char *users_group(struct users_names *n, gid_t gid)
{
	return id_table_get(&n->groups, gid);
}

/* ---- acting as a user ---- */

static gid_t entered_groups[USERS_GROUPS_MAX];           /* what setgroups said last */
static size_t entered_n = SIZE_MAX;
static bool entered;

static int enter_groups(const struct user *u)
{
	if (entered_n == u->n_groups &&
	    memcmp(entered_groups, u->groups, u->n_groups * sizeof(gid_t)) == 0)
		return 0;
	if (setgroups(u->n_groups, u->groups) < 0)
		return -errno;
	memcpy(entered_groups, u->groups, u->n_groups * sizeof(gid_t));
	entered_n = u->n_groups;
	return 0;
}

int users_enter(const struct user *u)
{
	int r;

	if (getuid() != 0 || u->uid == 0)
		return 0;
	r = enter_groups(u);
	if (r < 0)
		return r;
	if (setegid(u->gid) < 0)
		return -errno;
	if (seteuid(u->uid) < 0) {
		r = -errno;
		if (setegid(0) < 0)
			abort();
		return r;
	}
	entered = true;
	return 0;
}

void users_leave(void)
{
	if (!entered)
		return;
	entered = false;
	/*
	 * Cannot fail: the saved IDs are root's. Going on as somebody else would be worse than
	 * ending.
	 */
	if (seteuid(0) < 0 || setegid(0) < 0)
		abort();
}
