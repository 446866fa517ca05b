#pragma once

#include <cstddef>

namespace zeropp::quant {

/// 64-byte aligned memory for Buffer. Freed blocks are kept by the thread that freed them and
/// given out again there: a fresh page costs a fault and a clearing, which is more than a
/// collective does with it, and an aligned block of malloc more than a small message. What a
/// thread uses and keeps together never exceeds the most that it has used at once. Under
/// AddressSanitizer nothing is kept, so that use after free shows. `bytes` > 0.
std::byte* allocate_block(std::size_t bytes);
/// `bytes` as in the call that allocated the block.
void free_block(std::byte* block, std::size_t bytes) noexcept;
/// Bytes that this thread keeps for later.
std::size_t cached_block_bytes();

}  // namespace zeropp::quant
