#include "hotset/engine/kv/kv_state.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "hotset/engine/kv/kv_faults.h"

namespace hotset::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "states are little endian");

constexpr char kMagic[4] = {'H', 'K', 'V', 'S'};
constexpr uint32_t kVersion = 1;
constexpr uint32_t kNoType = UINT32_MAX;

struct Header {
  char magic[4] = {kMagic[0], kMagic[1], kMagic[2], kMagic[3]};
  uint32_t version = kVersion;
  uint64_t fingerprint = 0;
  uint32_t key_type = 0;
  uint32_t value_type = kNoType;
  uint32_t n_layer = 0;
  uint32_t window = 0;
  uint64_t key_row_bytes = 0;
  uint64_t value_row_bytes = 0;
  uint32_t n_tokens = 0;
  uint32_t n_positions = 0;
  uint32_t n_window_positions = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Header) == 64);

// FNV-1a over words of 8 bytes, then the bytes that are left.
class Hash {
 public:
  void add(std::span<const uint8_t> bytes) {
    size_t i = 0;
    for (; i + 8 <= bytes.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, 8);
      mix(word);
    }
    for (; i < bytes.size(); ++i) mix(bytes[i]);
  }
  void add(std::string_view text) {
    add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  }
  void add_number(uint64_t number) { mix(number); }
  uint64_t value() const { return value_; }

 private:
  void mix(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001B3U;
    // A product carries upwards only; this brings it back.
    value_ ^= value_ >> 32;
  }

  uint64_t value_ = 0xCBF29CE484222325U;
};

Header header_of(const KvCache& kv) {
  const ContextOptions& o = kv.options();
  Header header{.key_type = static_cast<uint32_t>(o.key_type),
                .n_layer = static_cast<uint32_t>(kv.n_layer()),
                .window = static_cast<uint32_t>(kv.attention().window)};
  const model::AttentionSpec& a = kv.attention();
  header.key_row_bytes = ggml_row_size(o.key_type, a.n_head_kv * a.head_dim_k);
  if (!a.values_in_keys) {
    header.value_type = static_cast<uint32_t>(o.value_type);
    header.value_row_bytes = ggml_row_size(o.value_type, a.n_head_kv * a.head_dim_v);
  }
  return header;
}

// Bytes of a state with the counts of `header`; they are below 2^32 each, so nothing overflows that
// could be stored: rows are below 2^40.
uint64_t total_bytes(const Header& header, const model::AttentionSpec& attention) {
  uint64_t n = sizeof(Header) + sizeof(uint64_t);
  n += sizeof(int32_t) *
       (uint64_t{header.n_tokens} + header.n_positions + header.n_window_positions);
  for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
    n += (header.key_row_bytes + header.value_row_bytes) *
         (attention.is_windowed(layer) ? header.n_window_positions : header.n_positions);
  }
  return n;
}

// Copies rows between the cells of a tensor and memory, where they lie in the order of `cells`.
class Rows {
 public:
  Rows(const KvCache& kv, std::span<const int32_t> cells) : kv_(kv), cells_(cells) {}

  Status save(const ggml_tensor* tensor, size_t row_bytes, bool transposed, uint8_t* to) {
    if (transposed) return save_transposed(tensor, to);
    return for_runs([&](size_t first, size_t n, size_t cell) {
      return kv_.read(tensor, cell * row_bytes, to + first * row_bytes, n * row_bytes);
    });
  }

  Status restore(ggml_tensor* tensor, size_t row_bytes, bool transposed, const uint8_t* from) {
    if (transposed) return restore_transposed(tensor, from);
    return for_runs([&](size_t first, size_t n, size_t cell) {
      return kv_.write(tensor, cell * row_bytes, from + first * row_bytes, n * row_bytes);
    });
  }

 private:
  // Calls copy(index of the first, how many, first cell) for cells that lie side by side.
  template <typename Copy>
  Status for_runs(Copy&& copy) {
    for (size_t i = 0; i < cells_.size();) {
      size_t end = i + 1;
      while (end < cells_.size() && cells_[end] == cells_[end - 1] + 1) ++end;
      HOTSET_RETURN_IF_ERROR(copy(i, end - i, static_cast<size_t>(cells_[i])));
      i = end;
    }
    return {};
  }

  // Calls at(offset in the tensor, offset in the state) for each number of transposed values
  // [R_v, n_cells].
  template <typename At>
  void for_numbers(const ggml_tensor* tensor, At&& at) const {
    const size_t size = ggml_type_size(tensor->type);
    const auto n_rows = static_cast<size_t>(tensor->ne[1]);
    for (size_t row = 0; row < n_rows; ++row) {
      for (size_t i = 0; i < cells_.size(); ++i) {
        at(row * tensor->nb[1] + static_cast<size_t>(cells_[i]) * size, (i * n_rows + row) * size);
      }
    }
  }

  Status save_transposed(const ggml_tensor* tensor, uint8_t* to) {
    whole_.resize(ggml_nbytes(tensor));
    HOTSET_RETURN_IF_ERROR(kv_.read(tensor, 0, whole_.data(), whole_.size()));
    const size_t size = ggml_type_size(tensor->type);
    for_numbers(tensor, [&](size_t inside, size_t outside) {
      std::memcpy(to + outside, whole_.data() + inside, size);
    });
    return {};
  }

  Status restore_transposed(ggml_tensor* tensor, const uint8_t* from) {
    whole_.resize(ggml_nbytes(tensor));
    HOTSET_RETURN_IF_ERROR(kv_.read(tensor, 0, whole_.data(), whole_.size()));
    const size_t size = ggml_type_size(tensor->type);
    for_numbers(tensor, [&](size_t inside, size_t outside) {
      std::memcpy(whole_.data() + inside, from + outside, size);
    });
    return kv_.write(tensor, 0, whole_.data(), whole_.size());
  }

  const KvCache& kv_;
  std::span<const int32_t> cells_;
  std::vector<uint8_t> whole_;  // a tensor of transposed values
};

std::vector<int32_t> positions_of(const KvCells& of, std::span<const int32_t> cells) {
  std::vector<int32_t> positions;
  for (const int32_t cell : cells) positions.push_back(of.position(cell));
  return positions;
}

uint64_t hash_of(std::span<const uint8_t> bytes) {
  Hash hash;
  hash.add(bytes);
  hash.add_number(bytes.size());
  return hash.value();
}

std::unexpected<Error> corrupt(std::string_view what) {
  return make_error(ErrorCode::kCorrupt, "state of a sequence: {}", what);
}

Status check_header(const Header& found, const Header& expected, size_t n_bytes,
                    const model::AttentionSpec& attention) {
  if (std::memcmp(found.magic, kMagic, sizeof(kMagic)) != 0) {
    return corrupt("found other first bytes, expected \"HKVS\"");
  }
  if (found.version != kVersion) {
    return make_error(ErrorCode::kUnsupported, "state of a sequence: found version {}, expected {}",
                      found.version, kVersion);
  }
  const auto type_name = [](uint32_t type) {
    if (type == kNoType) return "none";
    return type < GGML_TYPE_COUNT ? ggml_type_name(static_cast<ggml_type>(type)) : "unknown";
  };
  if (found.fingerprint != expected.fingerprint) {
    return make_error(ErrorCode::kInvalidArgument,
                      "state of a sequence: found model {:016x}, expected {:016x}: it was saved "
                      "with another model",
                      found.fingerprint, expected.fingerprint);
  }
  if (found.key_type != expected.key_type || found.value_type != expected.value_type) {
    return make_error(ErrorCode::kInvalidArgument,
                      "state of a sequence: found keys and values of type {} and {}, expected {} "
                      "and {} (-ctk, -ctv)",
                      type_name(found.key_type), type_name(found.value_type),
                      type_name(expected.key_type), type_name(expected.value_type));
  }
  if (found.n_layer != expected.n_layer || found.window != expected.window ||
      found.key_row_bytes != expected.key_row_bytes ||
      found.value_row_bytes != expected.value_row_bytes || found.reserved != 0) {
    return corrupt("its shapes are not those of the model that it names");
  }
  const uint64_t n_expected = total_bytes(found, attention);
  if (n_bytes != n_expected) {
    return make_error(ErrorCode::kCorrupt, "state of a sequence: found {} bytes, expected {}",
                      n_bytes, n_expected);
  }
  return {};
}

// Ascending, not negative, none twice.
bool are_positions(std::span<const int32_t> positions) {
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < (i == 0 ? 0 : positions[i - 1] + 1)) return false;
  }
  return positions.empty() || positions.back() < std::numeric_limits<int32_t>::max();
}

// A state whose header fits the cache.
struct Parsed {
  Header header;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> window_positions;
  size_t rows_at = 0;  // offset of the first layer's rows
};

Result<Parsed> parse(const KvCache& kv, uint64_t fingerprint, std::span<const uint8_t> state) {
  Parsed parsed;
  if (state.size() < sizeof(Header) + sizeof(uint64_t)) {
    return make_error(ErrorCode::kCorrupt,
                      "state of a sequence: found {} bytes, expected at least {}", state.size(),
                      sizeof(Header) + sizeof(uint64_t));
  }
  std::memcpy(&parsed.header, state.data(), sizeof(Header));
  Header expected = header_of(kv);
  expected.fingerprint = fingerprint;
  HOTSET_RETURN_IF_ERROR(check_header(parsed.header, expected, state.size(), kv.attention()));
  uint64_t hash = 0;
  const auto content = state.first(state.size() - sizeof(hash));
  std::memcpy(&hash, state.data() + content.size(), sizeof(hash));
  if (hash != hash_of(content)) return corrupt("damaged: its checksum does not fit its content");
  size_t at = sizeof(Header);
  const auto take = [&](uint32_t n, std::vector<int32_t>& numbers) {
    numbers.resize(n);
    if (n > 0) std::memcpy(numbers.data(), state.data() + at, size_t{n} * sizeof(int32_t));
    at += size_t{n} * sizeof(int32_t);
  };
  take(parsed.header.n_tokens, parsed.tokens);
  take(parsed.header.n_positions, parsed.positions);
  take(parsed.header.n_window_positions, parsed.window_positions);
  parsed.rows_at = at;
  if (!are_positions(parsed.positions) || !are_positions(parsed.window_positions) ||
      !std::ranges::includes(parsed.positions, parsed.window_positions)) {
    return corrupt("its positions are not ascending");
  }
  return parsed;
}

// How many of the last positions windowed layers must get: all, or where they have cells of their
// own as many as the next position sees. Errors: kInvalidArgument, kCorrupt: there are fewer.
Result<size_t> n_windowed(const KvCache& kv, const Parsed& parsed) {
  const std::vector<int32_t>& all = parsed.positions;
  if (kv.attention().window == 0) return size_t{0};
  if (!kv.has_window_cells()) {
    if (parsed.window_positions == all) return all.size();
    return make_error(
        ErrorCode::kInvalidArgument,
        "state of a sequence: found {} positions of windowed layers, expected all {}: "
        "it was saved where these layers have fewer cells",
        parsed.window_positions.size(), all.size());
  }
  if (all.empty()) return size_t{0};
  const int64_t begin = all.back() + int64_t{1} - kv.attention().window + 1;
  const auto n_seen =
      all.end() - std::ranges::lower_bound(all, static_cast<int32_t>(std::max<int64_t>(0, begin)));
  if (n_seen > std::ssize(parsed.window_positions)) {
    return corrupt("windowed layers have less than what the next position sees");
  }
  // What both end with is the same: the windows' positions are some of all, and as many as these.
  const auto tail = [n_seen](const std::vector<int32_t>& of) { return std::span(of).last(n_seen); };
  if (!std::ranges::equal(tail(all), tail(parsed.window_positions))) {
    return corrupt("windowed layers have other positions than the next one sees");
  }
  return static_cast<size_t>(n_seen);
}

// That all rows are numbers: others would spoil the sequences beside it (kv_faults.h).
Status check_rows(const KvCache& kv, const Parsed& parsed, std::span<const uint8_t> rows) {
  const Header& header = parsed.header;
  for (int64_t layer = 0; layer < header.n_layer; ++layer) {
    const size_t n = kv.attention().is_windowed(layer) ? parsed.window_positions.size()
                                                       : parsed.positions.size();
    const auto are_finite = [&](ggml_type type, size_t row_bytes) {
      const bool finite = rows_are_finite(type, rows.first(n * row_bytes));
      rows = rows.subspan(n * row_bytes);
      return finite;
    };
    if (!are_finite(kv.options().key_type, header.key_row_bytes) ||
        !are_finite(kv.options().value_type, header.value_row_bytes)) {
      return corrupt(
          fmt::format("found a key or value of layer {} that is NaN or infinite", layer));
    }
  }
  return {};
}

}  // namespace

uint64_t model_fingerprint(const model::GgufFile& file) {
  constexpr size_t kSampleBytes = 64;
  Hash hash;
  for (const model::TensorInfo& tensor : file.tensors()) {
    hash.add(tensor.name);
    hash.add_number(static_cast<uint64_t>(tensor.type));
    for (const int64_t n : tensor.ne) hash.add_number(static_cast<uint64_t>(n));
    const auto bytes = file.tensor_bytes(tensor);
    hash.add(bytes.first(std::min(bytes.size(), kSampleBytes)));
  }
  return hash.value();
}

Bytes state_bytes(const KvCache& kv, SequenceId sequence, size_t n_tokens) {
  constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
  Header header = header_of(kv);
  header.n_tokens = static_cast<uint32_t>(n_tokens);
  header.n_positions = static_cast<uint32_t>(kv.cells().count(sequence, 0, kAll));
  if (header.window > 0) {
    header.n_window_positions = static_cast<uint32_t>(kv.window_cells().count(sequence, 0, kAll));
  }
  return {static_cast<int64_t>(total_bytes(header, kv.attention()))};
}

Result<std::vector<uint8_t>> save_state(const KvCache& kv, uint64_t fingerprint,
                                        SequenceId sequence, std::span<const int32_t> tokens) {
  const std::vector<int32_t> cells = kv.cells().cells_of(sequence);
  std::vector<int32_t> window_cells;
  if (kv.attention().window > 0) window_cells = kv.window_cells().cells_of(sequence);
  Header header = header_of(kv);
  header.fingerprint = fingerprint;
  header.n_tokens = static_cast<uint32_t>(tokens.size());
  header.n_positions = static_cast<uint32_t>(cells.size());
  header.n_window_positions = static_cast<uint32_t>(window_cells.size());
  std::vector<uint8_t> state(total_bytes(header, kv.attention()));
  uint8_t* at = state.data();
  const auto put = [&at](const void* from, size_t n_bytes) {
    if (n_bytes > 0) std::memcpy(at, from, n_bytes);
    at += n_bytes;
  };
  const auto put_numbers = [&](std::span<const int32_t> numbers) {
    put(numbers.data(), numbers.size_bytes());
  };
  put(&header, sizeof(header));
  put_numbers(tokens);
  put_numbers(positions_of(kv.cells(), cells));
  put_numbers(positions_of(kv.window_cells(), window_cells));
  Rows all(kv, cells);
  Rows windowed(kv, window_cells);
  for (int64_t layer = 0; layer < header.n_layer; ++layer) {
    const bool is_windowed = kv.attention().is_windowed(layer);
    Rows& rows = is_windowed ? windowed : all;
    const size_t n = is_windowed ? window_cells.size() : cells.size();
    HOTSET_RETURN_IF_ERROR(rows.save(kv.keys(layer), header.key_row_bytes, false, at));
    at += n * header.key_row_bytes;
    if (header.value_row_bytes == 0) continue;
    HOTSET_RETURN_IF_ERROR(
        rows.save(kv.values(layer), header.value_row_bytes, kv.values_transposed(), at));
    at += n * header.value_row_bytes;
  }
  const auto n_content = static_cast<size_t>(at - state.data());
  const uint64_t hash = hash_of(std::span(state).first(n_content));
  put(&hash, sizeof(hash));
  return state;
}

Result<std::vector<int32_t>> restore_state(KvCache& kv, uint64_t fingerprint, SequenceId sequence,
                                           std::span<const uint8_t> state) {
  HOTSET_TRY(Parsed parsed, parse(kv, fingerprint, state));
  HOTSET_TRY(size_t n_window, n_windowed(kv, parsed));
  HOTSET_RETURN_IF_ERROR(check_rows(kv, parsed, state.subspan(parsed.rows_at)));
  kv.forget(sequence, 0, std::numeric_limits<int32_t>::max());
  // More let the sequence be cut back further.
  const KvCells& own = kv.window_cells();
  if (std::cmp_less_equal(parsed.window_positions.size(), own.n_cells() - own.n_used())) {
    n_window = parsed.window_positions.size();
  }
  std::vector<int32_t> cells;
  std::vector<int32_t> window_cells;
  const auto windows = std::span<const int32_t>(parsed.window_positions).last(n_window);
  HOTSET_RETURN_IF_ERROR(
      kv.assign_restored(sequence, parsed.positions, windows, cells, window_cells));
  const Header& header = parsed.header;
  Rows all(kv, cells);
  Rows windowed(kv, window_cells);
  const uint8_t* at = state.data() + parsed.rows_at;
  Status status;
  const auto restore = [&](ggml_tensor* tensor, bool is_windowed, size_t row_bytes,
                           bool transposed) {
    const size_t n = is_windowed ? parsed.window_positions.size() : parsed.positions.size();
    // The last ones, where windowed layers take fewer than there are.
    const size_t n_skipped = is_windowed ? n - n_window : 0;
    if (status) {
      status = (is_windowed ? windowed : all)
                   .restore(tensor, row_bytes, transposed, at + n_skipped * row_bytes);
    }
    at += n * row_bytes;
  };
  for (int64_t layer = 0; layer < header.n_layer; ++layer) {
    const bool is_windowed = kv.attention().is_windowed(layer);
    restore(kv.keys(layer), is_windowed, header.key_row_bytes, false);
    if (header.value_row_bytes == 0) continue;
    restore(kv.values(layer), is_windowed, header.value_row_bytes, kv.values_transposed());
  }
  if (!status) {
    kv.forget(sequence, 0, std::numeric_limits<int32_t>::max());
    return std::unexpected(std::move(status).error());
  }
  return std::move(parsed.tokens);
}

namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

}  // namespace

Status write_state_file(const std::filesystem::path& path, std::span<const uint8_t> state) {
  std::filesystem::path unfinished = path;
  unfinished += ".part";
  const auto failed = [&](const char* what) {
    const int error = errno;
    std::error_code ignored;
    std::filesystem::remove(unfinished, ignored);
    return make_error(ErrorCode::kIo, "{}: cannot {}: {}", path.string(), what,
                      std::strerror(error));
  };
  File file(std::fopen(unfinished.c_str(), "wb"));
  if (!file) return failed("create");
  const bool written = std::fwrite(state.data(), 1, state.size(), file.get()) == state.size() &&
                       std::fflush(file.get()) == 0;
  if (!written) return failed("write");
  file.reset();
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) return failed("rename");
  return {};
}

Result<std::vector<uint8_t>> read_state_file(const std::filesystem::path& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    return make_error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot open: {}", path.string(), std::strerror(errno));
  }
  std::error_code error;
  const auto n_bytes = std::filesystem::file_size(path, error);
  if (error) {
    return make_error(ErrorCode::kIo, "{}: cannot read: {}", path.string(), error.message());
  }
  std::vector<uint8_t> state(n_bytes);
  if (std::fread(state.data(), 1, state.size(), file.get()) != state.size()) {
    return make_error(ErrorCode::kIo, "{}: cannot read all of its {} bytes", path.string(),
                      n_bytes);
  }
  return state;
}

}  // namespace hotset::engine
