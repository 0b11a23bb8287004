// Pinned memory through which experts in pageable memory (a mapped file) reach a device: a ring,
// filled by the calling thread while the device copies what was filled in before.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_UPLOAD_RING_H_
#define HOTSET_ENGINE_EXPERTS_UPLOAD_RING_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/device.h"

namespace hotset::engine {

class UploadRing {
 public:
  // `device` must outlive the ring. Errors: kOutOfMemory. Requires: n_bytes of 4 or more.
  static Result<std::unique_ptr<UploadRing>> create(device::Device& device, Bytes n_bytes);

  // Queues a copy of `n_bytes` at `from` on the transfer queue, in pieces of up to a quarter of the
  // ring. `from` is read before this returns. Waits for the device where the ring is full.
  // Errors: as Device::upload and Device::wait.
  Status upload(ggml_tensor* to, size_t offset, const uint8_t* from, size_t n_bytes,
                device::Label label);

  // A point up to which pieces were queued; done(point) says that the device has copied them.
  uint64_t point() const { return n_queued_; }
  void done(uint64_t point) { n_done_ = std::max(n_done_, point); }

  Bytes n_bytes() const { return {static_cast<int64_t>(memory_.n_bytes())}; }
  bool pinned() const { return memory_.pinned(); }

 private:
  // Bytes are numbered from the ring's start on, and go on behind its end.
  struct Piece {
    uint64_t end = 0;
    device::Event copied;
  };

  explicit UploadRing(device::Device& device) : device_(device) {}

  // The number of the first of `n` bytes that are free and in one stretch.
  Result<uint64_t> find_room(size_t n);

  device::Device& device_;
  device::HostBuffer memory_;
  std::vector<Piece> pieces_;  // the n-th piece is at n % size
  uint64_t n_queued_ = 0;      // pieces so far
  uint64_t n_done_ = 0;        // the first ones, which the device has copied
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_UPLOAD_RING_H_
