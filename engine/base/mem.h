#ifndef TANDEM_BASE_MEM_H
#define TANDEM_BASE_MEM_H
/* Host memory and the check for programming mistakes. The plain forms never return NULL: with no
 * memory left they end the process through the crash path, so small allocations need no error
 * branch. Sizes that come from outside use mem_try_alloc and report ERR_MEMORY. Any thread. */
#include <stddef.h>

/* n zeroed bytes; n 0 gives a unique pointer. Freed with mem_free. */
void *mem_alloc(size_t n) __attribute__((returns_nonnull));
/* n zeroed elements of size bytes; an overflow of the product ends the process. */
void *mem_array(size_t n, size_t size) __attribute__((returns_nonnull));
/* Grows or shrinks; new bytes are not zeroed. */
void *mem_realloc(void *p, size_t n) __attribute__((returns_nonnull));
/* Frees memory of this header except mem_aligned; NULL is fine. */
void mem_free(void *p);
char *mem_strdup(const char *s) __attribute__((returns_nonnull));
/* At most n bytes of s, always terminated. */
char *mem_strndup(const char *s, size_t n) __attribute__((returns_nonnull));
void *mem_dup(const void *p, size_t n) __attribute__((returns_nonnull));
/* Zeroed, or NULL when there is no memory: for sizes that come from outside. */
void *mem_try_alloc(size_t n);
/* Zeroed and aligned (align a power of two, at least sizeof(void *)), or NULL. */
void *mem_aligned(size_t align, size_t n);
void mem_aligned_free(void *p);

/* Called once, with a one-line message, before the process ends by abort(): the terminal is put
 * back, the log flushed. Must be async-signal-safe. NULL restores the default (write to stderr). */
typedef void (*crash_hook)(const char *msg);
void crash_set_hook(crash_hook hook);
/* Ends the process through the crash path. */
_Noreturn void crash_now(const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Programming mistakes only, active in every build. Never for input from outside. */
#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            crash_now(__FILE__, __LINE__, "CHECK(%s) in %s", #cond, __func__);                     \
        }                                                                                          \
    } while (0)
/* The same with the values that explain it. */
#define CHECK_MSG(cond, ...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(cond), 0)) {                                                        \
            crash_now(__FILE__, __LINE__, __VA_ARGS__);                                            \
        }                                                                                          \
    } while (0)

/* Failure injection for tests: after n more allocations every one fails; n < 0 switches it off. */
void mem_fail_after(long n);

#endif
