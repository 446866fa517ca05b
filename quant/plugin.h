#pragma once

// What a shared library with codecs exports, for `zeropp ... --plugin FILE.so`. Include this
// once in it and say which function registers its codecs:
//
//   #include "quant/plugin.h"
//   ZEROPP_PLUGIN { zeropp::quant::register_codec({.name = "mine", ...}); }
//
// Build it as a CMake MODULE that links zeropp::plugin (headers alone: what the library calls
// comes from the program that loads it, whose registry it must fill) with the compiler and the
// standard library that built the program. experiments/plugins is an example.

#include "quant/codec.h"
#include "quant/registry.h"

namespace zeropp::quant {

/// Raised with every change of codec.h, registry.h, dtype.h or error.h that compiled plug-ins
/// would not survive: fields, virtual functions, their order.
inline constexpr int kPluginAbi = 1;

// The sizes of version 1. Where one of these fails, raise kPluginAbi.
static_assert(sizeof(CodecContext) == 64 && sizeof(CodecTraits) == 40 &&
              sizeof(CodecParam) == 96 && sizeof(CodecEntry) == 176);

}  // namespace zeropp::quant

/// The two functions that the program looks up; the braces after it hold the second's body. It
/// may throw UsageError, as register_codec does where a name is taken.
#define ZEROPP_PLUGIN                                                      \
  extern "C" int zeropp_plugin_abi() { return zeropp::quant::kPluginAbi; } \
  extern "C" void zeropp_register_codecs()
