// Writes a trace in the format MCT1. The bytes go to PATH.partial, which becomes PATH only in
// close(): a trace that is there is whole, and a writer that is dropped leaves nothing behind.
// The writer owns the file.
// Thread-compatible.
#ifndef HOTSET_TRACE_WRITER_H_
#define HOTSET_TRACE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/trace/trace.h"

namespace hotset::trace {

class TraceWriter {
 public:
  // Starts a trace that replaces the file `path`, if there is one.
  // Errors: those of validate(header); kIo, the file cannot be made or written.
  static Result<TraceWriter> open(const std::string& path, const TraceHeader& header);

  TraceWriter(TraceWriter&&) = default;
  TraceWriter& operator=(TraceWriter&&) = default;

  const TraceHeader& header() const { return header_; }
  // Bytes written so far, those in the buffer included.
  uint64_t offset_bytes() const { return offset_bytes_; }

  // Appends one lookup. Errors: those of validate(lookup, header), nothing is written; kIo.
  Status append(const TraceLookup& lookup);

  // Ends the trace and gives it its name. Requires: called once, nothing after it.
  // Errors: kIo, and then there is no file.
  Status close();

 private:
  // Removes the unfinished file when it is still there.
  struct PartialFile {
    std::string path;
    std::FILE* file = nullptr;
    ~PartialFile();
  };

  TraceWriter(std::string path, const TraceHeader& header);

  Status flush();

  std::string path_;
  TraceHeader header_;
  std::vector<int32_t> group_by_layer_;
  std::unique_ptr<PartialFile> partial_;
  std::vector<std::byte> buffer_;
  uint64_t offset_bytes_ = 0;
};

// Appends the header of a trace to `bytes`. Requires: validate(header) is ok.
void encode_header(const TraceHeader& header, std::vector<std::byte>& bytes);

// Appends one lookup to `bytes`. Requires: validate(lookup, header) is ok for the trace's header.
void encode_lookup(const TraceLookup& lookup, std::vector<std::byte>& bytes);

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_WRITER_H_
