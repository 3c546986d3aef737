#include "node-manager/list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "identity/identity.h"
#include "node-manager/disk.h"
#include "node-manager/net.h"
#include "node-manager/sockets.h"

#define LIST_ITEMS_MAX 65536
#define LIST_NAME_MAX 128
#define LIST_MOUNTS_MAX (1u << 20)

struct list_item {
	const char *kind;                /* static */
	char name[LIST_NAME_MAX];
	char sandbox[ID_SANDBOX_LEN + 1];
	uint64_t generation;
	const char *state;               /* executions only */
};

struct list_all {
	struct nm *nm;
	struct list_item *items;
	size_t n, room;
	const char *prefix;              /* of names, while a folder is read */
};

static struct list_item *list_add(struct list_all *l, const char *kind, const char *name)
{
	struct list_item *i;

	if (l->n >= LIST_ITEMS_MAX)
		return NULL;
	if (l->n == l->room) {
		l->room = l->room ? 2 * l->room : 256;
		l->items = x_realloc(l->items, l->room * sizeof(*l->items));
	}
	i = &l->items[l->n++];
	*i = (struct list_item){ .kind = kind };
	str_copy(i->name, sizeof(i->name), name);
	return i;
}

/* Named "<sandbox>.<generation>", as most of what an execution has. */
static void list_add_exec(struct list_all *l, const char *kind, const char *prefix,
			  const char *exec)
{
	autofree char *name = x_asprintf("%s%s", prefix, exec);
	struct list_item *i = list_add(l, kind, name);

	if (i)
		exec_name_parse(exec, i->sandbox, &i->generation);
}

static void list_executions(struct list_all *l)
{
	LIST_FOR(&l->nm->execs, x, struct exec, node) {
		struct list_item *i = list_add(l, "execution", x->name);

		if (!i)
			return;
		str_copy(i->sandbox, sizeof(i->sandbox), x->rec.sandbox);
		i->generation = x->rec.generation;
		i->state = exec_state_names[x->state];
	}
}

static void list_process(pid_t pid, uid_t uid, void *arg)
{
	struct list_all *l = arg;
	uint32_t slot = (uid - l->nm->slots.uid_base) / SLOT_UIDS;
	char name[32];
	struct list_item *i;

	str_format(name, sizeof(name), "%d", (int)pid);
	i = list_add(l, "process", name);
	LIST_FOR(&l->nm->execs, x, struct exec, node) {
		if (!i || x->rec.slot != slot)
			continue;
		str_copy(i->sandbox, sizeof(i->sandbox), x->rec.sandbox);
		i->generation = x->rec.generation;
	}
}

static void list_group(const char *name, const char *path, void *arg)
{
	autofree char *prefix = x_asprintf("%s/", path);

	list_add_exec(arg, "cgroup", prefix, name);
}

static void list_folder(struct list_all *l, int dir_fd, const char *path, const char *kind)
{
	int fd = openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *d = fd < 0 ? NULL : fdopendir(fd);

	if (!d) {
		fd_close(fd);
		return;
	}
	for (struct dirent *de; (de = readdir(d));) {
		if (de->d_name[0] != '.')
			list_add_exec(l, kind, "", de->d_name);
	}
	closedir(d);
}

/* What is mounted below RUN/nm: the fifth word of each line is the mount point (proc(5)). */
static void list_mounts(struct list_all *l)
{
	autofree char *text = NULL;
	char prefix[PATH_MAX], *save = NULL;

	if (conf_path(&l->nm->conf, prefix, CONF_RUN, "nm/" NET_FOLDER "/") < 0 ||
	    fd_read_file(AT_FDCWD, "/proc/self/mountinfo", LIST_MOUNTS_MAX, &text, NULL) < 0)
		return;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char *p = line;

		for (int i = 0; i < 4 && p; i++)
			p = strchr(p, ' ') ? strchr(p, ' ') + 1 : NULL;
		if (!p || !str_starts(p, prefix))
			continue;
		p += strlen(prefix);
		p[strcspn(p, " ")] = '\0';
		list_add_exec(l, "mount", "", p);
	}
}

static void list_subvolume(const char *name, void *arg)
{
	struct list_all *l = arg;
	autofree char *full = x_asprintf("%s/%s", l->prefix, name);
	struct list_item *i = list_add(l, "subvolume", full);

	if (i && id_sandbox_ok(name))
		str_copy(i->sandbox, sizeof(i->sandbox), name);
}

static void list_subvolumes(struct list_all *l, const char *folder)
{
	autoclose int fd = disk_folder(l->nm, folder, NULL);

	l->prefix = folder;
	if (fd >= 0)
		disk_each(fd, list_subvolume, l);
}

static int cmp_item(const void *a, const void *b)
{
	const struct list_item *x = a, *y = b;
	int r = strcmp(x->kind, y->kind);

	return r ? r : strcmp(x->name, y->name);
}

static json_t *item_json(const struct list_item *i)
{
	json_t *o = json_pack("{s:s,s:s,s:s,s:I}", "kind", i->kind, "name", i->name, "sandbox",
			      i->sandbox, "generation", (json_int_t)i->generation);

	if (o && i->state)
		json_object_set_new(o, "state", json_string(i->state));
	return o;
}

int list_run(struct child_task *t, struct err *e)
{
	const struct nm_list *req = t->req;
	struct nm_list_rep *rep = t->rep;
	struct list_all l = { .nm = t->nm };

	list_executions(&l);
	slots_each_process(t->nm->slots.uid_base, SLOT_UIDS * t->nm->slots.n, list_process, &l);
	cgroup_each(&t->nm->cgroups, list_group, &l);
	list_folder(&l, t->nm->run_fd, NET_FOLDER, "netns");
	list_folder(&l, t->nm->sockets_fd, ".", "socket");
	list_mounts(&l);
	list_subvolumes(&l, DISK_SANDBOXES);
	list_subvolumes(&l, DISK_TEMPLATES);
	if (l.n)
		qsort(l.items, l.n, sizeof(*l.items), cmp_item);
	rep->items = json_array();
	for (size_t i = req->cursor; i < l.n && i < req->cursor + LIST_PAGE_ITEMS; i++)
		json_array_append_new(rep->items, item_json(&l.items[i]));
	if (req->cursor + LIST_PAGE_ITEMS < l.n)
		rep->next = req->cursor + LIST_PAGE_ITEMS;
	free(l.items);
	return 0;
}
