#include "gradwire/data_parallel/devices/bucket_streams.h"

#include <algorithm>

#include "gradwire/device/streams.h"

namespace gradwire::data_parallel {

void BucketStreams::reset(const std::vector<at::Tensor>& flat) {
  buckets_.clear();
  for (const at::Tensor& each : flat) {
    Bucket& bucket = buckets_.emplace_back();
    if (each.is_cpu()) continue;
    bucket.made = collectives::StreamPoint::of_current(each.device());
    bucket.known.push_back(device::current_stream(each.device()));
    device::record_use(each, bucket.known.back());
  }
}

c10::Stream BucketStreams::stream_for(Bucket& bucket, const at::Tensor& flat) {
  const c10::Stream stream = device::current_stream(flat.device());
  if (std::find(bucket.known.begin(), bucket.known.end(), stream) == bucket.known.end()) {
    bucket.made.block_current();
    device::record_use(flat, stream);
    bucket.known.push_back(stream);
  }
  return stream;
}

void BucketStreams::wrote(std::size_t bucket, const at::Tensor& flat) {
  if (flat.is_cpu()) return;
  std::vector<c10::Stream>& writers = buckets_[bucket].writers;
  const c10::Stream stream = stream_for(buckets_[bucket], flat);
  if (std::find(writers.begin(), writers.end(), stream) == writers.end()) writers.push_back(stream);
}

void BucketStreams::before_reduction(std::size_t bucket, const at::Tensor& flat) {
  if (flat.is_cpu()) return;
  const c10::Stream stream = stream_for(buckets_[bucket], flat);
  for (const c10::Stream writer : buckets_[bucket].writers) {
    device::order(writer, stream);
  }
  buckets_[bucket].writers.clear();
}

}  // namespace gradwire::data_parallel
