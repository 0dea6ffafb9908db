/* What tandem setup and tandem undo share: words with the person on a plain terminal or over pipes.
 * Main thread only. */
#ifndef TUI_CMD_SETUP_TALK_H
#define TUI_CMD_SETUP_TALK_H

#include "setup/step.h"
#include "tui/cmd_internal.h"

/* One line from standard input, without its end; false at the end of the input. is_hidden switches
 * the echo off where there is one. */
bool setup_read_line(const char *prompt, bool is_hidden, char *out, size_t cap);
/* What a line from the person means. The words that steer are no answers: "?" or "help", "back", and
 * "quit", "exit" or "q". */
typedef enum setup_word { SETUP_ANSWER, SETUP_WHY, SETUP_BACK, SETUP_QUIT, SETUP_ENDED } setup_word;
/* One line; out holds the answer without outer blanks. SETUP_ENDED: the input is over. */
setup_word setup_ask(const char *prompt, char *out, size_t cap);
/* A question that is answered with yes or no: SETUP_ANSWER is yes. "?" shows why, then it is asked
 * again; anything else that is not yes is SETUP_WHY, that is no. */
setup_word setup_agree(const char *question, const char *why);
/* True for "yes" or "y". */
bool setup_confirm(const char *question);
/* Lines, progress and questions. is_quiet: --json, nothing but questions. */
const flow_talk *setup_talk(bool is_quiet, bool may_ask);
/* The path of this program. */
int setup_program(buf *out, err *e);
/* The full screen at Setup (cmd_chat.c). */
int cmd_setup_screen(const cmd_args *a);
void setup_put_line(const char *label, const char *text);

#endif
