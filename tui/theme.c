#include "tui/theme.h"

#include <stdlib.h>
#include <string.h>

static const glyph_set ASCII_GLYPHS = {
    .horizontal = "-",
    .vertical = "|",
    .top_left = "+",
    .top_right = "+",
    .bottom_left = "+",
    .bottom_right = "+",
    .bar_full = "#",
    .bar_half = "=",
    .bar_empty = ".",
    .levels = {" ", ".", ".", ".", ":", ":", "|", "|", "*"},
    .ellipsis = "...",
    .bullet = "*",
    .quote = "|",
    .caret = "_",
    .has_utf8 = false,
};

static const glyph_set BLOCK_GLYPHS = {
    .horizontal = "\xe2\x94\x80",
    .vertical = "\xe2\x94\x82",
    .top_left = "\xe2\x94\x8c",
    .top_right = "\xe2\x94\x90",
    .bottom_left = "\xe2\x94\x94",
    .bottom_right = "\xe2\x94\x98",
    .bar_full = "\xe2\x96\x88",
    .bar_half = "\xe2\x96\x92",
    .bar_empty = "\xe2\x96\x91",
    .levels = {" ", "\xe2\x96\x81", "\xe2\x96\x82", "\xe2\x96\x83", "\xe2\x96\x84", "\xe2\x96\x85",
        "\xe2\x96\x86", "\xe2\x96\x87", "\xe2\x96\x88"},
    .ellipsis = "\xe2\x80\xa6",
    .bullet = "\xe2\x80\xa2",
    .quote = "\xe2\x94\x82",
    .caret = "_",
    .has_utf8 = true,
};

/* flags, colour of 256, colour of 8. The 256 colours are middle tones that can be read on a dark
 * and on a light background; white and black are never used. */
typedef struct look_row {
    int flags, color256, color8;
} look_row;

static const look_row LOOKS[N_ROLES] = {
    [ROLE_TEXT] = {0, -1, -1},
    [ROLE_DIM] = {STYLE_DIM, 245, -1},
    [ROLE_STRONG] = {STYLE_BOLD, -1, -1},
    [ROLE_ACCENT] = {STYLE_BOLD, 32, 6},
    [ROLE_GOOD] = {0, 35, 2},
    [ROLE_WARN] = {STYLE_BOLD, 172, 3},
    [ROLE_BAD] = {STYLE_BOLD, 160, 1},
    [ROLE_INFO] = {0, 37, 6},
    [ROLE_USER] = {STYLE_BOLD, 33, 4},
    [ROLE_MODEL] = {STYLE_BOLD, 35, 2},
    [ROLE_THINK] = {STYLE_DIM, 245, -1},
    [ROLE_CODE] = {0, 136, 3},
    [ROLE_BORDER] = {STYLE_DIM, 244, -1},
    [ROLE_FOCUS] = {STYLE_BOLD, 32, 6},
    [ROLE_SELECT] = {STYLE_REVERSE, -1, -1},
    [ROLE_PLOT1] = {0, 32, 6},
    [ROLE_PLOT2] = {0, 35, 2},
    [ROLE_PLOT3] = {0, 172, 3},
    [ROLE_PLOT4] = {0, 133, 5},
    [ROLE_KEYWORD] = {STYLE_BOLD, 32, 6},
    [ROLE_STRING] = {0, 35, 2},
    [ROLE_COMMENT] = {STYLE_DIM, 245, -1},
    [ROLE_NUMBER] = {0, 133, 5},
};

static color_level from_terminal(int n_colors) {
    const char *term = getenv("COLORTERM");
    if (n_colors >= 256) return COLORS_256;
    if (term != NULL && n_colors >= 8 &&
        (strcmp(term, "truecolor") == 0 || strcmp(term, "24bit") == 0)) {
        return COLORS_256;
    }
    return n_colors >= 8 ? COLORS_8 : COLORS_NONE;
}

theme theme_choose(const char *color, int n_colors, bool is_utf8, bool plain_glyphs) {
    theme t = {.colors = from_terminal(n_colors), .level = GLYPHS_BLOCK};
    const char *no_color = getenv("NO_COLOR");
    bool is_given = color != NULL && strcmp(color, "auto") != 0;
    if (is_given && strcmp(color, "none") == 0)
        t.colors = COLORS_NONE;
    else if (is_given && strcmp(color, "8") == 0)
        t.colors = n_colors >= 8 ? COLORS_8 : COLORS_NONE;
    else if (is_given && strcmp(color, "256") == 0)
        t.colors = n_colors >= 256 ? COLORS_256 : t.colors;
    else if (no_color != NULL && no_color[0] != '\0')
        t.colors = COLORS_NONE;
    if (!is_utf8 || plain_glyphs) t.level = GLYPHS_ASCII;
    t.glyphs = t.level == GLYPHS_ASCII ? &ASCII_GLYPHS : &BLOCK_GLYPHS;
    return t;
}

theme_look theme_role(const theme *t, canvas_role role) {
    const look_row *row = &LOOKS[role < N_ROLES ? role : ROLE_TEXT];
    theme_look look = {row->flags, -1};
    if (t->colors == COLORS_256) look.color = row->color256;
    if (t->colors == COLORS_8) look.color = row->color8;
    /* With 256 colours the grey says "dim" already; the attribute on top is unreadable on some. */
    if (t->colors == COLORS_256 && look.color >= 0) look.flags &= ~STYLE_DIM;
    return look;
}
