/* Shared inside engine/text: a conversation as both renderings see it. Strings and JSON values
 * borrow from the caller's tree. In strings of that tree the bytes C0 80 stand for U+0000. */
#ifndef ENGINE_TEXT_CHAT_INTERNAL_H
#define ENGINE_TEXT_CHAT_INTERNAL_H

#include <stdint.h>

#include "engine/text/chat.h"

#define CHAT_BAR "\xEF\xBD\x9C"   /* U+FF5C */
#define CHAT_BLANK "\xE2\x96\x81" /* U+2581 */
#define CHAT_BOS "<" CHAT_BAR "begin" CHAT_BLANK "of" CHAT_BLANK "sentence" CHAT_BAR ">"
#define CHAT_EOS "<" CHAT_BAR "end" CHAT_BLANK "of" CHAT_BLANK "sentence" CHAT_BAR ">"
#define CHAT_SYSTEM "<" CHAT_BAR "System" CHAT_BAR ">"
#define CHAT_USER "<" CHAT_BAR "User" CHAT_BAR ">"
#define CHAT_ASSISTANT "<" CHAT_BAR "Assistant" CHAT_BAR ">"
#define CHAT_REMINDER "<" CHAT_BAR "latest_reminder" CHAT_BAR ">"
#define CHAT_IMAGE "<" CHAT_BAR "deepseek_image" CHAT_BAR ">"
#define CHAT_THINK_OPEN "<think>"
#define CHAT_THINK_CLOSE "</think>"
#define CHAT_DSML CHAT_BAR "DSML" CHAT_BAR
#define CHAT_DEFAULT_BUDGET 75

typedef enum chat_role {
    ROLE_SYSTEM,
    ROLE_USER,
    ROLE_ASSISTANT,
    ROLE_TOOL,
    ROLE_REMINDER,
    ROLE_SEARCH_RESULTS,
    ROLE_OTHER,
} chat_role;

typedef enum part_kind { PART_TEXT, PART_IMAGE, PART_UNSUPPORTED } part_kind;

typedef struct chat_part {
    part_kind kind;
    const char *text;  /* PART_TEXT; the type's name for PART_UNSUPPORTED */
    const json *image; /* PART_IMAGE */
} chat_part;

/* A message as it was given. Owns parts. */
typedef struct chat_source {
    chat_role role;
    chat_part *parts; /* the content: one part for a string or null, none for an empty list */
    size_t n_parts, parts_cap;
    const char *reasoning;    /* NULL: none */
    const json *tool_calls;   /* array, NULL: none */
    const json *single_call;  /* the legacy function_call, NULL: none */
    const json *tools;        /* array, NULL: none */
    const json *format;       /* schema to print, NULL: none */
    const char *task;         /* NULL: none */
    const char *tool_call_id; /* "" when unknown */
    bool omits_eos;
    bool flat_tools; /* serving: a definition may stand without its wrapper */
    bool continues;  /* a further stretch of the user message before it */
    size_t i_given;  /* index in the caller's list, for error paths */
} chat_source;

/* One stretch of a user turn: a user message's content, or a tool's result. */
typedef struct chat_block {
    const chat_source *from;
    bool is_result;
} chat_block;

/* A message after merging. Owns blocks. */
typedef struct chat_message {
    const chat_source *source; /* the first one it was made of */
    chat_role role;
    chat_block *blocks;
    size_t n_blocks, blocks_cap;
    bool has_task;
    bool loses_reasoning;
} chat_message;

typedef struct conversation {
    chat_source *sources;
    size_t n_sources, sources_cap;
    chat_message *messages;
    size_t n_messages, messages_cap;
    size_t n_context;              /* messages that are not rendered */
    const chat_settings *settings; /* NULL in the reference rendering */
    bool is_thinking, drops_reasoning, omits_bos;
    int budget;
    bool continues_last; /* the last assistant turn stays open */
    bool always_opens;   /* serving: the last message is always followed by the assistant */
    bool never_opens;    /* add_generation_prompt false */
} conversation;

void conversation_release(conversation *c);
chat_source *conversation_add(conversation *c, chat_role role);
void source_add_part(chat_source *s, chat_part part);

/* Merging, result order, dropping (chat.md 4.1). The first n_given sources are context. */
void conversation_prepare(conversation *c, size_t n_given);
/* Renders all messages from n_context on. */
int conversation_render(const conversation *c, chat_prompt *out, err *e);

/* Calls of a message and the tool block (chat_tools.c). */
int render_calls(chat_prompt *out, const conversation *c, const chat_source *s, err *e);
/* False for built-in tools of other vendors: another type, and no definition to print. */
bool tool_is_definition(const json *tool);
int render_tools(chat_prompt *out, const chat_source *s, err *e);

/* Appends a literal of the template, or untrusted text from the JSON tree. */
int prompt_template(chat_prompt *p, const char *text);
int prompt_text(chat_prompt *p, const char *json_text);
int prompt_bytes(chat_prompt *p, bool is_template, const char *text, size_t len);
int prompt_json(chat_prompt *p, const json *v);

/* Image blocks: NULL when the part is no image; *has_source says whether it can be loaded. */
bool part_is_image(const json *part, bool *has_source);

#endif
