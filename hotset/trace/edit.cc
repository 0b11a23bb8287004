#include "hotset/trace/edit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "hotset/trace/reader.h"
#include "hotset/trace/writer.h"

namespace hotset::trace {
namespace {

bool is_cancelled(const std::atomic<bool>* cancelled) {
  return cancelled != nullptr && cancelled->load(std::memory_order_relaxed);
}

std::unexpected<Error> cancelled_error() {
  return make_error(ErrorCode::kCancelled, "interrupted, nothing was written");
}

Status append(TraceWriter& writer, const TraceLookup& lookup, EditCounts& counts) {
  HOTSET_RETURN_IF_ERROR(writer.append(lookup));
  ++counts.n_lookups;
  counts.n_ids += std::ssize(lookup.ids);
  return {};
}

// The header of the layers that stay.
Result<TraceHeader> cut_header(const TraceReader& reader, const std::vector<int32_t>& layers) {
  TraceHeader header = reader.header();
  if (layers.empty()) return header;
  for (const int32_t layer : layers) {
    if (layer < 0 || layer >= std::ssize(reader.group_by_layer()) ||
        reader.group_by_layer()[layer] < 0) {
      return make_error(ErrorCode::kInvalidArgument, "layer {} to keep is in no group of {}", layer,
                        reader.name());
    }
  }
  std::map<uint32_t, Bytes> device_bytes;
  for (TraceGroup& group : header.groups) {
    const int64_t n_before = std::ssize(group.layers);
    std::erase_if(group.layers, [&](uint32_t layer) {
      return std::ranges::find(layers, static_cast<int32_t>(layer)) == layers.end();
    });
    // Host bytes and layers are both bounded, so that this cannot overflow.
    group.group_host_bytes.count =
        group.group_host_bytes.count * std::ssize(group.layers) / n_before;
    group.group_host_bytes.count = std::max<int64_t>(1, group.group_host_bytes.count);
    if (!group.layers.empty()) device_bytes[group.device] += group.group_host_bytes;
  }
  std::erase_if(header.groups, [](const TraceGroup& group) { return group.layers.empty(); });
  for (TraceGroup& group : header.groups) group.device_host_bytes = device_bytes[group.device];
  return header;
}

// Which field of two headers differs first, in words.
std::string difference(const TraceHeader& a, const TraceHeader& b) {
  if (a.n_layer != b.n_layer) return fmt::format("{} layers and {}", a.n_layer, b.n_layer);
  if (a.experts_per_token != b.experts_per_token) {
    return fmt::format("{} experts per token and {}", a.experts_per_token, b.experts_per_token);
  }
  if (a.groups.size() != b.groups.size()) {
    return fmt::format("{} groups and {}", a.groups.size(), b.groups.size());
  }
  for (size_t g = 0; g < a.groups.size(); ++g) {
    const TraceGroup& x = a.groups[g];
    const TraceGroup& y = b.groups[g];
    if (x == y) continue;
    if (x.n_expert != y.n_expert) {
      return fmt::format("{} experts and {} in group {}", x.n_expert, y.n_expert, g);
    }
    if (x.layers != y.layers) return fmt::format("other layers in group {}", g);
    if (x.tensor_expert_bytes != y.tensor_expert_bytes) {
      return fmt::format("experts of {} and of {} in group {}", to_string(x.expert_bytes()),
                         to_string(y.expert_bytes()), g);
    }
    return fmt::format("another device, split, alignment or host bytes in group {}", g);
  }
  return "no difference";
}

// A trace with its next lookup looked at.
struct Input {
  TraceReader reader;
  const TraceLookup* next = nullptr;  // nullptr: the end
  uint64_t next_offset = 0;           // in bytes, of `next`

  Status advance() {
    next_offset = reader.offset_bytes();
    HOTSET_TRY(next, reader.next());
    return {};
  }
};

Result<std::vector<Input>> open_inputs(const std::vector<std::string>& paths) {
  if (paths.empty()) return make_error(ErrorCode::kInvalidArgument, "there are no traces to merge");
  std::vector<Input> inputs;
  for (const std::string& path : paths) {
    HOTSET_TRY(TraceReader reader, TraceReader::open(path));
    inputs.push_back({.reader = std::move(reader)});
    const TraceHeader& first = inputs.front().reader.header();
    const TraceHeader& last = inputs.back().reader.header();
    if (first != last) {
      return make_error(ErrorCode::kInvalidArgument, "{} and {} are not of the same model: {}",
                        paths.front(), path, difference(first, last));
    }
  }
  for (Input& input : inputs) HOTSET_RETURN_IF_ERROR(input.advance());
  return inputs;
}

// Copies up to `n_steps` token steps of `input`.
Status copy_steps(Input& input, int64_t n_steps, TraceWriter& writer, EditCounts& counts) {
  for (int64_t step = 0; step < n_steps && input.next != nullptr; ++step) {
    int32_t previous = -1;
    while (input.next != nullptr && input.next->layer > previous) {
      previous = input.next->layer;
      HOTSET_RETURN_IF_ERROR(append(writer, *input.next, counts));
      HOTSET_RETURN_IF_ERROR(input.advance());
    }
  }
  return {};
}

// Joins the next lookup of every trace that has one.
Status join_lookups(std::vector<Input>& inputs, std::vector<int32_t>& ids, TraceWriter& writer,
                    EditCounts& counts) {
  const Input* first = nullptr;
  ids.clear();
  for (const Input& input : inputs) {
    if (input.next == nullptr) continue;
    if (first == nullptr) first = &input;
    if (input.next->layer != first->next->layer ||
        input.next->experts_per_token != first->next->experts_per_token) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: byte {}: the lookup is of layer {} with {} experts per token, but of "
                        "layer {} with {} at the same place of {}: a batch needs equal steps",
                        input.reader.name(), input.next_offset, input.next->layer,
                        input.next->experts_per_token, first->next->layer,
                        first->next->experts_per_token, first->reader.name());
    }
    ids.insert(ids.end(), input.next->ids.begin(), input.next->ids.end());
  }
  HOTSET_RETURN_IF_ERROR(append(writer,
                                {.layer = first->next->layer,
                                 .experts_per_token = first->next->experts_per_token,
                                 .ids = ids},
                                counts));
  for (Input& input : inputs) {
    if (input.next != nullptr) HOTSET_RETURN_IF_ERROR(input.advance());
  }
  return {};
}

}  // namespace

Result<EditCounts> cut_trace(const std::string& in_path, const std::string& out_path,
                             const CutOptions& options) {
  if (options.first_token < 0 || options.n_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the range is {} tokens from token {}, expected none below 0",
                      options.n_tokens, options.first_token);
  }
  HOTSET_TRY(TraceReader reader, TraceReader::open(in_path));
  HOTSET_TRY(const TraceHeader header, cut_header(reader, options.layers));
  HOTSET_TRY(TraceWriter writer, TraceWriter::open(out_path, header));
  const std::vector<int32_t> group_by_layer = header.group_by_layer();
  auto n_open = std::ranges::count_if(group_by_layer, [](int32_t group) { return group >= 0; });
  std::vector<int64_t> clock(group_by_layer.size());  // tokens seen, by layer
  EditCounts counts;
  while (n_open > 0) {
    if (is_cancelled(options.cancelled)) return cancelled_error();
    HOTSET_TRY(const TraceLookup* lookup, reader.next());
    if (lookup == nullptr) break;
    const auto layer = static_cast<size_t>(lookup->layer);
    if (group_by_layer[layer] < 0) continue;
    const int64_t token = clock[layer];
    clock[layer] += lookup->n_tokens();
    const auto is_past = [&](int64_t t) {
      return options.n_tokens > 0 && t - options.first_token >= options.n_tokens;
    };
    if (is_past(clock[layer]) && !is_past(token)) --n_open;
    if (token < options.first_token || is_past(token)) continue;
    HOTSET_RETURN_IF_ERROR(append(writer, *lookup, counts));
  }
  if (counts.n_lookups == 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: has no lookups from token {} on", in_path,
                      options.first_token);
  }
  HOTSET_RETURN_IF_ERROR(writer.close());
  return counts;
}

Result<EditCounts> merge_traces(const std::vector<std::string>& in_paths,
                                const std::string& out_path, const MergeOptions& options) {
  if (options.interleave_steps < 1) {
    return make_error(ErrorCode::kInvalidArgument, "steps per turn is {}, expected at least 1",
                      options.interleave_steps);
  }
  HOTSET_TRY(std::vector<Input> inputs, open_inputs(in_paths));
  HOTSET_TRY(TraceWriter writer, TraceWriter::open(out_path, inputs.front().reader.header()));
  const auto has_next = [](const Input& input) { return input.next != nullptr; };
  std::vector<int32_t> ids;
  EditCounts counts;
  while (std::ranges::any_of(inputs, has_next)) {
    if (is_cancelled(options.cancelled)) return cancelled_error();
    switch (options.mode) {
      case MergeMode::kConcatenate:
        // A step at a time, so that it can be cancelled.
        HOTSET_RETURN_IF_ERROR(
            copy_steps(*std::ranges::find_if(inputs, has_next), 1, writer, counts));
        break;
      case MergeMode::kInterleave:
        for (Input& input : inputs) {
          HOTSET_RETURN_IF_ERROR(copy_steps(input, options.interleave_steps, writer, counts));
        }
        break;
      case MergeMode::kBatch:
        HOTSET_RETURN_IF_ERROR(join_lookups(inputs, ids, writer, counts));
        break;
    }
  }
  HOTSET_RETURN_IF_ERROR(writer.close());
  return counts;
}

}  // namespace hotset::trace
