#include "gradwire/codec/device.h"

#include <algorithm>
#include <stdexcept>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

constexpr std::size_t kMaxKind = 32;
// at::Device keeps the index in 8 bits.
constexpr int kMaxIndex = 127;

bool is_kind(absl::string_view kind) {
  return !kind.empty() && kind.size() <= kMaxKind && std::all_of(kind.begin(), kind.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
  });
}

}  // namespace

absl::StatusOr<Device> Device::parse(absl::string_view name) {
  const std::size_t colon = name.find(':');
  const absl::string_view kind = name.substr(0, colon);
  int index = 0;
  const bool number = colon == absl::string_view::npos ||
                      (absl::SimpleAtoi(name.substr(colon + 1), &index) && index >= 0 && index <= kMaxIndex);
  if (!is_kind(kind) || !number || (kind == "cpu" && index != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", name.substr(0, 2 * kMaxKind),
                                                   "\" is not the name of a device, such as \"cpu\" or "
                                                   "\"cuda:1\""));
  }
  return Device(std::string(kind), index);
}

Device::Device(absl::string_view name) {
  absl::StatusOr<Device> parsed = parse(name);
  if (!parsed.ok()) throw std::invalid_argument(std::string(parsed.status().message()));
  *this = *std::move(parsed);
}

std::string to_string(const DeviceMap& map) {
  return absl::StrCat("{",
                      absl::StrJoin(map, ", ",
                                    [](std::string* out, const auto& entry) {
                                      absl::StrAppend(out, entry.first.str(), " -> ", entry.second.str());
                                    }),
                      "}");
}

std::string with_inverse(const DeviceMap& map) {
  return absl::StrCat(to_string(map), " (for results ", to_string(inverse(map).value_or(DeviceMap())), ")");
}

std::string to_string(const std::vector<Device>& devices) {
  return absl::StrCat(
      "[",
      absl::StrJoin(devices, ", ",
                    [](std::string* out, const Device& device) { absl::StrAppend(out, device.str()); }),
      "]");
}

bool contains(const std::vector<Device>& devices, const Device& device) {
  return device.is_cpu() || std::find(devices.begin(), devices.end(), device) != devices.end();
}

absl::StatusOr<DeviceMap> inverse(const DeviceMap& map) {
  DeviceMap inverse;
  for (const auto& [from, to] : map) {
    if (!inverse.emplace(to, from).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the device map ", to_string(map), " is not one to one: ", to.str(), " occurs twice"));
    }
  }
  return inverse;
}

}  // namespace gradwire::rpc
