// Reads a trace in the format MCT1, one lookup at a time, in memory that does not grow with the
// length of the trace. The reader owns its source and the ids of the current lookup.
// Thread-compatible: any number of readers of one file, each used by one thread.
#ifndef HOTSET_TRACE_READER_H_
#define HOTSET_TRACE_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/trace/byte_source.h"
#include "hotset/trace/trace.h"

namespace hotset::trace {

class TraceReader {
 public:
  // Opens the file `path` and reads its header.
  // Errors: those of FileSource::open, and kCorrupt: not a trace, or its header is truncated or
  // inconsistent. Messages start with the path and name the byte offset.
  static Result<TraceReader> open(const std::string& path);

  // The same over any source; `name` is for messages.
  static Result<TraceReader> from(std::unique_ptr<ByteSource> source, std::string name);

  const TraceHeader& header() const { return header_; }
  // The index of the group of each layer, -1 for none.
  const std::vector<int32_t>& group_by_layer() const { return group_by_layer_; }
  const std::string& name() const { return name_; }
  // Offset in bytes of what is read next.
  uint64_t offset_bytes() const { return buffer_offset_ + begin_; }

  // Reads the next lookup. nullptr is the end of the trace; else the lookup, valid until the next
  // call, which passes validate() with this header.
  // Errors: kCorrupt, the file ends inside a lookup or the lookup contradicts the header; kIo.
  // After an error every further call gives it again.
  Result<const TraceLookup*> next();

 private:
  TraceReader(std::unique_ptr<ByteSource> source, std::string name);

  Status read_header();
  Status read_group(TraceGroup& group);
  Result<bool> read_lookup();
  Status read_ids(size_t n_ids);
  // Makes at least n bytes lie contiguous at begin_. Fewer only at the end of the source.
  Status fill(size_t n_bytes);
  size_t available() const { return end_ - begin_; }
  // The next little-endian value; the file must have it.
  template <typename T>
  Result<T> read_value(const char* what);
  std::unexpected<Error> corrupt(uint64_t offset, const std::string& what) const;

  std::unique_ptr<ByteSource> source_;
  std::string name_;
  TraceHeader header_;
  std::vector<int32_t> group_by_layer_;

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;            // in buffer_, first byte not yet used
  size_t end_ = 0;              // in buffer_, past the last byte read
  uint64_t buffer_offset_ = 0;  // of buffer_[0] in the source
  bool at_end_ = false;

  std::vector<int32_t> ids_;
  TraceLookup lookup_;
  Status status_;
};

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_READER_H_
