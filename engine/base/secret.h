/* Keeping secrets out of core dumps: while at least one is held the process is not dumpable, and no
 * other process of the user may read its memory. Libraries make copies of what they are given, so a
 * protected page alone would not be enough. Counted; any thread. */
#ifndef TANDEM_BASE_SECRET_H
#define TANDEM_BASE_SECRET_H

void secret_hold(void);
/* The last one makes the process dumpable again if it was before. */
void secret_drop(void);
/* In a child between fork and exec, which needs its own files in /proc: the child has wiped what it
 * inherited. */
void secret_drop_in_child(void);

/* For programs that live long: a token in the environment would be there for all of their life, and
 * for that of their children. Overwrites it where it stands and unsets it. */
void secret_wipe_variable(const char *name);

#endif
