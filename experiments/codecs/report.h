#pragma once

#include <string>
#include <vector>

#include "experiments/codecs/measure.h"
#include "experiments/json_io.h"

namespace zeropp::experiments {

/// One codec on one set of numbers.
struct CodecMeasurement {
  std::string spec;
  quant::Dtype dtype = quant::Dtype::kF32;
  std::size_t n = 0;
  std::string data;  ///< Family, or tensor.
  std::string file;  ///< Of the tensor; empty for a family.
  int ranks = 0, ranks_per_node = 0;
  CodecError error;
  CodecSpeed speed;
};

Json measurements_json(const std::vector<CodecMeasurement>& list);
std::string measurements_text(const std::vector<CodecMeasurement>& list);
/// The keys of the JSON as columns.
std::string measurements_csv(const std::vector<CodecMeasurement>& list);

/// Draws error against bits with results/plot.py, which travels inside the program, into an
/// .svg or .png file. UsageError without python3 and matplotlib, or where it cannot be written.
void check_picture_name(const std::string& file);
void draw_measurements(const std::vector<CodecMeasurement>& list, const std::string& file);

}  // namespace zeropp::experiments
