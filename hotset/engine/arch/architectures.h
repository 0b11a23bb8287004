// One function per architecture; the registry is in architecture.cc.
#ifndef HOTSET_ENGINE_ARCH_ARCHITECTURES_H_
#define HOTSET_ENGINE_ARCH_ARCHITECTURES_H_

#include "hotset/engine/arch/architecture.h"

namespace hotset::engine {

const Architecture& deepseek2_architecture();
const Architecture& dots1_architecture();
const Architecture& glm4moe_architecture();
const Architecture& gpt_oss_architecture();
const Architecture& granitemoe_architecture();
const Architecture& llama_architecture();
const Architecture& olmoe_architecture();
const Architecture& qwen2moe_architecture();
const Architecture& qwen3moe_architecture();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_ARCH_ARCHITECTURES_H_
