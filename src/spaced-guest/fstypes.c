#include "spaced-guest/fstypes.h"

#include <linux/magic.h>

#include "base/alloc.h"

static const unsigned made_up[] = {
	PROC_SUPER_MAGIC, SYSFS_MAGIC,	    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC,
	DEBUGFS_MAGIC,	  TRACEFS_MAGIC,    SECURITYFS_MAGIC,	EFIVARFS_MAGIC,
	PSTOREFS_MAGIC,	  BINFMTFS_MAGIC,   BPF_FS_MAGIC,	DEVPTS_SUPER_MAGIC,
};

static const unsigned network[] = {
	NFS_SUPER_MAGIC,  SMB_SUPER_MAGIC,  SMB2_SUPER_MAGIC, CIFS_SUPER_MAGIC, FUSE_SUPER_MAGIC,
	V9FS_MAGIC,	  CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC,  CODA_SUPER_MAGIC,
};

static bool is_one_of(const struct statfs *fs, const unsigned *magics, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned)fs->f_type == magics[i])
			return true;
	return false;
}

bool fs_is_made_up(const struct statfs *fs)
{
	return is_one_of(fs, made_up, ARRAY_LEN(made_up));
}

bool fs_is_network(const struct statfs *fs)
{
	return is_one_of(fs, network, ARRAY_LEN(network));
}
