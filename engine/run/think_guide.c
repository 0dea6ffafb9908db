#include "engine/run/think_guide.h"

#include "engine/base/mem.h"

typedef struct think_guide {
    int32_t close_id;
    int64_t left; /* reasoning tokens still allowed; < 0: reasoning is over */
} think_guide;

static int before(void *ctx, run_guide_view *view) {
    const think_guide *g = ctx;
    if (g->left == 0) {
        view->forced = g->close_id;
    }
    return OK;
}

static void after(void *ctx, int32_t token) {
    think_guide *g = ctx;
    if (g->left < 0) return;
    g->left = token == g->close_id ? -1 : g->left - 1;
}

run_guide think_guide_new(int32_t close_id, int64_t budget) {
    think_guide *g = mem_alloc(sizeof *g);
    *g = (think_guide){.close_id = close_id, .left = budget};
    return (run_guide){.ctx = g, .before = before, .after = after, .release = mem_free};
}
