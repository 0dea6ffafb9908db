/* An engine over the toy model with its prefix cache on disk, prompts for it with the replies that a
 * fresh engine gives, and looks at the files; for tests of the cache on disk. */
#ifndef TESTS_HARNESS_DISK_SIDE_H
#define TESTS_HARNESS_DISK_SIDE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/run/entries.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { PAGE = 16, CONTEXT = 1024, REPLY = 12, N_PROMPTS = 6, N_LIST = 256, WAIT_MS = 120000 };

typedef struct side {
    paged_toy *toy;
    run *run;
} side;

/* For cmocka: makes the replies, takes the folder of the test; removes it. */
int side_setup(void **state);
int side_teardown(void **state);
const char *side_folder(void);
/* Lines of the log since the side was opened; lines that tell of records that were not written. */
const char *side_log(void);
int side_n_not_written(void);

/* dir NULL: without a cache. */
void open_side(side *s, const char *dir, uint64_t budget, uint8_t identity);
void close_side(side *s);

typedef struct reply {
    int32_t tokens[REPLY];
    int n;
    int32_t n_cached, n_prompt;
} reply;
/* Prompt i: of a length of its own; every second one shares a beginning with the one before. */
int32_t make_prompt(int i, int32_t tokens[CONTEXT]);
reply ask(side *s, int i);
/* What a fresh engine replies. */
const reply *side_want(int i);
/* Asks all; every answer must be the fresh one. Returns how many came from the cache. */
int ask_all(side *s);

void remove_folder(void);
void write_once(void);
uint64_t records(const side *s);
/* Until so many are written; a thread that sleeps counts them when it is asked something. */
void await_records(const side *s, uint64_t n_records);

/* Saved states, when the last one of each stream is saved, which is behind its last token. */
int32_t list_all(side *s, run_entry list[N_LIST]);
/* Until all of them are on disk; how many there are. A side that closes gives the disk seconds only. */
int32_t await_stored(side *s, run_entry list[N_LIST]);
/* Forgets one; a disk that takes long is asked again. OK or ERR_NOT_FOUND. */
int drop(side *s, uint64_t id, bool *was_on_disk);
/* Forgets saved states of more than n_tokens; how many there were. */
int forget(side *s, int32_t n_tokens);

/* Calls fn for each file of the cache; the sum of what it returns. */
int each_file(int (*fn)(const char *path, void *ctx), void *ctx);
int count_file(const char *path, void *ctx);
/* ctx: uint64_t. */
int add_size(const char *path, void *ctx);
/* How often whole pages of prompt *ctx, an int, stand in a file. */
int count_pages(const char *path, void *ctx);

#endif
