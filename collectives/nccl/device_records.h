#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "gradwire/base/process/process_identity.h"
#include "gradwire/store/interface/store.h"

// The ranks exchange their devices through the store before NCCL starts. If two ranks used one GPU, NCCL
// would wait indefinitely, or fail with a message that names no rank.
namespace gradwire::collectives::nccl {

// One GPU of a rank.
struct DeviceRecord {
  // CUDA's UUID of the GPU, in hexadecimal; empty if it has none.
  std::string uuid;
  // The PCI address, for example "0000:3b:00.0".
  std::string bus;
  // The N of cuda:N in its process.
  int index = 0;
};

// The process of a rank, and its GPUs.
struct RankRecord {
  ProcessIdentity process;
  std::vector<DeviceRecord> devices;
};

// Encodes a record as text.
std::string encode_record(const RankRecord& record);
// Decodes a record with at most 128 devices. Errors: InvalidArgument for text that is not a record.
absl::StatusOr<RankRecord> decode(absl::string_view text);

// Checks that all GPUs are different and that all ranks have the same number of GPUs. `ranks`: the numbers of
// the ranks in messages. Errors: InvalidArgument, which names both ranks, and the GPU as both of them number
// it.
absl::Status check_devices(const std::vector<RankRecord>& records, const std::vector<int>& ranks);

// An exchange of records between the ranks in `ranks`. All of them get the same result.
struct Gathering {
  store::Store& store;
  // The prefix of the keys; no other exchange uses it.
  std::string key;
  std::vector<int> ranks;
  // This rank's index in `ranks`.
  std::size_t index = 0;
  absl::Time deadline = absl::InfiniteFuture();
  // Called about every 100 ms while this rank waits; an error ends the wait.
  std::function<absl::Status()> interrupted;
};

// Writes this rank's record, and reads and checks the records of all ranks. Errors: as decode() and
// check_devices(); DeadlineExceeded that names the ranks that did not arrive.
absl::StatusOr<std::vector<RankRecord>> gather_records(const Gathering& gathering, const RankRecord& own);

}  // namespace gradwire::collectives::nccl
