/* What the command files share: the entry points named by the table, errors and exit codes, the
 * interrupt pipe, the engine. Main thread only; these files may print and decide exit codes. */
#ifndef TUI_CMD_INTERNAL_H
#define TUI_CMD_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "tui/client.h"
#include "tui/cmd_table.h"
#include "tui/launch.h"

int cmd_screen(const cmd_args *a);
int cmd_ask(const cmd_args *a);
int cmd_chat(const cmd_args *a);
int cmd_setup(const cmd_args *a);
int cmd_undo_list(const cmd_args *a);
int cmd_undo_apply(const cmd_args *a);
int cmd_status(const cmd_args *a);
int cmd_start(const cmd_args *a);
int cmd_stop(const cmd_args *a);
int cmd_restart(const cmd_args *a);
int cmd_serve(const cmd_args *a);
int cmd_api_key(const cmd_args *a);
int cmd_api_requests(const cmd_args *a);
int cmd_api_on(const cmd_args *a);
int cmd_api_off(const cmd_args *a);
int cmd_cache_list(const cmd_args *a);
int cmd_cache_rm(const cmd_args *a);
int cmd_cache_wipe(const cmd_args *a);
int cmd_model_list(const cmd_args *a);
int cmd_model_show(const cmd_args *a);
int cmd_model_quantize(const cmd_args *a);
int cmd_model_engram(const cmd_args *a);
int cmd_model_lock(const cmd_args *a);
int cmd_download(const cmd_args *a);
int cmd_copy(const cmd_args *a);
int cmd_prepare(const cmd_args *a);
int cmd_sessions_list(const cmd_args *a);
int cmd_sessions_show(const cmd_args *a);
int cmd_sessions_export(const cmd_args *a);
int cmd_sessions_import(const cmd_args *a);
int cmd_sessions_fork(const cmd_args *a);
int cmd_sessions_rename(const cmd_args *a);
int cmd_sessions_delete(const cmd_args *a);
int cmd_config_list(const cmd_args *a);
int cmd_config_get(const cmd_args *a);
int cmd_config_set(const cmd_args *a);
int cmd_config_unset(const cmd_args *a);
int cmd_config_sample(const cmd_args *a);
int cmd_config_path(const cmd_args *a);
int cmd_config_import(const cmd_args *a);
int cmd_check(const cmd_args *a);
int cmd_link_show(const cmd_args *a);
int cmd_link_plan(const cmd_args *a);
int cmd_link_apply(const cmd_args *a);
int cmd_link_prove(const cmd_args *a);
int cmd_node_list(const cmd_args *a);
int cmd_node_exec(const cmd_args *a);
int cmd_node_logs(const cmd_args *a);
int cmd_node_trust(const cmd_args *a);
int cmd_logs(const cmd_args *a);
int cmd_bench(const cmd_args *a);
int cmd_verify(const cmd_args *a);
int cmd_watch(const cmd_args *a);
int cmd_doctor(const cmd_args *a);
int cmd_service_install(const cmd_args *a);
int cmd_service_remove(const cmd_args *a);
int cmd_service_show(const cmd_args *a);
int cmd_support(const cmd_args *a);
int cmd_keys(const cmd_args *a);
int cmd_help_run(const cmd_args *a);
int cmd_completion(const cmd_args *a);
int cmd_version(const cmd_args *a);

/* Prints "tandem: SENTENCE" to standard error and gives the exit code of the error. */
int cmd_fail(const err *e);
/* The same for errors about the engine: not there, not ready, gone. */
int cmd_fail_engine(const err *e);
/* The same for a wrong command line: EXIT_USAGE. */
int cmd_fail_usage(const err *e);
/* A line for people on standard error. */
void cmd_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Writes to standard output; a failure (a full disk, a closed pipe) is remembered for cmd_finish. */
void cmd_put(const char *text, size_t len);
void cmd_puts(const char *text);
void cmd_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Sends what is buffered. */
void cmd_flush(void);
/* True once something could not be written. */
bool cmd_output_failed(void);
/* Flushes standard output; turns OK into an error code when something could not be written. */
int cmd_finish(int exit_code);
/* Ends the object, prints it and its line break, and frees nothing. */
void cmd_put_json(json_w *w);
/* An object of the engine, printed as one of ours. */
void cmd_put_json_of(const json *v);
/* Starts an object with "v": 1. */
void cmd_begin_json(json_w *w, buf *out);

/* Text as it may be shown on a terminal: what could act on the terminal is escaped. Unchanged when
 * standard output is no terminal and is_shown is false. */
void cmd_put_text(const char *text, size_t len);

/* SIGINT and SIGTERM make this descriptor readable; a second SIGINT ends the process. */
int cmd_stop_fd(void);
/* Takes one signal out of the pipe, so that the next one counts again. */
void cmd_stop_taken(void);

/* True from the first signal on; for work that looks at a flag. */
const atomic_bool *cmd_stop_flag(void);

/* The socket of the engine: --socket, else the usual place. */
int cmd_socket(const cmd_args *a, buf *out, err *e);
/* The file of API keys: --keys, else the usual place. */
int cmd_key_file(const cmd_args *a, buf *out, err *e);
/* An address that other machines reach needs a key and the owner's word: as the option --confirm-remote,
 * typed again on the terminal, or given before (confirmed). Loopback needs neither. */
typedef struct confirm_wish {
    const char *address;
    bool has_keys;
    const char *confirmed; /* API_CONFIRMED */
} confirm_wish;
int cmd_confirm_remote(const cmd_args *a, const confirm_wish *w, err *e);
/* Finds the engine, starts it when may_start, and connects. ERR_NOT_FOUND when there is none. */
/* Says when the engine that runs has another model than was asked for; true then. */
bool cmd_note_other_model(const launch_report *r);
int cmd_engine(const cmd_args *a, bool may_start, client **out, err *e);
/* GET of a path, parsed. */
int cmd_get_json(client *c, const char *path, json **out, err *e);

/* The whole number of an option in [min, max]; fallback when it is not given. */
typedef struct cmd_range {
    int64_t min, max, fallback;
} cmd_range;
int cmd_int_option(const cmd_args *a, const char *name, cmd_range range, int64_t *out, err *e);

/* Numbers for people: 14200 -> "14.2k"; seconds -> "3 h 12 m"; bytes -> "9.2 GiB". */
const char *cmd_count_text(int64_t n, char out[32]);
const char *cmd_time_text(double seconds, char out[32]);
const char *cmd_bytes_text(double bytes, char out[32]);
/* Local date and time of a wall clock value, "2026-11-30 14:02". */
const char *cmd_date_text(int64_t wall_ms, char out[32]);

#endif
