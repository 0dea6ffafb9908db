/* From chat messages to the prompt of DeepSeek-V4.1 (chat.md 4 to 6): the release's own rendering
 * for tests, and the serving rules that read an OpenAI body. The result is text in segments:
 * template text (may hold control tokens) and untrusted text (never does). Pure functions over
 * their arguments; any thread. A refusal is ERR_ARG or ERR_UNSUPPORTED with the field's path in
 * err.place ("messages[2].content"), which is the `param` of api.md. */
#ifndef ENGINE_TEXT_CHAT_H
#define ENGINE_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/text/tokenizer.h"

typedef struct chat_segment {
    size_t start, len; /* in chat_prompt.text */
    bool is_template;
} chat_segment;

/* Owns its storage; chat_prompt_release. Image records borrow from the JSON they came from. */
typedef struct chat_prompt {
    buf text;
    chat_segment *segments;
    size_t n_segments, segments_cap;
    const json **images; /* the blocks of the images, in prompt order */
    size_t n_images, images_cap;
    bool is_thinking;
    int budget;               /* 1 to 100 when is_thinking, else 0 */
    bool starts_in_reasoning; /* the reply begins inside reasoning */
    bool has_tools;           /* tools stand in the prompt; without them token 128825 is banned */
} chat_prompt;
#define CHAT_PROMPT_INIT                                                                           \
    { .text = BUF_INIT }

void chat_prompt_release(chat_prompt *p);
/* Ids of the prompt. trusts_all matches control tokens in untrusted text too (comparisons). */
int chat_prompt_encode(
    const chat_prompt *p, const tokenizer *t, bool trusts_all, token_list *out, err *e);

/* The release's rendering (chat.md 4). Arguments borrow. */
typedef struct chat_reference {
    const json *messages;
    const json *context; /* earlier messages, already in the cache; may be NULL */
    const json *effort;  /* integer, "low", "high", "max"; NULL or null: high */
    bool is_thinking;
    bool keeps_reasoning; /* drop_thinking off */
    bool omits_bos;
} chat_reference;
int chat_render_reference(const chat_reference *r, chat_prompt *out, err *e);

/* Exact text of an earlier tool call, if the caller still has it and the call that the client sent
 * back is the same one (name and arguments as given). text stays valid until the rendering ends.
 * Returns false when it does not know the call: it is then rendered from its arguments. */
typedef struct chat_call_view {
    const char *id;
    const char *name;
    const json *arguments; /* as the client sent them: object or text */
} chat_call_view;
typedef bool (*chat_replay_fn)(
    void *ctx, const chat_call_view *call, const char **text, size_t *len);

typedef struct chat_settings {
    bool thinks_by_default; /* THINKING=on in the settings; off otherwise */
    bool has_vision;
    bool allows_tasks;
    chat_replay_fn replay; /* may be NULL */
    void *replay_ctx;
} chat_settings;

/* The serving rules (chat.md 6) over a chat completions body. Only fields that shape the prompt
 * are read. settings may be NULL: all off. */
int chat_render_body(const json *body, const chat_settings *settings, chat_prompt *out, err *e);

/* The switch and the effort of a body, without rendering it. *budget is 0 when off. */
int chat_thinking_of(
    const json *body, const chat_settings *settings, bool *is_thinking, int *budget, err *e);
/* The effort table: a name or a number from 1 to 100 as text, in any case, spaces around it
 * ignored. 0 for "none" and "off", -1 for anything else. */
int chat_effort_budget(const char *value);

/* Name of a tool definition as printed (namespace::name). ERR_ARG names the field below path. */
int chat_tool_name(const json *tool, const char *path, buf *out, err *e);

#endif
