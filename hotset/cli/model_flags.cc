#include "hotset/cli/model_flags.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "hotset/base/json.h"
#include "hotset/cli/chat_command.h"
#include "hotset/cli/command.h"
#include "hotset/cli/eval_command.h"
#include "hotset/cli/info_command.h"
#include "hotset/cli/list_devices_command.h"
#include "hotset/cli/run_command.h"
#include "hotset/cli/tokenize_command.h"
#include "hotset/engine/run/sampler_settings.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/engine/weights/tensor_types.h"
#include "hotset/measure/model_options.h"

namespace hotset::cli {
namespace {

// All but the model's file.
void add_engine_options(Command& command, measure::ModelOptions& o,
                        std::initializer_list<std::string_view> without = {}) {
  add_list_devices(command);
  command.add(measure::model_settings(), o, without);
}

SettingInfo model_file(const char* help) {
  return {.name = "model", .letters = "m", .help = help, .value_name = "FILE"};
}

SettingResult<void> check_json_object(std::string_view text) {
  const auto json = parse_json(text);
  if (!json) {
    return std::unexpected(SettingError{.expected = "a JSON object",
                                        .detail = "found a text that is " + json.error().message});
  }
  if (json->is_object()) return {};
  return std::unexpected(SettingError{.expected = "a JSON object"});
}

}  // namespace

void add_list_devices(Command& command) {
  command.add_action("list-devices",
                     "List the devices that can be used, and what they can do, and exit",
                     [] { return report(list_devices_command()); });
}

void add_model_options(Command& command, measure::ModelOptions& o,
                       std::initializer_list<std::string_view> without) {
  command.add(model_file("Model file (GGUF; of a split one the first part)"), o.model).required();
  command.add_for_help({.name = "config",
                        .help = "Read flags from a file: \"moe-cache-mib = 4096\", a line each",
                        .value_name = "FILE"});
  add_engine_options(command, o, without);
}

void add_sampling(Command& command, RunOptions& o) {
  command.add_repeated(
      {.name = "logit-bias",
       .help = "First added to a token's logit: ID=BIAS, BIAS a number or -inf (never); may be "
               "given again",
       .value_name = "ID=BIAS"},
      o.logit_bias);
  command.add(engine::sampler_settings(), o.sampler);
}

void add_chat_template(Command& command, RunOptions& o) {
  command.add(
      {.name = "chat-template",
       .help = "How messages become a prompt: auto (the model's own, else what fits its "
               "vocabulary), chatml, deepseek, glm, gpt-oss, granite, llama3, mistral, a name "
               "from the model or a file with Jinja text",
       .value_name = "NAME|FILE"},
      o.chat_template);
  command.add({.name = "chat-template-kwargs",
               .help = "Variables of the chat template: {\"enable_thinking\": false}",
               .value_name = "JSON",
               .check = check_json_object},
              o.chat_variables);
}

namespace {

void add_chat(Command& command, RunOptions& o) {
  command.add(
      {.name = "interactive",
       .letters = "i",
       .help = "Hold a conversation: each line of stdin is a message (\\ at its end: goes on), "
               "/clear, /exit; -p or -f is the first one"},
      o.interactive);
  command.add({.name = "system", .help = "System message of the conversation"}, o.system);
  add_chat_template(command, o);
}

void add_run(Command& program) {
  auto o = std::make_shared<RunOptions>();
  Command command = program.add_command("run", "Let a model continue a text, or talk to it");
  add_model_options(command, o->model);
  Flag prompt =
      command.add({.name = "prompt", .letters = "p", .help = "Text to continue"}, o->prompt);
  Flag file = command.add({.name = "file",
                           .letters = "f",
                           .help = "Text to continue, from a file; -: stdin",
                           .value_name = "FILE"},
                          o->prompt_file);
  Flag tokens = command.add({.name = "prompt-tokens", .help = "Token ids to continue: 1,2,3"},
                            o->prompt_tokens);
  prompt.excludes(file).excludes(tokens);
  file.excludes(tokens);
  command.add(engine::predict_setting(), o->n_predict);
  add_sampling(command, *o);
  add_chat(command, *o);
  command.add({.name = "seed",
               .letters = "s",
               .help = "Seed of the sampling; auto: another one each time",
               .auto_words = {"auto"}},
              o->seed);
  command.add({.name = "ignore-eos", .help = "Go on where the model would end its text"},
              o->ignore_eos);
  command.add({.name = "special",
               .help = "Control tokens written in the prompt (<|im_end|>) count as such"},
              o->parse_special);
  command.add({.name = "echo", .help = "Print the prompt before the generated text"}, o->echo);
  command.add({.name = "json", .help = "Print one JSON object at the end instead of the text"},
              o->json);
  command.require([o]() -> std::string {
    if (o->interactive || o->prompt || o->prompt_file || o->prompt_tokens) return {};
    return "one of -p TEXT, -f FILE and --prompt-tokens IDS";
  });
  command.on_run([o] { return report(o->interactive ? chat(*o) : run(*o)); });
}

void add_eval(Command& program) {
  auto o = std::make_shared<EvalOptions>();
  Command command = program.add_command(
      "eval", "Logits, routed experts and perplexity for given tokens or a text");
  add_model_options(command, o->model);
  const Flag tokens = command.add({.name = "tokens", .help = "Token ids: 1,2,3"}, o->tokens);
  command
      .add({.name = "file",
            .letters = "f",
            .help = "Text to evaluate; -: stdin",
            .value_name = "FILE"},
           o->text_file)
      .excludes(tokens);
  command.add(
      {.name = "generate", .help = "Greedy tokens to generate afterwards", .range = from(0)},
      o->n_generate);
  command.add({.name = "logits-out",
               .help = "Write raw float32 rows, one per position, then one after each generated "
                       "token",
               .value_name = "FILE"},
              o->logits_out);
  command.add({.name = "routing-out",
               .help = "Write the routed experts as JSON: {\"0\": [ids...]}, flat, in routing "
                       "order",
               .value_name = "FILE"},
              o->routing_out);
  command.add({.name = "json", .help = "Print JSON"}, o->json);
  command.require([o] {
    return std::string(o->tokens || o->text_file ? "" : "one of --tokens IDS and -f FILE");
  });
  command.on_run([o] { return report(eval(*o)); });
}

void add_info(Command& program) {
  auto o = std::make_shared<InfoOptions>();
  Command command = program.add_command(
      "info", "What a model file holds, and with --plan what would go where on a device");
  command.add_argument("FILE", setting_ref(model_file("Model file (GGUF)"), o->model)).required();
  command.add({.name = "tensors", .help = "List every tensor"}, o->tensors);
  command.add({.name = "plan",
               .help = "Print the memory plan for --device and the other flags, without loading"},
              o->plan);
  command.add({.name = "json", .help = "Print JSON"}, o->json);
  add_engine_options(command, o->planned);
  command.on_run([o] { return report(info(*o)); });
}

void add_tokenize(Command& program) {
  auto o = std::make_shared<TokenizeOptions>();
  Command command = program.add_command("tokenize", "Token ids of a text");
  command.add(model_file("File with the vocabulary (GGUF)"), o->model).required();
  command.add({.name = "pre", .help = "Another pre-tokenizer than the file names"}, o->pre);
  command.add(
      {.name = "special", .help = "Control tokens written in the text (<|im_end|>) count as such"},
      o->parse_special);
  command.add({.name = "json", .help = "Print an array of ids"}, o->json);
  command.add_argument("TEXT", "Text; -: stdin; behind -- if it begins with a dash", o->text)
      .required();
  command.on_run([o] { return report(tokenize(*o)); });
}

struct RandomFlags {
  engine::RandomModelOptions model;
  std::string expert_type = "q4_0";
  std::string odd_expert_type;
  std::string dense_type = "q8_0";
  std::string tokenizer_from;
  std::string out;
};

Status write_random(RandomFlags flags) {
  HOTSET_TRY(flags.model.expert_type, engine::parse_type("--expert-type", flags.expert_type));
  if (!flags.odd_expert_type.empty()) {
    HOTSET_TRY(flags.model.odd_expert_type,
               engine::parse_type("--odd-expert-type", flags.odd_expert_type));
  }
  HOTSET_TRY(flags.model.dense_type, engine::parse_type("--dense-type", flags.dense_type));
  flags.model.tokenizer_from = flags.tokenizer_from;
  return engine::write_random_model(flags.model, flags.out);
}

void add_model(Command& program) {
  Command model = program.add_command("model", "Make model files");
  model.needs_command();
  auto o = std::make_shared<RandomFlags>();
  engine::RandomModelOptions& m = o->model;
  Command command =
      model.add_command("random", "Write a model with random weights, for tests and benchmarks");
  command.add({.name = "arch", .help = "Architecture"}, m.architecture);
  command.add({.name = "layers", .help = "Layers"}, m.n_layer);
  command.add({.name = "embd", .help = "Width of the embedding"}, m.n_embd);
  command.add({.name = "heads", .help = "Attention heads"}, m.n_head);
  command.add({.name = "kv-heads", .help = "Heads of keys and values"}, m.n_head_kv);
  command.add({.name = "head-dim", .help = "Width of a head"}, m.head_dim);
  command.add({.name = "experts", .help = "Experts per layer"}, m.n_expert);
  command.add({.name = "experts-used", .help = "Experts per token"}, m.n_expert_used);
  command.add({.name = "expert-width", .help = "Width of an expert"}, m.n_ff_expert);
  command.add({.name = "ff-width", .help = "Width of dense layers, where there are some"}, m.n_ff);
  command.add({.name = "moe-step", .help = "Every so many-th layer has experts"}, m.moe_layer_step);
  command.add({.name = "vocab", .help = "Vocabulary; ignored with --tokenizer-from"}, m.n_vocab);
  command.add({.name = "ctx-train", .help = "Context the model claims to be trained for"},
              m.n_ctx_train);
  command.add({.name = "merged-gate-up", .help = "Gate and up of the experts in one tensor"},
              m.merged_gate_up);
  command.add({.name = "expert-type", .help = "Type of the experts' weights"}, o->expert_type);
  command.add({.name = "odd-expert-type", .help = "Another type for the experts of odd layers"},
              o->odd_expert_type);
  command.add({.name = "dense-type", .help = "Type of the other matrices"}, o->dense_type);
  command.add(
      {.name = "seed", .letters = "s", .help = "Seed; equal flags and seed give equal bytes"},
      m.seed);
  command.add({.name = "tokenizer-from",
               .help = "Take the tokenizer from this model, so that the new one can be given text",
               .value_name = "FILE"},
              o->tokenizer_from);
  command
      .add({.name = "out", .letters = "o", .help = "File to write", .value_name = "FILE"}, o->out)
      .required();
  command.on_run([o] { return report(write_random(*o)); });
}

}  // namespace

void add_model_commands(Command& program) {
  add_run(program);
  add_eval(program);
  add_info(program);
  add_tokenize(program);
  add_model(program);
}

}  // namespace hotset::cli
