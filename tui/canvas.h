/*
 * A screen full of cells in memory. Views draw on it through pens, term.c shows it; golden screens
 * are taken from it and from the terminal. One thread. The canvas owns its cells; drawing allocates
 * nothing and clips everything to the pen's box and to the canvas, so that a view may draw at any
 * size. Invariant: a cell of width 2 is followed by its continuation (width 0, no text).
 */
#ifndef TUI_CANVAS_H
#define TUI_CANVAS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CANVAS_CELL_BYTES 36

/* What a piece of text means; themes map roles to colours (theme.h). */
typedef enum {
    ROLE_TEXT,
    ROLE_DIM,
    ROLE_STRONG,
    ROLE_ACCENT,
    ROLE_GOOD,
    ROLE_WARN,
    ROLE_BAD,
    ROLE_INFO,
    ROLE_USER,
    ROLE_MODEL,
    ROLE_THINK,
    ROLE_CODE,
    ROLE_BORDER,
    ROLE_FOCUS,
    ROLE_SELECT,
    ROLE_PLOT1,
    ROLE_PLOT2,
    ROLE_PLOT3,
    ROLE_PLOT4,
    ROLE_KEYWORD,
    ROLE_STRING,
    ROLE_COMMENT,
    ROLE_NUMBER,
    N_ROLES
} canvas_role;

enum { STYLE_BOLD = 1, STYLE_UNDERLINE = 2, STYLE_REVERSE = 4, STYLE_ITALIC = 8, STYLE_DIM = 16 };

typedef struct style {
    uint8_t role;  /* canvas_role */
    uint8_t flags; /* STYLE_ bits */
} style;

typedef struct cell {
    char text[CANVAS_CELL_BYTES]; /* one cluster in UTF-8; not terminated when full */
    uint8_t len;                  /* 0: a blank, or the continuation of a wide cell */
    uint8_t columns;              /* 1, 2, or 0 for the continuation */
    uint8_t is_special;           /* terminals disagree about its width */
    style st;
} cell;

typedef struct canvas {
    cell *cells; /* [n_rows][n_columns] */
    int n_rows, n_columns;
} canvas;

/* A rectangle in cells; sizes may be zero or negative, then nothing is drawn. */
typedef struct area {
    int row, column, n_rows, n_columns;
} area;

/* Where drawing happens next. row and column are relative to the box. */
typedef struct pen {
    canvas *on;
    area box;
    int row, column;
    style st;
} pen;

void canvas_init(canvas *c);
/* Sets the size (at least 1x1) and blanks it. */
void canvas_resize(canvas *c, int n_rows, int n_columns);
void canvas_release(canvas *c);
void canvas_blank(canvas *c);
/* The cell, or NULL outside. */
const cell *canvas_at(const canvas *c, int row, int column);
/* True if a row of both canvases is drawn alike; sizes must be equal. */
bool canvas_same_row(const canvas *a, const canvas *b, int row);
/* Copies all cells; both must have the same size. */
void canvas_copy(canvas *to, const canvas *from);
area canvas_area(const canvas *c);
/* The part of a that lies n cells inside it on every side. */
area area_inset(area a, int n);

style style_of(canvas_role role);
style style_with(canvas_role role, int flags);

pen pen_on(canvas *c, area box);
void pen_move(pen *p, int row, int column);
void pen_role(pen *p, canvas_role role);
void pen_style(pen *p, style st);
/* Draws text and moves on; text must be clean (width.h) and without line feeds. */
void pen_text(pen *p, const char *s, size_t n);
void pen_str(pen *p, const char *s);
void pen_printf(pen *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Draws text cut to max_columns; what is cut ends in "..." or one ellipsis when ellipsis says so.
 */
void pen_cut(pen *p, const char *s, int max_columns, const char *ellipsis);
void pen_repeat(pen *p, const char *glyph, int n);
/* Blanks from the pen to a column. */
void pen_blank_to(pen *p, int column);
/* Columns left in the box. */
int pen_left(const pen *p);
/* Reverses or restyles a whole row of the box. */
void pen_paint_row(pen *p, int row, style st);

#endif
