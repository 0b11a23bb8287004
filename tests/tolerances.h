// Every tolerance of the test suite, each with its reason. A seeded bug must exceed it: the
// mutation tests (golden_test.cc) show that.
#ifndef TESTS_TOLERANCES_H_
#define TESTS_TOLERANCES_H_

namespace hotset::test {

// Normalised mean squared error of logits against the goldens on the CPU: the same kernels in
// another order of operations, where float32 rounding alone gives 1e-14 to 1e-9. The goldens were
// made with AVX-512; with it all builds of ggml's CPU backend are at most 2.2e-11 away.
inline constexpr double kCpuLogitsNmse = 1e-7;

// The same with kernels of other instructions. They add up in another order, and where that moves
// an activation over the edge of a step of the 8 bits that it is rounded to, the step is seen.
// Measured with all builds: at most 8.5e-7 with AVX or AVX2 (deepseek2), 2.4e-5 without (qwen2moe,
// whose experts are Q4_0); the same models with their weights as float32, so that nothing is
// rounded to 8 bits, 6.7e-12 at most. Routing and greedy tokens are the same everywhere.
inline constexpr double kAvxLogitsNmse = 2e-6;
inline constexpr double kOldCpuLogitsNmse = 4e-5;

// The same on Vulkan: its kernels multiply with activations in float32, the CPU's round them to 8
// bits; llama.cpp's own Vulkan logits are 4e-6 to 4e-4 away from its CPU's.
inline constexpr double kVulkanLogitsNmse = 2e-3;

// Share of positions that may choose other experts on Vulkan: scores that nearly tie are rounded to
// another order. Measured: 3 of 144 for qwen2moe, whose dense weights are Q8_0, at most 1
// elsewhere.
inline constexpr double kVulkanRoutingDifference = 0.03;

// What a seeded bug must at least move the logits by: 500 times the tolerance. The mildest one
// (unnormalised weights in granitemoe, whose experts add little) moves them by 9e-5.
inline constexpr double kMutationNmse = 5e-5;

// The same model computed in other ubatches, or with flash attention, F16 keys and values in both:
// kernels choose other paths by the number of rows, and accumulate in another order.
inline constexpr double kOtherPathNmse = 1e-4;

// The same F32 model from a file of another form: sums in another order.
inline constexpr double kOtherFormNmse = 1e-8;

// The same tokens in cells of another order, as where cells of a window are used again: sums in
// another order, which activations in 8 bits amplify. Measured: 4e-7.
inline constexpr double kOtherCellsNmse = 1e-5;

// Keys and values rounded to 8 bits: a relative step of 1/256 per value.
inline constexpr double kQuantizedCacheNmse = 1e-2;

// Repacked weights: activations are rounded to 8 bits in other blocks.
inline constexpr double kRepackedNmse = 1e-2;

// Perplexity of the demo model, whose repacked layouts and thus rounding depend on the CPU:
// relative.
inline constexpr double kPerplexityRelative = 0.02;

}  // namespace hotset::test

#endif  // TESTS_TOLERANCES_H_
