#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gradwire/codec/device.h"
#include "gradwire/rpc/core/worker.h"

namespace gradwire::rpc {

// The worker that a call goes to, by name, id or WorkerInfo, with options of the call. A worker may call
// itself.
//   rpc_sync<&scale>(Destination("ps").with_timeout(absl::Seconds(5)).ordered(), x, 2.0)
class Destination {
 public:
  // A worker by its name.
  Destination(std::string name) : name_(std::move(name)) {}  // NOLINT: implicit by design, as the three below
  // A worker by its name.
  Destination(const char* name) : name_(name) {}
  // A worker by its id.
  Destination(int32_t id) : id_(id) {}
  // A worker by name and id.
  Destination(const WorkerInfo& info) : name_(info.name), id_(info.id) {}

  // Names exactly this incarnation. A later worker with the same name and id is not called.
  static Destination incarnation_of(const Worker& worker) {
    Destination destination(worker.info());
    destination.incarnation_ = worker.incarnation;
    return destination;
  }

  // Returns a copy with this timeout for a call, instead of the agent's rpc_timeout. With zero the call fails
  // at once with DeadlineExceeded. InfiniteDuration(): no limit.
  Destination with_timeout(absl::Duration timeout) const {
    Destination copy = *this;
    copy.timeout_ = timeout;
    return copy;
  }

  // Returns a copy for ordered calls: the ordered calls from one thread to one worker start there in the
  // order in which they were made.
  Destination ordered() const {
    Destination copy = *this;
    copy.ordered_ = true;
    return copy;
  }

  // Returns a copy whose calls use this device map, instead of the one that the options have for the worker.
  // It must be one to one (InvalidArgument from the call).
  Destination with_device_map(DeviceMap map) const {
    Destination copy = *this;
    copy.device_map_ = std::make_shared<const DeviceMap>(std::move(map));
    return copy;
  }

  // The worker's name; empty when only the id is known.
  const std::string& name() const { return name_; }
  // The worker's id; -1 when only the name is known.
  int32_t id() const { return id_; }
  // The worker's incarnation; 0 for any worker that has the name or id.
  uint64_t incarnation() const { return incarnation_; }
  // The timeout of with_timeout(); nullopt for the agent's rpc_timeout.
  std::optional<absl::Duration> timeout() const { return timeout_; }
  // Whether the calls are ordered.
  bool is_ordered() const { return ordered_; }
  // The map of with_device_map(); nullptr for the one of the options.
  const std::shared_ptr<const DeviceMap>& device_map() const { return device_map_; }

  // For messages: the name in quotes, or "id 3" where only the id is known.
  std::string to_string() const {
    return name_.empty() ? absl::StrCat("id ", id_) : absl::StrCat("\"", name_, "\"");
  }

 private:
  std::string name_;
  int32_t id_ = -1;
  uint64_t incarnation_ = 0;
  std::optional<absl::Duration> timeout_;
  bool ordered_ = false;
  std::shared_ptr<const DeviceMap> device_map_;
};

}  // namespace gradwire::rpc
