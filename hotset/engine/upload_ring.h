// Pinned memory through which experts in pageable memory (a mapped file) reach a device: a ring of
// chunks, each filled by the calling thread while the device copies those before it.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_UPLOAD_RING_H_
#define HOTSET_ENGINE_UPLOAD_RING_H_

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
  // `device` must outlive the ring. Errors: kOutOfMemory.
  static Result<std::unique_ptr<UploadRing>> create(device::Device& device, Bytes chunk_bytes,
                                                    int64_t n_chunks);

  // Queues a copy of `n_bytes` at `from` on the transfer queue. `from` is read before this returns.
  // Waits for the device where every chunk is on its way.
  // Errors: as Device::upload and Device::wait.
  Status upload(ggml_tensor* to, size_t offset, const uint8_t* from, size_t n_bytes,
                device::Label label);

  // A point up to which chunks were used; done(point) says that the device has copied them.
  uint64_t point() const { return n_used_; }
  void done(uint64_t point) { n_done_ = std::max(n_done_, point); }

  Bytes n_bytes() const { return {static_cast<int64_t>(memory_.n_bytes())}; }
  bool pinned() const { return memory_.pinned(); }

 private:
  UploadRing(device::Device& device, size_t chunk_bytes) : device_(device), chunk_(chunk_bytes) {}

  device::Device& device_;
  size_t chunk_;
  device::HostBuffer memory_;
  std::vector<device::Event> copied_;  // of each chunk
  uint64_t n_used_ = 0;                // chunks used so far
  uint64_t n_done_ = 0;                // the first ones, which the device has copied
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_UPLOAD_RING_H_
