/* Verbs of tandem-node. Each gets the words after its name, may print, and returns an exit code: 0,
 * 2 for a wrong command line, 20 refused, 50 internal. */
#ifndef SETUP_NODE_H
#define SETUP_NODE_H

#include <stdbool.h>

typedef struct node_verb {
    const char *name;
    const char *help; /* arguments and one line */
    int (*run)(int argc, char **argv);
    bool refuses_root; /* it listens, loads or writes what came from the other machine */
} node_verb;

/* node_copy.c */
int node_receive(int argc, char **argv);
int node_send(int argc, char **argv);
int node_hash(int argc, char **argv);
int node_wipe(int argc, char **argv);
/* node_prepare.c */
int node_prepare(int argc, char **argv);
/* node_probe.c */
int node_probe(int argc, char **argv);
/* node_keep.c */
int node_keep(int argc, char **argv);
int node_keeper(int argc, char **argv);
int node_port(int argc, char **argv);

#endif
