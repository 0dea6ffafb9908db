/* What every user of this machine could see of a process. */
#ifndef TESTS_HARNESS_PROC_H
#define TESTS_HARNESS_PROC_H

#include <stdbool.h>

/* The text is in the words or in the environment of some process. */
bool proc_shows(const char *text);

#endif
