#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quant/codec.h"
#include "quant/memory.h"

namespace zeropp::experiments {

/// The numbers that a codec is measured on: one tensor a rank, all of one size and dtype.
struct CodecData {
  std::string name;                    ///< Family, or tensor of a file.
  std::vector<quant::Tensor> by_rank;  ///< [0] is the one that is coded alone.
  quant::Dtype dtype() const { return by_rank[0].dtype(); }
  std::size_t n() const { return by_rank[0].size(); }
};
CodecData family_codec_data(const std::string& family, quant::Dtype dtype, std::size_t n,
                            int ranks);
/// Rank r has the tensor rotated by r/ranks of its length: other numbers of the same kind.
CodecData tensor_codec_data(std::string name, const quant::Tensor& tensor, quant::Dtype dtype,
                            int ranks);

/// Error of one codec on one CodecData. x^ is the decoded fp32 value of x, E the mean over
/// roundings whose random numbers have other keys (one where the codec is deterministic).
struct CodecError {
  double bits_per_element = 0;  ///< Everything that is sent, scales and padding too.
  double nmse = 0;              ///< E ||x^ - x||^2 / ||x||^2.
  double sqnr_db = 0;           ///< -10 log10(nmse).
  /// ||E[x^] - x|| / ||x||, from products of two different roundings, so that the variance of
  /// the mean is not in it; and its 95 % interval (jackknife over roundings). Equal to
  /// sqrt(nmse) for a deterministic codec.
  double bias = 0, bias_low = 0, bias_high = 0;
  double cosine = 1;     ///< Of x^ and x, one rounding.
  double max_error = 0;  ///< max |x^ - x|, one rounding.
  /// vNMSE of the mean over the ranks against the exact mean, ||m^ - m||^2 / ||m||^2. One hop:
  /// every rank's numbers are coded once. Two hops: summed and coded again inside each group
  /// of `group` ranks. Ring: the partial sum is coded at each of its ranks - 1 hops.
  double vnmse_one_hop = 0, vnmse_two_hop = 0, vnmse_ring = 0;
  int roundings = 1;
};
CodecError measure_error(const quant::Codec& codec, const CodecData& data, int group,
                         int roundings);

/// A rate over repetitions: GB (1e9 bytes) of the view of n elements in its dtype a second.
struct Rate {
  double median = 0;
  double spread = 0;  ///< Half of the distance between the quartiles.
};
/// reduce_encode reads one wire a rank.
struct CodecSpeed {
  Rate encode, decode, reduce_encode, copy;  ///< copy: memcpy of the view.
};
CodecSpeed measure_speed(const quant::Codec& codec, const CodecData& data, int repetitions);

}  // namespace zeropp::experiments
