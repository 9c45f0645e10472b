#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <vector>

namespace gradwire::device {

// A point in the streams of one thread, for which the streams of another thread can wait. The host never
// waits. An empty fence, for example one that was recorded where no device is in use, costs nothing to wait
// for.
//
// Movable. wait() may be called any number of times and on several threads at once.
class DeviceFence {
 public:
  // An empty fence.
  DeviceFence() = default;

  // Records a point in the current streams of the calling thread, on all devices of the accelerator that are
  // initialised.
  static DeviceFence record();
  // Same, but only on the devices of these tensors. Calls no code of a device if all are on the CPU.
  static DeviceFence record(const std::vector<at::Tensor>& tensors);

  bool empty() const { return points_.empty(); }
  // Makes the current streams of the calling thread, on the devices of the fence, wait for the fence.
  void wait() const;

 private:
  struct Point {
    c10::Stream stream;
    c10::Event event;
  };

  void record_on(c10::Device device);

  std::vector<Point> points_;
};

}  // namespace gradwire::device
