/* tandem-node probe ADDRESS: the worker's side of the link test. The secret comes as a line of
 * hexadecimal on standard input; the first line of output names the port. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/secret.h"
#include "engine/base/sha256.h"
#include "setup/link_probe.h"
#include "setup/node.h"

static void print_port(void *ctx, int port) {
    (void)ctx;
    printf("listening %d\n", port);
    fflush(stdout);
}

int node_probe(int argc, char **argv) {
    char line[SHA256_HEX + 1] = "";
    err e = ERR_INIT;
    if (argc != 1) {
        fprintf(stderr, "tandem-node: probe needs the address to listen on\n");
        return 2;
    }
    link_probe_options o = {.address = argv[0]};
    secret_hold(); /* until the process ends */
    if (fgets(line, sizeof line, stdin) == NULL) line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (sha256_parse(line, o.secret) != OK) {
        fprintf(stderr, "tandem-node: no secret on standard input\n");
        return 2;
    }
    int rc = link_probe_serve(&o, print_port, NULL, &e);
    explicit_bzero(line, sizeof line);
    explicit_bzero(o.secret, sizeof o.secret);
    if (rc == OK) return 0;
    fprintf(stderr, "tandem-node: %s\n", e.msg);
    return 20;
}
