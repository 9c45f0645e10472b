#pragma once

#include <cmath>
#include <cstddef>
#include <type_traits>

#include "gradwire/collectives/cpu/bytes/span.h"

namespace gradwire::collectives::cpu {

// The loop of PlainReducer runs millions of times a second. With -O2 gcc does not vectorise it; clang does.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("O3")
#endif

// A Reducer that is a plain loop over T. It has little overhead, so
// it suits short data.
template <class T, class Function>
class PlainReducer final : public Reducer {
 public:
  PlainReducer() : Reducer(sizeof(T)) {}

  void combine(void* out, const void* a, const void* b, std::size_t bytes) const override {
    const std::size_t count = bytes / sizeof(T);
    auto* const to = static_cast<T*>(out);
    const auto* const left = static_cast<const T*>(a);
    const auto* const right = static_cast<const T*>(b);
    for (std::size_t i = 0; i < count; ++i) to[i] = Function()(left[i], right[i]);
  }
};

struct Sum {
  template <class T>
  T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      // Wraps around, as in libtorch.
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(x) + static_cast<Unsigned>(y));
    } else {
      return x + y;
    }
  }
};
// A NaN wins, as in libtorch.
struct Minimum {
  template <class T>
  T operator()(T x, T y) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(x)) return x;
      if (std::isnan(y)) return y;
    }
    return y < x ? y : x;
  }
};
struct Maximum {
  template <class T>
  T operator()(T x, T y) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(x)) return x;
      if (std::isnan(y)) return y;
    }
    return x < y ? y : x;
  }
};

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

}  // namespace gradwire::collectives::cpu
