/*
 * Looks: which colour and attribute a role has at each colour level, and which glyphs draw frames,
 * bars and plots at each glyph level. Constant data and one small struct passed down; any thread.
 * The terminal's own background and foreground stay; no meaning is carried by colour alone.
 */
#ifndef TUI_THEME_H
#define TUI_THEME_H

#include <stdbool.h>

#include "tui/canvas.h"

typedef enum { COLORS_NONE, COLORS_8, COLORS_256 } color_level;
typedef enum { GLYPHS_ASCII, GLYPHS_BLOCK } glyph_level;

/* Every glyph is one column wide. */
typedef struct glyph_set {
    const char *horizontal, *vertical;
    const char *top_left, *top_right, *bottom_left, *bottom_right;
    const char *bar_full, *bar_half, *bar_empty;
    const char *levels[9]; /* nothing to full, for columns and sparklines */
    const char *ellipsis;
    const char *bullet;
    const char *quote;
    const char *caret; /* the place where a reply grows */
    bool has_utf8;
} glyph_set;

typedef struct theme {
    color_level colors;
    glyph_level level;
    const glyph_set *glyphs;
} theme;

/* Attributes of a role: STYLE_ bits and a colour number, -1 for the terminal's own. */
typedef struct theme_look {
    int flags;
    int color;
} theme_look;

/*
 * Chooses the levels. color is the option's word (none, 8, 256, auto or NULL), n_colors what the
 * terminal has; NO_COLOR and COLORTERM are read from the environment. is_utf8: the locale's
 * encoding; plain_glyphs: --ascii or a console without the glyphs.
 */
theme theme_choose(const char *color, int n_colors, bool is_utf8, bool plain_glyphs);
theme_look theme_role(const theme *t, canvas_role role);

#endif
