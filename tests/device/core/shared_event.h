#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gradwire/tests/device/core/shared.h"
#include "gradwire/tests/device/core/stream.h"

namespace gradwire::lag {

// An event that several processes share, as CUDA's interprocess events. It lies in a memfd(2) of the process
// that made it. A wait concerns the last record() before the wait, of any process, also if the event is
// recorded again afterwards. A process that ends has passed all of its records. An event that was never
// recorded counts as passed.
//
// Thread-safe. It may be destroyed while streams wait for it or record it.
class SharedEvent {
 public:
  // Fails with Unavailable if the process has too many events.
  static absl::StatusOr<std::unique_ptr<SharedEvent>> make(Shared& shared, int device);
  // `handle` may be anything. InvalidArgument if it is not that of an event that exists; Unavailable if its
  // process cannot be reached.
  static absl::StatusOr<std::unique_ptr<SharedEvent>> open(Shared& shared, int device,
                                                           const std::string& handle);
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;
  ~SharedEvent();

  const std::string& handle() const { return handle_; }
  // InvalidArgument if the stream belongs to another device.
  absl::Status record(Stream& stream);
  absl::Status block(Stream& stream) const;

  // Number of events of this process that exist, and of events of all processes that are open here.
  static int64_t made();
  static int64_t opened();

 private:
  struct Slot;
  struct File;

  SharedEvent(Shared& shared, int device, std::shared_ptr<File> file, Slot* slot, std::string handle,
              bool own);
  static const std::shared_ptr<File>& own_file();

  Shared& shared_;
  const int device_;
  // Shared with the streams that use the event.
  const std::shared_ptr<File> file_;
  Slot* const slot_;
  const std::string handle_;
  const bool own_;
};

}  // namespace gradwire::lag
