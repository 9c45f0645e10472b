#include "gradwire/rpc/device/sharing_pairs.h"

namespace gradwire::rpc {

SharingPairs::Use SharingPairs::ask(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  switch (pair.state) {
    case State::kUnknown:
      pair.state = State::kProbing;
      return Use::kProbe;
    case State::kWorks:
      return Use::kYes;
    default:
      return Use::kNo;
  }
}

bool SharingPairs::fail(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  return std::exchange(pair.state, State::kFails) != State::kFails;
}

void SharingPairs::succeed(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  if (pair.state == State::kProbing) pair.state = State::kWorks;
}

bool SharingPairs::interrupt(uint64_t worker, const Device& device) {
  Pair& pair = pairs_[{worker, device.str()}];
  if (pair.state != State::kProbing) return false;
  if (++pair.interrupted > kMaxInterrupted) return fail(worker, device);
  pair.state = State::kUnknown;
  return false;
}

void SharingPairs::forget(uint64_t worker) {
  absl::erase_if(pairs_, [worker](const auto& entry) { return entry.first.first == worker; });
}

}  // namespace gradwire::rpc
