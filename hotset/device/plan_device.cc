#include "hotset/device/plan_device.h"

#include <sys/mman.h>

#include <utility>

#include "hotset/device/backend.h"

namespace hotset::device {
namespace {

// Addresses without memory behind them.
class Reservation {
 public:
  explicit Reservation(size_t n_bytes)
      : n_bytes_(n_bytes),
        base_(mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                   0)) {}
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() {
    if (base_ != MAP_FAILED) munmap(base_, n_bytes_);
  }

  void* base() const { return base_ == MAP_FAILED ? nullptr : base_; }

 private:
  size_t n_bytes_;
  void* base_;
};

struct Reserved {
  std::shared_ptr<const Reservation> addresses;
  ggml_backend_buffer_ptr buffer;
};

Result<Reserved> reserve(Bytes n_bytes, std::string_view what) {
  auto addresses = std::make_shared<Reservation>(static_cast<size_t>(n_bytes.count));
  if (addresses->base() == nullptr) {
    return make_error(ErrorCode::kOutOfMemory, "plan: {}: {} of addresses were refused", what,
                      to_string(n_bytes));
  }
  HOTSET_TRY(ggml_backend_buffer_ptr buffer,
             wrap_host_memory(what, addresses->base(), static_cast<size_t>(n_bytes.count)));
  return Reserved{std::move(addresses), std::move(buffer)};
}

}  // namespace

Bytes PlanDevice::total(std::string_view what) const {
  Bytes sum;
  for (const Item& item : items_) sum += item.what == what ? item.n_bytes : Bytes{};
  return sum;
}

Result<DeviceBuffer> PlanDevice::allocate(ggml_context* context, std::string_view what) {
  const auto type = buffer_type();
  const Bytes needed{
      static_cast<int64_t>(ggml_backend_alloc_ctx_tensors_from_buft_size(context, type))};
  if (needed.count == 0) return DeviceBuffer();
  items_.push_back({std::string(what), needed});
  const auto alignment = static_cast<int64_t>(ggml_backend_buft_get_alignment(type));
  Bytes total;
  const auto padded = [&](const ggml_tensor* t) {
    return align_up({static_cast<int64_t>(ggml_backend_buft_get_alloc_size(type, t))}, alignment);
  };
  const auto is_new = [](const ggml_tensor* t) {
    return t->data == nullptr && t->view_src == nullptr;
  };
  for (ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr;
       t = ggml_get_next_tensor(context, t)) {
    if (is_new(t)) total += padded(t);
  }
  HOTSET_TRY(Reserved reserved, reserve(total, what));
  auto* address = static_cast<uint8_t*>(ggml_backend_buffer_get_base(reserved.buffer.get()));
  for (ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr;
       t = ggml_get_next_tensor(context, t)) {
    if (!is_new(t)) continue;
    const int64_t n = padded(t).count;
    if (ggml_backend_tensor_alloc(reserved.buffer.get(), t, address) != GGML_STATUS_SUCCESS) {
      return make_error(ErrorCode::kInternal, "plan: {}: '{}' could not be placed", what, t->name);
    }
    address += n;
  }
  return DeviceBuffer(std::move(reserved.buffer), std::move(reserved.addresses));
}

Result<DeviceBuffer> PlanDevice::claim(Bytes n_bytes, std::string_view what) {
  items_.push_back({std::string(what), n_bytes});
  return DeviceBuffer();
}

Result<HostBuffer> PlanDevice::allocate_pinned(Bytes n_bytes, std::string_view what) {
  pinned_items_.push_back({std::string(what), n_bytes});
  if (n_bytes.count == 0) return HostBuffer();
  HOTSET_TRY(Reserved reserved, reserve(n_bytes, what));
  return HostBuffer(std::move(reserved.buffer), std::move(reserved.addresses));
}

}  // namespace hotset::device
