/* Reads the settings file of another recipe and says what it means here. Nothing is changed: the
 * caller shows the report and then sets what was understood. */
#ifndef SETUP_SETTINGS_IMPORT_H
#define SETUP_SETTINGS_IMPORT_H

#include <stddef.h>

#include "engine/base/err.h"

typedef enum import_state {
    IMPORT_UNDERSTOOD, /* key and value are ours */
    IMPORT_IGNORED,    /* known, and found by the program itself or of no use here */
    IMPORT_UNMAPPED    /* unknown, or its value is not taken */
} import_state;

typedef struct import_line {
    int line;
    import_state state;
    char name[80];
    const char *key; /* ours, of UNDERSTOOD; constant text */
    char value[600]; /* as it would be set; never the value of a secret */
    char note[300];  /* why, one sentence */
} import_line;

typedef struct import_report {
    size_t n;
    import_line *lines;
} import_report;

/* Takes KEY=VALUE lines with the shell's export and quotes, but runs nothing: values that a shell
 * would have to compute are not taken. path is used in messages. */
int settings_import(const char *text, size_t len, const char *path, import_report *out, err *e);
int settings_import_file(const char *path, import_report *out, err *e);
void import_report_release(import_report *r);

#endif
