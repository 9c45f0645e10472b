#include "gradwire/store/etcd/etcd_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"

namespace gradwire::store {
namespace {

// How long closing may take when etcd does not answer.
constexpr absl::Duration kCleanUpFor = absl::Seconds(2);

void compare_mod_revision(etcdserverpb::TxnRequest& request, const std::string& key, int64_t mod_revision) {
  etcdserverpb::Compare& compare = *request.add_compare();
  compare.set_target(etcdserverpb::Compare::MOD);
  compare.set_result(etcdserverpb::Compare::EQUAL);
  compare.set_key(key);
  compare.set_mod_revision(mod_revision);
}

void add_put(etcdserverpb::TxnRequest& request, const std::string& key, const std::string& value,
             int64_t lease) {
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(key);
  put.set_value(value);
  put.set_lease(lease);
}

}  // namespace

EtcdWriter::EtcdWriter(EtcdClient& client, EtcdLease* lease, std::string slots, Clock& clock)
    : client_(client), lease_(lease), slots_(std::move(slots)), clock_(clock) {}

EtcdWriter::~EtcdWriter() {
  // Slots that hang on the lease go with it.
  if (next_slot_ == 0 || lease_ != nullptr) return;
  etcdserverpb::DeleteRangeRequest request;
  request.set_key(slots_);
  request.set_range_end(end_of_prefix(slots_));
  client_.call_once(clock_.now() + kCleanUpFor, [&](const EtcdMember& member, grpc::ClientContext& context) {
    etcdserverpb::DeleteRangeResponse response;
    return member.kv->DeleteRange(&context, request, &response);
  });
}

absl::Status EtcdWriter::put(const std::string& key, absl::string_view value, absl::Time deadline) {
  Task task{.key = key, .decide = nullptr, .change = {.kind = Change::kPut, .value = std::string(value)}};
  return run(task, deadline).status();
}

absl::StatusOr<EtcdWriter::Outcome> EtcdWriter::update(const std::string& key, const Decide& decide,
                                                       absl::Time deadline) {
  Task task{.key = key, .decide = &decide};
  return run(task, deadline);
}

absl::StatusOr<EtcdWriter::Outcome> EtcdWriter::run(Task& task, absl::Time deadline) {
  {
    MutexLock lock(mutex_);
    if (free_.empty()) {
      task.slot.key = absl::StrCat(slots_, next_slot_++);
    } else {
      task.slot = std::move(free_.back());
      free_.pop_back();
    }
  }
  absl::StatusOr<Outcome> outcome = carry_out(task, deadline);
  // Otherwise something that was asked may still happen, which the next call would take for its own.
  if (outcome.ok() || !task.unsure) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(task.slot));
  }
  if (outcome.ok() && !task.change.error.ok() && !outcome->note.has_value()) return task.change.error;
  return outcome;
}

absl::StatusOr<EtcdWriter::Outcome> EtcdWriter::carry_out(Task& task, absl::Time deadline) {
  if (task.decide != nullptr) {
    EtcdReader reader(client_, clock_);
    GRADWIRE_ASSIGN_OR_RETURN(EtcdReader::Found found, reader.get(task.key, deadline));
    task.current = std::move(found.now);
  }
  while (true) {
    if (task.decide != nullptr) task.change = (*task.decide)(task.current.value);
    // When unsure the slot is changed all the same, so that nothing that was asked before can happen any
    // more.
    if (task.change.kind == Change::kNone && !task.unsure)
      return Outcome{.current = std::move(task.current.value)};
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<Outcome> outcome, attempt(task, deadline));
    if (outcome.has_value()) return *std::move(outcome);
    if (clock_.now() >= deadline) {
      return absl::DeadlineExceededError(
          "others changed the key, or etcd lost its data, each time until the deadline");
    }
  }
}

etcdserverpb::TxnRequest EtcdWriter::make_request(const Task& task, int64_t lease) const {
  etcdserverpb::TxnRequest request;
  compare_mod_revision(request, task.slot.key, task.slot.mod_revision);
  request.add_failure()->mutable_request_range()->set_key(task.slot.key);
  if (task.decide != nullptr) {
    compare_mod_revision(request, task.key, task.current.mod_revision);
    request.add_failure()->mutable_request_range()->set_key(task.key);
  }
  add_put(request, task.slot.key, task.change.note, lease);
  if (task.change.kind == Change::kPut) add_put(request, task.key, task.change.value, lease);
  if (task.change.kind == Change::kErase) {
    request.add_success()->mutable_request_delete_range()->set_key(task.key);
  }
  return request;
}

absl::StatusOr<std::optional<EtcdWriter::Outcome>> EtcdWriter::attempt(Task& task, absl::Time deadline) {
  int64_t lease = 0;
  if (lease_ != nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(lease, lease_->id(deadline));
  }
  const etcdserverpb::TxnRequest request = make_request(task, lease);
  etcdserverpb::TxnResponse response;
  const absl::Status status = client_.call(
      deadline,
      [&](const EtcdMember& member, grpc::ClientContext& context) {
        response.Clear();
        return member.kv->Txn(&context, request, &response);
      },
      &task.unsure);
  if (absl::IsNotFound(status) && lease != 0) {
    lease_->lost(lease);
    return std::optional<Outcome>();
  }
  GRADWIRE_RETURN_IF_ERROR(status);
  if (!response.succeeded()) return learn(task, response);
  if (response.header().revision() <= 0)
    return client_.no_etcd_here("it changed something without a revision");
  task.slot.mod_revision = response.header().revision();
  if (task.change.kind != Change::kNone) return Outcome{.note = std::move(task.change.note)};
  return Outcome{.current = std::move(task.current.value)};
}

absl::StatusOr<std::optional<EtcdWriter::Outcome>> EtcdWriter::learn(Task& task,
                                                                     etcdserverpb::TxnResponse& response) {
  if (response.responses_size() != (task.decide != nullptr ? 2 : 1)) {
    return client_.no_etcd_here("it answered more or fewer questions than it was asked");
  }
  GRADWIRE_ASSIGN_OR_RETURN(
      EtcdValue slot,
      parse_etcd_value(client_, *response.mutable_responses(0)->mutable_response_range(), task.slot.key));
  if (task.decide != nullptr) {
    GRADWIRE_ASSIGN_OR_RETURN(
        task.current,
        parse_etcd_value(client_, *response.mutable_responses(1)->mutable_response_range(), task.key));
  }
  if (slot.mod_revision == task.slot.mod_revision) return std::optional<Outcome>();
  if (task.unsure && !slot.value.has_value()) {
    return absl::UnavailableError(
        "etcd was lost sight of while it was to change a key, and has no record of it since: its data was "
        "lost, or the store's lease ran out. It is not known whether the change happened");
  }
  task.slot.mod_revision = slot.mod_revision;
  // Nothing of this call has happened: the slot has gone with the lease, or with etcd's data.
  if (!task.unsure) return std::optional<Outcome>();
  return Outcome{.note = std::move(slot.value)};
}

}  // namespace gradwire::store
