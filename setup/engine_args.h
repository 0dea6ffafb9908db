/* From the owner's settings to the options of tandemd on this machine: one place, for every way in
 * which an engine is started here. */
#ifndef TANDEM_SETUP_ENGINE_ARGS_H
#define TANDEM_SETUP_ENGINE_ARGS_H

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/settings.h"

/* The key file of the endpoint: the owner's, else api-keys beside the settings file, which may not be
 * there. */
int engine_args_key_file(const settings *s, buf *out, err *e);

/* Takes one option; value NULL: it has none. Both are borrowed for the call. */
typedef struct engine_args_sink {
    void (*add)(void *ctx, const char *option, const char *value);
    void *ctx;
} engine_args_sink;

/* Settings the owner made; for the others the daemon's own defaults hold, which know the model.
 * Without the model and without the endpoint. */
void engine_args_put(const settings *s, const engine_args_sink *out);
/* The model of the settings or model_dir (NULL: not given) with its full path: the daemon may have
 * another folder. Nothing for the built-in model. */
void engine_args_put_model(const settings *s, const char *model_dir, const engine_args_sink *out);
/* The endpoint where the settings switch it on, with the address the owner confirmed, if any; the
 * engine refuses another one that is not loopback (endpoint_check_settings says so before). */
void engine_args_put_endpoint(const settings *s, const engine_args_sink *out);

#endif
