#pragma once

// What the registry starts with. A family of codecs is a file that returns its entries here.

#include <cstddef>
#include <string_view>
#include <vector>

#include "quant/registry.h"
#include "quant/rng.h"

namespace zeropp::quant {

std::vector<CodecEntry> cast_codecs();       ///< cast_codec.cc
std::vector<CodecEntry> int_block_codecs();  ///< int_block_codec.cc
std::vector<CodecEntry> float_codecs();      ///< float_codec.cc
std::vector<CodecEntry> nvfp4_codecs();      ///< float_nvfp4_codec.cc
std::vector<CodecEntry> delta_codecs();      ///< delta_codec.cc
std::vector<CodecEntry> hadamard_codecs();   ///< hadamard_codec.cc
std::vector<CodecEntry> eden_codecs();       ///< eden_codec.cc
std::vector<CodecEntry> feedback_codecs();   ///< feedback_codec.cc
std::vector<CodecEntry> ef21_codecs();       ///< ef21_codec.cc
std::vector<CodecEntry> topk_codecs();       ///< topk_codec.cc
std::vector<CodecEntry> sign_codecs();       ///< sign_codec.cc
std::vector<CodecEntry> codebook_codecs();   ///< codebook_codec.cc
std::vector<CodecEntry> lossless_codecs();   ///< lossless_codec.cc

/// int1 .. int8 with bit planes, a minimum or another scale than fp32 (int_plane_codec.cc).
CodecPtr make_int_plane(int bits, std::size_t default_block, const CodecSpec& spec);

/// The random numbers of stochastic rounding, keyed by what the span is.
Philox rounding_noise(const CodecContext& ctx);  // rounding.cc

/// The codec `identity` of a communication data type.
CodecPtr identity_codec(Dtype wire_dtype);  // cast_codec.cc

/// UsageError that names the codec if a caller's wire span is too short.
void require_wire_size(std::string_view spec, std::string_view what, std::size_t found,
                       std::size_t needed);

}  // namespace zeropp::quant
