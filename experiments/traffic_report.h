#pragma once

#include "experiments/job.h"
#include "experiments/json_io.h"

namespace zeropp::experiments {

/// "traffic_per_step": what training steps sent, by link class, beside the prediction. Phases
/// init, eval and checkpoint and the role control are left out. Bytes are per optimizer step:
/// whole numbers unless steps differ (skipped ones).
Json traffic_per_step(const RunConfig& run, const VariantConfig& variant,
                      const zero::Model& model, const JobOutcome& outcome);

/// "sent_per_rank": weights and gradients that a rank sends in one step, all links together, in
/// bytes (mean over ranks) and in units of (N-1)/N x Psi elements of the parameter dtype.
Json sent_per_rank(const RunConfig& run, const zero::Model& model, const JobOutcome& outcome);

/// "volume": bytes out of a node over the outermost links in units of (n-1)/n x Psi elements of
/// the parameter dtype, coded tensors, exact tensors, scales and padding apart. Null on one
/// node.
Json volume(const RunConfig& run, const VariantConfig& variant, const zero::Model& model,
            const JobOutcome& outcome);

/// True for entries that count as training traffic.
bool is_training(const hierarchy::CallInfo& call);
/// A total over steps as a mean: an integer where it is one.
Json per_step(std::uint64_t total, std::uint64_t steps);

}  // namespace zeropp::experiments
