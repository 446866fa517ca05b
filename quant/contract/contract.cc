#include "quant/contract/contract.h"

#include <array>

#include "quant/contract/checks.h"
#include "quant/error.h"
#include "quant/registry.h"

namespace zeropp::quant::contract {
namespace {

struct Check {
  const char* name;
  void (*run)(Subject&);
};

constexpr std::array kChecks{
    Check{"spec_is_canonical", spec_is_canonical},
    Check{"sizes_add_up", sizes_add_up},
    Check{"writes_what_it_reports", writes_what_it_reports},
    Check{"instruction_sets_agree", instruction_sets_agree},
    Check{"error_within_promise", error_within_promise},
    Check{"output_dtypes_agree", output_dtypes_agree},
    Check{"fused_equals_plain", fused_equals_plain},
    Check{"any_bytes_decode", any_bytes_decode},
    Check{"needs_no_alignment", needs_no_alignment},
    Check{"short_wires_are_refused", short_wires_are_refused},
    Check{"context_as_declared", context_as_declared},
    Check{"state_is_asked_for", state_is_asked_for},
};

}  // namespace

CodecPtr Subject::make(const std::string& spec) { return make_codec(spec); }

std::vector<std::size_t> Subject::sizes() const {
  const std::size_t block = traits().block;
  const std::size_t b = block == kWholeSpan ? 100 : block;
  std::vector<std::size_t> n{0, 1, b - 1, b, b + 1, 7 * b + 3, 33, 1000};
  std::sort(n.begin(), n.end());
  n.erase(std::unique(n.begin(), n.end()), n.end());
  return n;
}

const std::vector<std::string>& check_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Check& check : kChecks) list.emplace_back(check.name);
    return list;
  }();
  return names;
}

std::string run_check(std::string_view check, const std::string& spec, Effort effort) {
  const auto* found = std::find_if(kChecks.begin(), kChecks.end(),
                                   [&](const Check& c) { return c.name == check; });
  if (found == kChecks.end()) {
    throw UsageError("codec contract", "the name of a check", "'" + std::string(check) + "'");
  }
  Subject subject(spec, effort);
  const auto told = [&](const std::string& what) {
    return subject.where().empty() ? what : subject.where() + ": " + what;
  };
  try {
    found->run(subject);
  } catch (const Violation& e) {
    return told(e.what());
  } catch (const std::exception& e) {
    return told(std::string("throws ") + e.what());
  }
  return "";
}

std::vector<Failure> check_contract(const std::string& spec, Effort effort) {
  std::vector<Failure> failures;
  for (const std::string& name : check_names()) {
    std::string found = run_check(name, spec, effort);
    if (!found.empty()) failures.push_back({name, std::move(found)});
  }
  return failures;
}

}  // namespace zeropp::quant::contract
