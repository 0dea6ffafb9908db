/* The scheduler over the built-in model: what the engine promises about its answers, bit for bit with
 * their log probabilities. Alone = in company, any size of slices, drafted = serial, cached = fresh.
 * The names of failing cases are printed; the last line counts them. */
#include "tests/harness/serving_probe.h"

static vectors v;

int main(void) {
    static const int sizes[] = {256, 23};
    static ask asks[PROBE_CROWD];
    static reply want[PROBE_CROWD];
    run_source source;
#ifdef __SANITIZE_THREAD__
    vectors_skip(&v, "all", "too slow here; the toys of test_reuse and test_run cover the threads");
    return vectors_end(&v);
#endif
    if (!probe_find_model()) {
        vectors_skip(&v, "all", "no demo model here");
        return vectors_end(&v);
    }
    probe_make_crowd(asks);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        model_options o = probe_model_options(PROBE_SLOTS, sizes[i]);
        model *m = probe_open_model(&o);
        source_from_model(m, &source);
        if (i == 0) {
            probe_check_cached(&v, &source);
            run *r = probe_open_run(&source, (run_options){.no_cache = true, .no_drafts = true});
            for (int k = 0; k < PROBE_CROWD; k++) {
                want[k] = probe_answer(r, &asks[k]);
            }
            run_close(r);
        }
        probe_check_crowd(&v, &source, asks, want, i == 0);
        model_close(m);
    }
    return vectors_end(&v);
}
