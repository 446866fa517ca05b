#pragma once

// Private to the contract: what its checks share.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "quant/contract/contract.h"
#include "quant/contract/data.h"

namespace zeropp::quant::contract {

/// Ends a check: a promise is broken.
class Violation : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Violation with what(), which is only made then, unless `kept`.
template <class What>
void expect(bool kept, const What& what) {
  if (!kept) throw Violation(what());
}
inline void expect(bool kept, const char* what) {
  if (!kept) throw Violation(what);
}

/// The codec under test, and where the check is, for the text of a failure.
class Subject {
 public:
  Subject(std::string spec, Effort effort)
      : spec_(std::move(spec)), codec_(make(spec_)), effort_(effort) {}

  const std::string& spec() const { return spec_; }
  const Codec& codec() const { return *codec_; }
  CodecTraits traits() const { return codec_->traits(); }
  /// n = 0, 1, and around one and several blocks.
  std::vector<std::size_t> sizes() const;

  /// check(x of one dtype) for every adversarial input of every size.
  template <class Check>
  void for_each_input(const Check& check) {
    for (const Dtype d : kDtypes) {
      for (const std::size_t n : sizes()) {
        for (const std::string& kind : data_kinds()) one(d, n, kind, check);
      }
      for (const std::string& kind : data_kinds()) {
        if (effort_ == Effort::kFull || kind == "normal") one(d, kLong, kind, check);
      }
    }
  }

  void at(std::string where) { where_ = std::move(where); }
  const std::string& where() const { return where_; }

 private:
  static constexpr std::size_t kLong = 65537;
  static CodecPtr make(const std::string& spec);

  template <class Check>
  void one(Dtype d, std::size_t n, const std::string& kind, const Check& check) {
    at(std::string(name(d)) + ", n = " + std::to_string(n) + ", " + kind);
    check(Numbers(d, make_data(kind, n)));
  }

  std::string spec_;
  CodecPtr codec_;
  Effort effort_;
  std::string where_;
};

// check_bytes.cc
void spec_is_canonical(Subject& s);
void sizes_add_up(Subject& s);
void writes_what_it_reports(Subject& s);
void instruction_sets_agree(Subject& s);
void any_bytes_decode(Subject& s);
void needs_no_alignment(Subject& s);
void short_wires_are_refused(Subject& s);

// check_values.cc
void error_within_promise(Subject& s);
void output_dtypes_agree(Subject& s);
void fused_equals_plain(Subject& s);
void context_as_declared(Subject& s);
void state_is_asked_for(Subject& s);

}  // namespace zeropp::quant::contract
