/* Sets of code points and the parts of a regular expression that name them: escapes and character
 * classes. One thread at a time. */
#ifndef TANDEM_RUN_GRAMMAR_REGEX_CLASS_H
#define TANDEM_RUN_GRAMMAR_REGEX_CLASS_H

#include <stddef.h>
#include <stdint.h>

/* A list of ranges, first and last included. {0} is empty; cp_set_release. */
typedef struct cp_set {
    uint32_t (*ranges)[2];
    size_t len, cap;
} cp_set;
void cp_set_add(cp_set *s, uint32_t first, uint32_t last);
/* Sorts, joins, and turns the set into its complement. */
void cp_set_invert(cp_set *s);
/* Everything except line ends. */
void cp_set_dot(cp_set *s);
void cp_set_release(cp_set *s);

/* *p stands at '[' or at a backslash; moves it behind what was read. OK, ERR_FORMAT or
 * ERR_UNSUPPORTED with *what naming the fault. */
int regex_class(const char **p, const char *end, cp_set *set, const char **what);
int regex_escape(const char **p, const char *end, cp_set *set, const char **what);

#endif
