// The trace reader over arbitrary bytes: it must end, with a trace or with an error, and what it
// accepts must be a trace: written again it gives the same bytes, and its shape can be taken.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "hotset/trace/reader.h"
#include "hotset/trace/shape.h"
#include "hotset/trace/writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const auto input = std::as_bytes(std::span(data, n_bytes));
  auto reader = hotset::trace::TraceReader::from(
      std::make_unique<hotset::trace::MemorySource>(input), "fuzz");
  if (!reader) return 0;
  hotset::trace::TraceShapeBuilder shape(reader->header());
  std::vector<std::byte> copy;
  hotset::trace::encode_header(reader->header(), copy);
  while (true) {
    const auto lookup = reader->next();
    if (!lookup || *lookup == nullptr) break;
    shape.add(**lookup);
    hotset::trace::encode_lookup(**lookup, copy);
  }
  (void)shape.shape();
  if (copy.size() > n_bytes || !std::equal(copy.begin(), copy.end(), input.begin())) std::abort();
  return 0;
}
