/* Reads optional fields of a request body with type and range checks that name the field (api.md
 * 2). A missing field and a null leave the value as it is. A number may come as a numeric string; a
 * boolean is never a number. On failure e holds a 400 with the field as its parameter and ERR_ARG
 * is returned. Pure functions; any thread. */
#ifndef TANDEM_API_FIELDS_H
#define TANDEM_API_FIELDS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/api/api_error.h"
#include "engine/base/json.h"

/* The member unless it is missing or null. */
const json *field_get(const json *object, const char *key);

/* *out is NULL when there is none. */
int field_object(const json *object, const char *key, const json **out, api_error *e);
int field_bool(const json *object, const char *key, bool *out, api_error *e);
/* The same for a member of an object that is itself a field: the error names PLACE.KEY. */
int field_bool_in(const json *object, const char *place, const char *key, bool *out, api_error *e);
typedef struct int_range {
    int64_t min, max;
} int_range;
int field_int(const json *object, const char *key, int_range range, int64_t *out, api_error *e);
/* Any signed or unsigned 64-bit integer, as its bits. *is_given tells if there was one. */
int field_seed(const json *object, const char *key, uint64_t *out, bool *is_given, api_error *e);
typedef struct double_range {
    double min, max;
    bool excludes_min;
} double_range;
int field_double(const json *object, const char *key, double_range range, float *out, api_error *e);
/* The number that v is, or that its text is; ERR_FORMAT or ERR_LIMIT otherwise, without a message. */
int field_whole(const json *v, int64_t *out);
int field_number(const json *v, double *out);
/* Borrowed from the tree. */
int field_str(const json *object, const char *key, const char **out, api_error *e);

#endif
