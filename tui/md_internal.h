/* Inside of the Markdown renderer (md.h): blocks, and the functions that its files share. */
#ifndef TUI_MD_INTERNAL_H
#define TUI_MD_INTERNAL_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "tui/md.h"

#define MD_HOLD_CHARS 64  /* an inline mark without its partner is literal after this many */
#define MD_LINK_BYTES 512 /* the target of a link may be longer */
#define MD_MAX_LIST_DEPTH 8
#define MD_MAX_TABLE_COLUMNS 32
#define MD_MAX_LINKS 1000

typedef enum {
    MD_PARAGRAPH,
    MD_HEADING,
    MD_ITEM,
    MD_QUOTE,
    MD_CODE,
    MD_TABLE,
    MD_RULE,
    MD_PLAIN
} md_kind;

/* Bytes [at, end) of the source, without the line feed and the block's own marks. */
typedef struct md_line {
    size_t at, end;
    bool is_complete;
} md_line;

typedef struct md_block {
    md_kind kind;
    int level;         /* heading 1 to 6; list depth; fence length */
    int indent;        /* columns */
    char mark[16];     /* "1." of an item */
    char language[24]; /* code */
    char fence;        /* code: backtick or tilde */
    size_t fence_indent;
    int number;        /* code: from 1 */
    int first_link;    /* number of the last link before this block */
    bool has_gap;      /* a blank row stands before it */
    bool is_closed;    /* no line will be added */
    bool was_unclosed; /* a fence that the text never closed */
    md_line *lines;
    int n_lines, lines_cap;
    size_t place; /* where it starts in the source */
    /* the layout, for columns */
    int columns;   /* 0: none yet */
    bool is_final; /* laid out after it was closed */
    rich text;
    rich_rows rows;
} md_block;

struct md {
    buf source;
    size_t at;          /* the first line that belongs to no block yet */
    bool has_open_line; /* the last line of the last block is still growing */
    bool is_plain, is_finished, had_blank;
    canvas_role role;
    md_block *blocks;
    int n_blocks, blocks_cap;
    int n_code;
    size_t list_indent[MD_MAX_LIST_DEPTH]; /* where the content of each open list level starts */
    int list_depth;
    int columns;
    int *first_row; /* [n_blocks + 1] of the last layout */
    int first_row_cap;
    char **links;
    int n_links;
    const theme *look;
};

/* md_inline.c: styled text of one line. A line that is not complete stops before what is not clear
 * yet. Links are numbered from *n_links on; their targets are recorded in d when they are new. */
void md_inline(
    md *d, const char *s, size_t n, bool is_complete, style base, rich *out, int *n_links);
/* Bytes of a construct that starts at s[i]; 0: a plain character, MD_UNCLEAR: more text is needed.
 */
#define MD_UNCLEAR ((size_t)-1)

/* md_code.c: adds one line of code; state carries an open comment or string over lines. */
void md_code_line(
    const char *language, const char *s, size_t n, bool is_complete, int *state, rich *out);

/* md_table.c: rows of a table block. */
void md_table_layout(md *d, md_block *b, int columns);

/* md_layout.c */
void md_layout_block(md *d, md_block *b, int columns);

#endif
