// What the KV memory holds of one sequence, as bytes that can be kept anywhere and given back to
// any sequence of the same model, in this process or another (docs/formats/hkvs.md).
// Thread-compatible.
#ifndef HOTSET_ENGINE_KV_KV_STATE_H_
#define HOTSET_ENGINE_KV_KV_STATE_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/model/gguf_file.h"

namespace hotset::engine {

// Tells models apart: names, types and shapes of all tensors, and the first bytes of each.
uint64_t model_fingerprint(const model::GgufFile& file);

// What a state of the sequence takes, with so many tokens beside it.
Bytes state_bytes(const KvCache& kv, SequenceId sequence, size_t n_tokens);

// The state of a sequence. `tokens` are kept beside it, for whoever restores it; what they say is
// the caller's business. Errors: kDevice, kOutOfMemory.
Result<std::vector<uint8_t>> save_state(const KvCache& kv, uint64_t fingerprint,
                                        SequenceId sequence, std::span<const int32_t> tokens);

// Gives `sequence` the state instead of what it had. Returns the tokens that were kept beside it.
// Where windowed layers have cells of their own, they get what was saved of them if there is room,
// and at least what the next position sees.
// Errors: kCorrupt: truncated or damaged, or with numbers that are NaN or infinite; kUnsupported:
// another version; kInvalidArgument: of another model or other cache types, or without the
// positions of windowed layers that a cache without windows must have; the message names what was
// found and what was expected. Nothing has changed then. kOutOfMemory: no room; kDevice. The
// sequence is empty then.
Result<std::vector<int32_t>> restore_state(KvCache& kv, uint64_t fingerprint, SequenceId sequence,
                                           std::span<const uint8_t> state);

// A state as a file: written under another name first, so that a file is whole or not there.
// Errors: kIo.
Status write_state_file(const std::filesystem::path& path, std::span<const uint8_t> state);
// Errors: kNotFound, kIo.
Result<std::vector<uint8_t>> read_state_file(const std::filesystem::path& path);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_KV_STATE_H_
