#include "hotset/cli/model_options.h"

#include <ggml.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/base/units.h"

namespace hotset::cli {
namespace {

template <typename T>
Result<T> choose(std::string_view flag, std::string_view value,
                 std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, meaning] : choices) {
    if (name == value) return meaning;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected one of: {}", flag, value,
                    names);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// What is going on with the cache and why, in one line.
void say_verdict(const engine::Engine& engine) {
  const engine::LoadReport& report = engine.model().report();
  const model::RouterSpec& router = engine.spec().router;
  std::string where = fmt::format("{} used in place", to_string(report.mapped));
  if (report.repacked.count > 0) {
    where += fmt::format(", {} repacked ({})", to_string(report.repacked), joined(report.layouts));
  }
  if (report.copied.count > 0) {
    where += fmt::format(", {} copied{}", to_string(report.copied),
                         report.locked ? " and locked in RAM" : "");
  }
  log_info(
      "expert cache off: no device in use. All {} layers x {} experts are computed by the CPU ({} "
      "threads, flash attention {}); weights: {}.",
      engine.spec().n_layer, router.n_expert, engine.n_threads(),
      engine.flash_attention() ? "on" : "off", where);
  for (const std::string& name : report.unused) {
    log_warning("{}: tensor '{}' is not used by architecture {}", engine.model().file().name(),
                name, engine.spec().architecture);
  }
}

}  // namespace

Result<ggml_type> parse_type(std::string_view flag, std::string_view name) {
  std::string known;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) == 0) continue;
    if (lower(ggml_type_name(type)) == lower(name)) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", lower(ggml_type_name(type)));
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected one of: {}", flag, name,
                    known);
}

Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list) {
  std::vector<int32_t> ids;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const size_t first = part.find_first_not_of(" \t\n");
    part = first == std::string_view::npos
               ? std::string_view()
               : part.substr(first, part.find_last_not_of(" \t\n") - first + 1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: found '{}', expected token ids separated by commas", flag, part);
    }
    ids.push_back(id);
  }
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found nothing, expected token ids", flag);
  }
  return ids;
}

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return make_error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot open: {}", path, std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), file)) > 0 && text.size() <= kMaxBytes) {
    text.append(buffer, n);
  }
  const bool failed = std::ferror(file) != 0;
  const int error = errno;
  if (file != stdin) std::fclose(file);
  if (failed) {
    return make_error(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(error));
  }
  if (text.size() > kMaxBytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found more than 1 GiB, expected a text",
                      path);
  }
  return text;
}

Result<engine::EngineOptions> engine_options(const ModelOptions& options) {
  engine::EngineOptions result;
  if (options.n_threads < 0 || options.n_threads > 512) {
    return make_error(ErrorCode::kInvalidArgument, "--threads: found {}, expected 0 to 512",
                      options.n_threads);
  }
  if (options.n_ctx < 0) {
    return make_error(ErrorCode::kInvalidArgument, "--ctx-size: found {}, expected at least 0",
                      options.n_ctx);
  }
  if (options.n_ubatch < 1 || options.n_ubatch > 1 << 16) {
    return make_error(ErrorCode::kInvalidArgument, "--ubatch-size: found {}, expected 1 to {}",
                      options.n_ubatch, 1 << 16);
  }
  result.n_threads = options.n_threads;
  result.n_ctx = options.n_ctx;
  result.n_ubatch = options.n_ubatch;
  using engine::FlashAttention;
  HOTSET_TRY(result.flash_attention, choose<FlashAttention>("--flash-attn", options.flash_attention,
                                                            {{"on", FlashAttention::kOn},
                                                             {"off", FlashAttention::kOff},
                                                             {"auto", FlashAttention::kAuto}}));
  HOTSET_TRY(result.key_type, parse_type("--cache-type-k", options.key_type));
  HOTSET_TRY(result.value_type, parse_type("--cache-type-v", options.value_type));
  using engine::LoadMode;
  HOTSET_TRY(result.load.load_mode, choose<LoadMode>("--load-mode", options.load_mode,
                                                     {{"mmap", LoadMode::kMmap},
                                                      {"pinned", LoadMode::kPinned},
                                                      {"auto", LoadMode::kAuto}}));
  HOTSET_TRY(result.load.repack,
             choose<bool>("--repack", options.repack, {{"auto", true}, {"off", false}}));
  return result;
}

Result<std::unique_ptr<engine::Engine>> start_engine(const ModelOptions& options,
                                                     engine::EngineOptions engine_options) {
  HOTSET_TRY(engine::ModelDescription description, engine::describe_model(options.model));
  HOTSET_TRY(auto engine, engine::Engine::create(std::move(description), engine_options));
  say_verdict(*engine);
  return engine;
}

}  // namespace hotset::cli
