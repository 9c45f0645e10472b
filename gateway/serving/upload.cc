#include "gradwire/gateway/serving/upload.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/security/limits.h"

namespace gradwire::gateway {

absl::Status Upload::accept(v1::UploadPart& part) {
  switch (part.part_case()) {
    case v1::UploadPart::kRequest:
      if (has_request_)
        return absl::InvalidArgumentError("unexpected message: got a second request, expected a chunk");
      return accept_request(*part.mutable_request());
    case v1::UploadPart::kChunk:
      return accept_chunk(part.chunk());
    case v1::UploadPart::PART_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "unexpected message: got an UploadPart without a request and without a chunk");
}

absl::Status Upload::accept_request(v1::CallRequest& request) {
  if (request.ByteSizeLong() > kMaxUnaryBytes) {
    return limit_error("the request is too large: send the bytes of its tensors in chunks", "max_unary_bytes",
                       "CallChunked", kMaxUnaryBytes);
  }
  has_request_ = true;
  input_.request.Swap(&request);
  for (const v1::Value& value : input_.request.arguments()) GRADWIRE_RETURN_IF_ERROR(find_chunked(value, 1));
  for (const v1::Keyword& keyword : input_.request.keywords()) {
    GRADWIRE_RETURN_IF_ERROR(find_chunked(keyword.value(), 1));
  }
  // All sizes are known and within the limits before the first allocation.
  if (tensors_.empty()) return absl::OkStatus();
  TensorBridge* const bridge = tensor_bridge();
  if (bridge == nullptr) return absl::UnimplementedError("this gateway was linked without libtorch");
  for (const Chunked& chunked : tensors_) {
    transport::Buffer memory;
    if (chunked.size > 0) {
      GRADWIRE_ASSIGN_OR_RETURN(memory, bridge->allocate(chunked.size));
    }
    input_.uploaded.emplace(chunked.tensor, std::move(memory));
  }
  skip_complete();
  return absl::OkStatus();
}

absl::Status Upload::find_chunked(const v1::Value& value, int depth) {
  if (depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("an argument is nested too deep: expected at most ", kMaxValueDepth, " levels"));
  }
  const auto all = [&](const auto& values) -> absl::Status {
    for (const v1::Value& each : values) GRADWIRE_RETURN_IF_ERROR(find_chunked(each, depth + 1));
    return absl::OkStatus();
  };
  switch (value.kind_case()) {
    case v1::Value::kTensor: {
      if (!value.tensor().chunked()) return absl::OkStatus();
      GRADWIRE_ASSIGN_OR_RETURN(uint64_t size, checked_bytes(value.tensor()));
      GRADWIRE_RETURN_IF_ERROR(input_.permit.add_bytes(size));
      tensors_.push_back({&value.tensor(), size});
      return absl::OkStatus();
    }
    case v1::Value::kList:
      return all(value.list().values());
    case v1::Value::kTuple:
      return all(value.tuple().values());
    case v1::Value::kMap:
      GRADWIRE_RETURN_IF_ERROR(all(value.map().keys()));
      return all(value.map().values());
    default:
      return absl::OkStatus();
  }
}

void Upload::skip_complete() {
  while (current_ < tensors_.size() && offset_ == tensors_[current_].size) {
    ++current_;
    offset_ = 0;
  }
}

absl::Status Upload::accept_chunk(const v1::Chunk& chunk) {
  if (!has_request_)
    return absl::InvalidArgumentError("unexpected message: got a chunk, expected the request first");
  if (current_ == tensors_.size()) {
    return absl::InvalidArgumentError("unexpected chunk: all tensors of the request are complete");
  }
  if (chunk.tensor() != current_ || chunk.offset() != offset_) {
    return absl::InvalidArgumentError(absl::StrCat("unexpected chunk: got tensor ", chunk.tensor(),
                                                   " at offset ", chunk.offset(), ", expected tensor ",
                                                   current_, " at offset ", offset_));
  }
  const std::size_t size = chunk.data().size();
  const uint64_t left = tensors_[current_].size - offset_;
  if (size == 0 || size > kMaxChunkBytes || size > left) {
    return absl::InvalidArgumentError(absl::StrCat("wrong length of a chunk: got ", size,
                                                   " bytes, expected 1 to ",
                                                   left < kMaxChunkBytes ? left : kMaxChunkBytes));
  }
  char* const memory = static_cast<char*>(input_.uploaded[tensors_[current_].tensor].data());
  std::memcpy(memory + offset_, chunk.data().data(), size);
  offset_ += size;
  skip_complete();
  return absl::OkStatus();
}

absl::Status Upload::complete() const {
  if (!has_request_)
    return absl::InvalidArgumentError("the client closed its direction without sending a request");
  if (current_ == tensors_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the client closed its direction too early: tensor ",
                                                 current_, " has ", offset_, " of ", tensors_[current_].size,
                                                 " bytes"));
}

}  // namespace gradwire::gateway
