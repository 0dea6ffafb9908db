/* tandem: command line and full screen. */
#include <locale.h>
#include <signal.h>

#include "tui/cmd_internal.h"

int main(int argc, char **argv) {
    cmd_args a;
    err e = ERR_INIT;
    setlocale(LC_ALL, "");
    /* Numbers are read and written with a point, whatever the language. */
    setlocale(LC_NUMERIC, "C");
    /* A closed pipe and a file size limit are errors of a write, not deaths. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    if (cmd_parse(argc, argv, &a, &e) != OK) return cmd_fail_usage(&e);
    if (cmd_has(&a, "help")) {
        buf out = BUF_INIT;
        bool is_plain = a.entry->noun[0] == '\0';
        cmd_help(&out, is_plain ? NULL : a.entry->noun, a.entry->verb);
        cmd_put(buf_cstr(&out), out.len);
        buf_release(&out);
        return cmd_finish(EXIT_OK);
    }
    return a.entry->run(&a);
}
