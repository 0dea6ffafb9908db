/* Manual pages in roff, made from the tables of commands and settings. */
#ifndef TUI_CMD_MAN_H
#define TUI_CMD_MAN_H

#include "engine/base/buf.h"

/* The page of a noun ("" is tandem.1, "tandem.conf" the settings file), appended to out. Nothing is
 * written for an unknown noun. */
void man_page(const char *noun, buf *out);

#endif
