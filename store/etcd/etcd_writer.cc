#include "gradwire/store/etcd/etcd_writer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gradwire/base/error.h"

namespace gradwire::store {
namespace {

// How long closing may take if etcd does not answer.
constexpr absl::Duration kCleanUpTimeout = absl::Seconds(2);

// The value of a slot says whether the key was changed, and has the note of the change.
constexpr absl::string_view kNothingChanged = "-";
constexpr absl::string_view kChanged = "+";

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

std::string slot_value_of(const EtcdWriter::Change& change) {
  if (change.kind == EtcdWriter::Change::kNone) return std::string(kNothingChanged);
  return absl::StrCat(kChanged, change.note);
}

}  // namespace

EtcdWriter::EtcdWriter(EtcdClient& client, EtcdLease* lease, std::string slots, Clock& clock)
    : client_(client), lease_(lease), slots_(std::move(slots)), clock_(clock) {}

EtcdWriter::~EtcdWriter() {
  // With a lease, etcd deletes the slots together with the lease.
  if (next_slot_ == 0 || lease_ != nullptr) return;
  etcdserverpb::DeleteRangeRequest request;
  request.set_key(slots_);
  request.set_range_end(end_of_prefix(slots_));
  client_.call_once(clock_.now() + kCleanUpTimeout,
                    [&](const EtcdMember& member, grpc::ClientContext& context) {
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
  absl::StatusOr<Outcome> outcome = execute(task, deadline);
  // Do not reuse the slot otherwise: a transaction of this call may still happen, and the next call would
  // mistake it for its own.
  if (outcome.ok() || !task.unsure) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(task.slot));
  }
  if (outcome.ok() && !task.change.error.ok() && !outcome->note.has_value()) return task.change.error;
  return outcome;
}

absl::StatusOr<EtcdWriter::Outcome> EtcdWriter::execute(Task& task, absl::Time deadline) {
  if (task.decide != nullptr) {
    EtcdReader reader(client_, clock_);
    GRADWIRE_ASSIGN_OR_RETURN(EtcdReader::Found found, reader.get(task.key, deadline));
    task.current = std::move(found.now);
  }
  while (true) {
    if (task.decide != nullptr) task.change = (*task.decide)(task.current.value);
    // If unsure, change the slot even if nothing is to be done, so that no earlier transaction of this call
    // can still happen.
    if (task.change.kind == Change::kNone && !task.unsure)
      return Outcome{.current = std::move(task.current.value)};
    GRADWIRE_ASSIGN_OR_RETURN(std::optional<Outcome> outcome, attempt(task, deadline));
    if (outcome.has_value()) return *std::move(outcome);
    if (clock_.now() >= deadline) {
      return absl::DeadlineExceededError(
          "could not change the key before the deadline: each time another process had changed it, or etcd "
          "had lost its data");
    }
  }
}

// If the slot, and the key that the change was decided from, have not changed: write the note to the slot
// and change the key. Otherwise: read both, for analyze_failure().
etcdserverpb::TxnRequest EtcdWriter::make_request(const Task& task, int64_t lease) const {
  etcdserverpb::TxnRequest request;
  compare_mod_revision(request, task.slot.key, task.slot.mod_revision);
  request.add_failure()->mutable_request_range()->set_key(task.slot.key);
  if (task.decide != nullptr) {
    compare_mod_revision(request, task.key, task.current.mod_revision);
    request.add_failure()->mutable_request_range()->set_key(task.key);
  }
  add_put(request, task.slot.key, slot_value_of(task.change), lease);
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
  // The lease has expired. The transaction was not executed; repeat it with a new lease.
  if (absl::IsNotFound(status) && lease != 0) {
    lease_->on_lost(lease);
    return std::optional<Outcome>();
  }
  GRADWIRE_RETURN_IF_ERROR(status);
  if (!response.succeeded()) return analyze_failure(task, response);
  if (response.header().revision() <= 0)
    return client_.not_etcd_error("it executed a transaction without a revision");
  task.slot.mod_revision = response.header().revision();
  if (task.change.kind != Change::kNone) return Outcome{.note = std::move(task.change.note)};
  return Outcome{.current = std::move(task.current.value)};
}

// The conditions of the transaction did not hold. Five cases:
// 1. The slot has not changed, so the key has: decide again, from the value that was read with it.
// 2. An earlier attempt may have been executed, but the slot is gone, and with it the record of this: the
//    outcome is unknown.
// 3. No earlier attempt was executed: the slot has changed because it was lost. Repeat with its present
//    revision.
// 4. An earlier attempt was executed, and changed only the slot: decide again. No attempt is open any more.
// 5. Otherwise an earlier attempt was executed, and the slot has its note.
absl::StatusOr<std::optional<EtcdWriter::Outcome>> EtcdWriter::analyze_failure(
    Task& task, etcdserverpb::TxnResponse& response) {
  if (response.responses_size() != (task.decide != nullptr ? 2 : 1)) {
    return client_.not_etcd_error("its number of answers differs from the number of requests");
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
        "it is unknown whether the key was changed: the connection to etcd broke during the change, and etcd "
        "has no record of it, because its data was lost or the store's lease expired");
  }
  task.slot.mod_revision = slot.mod_revision;
  // No transaction of this call has happened: the slot was lost with the lease, or with etcd's data.
  if (!task.unsure) return std::optional<Outcome>();
  if (*slot.value == kNothingChanged) {
    task.unsure = false;
    return std::optional<Outcome>();
  }
  absl::string_view note = *slot.value;
  if (!absl::ConsumePrefix(&note, kChanged))
    return client_.not_etcd_error("the record of a change is malformed");
  return Outcome{.note = std::string(note)};
}

}  // namespace gradwire::store
