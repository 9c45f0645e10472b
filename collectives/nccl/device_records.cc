#include "gradwire/collectives/nccl/device_records.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/group/agreement.h"

namespace gradwire::collectives::nccl {
namespace {

constexpr std::size_t kMostDevices = 128;
constexpr std::size_t kMostText = 512;

// The encoded form has one line for the process and one for each device. Blanks separate the fields of a
// line; "-" is an empty field.
std::string field(absl::string_view text) { return text.empty() ? "-" : std::string(text); }

bool plain(absl::string_view text) {
  return !text.empty() && text.size() <= kMostText &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c); });
}

std::string unfield(absl::string_view text) { return text == "-" ? "" : std::string(text); }

absl::Status malformed() { return absl::InvalidArgumentError("malformed record of a rank's devices"); }

bool same_gpu(const RankRecord& one, const DeviceRecord& a, const RankRecord& other, const DeviceRecord& b) {
  if (!a.uuid.empty() && !b.uuid.empty()) return a.uuid == b.uuid;
  // Without a UUID, the host and the bus address identify the GPU. The part of `space` before the comma is
  // the host.
  const auto host = [](const RankRecord& record) {
    return absl::string_view(record.process.space).substr(0, record.process.space.find(','));
  };
  return !host(one).empty() && host(one) == host(other) && a.bus == b.bus;
}

std::string describe(const DeviceRecord& device) {
  return absl::StrCat("GPU ", device.bus, device.uuid.empty() ? "" : absl::StrCat(" (", device.uuid, ")"));
}

absl::Status duplicate_error(int rank, const DeviceRecord& device, int other, const DeviceRecord& same) {
  if (rank == other) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " has ", describe(device),
                                                   " twice, as cuda:", device.index,
                                                   " and cuda:", same.index));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "ranks ", rank, " and ", other, " are both on ", describe(device), ", which is cuda:", device.index,
      " of rank ", rank, " and cuda:", same.index, " of rank ", other,
      "; nccl needs a different GPU for each rank (set device_id, or use tensors on different GPUs)"));
}

}  // namespace

std::string encode_record(const RankRecord& record) {
  std::string text = encode(record.process);
  for (const DeviceRecord& device : record.devices) {
    absl::StrAppend(&text, "\n", field(device.uuid), " ", field(device.bus), " ", device.index);
  }
  return text;
}

absl::StatusOr<RankRecord> decode(absl::string_view text) {
  if (text.size() > (kMostDevices + 1) * 2 * kMostText) return malformed();
  RankRecord record;
  bool first = true;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (std::exchange(first, false)) {
      std::optional<ProcessIdentity> process = decode_process(line);
      if (!process.has_value()) return malformed();
      record.process = *std::move(process);
      continue;
    }
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() != 3) return malformed();
    DeviceRecord device;
    if (!plain(fields[0]) || !plain(fields[1]) || !absl::SimpleAtoi(fields[2], &device.index) ||
        device.index < 0 || record.devices.size() == kMostDevices) {
      return malformed();
    }
    device.uuid = unfield(fields[0]);
    device.bus = unfield(fields[1]);
    record.devices.push_back(std::move(device));
  }
  if (record.devices.empty()) return malformed();
  return record;
}

absl::Status check_devices(const std::vector<RankRecord>& records, const std::vector<int>& ranks) {
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].devices.size() != records[0].devices.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the number of devices differs between ranks: rank ",
                                                     ranks[i], " has ", records[i].devices.size(), ", rank ",
                                                     ranks[0], " has ", records[0].devices.size()));
    }
    for (std::size_t a = 0; a < records[i].devices.size(); ++a) {
      const DeviceRecord& device = records[i].devices[a];
      for (std::size_t j = 0; j <= i; ++j) {
        // Each pair of devices is compared once: with the devices of earlier ranks, and with earlier devices
        // of the same rank.
        const std::size_t end = j == i ? a : records[j].devices.size();
        for (std::size_t b = 0; b < end; ++b) {
          const DeviceRecord& same = records[j].devices[b];
          if (same_gpu(records[j], same, records[i], device))
            return duplicate_error(ranks[j], same, ranks[i], device);
        }
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<RankRecord>> gather_records(const Gathering& gathering, const RankRecord& own) {
  const auto key = [&](std::size_t index) {
    return absl::StrCat(gathering.key, "/", gathering.ranks[index]);
  };
  const absl::Duration left = std::max(gathering.deadline - Clock::system().now(), absl::Seconds(1));
  GRADWIRE_RETURN_IF_ERROR(gathering.store.try_set(key(gathering.index), encode_record(own), left));
  std::vector<RankRecord> records(gathering.ranks.size());
  std::vector<int> missing;
  for (std::size_t index = 0; index < records.size(); ++index) {
    const absl::StatusOr<std::string> text =
        wait_for_key(gathering.store, key(index), gathering.deadline, gathering.interrupted);
    if (!text.ok()) {
      if (text.status().code() != absl::StatusCode::kDeadlineExceeded) return text.status();
      // Go on after the deadline: wait_for_key() returns at once then, and the error names all missing ranks.
      missing.push_back(gathering.ranks[index]);
      continue;
    }
    absl::StatusOr<RankRecord> record = decode(*text);
    if (!record.ok()) return with_context(record.status(), absl::StrCat("rank ", gathering.ranks[index]));
    records[index] = *std::move(record);
  }
  if (!missing.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat(name_ranks(missing), " did not arrive to set up NCCL's communicator"));
  }
  GRADWIRE_RETURN_IF_ERROR(check_devices(records, gathering.ranks));
  return records;
}

}  // namespace gradwire::collectives::nccl
