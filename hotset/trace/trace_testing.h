// Help for tests that need traces: small headers, files in a folder of the test.
// Thread-compatible.
#ifndef HOTSET_TRACE_TRACE_TESTING_H_
#define HOTSET_TRACE_TRACE_TESTING_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotset/trace/reader.h"
#include "hotset/trace/trace.h"
#include "hotset/trace/writer.h"

namespace hotset::trace {

// A lookup that owns its ids.
struct OwnedLookup {
  int32_t layer = 0;
  int32_t experts_per_token = 0;
  std::vector<int32_t> ids = {};

  bool operator==(const OwnedLookup&) const = default;
  TraceLookup view() const { return {layer, experts_per_token, ids}; }
};

// One group of `n_layer` layers with `n_expert` experts of 100 bytes.
inline TraceHeader small_header(uint32_t n_layer, uint32_t n_expert, uint32_t experts_per_token) {
  TraceGroup group{.n_expert = n_expert, .tensor_expert_bytes = {{40}, {60}}};
  for (uint32_t layer = 0; layer < n_layer; ++layer) group.layers.push_back(layer);
  group.group_host_bytes = group.device_host_bytes = {100 * group.total_experts()};
  return {.n_layer = n_layer, .experts_per_token = experts_per_token, .groups = {group}};
}

inline std::vector<std::byte> encode_trace(const TraceHeader& header,
                                           const std::vector<OwnedLookup>& lookups) {
  std::vector<std::byte> bytes;
  encode_header(header, bytes);
  for (const OwnedLookup& lookup : lookups) encode_lookup(lookup.view(), bytes);
  return bytes;
}

// A reader over bytes that the caller keeps alive.
inline Result<TraceReader> read_bytes(const std::vector<std::byte>& bytes) {
  return TraceReader::from(std::make_unique<MemorySource>(bytes), "memory");
}

// All lookups up to the end, or the error.
inline Result<std::vector<OwnedLookup>> all_lookups(TraceReader& reader) {
  std::vector<OwnedLookup> lookups;
  while (true) {
    HOTSET_TRY(const TraceLookup* lookup, reader.next());
    if (lookup == nullptr) return lookups;
    lookups.push_back({lookup->layer, lookup->experts_per_token,
                       std::vector<int32_t>(lookup->ids.begin(), lookup->ids.end())});
  }
}

inline std::vector<std::byte> file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<std::byte> bytes;
  for (std::istreambuf_iterator<char> it(in), end; it != end; ++it) {
    bytes.push_back(static_cast<std::byte>(*it));
  }
  return bytes;
}

// A folder of its own for each test, removed at its end.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            (std::string("hotset-") + info->test_suite_name() + "." + info->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  size_t n_files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {}));
  }
  // Writes a trace and returns its path.
  std::string trace(const std::string& name, const TraceHeader& header,
                    const std::vector<OwnedLookup>& lookups) const {
    const std::vector<std::byte> bytes = encode_trace(header, lookups);
    std::ofstream out(file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
    return file(name);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_TRACE_TESTING_H_
