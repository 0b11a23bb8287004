#include "hotset/engine/experts/upload_ring.h"

#include <cstring>

namespace hotset::engine {
namespace {

// More than two tokens' worth of copies in flight.
constexpr size_t kMaxPieces = 1024;

}  // namespace

Result<std::unique_ptr<UploadRing>> UploadRing::create(device::Device& device, Bytes n_bytes) {
  HOTSET_CHECK(n_bytes.count >= 4);
  std::unique_ptr<UploadRing> ring(new UploadRing(device));
  HOTSET_TRY(ring->memory_, device.allocate_pinned(n_bytes, "upload ring"));
  ring->pieces_.resize(kMaxPieces);
  for (Piece& piece : ring->pieces_) {
    HOTSET_TRY(piece.copied, device.new_event());
  }
  return ring;
}

Result<uint64_t> UploadRing::find_room(size_t n) {
  const uint64_t size = memory_.n_bytes();
  uint64_t begin = n_queued_ == 0 ? 0 : pieces_[(n_queued_ - 1) % kMaxPieces].end;
  if (begin % size + n > size) begin = (begin / size + 1) * size;
  for (;;) {
    const uint64_t free_from = n_done_ == 0 ? 0 : pieces_[(n_done_ - 1) % kMaxPieces].end;
    const bool all_done = n_done_ == n_queued_;
    if (all_done || (n_queued_ - n_done_ < kMaxPieces && begin + n <= free_from + size)) {
      return begin;
    }
    HOTSET_RETURN_IF_ERROR(device_.wait(pieces_[n_done_ % kMaxPieces].copied));
    ++n_done_;
  }
}

Status UploadRing::upload(ggml_tensor* to, size_t offset, const uint8_t* from, size_t n_bytes,
                          device::Label label) {
  const size_t most = memory_.n_bytes() / 4;
  while (n_bytes > 0) {
    const size_t n = std::min(n_bytes, most);
    HOTSET_TRY(const uint64_t begin, find_room(n));
    uint8_t* staged = memory_.data() + begin % memory_.n_bytes();
    std::memcpy(staged, from, n);
    if (const auto us = device_.modelled_copy_us({static_cast<int64_t>(n)})) {
      device_.host_reaches(device_.now_us() + *us);
    }
    HOTSET_RETURN_IF_ERROR(
        device_.upload(device::QueueId::kTransfer, to, offset, staged, n, label));
    Piece& piece = pieces_[n_queued_ % kMaxPieces];
    piece.end = begin + n;
    HOTSET_RETURN_IF_ERROR(device_.record(piece.copied, device::QueueId::kTransfer));
    ++n_queued_;
    from += n;
    offset += n;
    n_bytes -= n;
  }
  return {};
}

}  // namespace hotset::engine
