// A model whose weights are in memory, ready for graphs.
#ifndef HOTSET_ENGINE_WEIGHTS_LOADED_MODEL_H_
#define HOTSET_ENGINE_WEIGHTS_LOADED_MODEL_H_

#include <ggml-cpp.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/arch/architecture.h"
#include "hotset/engine/weights/placement.h"
#include "hotset/engine/weights/weights.h"
#include "hotset/model/gguf_file.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

enum class LoadMode {
  kAuto,    // pinned if RAM allows and a device reads the weights; else mmap
  kMmap,    // used in place, from the page cache
  kPinned,  // copied into locked memory at load
};

struct LoadOptions {
  LoadMode load_mode = LoadMode::kMmap;
  // Rearranges weights into the CPU backend's own layouts where it has one for them: faster, other
  // rounding.
  bool repack = true;
  // Where dense weights of device layers go; null: everything is the CPU's. Outlives the model.
  // One that only plans: nothing is loaded, and the weights in host memory have no address.
  device::DeviceMemory* device = nullptr;
  Placement placement = {};
  // The experts of device layers may be uploaded: they keep the file's layout, and with load mode
  // pinned they go into memory that the device copies from.
  bool upload_experts = false;
};

// Where the weights went.
struct LoadReport {
  Bytes mapped;                      // used in place
  Bytes copied;                      // copied as they are
  Bytes repacked;                    // copied into a layout of the CPU backend
  Bytes on_device;                   // dense weights in device memory
  bool locked = false;               // the copies are locked in RAM
  bool experts_pinned = false;       // the device copies experts from where they are
  std::vector<std::string> unused;   // tensors of the file that the architecture does not use
  std::vector<std::string> layouts;  // names of the CPU layouts in use
};

// What is known of a model without loading its weights.
struct ModelDescription {
  model::GgufFile file;
  const Architecture* architecture = nullptr;
  model::ModelSpec spec;
};

// Opens and checks a file: metadata, and every tensor's presence, shape and type.
// Errors: as GgufFile::open, architecture_of, Architecture::read_spec and find_weight.
Result<ModelDescription> describe_model(const std::filesystem::path& path);
Result<ModelDescription> describe_model(model::GgufFile file);

// The CPU's own layout for a tensor in the place `use`, the best it has; null if it has none that
// hotset uses.
Result<ggml_backend_buffer_type_t> repacked_layout(const device::Backend& cpu,
                                                   const model::TensorInfo& info, WeightUse use);

// Owns the weights' buffers and the mapped files behind them. Thread-safe after loading: constant.
class LoadedModel {
 public:
  // `cpu` decides which layouts there are; it is not kept.
  // Errors: as describe_model; kOutOfMemory; kUnsupported for a weight that the CPU cannot use;
  // kIo, the file was cut meanwhile.
  static Result<std::unique_ptr<LoadedModel>> load(ModelDescription description,
                                                   const device::Backend& cpu,
                                                   const LoadOptions& options);

  const model::GgufFile& file() const { return description_.file; }
  const model::ModelSpec& spec() const { return description_.spec; }
  const Architecture& architecture() const { return *description_.architecture; }
  const ModelWeights& weights() const { return weights_; }
  const LoadReport& report() const { return report_; }
  const ModelDescription& description() const { return description_; }
  // Ends the model; what is known without its weights remains.
  ModelDescription take_description() && { return std::move(description_); }

 private:
  explicit LoadedModel(ModelDescription description) : description_(std::move(description)) {}

  Result<ggml_context*> context_for(ggml_backend_buffer_type_t type, size_t n_tensors);
  Status place_on_device(const WeightDeclaration& declaration, const LoadOptions& options,
                         size_t n_tensors);
  Status place(const WeightDeclaration& declaration, const device::Backend& cpu,
               const LoadOptions& options, size_t n_tensors);
  Status allocate_pinned(const LoadOptions& options);
  Status fill(const LoadOptions& options);

  struct Placed {
    const model::TensorInfo* info;
    ggml_tensor* tensor;
    ggml_backend_buffer_type_t type;  // null: used in place
  };

  ModelDescription description_;
  ModelWeights weights_;
  LoadReport report_;
  std::map<ggml_backend_buffer_type_t, device::TensorContext> contexts_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
  device::TensorContext device_context_;
  device::DeviceBuffer device_buffer_;
  device::TensorContext pinned_context_;  // experts in memory that the device copies from
  device::HostBuffer pinned_buffer_;
  std::vector<Placed> placed_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_LOADED_MODEL_H_
