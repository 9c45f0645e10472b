#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gradwire/gateway/serving/invocation.h"
#include "gradwire/proto/gateway.pb.h"

namespace gradwire::gateway {

// Receives the arguments of a call with chunks (proto/gateway.proto, "Chunks"). Every message comes from a
// client and is checked before memory is allocated or written. Not thread-safe.
class Upload {
 public:
  // `input` must outlive the upload. Its permit is set.
  explicit Upload(Invocation::Input& input) : input_(input) {}

  // The next message; its contents may be taken. InvalidArgument if it is not the one that must come next,
  // and ResourceExhausted if the tensors are larger than a limit.
  absl::Status accept(v1::UploadPart& part);
  // The client has closed its direction: InvalidArgument if something is missing.
  absl::Status complete() const;

 private:
  struct Chunked {
    const v1::Tensor* tensor = nullptr;
    uint64_t size = 0;
  };

  absl::Status accept_request(v1::CallRequest& request);
  absl::Status accept_chunk(const v1::Chunk& chunk);
  absl::Status find_chunked(const v1::Value& value, int depth);
  // Goes on to the next tensor that has bytes left.
  void skip_complete();

  Invocation::Input& input_;
  bool has_request_ = false;
  std::vector<Chunked> tensors_;
  std::size_t current_ = 0;
  uint64_t offset_ = 0;
};

}  // namespace gradwire::gateway
