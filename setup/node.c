/* tandem-node: the small helper that works on a bare machine. Every verb is a row of the table; what
 * a verb needs beyond words comes on standard input, never secrets on the command line. */
#include <stdio.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/privilege.h"
#include "engine/base/secret.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/node.h"

static const node_verb VERBS[] = {
    {"receive", "take files from the head; what to take comes on standard input", node_receive,
        true},
    {"send", "--manifest FILE --root DIR --to DIR --rail FROM,TO ... -- COMMAND...: copy",
        node_send, true},
    {"prepare", "--model DIR --out DIR --rank R --ranks N ...: make this node's rank pack",
        node_prepare, true},
    {"hash", "FILE...: SHA-256 of files", node_hash, false},
    {"wipe", "DIR: remove the files of the cache of prompts below this folder", node_wipe, true},
    {"probe", "ADDRESS: the other side of the link test; secret on standard input", node_probe,
        true},
    {"keep", "[--stay|--detach]: look after this machine's rank until it ends", node_keep, true},
    {"keeper", "status|start|stop|quit|sweep: ask that keeper; an order comes on standard input",
        node_keeper, false},
    {"port", "N: who listens on this TCP port", node_port, false},
};
enum { N_VERBS = sizeof VERBS / sizeof VERBS[0], EXIT_REFUSED = 20 };

static int usage(FILE *out) {
    fprintf(out, "tandem-node %s (%s)\n", TANDEM_VERSION, version_build_id());
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(out, "  tandem-node %-8s %s\n", VERBS[i].name, VERBS[i].help);
    return out == stdout ? 0 : 2;
}

int main(int argc, char **argv) {
    secret_wipe_variable("HF_TOKEN");
    if (argc < 2) return usage(stderr);
    if (str_eq(argv[1], "--help") || str_eq(argv[1], "-h")) return usage(stdout);
    if (str_eq(argv[1], "--version")) {
        printf("tandem-node %s %s\n", TANDEM_VERSION, version_build_id());
        return 0;
    }
    for (size_t i = 0; i < N_VERBS; i++) {
        err e = ERR_INIT;
        if (!str_eq(argv[1], VERBS[i].name)) continue;
        if (!VERBS[i].refuses_root || privilege_refuse_root("the pair", &e) == OK)
            return VERBS[i].run(argc - 2, argv + 2);
        fprintf(stderr, "tandem-node: %s\n", e.msg);
        return EXIT_REFUSED;
    }
    fprintf(stderr, "tandem-node: unknown verb \"%.40s\"\n", argv[1]);
    return usage(stderr);
}
