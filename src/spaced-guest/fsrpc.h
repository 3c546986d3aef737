/*
 * filesystem.Filesystem: Stat, MakeDir, Move, ListDir, Remove, as the asking user. Walks are cut
 * into pieces that other requests run between. Limits: FSRPC_LIST_MAX bytes of an answer,
 * FSRPC_DIR_MAX entries of one folder, then resource_exhausted.
 */
#ifndef GUEST_FSRPC_H
#define GUEST_FSRPC_H

#include "spaced-guest/connect.h"

#define FSRPC_LIST_MAX (15 << 20)
#define FSRPC_WALKS_MAX (32 << 20)       /* bytes that listings hold; beyond, only the oldest goes on */
#define FSRPC_DIR_MAX 200000

void fsrpc_stat(struct req *r, const char *body, size_t n);
void fsrpc_make_dir(struct req *r, const char *body, size_t n);
void fsrpc_move(struct req *r, const char *body, size_t n);
void fsrpc_list_dir(struct req *r, const char *body, size_t n);
void fsrpc_remove(struct req *r, const char *body, size_t n);

#endif
