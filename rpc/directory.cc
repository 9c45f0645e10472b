#include "rpc/directory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/error.h"

namespace gradwire::rpc {
namespace {

constexpr char kWorldSize[] = "world_size";
constexpr char kMembers[] = "members";
std::string worker_key(int id) { return absl::StrCat("worker/", id); }
std::string name_key(absl::string_view name) { return absl::StrCat("name/", name); }

}  // namespace

absl::StatusOr<std::string> Directory::claim(const std::string& key, const std::string& value,
                                             absl::Duration timeout) {
  GRADWIRE_ASSIGN_OR_RETURN(std::string present, store_->try_compare_set(key, "", value, timeout));
  if (present == value) {
    MutexLock lock(mutex_);
    claimed_.push_back(key);
  }
  return present;
}

absl::StatusOr<std::vector<WorkerAddress>> Directory::join(const Worker& self, int world_size,
                                                           const proto::WorkerRecord& record,
                                                           absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;

  const std::string size = absl::StrCat(world_size);
  GRADWIRE_ASSIGN_OR_RETURN(std::string present, store_->try_compare_set(kWorldSize, "", size, timeout));
  if (present != size) {
    return absl::InvalidArgumentError(absl::StrCat("worker \"", self.name, "\" was started with world size ",
                                                   world_size, ", but the job has ", present,
                                                   ": start all workers with the same"));
  }

  const std::string mine = record.SerializeAsString();
  GRADWIRE_ASSIGN_OR_RETURN(present, claim(worker_key(self.id), mine, timeout));
  if (present != mine) {
    proto::WorkerRecord other;
    other.ParseFromString(present);
    return absl::InvalidArgumentError(absl::StrCat("rank ", self.id, " is taken by worker \"", other.name(),
                                                   "\": worker \"", self.name, "\" needs another rank"));
  }
  {
    GRADWIRE_RETURN_IF_ERROR(store_->try_add(kMembers, 1, timeout).status());
    MutexLock lock(mutex_);
    counted_ = true;
  }
  // The incarnation tells this claim from one of a worker of the same name and rank.
  const std::string named = absl::StrCat(self.id, "/", absl::Hex(self.incarnation));
  GRADWIRE_ASSIGN_OR_RETURN(present, claim(name_key(self.name), named, timeout));
  if (present != named) {
    return absl::InvalidArgumentError(absl::StrCat("the worker name \"", self.name, "\" is taken by rank ",
                                                   present.substr(0, present.find('/')),
                                                   ": names must be unique"));
  }

  std::vector<WorkerAddress> workers;
  for (int id = 0; id < world_size; ++id) {
    absl::StatusOr<std::string> serialized =
        store_->try_get(worker_key(id), std::max(absl::ZeroDuration(), deadline - Clock::system().now()));
    if (absl::IsDeadlineExceeded(serialized.status())) {
      std::vector<int> missing;
      for (int other = id; other < world_size; ++other) {
        if (!store_->try_get(worker_key(other), absl::ZeroDuration()).ok()) missing.push_back(other);
      }
      return absl::DeadlineExceededError(absl::StrCat(
          "rank", missing.size() == 1 ? " " : "s ", absl::StrJoin(missing, ", "), " of ", world_size,
          " did not join within ", absl::FormatDuration(timeout), " (", store_->description(), ")"));
    }
    if (!serialized.ok()) return with_context(serialized.status(), "joining the group");
    WorkerAddress address;
    if (!address.record.ParseFromString(*serialized) || address.record.id() != id ||
        address.record.incarnation() == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the store's entry for rank ", id,
                                                     " is no worker record (", store_->description(), ")"));
    }
    address.worker = {address.record.name(), id, address.record.incarnation()};
    workers.push_back(std::move(address));
  }
  return workers;
}

absl::Status Directory::leave() {
  const absl::Duration timeout = absl::Seconds(2);
  std::vector<std::string> claimed;
  bool counted = false;
  {
    MutexLock lock(mutex_);
    claimed.swap(claimed_);
    std::swap(counted, counted_);
  }
  for (const std::string& key : claimed)
    GRADWIRE_RETURN_IF_ERROR(store_->try_delete_key(key, timeout).status());
  if (!counted) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(const int64_t left, store_->try_add(kMembers, -1, timeout));
  if (left > 0) return absl::OkStatus();
  GRADWIRE_RETURN_IF_ERROR(store_->try_delete_key(kMembers, timeout).status());
  return store_->try_delete_key(kWorldSize, timeout).status();
}

}  // namespace gradwire::rpc
