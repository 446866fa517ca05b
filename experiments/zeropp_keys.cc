// Keys of the "zeropp" object: what DeepSpeed has no key for. One row a key, as in ds_keys.cc.
#include "experiments/key_table.h"

namespace zeropp::experiments {
namespace {

constexpr auto kHonoured = KeyStatus::kHonoured;

constexpr KeySpec kKeys[] = {
    {"zeropp", kHonoured, kObject},
    {"zeropp.cluster", kHonoured, kObject},
    {"zeropp.cluster.nodes", kHonoured, kInt, "", "nodes", "", 1},
    {"zeropp.cluster.ranks_per_node", kHonoured, kInt, "", "ranks a node", "", 1},
    {"zeropp.cluster.levels", kHonoured, kList, "",
     "instead of the two above: [{\"name\", \"size\"}, ...], innermost first"},
    {"zeropp.cluster.preset", kHonoured, kString, "",
     "named cluster whose links time_model_s uses"},
    {"zeropp.cluster.check", kHonoured, kString, "\"contained\"",
     "mpi: what the machines that MPI sees must be to the level named node: each node on one "
     "machine (contained), and one node a machine (exact), or anything (off)",
     "contained|exact|off"},
    {"zeropp.transport", kHonoured, kString, "\"virtual\"",
     "virtual: ranks in this process; mpi: processes under mpirun", "virtual|mpi"},

    {"zeropp.model", kHonoured, kObject},
    {"zeropp.model.layers", kHonoured, kInt, "2", "transformer blocks", "", 1},
    {"zeropp.model.width", kHonoured, kInt, "64", "", "", 1},
    {"zeropp.model.heads", kHonoured, kInt, "2", "", "", 1},
    {"zeropp.model.vocab", kHonoured, kInt, "256", "byte tokens need 256", "", 256},
    {"zeropp.model.context", kHonoured, kInt, "64", "positions", "", 1},
    {"zeropp.model.tied", kHonoured, kBool, "true", "head = token embedding"},
    {"zeropp.model.layer_norm_eps", kHonoured, kNumber, "1e-05", "", "", 0},
    {"zeropp.model.init_std", kHonoured, kNumber, "0.02", "", "", 0},
    {"zeropp.data", kHonoured, kString, "\"kjv\"", "kjv, or the path of a text file"},
    {"zeropp.validation_fraction", kHonoured, kNumber, "0.05", "held-out tail of the text", "",
     0.0001, 0.9},

    {"zeropp.seq", kHonoured, kInt, "", "tokens a sample; default: model.context", "", 1},
    {"zeropp.steps", kHonoured, kInt, "100", "optimizer steps", "", 1},
    {"zeropp.seeds", kHonoured, kInt | kList, "[1]", "a list, or a count n for 1..n"},
    {"zeropp.decay_1d", kHonoured, kBool, "true", "weight decay on norms and biases too"},
    {"zeropp.max_consecutive_skips", kHonoured, kInt, "100",
     "skipped steps in a row that end the run", "", 1},

    {"zeropp.codecs", kHonoured, kObject},
    {"zeropp.codecs.weights", kHonoured, kString | kList, "",
     "spec such as int8:block=2048 or delta|int4:block=2048, or none"},
    {"zeropp.codecs.gradients", kHonoured, kString | kList, "",
     "spec, or a list of one a level, innermost first, or powersgd:rank=R, or none"},
    {"zeropp.exact", kHonoured, kObject},
    {"zeropp.exact.weights", kHonoured, kObject},
    {"zeropp.exact.weights.one_d", kHonoured, kBool, "true", "norms and biases travel exact"},
    {"zeropp.exact.weights.below", kHonoured, kInt, "0", "smaller tensors travel exact", "", 0},
    {"zeropp.exact.weights.patterns", kHonoured, kList, "[]",
     "name patterns that travel exact"},
    {"zeropp.exact.gradients", kHonoured, kObject},
    {"zeropp.exact.gradients.one_d", kHonoured, kBool, "true", "norms and biases travel exact"},
    {"zeropp.exact.gradients.below", kHonoured, kInt, "0", "smaller tensors travel exact", "",
     0},
    {"zeropp.exact.gradients.patterns", kHonoured, kList, "[]",
     "name patterns that travel exact"},
    {"zeropp.secondary", kHonoured, kString, "",
     "hpZ: none, or the level whose group shares a second copy"},
    {"zeropp.hsdp_group", kHonoured, kString | kInt, "",
     "HSDP: none, or the level (or size) of the group that shares the states"},
    {"zeropp.stage1_all_reduce", kHonoured, kBool, "false", "stage 1 the 3 Psi way"},
    {"zeropp.algorithm", kHonoured, kString, "",
     "default: ring; hierarchical where gradients have a codec, or with delta at stage 3",
     "ring|all_to_all|hierarchical"},
    {"zeropp.reduce_at", kHonoured, kString, "", "when gradients are reduced",
     "boundary|micro_step|two_hop"},

    {"zeropp.workers", kHonoured, kInt, "0", "threads; 0 = one a core", "", 0, 4096},
    {"zeropp.timeout_s", kHonoured, kNumber, "60", "seconds without progress", "", 0.001, 1e6},
    {"zeropp.eval", kHonoured, kObject},
    {"zeropp.eval.every", kHonoured, kInt, "0", "steps; 0 = only at the end", "", 0},
    {"zeropp.eval.windows", kHonoured, kInt, "64", "held-out samples", "", 1},
    {"zeropp.compare", kHonoured, kObject},
    {"zeropp.compare.margin", kHonoured, kNumber, "0.01",
     "nats a token of validation loss that do not matter", "", 1e-9, 1e6},
    {"zeropp.compare.alpha", kHonoured, kNumber, "0.05", "error rate of a verdict", "", 1e-6,
     0.4},
    {"zeropp.checkpoint", kHonoured, kObject},
    {"zeropp.checkpoint.every", kHonoured, kInt, "0",
     "steps between checkpoints (one more at the end); 0 = none", "", 0},
    {"zeropp.checkpoint.keep", kHonoured, kInt, "1", "the newest so many; 0 = all", "", 0},
    {"zeropp.checkpoint.load", kHonoured, kString, "",
     "begin from a checkpoint's folder, or from the weights of a GPT-2 .safetensors file"},
    {"zeropp.checkpoint.load_weights_only", kHonoured, kBool, "false",
     "of a folder too the weights alone: step 0, new moments"},
    {"zeropp.checkpoint.load_sha256", kHonoured, kString, "",
     "what `load` must hold; written into resolved configs"},
    {"zeropp.measure", kHonoured, kObject},
    {"zeropp.measure.gradient_error", kHonoured, kBool, "false",
     "also reduce exactly and compare (role control)"},
    {"zeropp.measure.replicas", kHonoured, kBool, "false", "hash and compare all replicas"},

    {"zeropp.variants", kHonoured, kList, "", "named patches of this config"},
    {"zeropp.sweep", kHonoured, kOpen, "", "grid, zip, set, exclude, baseline: TUTORIAL.md"},
};

}  // namespace

std::span<const KeySpec> zeropp_keys() { return kKeys; }

}  // namespace zeropp::experiments
