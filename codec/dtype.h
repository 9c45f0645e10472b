#pragma once

#include <array>
#include <cstdint>

namespace gradwire::rpc {

// The size of an element of a tensor in bytes; 0 for a dtype that is not in the list. `dtype`: the number of
// a c10::ScalarType, as in proto/value.proto. gateway/torch checks the sizes of the gateway's dtypes against
// libtorch.
constexpr int64_t element_bytes(int64_t dtype) {
  // uint8, int8, int16, int32, int64, float16, float32, float64, complex32, complex64, complex128, bool,
  // qint8, quint8, qint32, bfloat16; no sizes for 16 to 22; float8_e5m2, float8_e4m3fn; none for 25 and 26;
  // uint16, uint32, uint64.
  constexpr std::array<uint8_t, 30> kBytes = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4,
                                              2, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0,  0, 2, 4, 8};
  return dtype >= 0 && dtype < int64_t{kBytes.size()} ? kBytes[static_cast<std::size_t>(dtype)] : 0;
}

}  // namespace gradwire::rpc
