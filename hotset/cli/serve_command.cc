#include "hotset/cli/serve_command.h"
#include "hotset/base/text_file.h"
#include "hotset/engine/weights/model_tokenizer.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/engine/weights/chat_template_source.h"
#include "hotset/measure/engine_cache_reporter.h"
#include "hotset/server/allowed_hosts.h"
#include "hotset/server/api_server.h"
#include "hotset/server/batch_model.h"
#include "hotset/server/scheduler.h"

namespace hotset::cli {
namespace {

// SIGTERM and Ctrl-C as something to wait for. The second one ends the process. One at a time.
class StopSignal {
 public:
  StopSignal() {
    if (pipe2(pipe_.data(), O_CLOEXEC | O_NONBLOCK) != 0) pipe_ = {-1, -1};
    write_end = pipe_[1];
    struct sigaction action = {};
    action.sa_handler = [](int) {
      const int saved = errno;
      const char byte = 0;
      // Full: it was told already.
      [[maybe_unused]] const ssize_t n = ::write(write_end, &byte, 1);
      errno = saved;
    };
    action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
  }
  ~StopSignal() {
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGINT, SIG_DFL);
    for (const int fd : pipe_) close(fd);
  }
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void wait() const {
    pollfd p{.fd = pipe_[0], .events = POLLIN, .revents = 0};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
  }

 private:
  static inline int write_end = -1;
  std::array<int, 2> pipe_{};
};

Result<std::vector<std::string>> all_keys(const ServeOptions& options) {
  std::vector<std::string> keys = options.api_keys;
  if (!options.api_key_file.empty()) {
    HOTSET_TRY(const std::string text, read_text(options.api_key_file));
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      begin = end + 1;
      while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
      if (!line.empty()) keys.push_back(std::move(line));
    }
    if (keys.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "--api-key-file: {}: found no key in it",
                        options.api_key_file);
    }
  }
  for (const std::string& key : keys) {
    if (!key.empty()) continue;
    return make_error(ErrorCode::kInvalidArgument, "--api-key: found an empty key");
  }
  return keys;
}

// Names that requests may be for, as AllowedHosts takes them.
Result<std::vector<std::string>> all_hosts(const ServeOptions& options) {
  std::vector<std::string> hosts = options.allowed_hosts;
  for (const std::string& host : hosts) {
    const bool is_name = !host.contains(':') && server::host_of_authority(host);
    if (host == "*" || is_name || server::is_address(host)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "--allowed-host: found '{}', expected a name as 'box.example', without "
                      "http:// and port",
                      host);
  }
  if (server::host_of_authority(options.host)) hosts.push_back(options.host);
  return hosts;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::string address(const std::string& host, int port) {
  return host.contains(':') ? fmt::format("http://[{}]:{}", host, port)
                            : fmt::format("http://{}:{}", host, port);
}

// glibc gives threads heaps of their own, many, and takes larger and larger blocks from them once
// such blocks were freed, up to 32 MiB. A connection is a thread, so what long requests leave in
// these heaps between short ones would add up for days. Few heaps, and large blocks that go back.
void bound_heaps() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, 4);
  mallopt(M_MMAP_THRESHOLD, 256 << 10);
#endif
}

class Service {
 public:
  explicit Service(ServeOptions options) : options_(std::move(options)) {}

  // Loads the model. The server answers 503 meanwhile.
  Status start();
  void run();
  Status finish() { return session_->finish(); }

 private:
  Status start_session(const engine::EngineOptions& flags, const Sampling& sampling);
  Status load();
  engine::EngineOptions with_uses(engine::EngineOptions flags);

  ServeOptions options_;
  measure::ExpertUses uses_;  // outlives the engine
  std::optional<measure::EngineSession> session_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::unique_ptr<measure::EngineCacheReporter> cache_;
  std::unique_ptr<server::EngineModel> model_;
  std::unique_ptr<server::Scheduler> scheduler_;
  std::unique_ptr<server::ApiServer> server_;  // ends first
};

engine::EngineOptions Service::with_uses(engine::EngineOptions flags) {
  flags.context.n_outputs = std::max(options_.n_parallel, server::kPromptRows);
  flags.context.n_sequences = options_.n_parallel;
  const bool may_cache = options_.run.model.device != "none" && flags.cache_bytes != Bytes{};
  if (may_cache) {
    flags.observe_routing = [this](int64_t layer, std::span<const int32_t> ids, int64_t n_tokens) {
      uses_.observe(layer, ids, n_tokens);
    };
  }
  return flags;
}

Status Service::start() {
  HOTSET_TRY(const Sampling sampling, make_sampling(options_.run));
  HOTSET_TRY(const engine::EngineOptions flags, engine_options(options_.run.model));
  HOTSET_TRY(std::vector<std::string> keys, all_keys(options_));
  HOTSET_TRY(std::vector<std::string> hosts, all_hosts(options_));
  if (keys.empty() && !is_loopback(options_.host)) {
    log_warning("--host {}: anyone who reaches this port may use the model (--api-key)",
                options_.host);
  }
  server::ServerOptions server_options{
      .version = options_.version,
      .limits = {.max_connections = options_.max_connections,
                 .max_body_bytes = static_cast<size_t>(options_.max_body_mib) << 20,
                 .header_s = options_.client_timeout_s,
                 .read_gap_s = options_.client_timeout_s,
                 .write_gap_s = options_.client_timeout_s},
      .api_keys = std::move(keys),
      .cors_origin = options_.cors_origin,
      .allowed_hosts = std::move(hosts),
      .defaults = {.sampler = sampling.options,
                   .max_tokens = options_.run.n_predict,
                   .max_choices = options_.max_choices},
      .chat_variables = options_.run.chat_variables};
  server_ = std::make_unique<server::ApiServer>(std::move(server_options));
  HOTSET_RETURN_IF_ERROR(server_->listen(options_.host, options_.port));
  // On a thread that ends: whoever computes on the CPU keeps a team of kernel threads, and beside a
  // second team the scheduler's would sleep at each barrier instead of spinning, which makes a
  // small model ten times slower.
  Status started;
  std::thread([&] { started = start_session(flags, sampling); }).join();
  HOTSET_RETURN_IF_ERROR(started);
  return load();
}

Status Service::start_session(const engine::EngineOptions& flags, const Sampling& sampling) {
  const auto prepare = [&](const engine::ModelDescription& model) -> Status {
    HOTSET_RETURN_IF_ERROR(check_logit_bias(sampling.options, model.spec));
    HOTSET_TRY(tokenizer_, engine::model_tokenizer(model));
    HOTSET_TRY(template_,
               engine::load_chat_template(model.file, *tokenizer_, options_.run.chat_template));
    return {};
  };
  HOTSET_TRY(session_,
             measure::EngineSession::start(options_.run.model, with_uses(flags), prepare));
  return {};
}

Status Service::load() {
  engine::Engine& engine = session_->engine();
  cache_ = std::make_unique<measure::EngineCacheReporter>(*session_, &uses_);
  model_ = std::make_unique<server::EngineModel>(
      engine,
      [this](std::span<const engine::BatchToken> batch) { return session_->decode_each(batch); });
  const std::span<const int32_t> ends = tokenizer_->end_of_generation_ids();
  HOTSET_TRY(scheduler_,
             server::Scheduler::create(*model_, {.n_parallel = options_.n_parallel,
                                                 .max_queued = options_.max_queued,
                                                 .prefill_chunk = options_.prefill_chunk,
                                                 .saved_prompts = mib(options_.cache_ram_mib),
                                                 .end_ids = {ends.begin(), ends.end()}}));
  const std::filesystem::path path = options_.run.model.model;
  int64_t n_bytes = 0;
  for (const model::TensorInfo& tensor : engine.model().file().tensors()) {
    n_bytes += tensor.n_bytes.count;
  }
  std::optional<engine::CacheOptions> cache_options;
  if (engine.cache() != nullptr) cache_options = engine.cache()->options();
  server_->serve({.scheduler = scheduler_.get(),
                  .tokenizer = &*tokenizer_,
                  .chat_template = &*template_,
                  .cache = cache_.get(),
                  .cache_options = std::move(cache_options),
                  .name = options_.aliases.empty() ? path.filename().string() : options_.aliases[0],
                  .has_aliases = !options_.aliases.empty(),
                  .more_names = {options_.aliases.begin() + (options_.aliases.empty() ? 0 : 1),
                                 options_.aliases.end()},
                  .path = path.string(),
                  .architecture = engine.spec().architecture,
                  .n_bytes = n_bytes,
                  .n_ctx_train = engine.spec().n_ctx_train,
                  .n_embd = engine.spec().n_embd});
  return {};
}

void Service::run() {
  const StopSignal stop;
  const engine::Engine& engine = session_->engine();
  log_info("serving at {} ({} sequences of at most {} positions, {} together)",
           address(options_.host, server_->port()), options_.n_parallel, engine.n_ctx_sequence(),
           engine.n_ctx());
  stop.wait();
  log_info("stopping: what runs has {:g} s to end; a second signal ends it at once",
           options_.drain_s);
  server_->drain();
  scheduler_->close();
  if (!scheduler_->wait_until_idle(options_.drain_s * 1e6)) {
    log_warning("stopped before every request had ended");
  }
  scheduler_->end();  // cancels the rest; their answers say so
  server_->end();
}

}  // namespace

Status serve(ServeOptions options) {
  // Where the command that tunes servers looks for the routing.
  const char* trace = std::getenv("LLAMA_MOE_CACHE_TRACE");
  if (trace != nullptr && *trace != '\0' && options.run.model.trace_out.empty()) {
    options.run.model.trace_out = trace;
  }
  options.run.model.stats = true;
  bound_heaps();
  Service service(std::move(options));
  HOTSET_RETURN_IF_ERROR(service.start());
  service.run();
  return service.finish();
}

}  // namespace hotset::cli
