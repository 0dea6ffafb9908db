/* A chat body of any JSON as the chat route reads it: taken, or refused as a 400 with a sentence.
 * What is taken lies within the limits that the scheduler relies on. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/params.h"
#include "engine/base/mem.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t n) {
    static api a;
    json *body = NULL;
    gen_params p;
    api_error e;
    a.n_base = 1000;
    a.options.default_temperature = -1.0f;
    a.options.default_top_p = -1.0f;
    if (json_parse((const char *)data, n, NULL, &body, NULL) != OK) return 0;
    int rc = params_read(&a, body, &p, &e);
    if (rc == OK) {
        params_default(&a, &p, n % 2 == 0);
        CHECK(p.sampling.temperature >= 0.0f && p.sampling.temperature <= 2.0f);
        CHECK(p.sampling.top_p >= 0.0f && p.sampling.top_p <= 1.0f);
        CHECK(p.sampling.repetition_penalty > 0.0f && p.n >= 1 && p.n <= PARAMS_N_MAX);
        CHECK(p.sampling.n_top >= -1 && p.sampling.n_top <= SAMPLER_TOP_MAX);
        CHECK(p.n_stops <= PARAMS_STOPS_MAX && p.n_stop_ids <= RUN_STOP_MAX - 2);
        CHECK(p.max_tokens >= 0 && (p.max_tokens == 0 || p.max_tokens_field != NULL));
        for (int32_t i = 0; i < p.sampling.n_bias; i++) {
            CHECK(p.sampling.bias[i].token >= 0 && p.sampling.bias[i].token < a.n_base);
        }
    } else {
        CHECK(e.status == 400 && e.message[0] != '\0' && e.type != NULL);
    }
    params_release(&p);
    json_free(body);
    return 0;
}
