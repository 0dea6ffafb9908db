/* What the files of the checks share. */
#ifndef SETUP_CHECK_INTERNAL_H
#define SETUP_CHECK_INTERNAL_H

#include "setup/check.h"
#include "setup/link.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

struct check_context {
    node_access *node[2];
    char *missing[2];
    const settings *settings;
    char *baseline, *engine, *need_text;
    uint64_t need_bytes[2];
    bool has_need, is_heavy;
    check_files files[2];
    bool is_prepared[2];
    link_node *link[2]; /* read when first needed */
    int link_state;     /* 0 not read, 1 read, 2 failed */
    link_plan plan;
    err link_err;
};

/* Fills status and fact. Facts and remedies are one sentence each. */
void check_say(check_result *r, check_status s, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void check_remedy(check_result *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void check_value(check_result *r, double v);
/* UNKNOWN because something could not be read. */
void check_unknown(check_result *r, const char *what, const err *e);

/* A line of a file into out (cut to cap); false when it cannot be read. */
bool check_line(check_context *c, int i, const char *path, char *out, size_t cap);
/* A whole file. */
bool check_file(check_context *c, int i, const char *path, buf *out);
/* First line of a tool's output; ERR_NOT_FOUND when it is not installed. */
int check_tool_line(
    check_context *c, int i, const char *const *argv, char *out, size_t cap, err *e);
/* All of it, whatever its exit code. */
int check_tool(check_context *c, int i, const char *const *argv, buf *out, int *code, err *e);
/* Bytes of a line of /proc/meminfo; false when it is not there. */
bool check_meminfo(const char *text, const char *key, double *bytes);
/* "key=value" or "key: value" of a text. */
bool check_key(const char *text, const char *key, char *out, size_t cap);
/* The data folder of a machine, or its nearest parent that exists; false when none is set. */
bool check_data_dir(check_context *c, int i, char *out, size_t cap, bool *exists);
/* Facts of both machines' ports and the plan; false (result filled) when they cannot be had. */
bool check_link(check_context *c, check_result *r);

#define CHECK_RUN(name) void name(check_context *c, int i, check_result *r)
CHECK_RUN(check_v1);
CHECK_RUN(check_v2);
CHECK_RUN(check_v3);
CHECK_RUN(check_v4);
CHECK_RUN(check_v5);
CHECK_RUN(check_v6);
CHECK_RUN(check_v7);
CHECK_RUN(check_v8);
CHECK_RUN(check_v9);
CHECK_RUN(check_k1);
CHECK_RUN(check_m1);
CHECK_RUN(check_m2);
CHECK_RUN(check_m3);
CHECK_RUN(check_m4);
CHECK_RUN(check_m5);
CHECK_RUN(check_m6);
CHECK_RUN(check_m7);
CHECK_RUN(check_m8);
CHECK_RUN(check_m9);
CHECK_RUN(check_m10);
CHECK_RUN(check_d1);
CHECK_RUN(check_d2);
CHECK_RUN(check_d3);
CHECK_RUN(check_d4);
CHECK_RUN(check_d5);
CHECK_RUN(check_d6);
CHECK_RUN(check_p1);
CHECK_RUN(check_p2);
CHECK_RUN(check_p3);
CHECK_RUN(check_p4);
CHECK_RUN(check_p5);
CHECK_RUN(check_p6);
CHECK_RUN(check_t1);
CHECK_RUN(check_t2);
CHECK_RUN(check_u1);
CHECK_RUN(check_u2);
CHECK_RUN(check_u3);
CHECK_RUN(check_u4);
CHECK_RUN(check_u5);
CHECK_RUN(check_u6);
CHECK_RUN(check_s1);
CHECK_RUN(check_n_inventory);
CHECK_RUN(check_n_half);
CHECK_RUN(check_n_mtu);
CHECK_RUN(check_n_gid);
CHECK_RUN(check_n_peer);
CHECK_RUN(check_n_route);
CHECK_RUN(check_n_latency);
CHECK_RUN(check_n_tcp);
CHECK_RUN(check_n_rdma);
CHECK_RUN(check_n_collective);
CHECK_RUN(check_n_errors);
CHECK_RUN(check_n_socket);
CHECK_RUN(check_n_env);

#endif
