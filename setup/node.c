/* tandem-node: the small helper that works on a bare machine. Every verb is a row of the table; what
 * a verb needs beyond words comes on standard input, never secrets on the command line. */
#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/node.h"

static const node_verb VERBS[] = {
    {"receive", "take files from the head; what to take comes on standard input", node_receive},
    {"send", "--manifest FILE --root DIR --to DIR --rail FROM,TO ... -- COMMAND...: copy",
        node_send},
    {"prepare", "--model DIR --out DIR --rank R --ranks N ...: make this node's rank pack",
        node_prepare},
    {"hash", "FILE...: SHA-256 of files", node_hash},
    {"probe", "ADDRESS: the other side of the link test; secret on standard input", node_probe},
    {"keep", "[--stay|--detach]: look after this machine's rank until it ends", node_keep},
    {"keeper", "status|start|stop|quit|sweep: ask that keeper; an order comes on standard input",
        node_keeper},
    {"port", "N: who listens on this TCP port", node_port},
};
enum { N_VERBS = sizeof VERBS / sizeof VERBS[0] };

static int usage(FILE *out) {
    fprintf(out, "tandem-node %s (%s)\n", TANDEM_VERSION, version_build_id());
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(out, "  tandem-node %-8s %s\n", VERBS[i].name, VERBS[i].help);
    return out == stdout ? 0 : 2;
}

int main(int argc, char **argv) {
    if (argc < 2) return usage(stderr);
    if (str_eq(argv[1], "--help") || str_eq(argv[1], "-h")) return usage(stdout);
    if (str_eq(argv[1], "--version")) {
        printf("tandem-node %s %s\n", TANDEM_VERSION, version_build_id());
        return 0;
    }
    for (size_t i = 0; i < N_VERBS; i++) {
        if (str_eq(argv[1], VERBS[i].name)) return VERBS[i].run(argc - 2, argv + 2);
    }
    fprintf(stderr, "tandem-node: unknown verb \"%.40s\"\n", argv[1]);
    return usage(stderr);
}
