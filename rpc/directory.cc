#include "rpc/directory.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/error.h"

namespace gradwire::rpc {
namespace {

std::string worker_key(int id) { return absl::StrCat("worker/", id); }
std::string name_key(absl::string_view name) { return absl::StrCat("name/", name); }

}  // namespace

absl::Status Directory::claim(const std::string& key, const std::string& value, absl::Duration timeout,
                              std::string* present) {
  GRADWIRE_ASSIGN_OR_RETURN(*present, store_->try_compare_set(key, "", value, timeout));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<WorkerAddress>> Directory::join(const Worker& self, int world_size,
                                                           const proto::WorkerRecord& record,
                                                           absl::Duration timeout) {
  const absl::Time deadline = Clock::system().now() + timeout;
  std::string present;

  GRADWIRE_RETURN_IF_ERROR(claim("world_size", absl::StrCat(world_size), timeout, &present));
  if (present != absl::StrCat(world_size)) {
    return absl::InvalidArgumentError(absl::StrCat("worker \"", self.name, "\" was started with world size ",
                                                   world_size, ", but the job has ", present,
                                                   ": start all workers with the same"));
  }

  const std::string mine = record.SerializeAsString();
  GRADWIRE_RETURN_IF_ERROR(claim(worker_key(self.id), mine, timeout, &present));
  if (present != mine) {
    proto::WorkerRecord other;
    other.ParseFromString(present);
    return absl::InvalidArgumentError(absl::StrCat("rank ", self.id, " is taken by worker \"", other.name(),
                                                   "\": worker \"", self.name, "\" needs another rank"));
  }
  GRADWIRE_RETURN_IF_ERROR(claim(name_key(self.name), absl::StrCat(self.id), timeout, &present));
  if (present != absl::StrCat(self.id)) {
    (void)store_->try_delete_key(worker_key(self.id));
    return absl::InvalidArgumentError(absl::StrCat("the worker name \"", self.name, "\" is taken by rank ", present,
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
      return absl::DeadlineExceededError(absl::StrCat("rank", missing.size() == 1 ? " " : "s ",
                                                      absl::StrJoin(missing, ", "), " of ", world_size,
                                                      " did not join within ", absl::FormatDuration(timeout), " (",
                                                      store_->description(), ")"));
    }
    if (!serialized.ok()) return with_context(serialized.status(), "joining the group");
    WorkerAddress address;
    if (!address.record.ParseFromString(*serialized) || address.record.id() != id ||
        address.record.incarnation() == 0) {
      return absl::InvalidArgumentError(absl::StrCat("the store's entry for rank ", id, " is no worker record (",
                                                     store_->description(), ")"));
    }
    address.worker = {address.record.name(), id, address.record.incarnation()};
    workers.push_back(std::move(address));
  }
  return workers;
}

absl::Status Directory::leave(const Worker& self) {
  const absl::Duration timeout = absl::Seconds(2);
  GRADWIRE_ASSIGN_OR_RETURN(bool name_was_there, store_->try_delete_key(name_key(self.name), timeout));
  GRADWIRE_ASSIGN_OR_RETURN(bool id_was_there, store_->try_delete_key(worker_key(self.id), timeout));
  (void)name_was_there;
  (void)id_was_there;
  return absl::OkStatus();
}

}  // namespace gradwire::rpc
