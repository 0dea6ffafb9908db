#include "setup/settings.h"

#include <string.h>

#include "engine/base/str.h"

/* Order is the order of `tandem config list` and of the manual page. The key, its range and its
 * built-in value stand in this one place. */
#define SECOND_DAY (24.0 * 3600.0)
static const setting_key KEYS[] = {
    /* What to run. */
    {"PROFILE", SETTING_NAME, "", 0, 0, NULL, false, "model manifest to use"},
    {"MODEL_DIR", SETTING_PATH, "", 0, 0, NULL, true,
        "folder of the model; not set: the built-in demo model"},
    {"MODEL_NAME", SETTING_NAME, "", 0, 0, NULL, false, "model id shown to API clients"},
    {"CONTEXT", SETTING_INT, "262144", 256, 1048576, NULL, false, "context window in tokens"},
    {"PARALLEL", SETTING_INT, "4", 1, 32, NULL, false, "streams decoded at the same time"},
    {"THINKING", SETTING_SWITCH, "off", 0, 0, NULL, false, "think when a request does not say"},
    {"DEFAULT_EFFORT", SETTING_WORD, "", 0, 0, "minimal low medium high xhigh max ultra", false,
        "thinking effort when a request does not say"},
    {"MAX_TOKENS", SETTING_INT, "", 1, 1048576, NULL, false,
        "longest reply when a request does not say; not set: the rest of the window"},
    {"TEMPERATURE", SETTING_NUMBER, "", 0, 2, NULL, false,
        "temperature when a request does not say; not set: 1.0"},
    {"TOP_P", SETTING_NUMBER, "", 0, 1, NULL, false,
        "top-p when a request does not say; not set: 1.0, in thinking mode 0.95"},
    /* The endpoint. */
    {"API", SETTING_SWITCH, "off", 0, 0, NULL, false, "TCP endpoint for other programs"},
    {"API_BIND", SETTING_ADDRESS, "127.0.0.1", 0, 0, NULL, true, "address of the endpoint"},
    {"API_CONFIRMED", SETTING_ADDRESS, "", 0, 0, NULL, true,
        "the address other machines may reach, as you typed it (tandem api on asks for it)"},
    {"API_PORT", SETTING_INT, "8888", 1, 65535, NULL, true, "port of the endpoint"},
    {"API_KEY_FILE", SETTING_PATH, "", 0, 0, NULL, true, "file with the digests of API keys"},
    {"API_LOG_BODIES", SETTING_SWITCH, "off", 0, 0, NULL, false, "request log with texts"},
    {"API_TLS_CERT", SETTING_PATH, "", 0, 0, NULL, true, "certificate of the endpoint (PEM)"},
    {"API_TLS_KEY", SETTING_PATH, "", 0, 0, NULL, true, "key of that certificate (PEM)"},
    {"MAX_GAP_MS", SETTING_INT, "150", 20, 5000, NULL, false,
        "longest gap between tokens of a running stream while prompts are read"},
    {"QUEUE_MAX", SETTING_INT, "64", 0, 1024, NULL, false, "waiting requests"},
    {"CACHE_DISK_GIB", SETTING_INT, "64", 0, 65536, NULL, false, "disk cache; 0 switches it off"},
    {"CACHE_AGE_HOURS", SETTING_INT, "168", 1, 87600, NULL, false, "oldest entry of that cache"},
    {"CACHE_PER_KEY", SETTING_SWITCH, "off", 0, 0, NULL, false, "separate cache for each API key"},
    /* The pair. */
    {"WORKER_SSH", SETTING_SSH, "", 0, 0, NULL, true, "worker as user@host or user@host:port"},
    {"WORKER_JUMP", SETTING_SSH, "", 0, 0, NULL, true,
        "machine to go through to the worker, as user@host or user@host:port"},
    {"WORKER_KEY", SETTING_PATH, "", 0, 0, NULL, true, "ssh key of the worker, tried first"},
    {"HEAD_IP_A", SETTING_ADDRESS, "", 0, 0, NULL, false, "head, rail A"},
    {"HEAD_IP_B", SETTING_ADDRESS, "", 0, 0, NULL, false, "head, rail B"},
    {"WORKER_IP_A", SETTING_ADDRESS, "", 0, 0, NULL, false, "worker, rail A"},
    {"WORKER_IP_B", SETTING_ADDRESS, "", 0, 0, NULL, false, "worker, rail B"},
    {"HEAD_IF_A", SETTING_NAME, "", 0, 0, NULL, false, "network device of the head's rail A"},
    {"HEAD_IF_B", SETTING_NAME, "", 0, 0, NULL, false, "network device of the head's rail B"},
    {"WORKER_IF_A", SETTING_NAME, "", 0, 0, NULL, false, "network device of the worker's rail A"},
    {"WORKER_IF_B", SETTING_NAME, "", 0, 0, NULL, false, "network device of the worker's rail B"},
    {"HEAD_HCA_A", SETTING_NAME, "", 0, 0, NULL, false, "RDMA device of the head's rail A"},
    {"HEAD_HCA_B", SETTING_NAME, "", 0, 0, NULL, false, "RDMA device of the head's rail B"},
    {"WORKER_HCA_A", SETTING_NAME, "", 0, 0, NULL, false, "RDMA device of the worker's rail A"},
    {"WORKER_HCA_B", SETTING_NAME, "", 0, 0, NULL, false, "RDMA device of the worker's rail B"},
    {"MASTER_PORT", SETTING_INT, "29620", 1024, 65535, NULL, false, "rendezvous port on rail A"},
    {"HEAD_DATA", SETTING_PATH, "", 0, 0, NULL, true, "data folder of the head"},
    {"WORKER_DATA", SETTING_PATH, "", 0, 0, NULL, true, "data folder of the worker"},
    /* Downloads and copies. */
    {"HF_ENDPOINT", SETTING_URL, "https://huggingface.co", 0, 0, NULL, true, "hub to load from"},
    {"HF_TOKEN_FILE", SETTING_PATH, "", 0, 0, NULL, true, "file with the hub's token (mode 0600)"},
    {"DL_CONNECTIONS", SETTING_INT, "8", 1, 32, NULL, true, "connections of a download"},
    {"DL_CHUNK_MIB", SETTING_INT, "128", 8, 1024, NULL, true, "size of a download range in MiB"},
    {"DL_RATE_LIMIT", SETTING_INT, "0", 0, 1000000, NULL, true,
        "download limit in MB/s; 0 is none"},
    {"SYNC_MODE", SETTING_WORD, "stream", 0, 0, "stream rsync none", true,
        "how files get to the worker"},
    {"SYNC_STREAMS", SETTING_INT, "8", 1, 32, NULL, true, "connections of that copy"},
    /* Memory, time and healing. */
    {"MEM_GATE_GIB", SETTING_NUMBER, "100", 92, 4096, NULL, false,
        "memory a node must have free before loading"},
    {"MEM_FLOOR_GIB", SETTING_NUMBER, "4", 2, 4096, NULL, false,
        "below this much free memory no request is admitted"},
    {"MEM_GUARD", SETTING_SWITCH, "on", 0, 0, NULL, false, "stop in order before memory runs out"},
    {"EVICT_CACHE", SETTING_SWITCH, "on", 0, 0, NULL, false, "drop the page cache around a load"},
    {"READY_TIMEOUT", SETTING_INT, "1800", 1, SECOND_DAY, NULL, false,
        "seconds until a start must be ready"},
    {"STOP_TIMEOUT", SETTING_INT, "30", 1, 3600, NULL, false, "seconds a stop waits for replies"},
    {"HANG_SECONDS", SETTING_INT, "420", 10, SECOND_DAY, NULL, false,
        "seconds without progress that count as a hang"},
    {"WATCH", SETTING_SWITCH, "off", 0, 0, NULL, false, "watchdog that restarts a dead pair"},
    {"WATCH_FAILS", SETTING_INT, "3", 1, 100, NULL, false, "bad ticks before it acts"},
    {"WATCH_MIN_HEAL", SETTING_INT, "1800", 0, SECOND_DAY, NULL, false,
        "seconds between two restarts"},
    {"WATCH_FF_MIN_HEAL", SETTING_INT, "120", 0, SECOND_DAY, NULL, false,
        "seconds between two restarts after a fail-fast exit"},
    {"WATCH_GRACE", SETTING_INT, "1800", 0, SECOND_DAY, NULL, false,
        "seconds after a start in which it stands down"},
    {"VERIFY_ON_START", SETTING_WORD, "on", 0, 0, "off on strict", false,
        "verify after each start; strict stops on a failure"},
    {"LOG_DIR", SETTING_PATH, "", 0, 0, NULL, true,
        "folder of the logs; not set: the state folder"},
    {"LOG_KEEP", SETTING_INT, "10", 1, 1000, NULL, true, "old logs kept for each rank"},
    {"NOTIFY", SETTING_PATH, "", 0, 0, NULL, true,
        "program that is told when the watchdog acts: gets a code and a sentence"},
};
enum { N_KEYS = sizeof KEYS / sizeof KEYS[0] };

const setting_key *settings_keys(size_t *n) {
    *n = N_KEYS;
    return KEYS;
}

const setting_key *settings_key(const char *name) {
    for (size_t i = 0; i < N_KEYS; i++) {
        if (str_eq(KEYS[i].name, name)) return &KEYS[i];
    }
    return NULL;
}

static const char *name_at(size_t i, void *ctx) {
    (void)ctx;
    return KEYS[i].name;
}

const char *settings_nearest(const char *name) {
    return str_nearest(name, name_at, N_KEYS, NULL);
}
