#include "netgtw/install.h"

#include <errno.h>
#include <string.h>

#include "base/str.h"

static int install_identity(const struct gtw_install *i, struct identity *id, struct err *e)
{
	*id = (struct identity){ .generation = i->generation, .attempt = i->attempt };
	str_copy(id->tenant, sizeof(id->tenant), i->tenant);
	str_copy(id->sandbox, sizeof(id->sandbox), i->sandbox);
	str_copy(id->worker, sizeof(id->worker), i->worker);
	str_copy(id->pod_uid, sizeof(id->pod_uid), i->pod_uid);
	if (str_unhex(id->activation, sizeof(id->activation), i->activation) < 0)
		return err_set(e, -EINVAL, "The activation is malformed.");
	for (int s = 0; s < ID_SUBSTRATE_COUNT; s++) {
		if (str_eq(i->substrate, id_substrate_names[s])) {
			id->substrate = (enum id_substrate)s;
			return id_check(id, e);
		}
	}
	return err_set(e, -EINVAL, "There is no such substrate.");
}

/* All but the attempt. */
static bool install_same(const struct identity *a, const struct identity *b)
{
	struct identity x = *a;

	x.attempt = b->attempt;
	return id_compare(&x, b, NULL) == ID_MATCH;
}

int install_check(const struct gtw_install *i, const struct gtw_conf *conf,
		  const struct identity *installed, struct identity *ret, struct err *e)
{
	struct identity id;
	int r = install_identity(i, &id, e);

	if (r < 0)
		return r;
	if (!str_eq(id.sandbox, conf->sandbox) || id.generation != conf->generation ||
	    (conf->worker[0] && !str_eq(id.worker, conf->worker)) ||
	    (installed && !install_same(&id, installed)))
		return err_set_code(e, -EACCES, "wrong-identity",
				    "This gateway belongs to another execution.");
	if (installed && id.attempt < installed->attempt)
		return err_set_code(e, -ESTALE, "stale-attempt", "A later attempt is installed.");
	*ret = id;
	return 0;
}
