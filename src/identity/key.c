#include "identity/identity.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/fd.h"
#include "base/str.h"
#include "identity/internal.h"

#define KEY_FILE_MAX 256
#define KEY_HEAD "{\"kid\":\""
#define KEY_MIDDLE "\",\"secret\":\""
#define KEY_TAIL "\"}\n"
#define KEY_SEED_HEX (2 * crypto_sign_SEEDBYTES)

static_assert(KEY_PUBLIC_BYTES == crypto_sign_PUBLICKEYBYTES &&
		      KEY_SECRET_BYTES == crypto_sign_SECRETKEYBYTES,
	      "sizes");

int key_init(void)
{
	return sodium_init() < 0 ? -EIO : 0;
}

bool kid_ok(const char *s)
{
	return str_is(s, 1, ID_KID_MAX, "abcdefghijklmnopqrstuvwxyz0123456789-");
}

int key_generate(const char *kid, struct key_signer *ret, uint8_t ret_public[KEY_PUBLIC_BYTES])
{
	if (!kid_ok(kid))
		return -EINVAL;
	*ret = (struct key_signer){ 0 };
	if (crypto_sign_keypair(ret_public, ret->secret) != 0)
		return -EIO;
	return str_copy(ret->kid, sizeof(ret->kid), kid);
}

void key_signer_done(struct key_signer *k)
{
	explicit_bzero(k, sizeof(*k));
}

/*
 * A fixed form instead of a JSON parser, whose copies of the secret could not be wiped. *p moves
 * behind what was recognised.
 */
static bool eat(const char **p, const char *word)
{
	size_t n = strlen(word);

	if (strncmp(*p, word, n) != 0)
		return false;
	*p += n;
	return true;
}

static bool key_parse(const char *text, char kid[ID_KID_MAX + 1],
		      uint8_t seed[crypto_sign_SEEDBYTES])
{
	char hex[KEY_SEED_HEX + 1];
	const char *p = text, *quote;
	bool ok;

	if (!eat(&p, KEY_HEAD) || !(quote = strchr(p, '"')) || quote - p > ID_KID_MAX)
		return false;
	memcpy(kid, p, (size_t)(quote - p));
	kid[quote - p] = '\0';
	p = quote;
	if (!kid_ok(kid) || !eat(&p, KEY_MIDDLE) || strlen(p) < KEY_SEED_HEX)
		return false;
	memcpy(hex, p, KEY_SEED_HEX);
	hex[KEY_SEED_HEX] = '\0';
	p += KEY_SEED_HEX;
	ok = str_unhex(seed, crypto_sign_SEEDBYTES, hex) >= 0 && eat(&p, KEY_TAIL) && !*p;
	explicit_bzero(hex, sizeof(hex));
	return ok;
}

static int key_open(const char *path, struct err *e)
{
	autoclose int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY | O_NONBLOCK);
	struct stat st;
	mode_t mode;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_errno(e, -errno, "key file %s", path);
	mode = st.st_mode & 07777;
	if (!S_ISREG(st.st_mode))
		return err_set(e, -EPERM, "key file %s is not a regular file", path);
	if (st.st_uid != geteuid() && st.st_uid != 0 && geteuid() != 0)
		return err_set(e, -EPERM,
			       "key file %s belongs to uid %u; it must be ours or root's", path,
			       st.st_uid);
	if (mode != 0400 && mode != 0600)
		return err_set(e, -EPERM,
			       "key file %s has mode %04o; it must be 0400 (chmod 0400 %s)", path,
			       mode, path);
	return TAKE_FD(fd);
}

int key_load(const char *path, struct key_signer *ret, uint8_t ret_public[KEY_PUBLIC_BYTES],
	     struct err *e)
{
	autoclose int fd = key_open(path, e);
	uint8_t seed[crypto_sign_SEEDBYTES], public[KEY_PUBLIC_BYTES];
	char text[KEY_FILE_MAX + 1], kid[ID_KID_MAX + 1];
	ssize_t n;
	bool ok;

	if (fd < 0)
		return fd;
	n = fd_read_full(fd, text, KEY_FILE_MAX, -1);
	if (n < 0)
		return err_errno(e, (int)n, "read key file %s", path);
	text[n] = '\0';
	ok = strlen(text) == (size_t)n && key_parse(text, kid, seed);
	explicit_bzero(text, sizeof(text));
	if (ok) {
		*ret = (struct key_signer){ 0 };
		str_copy(ret->kid, sizeof(ret->kid), kid);
		crypto_sign_seed_keypair(public, ret->secret, seed);
		if (ret_public)
			memcpy(ret_public, public, sizeof(public));
	}
	explicit_bzero(seed, sizeof(seed));
	return ok ? 0 : err_set(e, -EBADMSG, "key file %s is malformed", path);
}

static int key_write(int fd, const struct key_signer *k)
{
	uint8_t seed[crypto_sign_SEEDBYTES];
	char hex[KEY_SEED_HEX + 1], text[KEY_FILE_MAX];
	int r;

	crypto_sign_ed25519_sk_to_seed(seed, k->secret);
	str_hex(hex, seed, sizeof(seed));
	r = str_format(text, sizeof(text), KEY_HEAD "%s" KEY_MIDDLE "%s" KEY_TAIL, k->kid, hex);
	if (r >= 0)
		r = fd_write_all(fd, text, strlen(text), -1);
	if (r >= 0 && (fchmod(fd, 0400) < 0 || fsync(fd) < 0))
		r = -errno;
	explicit_bzero(seed, sizeof(seed));
	explicit_bzero(hex, sizeof(hex));
	explicit_bzero(text, sizeof(text));
	return r;
}

static int sync_folder_of(const char *path)
{
	const char *slash = strrchr(path, '/');
	autofree char *dir = !slash ? x_strdup(".")
				    : x_strndup(path, slash == path ? 1 : (size_t)(slash - path));
	autoclose int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int key_save(const char *path, const struct key_signer *k, struct err *e)
{
	autoclose int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0400);
	int r;

	if (fd < 0)
		return err_errno(e, -errno, "new key file %s", path);
	r = key_write(fd, k);
	if (r >= 0)
		r = sync_folder_of(path);
	if (r < 0) {
		unlink(path);
		return err_errno(e, r, "write key file %s", path);
	}
	return 0;
}
