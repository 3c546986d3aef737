/*
 * What the drivers of operations share: which key signs, and a database handle of each thread.
 *
 * Which key signs (K-2): a new key may be used only when every node that serves knows it, else its
 * capabilities would be refused: the newest key file whose public half stands in the newest bundle,
 * once all nodes have acknowledged that bundle. Until then the key that signed before goes on;
 * after a start in that moment, the oldest one of the bundle, since it is the one that was in the
 * bundle before. A node that has not been seen for OPS_NODE_AWAY_MS does not hold the rotation up:
 * it gets the bundle before anything else when it comes back.
 */
#ifndef OPS_SIGNER_H
#define OPS_SIGNER_H

#include <stdbool.h>
#include "identity/identity.h"
#include "store/store.h"

#define OPS_NODE_AWAY_MS 60000

/* STATE/keys/root.pub: hex. */
int ops_root_public(const char *path, uint8_t ret[KEY_PUBLIC_BYTES], struct err *e);
/*
 * 1: *ret is the key to sign with from now on (caller: key_signer_done); 0: stay with the one that
 * you have, or there is none yet. `dir`: files <kid>.key whose names sort by age. Reads files and
 * the database.
 */
int ops_signer_choose(struct store *s, const char *dir, const uint8_t root_public[KEY_PUBLIC_BYTES],
		      enum id_purpose purpose, bool have_one, struct key_signer *ret,
		      struct err *e);

/*
 * The calling thread's handle; opened on first use, closed when the thread ends. One URL a process.
 */
struct store *ops_thread_store(const char *url, struct err *e);

#endif
