/* Numbers. Without limits they follow JSON's own syntax with bounded digits. With limits they are
 * written without exponent, and every digit is checked against what can still follow: the digits so
 * far stand for intervals, and some interval must hold an allowed value. */
#include "engine/run/grammar_internal.h"

#define DIGITS_MAX 24
#define EXPONENT_DIGITS_MAX 3
#define POWER_MAX 308  /* values stay below 10^308, so that every reader's double holds them */
#define TRIES_MAX 2048 /* values looked at in one interval; more are left out only in theory */

enum { MINUS, ZERO, WHOLE, POINT, FRACTION, EXP, EXP_SIGN, EXP_DIGITS };

static const wide powers[NUMBER_SCALE + 1] = {1LL, 10LL, 100LL, 1000LL, 10000LL, 100000LL,
    1000000LL, 10000000LL, 100000000LL, 1000000000LL, 10000000000LL, 100000000000LL,
    1000000000000LL, 10000000000000LL, 100000000000000LL, 1000000000000000LL, 10000000000000000LL,
    100000000000000000LL, 1000000000000000000LL};

static wide get_digits(const frame *f) {
    return (wide)((unsigned __int128)f->u.number.digits_high << 64 | f->u.number.digits_low);
}

static void set_digits(frame *f, wide v) {
    f->u.number.digits_low = (uint64_t)v;
    f->u.number.digits_high = (uint64_t)((unsigned __int128)v >> 64);
}

static uint64_t hash_parts(uint64_t digits, int64_t exponent, bool is_negative, bool is_zero) {
    if (is_zero) return HASH_NUMBER;
    return hash_mix(hash_mix(HASH_NUMBER, digits), (uint64_t)(exponent * 2 + is_negative));
}

uint64_t number_hash(const frame *f) {
    int64_t exponent = f->u.number.exponent;
    if (f->u.number.is_exponent_negative) exponent = -exponent;
    return hash_parts(
        f->hash, exponent + f->u.number.point, f->u.number.is_negative, !f->u.number.has_digit);
}

static int get_decimals(uint64_t v, int n_least, uint8_t *digits) {
    int n = 0;
    for (; v > 0 || n < n_least; v /= 10)
        digits[n++] = (uint8_t)(v % 10);
    return n;
}

/* The same hash for a value in units of 10^-18. */
static uint64_t hash_of_value(wide v) {
    uint8_t digits[40] = {0};
    bool is_negative = v < 0;
    uint64_t h = HASH_START;
    if (v == 0) return hash_parts(0, 0, false, true);
    if (is_negative) v = -v;
    uint64_t whole = (uint64_t)(v / NUMBER_UNIT), part = (uint64_t)(v % NUMBER_UNIT);
    /* Long division is slow, so it is done once; limits keep whole below 10^18. */
    int n = get_decimals(part, whole > 0 ? NUMBER_SCALE : 0, digits);
    n += get_decimals(whole, 0, digits + n);
    int exponent = n - NUMBER_SCALE, last = 0;
    while (digits[last] == 0)
        last++;
    for (int i = n - 1; i >= last; i--)
        h = hash_byte(h, digits[i]);
    return hash_parts(h, exponent, is_negative, false);
}

static void hash_digit(frame *f, uint8_t d, bool is_fraction) {
    if (!f->u.number.has_digit) {
        if (d == 0) {
            f->u.number.point = (int16_t)(f->u.number.point - is_fraction);
            return;
        }
        f->u.number.has_digit = 1;
        f->u.number.point = (int16_t)(f->u.number.point + !is_fraction);
        f->hash = hash_byte(f->hash, d);
        return;
    }
    f->u.number.point = (int16_t)(f->u.number.point + !is_fraction);
    if (d == 0) {
        f->u.number.zeros++;
        return;
    }
    for (; f->u.number.zeros > 0; f->u.number.zeros--)
        f->hash = hash_byte(f->hash, 0);
    f->hash = hash_byte(f->hash, d);
}

static bool is_left_out(const number_node *n, wide v) {
    for (uint32_t i = 0; i < n->n_not_in; i++) {
        if (n->not_in[i] == v) return true;
    }
    for (uint32_t i = 0; i < n->n_not_steps; i++) {
        if (v % n->not_steps[i] == 0) return true;
    }
    return false;
}

bool number_holds(const number_node *n, wide v) {
    if (v < n->lo || v > n->hi || v % n->step != 0 || is_left_out(n, v)) return false;
    if (n->set == NULL) return true;
    for (uint32_t i = 0; i < n->n_set; i++) {
        if (n->set[i] == v) return true;
    }
    return false;
}

/* What is asked of an interval: the rules, and the hashes that are taken (state NULL: none). */
typedef struct question {
    const grammar_state *s;
    const number_node *n;
    uint32_t records;
} question;

static bool is_free_value(const question *q, wide v) {
    return q->s == NULL || q->records == 0 || !records_have(q->s, q->records, hash_of_value(v));
}

/* Counts allowed values in [a, b], up to limit. */
static uint32_t count_values(const question *q, wide a, wide b, uint32_t limit) {
    const number_node *n = q->n;
    uint32_t found = 0;
    if (a < n->lo) a = n->lo;
    if (b > n->hi) b = n->hi;
    if (n->set != NULL) {
        for (uint32_t i = 0; i < n->n_set && found < limit; i++) {
            wide v = n->set[i];
            if (v < a || v > b || v % n->step != 0 || is_left_out(n, v)) continue;
            found += is_free_value(q, v);
        }
        return found;
    }
    wide r = a % n->step;
    wide v = r == 0 ? a : r > 0 ? a + (n->step - r) : a - r;
    for (int tries = 0; v <= b && found < limit && tries < TRIES_MAX; tries++) {
        found += !is_left_out(n, v) && is_free_value(q, v);
        v += n->step;
    }
    return found;
}

static bool has_value(const question *q, wide a, wide b, bool is_negative) {
    return is_negative ? count_values(q, -b, -a, 1) > 0 : count_values(q, a, b, 1) > 0;
}

bool number_has_value(const number_node *n) {
    question q = {.n = n};
    return n->is_free || count_values(&q, n->lo, n->hi, 1) > 0;
}

uint32_t number_count(const number_node *n, uint32_t limit) {
    question q = {.n = n};
    return n->is_free ? limit : count_values(&q, n->lo, n->hi, limit);
}

bool number_has_fresh(const grammar_state *s, const number_node *n, uint32_t records) {
    question q = {.s = s, .n = n, .records = records};
    return n->is_free || count_values(&q, n->lo, n->hi, 1) > 0;
}

/* Nothing but an interval of whole numbers. */
static bool is_plain_range(const number_node *n) {
    return n->step == NUMBER_UNIT && n->set == NULL && n->n_not_in == 0 && n->n_not_steps == 0;
}

/* The digits so far are an allowed value: the usual case, without a division. */
static bool is_allowed_whole(const question *q, const frame *f) {
    wide v = get_digits(f) * NUMBER_UNIT;
    if (f->u.number.is_negative) v = -v;
    return is_plain_range(q->n) && v >= q->n->lo && v <= q->n->hi && is_free_value(q, v);
}

bool number_takes_digits(const grammar_state *s, const frame *f, uint32_t n) {
    const number_node *node = &s->g->numbers[f->node];
    uint32_t most = node->is_free ? DIGITS_MAX : NUMBER_SCALE;
    if (f->phase == WHOLE ? f->u.number.n_int + n > most
                          : f->phase != FRACTION || f->u.number.n_frac + n > most) {
        return false;
    }
    const frame *array = unique_parent(s, f);
    if (node->is_free) {
        uint32_t have = f->phase == WHOLE ? f->u.number.n_int : f->u.number.n_frac;
        return array == NULL || have + n < most; /* the last place is looked at by itself */
    }
    if (f->phase != WHOLE || !is_plain_range(node)) return false;
    wide from = get_digits(f), to = (from + 1) * powers[n] - 1;
    if (array != NULL) {
        /* A value that was written goes on with one more digit; of ten values one is new. */
        if (array->u.array.n_records >= 10 || f->u.number.n_int + n + 1 > most) return false;
        to = to * 10 + 9;
    }
    if (f->u.number.is_negative) {
        return -to * NUMBER_UNIT >= node->lo && -from * NUMBER_UNIT <= node->hi;
    }
    return from * NUMBER_UNIT >= node->lo && to * NUMBER_UNIT <= node->hi;
}

/* The digits so far can be continued to an allowed value. */
static bool is_possible(const question *q, const frame *f) {
    wide digits = get_digits(f);
    bool is_negative = f->u.number.is_negative;
    switch (f->phase) {
    case MINUS:
        return has_value(q, 0, NUMBER_LIMIT - 1, true);
    case ZERO:
        return has_value(q, 0, NUMBER_UNIT - 1, is_negative);
    case WHOLE:
        if (is_allowed_whole(q, f)) return true;
        for (int more = 0; more + f->u.number.n_int <= NUMBER_SCALE; more++) {
            wide a = digits * powers[more] * NUMBER_UNIT;
            if (has_value(q, a, a + powers[more] * NUMBER_UNIT - 1, is_negative)) return true;
        }
        return false;
    default: {
        wide unit = powers[NUMBER_SCALE - f->u.number.n_frac];
        return has_value(q, digits * unit, digits * unit + unit - 1, is_negative);
    }
    }
}

static question question_of(const grammar_state *s, const frame *f) {
    question q = {.n = &s->g->numbers[f->node]};
    const frame *array = unique_parent(s, f);
    if (array != NULL) {
        q.s = s;
        q.records = array->u.array.records;
    }
    return q;
}

bool number_can_end(const grammar_state *s, const frame *f) {
    const number_node *n = &s->g->numbers[f->node];
    if (f->phase == MINUS || f->phase == POINT || f->phase == EXP || f->phase == EXP_SIGN) {
        return false;
    }
    if (n->is_free) return true;
    wide v = get_digits(f) * powers[NUMBER_SCALE - f->u.number.n_frac];
    return number_holds(n, f->u.number.is_negative ? -v : v);
}

static bool whole_digit(frame *f, uint8_t d, bool is_free) {
    int most = is_free ? DIGITS_MAX : NUMBER_SCALE;
    if (f->phase == ZERO || f->u.number.n_int >= most) return false;
    f->phase = f->phase == MINUS && d == 0 ? ZERO : WHOLE;
    f->u.number.n_int++;
    hash_digit(f, d, false);
    if (!is_free) set_digits(f, get_digits(f) * 10 + d);
    return true;
}

static bool fraction_digit(frame *f, uint8_t d, bool is_free) {
    int most = is_free ? DIGITS_MAX : NUMBER_SCALE;
    if (f->u.number.n_frac >= most) return false;
    f->phase = FRACTION;
    f->u.number.n_frac++;
    hash_digit(f, d, true);
    if (!is_free) set_digits(f, get_digits(f) * 10 + d);
    return true;
}

static bool take_digit(frame *f, uint8_t d, bool is_free) {
    if (f->phase <= WHOLE) return whole_digit(f, d, is_free);
    if (f->phase <= FRACTION) return fraction_digit(f, d, is_free);
    int exponent = f->u.number.exponent * 10 + d;
    if (f->u.number.n_exp >= EXPONENT_DIGITS_MAX) return false;
    if (!f->u.number.is_exponent_negative && f->u.number.has_digit &&
        f->u.number.point + exponent > POWER_MAX) {
        return false;
    }
    f->phase = EXP_DIGITS;
    f->u.number.n_exp++;
    f->u.number.exponent = (int16_t)exponent;
    return true;
}

/* Without limits, as an element of an array whose elements differ: it is written in full and equals
 * an earlier one, so it can neither end nor go on. */
static bool is_stuck(const grammar_state *s, const number_node *n, const frame *f) {
    const frame *array = unique_parent(s, f);
    if (array == NULL || array->u.array.records == 0) return false;
    bool is_full = n->is_integer ? f->phase == ZERO || f->u.number.n_int >= DIGITS_MAX
                                 : f->phase == FRACTION && f->u.number.n_frac >= DIGITS_MAX;
    return is_full && records_have(s, array->u.array.records, number_hash(f));
}

static bool can_follow(const grammar_state *s, const number_node *n, const frame *f) {
    if (n->is_free) return !is_stuck(s, n, f);
    question q = question_of(s, f);
    return is_possible(&q, f);
}

/* An element that must differ from others has no exponent: a fraction can always be made longer. */
static bool take_mark(frame *f, uint8_t byte, const number_node *n, bool is_unique) {
    bool has_exponent = n->is_free && !n->is_integer && !is_unique;
    bool has_fraction = n->is_free ? !n->is_integer : n->step % NUMBER_UNIT != 0;
    switch (byte) {
    case '.':
        if (!has_fraction || (f->phase != ZERO && f->phase != WHOLE)) return false;
        f->phase = POINT;
        return true;
    case 'e':
    case 'E':
        if (!has_exponent || f->phase == MINUS || f->phase == POINT || f->phase > FRACTION) {
            return false;
        }
        f->phase = EXP;
        return true;
    case '+':
    case '-':
        if (f->phase != EXP) return false;
        f->phase = EXP_SIGN;
        f->u.number.is_exponent_negative = byte == '-';
        return true;
    default:
        return false;
    }
}

void number_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t byte) {
    const number_node *n = &s->g->numbers[node];
    frame f = {.kind = FRAME_NUMBER, .node = node, .parent = parent, .phase = MINUS};
    f.hash = HASH_START;
    if (byte == '-') {
        f.u.number.is_negative = 1;
    } else {
        whole_digit(&f, (uint8_t)(byte - '0'), n->is_free);
    }
    if (can_follow(s, n, &f)) list_push(s, &s->out, &f);
}

void number_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const number_node *n = &s->g->numbers[f.node];
    bool is_digit = byte >= '0' && byte <= '9';
    bool is_taken = is_digit ? take_digit(&f, (uint8_t)(byte - '0'), n->is_free)
                             : take_mark(&f, byte, n, unique_parent(s, &f) != NULL);
    if (is_taken) {
        if (can_follow(s, n, &f)) list_push(s, &s->out, &f);
    } else if (!is_digit && number_can_end(s, &f)) {
        frame_done(s, index, &s->pending);
    }
}
