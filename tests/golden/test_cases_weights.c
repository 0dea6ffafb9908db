/* Field cases of weight files: CASES_DIR/safetensors (broken and odd files) and CASES_DIR/exl3
 * (checkpoints described by their headers). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/model/config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/exl3_pack.h"
#include "engine/weights/safetensors.h"
#include "tests/harness/vectors.h"

enum { TEXT_MAX = 1 << 20 };

typedef struct folder {
    vectors *v;
    const char *path;
    char temp[64]; /* where checkpoints are made */
} folder;

/* What came of a case. */
typedef struct outcome {
    bool is_accepted, has_warning;
    err e;
    char warnings[512];
} outcome;

static long peak_memory_kb(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_maxrss;
}

static void describe(const outcome *o, char *out, size_t cap) {
    snprintf(out, cap, "%s%s%.300s", o->is_accepted ? "accepted" : "rejected: ",
        o->is_accepted ? (o->has_warning ? " with warning: " : "") : "",
        o->is_accepted ? o->warnings : o->e.msg);
}

static bool verdict_holds(const char *want, const outcome *o) {
    if (strcmp(want, "accept") == 0) return o->is_accepted;
    if (strcmp(want, "reject") == 0 || strcmp(want, "incomplete") == 0) return !o->is_accepted;
    if (strcmp(want, "reject_or_warn") == 0) return !o->is_accepted || o->has_warning;
    if (strcmp(want, "reject_or_other_split") == 0) return !o->is_accepted;
    return false;
}

/* Checks one `expect` object; returns false with the reason in why. */
static bool expect_holds(const json *expect, const outcome *o, char *why, size_t cap) {
    const char *verdict = json_str(json_get(expect, "verdict"));
    const char *contains = json_str(json_get(expect, "error_contains"));
    snprintf(why, cap, "verdict %s", verdict != NULL ? verdict : "?");
    if (verdict == NULL || !verdict_holds(verdict, o)) return false;
    snprintf(why, cap, "a message with \"%s\"", contains != NULL ? contains : "");
    if (contains != NULL && !o->is_accepted && strstr(o->e.msg, contains) == NULL) return false;
    snprintf(why, cap, "a warning");
    if (json_is_true(json_get(expect, "warns")) && !o->has_warning) return false;
    JSON_EACH(name, json_get(expect, "missing")) {
        snprintf(why, cap, "a message that names %s", json_str(name));
        if (json_str(name) == NULL || strstr(o->e.msg, json_str(name)) == NULL) return false;
    }
    return true;
}

static void judge(vectors *v, const json *c, const outcome *o) {
    const char *id = json_str(json_get(c, "id"));
    const json *any = json_get(c, "expect_any");
    char why[256] = "";
    char got[512];
    bool ok = false;
    if (any != NULL) {
        JSON_EACH(expect, any) {
            ok = ok || expect_holds(expect, o, why, sizeof why);
        }
    } else {
        ok = expect_holds(json_get(c, "expect"), o, why, sizeof why);
    }
    describe(o, got, sizeof got);
    if (ok) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id != NULL ? id : "?", why, got);
    }
}

static void open_set(const char *path, st_mode mode, st_set **s, outcome *o) {
    memset(o, 0, sizeof *o);
    o->is_accepted = st_open(path, mode, s, &o->e) == OK;
    if (o->is_accepted) {
        str_copy(o->warnings, sizeof o->warnings, st_warnings(*s));
        o->has_warning = o->warnings[0] != '\0';
    }
}

/* Reads every byte of every tensor, so that a range outside the file would be noticed. */
static uint64_t touch(const st_set *s) {
    uint64_t sum = 0;
    for (size_t i = 0; i < st_count(s); i++) {
        const st_tensor *t = st_at(s, i);
        for (uint64_t at = 0; at < t->bytes; at++) {
            uint8_t byte = 0;
            if (st_read(s, t, at, &byte, 1, NULL) != OK) return UINT64_MAX;
            sum += byte;
        }
    }
    return sum;
}

static void limits_hold(
    vectors *v, const json *c, const char *file, const outcome *o, int64_t ms, long grown_kb) {
    const json *expect = json_get(c, "expect");
    const char *id = json_str(json_get(c, "id"));
    int64_t most;
    char want[96];
    char got[512];
    if (json_i64(json_get(expect, "max_ms"), &most) == OK && ms > most) {
        snprintf(want, sizeof want, "at most %lld ms", (long long)most);
        snprintf(got, sizeof got, "%lld ms", (long long)ms);
        vectors_fail(v, id, want, got);
    }
    if (json_i64(json_get(expect, "max_extra_memory_mb"), &most) == OK && grown_kb > most * 1024) {
        snprintf(want, sizeof want, "at most %lld MB more memory", (long long)most);
        snprintf(got, sizeof got, "%ld kB", grown_kb);
        vectors_fail(v, id, want, got);
    }
    if (json_is_true(json_get(expect, "message_names_file")) && strstr(o->e.msg, file) == NULL) {
        vectors_fail(v, id, file, o->e.msg);
    }
}

static void run_file_case(folder *f, const json *c) {
    static const st_mode modes[] = {ST_MAPPED, ST_DIRECT};
    const char *file = json_str(json_get(c, "file"));
    buf path = BUF_INIT;
    path_join(&path, f->path, file != NULL ? file : "?");
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        outcome o;
        st_set *s = NULL;
        long before = peak_memory_kb();
        int64_t start = vectors_cpu_ms();
        open_set(buf_cstr(&path), modes[i], &s, &o);
        if (s != NULL && touch(s) == UINT64_MAX) {
            vectors_fail(f->v, file, "readable tensors", "a read failed");
        }
        int64_t ms = vectors_cpu_ms() - start;
        judge(f->v, c, &o);
        limits_hold(f->v, c, file, &o, ms, peak_memory_kb() - before);
        st_close(s);
    }
    buf_release(&path);
}

static st_dtype dtype_of(const char *name) {
    for (int d = 0; d < ST_N_DTYPES; d++) {
        if (name != NULL && strcmp(st_dtype_name((st_dtype)d), name) == 0) return (st_dtype)d;
    }
    return ST_U8;
}

/* Writes a file with the tensors of a description; the data is zero except for markers. */
static int write_tensors(const char *path, const json *tensors, err *e) {
    st_writer *w = st_writer_new(path);
    int rc = OK;
    JSON_EACH(t, tensors) {
        uint64_t dims[ST_MAX_DIMS];
        int n = 0;
        JSON_EACH(d, json_at(t, 1)) {
            if (n == ST_MAX_DIMS || json_u64(d, &dims[n++]) != OK)
                return err_set(e, ERR_FORMAT, "shape");
        }
        int id = st_writer_add(w, json_key(t), dtype_of(json_str(json_at(t, 0))), n, dims, e);
        rc = id < 0 ? id : rc;
    }
    rc = rc == OK ? st_writer_begin(w, e) : rc;
    int i = 0;
    JSON_EACH(t, tensors) {
        uint64_t n = st_dtype_bytes(dtype_of(json_str(json_at(t, 0))));
        JSON_EACH(d, json_at(t, 1)) {
            uint64_t size = 0;
            json_u64(d, &size);
            n *= size;
        }
        char *zero = mem_try_alloc((size_t)n + 1);
        if (zero == NULL) return ERR_MEMORY;
        uint32_t marker =
            str_ends(json_key(t), ".mcg") ? EXL3_MCG_MULTIPLIER : EXL3_MUL1_MULTIPLIER;
        if (n == 4) {
            memcpy(zero, &marker, 4);
        }
        rc = rc == OK ? st_writer_put(w, i, 0, zero, n, e) : rc;
        mem_free(zero);
        i++;
    }
    rc = rc == OK ? st_writer_finish(w, e) : rc;
    st_writer_free(w);
    return rc;
}

static int write_index(const char *dir, const json *index, err *e) {
    buf path = BUF_INIT;
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_key(&w, "weight_map");
    json_w_value(&w, index);
    json_w_close(&w);
    json_w_end(&w);
    path_join(&path, dir, "model.safetensors.index.json");
    int rc = file_write_atomic(buf_cstr(&path), text.data, text.len, 0644, e);
    buf_release(&path);
    buf_release(&text);
    return rc;
}

static int make_checkpoint(const char *dir, const json *c, err *e) {
    buf path = BUF_INIT;
    int rc = dir_make_all(dir, 0755, e);
    if (rc == OK && json_get(c, "tensors") != NULL) {
        path_join(&path, dir, "model.safetensors");
        rc = write_tensors(buf_cstr(&path), json_get(c, "tensors"), e);
    }
    JSON_EACH(shard, json_get(c, "shards")) {
        path_join(&path, dir, json_key(shard));
        rc = rc == OK ? write_tensors(buf_cstr(&path), shard, e) : rc;
    }
    if (rc == OK && json_get(c, "index") != NULL) {
        rc = write_index(dir, json_get(c, "index"), e);
    }
    JSON_EACH(file, json_get(c, "files")) {
        uint64_t size;
        path_join(&path, dir, json_key(file));
        /* What the description gives as the size on disk; a file of its own when it is no shard. */
        int fd = open(buf_cstr(&path), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0 || json_u64(file, &size) != OK || ftruncate(fd, (off_t)size) != 0) {
            rc = err_errno(e, "%s", buf_cstr(&path));
        }
        close(fd);
    }
    buf_release(&path);
    return rc;
}

/* A case with a config is checked against what that config needs; a config of another architecture
 * leaves only the checks that need none. */
static int check_config(const char *dir, const json *c, outcome *o) {
    static model_config config;
    checkpoint *k = NULL;
    buf text = BUF_INIT;
    err ignored = ERR_INIT;
    int rc = OK;
    if (json_get(c, "config") == NULL) return OK;
    json_print(json_get(c, "config"), &text);
    if (model_config_parse(buf_cstr(&text), text.len, &config, &ignored) == OK) {
        rc = checkpoint_open(dir, &config, NULL, &k, &o->e);
    }
    if (k != NULL && *checkpoint_warnings(k) != '\0') {
        str_copy(o->warnings, sizeof o->warnings, checkpoint_warnings(k));
        o->has_warning = true;
    }
    checkpoint_close(k);
    buf_release(&text);
    return rc;
}

/* The cut that a case asks for, on every module of the set. */
static int check_split(const st_set *s, const json *split, err *e) {
    int64_t ways = 1;
    const char *axis = json_str(json_get(split, "axis"));
    int rc = OK;
    if (json_i64(json_get(split, "ways"), &ways) != OK || axis == NULL) return OK;
    for (size_t i = 0; i < st_count(s) && rc == OK; i++) {
        const st_tensor *t = st_at(s, i);
        if (!str_ends(t->name, ".trellis")) continue;
        int size = (int)t->dims[strcmp(axis, "out") == 0 ? 1 : 0] * EXL3_TILE;
        rc = exl3_split_check(t->name, size, (int)ways, e);
    }
    return rc;
}

static void run_checkpoint_case(folder *f, const json *c) {
    outcome o;
    st_set *s = NULL;
    err e = ERR_INIT;
    dir_remove_all(f->temp, &e);
    if (make_checkpoint(f->temp, c, &e) != OK) {
        vectors_fail(f->v, json_str(json_get(c, "id")), "a checkpoint made from the case", e.msg);
        return;
    }
    open_set(f->temp, ST_MAPPED, &s, &o);
    if (o.is_accepted) {
        o.is_accepted = exl3_pack_check(s, &o.e) == OK &&
                        check_split(s, json_get(c, "split"), &o.e) == OK &&
                        check_config(f->temp, c, &o) == OK;
    }
    judge(f->v, c, &o);
    st_close(s);
    dir_remove_all(f->temp, &e);
}

static int run_case(void *ctx, const char *name, err *unused) {
    folder *f = ctx;
    (void)unused;
    if (!str_ends(name, ".json")) return OK;
    json *c = vectors_load(f->path, name);
    const char *kind = json_str(json_get(c, "kind"));
    if (kind != NULL && strcmp(kind, "checkpoint_header") == 0) {
        run_checkpoint_case(f, c);
    } else if (json_get(c, "file") != NULL) {
        run_file_case(f, c);
    } else {
        vectors_skip(f->v, name, "of a kind this runner does not know");
    }
    json_free(c);
    return OK;
}

int main(void) {
    static const char *const parts[] = {"safetensors", "exl3"};
    vectors v = {0, 0, 0};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        buf path = BUF_INIT;
        err e = ERR_INIT;
        path_join(&path, vectors_cases_dir(), parts[i]);
        folder f = {&v, buf_cstr(&path), ""};
        snprintf(f.temp, sizeof f.temp, "/tmp/tandem-weights-cases.%ld", (long)getpid());
        if (!dir_exists(f.path)) {
            vectors_skip(&v, parts[i], "the folder is not there");
        } else if (dir_each(f.path, run_case, &f, &e) != OK) {
            vectors_fail(&v, parts[i], "a readable folder", e.msg);
        }
        buf_release(&path);
    }
    return vectors_end(&v);
}
