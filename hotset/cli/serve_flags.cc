#include "hotset/cli/serve_flags.h"

#include <memory>

#include "hotset/cli/command.h"
#include "hotset/cli/model_flags.h"
#include "hotset/cli/serve_command.h"
#include "hotset/engine/run/sampler_settings.h"

namespace hotset::cli {
namespace {

using Options = ServeOptions;

SettingResult<void> check_alias(std::string_view name) {
  if (!name.empty()) return {};
  return std::unexpected(SettingError{.expected = "a name", .detail = "found an empty name"});
}

Settings<Options> make_settings() {
  constexpr SettingRange kSeconds = {0, 86400};
  return {
      setting<Options>(
          {.name = "host", .help = "Address to listen on; 0.0.0.0: all of this machine's"},
          [](auto& o) -> auto& { return o.host; }),
      setting<Options>({.name = "port",
                        .help = "Port; 0: any that is free, which is said",
                        .range = SettingRange{0, 65535}},
                       [](auto& o) -> auto& { return o.port; }),
      setting<Options>({.name = "api-key-file",
                        .help = "File with keys as of --api-key, one a line",
                        .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.api_key_file; }),
      setting<Options>(
          {.name = "cors-origin",
           .help = "Origin whose pages may use the server from a browser, or * for any; absent: "
                   "the server's own page only",
           .value_name = "ORIGIN"},
          [](auto& o) -> auto& { return o.cors_origin; }),
      setting<Options>(
          {.name = "allowed-host",
           .help = "Name that requests may have as Host beside localhost, IP addresses and "
                   "--host, or * for any; may be given again; with a key any may be",
           .value_name = "NAME"},
          [](auto& o) -> auto& { return o.allowed_hosts; }),
      setting<Options>({.name = "max-connections",
                        .help = "Connections at once",
                        .range = SettingRange{1, 1 << 16}},
                       [](auto& o) -> auto& { return o.max_connections; }),
      setting<Options>({.name = "max-body-mib",
                        .help = "Longest request, MiB",
                        .unit = "MiB",
                        .range = SettingRange{1, 1024}},
                       [](auto& o) -> auto& { return o.max_body_mib; }),
      setting<Options>(
          {.name = "client-timeout",
           .help = "Seconds that a client may take for a request's header, between two pieces of "
                   "its body, and to read something of the answer",
           .unit = "SECONDS",
           .range = SettingRange{0.1, kSeconds.max}},
          [](auto& o) -> auto& { return o.client_timeout_s; }),
      setting<Options>({.name = "drain-seconds",
                        .help = "How long running requests may go on after SIGTERM or Ctrl-C",
                        .unit = "SECONDS",
                        .range = kSeconds},
                       [](auto& o) -> auto& { return o.drain_s; }),
      setting<Options>({.name = "parallel",
                        .help = "Sequences that are decoded together",
                        .range = SettingRange{1, engine::kMaxSequences}},
                       [](auto& o) -> auto& { return o.n_parallel; }),
      setting<Options>({.name = "max-queue",
                        .help = "Requests that may wait beyond them; further ones get 503",
                        .range = SettingRange{0, 1 << 20}},
                       [](auto& o) -> auto& { return o.max_queued; }),
      setting<Options>(
          {.name = "prefill-chunk",
           .help = "Tokens of prompts computed between two steps of running replies; 0: "
                   "--ubatch-size",
           .range = SettingRange{0, 1 << 16}},
          [](auto& o) -> auto& { return o.prefill_chunk; }),
      setting<Options>(
          {.name = "cache-ram-mib",
           .help = "Host memory for prompts that lost their place in the KV memory, MiB; 0: none",
           .unit = "MiB",
           .range = SettingRange{0, kMostMib}},
          [](auto& o) -> auto& { return o.cache_ram_mib; }),
      setting<Options>({.name = "max-choices",
                        .help = "Most choices (n) of a request",
                        .range = SettingRange{1, 1024}},
                       [](auto& o) -> auto& { return o.max_choices; }),
      setting<Options>(
          {.name = "alias",
           .help = "NAME[,NAME...]: names of the model; answers have the first one, and requests "
                   "for another model are refused. Absent: its file's, and any may be asked for",
           .value_name = "NAME",
           .check = check_alias},
          [](auto& o) -> auto& { return o.aliases; }),
  };
}

}  // namespace

const Settings<ServeOptions>& serve_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

void add_serve_command(Command& program, const std::string& version) {
  auto o = std::make_shared<ServeOptions>();
  o->version = version;
  Command command =
      program.add_command("serve", "Serve a model by HTTP: OpenAI's API, and a page to talk to it");
  add_model_options(command, o->run.model);
  command.add_repeated({.name = "api-key",
                        .help = "Key that requests must have (Authorization: Bearer KEY); may be "
                                "given again; /health needs none",
                        .value_name = "KEY"},
                       o->api_keys);
  command.add(serve_settings(), *o);
  command.add(engine::predict_setting().with_help(
                  "Most tokens of a reply where the request does not say; -1: until the model "
                  "ends it or the context is full"),
              o->run.n_predict);
  add_chat_template(command, o->run);
  add_sampling(command, o->run);
  command.footer(
      "Sampling flags hold where a request does not say otherwise. Command lines of llama-server "
      "are understood as far as hotset has what they ask for (docs/coming-from-llama-cpp.md).");
  command.on_run([o] { return report(serve(*o)); });
}

}  // namespace hotset::cli
