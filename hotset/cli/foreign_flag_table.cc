// The flags of other programs, as data. docs/coming-from-llama-cpp.md shows the same table, which a
// test compares.
#include "hotset/cli/foreign_flags.h"

namespace hotset::cli {
namespace {

constexpr ForeignFlag same(std::string_view names, std::string_view flag,
                           Takes takes = Takes::kValue) {
  return {.names = names, .takes = takes, .does = Does::kSame, .flag = flag};
}

constexpr ForeignFlag read_as(std::string_view names, Takes takes, std::string_view flag,
                              std::string_view value, std::string_view note = {}) {
  return {.names = names,
          .takes = takes,
          .does = Does::kSet,
          .flag = flag,
          .value = value,
          .note = note};
}

constexpr ForeignFlag ignored(std::string_view names, Takes takes, std::string_view note) {
  return {.names = names, .takes = takes, .does = Does::kIgnored, .note = note};
}

constexpr ForeignFlag refused(std::string_view names, Takes takes, std::string_view note) {
  return {.names = names, .takes = takes, .does = Does::kRefused, .note = note};
}

constexpr auto kNothing = Takes::kNothing;
constexpr auto kValue = Takes::kValue;
constexpr auto kMaybe = Takes::kMaybe;

// A pattern that sends tensors of experts to the CPU: of all layers, or of those it names.
bool moves_experts(std::string_view value) {
  return value.contains("exps") && value.contains("=CPU") && !value.contains("=CUDA") &&
         !value.contains("=Vulkan");
}
bool moves_all_experts(std::string_view value) {
  return moves_experts(value) && value.find_first_of("0123456789") == std::string_view::npos;
}

constexpr std::string_view kNoDownloads =
    "hotset downloads nothing; get the GGUF file and give it with -m FILE";
constexpr std::string_view kOneDevice =
    "hotset uses one device, which --device NAME chooses (hotset --list-devices)";
constexpr std::string_view kNoDrafts = "hotset has no speculative decoding";
constexpr std::string_view kTextOnly = "hotset reads and writes text only";
constexpr std::string_view kNoAdapters = "hotset has no adapters; merge them into the model's file";
constexpr std::string_view kNoGrammar =
    "hotset does not constrain what a model writes; ask for JSON in the prompt";
constexpr std::string_view kNoSampler =
    "hotset's samplers are penalties, top-k, top-p, min-p and temperature, in this order";
constexpr std::string_view kTaskset = "taskset(1) and nice(1) say where and how a program runs";
constexpr std::string_view kLog = "messages go to stderr, as many as there are; 2> FILE keeps them";
constexpr std::string_view kRope = "hotset takes positions' scaling from the model's file alone";
constexpr std::string_view kKvPlace = "keys and values lie where their layer is computed (-ngl)";
constexpr std::string_view kBatch = "-ub alone says how many tokens are computed together";
constexpr std::string_view kPinned = "the weights are copied into locked memory";
constexpr std::string_view kNoEmbeddings = "hotset makes no embeddings and ranks nothing";
constexpr std::string_view kProxy = "put a proxy in front that does it";
constexpr std::string_view kFixedRouting =
    "hotset computes a token's experts as the model routes it";

constexpr ForeignFlag kMemory[] = {
    same("-ub", "--ubatch-size"),
    read_as("-b --batch-size", kValue, "--ubatch-size", "$", "-ub is never above -b there")
        .with("<512"),
    ignored("-b --batch-size", kValue, kBatch),
    read_as("-ngl --gpu-layers --n-gpu-layers", kValue, "--n-gpu-layers", "auto").with("-1"),
    same("-ngl --gpu-layers", "--n-gpu-layers"),
    read_as("-cmoe --cpu-moe", kNothing, "--moe-cache-mib", "0",
            "the CPU computes all experts; without it free device memory caches those in use"),
    ignored("-cmoe --cpu-moe", kNothing, "hotset tune finds whether a cache pays"),
    ignored("-ncmoe --n-cpu-moe", kValue,
            "experts lie in host memory, and those of all layers that are used most in free device "
            "memory too (--moe-cache-mib)"),
    read_as("-ot --override-tensor", kValue, "--moe-cache-mib", "0",
            "the CPU computes all experts; without it free device memory caches those in use")
        .where("experts of all layers to the CPU", moves_all_experts),
    ignored("-ot --override-tensor", kValue,
            "experts lie in host memory, and those of all layers that are used most in free device "
            "memory too (--moe-cache-mib)")
        .where("experts to the CPU", moves_experts),
    refused("-ot --override-tensor", kValue,
            "hotset places whole layers (-ngl), and experts by use (--moe-cache-mib)"),
    ignored("-ncffn --n-cpu-ffn", kValue, "-ngl says how many layers the device computes"),
    read_as("--moe-cache", kValue, "--moe-cache-mib", "auto").with("auto|on"),
    read_as("--moe-cache", kValue, "--moe-cache-mib", "0").with("off"),
    same("--moe-cache", "--moe-cache-mib"),
    read_as("--mlock", kNothing, "--load-mode", "pinned", kPinned),
    read_as("--no-mmap", kNothing, "--load-mode", "pinned", kPinned),
    read_as("-mmp --mmap", kMaybe, "--load-mode", "pinned", kPinned).with("0"),
    read_as("-mmp --mmap", kMaybe, "--load-mode", "mmap").with("()|1"),
    read_as("-dio --direct-io", kMaybe, "--load-mode", "pinned", kPinned).with("()|1"),
    ignored("-dio --direct-io --no-direct-io -ndio", kMaybe,
            "--load-mode says how weights are loaded")
        .with("()|0"),
    read_as("-lm --load-mode", kValue, "--load-mode", "pinned", kPinned)
        .with("none|mlock|mmap+mlock|dio"),
    same("-lm", "--load-mode"),
    ignored("-lzm --lazy-mode", kValue, "weights that are used in place are read when needed"),
    ignored("-fit --fit", kMaybe, "what is not given is always chosen so that it fits")
        .with("()|on|off"),
    refused("-fitt --fit-target", kValue, kOneDevice).with("~,"),
    same("-fitt --fit-target", "--memory-headroom-mib"),
    ignored("-fitc --fit-ctx", kValue, "without -c the context is as long as memory allows"),
    read_as("-fa --flash-attn", kMaybe, "--flash-attn", "on").with("()|1|true|enabled"),
    read_as("-fa --flash-attn", kMaybe, "--flash-attn", "off").with("0|false|disabled"),
    read_as("-fa --flash-attn", kMaybe, "--flash-attn", "auto").with("-1"),
    same("-fa", "--flash-attn", kMaybe),
    same("-ctk", "--cache-type-k"),
    same("-ctv", "--cache-type-v"),
    ignored("-kvo --kv-offload", kNothing, kKvPlace),
    ignored("-nkvo --no-kv-offload", kMaybe, kKvPlace).with("()|0|1"),
    ignored("-sm --split-mode", kValue, kOneDevice).with("none|layer"),
    refused("-sm --split-mode", kValue, kOneDevice),
    ignored("-mg --main-gpu", kValue, "the first GPU is the default (--device)").with("0"),
    refused("-mg --main-gpu", kValue, kOneDevice),
    ignored("-ts --tensor-split", kValue, kOneDevice).with("0|1"),
    refused("-ts --tensor-split", kValue, kOneDevice),
    same("-dev", "--device"),
    refused("-rpc --rpc", kValue, "hotset uses devices of its own machine only"),
    read_as("-nr --no-repack", kNothing, "--repack", "off"),
    read_as("--repack", kMaybe, "--repack", "auto").with("()|on|1"),
    read_as("--repack", kMaybe, "--repack", "off").with("0"),
    ignored("--no-host", kMaybe, "--load-mode says where the experts lie").with("()|0|1"),
    ignored("-nopo --no-op-offload --op-offload", kMaybe,
            "prompts pass through the device where that takes less time")
        .with("()|0|1"),
    ignored("--swa-full", kNothing, "windowed layers keep what their windows need"),
    ignored("-dt --defrag-thold", kValue, "the KV memory needs no defragmentation"),
};

constexpr ForeignFlag kModel[] = {
    refused("-hf -hfr --hf-repo -hff --hf-file -mu --model-url -dr --docker-repo", kValue,
            kNoDownloads),
    refused("--gpt-oss-20b-default --gpt-oss-120b-default", kNothing, kNoDownloads),
    ignored("-hft --hf-token", kValue, "hotset downloads nothing"),
    ignored("--offline", kNothing, "hotset downloads nothing"),
    ignored("--check-tensors", kNothing,
            "a file's tensors are always checked before they are used"),
    refused("--override-kv", kValue, "hotset takes the metadata as they are in the file"),
    refused("--lora --lora-scaled --control-vector --control-vector-scaled", kValue, kNoAdapters),
    refused("-mm --mmproj -mmu --mmproj-url --image --audio --video", kValue, kTextOnly),
    ignored("--no-mmproj --mmproj-auto --no-mmproj-auto --mmproj-offload --no-mmproj-offload",
            kNothing, kTextOnly),
    refused("--rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx "
            "--yarn-ext-factor --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast",
            kValue, kRope),
    refused("-md --model-draft -hfd -hfrd --hf-repo-draft -ngld --gpu-layers-draft "
            "--n-gpu-layers-draft -devd --device-draft -ctkd --cache-type-k-draft -ctvd "
            "--cache-type-v-draft -td --threads-draft -cd --ctx-size-draft -otd "
            "--override-tensor-draft -ncmoed --n-cpu-moe-draft --draft --draft-n --draft-max "
            "--draft-min --draft-n-min --draft-p-min --draft-p-split --spec-* -lcs "
            "--lookup-cache-static -lcd --lookup-cache-dynamic",
            kValue, kNoDrafts),
    refused("-cmoed --cpu-moe-draft", kNothing, kNoDrafts),
};

constexpr ForeignFlag kCpu[] = {
    read_as("-t --threads", kValue, "--threads", "0").with("-1"),
    ignored("-tb --threads-batch", kValue, "-t holds for prompts too"),
    ignored("-C --cpu-mask -Cr --cpu-range -Cb --cpu-mask-batch -Crb --cpu-range-batch "
            "--cpu-strict --cpu-strict-batch --prio --prio-batch --poll --poll-batch",
            kValue, kTaskset),
    ignored("--numa", kValue, "numactl(8) says which node a program runs on"),
};

constexpr ForeignFlag kGeneration[] = {
    same("--n-predict", "--predict"),
    same("--temperature", "--temp"),
    ignored("-s --seed", kValue, "without a seed each run has another one").with("-1"),
    ignored("-s --seed", kValue, "each request may have a \"seed\"").in("serve"),
    same("-l", "--logit-bias"),
    ignored("--keep", kValue, "a full context ends a reply; nothing is dropped from it"),
    ignored("--no-context-shift", kNothing, "a full context always ends a reply"),
    refused("--context-shift", kNothing, "a full context ends a reply; raise it with -c"),
    refused("-e --escape", kNothing,
            "a prompt is taken as it is; write line ends into it, in a shell $'one\\ntwo'"),
    ignored("--no-escape", kNothing, "a prompt is taken as it is"),
    refused("--samplers --sampler-seq --sampling-seq", kValue, kNoSampler),
    ignored("--typical --typical-p", kValue, "that sampler is off").with("1|1.0|1.00"),
    ignored("--top-nsigma --top-n-sigma --xtc-probability --dry-multiplier --dynatemp-range "
            "--mirostat --adaptive-target",
            kValue, "that sampler is off")
        .with("0|0.0|0.00|-1|-1.0|-1.00"),
    refused("--top-nsigma --top-n-sigma --typical --typical-p --xtc-probability --dry-multiplier "
            "--dynatemp-range --mirostat --adaptive-target",
            kValue, kNoSampler),
    ignored("--xtc-threshold --dry-base --dry-allowed-length --dry-penalty-last-n "
            "--dry-sequence-breaker --dynatemp-exp --mirostat-lr --mirostat-ent --adaptive-decay",
            kValue, "it belongs to a sampler that hotset does not have"),
    ignored("-bs --backend-sampling", kNothing, "tokens are chosen on the CPU"),
    refused("--grammar --grammar-file -j --json-schema -jf --json-schema-file", kValue, kNoGrammar),
    refused("-r --reverse-prompt", kValue, "hotset serve takes \"stop\" in a request"),
    read_as("--reasoning-effort", kValue, "--chat-template-kwargs", "{\"reasoning_effort\":\"$\"}",
            "templates take it as a variable"),
    ignored("-rea --reasoning --reasoning-format", kValue, "the template decides, a request may")
        .with("auto|on|deepseek"),
    read_as("-rea --reasoning", kValue, "--chat-template-kwargs", "{\"enable_thinking\":false}",
            "templates take it as a variable")
        .with("off"),
    refused("--reasoning-format", kValue, "a request may have \"reasoning_format\""),
    ignored("--reasoning-budget", kValue, "thinking is not cut off").with("-1"),
    read_as("--reasoning-budget", kValue, "--chat-template-kwargs", "{\"enable_thinking\":false}",
            "templates take it as a variable")
        .with("0"),
    refused("--reasoning-budget --reasoning-budget-message", kValue,
            "hotset does not cut thinking off; \"max_tokens\" and -n bound a reply"),
    ignored("--reasoning-preserve --no-reasoning-preserve", kNothing, "the template decides"),
    ignored("--jinja", kNothing, "chat templates are always Jinja"),
    refused("--no-jinja", kNothing, "chat templates are always Jinja; --chat-template chooses one"),
    same("--chat-template-file", "--chat-template"),
    refused("--skip-chat-parsing", kNothing, "a request may have \"reasoning_format\": \"none\""),
    ignored("--no-skip-chat-parsing --prefill-assistant --no-prefill-assistant", kNothing,
            "the template says how an assistant's last message goes on"),
};

constexpr ForeignFlag kRun[] = {
    same("-sys --system-prompt", "--system"),
    refused("-sysf --system-prompt-file", kValue, "write --system \"$(cat FILE)\""),
    read_as("-cnv --conversation -if --interactive-first", kNothing, "--interactive", ""),
    ignored("-no-cnv --no-conversation", kNothing,
            "without -i there is no conversation; -p is continued as it is"),
    refused("-st --single-turn", kNothing, "write -i -p TEXT < /dev/null: one message, one reply"),
    ignored("-mli --multiline-input", kNothing, "\\ at a line's end lets it go on"),
    ignored("-co --color", kMaybe, "texts have no colours").with("()|on|off|auto"),
    ignored("--simple-io", kNothing, "input is always read line by line"),
    read_as("--display-prompt --verbose-prompt", kNothing, "--echo", ""),
    ignored("--no-display-prompt", kNothing, "--echo alone shows the prompt"),
    ignored("--show-timings --no-show-timings --perf --no-perf", kNothing,
            "speeds are always told on stderr"),
    ignored("-sp --special", kNothing, "texts never show control tokens"),
    read_as("--no-warmup", kNothing, "--no-warm-up", ""),
    ignored("--warmup --no-warmup", kNothing, "the first prompt warms up"),
    refused("--server-base", kValue, "hotset talks to no other server"),
    refused("--prompt-cache", kValue, "what a run computed is not kept"),
    ignored("--chunks --ppl-stride", kValue, "eval evaluates the whole text").in("eval"),
};

constexpr ForeignFlag kServe[] = {
    ignored("-np --parallel", kValue, "without it so many as suit").with("-1"),
    ignored("-np --parallel --n-parallel", kValue, "it computes one sequence")
        .with("1")
        .without("--parallel"),
    same("-np --parallel --n-parallel", "--parallel"),
    ignored("-cb --cont-batching -nocb --no-cont-batching", kNothing,
            "replies are always computed together (--parallel)"),
    ignored("-kvu --kv-unified -no-kvu --no-kv-unified", kNothing,
            "all sequences share the KV memory (-c)"),
    refused("--kv-unified-per-slot", kValue, "give -c the positions of all sequences together"),
    read_as("-cram --cache-ram", kValue, "--cache-ram-mib", "67108864").with("-1"),
    same("-cram --cache-ram", "--cache-ram-mib"),
    ignored("-ctxcp --ctx-checkpoints --swa-checkpoints -cms --checkpoint-min-step", kValue,
            "--cache-ram-mib keeps prompts"),
    ignored("--cache-idle-slots --no-cache-idle-slots --cache-prompt", kNothing,
            "prompts are always kept (--cache-ram-mib)"),
    ignored("--no-cache-prompt", kNothing, "a request may have \"cache_prompt\": false"),
    ignored("--cache-reuse", kValue, "the longest common prefix is always used again"),
    ignored("-sps --slot-prompt-similarity", kValue,
            "the longest common prefix is always used again"),
    ignored("--spm-infill", kNothing, "hotset has no infill"),
    same("-a", "--alias"),
    ignored("-a --alias", kValue, "only serve has names"),
    ignored("--tags", kValue, "only --alias names a model"),
    refused("--embedding --embeddings -embd", kMaybe, kNoEmbeddings).with("()|1"),
    ignored("--embedding --embeddings -embd", kMaybe, kNoEmbeddings).with("0"),
    refused("--rerank --reranking", kNothing, kNoEmbeddings),
    refused("--pooling --embd-normalize", kValue, kNoEmbeddings),
    ignored("--reuse-port", kNothing, "a port belongs to one server"),
    refused("--path --api-prefix --ssl-key-file --ssl-cert-file", kValue, kProxy),
    same("--cors-origins", "--cors-origin"),
    ignored("--cors-methods --cors-headers", kValue, "--cors-origin allows what the API needs"),
    ignored("--cors-credentials --no-cors-credentials", kNothing,
            "--cors-origin allows what the API needs"),
    same("-to --timeout", "--client-timeout"),
    ignored("--sse-ping-interval", kValue, "streams need no pings"),
    ignored("--threads-http", kValue, "each connection has a thread (--max-connections)"),
    ignored("--metrics --slots --props", kNothing, "/metrics, /slots and /props are always there"),
    ignored("--no-slots", kNothing, "--api-key keeps /slots from others"),
    refused("--slot-save-path --media-path --models-dir --models-preset --models-max", kValue,
            "hotset serves one model and keeps no state in files"),
    ignored("--models-autoload --no-models-autoload", kNothing, "hotset serves one model"),
    ignored("--ui --webui", kNothing, "the page at / is always there"),
    ignored("--no-ui --no-webui", kNothing, "the page at / is always there; --api-key protects it"),
    ignored("--ui-config --webui-config --ui-config-file --webui-config-file", kValue,
            "the page has no settings"),
    refused("--tools --tools-runtime --mcp-servers-config --mcp-servers-json", kValue,
            "hotset runs no tools; clients do"),
    refused("-ag --agent", kNothing, "hotset runs no tools; clients do"),
    ignored("-no-ag --no-agent", kNothing, "hotset runs no tools; clients do"),
    ignored("--sleep-idle-seconds", kValue, "a server that idles computes nothing"),
};

constexpr ForeignFlag kLogs[] = {
    ignored("--log-disable --log-prefix --no-log-prefix --log-timestamps --no-log-timestamps -v "
            "--verbose --log-verbose --log-jsonl --no-log-jsonl",
            kNothing, kLog),
    ignored("-lv --verbosity --log-verbosity --log-file --log-prompts-dir", kValue, kLog),
    ignored("--log-colors", kMaybe, kLog).with("()|on|off|auto"),
};

constexpr ForeignFlag kBench[] = {
    same("--n-depth", "--depth"),
    same("-npl", "--parallel"),
    refused("-pg", kValue, "give -d for tokens in the context before those timed"),
    read_as("-o --output", kValue, "--csv", "").with("csv"),
    read_as("-o --output", kValue, "--json", "").with("json"),
    read_as("-o --output", kValue, "--markdown", "").with("md"),
    refused("-o --output --output-file", kValue, "write --json, --csv or --markdown, and > FILE"),
    refused("-oe --output-err", kValue, "write --json, --csv or --markdown, and > FILE"),
    ignored("--delay", kValue, "tests follow each other at once"),
    ignored("--progress", kNothing, "progress is always told on stderr"),
    ignored("--n-gen-warmup", kValue, "each test is computed once before it is timed"),
};

constexpr ForeignFlag kRelatives[] = {
    ignored("-fmoe --fused-moe -no-fmoe --no-fused-moe -muge --merge-up-gate-experts -gr "
            "--graph-reuse -no-gr",
            kNothing, "hotset always computes experts its own way"),
    ignored("-mla --mla-use", kValue, "latent attention is always computed on latent vectors"),
    ignored("-amb --attention-max-batch", kValue, "--ubatch-size bounds what attention needs"),
    read_as("-rtr --run-time-repack", kNothing, "--repack", "auto"),
    refused("-ser --smart-expert-reduction", kValue, kFixedRouting),
    same("--cpu-infer --kt-cpuinfer", "--threads"),
    same("--max-new-tokens", "--predict"),
    same("--cache-lens", "--ctx-size"),
    same("--max-batch-size", "--parallel"),
    same("--chunk-size", "--prefill-chunk"),
    same("--prompt-file", "--file"),
    same("--model-name --served-model-name", "--alias"),
    refused("--gguf-path --model-path --kt-weight-path", kValue,
            "give the GGUF file (of a split one the first part) with -m FILE"),
    refused("--optimize-config-path --optimize-rule-path", kValue,
            "hotset places layers (-ngl) and experts (--moe-cache-mib) without rules"),
    refused("--kt-num-gpu-experts", kValue, "--moe-cache-mib gives experts device memory, in MiB"),
    ignored("--kt-method --kt-threadpool-count", kValue, "hotset takes the file's types and -t"),
};

constexpr ForeignFlagSection kSections[] = {
    {"Memory and devices", kMemory},
    {"Models", kModel},
    {"CPU", kCpu},
    {"Generation", kGeneration},
    {"run and eval", kRun},
    {"serve", kServe},
    {"bench", kBench},
    {"Messages", kLogs},
    {"ik_llama.cpp and KTransformers", kRelatives},
};

}  // namespace

std::span<const ForeignFlagSection> foreign_flags() { return kSections; }

}  // namespace hotset::cli
