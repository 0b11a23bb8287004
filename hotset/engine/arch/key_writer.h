// Writes the hyperparameters "ARCH.KEY" of one architecture into a file's metadata.
// Thread-compatible.
#ifndef HOTSET_ENGINE_ARCH_KEY_WRITER_H_
#define HOTSET_ENGINE_ARCH_KEY_WRITER_H_

#include <fmt/core.h>
#include <ggml-cpp.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hotset::engine {

class KeyWriter {
 public:
  // `metadata` must outlive the writer.
  KeyWriter(gguf_context* metadata, std::string_view architecture)
      : metadata_(metadata), architecture_(architecture) {}

  // A key that is already there is replaced. Requires: 0 <= value < 2^32.
  void set(std::string_view key, int64_t value) {
    gguf_set_val_u32(metadata_, name(key).c_str(), static_cast<uint32_t>(value));
  }
  void set(std::string_view key, float value) {
    gguf_set_val_f32(metadata_, name(key).c_str(), value);
  }
  void set(std::string_view key, bool value) {
    gguf_set_val_bool(metadata_, name(key).c_str(), value);
  }
  void set(std::string_view key, const char* value) {
    gguf_set_val_str(metadata_, name(key).c_str(), value);
  }

 private:
  std::string name(std::string_view key) const { return fmt::format("{}.{}", architecture_, key); }

  gguf_context* metadata_;
  std::string architecture_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_ARCH_KEY_WRITER_H_
