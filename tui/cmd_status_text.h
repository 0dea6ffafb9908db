/* The state of the engine in words. */
#ifndef TUI_CMD_STATUS_TEXT_H
#define TUI_CMD_STATUS_TEXT_H

#include "engine/base/buf.h"
#include "engine/base/json.h"

/* One short paragraph from the daemon's state object. */
void status_paragraph(const json *state, buf *out);

#endif
