#include "hotset/device/profile.h"

#include <fmt/core.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <string_view>

namespace hotset::device {
namespace {

constexpr std::array<std::string_view, 4> kTrackNames = {"host", "CPU lane", "compute queue",
                                                         "transfer queue"};

std::string json_string(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

std::string json_of(const Profile::Entry& entry) {
  std::string text = fmt::format(
      R"({{"name":{},"ph":"X","pid":1,"tid":{},"ts":{:.3f},"dur":{:.3f})", json_string(entry.name),
      static_cast<int>(entry.track), entry.start_us, entry.duration_us);
  if (entry.layer >= 0) text += fmt::format(R"(,"args":{{"layer":{}}})", entry.layer);
  return text + '}';
}

std::string json_of_tracks() {
  std::string text = R"({"name":"process_name","ph":"M","pid":1,"tid":0,"args":{"name":"hotset"}})";
  for (size_t i = 0; i < kTrackNames.size(); ++i) {
    text += fmt::format(
        ",\n"
        R"({{"name":"thread_name","ph":"M","pid":1,"tid":{0},"args":{{"name":"{1}"}}}})"
        ",\n"
        R"({{"name":"thread_sort_index","ph":"M","pid":1,"tid":{0},"args":{{"sort_index":{0}}}}})",
        i, kTrackNames[i]);
  }
  return text;
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::unexpected<Error> io_error(const std::filesystem::path& path, const char* what) {
  return make_error(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), what, std::strerror(errno));
}

}  // namespace

Profile::Profile(size_t max_events) { entries_.reserve(max_events); }

void Profile::add(Track track, const char* name, int32_t layer, double start_us,
                  double duration_us) {
  const std::lock_guard lock(mutex_);
  // JSON has no infinities, and viewers refuse the whole file for one.
  if (entries_.size() == entries_.capacity() || !std::isfinite(start_us) ||
      !std::isfinite(duration_us)) {
    ++n_dropped_;
    return;
  }
  entries_.push_back({name, start_us, duration_us, layer, track});
}

int64_t Profile::n_dropped() const {
  const std::lock_guard lock(mutex_);
  return n_dropped_;
}

std::vector<Profile::Entry> Profile::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_;
}

Status Profile::write(const std::filesystem::path& path) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "wb"));
  if (!file) return io_error(path, "open");
  bool written = true;
  const auto put = [&](std::string_view text) {
    written = written && std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  };
  put("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  put(json_of_tracks());
  for (const Entry& entry : entries_) {
    put(",\n");
    put(json_of(entry));
  }
  put(fmt::format("\n],\"otherData\":{{\"dropped_events\":\"{}\"}}}}\n", n_dropped_));
  written = written && std::fflush(file.get()) == 0;
  if (!written) return io_error(path, "write");
  if (std::fclose(file.release()) != 0) return io_error(path, "close");
  return {};
}

}  // namespace hotset::device
