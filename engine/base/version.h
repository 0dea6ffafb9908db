#ifndef TANDEM_BASE_VERSION_H
#define TANDEM_BASE_VERSION_H
/* What this program calls itself. Any thread. */

#define TANDEM_VERSION "0.1.0"
/* The commit it was built from, "-dirty" after changes; "unknown" outside the built programs. Two
 * ranks work together only when theirs are equal. */
const char *version_build_id(void);

#endif
