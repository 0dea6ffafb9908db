/* The TCP endpoint of the engine as set-up and `tandem api` see it: which address it may have, which
 * addresses this machine has, and switching it on the running engine. An address that other machines
 * reach needs an API key and was confirmed once by typing it; the setting API_CONFIRMED keeps which.
 * Any thread; a call may wait for the engine. */
#ifndef SETUP_ENDPOINT_H
#define SETUP_ENDPOINT_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/settings.h"

enum { ENDPOINT_PLACE_MAX = 100 };

/* 127.0.0.0/8 */
bool endpoint_is_loopback(const char *address);
/* 0.0.0.0: every network of this machine. */
bool endpoint_is_wide(const char *address);
/* IPv4, and one of this machine's own (or 0.0.0.0): ERR_ARG says which there are. */
int endpoint_check_address(const char *address, err *e);
/* "192.168.1.5 (enP7s7), ..." of the interfaces that are up, without loopback and without the rails of
 * the settings. Empty: none. */
void endpoint_own_addresses(const settings *s, buf *out);

/* How many keys the file holds; 0 also when it is missing or damaged. */
int endpoint_count_keys(const char *path);
bool endpoint_has_key(const char *path, const char *label);

/* What a start from the settings would refuse: another address than loopback without a key, without
 * the confirmation of this very address, or as root. OK when API is off. */
int endpoint_check_settings(const settings *s, err *e);

typedef struct endpoint_now {
    char place[ENDPOINT_PLACE_MAX]; /* "127.0.0.1:8888", "" when it is off */
    char model[ENDPOINT_PLACE_MAX];
    bool needs_key;
} endpoint_now;
/* Asks the engine at the socket. ERR_NET: there is none. */
int endpoint_look(const char *socket_path, endpoint_now *out, err *e);
/* Off when place is NULL; on at "ADDRESS:PORT", switched off before where it is on elsewhere. The
 * caller has the owner's word for another address than loopback. */
int endpoint_switch(const char *socket_path, const char *place, err *e);

#endif
