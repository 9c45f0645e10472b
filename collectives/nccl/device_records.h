#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/process/process_identity.h"
#include "gradwire/store/store.h"

// Ranks exchange their devices through the store before NCCL is started: two of them on one GPU would wait
// indefinitely, or fail with a message that names no rank.
namespace gradwire::collectives::nccl {

struct DeviceRecord {
  // As CUDA has it, in hexadecimal; empty where it has none.
  std::string uuid;
  // "0000:3b:00.0"
  std::string bus;
  // The N of cuda:N in its process.
  int index = 0;
};

// A rank, with the devices that it brings.
struct RankRecord {
  ProcessIdentity process;
  std::vector<DeviceRecord> devices;
};

std::string encode(const RankRecord& record);
// InvalidArgument for text that is not a record. At most 128 devices.
absl::StatusOr<RankRecord> decode(absl::string_view text);

// `ranks`: how each is called in messages. InvalidArgument when two ranks, or one twice, have a GPU, which
// names both and the device on both; or when they bring different numbers of devices.
absl::Status check_devices(const std::vector<RankRecord>& records, const std::vector<int>& ranks);

// One member's part in gathering the records of `ranks`, of which it is entry `place`. All come to the same
// result.
struct Gathering {
  store::Store& store;
  // Used by this gathering alone.
  std::string key;
  std::vector<int> ranks;
  std::size_t place = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // Asked now and then while waiting; its error ends the wait.
  std::function<absl::Status()> interrupted;
};

// Checked already. DeadlineExceeded that names the ranks that did not come.
absl::StatusOr<std::vector<RankRecord>> gather_records(const Gathering& gathering, const RankRecord& own);

}  // namespace gradwire::collectives::nccl
