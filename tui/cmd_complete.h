/* Completion scripts, made from the command table. */
#ifndef TUI_CMD_COMPLETE_H
#define TUI_CMD_COMPLETE_H

#include "engine/base/buf.h"

/* The script for bash, zsh or fish appended to out; ERR_ARG for another shell. */
int completion_script(const char *shell, buf *out);

#endif
