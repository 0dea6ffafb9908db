/* What the log of this machine and the merged logs of the pair share. Main thread only. */
#ifndef TUI_CMD_LOGS_H
#define TUI_CMD_LOGS_H

#include <regex.h>

#include "engine/base/log.h"
#include "tui/cmd_internal.h"

typedef struct log_filter {
    const cmd_args *args;
    bool has_level, has_regex, is_json;
    log_level level;
    regex_t regex;
    char since[32]; /* lines before this time are left out; "" none */
} log_filter;

/* From --level, --grep, --since and --json. ERR_ARG says which is wrong. */
int log_filter_make(const cmd_args *a, log_filter *f, err *e);
void log_filter_release(log_filter *f);
bool log_filter_passes(const log_filter *f, const char *line);
/* Prints a line; node NULL: of this machine, else shown before it. */
void log_filter_put(const log_filter *f, const char *node, const char *line);

/* The logs of both ranks and keepers, merged by time. n_lines: the newest that pass. */
int cmd_logs_pair(const cmd_args *a, const log_filter *f, int64_t n_lines);

#endif
