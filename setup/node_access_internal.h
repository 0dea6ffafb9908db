/* What the two kinds of access share. */
#ifndef SETUP_NODE_ACCESS_INTERNAL_H
#define SETUP_NODE_ACCESS_INTERNAL_H

#include "setup/node_access.h"

/* What node_fetch brought: text of a file or target of a link. */
typedef struct node_cached {
    char *path;
    bool is_link;
    char *text;
    size_t len;
} node_cached;

struct node_access {
    char *name, *root; /* root "" for the real machine */
    remote *session;   /* NULL: this machine */
    node_cached *cached;
    size_t n_cached, cap_cached;
    char **patterns; /* fetched already: a path that matches and is not cached does not exist */
    size_t n_patterns;
    const node_sudo *sudo;
    ssh_secret *password;
    int root_state; /* 0 not known, 1 root, 2 sudo without password, 3 sudo with password */
};

int node_local_run(node_access *n, const node_command *c, remote_result *out, err *e);
int node_local_read(node_access *n, const char *path, size_t max, buf *out, err *e);
int node_local_list(node_access *n, const char *path, buf *out, err *e);
int node_local_link(node_access *n, const char *path, buf *out, err *e);
int node_local_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e);

int node_ssh_run(node_access *n, const node_command *c, remote_result *out, err *e);
int node_ssh_read(node_access *n, const char *path, size_t max, buf *out, err *e);
int node_ssh_list(node_access *n, const char *path, buf *out, err *e);
int node_ssh_link(node_access *n, const char *path, buf *out, err *e);
int node_ssh_fetch(node_access *n, const char *patterns, err *e);
int node_ssh_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e);

/* root + path */
int node_path(const node_access *n, const char *path, buf *out);
void node_cache_put(node_access *n, const char *path, bool is_link, const char *text, size_t len);
int node_no_tool(const node_access *n, const char *tool, err *e);

#endif
