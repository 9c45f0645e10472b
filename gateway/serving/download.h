#pragma once

#include <cstddef>
#include <vector>

#include "gradwire/gateway/values/tensors.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Divides the chunked tensors of one response into messages (proto/gateway.proto, "Chunks").
class Download {
 public:
  // The tensors of the next response. REQUIRES: those of the last one were sent.
  void start(std::vector<TensorBytes> tensors);
  // Fills `part` with the next chunk, and returns whether it did: false after the last one. The memory of a
  // tensor that was sent is released.
  bool next(v1::DownloadPart& part);

 private:
  std::vector<TensorBytes> tensors_;
  std::size_t current_ = 0;
  std::size_t offset_ = 0;
};

}  // namespace gradwire::gateway
