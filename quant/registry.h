#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quant/codec.h"

namespace zeropp::quant {

/// One link of a spec "decorator(key=value)|...|name:key=value,key=value". A decorator's first
/// parameter may stand without its key: "hadamard(32)|int4".
struct CodecSpec {
  std::string name;
  std::map<std::string, std::string> args;
};

/// One documented parameter of a codec, for `zeropp codecs` and error texts.
struct CodecParam {
  std::string key, fallback, help;
};

struct CodecEntry {
  std::string name, help;
  std::vector<CodecParam> params;
  std::vector<std::string> examples;  ///< Specs that the contract suite runs.
  /// One of the two: a codec, or a decorator around the codec that `inner` is. Unknown keys are
  /// refused before a factory is called.
  std::function<CodecPtr(const CodecSpec&)> make;
  std::function<CodecPtr(const CodecSpec&, CodecPtr inner)> decorate = {};
};

/// Name to factory. A second registration of a name throws; plug-ins use the same call.
void register_codec(CodecEntry entry);
const std::vector<CodecEntry>& codec_entries();

/// Parses and builds, decorators from the innermost outwards. `identity` is a cast to
/// `wire_dtype` (the communication data type). Unknown names and keys throw UsageError that
/// lists the known ones.
CodecPtr make_codec(std::string_view spec, Dtype wire_dtype = Dtype::kF32);

}  // namespace zeropp::quant
