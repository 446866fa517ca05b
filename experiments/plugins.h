#pragma once

#include <string>
#include <vector>

namespace zeropp::experiments {

/// A loaded plug-in (quant/plugin.h) and what it brought.
struct Plugin {
  std::string file;                 ///< As given.
  std::string sha256;               ///< Of the file.
  std::vector<std::string> codecs;  ///< Names that it registered.
};

/// Loads shared libraries and lets them register their codecs, in this order; they stay loaded
/// until the program ends. UsageError names the file: not there, not a shared library, another
/// ABI version, a name that is taken, nothing registered, given twice.
void load_plugins(const std::vector<std::string>& files);

/// All that were loaded, in order.
const std::vector<Plugin>& plugins();

}  // namespace zeropp::experiments
