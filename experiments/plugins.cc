#include "experiments/plugins.h"

#include <dlfcn.h>

#include <filesystem>

#include "experiments/json_io.h"
#include "quant/error.h"
#include "quant/plugin.h"
#include "quant/registry.h"
#include "zero/data.h"

namespace zeropp::experiments {
namespace {

std::vector<Plugin>& loaded() {
  static std::vector<Plugin> list;
  return list;
}

std::string last_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "an unknown error" : text;
}

/// The function of that name, or an error that says what is missing.
template <class Function>
Function* function(void* library, const char* name, const std::string& file) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) {
    throw UsageError("--plugin", std::string("a zeropp plug-in, which exports ") + name + "()",
                     file);
  }
  return reinterpret_cast<Function*>(found);
}

Plugin load(const std::string& file) {
  Plugin plugin{.file = file, .sha256 = {}, .codecs = {}};
  const std::string bytes = read_text(file);  // Says why where it cannot be read.
  plugin.sha256 = zero::sha256_hex(bytes.data(), bytes.size());
  // A path with a slash: dlopen would look for a bare name elsewhere. Never closed, because
  // codecs live until the process ends.
  void* library = ::dlopen(std::filesystem::absolute(file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw UsageError("--plugin", "a shared library", last_error());
  const long long abi = function<long long()>(library, "zeropp_plugin_abi", file)();
  if (abi != quant::kPluginAbi) {
    throw UsageError("--plugin " + file,
                     "plug-in ABI " + std::to_string(quant::kPluginAbi) +
                         " (compile it with this program's headers)",
                     std::to_string(abi));
  }
  const std::size_t before = quant::codec_entries().size();
  try {
    function<void()>(library, "zeropp_register_codecs", file)();
  } catch (const UsageError& e) {
    throw UsageError("--plugin " + file, "codecs that can be registered", e.what());
  }
  const auto& entries = quant::codec_entries();
  for (std::size_t i = before; i < entries.size(); ++i) {
    plugin.codecs.push_back(entries[i].name);
  }
  if (plugin.codecs.empty()) {
    throw UsageError("--plugin " + file, "at least one codec that it registers", "none");
  }
  return plugin;
}

}  // namespace

void load_plugins(const std::vector<std::string>& files) {
  for (const std::string& file : files) loaded().push_back(load(file));
}

const std::vector<Plugin>& plugins() { return loaded(); }

}  // namespace zeropp::experiments
