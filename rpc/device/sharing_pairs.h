#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gradwire/codec/device.h"

namespace gradwire::rpc {

// Whether memory of a device of this worker can be read by another worker: a pure state machine. A probe
// finds it out, once for each worker and device, when the first tensor goes from the device to the worker.
//
// States: unknown, then probing, then works or fails, which are final.
// Not thread-safe.
class SharingPairs {
 public:
  // Maximum number of probes that may be interrupted, for example by the end of their connection. One more
  // means that sharing fails.
  static constexpr int kMaxInterrupted = 3;

  enum class Use { kNo, kYes, kProbe };
  // Whether tensors may be shared now. kProbe: not yet; begin a probe and report its end.
  Use ask(uint64_t worker, const Device& device);
  // Sharing was found impossible. Returns whether that is new; then log it.
  bool fail(uint64_t worker, const Device& device);
  void succeed(uint64_t worker, const Device& device);
  // The probe has ended without a result. Returns true as fail().
  bool interrupt(uint64_t worker, const Device& device);
  void forget(uint64_t worker);

 private:
  enum class State { kUnknown, kProbing, kWorks, kFails };
  struct Pair {
    State state = State::kUnknown;
    int interrupted = 0;
  };

  absl::flat_hash_map<std::pair<uint64_t, std::string>, Pair> pairs_;
};

}  // namespace gradwire::rpc
