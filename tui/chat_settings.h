/* The settings of a chat by the names users type: temp, top-p, top-k, min-p, rep-pen, seed, max,
 * stop, think, think-budget. One place for names, ranges and sentences, used by the commands, plain
 * mode and the screen. Owns its texts; one thread. */
#ifndef TUI_CHAT_SETTINGS_H
#define TUI_CHAT_SETTINGS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/client.h"

typedef struct chat_settings {
    chat_options options; /* stops point into stop_texts */
    char *stop_texts[CHAT_MAX_STOPS];
} chat_settings;

void chat_settings_init(chat_settings *s);
void chat_settings_release(chat_settings *s);

/* Sets one value. Setting "stop" adds a stop text. ERR_ARG with the range or the nearest name. */
int chat_settings_set(chat_settings *s, const char *key, const char *value, err *e);
/* "KEY=VALUE" or "KEY VALUE". */
int chat_settings_set_pair(chat_settings *s, const char *pair, err *e);
/* Back to the engine's default. */
int chat_settings_unset(chat_settings *s, const char *key, err *e);
/* off, on, an effort by name, or a budget from 1 to 100. */
int chat_settings_think(chat_settings *s, const char *word, err *e);

/* Name i of the settings, NULL past the last. */
const char *chat_settings_name(int i);
/* Its value as text appended to out, nothing when it is not set. */
void chat_settings_value(const chat_settings *s, const char *key, buf *out);
/* What is set, as a JSON object by the names above. */
void chat_settings_json(const chat_settings *s, buf *out);

#endif
