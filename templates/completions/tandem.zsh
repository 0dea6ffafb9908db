#compdef tandem
# zsh completion of tandem; made by: tandem completion zsh
autoload -U +X bashcompinit && bashcompinit
# bash completion of tandem; made by: tandem completion bash
_tandem() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local noun= verb= w i
  COMPREPLY=()
  case $prev in
    --screen) COMPREPLY=($(compgen -W "home chat dash setup" -- "$cur")); return ;;
    --color) COMPREPLY=($(compgen -W "auto none 8 256" -- "$cur")); return ;;
    --mouse) COMPREPLY=($(compgen -W "off wheel on" -- "$cur")); return ;;
    --model) COMPREPLY=($(compgen -d -- "$cur")); return ;;
    --file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --session) COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")); return ;;
    --system) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --thinking) COMPREPLY=($(compgen -W "off on minimal low medium high xhigh max" -- "$cur")); return ;;
    --set) COMPREPLY=($(compgen -W "temp top-p top-k min-p rep-pen seed max stop think think-budget" -- "$cur")); return ;;
    --resume) COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")); return ;;
    --chunk) COMPREPLY=($(compgen -W "word sentence reply" -- "$cur")); return ;;
    --plan) :; return ;;
    --answers) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --head-root) COMPREPLY=($(compgen -d -- "$cur")); return ;;
    --worker-root) COMPREPLY=($(compgen -d -- "$cur")); return ;;
    --timeout) :; return ;;
    --threads) :; return ;;
    --pause) :; return ;;
    --level) :; return ;;
    --soak) :; return ;;
    --url) :; return ;;
    --key-file) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --output) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --bind) :; return ;;
    --port) :; return ;;
    --keys) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --confirm-remote) :; return ;;
    --tls-certificate) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --tls-key) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --cors) :; return ;;
    --request-log) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --request-timeout) :; return ;;
    --keep-alive) :; return ;;
    --requests) :; return ;;
    --tokens) :; return ;;
    --seconds) :; return ;;
    --context) :; return ;;
    --bits) :; return ;;
    --config) COMPREPLY=($(compgen -d -- "$cur")); return ;;
    --world) :; return ;;
    --rank) :; return ;;
    --profile) :; return ;;
    --weights) :; return ;;
    --engram) :; return ;;
    --rate) :; return ;;
    --connections) :; return ;;
    --out) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --ranks) :; return ;;
    --layout) :; return ;;
    --format) COMPREPLY=($(compgen -W "md json txt" -- "$cur")); return ;;
    --node) COMPREPLY=($(compgen -W "head worker" -- "$cur")); return ;;
    --from) :; return ;;
    --lines) :; return ;;
    --grep) :; return ;;
    --since) :; return ;;
    --reps) :; return ;;
    --prompt-tokens) :; return ;;
    --prompts) COMPREPLY=($(compgen -f -- "$cur")); return ;;
    --socket) COMPREPLY=($(compgen -f -- "$cur")); return ;;
  esac
  for ((i = 1; i < COMP_CWORD; i++)); do
    w=${COMP_WORDS[i]}
    case $w in -*) continue ;; esac
    if [ -z "$noun" ]; then noun=$w; elif [ -z "$verb" ]; then verb=$w; fi
  done
  case "$noun $verb" in
    " ")
      case $cur in -*) COMPREPLY=($(compgen -W "--screen --plain --ascii --color --mouse --model --version --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "ask chat setup undo status start stop restart doctor watch service verify support serve api cache model download copy prepare sessions config check link node logs bench keys completion version help" -- "$cur")) ;;
    "ask "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--file --session --stream --show-thinking --json --system --thinking --set --model --help --socket" -- "$cur")); return ;; esac
      : ;;
    "chat "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--plain --continue --resume --chunk --show-thinking --ascii --color --mouse --system --thinking --set --model --help --socket" -- "$cur")); return ;; esac
      : ;;
    "setup "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--check --resume --dry-run --yes --plan --answers --plain --ascii --color --mouse --json --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "undo list")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "undo apply")
      case $cur in -*) COMPREPLY=($(compgen -W "--data --force --dry-run --yes --help --socket" -- "$cur")); return ;; esac
      : ;;
    "status "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--json --local --watch --help --socket" -- "$cur")); return ;; esac
      : ;;
    "start "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--model --timeout --threads --local --dry-run --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "stop "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--timeout --local --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "restart "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--model --timeout --threads --local --dry-run --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "doctor "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--terminal --head-root --worker-root --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "watch "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--boot --dry-run --pause --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "service install")
      case $cur in -*) COMPREPLY=($(compgen -W "--dry-run --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "service remove")
      case $cur in -*) COMPREPLY=($(compgen -W "--dry-run --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "service show")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "verify "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--level --soak --url --key-file --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "support "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--output --print --yes --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "serve "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--bind --port --keys --confirm-remote --tls-certificate --tls-key --cors --request-log --log-prompts --request-timeout --keep-alive --json-keepalive --open-metrics --strict-model --loop-guard --answer-room --local --detach --model --help --socket" -- "$cur")); return ;; esac
      : ;;
    "api key")
      case $cur in -*) COMPREPLY=($(compgen -W "--keys --requests --tokens --seconds --context --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "api on")
      case $cur in -*) COMPREPLY=($(compgen -W "--bind --port --keys --confirm-remote --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "api off")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "api requests")
      case $cur in -*) COMPREPLY=($(compgen -W "--watch --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "cache list")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "cache rm")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "cache wipe")
      case $cur in -*) COMPREPLY=($(compgen -W "--yes --local --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "model list")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "model show")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -d -- "$cur")) ;;
    "model quantize")
      case $cur in -*) COMPREPLY=($(compgen -W "--bits --threads --restart --json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -d -- "$cur")) ;;
    "model engram")
      case $cur in -*) COMPREPLY=($(compgen -W "--config --world --rank --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -d -- "$cur")) ;;
    "model lock")
      case $cur in -*) COMPREPLY=($(compgen -W "--profile --weights --engram --yes --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "download "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--profile --background --attach --pause --cancel --ascii --job --rate --connections --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "copy "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--profile --background --attach --pause --cancel --ascii --job --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "prepare "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--profile --background --attach --pause --cancel --ascii --job --model --out --ranks --rank --layout --no-drafts --check --self-test --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "sessions list")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "sessions show")
      case $cur in -*) COMPREPLY=($(compgen -W "--all --json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")) ;;
    "sessions export")
      case $cur in -*) COMPREPLY=($(compgen -W "--format --output --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")) ;;
    "sessions import")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -f -- "$cur")) ;;
    "sessions fork")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")) ;;
    "sessions rename")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")) ;;
    "sessions delete")
      case $cur in -*) COMPREPLY=($(compgen -W "--yes --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "$(tandem sessions list 2>/dev/null | cut -d' ' -f1)" -- "$cur")) ;;
    "config list")
      case $cur in -*) COMPREPLY=($(compgen -W "--verbose --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "config get")
      case $cur in -*) COMPREPLY=($(compgen -W "--verbose --json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "PROFILE MODEL_DIR MODEL_NAME CONTEXT PARALLEL THINKING DEFAULT_EFFORT MAX_TOKENS TEMPERATURE TOP_P API API_BIND API_CONFIRMED API_PORT API_KEY_FILE API_LOG_BODIES API_TLS_CERT API_TLS_KEY MAX_GAP_MS QUEUE_MAX CACHE_DISK_GIB CACHE_AGE_HOURS CACHE_PER_KEY WORKER_SSH WORKER_JUMP WORKER_KEY HEAD_IP_A HEAD_IP_B WORKER_IP_A WORKER_IP_B HEAD_IF_A HEAD_IF_B WORKER_IF_A WORKER_IF_B HEAD_HCA_A HEAD_HCA_B WORKER_HCA_A WORKER_HCA_B MASTER_PORT HEAD_DATA WORKER_DATA HF_ENDPOINT HF_TOKEN_FILE DL_CONNECTIONS DL_CHUNK_MIB DL_RATE_LIMIT SYNC_MODE SYNC_STREAMS MEM_GATE_GIB MEM_FLOOR_GIB MEM_GUARD EVICT_CACHE READY_TIMEOUT STOP_TIMEOUT HANG_SECONDS WATCH WATCH_FAILS WATCH_MIN_HEAL WATCH_FF_MIN_HEAL WATCH_GRACE VERIFY_ON_START LOG_DIR LOG_KEEP NOTIFY" -- "$cur")) ;;
    "config set")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "PROFILE MODEL_DIR MODEL_NAME CONTEXT PARALLEL THINKING DEFAULT_EFFORT MAX_TOKENS TEMPERATURE TOP_P API API_BIND API_CONFIRMED API_PORT API_KEY_FILE API_LOG_BODIES API_TLS_CERT API_TLS_KEY MAX_GAP_MS QUEUE_MAX CACHE_DISK_GIB CACHE_AGE_HOURS CACHE_PER_KEY WORKER_SSH WORKER_JUMP WORKER_KEY HEAD_IP_A HEAD_IP_B WORKER_IP_A WORKER_IP_B HEAD_IF_A HEAD_IF_B WORKER_IF_A WORKER_IF_B HEAD_HCA_A HEAD_HCA_B WORKER_HCA_A WORKER_HCA_B MASTER_PORT HEAD_DATA WORKER_DATA HF_ENDPOINT HF_TOKEN_FILE DL_CONNECTIONS DL_CHUNK_MIB DL_RATE_LIMIT SYNC_MODE SYNC_STREAMS MEM_GATE_GIB MEM_FLOOR_GIB MEM_GUARD EVICT_CACHE READY_TIMEOUT STOP_TIMEOUT HANG_SECONDS WATCH WATCH_FAILS WATCH_MIN_HEAL WATCH_FF_MIN_HEAL WATCH_GRACE VERIFY_ON_START LOG_DIR LOG_KEEP NOTIFY" -- "$cur")) ;;
    "config unset")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "PROFILE MODEL_DIR MODEL_NAME CONTEXT PARALLEL THINKING DEFAULT_EFFORT MAX_TOKENS TEMPERATURE TOP_P API API_BIND API_CONFIRMED API_PORT API_KEY_FILE API_LOG_BODIES API_TLS_CERT API_TLS_KEY MAX_GAP_MS QUEUE_MAX CACHE_DISK_GIB CACHE_AGE_HOURS CACHE_PER_KEY WORKER_SSH WORKER_JUMP WORKER_KEY HEAD_IP_A HEAD_IP_B WORKER_IP_A WORKER_IP_B HEAD_IF_A HEAD_IF_B WORKER_IF_A WORKER_IF_B HEAD_HCA_A HEAD_HCA_B WORKER_HCA_A WORKER_HCA_B MASTER_PORT HEAD_DATA WORKER_DATA HF_ENDPOINT HF_TOKEN_FILE DL_CONNECTIONS DL_CHUNK_MIB DL_RATE_LIMIT SYNC_MODE SYNC_STREAMS MEM_GATE_GIB MEM_FLOOR_GIB MEM_GUARD EVICT_CACHE READY_TIMEOUT STOP_TIMEOUT HANG_SECONDS WATCH WATCH_FAILS WATCH_MIN_HEAL WATCH_FF_MIN_HEAL WATCH_GRACE VERIFY_ON_START LOG_DIR LOG_KEEP NOTIFY" -- "$cur")) ;;
    "config sample")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      : ;;
    "config path")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      : ;;
    "config import")
      case $cur in -*) COMPREPLY=($(compgen -W "--yes --json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -f -- "$cur")) ;;
    "check "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--node --list --all --save --json --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "link show")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "link plan")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "link apply")
      case $cur in -*) COMPREPLY=($(compgen -W "--dry-run --yes --replace --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "link prove")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --head-root --worker-root --help --socket" -- "$cur")); return ;; esac
      : ;;
    "node list")
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "node exec")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "head worker" -- "$cur")) ;;
    "node logs")
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "head worker" -- "$cur")) ;;
    "node trust")
      case $cur in -*) COMPREPLY=($(compgen -W "--from --help --socket" -- "$cur")); return ;; esac
      : ;;
    "logs "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--follow --lines --level --grep --since --node --local --wipe --json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "bench "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--reps --tokens --prompt-tokens --prompts --model --json --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "decode prefill first" -- "$cur")) ;;
    "keys "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      : ;;
    "completion "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "bash zsh fish" -- "$cur")) ;;
    "version "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--json --help --socket" -- "$cur")); return ;; esac
      : ;;
    "help "*)
      case $cur in -*) COMPREPLY=($(compgen -W "--man --help --socket" -- "$cur")); return ;; esac
      COMPREPLY=($(compgen -W "ask chat setup undo status start stop restart doctor watch service verify support serve api cache model download copy prepare sessions config check link node logs bench keys completion version help" -- "$cur")) ;;
    *)
      case $noun in
        undo) COMPREPLY=($(compgen -W "list apply" -- "$cur")) ;;
        service) COMPREPLY=($(compgen -W "install remove show" -- "$cur")) ;;
        api) COMPREPLY=($(compgen -W "key on off requests" -- "$cur")) ;;
        cache) COMPREPLY=($(compgen -W "list rm wipe" -- "$cur")) ;;
        model) COMPREPLY=($(compgen -W "list show quantize engram lock" -- "$cur")) ;;
        sessions) COMPREPLY=($(compgen -W "list show export import fork rename delete" -- "$cur")) ;;
        config) COMPREPLY=($(compgen -W "list get set unset sample path import" -- "$cur")) ;;
        link) COMPREPLY=($(compgen -W "show plan apply prove" -- "$cur")) ;;
        node) COMPREPLY=($(compgen -W "list exec logs trust" -- "$cur")) ;;
      esac ;;
  esac
}
complete -o filenames -F _tandem tandem
