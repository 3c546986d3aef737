/*
 * Users and groups from the guest's own /etc/passwd and /etc/group (passwd(5), group(5)), without
 * NSS. Limits: files of USERS_FILE_MAX bytes, USERS_ENTRIES_MAX entries, USERS_GROUPS_MAX groups of
 * a user; what is beyond is passed over.
 */
#ifndef GUEST_USERS_H
#define GUEST_USERS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define USERS_FILE_MAX (1 << 20)
#define USERS_ENTRIES_MAX 4096
#define USERS_GROUPS_MAX 64
#define USERS_NAME_MAX 64
#define USERS_HOME_MAX 256

struct user {
	char name[USERS_NAME_MAX];
	uid_t uid;
	gid_t gid;
	gid_t groups[USERS_GROUPS_MAX];
	size_t n_groups;
	char home[USERS_HOME_MAX];
};

int user_find(const char *name, struct user *ret);               /* -ENOENT */
/* The same from text (unit tests). group may be NULL. */
int user_parse(char *passwd, char *group, const char *name, struct user *ret);

/* Names for numbers; decimal where there is no name. */
struct users_names;
struct users_names *users_names_new(void);
void users_names_free(struct users_names *n);
const char *users_name(struct users_names *n, uid_t uid);        /* valid until the next call */
const char *users_group(struct users_names *n, gid_t gid);

/*
 * Acting as a user: effective IDs and groups of the (only) thread, which takes all capabilities out
 * of effect. Between enter and leave no other user can signal or trace the agent, since its real
 * and saved IDs stay root. Not nested. Nothing is done when the agent itself is not root.
 */
int users_enter(const struct user *u);
void users_leave(void);

#endif
