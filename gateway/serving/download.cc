#include "gradwire/gateway/serving/download.h"

#include <algorithm>
#include <utility>

#include "gradwire/gateway/serving/core.h"

namespace gradwire::gateway {

void Download::start(std::vector<TensorBytes> tensors) {
  tensors_ = std::move(tensors);
  current_ = 0;
  offset_ = 0;
}

bool Download::next(v1::DownloadPart& part) {
  while (current_ < tensors_.size() && offset_ == tensors_[current_].bytes.size()) {
    tensors_[current_++].bytes = transport::Buffer();
    offset_ = 0;
  }
  if (current_ == tensors_.size()) return false;
  const transport::Buffer& bytes = tensors_[current_].bytes;
  const std::size_t size = std::min<std::size_t>(kMaxChunkBytes, bytes.size() - offset_);
  v1::Chunk& chunk = *part.mutable_chunk();
  chunk.set_tensor(static_cast<uint32_t>(current_));
  chunk.set_offset(offset_);
  chunk.set_data(static_cast<const char*>(bytes.data()) + offset_, size);
  offset_ += size;
  return true;
}

}  // namespace gradwire::gateway
