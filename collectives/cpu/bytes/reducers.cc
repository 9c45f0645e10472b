#include "gradwire/collectives/cpu/bytes/reducers.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "gradwire/collectives/checks/reduction_meaning.h"
#include "gradwire/collectives/cpu/bytes/plain_reducer.h"

namespace gradwire::collectives::cpu {
namespace {

// A Reducer that uses libtorch's vectorised kernels. Each call is short enough to stay on this thread: from
// 32768 elements on, libtorch would use threads of its own, and every rank has as many of these as there are
// cores.
class TorchReducer final : public Reducer {
 public:
  // `quick`: a reducer of the same operation with less overhead, for short data. May be nullptr.
  TorchReducer(ReduceOp op, c10::ScalarType type, const Reducer* quick)
      : Reducer(c10::elementSize(type)), op_(op), options_(at::TensorOptions().dtype(type)), quick_(quick) {}

  void combine(void* out, const void* a, const void* b, std::size_t bytes) const override {
    if (quick_ != nullptr && bytes <= kQuickBytes) return quick_->combine(out, a, b, bytes);
    const c10::InferenceMode mode;
    constexpr std::size_t kElements = 32768;
    const std::size_t step = kElements * element_size();
    for (std::size_t at = 0; at < bytes; at += step) {
      const auto count = static_cast<int64_t>(std::min(step, bytes - at) / element_size());
      const auto tensor = [&](const void* data) {
        return at::from_blob(const_cast<char*>(static_cast<const char*>(data)) + at, {count}, options_);
      };
      at::Tensor to = tensor(out);
      combine_tensors(op_, to, tensor(a), tensor(b));
    }
  }

 private:
  static constexpr std::size_t kQuickBytes = std::size_t{16} << 10;

  const ReduceOp op_;
  const at::TensorOptions options_;
  const Reducer* const quick_;
};

template <class T>
const Reducer* quick_of(ReduceOp op) {
  static const PlainReducer<T, Sum> sum;
  static const PlainReducer<T, Minimum> minimum;
  static const PlainReducer<T, Maximum> maximum;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return &sum;
    case ReduceOp::kMin:
      return &minimum;
    case ReduceOp::kMax:
      return &maximum;
    default:
      return nullptr;
  }
}

const Reducer* quick_of(ReduceOp op, c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Float:
      return quick_of<float>(op);
    case c10::ScalarType::Double:
      return quick_of<double>(op);
    case c10::ScalarType::Int:
      return quick_of<int32_t>(op);
    case c10::ScalarType::Long:
      return quick_of<int64_t>(op);
    default:
      return nullptr;
  }
}

}  // namespace

const Reducer* reducer_of(ReduceOp op, c10::ScalarType type) {
  constexpr std::size_t kOps = static_cast<std::size_t>(ReduceOp::kAvg) + 1;
  constexpr std::size_t kTypes = static_cast<std::size_t>(c10::ScalarType::NumOptions);
  // Built once, and never destroyed: threads may use a reducer until the process ends. nullptr: the
  // combination is not supported.
  static const auto* const table = [] {
    auto* const made = new std::array<const Reducer*, kOps * kTypes>{};
    for (std::size_t type_number = 0; type_number < kTypes; ++type_number) {
      const auto type = static_cast<c10::ScalarType>(type_number);
      for (std::size_t op_number = 0; op_number < kOps; ++op_number) {
        const auto each = static_cast<ReduceOp>(op_number);
        if (unsupported_reason(each, type) != nullptr) continue;
        (*made)[op_number * kTypes + type_number] = new TorchReducer(each, type, quick_of(each, type));
      }
    }
    return made;
  }();
  return (*table)[static_cast<std::size_t>(op) * kTypes + static_cast<std::size_t>(type)];
}

}  // namespace gradwire::collectives::cpu
