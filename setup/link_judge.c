/* What measured numbers mean. The lines between the grades are those of setup.md 2.6. */
#include <ctype.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/link.h"

#define TCP_PASS_GBPS 80.0
#define TCP_FAIL_GBPS 25.0
#define RDMA_PASS_GBPS 85.0
#define RDMA_PASS_SUM_GBPS 175.0
#define RDMA_FAIL_GBPS 25.0
#define RDMA_DEGRADED_GBPS 8.0
#define COLLECTIVE_PASS_GBYTES 21.875
#define COLLECTIVE_FAIL_GBYTES 10.0
#define LATENCY_PASS_MS 0.3
#define ERROR_SHARE 1e-4

link_grade link_judge_tcp(double gbps, int64_t mtu) {
    if (!(gbps >= 0)) return LINK_UNKNOWN;
    if (gbps < TCP_FAIL_GBPS) return LINK_FAIL;
    return gbps >= TCP_PASS_GBPS && mtu >= LINK_MTU ? LINK_PASS : LINK_WARN;
}

link_grade link_judge_rdma(double a, double b, bool *is_degraded) {
    *is_degraded = false;
    if (!(a >= 0) || !(b >= 0)) return LINK_UNKNOWN;
    double low = a < b ? a : b;
    *is_degraded = low >= RDMA_DEGRADED_GBPS && low < RDMA_FAIL_GBPS;
    if (low < RDMA_FAIL_GBPS) return LINK_FAIL;
    return low >= RDMA_PASS_GBPS && a + b >= RDMA_PASS_SUM_GBPS ? LINK_PASS : LINK_WARN;
}

link_grade link_judge_collective(double gbytes) {
    if (!(gbytes >= 0)) return LINK_UNKNOWN;
    if (gbytes < COLLECTIVE_FAIL_GBYTES) return LINK_FAIL;
    return gbytes >= COLLECTIVE_PASS_GBYTES ? LINK_PASS : LINK_WARN;
}

link_grade link_judge_latency(double median_ms, int lost) {
    if (!(median_ms >= 0)) return LINK_UNKNOWN;
    return lost == 0 && median_ms < LATENCY_PASS_MS ? LINK_PASS : LINK_WARN;
}

link_grade link_judge_errors(uint64_t errors, uint64_t packets) {
    if (errors == 0) return LINK_PASS;
    return packets > 0 && (double)errors <= (double)packets * ERROR_SHARE ? LINK_WARN : LINK_FAIL;
}

uint64_t link_test_bytes(uint64_t available_bytes) {
    const uint64_t most = 1ull << 30;
    return available_bytes / 20 < most ? available_bytes / 20 : most;
}

int link_parse_write_bw(const char *text, double *gbps) {
    int rc = ERR_FORMAT;
    char *copy = mem_strdup(text), *save = NULL;
    for (char *line = strtok_r(copy, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        /* size, iterations, peak, mean, message rate; other lines do not begin with a number */
        char *word_save = NULL;
        double value = 0, mean = 0;
        int n = 0;
        for (char *w = strtok_r(line, " \t\r", &word_save); w != NULL && n < 5;
             w = strtok_r(NULL, " \t\r", &word_save), n++) {
            if (parse_double(w, &value) != OK) break;
            if (n == 3) mean = value;
        }
        if (n >= 4) {
            *gbps = mean;
            rc = OK;
        }
    }
    mem_free(copy);
    return rc;
}

link_peer link_judge_peer(const link_plan *plan, const char *const seen[LINK_RAILS]) {
    int right = 0, crossed = 0, known = 0;
    for (int r = 0; r < LINK_RAILS; r++) {
        if (seen[r][0] == '\0') continue;
        known++;
        if (str_eq_nocase(seen[r], plan->rail[1][r].mac)) right++;
        if (str_eq_nocase(seen[r], plan->rail[1][1 - r].mac)) crossed++;
    }
    if (known == 0) return LINK_PEER_UNKNOWN;
    if (crossed > 0) return LINK_PEER_CROSSED;
    if (right < known) return LINK_PEER_OTHER;
    return known == LINK_RAILS ? LINK_PEER_RIGHT : LINK_PEER_UNKNOWN;
}

void link_neighbour(const char *arp, const char *netdev, const char *address, char mac[20]) {
    char plain[24];
    mac[0] = '\0';
    str_copy(plain, sizeof plain, address);
    plain[strcspn(plain, "/")] = '\0';
    char *copy = mem_strdup(arp), *save = NULL;
    for (char *line = strtok_r(copy, "\n", &save); line != NULL;
         line = strtok_r(NULL, "\n", &save)) {
        /* IP address, HW type, Flags, HW address, Mask, Device */
        char *word[6] = {NULL}, *word_save = NULL;
        int n = 0;
        for (char *w = strtok_r(line, " \t", &word_save); w != NULL && n < 6;
             w = strtok_r(NULL, " \t", &word_save))
            word[n++] = w;
        /* Flags 0x0: the entry is being asked for. */
        if (n == 6 && str_eq(word[0], plain) && str_eq(word[5], netdev) &&
            !str_eq(word[2], "0x0")) {
            str_copy(mac, 20, word[3]);
        }
    }
    mem_free(copy);
}

int link_judge_nccl_log(const char *text, char reason[160]) {
    static const struct {
        const char *mark, *reason;
    } bad[] = {
        {"NET/IB : No device found",
            "no RDMA device was found (in a container: pass /dev/infiniband)"},
        {"Using network Socket", "the library chose the socket transport"},
        {"NET/Socket : Using", "the library chose the socket transport"},
        {"via NET/Socket", "channels run over sockets"},
    };
    reason[0] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (strstr(text, bad[i].mark) != NULL) {
            str_copy(reason, 160, bad[i].reason);
            return -1;
        }
    }
    return strstr(text, "NET/IB : Using") != NULL || strstr(text, "via NET/IB") != NULL ? 1 : 0;
}

bool link_same_library(
    const char *version_a, const char *build_a, const char *version_b, const char *build_b) {
    return str_eq(version_a, version_b) && str_eq(build_a, build_b);
}
