#include "hotset/cli/serve_flags.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>

#include "hotset/cli/command.h"
#include "hotset/cli/model_flags.h"
#include "hotset/cli/serve_command.h"

namespace hotset::cli {
namespace {

void add_network(CLI::App& command, ServeOptions& o) {
  command.add_option("--host", o.host, "Address to listen on; 0.0.0.0: all of this machine's")
      ->capture_default_str();
  command.add_option("--port", o.port, "Port; 0: any that is free, which is said")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command
      .add_option("--api-key", o.api_keys,
                  "Key that requests must have (Authorization: Bearer KEY); may be given again; "
                  "/health needs none")
      ->type_name("KEY")
      ->allow_extra_args(false);
  command.add_option("--api-key-file", o.api_key_file, "File with such keys, one a line")
      ->type_name("FILE");
  command
      .add_option("--cors-origin", o.cors_origin,
                  "Origin whose pages may use the server from a browser, or * for any; absent: "
                  "the server's own page only")
      ->type_name("ORIGIN");
  command
      .add_option("--allowed-host", o.allowed_hosts,
                  "Name that requests may have as Host beside localhost, IP addresses and --host, "
                  "or * for any; may be given again; with a key any may be")
      ->type_name("NAME")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_option("--max-connections", o.max_connections, "Connections at once")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command.add_option("--max-body-mib", o.max_body_mib, "Longest request, MiB")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--client-timeout", o.client_timeout_s,
          "Seconds that a client may take for a request's header, between two pieces of its "
          "body, and to read something of the answer")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command
      .add_option("--drain-seconds", o.drain_s,
                  "How long running requests may go on after SIGTERM or Ctrl-C")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

void add_serving(CLI::App& command, ServeOptions& o) {
  command.add_option("--parallel", o.n_parallel, "Sequences that are decoded together")
      ->check(CLI::Range(1, static_cast<int>(engine::kMaxSequences)))
      ->capture_default_str();
  command
      .add_option("--max-queue", o.max_queued,
                  "Requests that may wait beyond them; further ones get 503")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      .add_option("--prefill-chunk", o.prefill_chunk,
                  "Tokens of prompts computed between two steps of running replies; 0: "
                  "--ubatch-size")
      ->check(CLI::Range(0, 1 << 16))
      ->capture_default_str();
  command
      .add_option("--cache-ram-mib", o.cache_ram_mib,
                  "Host memory for prompts that lost their place in the KV memory, MiB; 0: none")
      ->check(CLI::Range(0, 1 << 26))
      ->capture_default_str();
  command.add_option("--max-choices", o.max_choices, "Most choices (n) of a request")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      .add_option("--alias", o.aliases,
                  "NAME[,NAME...]: names of the model; answers have the first one, and requests "
                  "for another model are refused. Absent: its file's, and any may be asked for")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Validator(
          [](const std::string& name) {
            return name.empty() ? std::string("found an empty name") : std::string();
          },
          "NAME"));
  command
      .add_option("-n,--predict", o.run.n_predict,
                  "Most tokens of a reply where the request does not say; -1: until the model ends "
                  "it or the context is full")
      ->check(CLI::Range(-1, std::numeric_limits<int32_t>::max()))
      ->capture_default_str();
}

}  // namespace

void add_serve_command(CLI::App& app, int& exit_status, const std::string& version) {
  auto o = std::make_shared<ServeOptions>();
  o->version = version;
  CLI::App* command =
      app.add_subcommand("serve", "Serve a model by HTTP: OpenAI's API, and a page to talk to it");
  add_model_options(*command, o->run.model);
  add_network(*command, *o);
  add_serving(*command, *o);
  add_chat_template(*command, o->run);
  add_sampling(*command, o->run);
  command->footer(
      "Sampling flags hold where a request does not say otherwise. Command lines of llama-server "
      "are understood as far as hotset has what they ask for (docs/coming-from-llama-cpp.md).");
  command->callback([o, &exit_status] { exit_status = report(serve(*o)); });
}

}  // namespace hotset::cli
