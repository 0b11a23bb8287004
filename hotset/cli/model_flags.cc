#include "hotset/cli/model_flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotset/base/json.h"
#include "hotset/cli/chat_command.h"
#include "hotset/cli/command.h"
#include "hotset/cli/eval_command.h"
#include "hotset/cli/info_command.h"
#include "hotset/cli/list_devices_command.h"
#include "hotset/cli/run_command.h"
#include "hotset/cli/tokenize_command.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/engine/weights/tensor_types.h"
#include "hotset/measure/model_options.h"

namespace hotset::cli {
namespace {

// Prints and ends at once, whatever else is on the command line.
void list_devices_now() {
  const int status = report(list_devices_command());
  if (status != 0) throw CLI::RuntimeError(status);
  throw CLI::Success();
}

// That a value lies in a range; NaN does not.
CLI::Validator within(double min, double max) {
  return {[=](std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= min && value <= max) return "";
            return fmt::format("found {}, expected {} to {}", text, min, max);
          },
          ""};
}

// That a value is one of a few words, whatever its case.
CLI::Validator one_of(std::initializer_list<const char*> words) {
  const std::vector<std::string> known(words.begin(), words.end());
  return {[known](std::string& text) -> std::string {
            const std::string lower = CLI::detail::to_lower(text);
            if (std::ranges::find(known, lower) != known.end()) {
              text = lower;
              return "";
            }
            return fmt::format("found '{}', expected one of: {}", text,
                               CLI::detail::join(known, ", "));
          },
          ""};
}

// That a value is a number from 0 to `max`, or `word`.
CLI::Validator number_or(const char* word, double max) {
  return {[=](std::string& text) -> std::string {
            double value = 0;
            if (CLI::detail::to_lower(text) == word) {
              text = word;
              return "";
            }
            if (CLI::detail::lexical_cast(text, value) && value >= 0 && value <= max) return "";
            return fmt::format("found {}, expected {}, or a number from 0 to {}", text, word, max);
          },
          ""};
}

// The flags of the expert cache, for every command that computes.
void add_cache_options(CLI::App& command, measure::CacheFlags& o) {
  constexpr double kMaxMib = 1 << 26;
  command
      .add_option("--moe-cache-mib", o.mib,
                  "Device memory for experts, MiB; auto: what is left; 0: no cache")
      ->check(number_or("auto", kMaxMib))
      ->capture_default_str();
  command
      .add_option("--moe-cache-cpu-share", o.cpu_share,
                  "Part of the missing experts that the CPU computes instead of their being "
                  "uploaded, 0 to 1; auto: decided for each lookup by what the lanes take")
      ->check(number_or("auto", 1))
      ->capture_default_str();
  command
      .add_option("--moe-cache-batch", o.batch,
                  "Tokens computed together above which missing experts are streamed, so that the "
                  "cache is used but not changed, except that its empty slots are filled; auto: "
                  "decided for each lookup by what the lanes take, or 32 where the share is fixed")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            const auto n = measure::parse_batch(text);
            return n ? "" : n.error().message;
          },
          ""))
      ->capture_default_str();
  command
      .add_option("--moe-cache-policy", o.policy,
                  fmt::format("Which experts stay: {}; crf takes a half-life in tokens: crf:8",
                              measure::online_policies()))
      ->check(CLI::Validator(
          [](std::string& name) -> std::string {
            const Status status = measure::check_policy(name);
            return status ? "" : status.error().message;
          },
          ""))
      ->capture_default_str();
  command
      .add_option("--moe-cache-fills", o.fills,
                  "Copy experts that the CPU computed in the background where they are worth more "
                  "than others in the cache: on or off")
      ->transform(one_of({"on", "off"}))
      ->capture_default_str();
  command
      .add_option("--moe-cache-rates", o.rates,
                  "What share auto and the fills go by: measured: this machine's rates; typical: "
                  "those that `hotset replay` assumes, so that a replay repeats every decision")
      ->transform(one_of({"measured", "typical"}))
      ->capture_default_str();
  command
      .add_option("--memory-headroom-mib", o.headroom_mib,
                  "Device memory that stays free, MiB; absent: 5%, at least 512")
      ->check(within(0, kMaxMib));
  command.add_flag("--stats", o.stats,
                   "Print what the cache did, at the end and whenever SIGUSR1 arrives");
  command
      .add_option("--moe-cache-trace", o.trace_out,
                  "Write the routed experts as a trace (MCT1) for `hotset replay`")
      ->type_name("FILE");
}

constexpr double kMostInt32 = std::numeric_limits<int32_t>::max();

// All but the model's file.
void add_engine_options(CLI::App& command, measure::ModelOptions& o) {
  command
      .add_option(
          "--device", o.device,
          "Device for attention and routing: a name from --list-devices, emu[:key=value,...] "
          "(an emulated device), auto (the first GPU) or none")
      ->capture_default_str();
  command
      .add_option("--n-gpu-layers", o.n_gpu_layers,
                  "-ngl: how many of the last layers the device computes, the head counted as one "
                  "more; auto: all")
      ->capture_default_str();
  command
      .add_option("--profile", o.profile_out,
                  "Write what ran when on which lane, as a Chrome trace (ui.perfetto.dev opens it)")
      ->type_name("FILE");
  add_list_devices(command);
  command.add_option("-t,--threads", o.n_threads, "CPU threads; 0: one per core that may be used")
      ->check(within(0, 512))
      ->capture_default_str();
  command
      .add_option("-c,--ctx-size", o.n_ctx,
                  "Positions of context, for all sequences of a server together; 0: for each what "
                  "the model was trained with, as far as it takes a quarter of the memory left")
      ->check(within(0, kMostInt32))
      ->capture_default_str();
  command.add_option("--ubatch-size", o.n_ubatch, "-ub: tokens of a prompt computed together")
      ->check(within(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--flash-attn", o.flash_attention, "-fa: flash attention: on, off or auto")
      ->transform(one_of({"on", "off", "auto"}))
      ->capture_default_str();
  command.add_option("--cache-type-k", o.key_type, "-ctk: type of cached keys: f32, f16 or q8_0")
      ->transform(one_of({"f32", "f16", "q8_0"}))
      ->capture_default_str();
  command
      .add_option("--cache-type-v", o.value_type,
                  "-ctv: type of cached values: f32, f16 or, with flash attention, q8_0")
      ->transform(one_of({"f32", "f16", "q8_0"}))
      ->capture_default_str();
  command
      .add_option("--load-mode", o.load_mode,
                  "Weights used from the file in place (mmap), copied into locked RAM (pinned), or "
                  "whichever suits (auto)")
      ->transform(one_of({"mmap", "pinned", "auto"}))
      ->capture_default_str();
  command
      .add_option("--repack", o.repack,
                  "Rearrange weights for the CPU's kernels: auto or off (off: same rounding as on "
                  "every other lane)")
      ->transform(one_of({"auto", "off"}))
      ->capture_default_str();
  add_cache_options(command, o.cache);
}

}  // namespace

void add_model_options(CLI::App& command, measure::ModelOptions& o) {
  command.add_option("-m,--model", o.model, "Model file (GGUF; of a split one the first part)")
      ->required()
      ->type_name("FILE");
  // Taken out of the arguments before they are parsed (config_file.h); here for the help.
  command.add_option("--config", "Read flags from a file: \"moe-cache-mib = 4096\", a line each")
      ->type_name("FILE");
  add_engine_options(command, o);
}

void add_sampling(CLI::App& command, RunOptions& o) {
  command
      .add_option("--logit-bias", o.logit_bias,
                  "First added to a token's logit: ID=BIAS, BIAS a number or -inf (never); may be "
                  "given again")
      ->type_name("ID=BIAS")
      ->allow_extra_args(false);
  command
      .add_option("--repeat-penalty", o.sampler.repeat_penalty,
                  "Then: divides positive logits of tokens seen lately, multiplies negative ones; "
                  "1: off")
      ->check(within(std::numeric_limits<float>::min(), 100))
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", o.sampler.frequency_penalty,
                  "Then: subtracted for each time a token was seen lately")
      ->check(within(-100, 100))
      ->capture_default_str();
  command
      .add_option("--presence-penalty", o.sampler.presence_penalty,
                  "Then: subtracted if a token was seen lately")
      ->check(within(-100, 100))
      ->capture_default_str();
  command
      .add_option("--repeat-last-n", o.sampler.repeat_last_n,
                  "How many tokens, prompt included, are lately; 0: none, -1: all")
      ->check(within(-1, 1 << 24))
      ->capture_default_str();
  command.add_option("--top-k", o.sampler.top_k, "Then: sample among the k best tokens; 0: all")
      ->check(within(0, kMostInt32))
      ->capture_default_str();
  command
      .add_option("--top-p", o.sampler.top_p,
                  "Then: among the best tokens that reach this probability together; 1: all")
      ->check(within(0, 1))
      ->capture_default_str();
  command
      .add_option("--min-p", o.sampler.min_p,
                  "Then: among tokens with this share of the best one's probability; 0: all")
      ->check(within(0, 1))
      ->capture_default_str();
  command
      .add_option("--temp", o.sampler.temperature,
                  "Last: temperature; 0: always the best token after the penalties")
      ->check(within(0, 100))
      ->capture_default_str();
}

void add_chat_template(CLI::App& command, RunOptions& o) {
  command
      .add_option("--chat-template", o.chat_template,
                  "How messages become a prompt: auto (the model's own, else what fits its "
                  "vocabulary), chatml, deepseek, glm, gpt-oss, granite, llama3, mistral, a name "
                  "from the model or a file with Jinja text")
      ->type_name("NAME|FILE")
      ->capture_default_str();
  command
      .add_option("--chat-template-kwargs", o.chat_variables,
                  "Variables of the chat template: {\"enable_thinking\": false}")
      ->type_name("JSON")
      ->check([](const std::string& text) {
        const auto json = parse_json(text);
        if (!json) return "found a text that is " + json.error().message;
        return json->is_object() ? std::string() : std::string("expected a JSON object");
      });
}

namespace {

void add_chat(CLI::App& command, RunOptions& o) {
  command.add_flag("-i,--interactive", o.interactive,
                   "Hold a conversation: each line of stdin is a message (\\ at its end: goes on), "
                   "/clear, /exit; -p or -f is the first one");
  command.add_option("--system", o.system, "System message of the conversation");
  add_chat_template(command, o);
}

void add_run(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Let a model continue a text, or talk to it");
  add_model_options(*command, o->model);
  auto* prompt = command->add_option("-p,--prompt", o->prompt, "Text to continue");
  auto* file =
      command->add_option("-f,--file", o->prompt_file, "Text to continue, from a file; -: stdin")
          ->type_name("FILE");
  auto* tokens =
      command->add_option("--prompt-tokens", o->prompt_tokens, "Token ids to continue: 1,2,3");
  prompt->excludes(file)->excludes(tokens);
  file->excludes(tokens);
  command
      ->add_option("-n,--predict", o->n_predict,
                   "Tokens to generate; -1: until the model ends its text or the context is full")
      ->check(within(-1, kMostInt32))
      ->capture_default_str();
  add_sampling(*command, *o);
  add_chat(*command, *o);
  command->add_option("-s,--seed", o->seed, "Seed of the sampling; absent: another one each time");
  command->add_flag("--ignore-eos", o->ignore_eos, "Go on where the model would end its text");
  command->add_flag("--special", o->parse_special,
                    "Control tokens written in the prompt (<|im_end|>) count as such");
  command->add_flag("--echo", o->echo, "Print the prompt before the generated text");
  command->add_flag("--json", o->json, "Print one JSON object at the end instead of the text");
  command->callback([o, &exit_status] {
    if (!o->interactive && !o->prompt && !o->prompt_file && !o->prompt_tokens) {
      throw CLI::RequiredError("one of -p TEXT, -f FILE and --prompt-tokens IDS");
    }
    exit_status = report(o->interactive ? chat(*o) : run(*o));
  });
}

void add_eval(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<EvalOptions>();
  CLI::App* command = app.add_subcommand(
      "eval", "Logits, routed experts and perplexity for given tokens or a text");
  add_model_options(*command, o->model);
  auto* tokens = command->add_option("--tokens", o->tokens, "Token ids: 1,2,3");
  command->add_option("-f,--file", o->text_file, "Text to evaluate; -: stdin")
      ->type_name("FILE")
      ->excludes(tokens);
  command->add_option("--generate", o->n_generate, "Greedy tokens to generate afterwards")
      ->check(within(0, kMostInt32))
      ->capture_default_str();
  command
      ->add_option("--logits-out", o->logits_out,
                   "Write raw float32 rows, one per position, then one after each generated token")
      ->type_name("FILE");
  command
      ->add_option("--routing-out", o->routing_out,
                   "Write the routed experts as JSON: {\"0\": [ids...]}, flat, in routing order")
      ->type_name("FILE");
  command->add_flag("--json", o->json, "Print JSON");
  command->callback([o, &exit_status] {
    if (!o->tokens && !o->text_file) {
      throw CLI::RequiredError("one of --tokens IDS and -f FILE");
    }
    exit_status = report(eval(*o));
  });
}

void add_info(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<InfoOptions>();
  CLI::App* command = app.add_subcommand(
      "info", "What a model file holds, and with --plan what would go where on a device");
  command->add_option("FILE,-m,--model", o->model, "Model file (GGUF)")->required();
  command->add_flag("--tensors", o->tensors, "List every tensor");
  command->add_flag("--plan", o->plan,
                    "Print the memory plan for --device and the other flags, without loading");
  command->add_flag("--json", o->json, "Print JSON");
  add_engine_options(*command, o->planned);
  command->callback([o, &exit_status] { exit_status = report(info(*o)); });
}

void add_tokenize(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of a text");
  command->add_option("-m,--model", o->model, "File with the vocabulary (GGUF)")
      ->required()
      ->type_name("FILE");
  command->add_option("--pre", o->pre, "Another pre-tokenizer than the file names");
  command->add_flag("--special", o->parse_special,
                    "Control tokens written in the text (<|im_end|>) count as such");
  command->add_flag("--json", o->json, "Print an array of ids");
  command->add_option("TEXT", o->text, "Text; -: stdin; behind -- if it begins with a dash")
      ->required();
  command->callback([o, &exit_status] { exit_status = report(tokenize(*o)); });
}

struct RandomFlags {
  engine::RandomModelOptions model;
  std::string expert_type = "q4_0";
  std::string odd_expert_type;
  std::string dense_type = "q8_0";
  std::string out;
};

Status write_random(RandomFlags flags) {
  HOTSET_TRY(flags.model.expert_type, engine::parse_type("--expert-type", flags.expert_type));
  if (!flags.odd_expert_type.empty()) {
    HOTSET_TRY(flags.model.odd_expert_type,
               engine::parse_type("--odd-expert-type", flags.odd_expert_type));
  }
  HOTSET_TRY(flags.model.dense_type, engine::parse_type("--dense-type", flags.dense_type));
  return engine::write_random_model(flags.model, flags.out);
}

void add_model(CLI::App& app, int& exit_status) {
  CLI::App* model = app.add_subcommand("model", "Make model files");
  model->require_subcommand(1);
  auto o = std::make_shared<RandomFlags>();
  CLI::App* command = model->add_subcommand(
      "random", "Write a model with random weights, for tests and benchmarks");
  const auto number = [&](const char* flag, int64_t& value, const char* help) {
    command->add_option(flag, value, help)->capture_default_str();
  };
  command->add_option("--arch", o->model.architecture, "Architecture")->capture_default_str();
  number("--layers", o->model.n_layer, "Layers");
  number("--embd", o->model.n_embd, "Width of the embedding");
  number("--heads", o->model.n_head, "Attention heads");
  number("--kv-heads", o->model.n_head_kv, "Heads of keys and values");
  number("--head-dim", o->model.head_dim, "Width of a head");
  number("--experts", o->model.n_expert, "Experts per layer");
  number("--experts-used", o->model.n_expert_used, "Experts per token");
  number("--expert-width", o->model.n_ff_expert, "Width of an expert");
  number("--ff-width", o->model.n_ff, "Width of dense layers, where there are some");
  number("--moe-step", o->model.moe_layer_step, "Every so many-th layer has experts");
  number("--vocab", o->model.n_vocab, "Vocabulary; ignored with --tokenizer-from");
  number("--ctx-train", o->model.n_ctx_train, "Context the model claims to be trained for");
  command->add_flag("--merged-gate-up", o->model.merged_gate_up,
                    "Gate and up of the experts in one tensor");
  command->add_option("--expert-type", o->expert_type, "Type of the experts' weights")
      ->capture_default_str();
  command->add_option("--odd-expert-type", o->odd_expert_type,
                      "Another type for the experts of odd layers");
  command->add_option("--dense-type", o->dense_type, "Type of the other matrices")
      ->capture_default_str();
  command->add_option("-s,--seed", o->model.seed, "Seed; equal flags and seed give equal bytes")
      ->capture_default_str();
  command
      ->add_option("--tokenizer-from", o->model.tokenizer_from,
                   "Take the tokenizer from this model, so that the new one can be given text")
      ->type_name("FILE");
  command->add_option("-o,--out", o->out, "File to write")->required()->type_name("FILE");
  command->callback([o, &exit_status] { exit_status = report(write_random(*o)); });
}

}  // namespace

void add_list_devices(CLI::App& command) {
  command
      .add_flag_callback("--list-devices", list_devices_now,
                         "List the devices that can be used, and what they can do, and exit")
      ->trigger_on_parse();
}

void add_model_commands(CLI::App& app, int& exit_status) {
  add_run(app, exit_status);
  add_eval(app, exit_status);
  add_info(app, exit_status);
  add_tokenize(app, exit_status);
  add_model(app, exit_status);
}

}  // namespace hotset::cli
