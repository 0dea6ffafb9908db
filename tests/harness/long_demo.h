/* The built-in model with a longer window: a temporary folder of links to its files and a config
 * that allows n_tokens positions. For tests and benches of long prompts. */
#ifndef TESTS_HARNESS_LONG_DEMO_H
#define TESTS_HARNESS_LONG_DEMO_H

#include <stdbool.h>
#include <stdint.h>

/* False where there is no demo model. Ends the program when the folder can not be made. */
bool long_demo_make(int64_t n_tokens, char out[256]);
void long_demo_remove(const char *dir);

#endif
