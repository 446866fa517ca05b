#include "quant/registry.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "quant/builtin_codecs.h"
#include "quant/error.h"

namespace zeropp::quant {
namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

class Registry {
 public:
  Registry() {
    for (auto* family : {&cast_codecs, &int_block_codecs, &float_codecs, &nvfp4_codecs}) {
      for (CodecEntry& entry : family()) add(std::move(entry));
    }
  }
  void add(CodecEntry entry) {
    const std::lock_guard lock(mutex_);
    if (entry.name.empty() || entry.name.find_first_of(":,=|() ") != std::string::npos) {
      throw UsageError("codec registry", "a name without :,=|() or spaces", quoted(entry.name));
    }
    if (!entry.make) throw UsageError("codec registry", "a factory", "none: " + entry.name);
    if (find(entry.name) != nullptr) {
      throw UsageError("codec registry", "a name that is not taken", quoted(entry.name));
    }
    entries_.push_back(std::move(entry));
  }
  CodecEntry at(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    if (const CodecEntry* entry = find(name)) return *entry;
    std::string known;
    for (const CodecEntry& entry : entries_) known += (known.empty() ? "" : ", ") + entry.name;
    throw UsageError("codec", "one of " + known, quoted(name));
  }
  const std::vector<CodecEntry>& entries() const { return entries_; }

 private:
  const CodecEntry* find(const std::string& name) const {
    const auto it = std::find_if(entries_.begin(), entries_.end(),
                                 [&](const CodecEntry& e) { return e.name == name; });
    return it == entries_.end() ? nullptr : &*it;
  }

  mutable std::mutex mutex_;
  std::vector<CodecEntry> entries_;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

CodecSpec parse(std::string_view text) {
  const auto fail = [&](const char* expected) {
    throw UsageError("codec", expected, quoted(text));
  };
  CodecSpec spec;
  const std::size_t colon = text.find(':');
  spec.name = text.substr(0, colon);
  if (colon == std::string_view::npos) return spec;
  for (std::string_view rest = text.substr(colon + 1);;) {
    const std::size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == pair.size()) {
      fail("name:key=value,key=value");
    }
    const bool added =
        spec.args.emplace(pair.substr(0, equals), pair.substr(equals + 1)).second;
    if (!added) fail("every key once");
    if (comma == std::string_view::npos) return spec;
    rest = rest.substr(comma + 1);
  }
}

void require_known_keys(const CodecEntry& entry, const CodecSpec& spec) {
  std::string known;
  for (const CodecParam& p : entry.params) known += (known.empty() ? "" : ", ") + p.key;
  for (const auto& [key, value] : spec.args) {
    const bool found = std::any_of(entry.params.begin(), entry.params.end(),
                                   [&, &k = key](const CodecParam& p) { return p.key == k; });
    if (!found) {
      throw UsageError("codec " + entry.name,
                       known.empty() ? "no keys" : "one of the keys " + known, quoted(key));
    }
  }
}

}  // namespace

void register_codec(CodecEntry entry) { registry().add(std::move(entry)); }

const std::vector<CodecEntry>& codec_entries() { return registry().entries(); }

CodecPtr make_codec(std::string_view text, Dtype wire_dtype) {
  if (const std::size_t bar = text.find('|'); bar != std::string_view::npos) {
    throw UsageError("codec", "a spec without decorators (none is known yet)",
                     quoted(text.substr(0, bar)));
  }
  const CodecSpec spec = parse(text);
  const CodecEntry entry = registry().at(spec.name);
  require_known_keys(entry, spec);
  // The one codec whose default comes from the caller.
  if (spec.name == "identity" && spec.args.empty()) return identity_codec(wire_dtype);
  return entry.make(spec);
}

}  // namespace zeropp::quant
