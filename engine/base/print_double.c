
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

/* Decimal digits without point and the decimal exponent of the first one. */
typedef struct digits {
    char text[24];
    size_t n;
    int exponent;
    bool is_negative;
} digits;

/* Reads "d<point>ddde[sign]dd" whatever the locale's point is. */
static digits digits_scan(const char *s) {
    digits d = {.is_negative = *s == '-'};
    const char *e = strrchr(s, 'e');
    CHECK(e != NULL);
    for (; s < e; s++) {
        if (*s >= '0' && *s <= '9' && d.n + 1 < sizeof d.text) d.text[d.n++] = *s;
    }
    d.exponent = (int)strtol(e + 1, NULL, 10);
    while (d.n > 1 && d.text[d.n - 1] == '0')
        d.n--;
    d.text[d.n] = '\0';
    return d;
}

static size_t digits_fixed(const digits *d, char out[40]) {
    size_t n = 0;
    int n_int = d->exponent + 1; /* digits before the point */
    if (d->is_negative) out[n++] = '-';
    if (n_int <= 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (int i = n_int; i < 0; i++)
            out[n++] = '0';
        memcpy(out + n, d->text, d->n);
        return n + d->n;
    }
    for (int i = 0; i < n_int; i++)
        out[n++] = (size_t)i < d->n ? d->text[i] : '0';
    out[n++] = '.';
    if (d->n <= (size_t)n_int) {
        out[n++] = '0';
        return n;
    }
    memcpy(out + n, d->text + n_int, d->n - (size_t)n_int);
    return n + d->n - (size_t)n_int;
}

size_t print_double(double v, char out[40]) {
    CHECK(__builtin_isfinite(v));
    char text[64];
    /* The fewest digits that read back to the same value; 17 always do. */
    for (int precision = 0; precision <= 16; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision, v);
        if (strtod(text, NULL) == v) break;
    }
    digits d = digits_scan(text);
    size_t n;
    if (v == 0 || (d.exponent >= -4 && d.exponent < 16)) {
        n = digits_fixed(&d, out);
    } else {
        int used = snprintf(out, 40, "%s%c%s%se%c%02d", d.is_negative ? "-" : "", d.text[0],
            d.n > 1 ? "." : "", d.text + 1, d.exponent < 0 ? '-' : '+', abs(d.exponent));
        n = used < 0 ? 0 : (size_t)used;
    }
    out[n] = '\0';
    return n;
}
