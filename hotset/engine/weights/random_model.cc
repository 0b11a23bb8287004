#include "hotset/engine/weights/random_model.h"

#include <ggml-cpp.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/printable.h"
#include "hotset/base/random.h"
#include "hotset/base/thread_pool.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/arch/architecture.h"
#include "hotset/engine/arch/key_writer.h"
#include "hotset/engine/weights/weights.h"
#include "hotset/model/gguf_file.h"

namespace hotset::engine {
namespace {

// Rows are generated in pieces of about this many values: large enough for the threads, small
// enough for memory.
constexpr int64_t kPieceValues = 1 << 18;
// Pieces that are held in memory before they are written: 64 MiB in F32.
constexpr int64_t kBatchPieces = 64;

struct FileClose {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using FilePtr = std::unique_ptr<std::FILE, FileClose>;

Status check_options(const RandomModelOptions& o) {
  const auto positive = [](const char* name, int64_t value) -> Status {
    if (value >= 1 && value <= 1 << 20) return {};
    return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected 1 to {}", name, value,
                      1 << 20);
  };
  HOTSET_RETURN_IF_ERROR(positive("layers", o.n_layer));
  HOTSET_RETURN_IF_ERROR(positive("embedding", o.n_embd));
  HOTSET_RETURN_IF_ERROR(positive("heads", o.n_head));
  HOTSET_RETURN_IF_ERROR(positive("kv-heads", o.n_head_kv));
  HOTSET_RETURN_IF_ERROR(positive("head-dim", o.head_dim));
  HOTSET_RETURN_IF_ERROR(positive("experts", o.n_expert));
  HOTSET_RETURN_IF_ERROR(positive("experts-used", o.n_expert_used));
  HOTSET_RETURN_IF_ERROR(positive("expert-width", o.n_ff_expert));
  HOTSET_RETURN_IF_ERROR(positive("ff-width", o.n_ff));
  HOTSET_RETURN_IF_ERROR(positive("moe-step", o.moe_layer_step));
  HOTSET_RETURN_IF_ERROR(positive("vocab", o.n_vocab));
  HOTSET_RETURN_IF_ERROR(positive("context", o.n_ctx_train));
  for (const ggml_type type :
       {o.expert_type, o.odd_expert_type.value_or(o.expert_type), o.dense_type}) {
    if (!is_weight_type(type)) {
      return make_error(ErrorCode::kInvalidArgument, "type: found {}, expected a type for weights",
                        ggml_type_name(type));
    }
    if (type != GGML_TYPE_F32 && ggml_quantize_requires_imatrix(type)) {
      return make_error(ErrorCode::kUnsupported,
                        "type: found {}, which needs an importance matrix; expected another",
                        ggml_type_name(type));
    }
    const auto* traits = ggml_get_type_traits(type);
    if (type != GGML_TYPE_F32 && traits->from_float_ref == nullptr) {
      return make_error(ErrorCode::kUnsupported, "type: found {}, which ggml cannot write",
                        ggml_type_name(type));
    }
  }
  return {};
}

// ggml's writer takes texts that end at their first NUL.
Status check_writable(const model::GgufFile& from, const std::string& key) {
  std::vector<std::string> texts;
  if (from.array_length(key)) {
    if (auto several = from.find_strings(key)) texts = *std::move(several).value();
  } else if (auto one = from.find_string(key)) {
    texts.push_back(*std::move(one).value());
  }
  for (const std::string& text : texts) {
    if (text.find('\0') == std::string::npos) continue;
    return make_error(ErrorCode::kUnsupported,
                      "{}: key '{}': found '{}', expected texts without NUL, which can be written",
                      from.name(), printable(key), printable(text));
  }
  return {};
}

Status copy_tokenizer_keys(const model::GgufFile& from, gguf_context* to) {
  const gguf_context_ptr source(gguf_init_from_buffer(
      from.part_bytes(0).data(), from.part_bytes(0).size(), {.no_alloc = true, .ctx = nullptr}));
  for (int64_t id = gguf_get_n_kv(source.get()) - 1; id >= 0; --id) {
    const std::string key = gguf_get_key(source.get(), id);
    if (!key.starts_with("tokenizer.")) {
      gguf_remove_key(source.get(), key.c_str());
    } else {
      HOTSET_RETURN_IF_ERROR(check_writable(from, key));
    }
  }
  gguf_set_kv(to, source.get());
  return {};
}

Result<gguf_context_ptr> make_metadata(const RandomModelOptions& o) {
  gguf_context_ptr metadata(gguf_init_empty());
  gguf_context* m = metadata.get();
  int64_t n_vocab = o.n_vocab;
  if (o.tokenizer_from.empty()) {
    gguf_set_val_str(m, "tokenizer.ggml.model", "no_vocab");
  } else {
    HOTSET_TRY(const model::GgufFile source, model::GgufFile::open(o.tokenizer_from));
    const auto n_tokens = source.array_length("tokenizer.ggml.tokens");
    if (!n_tokens) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: key 'tokenizer.ggml.tokens': found nothing, expected a tokenizer",
                        source.name());
    }
    n_vocab = *n_tokens;
    HOTSET_RETURN_IF_ERROR(copy_tokenizer_keys(source, m));
  }
  gguf_set_val_str(m, "general.architecture", o.architecture.c_str());
  gguf_set_val_str(m, "general.name",
                   fmt::format("random {}, seed {}", o.architecture, o.seed).c_str());
  KeyWriter keys(m, o.architecture);
  keys.set("block_count", o.n_layer);
  keys.set("context_length", o.n_ctx_train);
  keys.set("embedding_length", o.n_embd);
  keys.set("feed_forward_length", o.n_ff);
  keys.set("expert_feed_forward_length", o.n_ff_expert);
  keys.set("expert_count", o.n_expert);
  keys.set("expert_used_count", o.n_expert_used);
  keys.set("attention.head_count", o.n_head);
  keys.set("attention.head_count_kv", o.n_head_kv);
  keys.set("attention.key_length", o.head_dim);
  keys.set("attention.value_length", o.head_dim);
  keys.set("vocab_size", n_vocab);
  if (o.moe_layer_step > 1) keys.set("interleave_moe_layer_step", o.moe_layer_step);
  keys.set("attention.layer_norm_rms_epsilon", 1e-6F);
  keys.set("rope.freq_base", 1e6F);
  if (const Architecture* architecture = find_architecture(o.architecture)) {
    architecture->add_typical_keys(o, keys);
  }
  return metadata;
}

// Vectors and the router stay F32, as converted files have them.
ggml_type type_of(const WeightDeclaration& w, const RandomModelOptions& o) {
  if (w.use == WeightUse::kExperts) {
    return w.layer % 2 == 1 ? o.odd_expert_type.value_or(o.expert_type) : o.expert_type;
  }
  const bool is_vector = w.use == WeightUse::kVector || w.use == WeightUse::kExpertVectors;
  if (is_vector || w.name.ends_with("ffn_gate_inp.weight")) return GGML_TYPE_F32;
  return o.dense_type;
}

// Optional weights are left out, but those that have another one in their place are written.
bool is_written(const WeightDeclaration& w) {
  return w.presence != Presence::kOptional || !w.fallback.empty();
}

int64_t rows_per_piece(int64_t n_in) { return std::max<int64_t>(1, kPieceValues / n_in); }

// Rows [first_row, first_row + n_rows) of `n_in` random values as `type`, the same for a seed
// whatever the number of threads. Requires: first_row begins a piece.
void fill_rows(ggml_type type, int64_t n_in, int64_t first_row, int64_t n_rows, uint64_t seed,
               bool ones, std::vector<uint8_t>& out) {
  const size_t row_bytes = ggml_row_size(type, n_in);
  out.resize(row_bytes * static_cast<size_t>(n_rows));
  if (type != GGML_TYPE_F32) ggml_quantize_init(type);  // its tables are not made thread-safely
  const int64_t piece_rows = rows_per_piece(n_in);
  const auto first_piece = static_cast<size_t>(first_row / piece_rows);
  const int64_t n_pieces = (n_rows + piece_rows - 1) / piece_rows;
  parallel_for(static_cast<size_t>(n_pieces), 0, [&](size_t piece) {
    Random random(seed ^ (0x9e3779b97f4a7c15ULL * (first_piece + piece + 1)));
    const int64_t begin = static_cast<int64_t>(piece) * piece_rows;
    const int64_t n = std::min(piece_rows, n_rows - begin);
    std::vector<float> values(static_cast<size_t>(n * n_in), 1.0F);
    const double deviation = 1.0 / std::sqrt(static_cast<double>(n_in));
    if (!ones) {
      for (float& value : values) value = static_cast<float>(random.normal() * deviation);
    }
    uint8_t* target = out.data() + row_bytes * static_cast<size_t>(begin);
    if (type == GGML_TYPE_F32) {
      std::memcpy(target, values.data(), values.size() * sizeof(float));
    } else {
      ggml_quantize_chunk(type, values.data(), target, 0, n, n_in, nullptr);
    }
  });
}

Status write_bytes(std::FILE* file, const std::filesystem::path& path,
                   std::span<const uint8_t> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size()) return {};
  return make_error(ErrorCode::kIo, "{}: cannot write: {}", path.string(), std::strerror(errno));
}

Status write_tensors(const RandomModelOptions& o, const WeightList& list, std::FILE* file,
                     const std::filesystem::path& path, size_t alignment) {
  std::vector<uint8_t> bytes;
  uint64_t index = 0;
  for (const WeightDeclaration& w : list.declarations()) {
    if (!is_written(w)) continue;
    const int64_t n_rows = w.ne[1] * w.ne[2] * w.ne[3];
    const bool is_norm = w.use == WeightUse::kVector && w.name.ends_with("norm.weight");
    const uint64_t seed = o.seed * 1000003 + ++index;
    const int64_t batch_rows = kBatchPieces * rows_per_piece(w.ne[0]);
    for (int64_t row = 0; row < n_rows; row += batch_rows) {
      const int64_t n = std::min(batch_rows, n_rows - row);
      fill_rows(type_of(w, o), w.ne[0], row, n, seed, is_norm, bytes);
      if (row + n == n_rows) {
        const size_t n_bytes = ggml_row_size(type_of(w, o), w.ne[0]) * static_cast<size_t>(n_rows);
        bytes.resize(bytes.size() + (alignment - n_bytes % alignment) % alignment);
      }
      HOTSET_RETURN_IF_ERROR(write_bytes(file, path, bytes));
    }
  }
  return {};
}

Status write_file(const RandomModelOptions& o, gguf_context* metadata, const WeightList& list,
                  const std::filesystem::path& path) {
  const FilePtr file(std::fopen(path.c_str(), "wb"));
  if (!file) {
    return make_error(ErrorCode::kIo, "{}: cannot create: {}", path.string(), std::strerror(errno));
  }
  std::vector<uint8_t> header(gguf_get_meta_size(metadata));
  gguf_get_meta_data(metadata, header.data());
  HOTSET_RETURN_IF_ERROR(write_bytes(file.get(), path, header));
  HOTSET_RETURN_IF_ERROR(write_tensors(o, list, file.get(), path, gguf_get_alignment(metadata)));
  if (std::fflush(file.get()) != 0) {
    return make_error(ErrorCode::kIo, "{}: cannot write: {}", path.string(), std::strerror(errno));
  }
  return {};
}

// A number of bytes that no file system has must not be tried, nor counted in 64 bits.
Status check_space(const WeightList& list, const RandomModelOptions& o,
                   const std::filesystem::path& path) {
  double n_bytes = 0;
  for (const WeightDeclaration& w : list.declarations()) {
    if (!is_written(w)) continue;
    n_bytes += static_cast<double>(ggml_row_size(type_of(w, o), w.ne[0])) *
               static_cast<double>(w.ne[1]) * static_cast<double>(w.ne[2]) *
               static_cast<double>(w.ne[3]);
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error || n_bytes <= static_cast<double>(space.available)) return {};
  return make_error(ErrorCode::kIo, "{}: a model of {:.1f} GiB, but only {:.1f} GiB are free",
                    path.string(), n_bytes / (1 << 30),
                    static_cast<double>(space.available) / (1 << 30));
}

// Writes beside `path` and gives the file its name when it is whole, so that neither a failure nor
// the end of the process leaves half a model, or takes away what was there.
Status write_whole_file(const RandomModelOptions& o, gguf_context* metadata, const WeightList& list,
                        const std::filesystem::path& path) {
  if (!path.has_filename()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "found '{}', expected the name of a file to write", path.string());
  }
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: found a folder or a special file, expected a regular file or nothing",
                      path.string());
  }
  const std::filesystem::path partial = path.string() + ".partial";
  Status status = write_file(o, metadata, list, partial);
  if (status) {
    std::error_code error;
    std::filesystem::rename(partial, path, error);
    if (!error) return {};
    status = make_error(ErrorCode::kIo, "{}: cannot rename '{}' to it: {}", path.string(),
                        partial.string(), error.message());
  }
  std::filesystem::remove(partial, ignored);
  return status;
}

}  // namespace

Status write_random_model(const RandomModelOptions& options, const std::filesystem::path& path) {
  HOTSET_RETURN_IF_ERROR(check_options(options));
  HOTSET_TRY(const gguf_context_ptr metadata, make_metadata(options));
  // The architecture reads the metadata back as it would a file's, so what is written can be read.
  std::vector<uint8_t> header(gguf_get_meta_size(metadata.get()));
  gguf_get_meta_data(metadata.get(), header.data());
  HOTSET_TRY(const model::GgufFile parsed, model::GgufFile::parse(header, path.string()));
  HOTSET_TRY(const Architecture* architecture, architecture_of(parsed));
  HOTSET_TRY(model::ModelSpec spec, architecture->read_spec(parsed));
  spec.merged_gate_up = options.merged_gate_up;
  ModelWeights weights;
  WeightList list;
  architecture->declare_weights(spec, weights, list);

  HOTSET_RETURN_IF_ERROR(check_space(list, options, path));

  HOTSET_TRY(const device::TensorContext context,
             device::new_tensor_context(list.declarations().size()));
  for (const WeightDeclaration& w : list.declarations()) {
    if (!is_written(w)) continue;
    const ggml_type type = type_of(w, options);
    if (w.ne[0] % ggml_blck_size(type) != 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tensor '{}': rows of {} values, expected a multiple of {} for {}", w.name,
                        w.ne[0], ggml_blck_size(type), ggml_type_name(type));
    }
    ggml_tensor* tensor = ggml_new_tensor(context.get(), type, GGML_MAX_DIMS, w.ne.data());
    ggml_set_name(tensor, w.name.c_str());
    gguf_add_tensor(metadata.get(), tensor);
  }
  return write_whole_file(options, metadata.get(), list, path);
}

}  // namespace hotset::engine
