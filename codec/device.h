#pragma once

#include "gradwire/base/cpp20.h"

#include <compare>
#include <concepts>
#include <map>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradwire::rpc {

// The name of a device: "cpu", or a kind and an index, as in "cuda:1". at::Device converts to it and back. It
// exists because options and calls do not need libtorch. Without an index the name means the device 0 of its
// kind.
class Device {
 public:
  // The CPU.
  Device() : kind_("cpu"), index_(0) {}
  // Throws std::invalid_argument for text that is not a device's name.
  Device(absl::string_view name);  // NOLINT: implicit by design, as the three below
  Device(const char* name) : Device(absl::string_view(name)) {}
  Device(const std::string& name) : Device(absl::string_view(name)) {}
  // at::Device. Its name must be known to libtorch.
  template <class D>
  requires requires(const D& device) {
    { device.str() } -> std::convertible_to<std::string>;
    device.has_index();
  }
  Device(const D& device) : Device(absl::string_view(device.str())) {}  // NOLINT: implicit, as above

  // Reads a name from another process or from a user. InvalidArgument if it is not a device's name.
  static absl::StatusOr<Device> parse(absl::string_view name);

  // "cpu", "cuda", or another kind of device.
  const std::string& kind() const { return kind_; }
  // The number among the devices of its kind in this process; 0 for the CPU.
  int index() const { return index_; }
  bool is_cpu() const { return kind_ == "cpu"; }
  // "cpu" or "cuda:1".
  std::string str() const { return is_cpu() ? kind_ : kind_ + ":" + std::to_string(index_); }

  // As at::Device.
  template <class D>
  requires(std::constructible_from<D, const std::string&>&& requires(const D& device) { device.has_index(); })
  operator D() const {
    return D(str());
  }  // NOLINT: implicit by design

  // Orders by kind, then by index.
  friend auto operator<=>(const Device&, const Device&) = default;
  friend bool operator==(const Device&, const Device&) = default;
  // Writes str().
  friend std::ostream& operator<<(std::ostream& out, const Device& device) { return out << device.str(); }

 private:
  Device(std::string kind, int index) : kind_(std::move(kind)), index_(index) {}

  std::string kind_;
  int index_ = 0;
};

// The devices of a caller and those of its callee on which the caller's tensors arrive. Results come back by
// the inverse. It must be one to one.
using DeviceMap = std::map<Device, Device>;

// "{cuda:0 -> cuda:1, cuda:1 -> cuda:0}".
std::string to_string(const DeviceMap& map);
// As to_string(), followed by the inverse, for errors: "{cuda:0 -> cuda:1} (for results {cuda:1 -> cuda:0})".
std::string with_inverse(const DeviceMap& map);
// "[cuda:0, cuda:1]".
std::string to_string(const std::vector<Device>& devices);
// Whether the device is the CPU or one of `devices`, which is a list without the CPU.
bool contains(const std::vector<Device>& devices, const Device& device);
// The inverse of a map. InvalidArgument, with the map and the device that occurs twice, if it is not one to
// one.
absl::StatusOr<DeviceMap> inverse(const DeviceMap& map);

}  // namespace gradwire::rpc
