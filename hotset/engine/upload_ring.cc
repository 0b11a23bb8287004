#include "hotset/engine/upload_ring.h"

#include <algorithm>
#include <cstring>

namespace hotset::engine {

Result<std::unique_ptr<UploadRing>> UploadRing::create(device::Device& device, Bytes chunk_bytes,
                                                       int64_t n_chunks) {
  HOTSET_CHECK(chunk_bytes.count > 0 && n_chunks > 0);
  std::unique_ptr<UploadRing> ring(new UploadRing(device, static_cast<size_t>(chunk_bytes.count)));
  HOTSET_TRY(ring->memory_, device.allocate_pinned(chunk_bytes * n_chunks, "upload ring"));
  for (int64_t i = 0; i < n_chunks; ++i) {
    HOTSET_TRY(ring->copied_.emplace_back(), device.new_event());
  }
  return ring;
}

Status UploadRing::upload(ggml_tensor* to, size_t offset, const uint8_t* from, size_t n_bytes,
                          device::Label label) {
  while (n_bytes > 0) {
    const size_t chunk = n_used_ % copied_.size();
    if (n_used_ - n_done_ == copied_.size()) {
      HOTSET_RETURN_IF_ERROR(device_.wait(copied_[chunk]));
      ++n_done_;
    }
    const size_t n = std::min(n_bytes, chunk_);
    uint8_t* staged = memory_.data() + chunk * chunk_;
    std::memcpy(staged, from, n);
    HOTSET_RETURN_IF_ERROR(
        device_.upload(device::QueueId::kTransfer, to, offset, staged, n, label));
    HOTSET_RETURN_IF_ERROR(device_.record(copied_[chunk], device::QueueId::kTransfer));
    ++n_used_;
    from += n;
    offset += n;
    n_bytes -= n;
  }
  return {};
}

}  // namespace hotset::engine
