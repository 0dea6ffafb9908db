/* Least privilege: what touches another machine, or lets one in, does not run as root. A chat with the
 * built-in model on this machine alone may: containers have no other user. */
#ifndef TANDEM_BASE_PRIVILEGE_H
#define TANDEM_BASE_PRIVILEGE_H

#include "engine/base/err.h"

/* ERR_AUTH for root, unless TANDEM_ALLOW_ROOT=1 (tests, which run in containers). what begins the
 * sentence: "set-up", "the pair". */
int privilege_refuse_root(const char *what, err *e);

#endif
