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

/// Raised with every change that compiled plug-ins would not survive and that the sizes below
/// do not show: virtual functions of Codec and their order, the meaning of a field.
inline constexpr long long kPluginVersion = 1;

/// What a plug-in and its program must agree on: the version, then three digits each for the
/// sizes of CodecContext, CodecTraits and CodecEntry.
inline constexpr long long kPluginAbi =
    ((kPluginVersion * 1000 + sizeof(CodecContext)) * 1000 + sizeof(CodecTraits)) * 1000 +
    sizeof(CodecEntry);

}  // namespace zeropp::quant

/// The two functions that the program looks up; the braces after it hold the second's body. It
/// may throw UsageError, as register_codec does where a name is taken.
#define ZEROPP_PLUGIN                                                            \
  extern "C" long long zeropp_plugin_abi() { return zeropp::quant::kPluginAbi; } \
  extern "C" void zeropp_register_codecs()
