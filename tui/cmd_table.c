/* Constant data: every command, option and slash command of the program. */
#include "tui/cmd_table.h"

#include "tui/cmd_internal.h"

#define JSON_OPTION                                                                                \
    { "json", 0, NULL, "print one JSON object", COMPLETE_NONE }
#define END_OPTION                                                                                 \
    { NULL, 0, NULL, NULL, COMPLETE_NONE }

static const cmd_option COMMON[] = {
    {"help", 'h', NULL, "show this help", COMPLETE_NONE},
    {"socket", 0, "PATH", "socket of the engine (also TANDEM_SOCKET)", COMPLETE_FILE},
    END_OPTION,
};

static const cmd_option SCREEN_OPTIONS[] = {
    {"screen", 0, "NAME", "start with home, chat, dash or setup", COMPLETE_SCREEN},
    {"plain", 0, NULL, "no full screen: chat line by line", COMPLETE_NONE},
    {"ascii", 0, NULL, "frames and plots in ASCII", COMPLETE_NONE},
    {"color", 0, "WHEN", "auto, none, 8 or 256", COMPLETE_COLOR},
    {"mouse", 0, "HOW", "off, wheel or on", COMPLETE_MOUSE},
    {"model", 'm', "DIR", "model to start the engine with", COMPLETE_DIR},
    {"version", 'V', NULL, "print versions", COMPLETE_NONE},
    END_OPTION,
};

#define SAMPLING_OPTIONS                                                                           \
    {"system", 's', "TEXT", "system prompt; @FILE reads a file", COMPLETE_FILE},                   \
        {"thinking", 't', "EFFORT", "off, on, minimal, low, medium, high, xhigh, max or 1 to 100", \
            COMPLETE_EFFORT},                                                                      \
        {"set", 0, "KEY=VALUE",                                                                    \
            "temp, top-p, top-k, min-p, rep-pen, seed, max, stop, think-budget",                   \
            COMPLETE_SET_KEY},                                                                     \
    {                                                                                              \
        "model", 'm', "DIR", "model to start the engine with", COMPLETE_DIR                        \
    }

static const cmd_option ASK_OPTIONS[] = {
    {"file", 'f', "FILE", "put a text file before the question", COMPLETE_FILE},
    {"session", 0, "NAME", "go on with a session, or begin one with this title", COMPLETE_SESSION},
    {"stream", 0, NULL, "print events as JSON lines while they come", COMPLETE_NONE},
    {"show-thinking", 0, NULL, "print the thinking too, on standard error", COMPLETE_NONE},
    JSON_OPTION,
    SAMPLING_OPTIONS,
    END_OPTION,
};

static const cmd_option CHAT_OPTIONS[] = {
    {"plain", 0, NULL, "line by line, for screen readers, pipes and simple terminals",
        COMPLETE_NONE},
    {"continue", 'c', NULL, "go on with the last session", COMPLETE_NONE},
    {"resume", 'r', "NAME", "go on with this session", COMPLETE_SESSION},
    {"chunk", 0, "UNIT", "plain: print by word, sentence or reply", COMPLETE_CHUNK},
    {"show-thinking", 0, NULL, "plain: print the thinking too", COMPLETE_NONE},
    {"ascii", 0, NULL, "frames and plots in ASCII", COMPLETE_NONE},
    {"color", 0, "WHEN", "auto, none, 8 or 256", COMPLETE_COLOR},
    {"mouse", 0, "HOW", "off, wheel or on", COMPLETE_MOUSE},
    SAMPLING_OPTIONS,
    END_OPTION,
};

static const cmd_option STATUS_OPTIONS[] = {
    JSON_OPTION,
    {"local", 0, NULL, "this machine alone, also when a pair is set up", COMPLETE_NONE},
    {"watch", 'w', NULL, "print again every second until Ctrl-C", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option START_OPTIONS[] = {
    {"model", 'm', "DIR", "model to load; the setting MODEL_DIR, else the demo model",
        COMPLETE_DIR},
    {"timeout", 0, "SECONDS", "how long to wait for ready", COMPLETE_NONE},
    {"threads", 0, "N", "CPU threads of the engine", COMPLETE_NONE},
    {"local", 0, NULL, "this machine alone, also when a pair is set up", COMPLETE_NONE},
    {"dry-run", 0, NULL, "only show what would be done; the memory plan", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option STOP_OPTIONS[] = {
    {"timeout", 0, "SECONDS", "how long to wait for running replies", COMPLETE_NONE},
    {"local", 0, NULL, "this machine alone, also when a pair is set up", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

#define ROOT_OPTIONS                                                                               \
    {"head-root", 0, "DIR", "look at a stored tree in place of the head", COMPLETE_DIR}, {         \
        "worker-root", 0, "DIR", "look at a stored tree in place of the worker", COMPLETE_DIR      \
    }

static const cmd_option DOCTOR_OPTIONS[] = {
    {"terminal", 0, NULL, "what this terminal can do: locale, widths, colours", COMPLETE_NONE},
    ROOT_OPTIONS,
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option WATCH_OPTIONS[] = {
    {"boot", 0, NULL, "start the pair after a boot, if it was serving before", COMPLETE_NONE},
    {"dry-run", 0, NULL, "only say what would be done", COMPLETE_NONE},
    {"pause", 0, "MINUTES", "maintenance: judge nothing for so long; 0 ends it", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option SERVICE_OPTIONS[] = {
    {"dry-run", 0, NULL, "print files and commands of each machine, change nothing", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option VERIFY_OPTIONS[] = {
    {"level", 0, "N", "1 (six requests), 2 (about two minutes) or 3 (quality, whole window, soak)",
        COMPLETE_NONE},
    {"soak", 0, "MINUTES", "level 3: length of the soak (default 60); 0 leaves it out",
        COMPLETE_NONE},
    {"url", 0, "URL", "another endpoint than the engine here, such as http://127.0.0.1:8888",
        COMPLETE_NONE},
    {"key-file", 0, "FILE", "file that holds the key of the endpoint", COMPLETE_FILE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option SETUP_OPTIONS[] = {
    {"check", 0, NULL, "look at every step and change nothing", COMPLETE_NONE},
    {"resume", 0, NULL, "go on at the first step that is not proven (it does so anyway)",
        COMPLETE_NONE},
    {"dry-run", 'n', NULL, "print the whole plan with its id, run nothing", COMPLETE_NONE},
    {"yes", 'y', NULL, "carry a plan out without questions", COMPLETE_NONE},
    {"plan", 0, "ID", "the plan that --yes carries out: the one --dry-run showed", COMPLETE_NONE},
    {"answers", 0, "FILE", "answers to the questions, KEY=VALUE lines", COMPLETE_FILE},
    {"plain", 0, NULL, "line by line, for screen readers and simple terminals", COMPLETE_NONE},
    {"ascii", 0, NULL, "frames in ASCII", COMPLETE_NONE},
    {"color", 0, "WHEN", "auto, none, 8 or 256", COMPLETE_COLOR},
    {"mouse", 0, "HOW", "off, wheel or on", COMPLETE_MOUSE},
    {"json", 0, NULL, "print JSON, one object a line", COMPLETE_NONE},
    ROOT_OPTIONS,
    END_OPTION,
};

static const cmd_option UNDO_OPTIONS[] = {
    {"data", 0, NULL, "also the model files", COMPLETE_NONE},
    {"force", 0, NULL, "also what was changed since by others", COMPLETE_NONE},
    {"dry-run", 'n', NULL, "list what would be taken back", COMPLETE_NONE},
    {"yes", 'y', NULL, "do not ask", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option CHECK_OPTIONS[] = {
    {"node", 0, "NODE", "head, worker or both (default)", COMPLETE_NODE},
    {"list", 0, NULL, "list the checks and run none", COMPLETE_NONE},
    {"all", 0, NULL, "also those that make load or traffic", COMPLETE_NONE},
    {"save", 0, NULL, "keep the values as the baseline of this pair", COMPLETE_NONE},
    JSON_OPTION,
    ROOT_OPTIONS,
    END_OPTION,
};

static const cmd_option LINK_OPTIONS[] = {JSON_OPTION, ROOT_OPTIONS, END_OPTION};

static const cmd_option LINK_APPLY_OPTIONS[] = {
    {"dry-run", 'n', NULL, "show everything, change nothing", COMPLETE_NONE},
    {"yes", 'y', NULL, "do not ask", COMPLETE_NONE},
    {"replace", 0, NULL, "addresses that are set may be replaced", COMPLETE_NONE},
    ROOT_OPTIONS,
    END_OPTION,
};

static const cmd_option TRUST_OPTIONS[] = {
    {"from", 0, "ADDRESSES", "the key works from these addresses only", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option IMPORT_OPTIONS[] = {
    {"yes", 'y', NULL, "set what was understood", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option SUPPORT_OPTIONS[] = {
    {"output", 'o', "FILE", "where to write; tandem-support-DATE.txt here if not given",
        COMPLETE_FILE},
    {"print", 0, NULL, "only show it", COMPLETE_NONE},
    {"yes", 'y', NULL, "write without showing and asking", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option SERVE_OPTIONS[] = {
    {"bind", 'b', "ADDRESS", "address to serve on (default 127.0.0.1)", COMPLETE_NONE},
    {"port", 'p', "PORT", "port (default 8888)", COMPLETE_NONE},
    {"keys", 'k', "FILE", "file of API keys; the usual one is used when it exists", COMPLETE_FILE},
    {"confirm-remote", 0, "ADDRESS", "the address again, when other machines shall reach it",
        COMPLETE_NONE},
    {"tls-certificate", 0, "FILE", "HTTPS with this PEM certificate", COMPLETE_FILE},
    {"tls-key", 0, "FILE", "its key", COMPLETE_FILE},
    {"cors", 0, "ORIGINS", "web pages that may use it, separated by commas, * for all",
        COMPLETE_NONE},
    {"request-log", 0, "FILE", "write a JSON line for each request", COMPLETE_FILE},
    {"log-prompts", 0, NULL, "with the prompts in that file", COMPLETE_NONE},
    {"request-timeout", 0, "S", "cut replies that take longer", COMPLETE_NONE},
    {"keep-alive", 0, "S", "comment lines in quiet streams, 1 to 60 (default 5)", COMPLETE_NONE},
    {"json-keepalive", 0, NULL, "line breaks before whole answers that take long", COMPLETE_NONE},
    {"open-metrics", 0, NULL, "/metrics without a key", COMPLETE_NONE},
    {"strict-model", 0, NULL, "refuse other model names with 404", COMPLETE_NONE},
    {"loop-guard", 0, NULL, "end replies that go round in circles, if not asked otherwise",
        COMPLETE_NONE},
    {"answer-room", 0, NULL, "thinking leaves room for the answer within max_tokens",
        COMPLETE_NONE},
    {"local", 0, NULL, "this machine alone, also when a pair is set up", COMPLETE_NONE},
    {"detach", 'd', NULL, "in the background", COMPLETE_NONE},
    {"model", 'm', "DIR", "model to load; the setting MODEL_DIR, else the demo model",
        COMPLETE_DIR},
    END_OPTION,
};

static const cmd_option KEY_OPTIONS[] = {
    {"keys", 'k', "FILE", "file of API keys (default: api-keys beside the settings)",
        COMPLETE_FILE},
    {"requests", 0, "N", "new: at most so many requests at once", COMPLETE_NONE},
    {"tokens", 0, "N", "new: at most so many tokens in an hour", COMPLETE_NONE},
    {"seconds", 0, "N", "new: a reply that takes longer is cut", COMPLETE_NONE},
    {"context", 0, "N", "new: tokens of prompt and reply together", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option REQUESTS_OPTIONS[] = {
    {"watch", 'w', NULL, "go on printing until Ctrl-C", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option JSON_ONLY[] = {JSON_OPTION, END_OPTION};

static const cmd_option API_ON_OPTIONS[] = {
    {"bind", 'b', "ADDRESS", "address to serve on; the setting API_BIND", COMPLETE_NONE},
    {"port", 'p', "PORT", "port; the setting API_PORT", COMPLETE_NONE},
    {"keys", 'k', "FILE", "file of API keys (default: api-keys beside the settings)",
        COMPLETE_FILE},
    {"confirm-remote", 0, "ADDRESS", "the address again, when other machines shall reach it",
        COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option WIPE_OPTIONS[] = {
    {"yes", 'y', NULL, "do not ask", COMPLETE_NONE},
    {"local", 0, NULL, "this machine alone, also when a pair is set up", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

#define JOB_OPTIONS                                                                                \
    {"profile", 0, "NAME", "manifest to use; the setting PROFILE", COMPLETE_NONE},                 \
        {"background", 'b', NULL, "do not watch it", COMPLETE_NONE},                               \
        {"attach", 0, NULL, "only watch one that runs, or say how the last one ended",             \
            COMPLETE_NONE},                                                                        \
        {"pause", 0, NULL, "stop it in order; the same command goes on later", COMPLETE_NONE},     \
        {"cancel", 0, NULL, "stop it; what arrived is kept", COMPLETE_NONE},                       \
        {"ascii", 0, NULL, "bars and plots in ASCII", COMPLETE_NONE}, {                            \
        "job", 0, NULL, "do the work in this process, without watching", COMPLETE_NONE             \
    }

static const cmd_option DOWNLOAD_OPTIONS[] = {
    JOB_OPTIONS,
    {"rate", 0, "MB/S", "change the limit of one that runs; 0 is none", COMPLETE_NONE},
    {"connections", 0, "N", "change the connections of one that runs", COMPLETE_NONE},
    {"json", 0, NULL, "print one JSON object a line while it runs", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option COPY_OPTIONS[] = {
    JOB_OPTIONS,
    {"json", 0, NULL, "print one JSON object a line while it runs", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option PREPARE_OPTIONS[] = {
    JOB_OPTIONS,
    {"model", 0, "DIR", "this folder instead of the profile's; all ranks here", COMPLETE_FILE},
    {"out", 0, "DIR", "folder for the prepared files", COMPLETE_FILE},
    {"ranks", 0, "N", "machines the model is split over; 2 with a worker, else 1", COMPLETE_NONE},
    {"rank", 0, "R", "only this one", COMPLETE_NONE},
    {"layout", 0, "cpu|gpu", "for which engine; what tandemd computes on", COMPLETE_NONE},
    {"no-drafts", 0, NULL, "leave the draft stages out", COMPLETE_NONE},
    {"check", 0, NULL, "read what is there back, make damaged blocks anew", COMPLETE_NONE},
    {"self-test", 0, NULL, "only the prompt self-test", COMPLETE_NONE},
    {"json", 0, NULL, "print one JSON object a line while it runs", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option LOCK_OPTIONS[] = {
    {"profile", 0, "NAME", "profile to lock; the setting PROFILE", COMPLETE_NONE},
    {"weights", 0, "OWNER/NAME[@REV]", "repository of the weights", COMPLETE_NONE},
    {"engram", 0, "OWNER/NAME[@REV]", "repository of the Engram tables", COMPLETE_NONE},
    {"yes", 'y', NULL, "do not ask", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option QUANTIZE_OPTIONS[] = {
    {"bits", 'b', "MAP", "rules PATTERN=BITS,... (* and ? match), demo, or @FILE", COMPLETE_NONE},
    {"threads", 0, "N", "threads; not given: one for each core", COMPLETE_NONE},
    {"restart", 0, NULL, "do not go on with an earlier run", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option ENGRAM_OPTIONS[] = {
    {"config", 0, "DIR", "folder of config.json when IN holds only the tables", COMPLETE_DIR},
    {"world", 0, "N", "pack the part of one of N ranks; not given: whole tables", COMPLETE_NONE},
    {"rank", 0, "R", "which rank, from 0", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option SHOW_OPTIONS[] = {
    {"all", 0, NULL, "all branches, not only the current one", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option EXPORT_OPTIONS[] = {
    {"format", 0, "FORMAT", "md, json (lossless) or txt", COMPLETE_FORMAT},
    {"output", 'o', "FILE", "write to a file", COMPLETE_FILE},
    END_OPTION,
};

static const cmd_option HELP_OPTIONS[] = {
    {"man", 0, NULL, "print the manual page of a command in roff", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option DELETE_OPTIONS[] = {
    {"yes", 'y', NULL, "do not ask", COMPLETE_NONE},
    END_OPTION,
};

static const cmd_option CONFIG_OPTIONS[] = {
    {"verbose", 'v', NULL, "with where each value came from", COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option LOGS_OPTIONS[] = {
    {"follow", 'f', NULL, "go on printing until Ctrl-C", COMPLETE_NONE},
    {"lines", 'n', "N", "only the last N lines (default 100)", COMPLETE_NONE},
    {"level", 'l', "LEVEL", "error, warn, info or debug and worse", COMPLETE_LEVEL},
    {"grep", 'g', "RE", "only lines that match an extended regular expression", COMPLETE_NONE},
    {"since", 0, "TIME", "only lines since a time (UTC) or for so long: 10m, 2h, 1d",
        COMPLETE_NONE},
    {"node", 0, "NODE", "pair: only head or worker", COMPLETE_NODE},
    {"local", 0, NULL, "the engine of this machine alone, also when a pair is set up",
        COMPLETE_NONE},
    {"wipe", 0, NULL, "empty the log of requests, which holds prompts (API_LOG_BODIES)",
        COMPLETE_NONE},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_option BENCH_OPTIONS[] = {
    {"reps", 'n', "N", "repetitions (default 3)", COMPLETE_NONE},
    {"tokens", 0, "N", "tokens of a reply (default 128)", COMPLETE_NONE},
    {"prompt-tokens", 0, "N", "about this many prompt tokens (default 512)", COMPLETE_NONE},
    {"prompts", 0, "FILE", "prompts of the decode cells, one a line", COMPLETE_FILE},
    {"model", 'm', "DIR", "model to start the engine with", COMPLETE_DIR},
    JSON_OPTION,
    END_OPTION,
};

static const cmd_entry ENTRIES[] = {
    {"", NULL, "", 0, 0, "open the full screen",
        "Attaches to a running engine. Without one, an engine with the built-in demo model is "
        "started when no model is set (MODEL_DIR); for any other model the Home screen offers to "
        "start it. Without a terminal use the commands below.",
        SCREEN_OPTIONS, COMPLETE_NONE, cmd_screen},
    {"ask", NULL, "[TEXT...|-]", 0, -1, "one question, one answer",
        "Without TEXT, or with -, the question is read from standard input. The answer goes to "
        "standard output as it is written, everything else to standard error. Ctrl-C stops the "
        "answer and exits with 130.",
        ASK_OPTIONS, COMPLETE_NONE, cmd_ask},
    {"chat", NULL, "", 0, 0, "chat, in the full screen or line by line",
        "Line by line (--plain, ACCESSIBLE set, TERM=dumb, or no terminal): a line is sent with "
        "Enter; a line of three double quotes begins and ends a message of several lines; /help "
        "lists the commands. Every turn is kept in a session.",
        CHAT_OPTIONS, COMPLETE_NONE, cmd_chat},
    {"setup", NULL, "", 0, 0, "guided set-up of two machines",
        "Sixteen steps from two boxes and a cable to a verified endpoint. Each looks first, shows "
        "every file and command it would change, does that after you agree, and proves it. It can be "
        "stopped anywhere and goes on at the same step. Without a terminal, or with --plain, it asks "
        "line by line. --dry-run prints the plan and its id; --yes --plan ID carries out exactly that "
        "plan. Answers are settings (see tandem.conf) and ACCEPT_HOST_KEY=SHA256:..., "
        "ACCEPT_WARNINGS=yes, API_KEY_LABEL=LABEL, CONFIRM_ADDRESS=ADDRESS, INSTALL_UNITS=on|off.",
        SETUP_OPTIONS, COMPLETE_NONE, cmd_setup},
    {"undo", "list", "", 0, 0, "what set-up changed on both machines", NULL, JSON_ONLY,
        COMPLETE_NONE, cmd_undo_list},
    {"undo", "apply", "[ID...]", 0, -1, "take changes of set-up back, the newest first",
        "All of them, or those named. What somebody else changed since is left alone (--force), and "
        "so are the model files (--data).",
        UNDO_OPTIONS, COMPLETE_NONE, cmd_undo_apply},
    {"status", NULL, "", 0, 0, "state of the engine or the pair, its requests and its memory",
        "Exit code 0 when the engine is ready, 41 when it is not running or not ready, 40 when a "
        "machine of the pair cannot be reached; what the other one says is shown all the same. "
        "With --json also versions, provenance and licences of both machines.",
        STATUS_OPTIONS, COMPLETE_NONE, cmd_status},
    {"start", NULL, "", 0, 0, "start the engine in the background and wait until it is ready",
        "An engine that runs already is left alone. The engine stays when this program ends. When a "
        "pair is set up (WORKER_SSH, the addresses of rail A, WORKER_DATA), one rank is started on "
        "each machine: the engine is copied to the worker by digest, ports and memory are checked, "
        "and both ranks come up together or not at all.",
        START_OPTIONS, COMPLETE_NONE, cmd_start},
    {"stop", NULL, "", 0, 0, "stop the engine; running replies are finished first", NULL,
        STOP_OPTIONS, COMPLETE_NONE, cmd_stop},
    {"restart", NULL, "", 0, 0, "stop and start", NULL, START_OPTIONS, COMPLETE_NONE, cmd_restart},
    {"doctor", NULL, "", 0, 0, "from what is wrong to why, and what to do; changes nothing",
        "Looks at the pair, runs every check that makes no load on both machines, reads the ends of "
        "the logs, and names the causes that fit, most certain first, with what was seen. Exit code "
        "0: nothing found, 10: warnings, 20: something is wrong, 40: the worker cannot be reached.",
        DOCTOR_OPTIONS, COMPLETE_NONE, cmd_doctor},
    {"watch", NULL, "", 0, 0, "one look of the watchdog at the pair; heals within a budget",
        "A look is bad when a rank ended, the engine is not ready outside a start, or requests do not "
        "move. Three bad looks are one new start, at most one in 30 minutes; a rank that ended by "
        "itself heals at the first look, at most every 2 minutes; after three within 6 hours it stays "
        "down and NOTIFY is told. It stands down during a start, for half an hour after one, after a "
        "stop on purpose and in maintenance. Exit code 0: nothing to do or healed, 10: a bad look was "
        "counted, 20: it gave up.",
        WATCH_OPTIONS, COMPLETE_NONE, cmd_watch},
    {"service", "install", "", 0, 0, "systemd units of the user on both machines",
        "The keeper on each; on the head the start after a boot and, with WATCH on, the watchdog "
        "every minute. So that they run without a login, loginctl enable-linger is tried and, where "
        "that is not permitted, explained. A unit never starts a rank again by itself.",
        SERVICE_OPTIONS, COMPLETE_NONE, cmd_service_install},
    {"service", "remove", "", 0, 0, "remove these units; what runs goes on", NULL, SERVICE_OPTIONS,
        COMPLETE_NONE, cmd_service_remove},
    {"service", "show", "", 0, 0, "the units as they would be written; with --json their state",
        NULL, JSON_ONLY, COMPLETE_NONE, cmd_service_show},
    {"verify", NULL, "", 0, 0, "send real requests to the engine and judge each answer",
        "Exit code 0: all passed; 10: with warnings; 20: a line failed. A line whose feature the "
        "engine does not have is SKIP with its reason.",
        VERIFY_OPTIONS, COMPLETE_NONE, cmd_verify},
    {"support", NULL, "", 0, 0, "one text file that helps to understand a fault",
        "Versions, settings, state and figures of the engine, checks of this machine and the end of "
        "the log; with two machines also the state of the pair and the logs of both. Keys, "
        "passwords, host and user names, public addresses, prompts and replies are taken out; the "
        "text is shown before it is written.",
        SUPPORT_OPTIONS, COMPLETE_NONE, cmd_support},
    {"serve", NULL, "", 0, 0, "the engine with its OpenAI-compatible HTTP endpoint",
        "In the foreground the process becomes the engine and ends with Ctrl-C; with --detach it "
        "goes to the background; where an engine runs already, tandem api on opens its endpoint. On "
        "127.0.0.1 no key is needed until the first one is made; any other address needs a key file "
        "and the address typed again, unless tandem api on kept it before. See tandem-api(7) for the "
        "settings of each client.",
        SERVE_OPTIONS, COMPLETE_NONE, cmd_serve},
    {"api", "key", "new|list|revoke [LABEL]", 1, 2, "keys of the HTTP endpoint",
        "A new key is shown once; the file keeps its digest. A running engine notices changes.",
        KEY_OPTIONS, COMPLETE_NONE, cmd_api_key},
    {"api", "on", "", 0, 0, "switch the HTTP endpoint on, now and for later starts",
        "On the running engine at once. 127.0.0.1 is reached from this machine only, and needs no key "
        "until the first one is made (tandem api key new LABEL); another address always "
        "needs an API key, and you type it a second time: that is kept as API_CONFIRMED and holds for "
        "this address alone. Give the address of one interface; 0.0.0.0 is every network at once.",
        API_ON_OPTIONS, COMPLETE_NONE, cmd_api_on},
    {"api", "off", "", 0, 0, "switch it off, now and for later starts", NULL, JSON_ONLY,
        COMPLETE_NONE, cmd_api_off},
    {"api", "requests", "", 0, 0, "requests that run and the last ones that were answered", NULL,
        REQUESTS_OPTIONS, COMPLETE_NONE, cmd_api_requests},
    {"cache", "list", "", 0, 0, "what the cache of prompts holds",
        "Beginnings of earlier requests, which the engine need not compute again: number, tokens, and "
        "whether a copy is on the disk, or nothing but that, as of earlier starts.",
        JSON_ONLY, COMPLETE_NONE, cmd_cache_list},
    {"cache", "rm", "ID...", 1, -1, "forget entries of the cache", NULL, JSON_ONLY, COMPLETE_NONE,
        cmd_cache_rm},
    {"cache", "wipe", "", 0, 0, "forget all of the cache, in memory and on the disks",
        "What earlier requests held goes: from the running engine, and from the data folders of both "
        "machines, also what other models or earlier builds left there. Requests that run go on and "
        "keep what they use. Files are removed, not overwritten. Exit code 40 when the worker cannot "
        "be reached; the head is wiped all the same.",
        WIPE_OPTIONS, COMPLETE_NONE, cmd_cache_wipe},
    {"model", "list", "", 0, 0, "models this machine has", NULL, JSON_ONLY, COMPLETE_NONE,
        cmd_model_list},
    {"model", "show", "[DIR]", 0, 1, "configuration of a model", NULL, JSON_ONLY, COMPLETE_DIR,
        cmd_model_show},
    {"model", "quantize", "IN OUT", 2, 2, "make EXL3 weights from plain ones",
        "IN is a folder with config.json and safetensors under the official names, OUT a new "
        "folder. BITS is 1 to 8, also 1.5, 2.5 and 3.5; or keep, f16, bf16, f32 for tensors that stay "
        "plain. Ctrl-C stops; finished matrices are kept and the same command goes on with them.",
        QUANTIZE_OPTIONS, COMPLETE_DIR, cmd_model_quantize},
    {"model", "engram", "IN OUT", 2, 2, "pack Engram tables for direct reads",
        "One checksummed record a row, so that the engine reads tables of any size from the disk. "
        "Ctrl-C stops; what is written is kept and the same command goes on with it. The engine "
        "takes OUT with: tandemd --engram OUT",
        ENGRAM_OPTIONS, COMPLETE_DIR, cmd_model_engram},
    {"model", "lock", "", 0, 0, "ask the hub once for commits and digests, and fix them",
        "For profiles whose commits the program does not know. Sizes, architecture and digests are "
        "checked against what is known; names that are not known for certain must be given.",
        LOCK_OPTIONS, COMPLETE_NONE, cmd_model_lock},
    {"download", NULL, "", 0, 0, "load the model of the profile into the data folder",
        "Runs as a job of its own that goes on when this program ends; Ctrl-C only stops watching. "
        "Finished parts are kept across pauses and crashes. Nothing is put under its final name "
        "before its digest was compared with the manifest.",
        DOWNLOAD_OPTIONS, COMPLETE_NONE, cmd_download},
    {"copy", NULL, "", 0, 0, "copy the model of the profile to the worker",
        "Over both rails, with a receiver that is started by ssh; a job like download. The worker "
        "compares each file with the manifest itself.",
        COPY_OPTIONS, COMPLETE_NONE, cmd_copy},
    {"prepare", NULL, "", 0, 0, "make the files that each machine loads at a start",
        "First the prompts are tested against DeepSeek's own encoder. Then each machine gets its part "
        "of the weights, cut and in the order its engine reads, in one file with a digest for each "
        "block; a job like download, which goes on where it was stopped. The worker makes its file "
        "itself.",
        PREPARE_OPTIONS, COMPLETE_NONE, cmd_prepare},
    {"sessions", "list", "", 0, 0, "kept sessions, newest first", NULL, JSON_ONLY, COMPLETE_NONE,
        cmd_sessions_list},
    {"sessions", "show", "NAME", 1, 1, "print a session", NULL, SHOW_OPTIONS, COMPLETE_SESSION,
        cmd_sessions_show},
    {"sessions", "export", "NAME", 1, 1, "write a session as Markdown, JSON or text", NULL,
        EXPORT_OPTIONS, COMPLETE_SESSION, cmd_sessions_export},
    {"sessions", "import", "FILE", 1, 1, "make a session from a JSON export", NULL, JSON_ONLY,
        COMPLETE_FILE, cmd_sessions_import},
    {"sessions", "fork", "NAME", 1, 1, "copy the current branch into a new session", NULL,
        JSON_ONLY, COMPLETE_SESSION, cmd_sessions_fork},
    {"sessions", "rename", "NAME TITLE...", 2, -1, "give a session another title", NULL, NULL,
        COMPLETE_SESSION, cmd_sessions_rename},
    {"sessions", "delete", "NAME...", 1, -1, "delete sessions", NULL, DELETE_OPTIONS,
        COMPLETE_SESSION, cmd_sessions_delete},
    {"config", "list", "", 0, 0, "all settings", NULL, CONFIG_OPTIONS, COMPLETE_NONE,
        cmd_config_list},
    {"config", "get", "KEY", 1, 1, "one setting", NULL, CONFIG_OPTIONS, COMPLETE_SETTING,
        cmd_config_get},
    {"config", "set", "KEY VALUE", 2, 2, "change a setting in the file", NULL, NULL,
        COMPLETE_SETTING, cmd_config_set},
    {"config", "unset", "KEY", 1, 1, "take a setting out of the file", NULL, NULL, COMPLETE_SETTING,
        cmd_config_unset},
    {"config", "sample", "", 0, 0, "a settings file with every key as a comment", NULL, NULL,
        COMPLETE_NONE, cmd_config_sample},
    {"config", "path", "", 0, 0, "where the settings file is", NULL, NULL, COMPLETE_NONE,
        cmd_config_path},
    {"config", "import", "FILE", 1, 1, "take over the settings file of another recipe",
        "Shows line by line what was understood, ignored or could not be mapped; nothing is changed "
        "before you agree (--yes). The file is read, never run by a shell.",
        IMPORT_OPTIONS, COMPLETE_FILE, cmd_config_import},
    {"check", NULL, "[ID]", 0, 1, "check the two machines",
        "Each check says what it found, why it matters and what to do: PASS, WARN, FAIL, SKIP or "
        "UNKNOWN (could not be measured). Nothing is changed. Checks that make load or traffic run "
        "when they are named, or with --all. Exit code 20 when one failed, 10 for warnings, 40 when "
        "the worker cannot be reached.",
        CHECK_OPTIONS, COMPLETE_NONE, cmd_check},
    {"link", "show", "", 0, 0, "network devices of both machines", NULL, LINK_OPTIONS,
        COMPLETE_NONE, cmd_link_show},
    {"link", "plan", "", 0, 0, "addresses and files the cable needs",
        "Shows the differences to the netplan files that are there and changes nothing. Exit code 0 "
        "when nothing needs to change, 10 when something does, 20 when there is no usable port.",
        LINK_OPTIONS, COMPLETE_NONE, cmd_link_plan},
    {"link", "apply", "", 0, 0, "set up the cable as planned",
        "The worker first. The old file is kept; a machine that cannot be reached afterwards goes back "
        "by itself after 120 seconds.",
        LINK_APPLY_OPTIONS, COMPLETE_NONE, cmd_link_apply},
    {"link", "prove", "", 0, 0, "prove the cable with traffic",
        "Peers, routes, round trips, rate over TCP on both rails at once, RDMA where ib_write_bw is "
        "installed. The proof is kept with the boots of both machines.",
        LINK_OPTIONS, COMPLETE_NONE, cmd_link_prove},
    {"node", "list", "", 0, 0, "the machines and whether they can be reached", NULL, JSON_ONLY,
        COMPLETE_NONE, cmd_node_list},
    {"node", "exec", "NODE COMMAND...", 2, -1, "run a command on head or worker",
        "Words are passed as they are; no shell reads them. Put -- before a command with options.",
        NULL, COMPLETE_NODE, cmd_node_exec},
    {"node", "logs", "NODE", 1, 1, "end of the logs on head or worker", NULL, NULL, COMPLETE_NODE,
        cmd_node_logs},
    {"node", "trust", "[USER@HOST]", 0, 1, "first contact with the worker over ssh",
        "Shows the worker's key to compare, makes an ssh key used for nothing else, asks for the "
        "worker's password once, and proves that the key alone is enough afterwards.",
        TRUST_OPTIONS, COMPLETE_NONE, cmd_node_trust},
    {"logs", NULL, "", 0, 0, "log of the engine, of both machines of a pair merged by time",
        "Of the newest start on each machine: the rank and its keeper. A machine that cannot be "
        "reached is left out and named. At most 1 MiB of each log is read.",
        LOGS_OPTIONS, COMPLETE_NONE, cmd_logs},
    {"bench", NULL, "PROTOCOL...", 1, 3, "measure decode, prefill or first through the engine",
        "Everything goes over the engine's socket as a chat client would. decode: the rate of one "
        "stream, (tokens - 1) / (last - first text). prefill: prompt tokens computed per second, "
        "on prompts never seen before. first: time to the first text of a short question. The "
        "headline is the median; all repetitions are printed.",
        BENCH_OPTIONS, COMPLETE_PROTOCOL, cmd_bench},
    {"keys", NULL, "", 0, 0, "the key table of the full screen", NULL, NULL, COMPLETE_NONE,
        cmd_keys},
    {"completion", NULL, "SHELL", 1, 1, "completion script for bash, zsh or fish",
        "The script is printed; put it where your shell looks for completions.", NULL,
        COMPLETE_SHELL, cmd_completion},
    {"version", NULL, "", 0, 0, "versions of program and engine", NULL, JSON_ONLY, COMPLETE_NONE,
        cmd_version},
    {"help", NULL, "[NOUN [VERB]]", 0, 2, "help for a command", NULL, HELP_OPTIONS,
        COMPLETE_COMMAND, cmd_help_run},
};

enum { BOTH = SLASH_IN_PLAIN | SLASH_IN_SCREEN };

static const slash_entry SLASHES[] = {
    {SLASH_HELP, "help", "[WORD]", "these commands", COMPLETE_COMMAND, BOTH},
    {SLASH_NEW, "new", "", "begin a new session", COMPLETE_NONE, BOTH},
    {SLASH_SESSIONS, "sessions", "", "list the sessions", COMPLETE_NONE, BOTH},
    {SLASH_OPEN, "open", "NAME", "open a session", COMPLETE_SESSION, BOTH},
    {SLASH_RENAME, "rename", "TITLE", "give this session another title", COMPLETE_NONE, BOTH},
    {SLASH_DELETE, "delete", "NAME", "delete a session", COMPLETE_SESSION, BOTH},
    {SLASH_EXPORT, "export", "md|json|txt FILE", "write this session to a file", COMPLETE_FORMAT,
        BOTH},
    {SLASH_AGAIN, "again", "[KEY=VALUE...]", "answer the last question again", COMPLETE_SET_KEY,
        BOTH},
    {SLASH_EDIT, "edit", "[N]", "change a question of yours; sending makes a branch", COMPLETE_NONE,
        SLASH_IN_SCREEN},
    {SLASH_CONTINUE, "continue", "", "go on with a stopped or cut reply", COMPLETE_NONE, BOTH},
    {SLASH_UNDO, "undo", "", "go back one turn; nothing is deleted", COMPLETE_NONE, BOTH},
    {SLASH_REDO, "redo", "", "take an undo back", COMPLETE_NONE, BOTH},
    {SLASH_BRANCHES, "branches", "", "list the branches", COMPLETE_NONE, BOTH},
    {SLASH_BRANCH, "branch", "N", "go to a branch", COMPLETE_NONE, BOTH},
    {SLASH_FORK, "fork", "[TITLE]", "copy this branch into a new session", COMPLETE_NONE, BOTH},
    {SLASH_SYSTEM, "system", "[TEXT|@FILE]", "show or set the system prompt", COMPLETE_FILE, BOTH},
    {SLASH_SET, "set", "[KEY VALUE]",
        "show or change temp, top-p, top-k, min-p, rep-pen, seed, max, stop, think, think-budget",
        COMPLETE_SET_KEY, BOTH},
    {SLASH_UNSET, "unset", "KEY", "back to the engine's default", COMPLETE_SET_KEY, BOTH},
    {SLASH_THINK, "think", "[off|on|EFFORT]", "thinking and its effort", COMPLETE_EFFORT, BOTH},
    {SLASH_RAW, "raw", "", "raw text or rendered", COMPLETE_NONE, SLASH_IN_SCREEN},
    {SLASH_FOLD, "fold", "", "fold or open the thinking", COMPLETE_NONE, SLASH_IN_SCREEN},
    {SLASH_COPY, "copy", "[N|all]", "copy the reply, a code block, or all", COMPLETE_NONE,
        SLASH_IN_SCREEN},
    {SLASH_SAVE, "save", "FILE", "write the last reply to a file", COMPLETE_FILE, BOTH},
    {SLASH_CONTEXT, "context", "", "what fills the context window", COMPLETE_NONE, BOTH},
    {SLASH_STATS, "stats", "", "counts and times of the last reply", COMPLETE_NONE, BOTH},
    {SLASH_STATUS, "status", "", "state of the engine", COMPLETE_NONE, BOTH},
    {SLASH_MODEL, "model", "", "the model in use", COMPLETE_NONE, BOTH},
    {SLASH_ENGINE, "engine", "start|stop|restart", "control the engine", COMPLETE_ENGINE, BOTH},
    {SLASH_CACHE, "cache", "[wipe]", "kept prompts; wipe forgets them (plain chat: wipe yes)",
        COMPLETE_NONE, BOTH},
    {SLASH_KEYS, "keys", "", "the key table", COMPLETE_NONE, SLASH_IN_SCREEN},
    {SLASH_QUIT, "quit", "", "leave; everything is kept", COMPLETE_NONE, BOTH},
};

const cmd_entry *cmd_table(size_t *n) {
    *n = sizeof ENTRIES / sizeof ENTRIES[0];
    return ENTRIES;
}

const slash_entry *slash_table(size_t *n) {
    *n = sizeof SLASHES / sizeof SLASHES[0];
    return SLASHES;
}

const cmd_option *cmd_common_options(void) {
    return COMMON;
}

const char *cmd_complete_words(cmd_complete kind) {
    static const char *const words[COMPLETE_COUNT] = {
        [COMPLETE_EFFORT] = "off on minimal low medium high xhigh max",
        [COMPLETE_FORMAT] = "md json txt",
        [COMPLETE_SCREEN] = "home chat dash setup",
        [COMPLETE_PROTOCOL] = "decode prefill first",
        [COMPLETE_COLOR] = "auto none 8 256",
        [COMPLETE_MOUSE] = "off wheel on",
        [COMPLETE_CHUNK] = "word sentence reply",
        [COMPLETE_LEVEL] = "error warn info debug",
        [COMPLETE_SHELL] = "bash zsh fish",
        [COMPLETE_ENGINE] = "start stop restart",
        [COMPLETE_NODE] = "head worker",
        [COMPLETE_SET_KEY] = "temp top-p top-k min-p rep-pen seed max stop think think-budget",
    };
    return words[kind];
}
