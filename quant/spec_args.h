#pragma once

// Readers of the parameters that codec specs share.

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quant/registry.h"

namespace zeropp::quant {

/// Takes one of the allowed words of a key; UsageError lists them.
std::string choice_arg(const CodecSpec& spec, const std::string& key, std::string fallback,
                       std::initializer_list<std::string_view> allowed);

/// UsageError where the key has this value: it is known, but `where` alone.
void refuse_arg(const CodecSpec& spec, const std::string& key, std::string_view value,
                std::string_view where);
/// The same for rounding=shift and spikes=1, which not all integers have.
void refuse_shift(const CodecSpec& spec);
void refuse_spikes(const CodecSpec& spec);

/// key=least to most, a whole number.
std::size_t count_arg(const CodecSpec& spec, const std::string& key, std::size_t fallback,
                      std::size_t least, std::size_t most);

/// block=least to 2^30.
std::size_t block_arg(const CodecSpec& spec, std::size_t fallback, std::size_t least = 1);

}  // namespace zeropp::quant
