#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace zeropp::experiments {

/// `zeropp codecs`: lists the codecs of the registry, measures or checks them.
struct CodecsOptions {
  bool json = false;
  bool measure = false;
  bool check = false;               ///< The contract suite instead of a measurement.
  std::vector<std::string> codecs;  ///< Specs; empty: every example (of the plug-ins, if any).
  // Of --measure.
  std::string n = "1048576";          ///< As typed; ignored with a file.
  std::vector<std::string> dtypes;    ///< Empty: fp32, or a tensor's own.
  std::vector<std::string> data;      ///< Families, or "all"; empty: normal.
  std::string safetensors;            ///< A file whose tensors are measured instead.
  std::string tensors;                ///< Pattern of their names; empty: all.
  int ranks = 8, ranks_per_node = 4;  ///< Of the means of several ranks.
  int roundings = 16;                 ///< Of a codec that rounds by random numbers.
  int repetitions = 7;                ///< Of a timing.
  std::string csv, picture;           ///< Files to write.
  bool terminal = false;              ///< `err` is one: it shows what is being measured.
};

/// Returns the exit code: 0, or 1 if --check found something. UsageError names the option.
int codecs_command(const CodecsOptions& options, std::ostream& out, std::ostream& err);

}  // namespace zeropp::experiments
