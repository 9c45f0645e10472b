#pragma once

namespace gradwire::data_parallel {

// The state of the ranks before one training step inside a join.
struct JoinStatus {
  // Number of ranks that still have data.
  int active = 0;
  // Whether the ranks that still have data average the gradients of this step.
  bool synchronizes = true;
  // The number by which the sum of the gradients is divided.
  int divisor = 1;
  // The highest rank of the group that still has data. Its buffers are broadcast.
  int buffers_from = 0;
};

// Exchanges the state of the ranks.
class JoinNotifier {
 public:
  // Called before the collectives of a step, on each rank that has data. `synchronizes`: whether this rank
  // averages its gradients. Throws Error with FailedPrecondition if the ranks must stop because one has no
  // more data; the group's errors.
  virtual JoinStatus before_step(bool synchronizes) = 0;

 protected:
  // Not deleted through this interface.
  ~JoinNotifier() = default;
};

}  // namespace gradwire::data_parallel
