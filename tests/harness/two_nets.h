/* Two network namespaces with a cable between them, for tests of ranks on two machines. Needs root
 * and the command ip; where there are none a test goes on with loopback alone and says so. One
 * thread; names carry the process id, so that tests run beside each other. */
#ifndef TESTS_HARNESS_TWO_NETS_H
#define TESTS_HARNESS_TWO_NETS_H

#include <stdbool.h>

typedef struct two_nets {
    char name[2][32];    /* of the namespaces, for ip netns exec */
    char address[2][32]; /* 10.x.y.1 and .2 */
    char cable[2][16];   /* the interfaces */
    int own_fd;          /* the namespace of this process */
} two_nets;

/* Makes them; false: not possible here. */
bool two_nets_open(two_nets *n);
/* The calling thread enters side 0 or 1; -1: back home. Ends the program if it cannot. */
void two_nets_enter(const two_nets *n, int side);
/* Pulls the plug on side 1, or puts it in again. */
void two_nets_cut(const two_nets *n, bool is_cut);
void two_nets_close(two_nets *n);

#endif
