/* Shared inside the grammar code: the compiled form and the machine that runs it.
 *
 * A compiled grammar is a table of nodes, read-only once built. A state of the machine is a set of
 * threads; a thread is the top of a stack of frames. Frames are 64-byte cells in the state's pool;
 * they never change once made and refer only to cells before them, so stacks share their lower
 * parts, a step only appends, and taking a step back is setting the pool's length back. Cell 0 is
 * the end: a thread that stands there has read a whole sentence. */
#ifndef TANDEM_RUN_GRAMMAR_INTERNAL_H
#define TANDEM_RUN_GRAMMAR_INTERNAL_H

#include <stdatomic.h>

#include "engine/base/arena.h"
#include "engine/run/grammar.h"
#include "engine/run/grammar_dfa.h"

__extension__ typedef __int128 wide;

#define GRAMMAR_NO_LIMIT 0xFFFFFFFFu
#define GRAMMAR_NEST_MAX 128    /* arrays and objects inside each other */
#define GRAMMAR_THREADS 512     /* alternatives alive at once */
#define GRAMMAR_CELLS 16384     /* cells of one state, walking included */
#define GRAMMAR_RECORDS_MAX 512 /* remembered elements or undeclared keys of one container */
#define GRAMMAR_SPACES_MAX 64
#define GRAMMAR_LEVELS 16384    /* threads of all depths of one walk */
#define GRAMMAR_MASK_WORDS 2048 /* vocabularies up to 131,072 tokens have the quick ways */
#define NUMBER_SCALE 18         /* bounded numbers are counted in units of 10^-18 */
#define NUMBER_UNIT ((wide)1000000000000000000LL)
#define NUMBER_LIMIT (NUMBER_UNIT * NUMBER_UNIT) /* 10^18 */

typedef struct string_node {
    const dfa *content; /* of the decoded text; NULL: any */
    uint32_t min, max;  /* code points */
    /* With content and both limits: bit L of row q = acceptance in exactly L characters. */
    const uint64_t *lengths;
    uint32_t lengths_words; /* per row */
} string_node;

typedef struct number_node {
    bool is_free;    /* no limits: exponents allowed */
    bool is_integer; /* only with is_free; else step says it */
    wide lo, hi;     /* included */
    wide step;       /* the value is a multiple of it */
    const wide *set; /* sorted; NULL: no such limit */
    uint32_t n_set;
    const wide *not_in; /* values left out */
    uint32_t n_not_in;
    wide not_steps[4]; /* the value is no multiple of these */
    uint32_t n_not_steps;
} number_node;

#define ARRAY_CONTAINS_MAX 3
typedef struct array_node {
    uint32_t n_prefix;
    /* [n_prefix + 1][1 << n_contains] value of an element that fulfils this set of contains; 0:
     * none. The last row is for all further elements. */
    uint32_t *items;
    uint32_t min, max;
    uint32_t n_contains;
    uint32_t contains_min[ARRAY_CONTAINS_MAX], contains_max[ARRAY_CONTAINS_MAX];
    bool is_unique;
    uint32_t height; /* fewest levels of nesting of a value; GRAMMAR_NO_LIMIT: there is none */
} array_node;

typedef struct key_name {
    const char *text; /* UTF-8, may hold a NUL */
    uint32_t len;
    uint32_t value; /* 0: may not be written */
    uint32_t order; /* place in the schema */
    bool is_required;
    const uint64_t *brings; /* bitset of names that must stand beside it; NULL: none */
} key_name;

typedef struct key_class {
    const dfa *text; /* keys of this class; NULL: all. Declared names are never meant. */
    uint32_t value;
    uint32_t owed_value; /* value that fulfils the object's debt; 0: none */
} key_class;

typedef struct object_node {
    key_name *names;           /* sorted by bytes */
    uint32_t n_names, n_words; /* words of a bitset over names */
    uint32_t *by_order;        /* [n_names] */
    uint32_t *next_required;   /* [n_names + 1] first required place at or after one */
    uint32_t *n_open_from;     /* [n_names + 1] names that may be written at or after a place */
    key_class *classes;
    uint32_t n_classes;
    uint32_t min, max;
    bool is_ordered;
    bool has_brings;
    bool has_debt;  /* at least one undeclared key with its owed_value must be written */
    bool is_tagged; /* parameters of a call instead of JSON */
    uint32_t height;
} object_node;

enum { VALUE_NULL, VALUE_TRUE, VALUE_FALSE, VALUE_NUMBER, VALUE_STRING, VALUE_ARRAY, VALUE_OBJECT };
typedef struct value_choice {
    uint32_t kind, index;
} value_choice;
typedef struct value_node {
    value_choice *choices;
    uint32_t n_choices;
    uint32_t height;
} value_node;

enum { ITEM_TERM, ITEM_RULE, ITEM_VALUE, ITEM_TOKEN, ITEM_TEXT, ITEM_PARAMETERS, ITEM_END };
typedef struct rule_item {
    uint32_t kind, index;
} rule_item;
typedef struct rule {
    uint32_t first, n; /* alternatives: indices into grammar.alternatives */
} rule;

/* What a text may go on with from one state of its automaton, when no limit of length is near. */
typedef struct text_mask {
    const dfa *d;
    uint32_t q;
    uint32_t most_min; /* most characters that any state of d needs to an end */
    bool pads;         /* a text can always be made longer before it ends */
    bool is_json;
    uint64_t *inside; /* owned: tokens that stay inside */
    uint64_t *leave;  /* owned; JSON: tokens that may close the string */
} text_mask;

struct grammar {
    _Atomic int n_holders;
    arena memory;
    const token_trie *trie; /* borrowed */
    value_node *values;     /* index 0 unused */
    string_node *strings;
    number_node *numbers;
    array_node *arrays;
    object_node *objects;
    dfa **dfas; /* owned */
    uint32_t n_values, n_strings, n_numbers, n_arrays, n_objects, n_dfas;
    uint32_t cap_values, cap_strings, cap_numbers, cap_arrays, cap_objects, cap_dfas;
    rule *rules;
    rule_item *items;       /* runs that end with ITEM_END */
    uint32_t *alternatives; /* first item of each */
    uint32_t n_rules, n_items, n_alternatives;
    uint32_t cap_rules, cap_items, cap_alternatives;
    rule_item root;
    text_mask *text_masks; /* made by grammar_prepare_masks */
    uint32_t n_text_masks;
    int32_t *opening; /* tokens every sentence begins with, canonical; may be empty */
    uint32_t n_opening;
};

/* Growing the tables while compiling: the index of a new zeroed entry. */
uint32_t grammar_add_value(grammar *g);
uint32_t grammar_add_string(grammar *g);
uint32_t grammar_add_number(grammar *g);
uint32_t grammar_add_array(grammar *g);
uint32_t grammar_add_object(grammar *g);
/* Takes d. */
uint32_t grammar_add_dfa(grammar *g, dfa *d);
uint32_t grammar_add_rule(grammar *g);
uint32_t grammar_add_alternative(grammar *g, const rule_item *items, uint32_t n);
/* When all tables are complete: makes the masks that are costly. */
void grammar_prepare_masks(grammar *g);
void grammar_release_masks(grammar *g);
/* Empty, one holder, memory limit set. */
grammar *grammar_begin(const token_trie *t);

enum {
    FRAME_END,
    FRAME_VALUE, /* waits for the first byte of values[node] */
    FRAME_LITERAL,
    FRAME_STRING,
    FRAME_NUMBER,
    FRAME_ARRAY,
    FRAME_OBJECT,
    FRAME_KEY_NAME,
    FRAME_KEY_CLASS,
    FRAME_TERM, /* dfas[node] */
    FRAME_TEXT, /* strings[node], raw */
    FRAME_RULE, /* its item runs above it */
    FRAME_TOKEN,
    FRAME_TAGS, /* objects[node] as parameters of a call */
};

enum {
    FLAG_TRACK = 1,      /* a container above needs the hash of this value */
    FLAG_NO_STRINGS = 2, /* FRAME_VALUE: strings are written another way */
    FLAG_PAID = 4,       /* FRAME_OBJECT: the debt is paid */
    FLAG_OWED = 8,       /* FRAME_OBJECT: the key being written pays the debt */
};

typedef struct frame {
    uint32_t parent, node;
    uint8_t kind, phase, space, flags;
    uint16_t nest, unused;
    uint64_t hash; /* of the value so far; keys: of the key */
    union {
        struct {
            uint32_t q, count; /* state of the content automaton, characters begun */
            uint16_t unit;     /* hex digits of an escape so far */
            uint16_t high;     /* first half of a pair */
            uint8_t lex;
            uint16_t lo, hi, depth; /* keys: names that begin with the key so far */
        } text;
        struct {
            uint64_t digits_low, digits_high; /* bounded: all digits as one integer */
            uint8_t n_int, n_frac, n_exp, is_negative;
            int16_t point; /* places of the point behind the first digit that counts */
            int16_t exponent;
            uint16_t zeros; /* zeros not yet in the hash */
            uint8_t is_exponent_negative, has_digit;
        } number;
        struct {
            uint32_t records, n, n_records;
            uint16_t contains[ARRAY_CONTAINS_MAX], taken;
        } array;
        struct {
            uint64_t key_hash;
            uint32_t bits, records;
            uint32_t n, n_unknown;
            uint32_t last;  /* first place not yet passed, when ordered */
            uint32_t child; /* value of the key being written */
        } object;
        struct {
            uint32_t item;
        } rule;
        struct {
            uint64_t hash;
            uint32_t previous;
        } record;
        uint64_t words[5];
    } u;
} frame;

typedef union cell {
    frame f;
    uint64_t words[8]; /* bitsets of objects: written, then needed */
} cell;
_Static_assert(sizeof(frame) == 64, "a frame is one cell");

typedef struct thread_list {
    uint32_t *at;
    uint32_t len, cap;
} thread_list;

struct grammar_state {
    grammar *g;
    cell *cells; /* [GRAMMAR_CELLS] */
    uint32_t n_cells;
    bool is_done;    /* the end token was accepted */
    bool is_overrun; /* a limit was hit in the present step: some threads were given up */
    thread_list threads;
    thread_list out, pending; /* of a step */
    uint32_t *memory;         /* what the arrays here lie in */
    uint32_t *levels;         /* [GRAMMAR_LEVELS] walking: threads of each depth, in a row */
    uint32_t *level_first;    /* [TOKEN_MAX_BYTES + 2] */
    uint32_t *level_cells;    /* [TOKEN_MAX_BYTES + 2] */
    uint32_t *remap;          /* [GRAMMAR_CELLS] */
    uint64_t *scratch;        /* a mask while another is made */
};

/* Lexical states inside a JSON string; 1 to 7 are inside a character. */
enum {
    LEX_START = 0,
    LEX_TAIL1,
    LEX_TAIL2,
    LEX_TAIL3,
    LEX_E0,
    LEX_ED,
    LEX_F0,
    LEX_F4,
    LEX_ESCAPE,
    LEX_U1,
    LEX_U2,
    LEX_U3,
    LEX_U4,
    LEX_U2_D,
    LEX_HIGH3,
    LEX_HIGH4,
    LEX_PAIR_SLASH,
    LEX_PAIR_U,
    LEX_LOW1,
    LEX_LOW2,
    LEX_LOW3,
    LEX_LOW4,
    LEX_N_STATES,
    LEX_QUOTE, /* the string ended */
    LEX_DEAD,
};
/* The next lexical state of any JSON string; with is_raw of plain UTF-8 text (no escapes, no
 * quote). */
uint8_t lex_step(uint8_t lex, uint8_t byte, bool is_raw);

/* grammar_cells.c */
frame *state_frame(const grammar_state *s, uint32_t i);
/* A copy of from as a new cell; 0 when the pool is full. */
uint32_t state_push(grammar_state *s, const frame *from);
/* n words in cells of their own (8 to a cell); 0 when the pool is full. */
uint32_t state_push_words(grammar_state *s, const uint64_t *words, uint32_t n);
/* Adds the frame unless an equal one is there. Index 0 is the end. */
void list_add(grammar_state *s, thread_list *l, uint32_t index);
/* state_push and list_add. */
void list_push(grammar_state *s, thread_list *l, const frame *from);
/* Moves what the threads need to the front of the pool. */
void state_compact(grammar_state *s);
bool records_have(const grammar_state *s, uint32_t records, uint64_t hash);
uint32_t records_add(grammar_state *s, uint32_t records, uint64_t hash);
/* Whether d accepts, from q on, some word whose hash is not in records. The hash goes on from that
 * of the text so far; with is_value the records are hashes of values, else of keys. */
bool words_left(
    const grammar_state *s, const dfa *d, const frame *f, uint32_t records, bool is_value);

static inline uint64_t hash_byte(uint64_t h, uint8_t b) {
    return (h ^ b) * 1099511628211u;
}
static inline uint64_t hash_mix(uint64_t a, uint64_t b) {
    uint64_t h = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xBF58476D1CE4E5B9u;
    return h ^ h >> 31;
}
#define HASH_START 14695981039346656037u
#define HASH_LITERAL 0x1001u /* plus the kind of value */
#define HASH_STRING 0x1011u
#define HASH_NUMBER 0x1012u
#define HASH_ARRAY 0x1013u
#define HASH_OBJECT 0x1014u

/* grammar_machine.c: one byte or one control token for all threads; the results are in s->out. */
void machine_start(grammar_state *s);
void machine_byte(grammar_state *s, const uint32_t *threads, uint32_t n, uint8_t byte);
void machine_token(grammar_state *s, const uint32_t *threads, uint32_t n, int32_t token);
/* Everything that threads become by ending frames that may end here, themselves included, is in
 * s->pending. The caller puts n_cells back. */
void machine_settle(grammar_state *s, const uint32_t *threads, uint32_t n);
bool machine_is_final(grammar_state *s, const uint32_t *threads, uint32_t n);
/* The frame is complete: what its parent becomes goes to l. */
void frame_done(grammar_state *s, uint32_t index, thread_list *l);
/* Whether a frame that ends without a mark of its own (number, terminal, text) may end now. */
bool frame_can_end(const grammar_state *s, const frame *f);
/* Begins values[node] at its first byte above parent; results go to s->out. flags: FLAG_NO_STRINGS
 * or 0. */
void value_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t byte, uint8_t flags);
/* Some value of the node may not be in records. */
bool value_has_fresh(const grammar_state *s, uint32_t node, uint32_t records);
/* The array that must not hold the value of f twice, or NULL. */
const frame *unique_parent(const grammar_state *s, const frame *f);

/* One step of a frame of each kind; results go to s->out, frames to try again to s->pending. */
void string_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t flags);
void string_byte(grammar_state *s, uint32_t index, uint8_t byte);
bool string_may_end(const string_node *n, const frame *f);
/* Some text that an escape just begun can still write is possible. */
/* s: in an array of different elements some completion must be new as well; NULL: not asked. */
bool string_escape_is_open(const grammar_state *s, const string_node *n, const frame *f);
/* Whether a text that stands at state q with count characters can be completed. */
bool string_can_finish(const string_node *n, uint32_t q, uint32_t count);
void text_begin(grammar_state *s, uint32_t node, uint32_t parent, thread_list *l);
void text_byte(grammar_state *s, uint32_t index, uint8_t byte);
/* The lexical part of strings and keys that are limited by an automaton: takes a byte and gives
 * the byte of the decoded text, -1 for none yet, -2 for the closing quote, -3 when it is not
 * allowed. */
int escape_step(frame *f, uint8_t byte);
/* The same for any text; decoded bytes go into the hash and to out. Returns how many, -1 when the
 * byte is not allowed. f->u.text.lex tells the end. */
int any_text_step(frame *f, uint8_t byte, char out[4]);

void number_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t byte);
void number_byte(grammar_state *s, uint32_t index, uint8_t byte);
/* Whatever digits follow, at most n of them, the number stays possible. */
bool number_takes_digits(const grammar_state *s, const frame *f, uint32_t n);
bool number_can_end(const grammar_state *s, const frame *f);
uint64_t number_hash(const frame *f);
bool number_has_fresh(const grammar_state *s, const number_node *n, uint32_t records);
bool number_has_value(const number_node *n);
bool number_holds(const number_node *n, wide v);
/* How many values n has, at most limit. */
uint32_t number_count(const number_node *n, uint32_t limit);

void array_begin(grammar_state *s, uint32_t node, uint32_t parent);
void array_byte(grammar_state *s, uint32_t index, uint8_t byte);
void array_item_done(grammar_state *s, const frame *child, thread_list *l);

void object_begin(grammar_state *s, uint32_t node, uint32_t parent);
void object_byte(grammar_state *s, uint32_t index, uint8_t byte);
void object_value_done(grammar_state *s, const frame *child, thread_list *l);
void key_byte(grammar_state *s, uint32_t index, uint8_t byte);
/* Shared by JSON objects and calls. */
void object_init(grammar_state *s, frame *f);
bool object_may_add(grammar_state *s, uint32_t index);
bool object_may_close(const grammar_state *s, const frame *f);
void object_begin_keys(grammar_state *s, uint32_t index, thread_list *l);

void tags_begin(grammar_state *s, uint32_t node, uint32_t parent, thread_list *l);
void tags_byte(grammar_state *s, uint32_t index, uint8_t byte);
void tags_token(grammar_state *s, uint32_t index, int32_t token);
/* What a tags frame becomes once a key is written, once a value is. */
enum {
    TAGS_LINE,
    TAGS_LESS,
    TAGS_EMPTY,
    TAGS_EMPTY_LESS,
    TAGS_END_MARK,
    TAGS_END,
    TAGS_NAME,
    TAGS_ATTRIBUTE,
    TAGS_TRUE,
    TAGS_FALSE,
    TAGS_VALUE,
    TAGS_VALUE_LESS,
    TAGS_VALUE_MARK,
    TAGS_VALUE_END
};

/* Phases of JSON containers. */
enum { PHASE_FIRST, PHASE_NEXT, PHASE_COMMA, PHASE_COLON, PHASE_VALUE };
/* White space inside JSON at frame f: pushes the thread that has read it. True if byte is one. */
bool space_byte(grammar_state *s, const frame *f, uint8_t byte);
uint64_t value_hash(const frame *f);

#endif
