/* Options that ask and chat share. */
#ifndef TUI_CMD_CHAT_OPTIONS_H
#define TUI_CMD_CHAT_OPTIONS_H

#include "tui/chat_settings.h"
#include "tui/cmd_table.h"

/* --set and --thinking into s. */
int cmd_chat_settings(const cmd_args *a, chat_settings *s, err *e);
/* Text of --system (or of the file after @), checked. Empty when there is none. */
int cmd_system_prompt(const cmd_args *a, buf *out, err *e);
/* "TEXT" or "@FILE" into out. */
int cmd_text_or_file(const char *word, buf *out, err *e);

#endif
