/* Stored trees of a DGX Spark (tests/data/spark): laid out in a folder for node_access. One thread. */
#ifndef TESTS_HARNESS_SPARK_TREE_H
#define TESTS_HARNESS_SPARK_TREE_H

#include <stdbool.h>

typedef struct spark_expect {
    char node[16], id[24], status[16], contains[80]; /* contains "" anything */
} spark_expect;

typedef struct spark_fault {
    char node[16]; /* whose tree it changes: head, worker or both */
    int n_expect;
    spark_expect expect[12];
} spark_fault;

/* Lays a tree file over root; k is 1 for the head, 2 for the worker. fault may be NULL. Ends the
 * program with a message when the file is broken. */
void spark_tree_lay(const char *file, const char *root, int k, spark_fault *fault);
/* Takes the files of a fault away again and puts the healthy tree's own in their place. */
void spark_tree_restore(const char *healthy, const char *fault_file, const char *root, int k);
/* Only reads the head lines of a fault file. */
void spark_tree_expect(const char *file, spark_fault *fault);

#endif
