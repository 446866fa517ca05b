#include <omp.h>  // Of libgomp, which Debian's oneDNN runs on.

#include <cstring>
#include <dnnl.hpp>
#include <string>
#include <unordered_map>

#include "quant/convert.h"
#include "quant/error.h"
#include "zero/ops/ops.h"

namespace zeropp::zero::ops {
namespace {

using quant::ConstView;
using quant::Dtype;
using quant::MutView;
using Type = dnnl::memory::data_type;

constexpr bool has(dnnl::cpu_isa isa, dnnl::cpu_isa wanted) {
  const auto mask = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(isa) & mask) == mask;
}

dnnl::cpu_isa effective_isa() {
  static const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa;
}

Type type_of(Dtype dtype) { return dtype == Dtype::kF32 ? Type::f32 : Type::bf16; }

/// A primitive is reused for every product of these numbers; bytes are compared and hashed, so
/// all members are of one size (no padding).
struct Key {
  std::int64_t m, n, k, a_row, a_col, b_row, b_col, c_row;
  std::int64_t type, c_type, bias, accumulate;
  bool operator==(const Key& o) const { return std::memcmp(this, &o, sizeof(Key)) == 0; }
};

struct KeyHash {
  std::size_t operator()(const Key& key) const {
    std::uint64_t words[sizeof(Key) / 8], h = 0xcbf29ce484222325U;
    std::memcpy(words, &key, sizeof(key));
    for (const std::uint64_t word : words) h = (h ^ word) * 0x9E3779B97F4A7C15U, h ^= h >> 29U;
    return h;
  }
};

dnnl::engine& engine() {
  static dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

struct Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias, scratch;
  std::size_t scratch_bytes = 0;
  std::unordered_map<int, dnnl::memory> args;

  explicit Product(const Key& key) {
    using dnnl::memory;
    const auto type = static_cast<Type>(key.type);
    const memory::desc ad({key.m, key.k}, type, {key.a_row, key.a_col});
    const memory::desc bd({key.k, key.n}, type, {key.b_row, key.b_col});
    const memory::desc cd({key.m, key.n}, static_cast<Type>(key.c_type), {key.c_row, 1});
    const memory::desc biasd({1, key.n}, type, {key.n, 1});
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (key.accumulate != 0) {
      dnnl::post_ops ops;
      ops.append_sum(1.0F);
      attr.set_post_ops(ops);
    }
    const auto desc =
        key.bias != 0 ? dnnl::matmul::desc(ad, bd, biasd, cd) : dnnl::matmul::desc(ad, bd, cd);
    const dnnl::matmul::primitive_desc pd(desc, attr, engine());
    primitive = dnnl::matmul(pd);
    scratch_bytes = pd.scratchpad_desc().get_size();
    a = memory(ad, engine(), nullptr);
    b = memory(bd, engine(), nullptr);
    c = memory(cd, engine(), nullptr);
    bias = memory(biasd, engine(), nullptr);
    scratch = memory(pd.scratchpad_desc(), engine(), nullptr);
    args = {{DNNL_ARG_SRC, a},
            {DNNL_ARG_WEIGHTS, b},
            {DNNL_ARG_DST, c},
            {DNNL_ARG_SCRATCHPAD, scratch}};
    if (key.bias != 0) args.insert({DNNL_ARG_BIAS, bias});
  }
};

/// Per worker thread: a stream and the primitives made so far. oneDNN's results depend on the
/// number of OpenMP threads, so each thread that multiplies is set to one, once.
struct Worker {
  std::unordered_map<Key, Product, KeyHash> products;
  dnnl::stream stream;
  Worker() : stream((omp_set_num_threads(1), engine())) {}
};

void run(Context& ctx, const MatmulArgs& args) {
  thread_local Worker worker;
  const Matrix &a = args.a, &b = args.b;
  const Key key{.m = a.rows,
                .n = b.cols,
                .k = a.cols,
                .a_row = a.transposed ? 1 : a.ld,
                .a_col = a.transposed ? a.ld : 1,
                .b_row = b.transposed ? 1 : b.ld,
                .b_col = b.transposed ? b.ld : 1,
                .c_row = args.c.ld,
                .type = static_cast<std::int64_t>(type_of(a.dtype)),
                .c_type = static_cast<std::int64_t>(type_of(args.c.dtype)),
                .bias = args.bias.n != 0,
                .accumulate = args.accumulate};
  Product& product = worker.products.try_emplace(key, key).first->second;
  // oneDNN takes mutable pointers for inputs too; it does not write through them.
  product.a.set_data_handle(const_cast<void*>(a.data), worker.stream);
  product.b.set_data_handle(const_cast<void*>(b.data), worker.stream);
  product.c.set_data_handle(args.c.data, worker.stream);
  if (key.bias != 0) {
    product.bias.set_data_handle(const_cast<void*>(args.bias.data), worker.stream);
  }
  if (product.scratch_bytes != 0) {
    product.scratch.set_data_handle(ctx.scratch(Slot::kPrimitive, product.scratch_bytes),
                                    worker.stream);
  }
  product.primitive.execute(worker.stream, product.args);
  worker.stream.wait();
}

/// A packed fp32 copy in scratch, in the storage order of the original.
Matrix widen(Context& ctx, Slot slot, const Matrix& m) {
  const std::int64_t rows = m.transposed ? m.cols : m.rows;
  const std::int64_t cols = m.transposed ? m.rows : m.cols;
  float* out = ctx.scratch_f32(slot, static_cast<std::size_t>(rows * cols));
  const auto n = static_cast<std::size_t>(cols);
  const auto* in = static_cast<const std::byte*>(m.data);
  const std::size_t stride = static_cast<std::size_t>(m.ld) * size_of(m.dtype);
  if (m.ld == cols) {
    const auto all = static_cast<std::size_t>(rows * cols);
    convert(ConstView{in, m.dtype, all}, MutView{out, Dtype::kF32, all});
  } else {
    for (std::int64_t i = 0; i < rows; ++i) {
      convert(ConstView{in + static_cast<std::size_t>(i) * stride, m.dtype, n},
              MutView{out + i * cols, Dtype::kF32, n});
    }
  }
  return {out, Dtype::kF32, m.rows, m.cols, cols, m.transposed};
}

void round_into(const float* in, const MutMatrix& c) {
  const auto n = static_cast<std::size_t>(c.cols);
  for (std::int64_t i = 0; i < c.rows; ++i) {
    void* row =
        static_cast<std::byte*>(c.data) + static_cast<std::size_t>(i * c.ld) * size_of(c.dtype);
    convert(ConstView{in + i * c.cols, Dtype::kF32, n}, MutView{row, c.dtype, n});
  }
}

std::string shape_text(const MatmulArgs& p) {
  const auto pair = [](std::int64_t r, std::int64_t c) {
    return std::to_string(r) + "x" + std::to_string(c);
  };
  return pair(p.a.rows, p.a.cols) + " times " + pair(p.b.rows, p.b.cols) + " into " +
         pair(p.c.rows, p.c.cols) + " (" + std::string(name(p.a.dtype)) + ", " +
         std::string(name(p.b.dtype)) + ", " + std::string(name(p.c.dtype)) + ")";
}

void check(const MatmulArgs& p) {
  const bool shapes = p.a.rows > 0 && p.a.cols > 0 && p.b.cols > 0 && p.a.cols == p.b.rows &&
                      p.c.rows == p.a.rows && p.c.cols == p.b.cols;
  const auto cols = static_cast<std::size_t>(p.c.cols);
  const bool bias = p.bias.n == 0 || (p.bias.n == cols && p.bias.dtype == p.a.dtype);
  const bool sum = !p.accumulate || (p.c.dtype == Dtype::kF32 && p.bias.n == 0);
  if (!shapes || !bias || !sum || p.a.dtype != p.b.dtype) {
    throw UsageError("ops.matmul", "matching shapes and dtypes, sums in fp32", shape_text(p));
  }
}

}  // namespace

bool native_matmul(Dtype dtype) {
  if (dtype == Dtype::kF32) return true;
  return dtype == Dtype::kBF16 && has(effective_isa(), dnnl::cpu_isa::avx512_core_bf16);
}

std::string describe_backend() {
  const dnnl::cpu_isa isa = effective_isa();
  std::string text = "other";
  const std::pair<dnnl::cpu_isa, const char*> known[] = {
      {dnnl::cpu_isa::sse41, "sse41"},
      {dnnl::cpu_isa::avx, "avx"},
      {dnnl::cpu_isa::avx2, "avx2"},
      {dnnl::cpu_isa::avx512_core, "avx512_core"},
      {dnnl::cpu_isa::avx512_core_vnni, "avx512_core_vnni"},
      {dnnl::cpu_isa::avx512_core_bf16, "avx512_core_bf16"},
      {dnnl::cpu_isa::avx512_core_amx, "avx512_core_amx"}};
  for (const auto& [wanted, label] : known) {
    if (has(isa, wanted)) text = label;
  }
  text += "; matmul";
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBF16, Dtype::kF16}) {
    text += dtype == Dtype::kF32 ? " " : ", ";
    text += std::string(name(dtype)) + (native_matmul(dtype) ? " native" : " widened");
  }
  return text;
}

void matmul(Context& ctx, const MatmulArgs& args) {
  check(args);
  const bool native = native_matmul(args.a.dtype);
  const bool direct = args.c.dtype == Dtype::kF32 || (native && args.c.dtype == args.a.dtype);
  if (native && direct) return run(ctx, args);

  MatmulArgs wide = args;
  if (!native) {
    wide.a = widen(ctx, Slot::kLeft, args.a);
    wide.b = widen(ctx, Slot::kRight, args.b);
    if (args.bias.n != 0) {
      const MutView bias = ctx.scratch(Slot::kBias, Dtype::kF32, args.bias.n);
      convert(args.bias, bias);
      wide.bias = bias;
    }
  }
  if (direct) return run(ctx, wide);
  const auto n = static_cast<std::size_t>(args.c.rows * args.c.cols);
  wide.c = mut_matrix(ctx.scratch(Slot::kResult, Dtype::kF32, n), args.c.rows, args.c.cols);
  run(ctx, wide);
  round_into(static_cast<const float*>(wide.c.data), args.c);
}

}  // namespace zeropp::zero::ops
