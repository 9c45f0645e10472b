#pragma once

#include "gradwire/base/cpp20.h"

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace gradwire {

// A point in the streams of an accelerator: everything that a thread had enqueued on its current streams when
// the fence was recorded. A value that lies on a device carries the fence of its producer, so that it can be
// passed on before the device has computed it. Thread-safe.
class StreamFence {
 public:
  virtual ~StreamFence() = default;
  // Makes the current streams of the calling thread wait for this point. The thread itself does not wait. If
  // the fence knows tensors, their memory is kept for these streams too. An error means that a device is
  // lost.
  virtual absl::Status wait() const = 0;
  // Whether the devices have reached this point. Does not block. An error means that a device is lost.
  virtual absl::StatusOr<bool> reached() const = 0;
};

using StreamFencePtr = std::shared_ptr<const StreamFence>;

namespace stream_fence_internal {

// The addresses of at::TensorBase objects, as base does not know libtorch.
struct Tensors {
  std::vector<const void*> tensors;
  // Whether the value has parts of a type that is not known here. They may lie on any device.
  bool others = false;
};

template <class T>
concept TensorLike = requires(const T& value) {
  value.unsafeGetTensorImpl();
  value.has_storage();
};
// c10::IValue.
template <class T>
concept ValueLike = requires(const T& value) {
  { value.isTensor() } -> std::convertible_to<bool>;
  value.unsafeToTensorImpl();
};

// Whether a value of type T may lie on a device. Numbers and texts do not.
template <class T>
inline constexpr bool kMayLieOnDevice =
    !std::is_void_v<T> && !std::is_arithmetic_v<T> && !std::is_enum_v<T> && !std::is_same_v<T, std::string>;

template <class T>
inline constexpr bool kIsTuple = false;
template <class... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool kIsTuple<std::pair<A, B>> = true;

template <class T>
void collect(const T& value, Tensors& found) {
  if constexpr (!kMayLieOnDevice<T>) {
    return;
  } else if constexpr (TensorLike<T>) {
    found.tensors.push_back(&value);
  } else if constexpr (ValueLike<T>) {
    value.visit([&found](const T& part) {
      // The interned pointer of an IValue is that of a tensor.
      if (part.isTensor()) found.tensors.push_back(&part.toTensor());
      return false;
    });
  } else if constexpr (kIsTuple<T>) {
    std::apply([&found](const auto&... parts) { (collect(parts, found), ...); }, value);
  } else if constexpr (requires {
                         typename T::value_type;
                         value.has_value();
                       }) {
    if (value.has_value()) collect(*value, found);
  } else if constexpr (std::ranges::range<const T>) {
    if constexpr (kMayLieOnDevice<std::remove_cvref_t<std::ranges::range_reference_t<const T>>>) {
      for (const auto& part : value) collect(part, found);
    }
  } else {
    found.others = true;
  }
}

using Recorder = StreamFencePtr (*)(const Tensors& tensors);
inline std::atomic<Recorder> recorder{nullptr};

}  // namespace stream_fence_internal

// Records a fence on the current streams of the calling thread. Returns nullptr while the process uses no
// accelerator, and then costs one load.
inline StreamFencePtr record_stream_fence() {
  const auto record = stream_fence_internal::recorder.load(std::memory_order_acquire);
  return record == nullptr ? nullptr : record({{}, /*others=*/true});
}

// As above, for a value that other threads will use. The fence keeps the memory of its tensors for the
// streams that wait for it: of tensors, IValues, and containers and tuples of them. nullptr also if the value
// is known to lie on no device.
template <class T>
StreamFencePtr record_stream_fence_of(const T& value) {
  if constexpr (!stream_fence_internal::kMayLieOnDevice<T>) return nullptr;
  const auto record = stream_fence_internal::recorder.load(std::memory_order_acquire);
  if (record == nullptr) return nullptr;
  stream_fence_internal::Tensors found;
  stream_fence_internal::collect(value, found);
  return record(found);
}

// Called by the layer that knows devices, when the process begins to use an accelerator. The recorder must
// not throw. It returns nullptr if there is nothing on a device.
inline void install_stream_recorder(stream_fence_internal::Recorder recorder) {
  stream_fence_internal::recorder.store(recorder, std::memory_order_release);
}

// Returns a fence that waits for all of `fences`; nullptr if none of them is set.
StreamFencePtr join_fences(std::vector<StreamFencePtr> fences);

}  // namespace gradwire
