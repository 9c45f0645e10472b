#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <vector>

#include "gradwire/collectives/streams/stream_point.h"

namespace gradwire::data_parallel {

// Orders the work on accelerators that writes into the buckets and reduces them. The gradients of one bucket
// may be computed in several streams, but its reduction starts in one of them. For buckets on the CPU all
// methods do nothing. Not thread-safe.
class BucketStreams {
 public:
  // The calling thread has enqueued work on these buckets in its current streams: it made them, or copied
  // from them. Other streams write to them only after that work.
  void reset(const std::vector<at::Tensor>& flat);
  // Called before or after the calling thread writes into a part of the bucket in its current stream; before,
  // unless the part has a gradient already.
  void wrote(std::size_t bucket, const at::Tensor& flat);
  // Called before the bucket's reduction starts in the current stream: makes that stream wait for all streams
  // that have written into the bucket since the last call.
  void before_reduction(std::size_t bucket, const at::Tensor& flat);

 private:
  struct Bucket {
    collectives::StreamPoint made;
    // The streams that wait for `made`, and of which the allocator knows that they use the bucket.
    std::vector<c10::Stream> known;
    std::vector<c10::Stream> writers;
  };
  // The current stream for the bucket, after it waits for `made`.
  static c10::Stream stream_for(Bucket& bucket, const at::Tensor& flat);

  std::vector<Bucket> buckets_;
};

}  // namespace gradwire::data_parallel
