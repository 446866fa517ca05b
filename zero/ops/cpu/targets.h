// Instruction sets that the kernels are compiled for: SSE2, AVX2 and AVX-512 (or NEON). No
// include guard: Highway includes the file named by HWY_TARGET_INCLUDE again for each.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
// clang-format off: the order matters
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
