/* Sizes of identifiers, for message tables that need no more than these. */
#ifndef IDENTITY_IDENTITY_LIMITS_H
#define IDENTITY_IDENTITY_LIMITS_H

#define ID_SANDBOX_LEN 21                /* "i" and 20 of [a-z0-9] */
#define ID_UUID_LEN 36
#define ID_TENANT_MAX 36                 /* ^[a-z0-9][a-z0-9-]{0,35}$ */
#define ID_ACTIVATION_BYTES 16
#define ID_ACTIVATION_HEX 32
#define ID_KID_MAX 32                    /* ^[a-z0-9-]{1,32}$ */
#define CAP_TEXT_MAX 2048
#define BUNDLE_BYTES_MAX 32768

#endif
