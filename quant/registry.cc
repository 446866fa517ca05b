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
    for (auto* family :
         {&cast_codecs, &int_block_codecs, &float_codecs, &nvfp4_codecs, &delta_codecs,
          &hadamard_codecs, &eden_codecs, &feedback_codecs, &ef21_codecs, &topk_codecs,
          &sign_codecs, &codebook_codecs, &lossless_codecs}) {
      for (CodecEntry& entry : family()) add(std::move(entry));
    }
  }
  void add(CodecEntry entry) {
    const std::lock_guard lock(mutex_);
    if (entry.name.empty() || entry.name.find_first_of(":,=|() ") != std::string::npos) {
      throw UsageError("codec registry", "a name without :,=|() or spaces", quoted(entry.name));
    }
    if (!entry.make == !entry.decorate) {
      throw UsageError("codec registry", "one factory, make or decorate", entry.name);
    }
    if (find(entry.name) != nullptr) {
      throw UsageError("codec registry", "a name that is not taken", quoted(entry.name));
    }
    entries_.push_back(std::move(entry));
  }
  CodecEntry at(const std::string& name) const {
    const std::lock_guard lock(mutex_);
    if (const CodecEntry* entry = find(name)) return *entry;
    if (name.substr(0, name.find(':')) == "powersgd") {
      throw UsageError("codec",
                       "powersgd alone and in zeropp.codecs.gradients: it is an algorithm of "
                       "exchanges, no codec",
                       quoted(name) + " as a codec");
    }
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

[[noreturn]] void malformed(std::string_view text, const char* expected) {
  throw UsageError("codec", expected, quoted(text));
}

void add_arg(CodecSpec& spec, std::string_view text, std::string_view key,
             std::string_view value) {
  if (!spec.args.emplace(key, value).second) malformed(text, "every key once");
}

/// "key=value,key=value"; the first may be a bare value of `first_key` unless that is empty.
void parse_args(CodecSpec& spec, std::string_view text, std::string_view rest,
                const std::string& first_key, const char* expected) {
  for (bool first = true;; first = false) {
    const std::size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    const std::size_t equals = pair.find('=');
    const bool bare = equals == std::string_view::npos && first && !first_key.empty();
    if (pair.empty() || equals == 0 || equals == pair.size() - 1) malformed(text, expected);
    if (!bare && equals == std::string_view::npos) malformed(text, expected);
    if (bare) {
      add_arg(spec, text, first_key, pair);
    } else {
      add_arg(spec, text, pair.substr(0, equals), pair.substr(equals + 1));
    }
    if (comma == std::string_view::npos) return;
    rest = rest.substr(comma + 1);
  }
}

CodecSpec parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  CodecSpec spec{.name = std::string(text.substr(0, colon)), .args = {}};
  if (colon == std::string_view::npos) return spec;
  parse_args(spec, text, text.substr(colon + 1), "", "name:key=value,key=value");
  return spec;
}

CodecSpec parse_decorator(std::string_view text, const CodecEntry& entry) {
  constexpr const char* kExpected = "decorator, decorator(value) or decorator(key=value,...)";
  CodecSpec spec{.name = entry.name, .args = {}};
  const std::size_t open = text.find('(');
  if (open == std::string_view::npos) return spec;
  if (text.back() != ')') malformed(text, kExpected);
  const std::string_view args = text.substr(open + 1, text.size() - open - 2);
  parse_args(spec, text, args, entry.params.empty() ? "" : entry.params[0].key, kExpected);
  return spec;
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
  constexpr auto kMostDecorators = 16;  // Each is a frame of this recursion and of every call.
  if (std::count(text.begin(), text.end(), '|') > kMostDecorators) {
    throw UsageError("codec", "at most 16 decorators", quoted(text.substr(0, 40)) + "...");
  }
  if (const std::size_t bar = text.find('|'); bar != std::string_view::npos) {
    const std::string_view outer = text.substr(0, bar);
    const CodecEntry entry = registry().at(std::string(outer.substr(0, outer.find('('))));
    if (!entry.decorate) malformed(text, "a decorator before each '|', a codec after the last");
    const CodecSpec spec = parse_decorator(outer, entry);
    require_known_keys(entry, spec);
    const CodecPtr inner = make_codec(text.substr(bar + 1), wire_dtype);
    if (inner->traits().difference) {
      // Whoever takes the difference must see it in the codec that it was given.
      malformed(text, "'delta' before all other decorators");
    }
    return entry.decorate(spec, inner);
  }
  const CodecSpec spec = parse(text);
  const CodecEntry entry = registry().at(spec.name);
  if (!entry.make) malformed(text, "a codec behind the decorator, as in 'ef|int4'");
  require_known_keys(entry, spec);
  // The one codec whose default comes from the caller.
  if (spec.name == "identity" && spec.args.empty()) return identity_codec(wire_dtype);
  return entry.make(spec);
}

}  // namespace zeropp::quant
