#include "gradwire/gateway/serving/callees.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/error.h"
#include "gradwire/base/stable_hash.h"
#include "gradwire/gateway/values/utf8.h"
#include "gradwire/proto/rpc.pb.h"
#include "gradwire/rpc/callee/callee_list.h"
#include "gradwire/rpc/calls/agent_services.h"
#include "gradwire/rpc/streams/stream_batch.h"

namespace gradwire::gateway {
namespace {

constexpr absl::Duration kAskTimeout = absl::Seconds(10);
// A worker with more callees is not listed.
constexpr std::size_t kMaxCallees = 65'536;
// Callees of workers that have gone are forgotten when there are more of them than this.
constexpr std::size_t kMaxKnown = 4096;

// Adds an entry of a worker's answer. Entries that clients cannot call are left out: their names are not
// UTF-8, or their signatures are malformed.
void add(const proto::CalleeEntry& entry, ServedCallees& callees) {
  if (entry.kind() < proto::CalleeEntry::FUNCTION || entry.kind() > proto::CalleeEntry::OPERATOR) return;
  if (!is_utf8(entry.name()) || !is_utf8(entry.signature()) || !is_utf8(entry.object_type())) return;
  // The methods of streams are for readers of streams, not for clients.
  if (absl::StartsWith(entry.name(), rpc::stream_internal::kStreamPrefix)) return;
  ServedCallee callee;
  // Both enumerations have the same numbers.
  callee.kind = static_cast<v1::FunctionKind>(entry.kind());
  callee.name = entry.name();
  callee.text = entry.signature();
  callee.object_type = entry.object_type();
  callee.idempotent = entry.idempotent();
  callee.hash = stable_hash(entry.signature());
  if (callee.kind != v1::FUNCTION_KIND_OPERATOR) {
    absl::StatusOr<Signature> signature = parse_signature(entry.signature());
    if (!signature.ok()) return;
    callee.signature = *std::move(signature);
  }
  std::pair<int, std::string> key(callee.kind, callee.name);
  callees.callees.try_emplace(std::move(key), std::move(callee));
}

}  // namespace

struct CalleeDirectory::Inquiry {
  rpc::Worker worker;
  absl::Time deadline;
  proto::ListCallees request;
  std::shared_ptr<ServedCallees> callees = std::make_shared<ServedCallees>();
};

std::shared_ptr<const ServedCallees> CalleeDirectory::cached(const rpc::Worker& worker) const {
  MutexLock lock(mutex_);
  const auto found = known_.find(worker.incarnation);
  return found == known_.end() ? nullptr : found->second;
}

void CalleeDirectory::get(const rpc::Worker& worker, Found found) {
  if (std::shared_ptr<const ServedCallees> known = cached(worker)) {
    found(known);
    return;
  }
  {
    MutexLock lock(mutex_);
    std::vector<Found>& waiting = waiting_[worker.incarnation];
    waiting.push_back(std::move(found));
    // Another caller has asked already.
    if (waiting.size() > 1) return;
  }
  auto inquiry = std::make_shared<Inquiry>();
  inquiry->worker = worker;
  inquiry->deadline = Clock::system().now() + kAskTimeout;
  ask(inquiry);
}

void CalleeDirectory::ask(const std::shared_ptr<Inquiry>& inquiry) {
  rpc::ServiceOptions options;
  options.deadline = inquiry->deadline;
  options.repeat = true;
  // Connecting may block, so this runs on the executor.
  const bool posted = agent_->executor()->post([self = shared_from_this(), inquiry, options] {
    self->agent_->services()
        .call_service(inquiry->worker, rpc::kListCallees, inquiry->request.SerializeAsString(), nullptr,
                      options)
        .on_ready([self, inquiry](const absl::StatusOr<rpc::ServiceReply>& reply) {
          proto::CalleeList list;
          if (!reply.ok()) {
            self->answer(inquiry, reply.status());
          } else if (!list.ParseFromString(reply->body) || (list.more() && list.callees_size() == 0)) {
            self->answer(inquiry, with_worker(absl::InvalidArgumentError("malformed list of callees"),
                                              inquiry->worker.name));
          } else {
            for (const proto::CalleeEntry& entry : list.callees()) add(entry, *inquiry->callees);
            if (!list.more()) {
              self->answer(inquiry, std::shared_ptr<const ServedCallees>(inquiry->callees));
            } else if (inquiry->callees->callees.size() > kMaxCallees) {
              self->answer(inquiry, with_worker(absl::ResourceExhaustedError(absl::StrCat(
                                                    "the worker serves more than ", kMaxCallees, " callees")),
                                                inquiry->worker.name));
            } else {
              const proto::CalleeEntry& last = list.callees(list.callees_size() - 1);
              inquiry->request.set_after_kind(last.kind());
              inquiry->request.set_after_name(last.name());
              self->ask(inquiry);
            }
          }
        });
  });
  if (!posted) answer(inquiry, absl::UnavailableError("the gateway's worker shuts down"));
}

void CalleeDirectory::answer(const std::shared_ptr<Inquiry>& inquiry, const Answer& answer) {
  HashSet<uint64_t> live;
  for (const rpc::WorkerInfo& info : agent_->get_worker_infos()) {
    const absl::StatusOr<rpc::Worker> worker = agent_->services().find_worker(rpc::Destination(info));
    if (worker.ok()) live.insert(worker->incarnation);
  }
  std::vector<Found> waiting;
  {
    MutexLock lock(mutex_);
    if (answer.ok()) known_[inquiry->worker.incarnation] = *answer;
    if (known_.size() > kMaxKnown) {
      absl::erase_if(known_, [&](const auto& entry) { return !live.contains(entry.first); });
    }
    const auto found = waiting_.find(inquiry->worker.incarnation);
    waiting = std::move(found->second);
    waiting_.erase(found);
  }
  for (const Found& found : waiting) found(answer);
}

}  // namespace gradwire::gateway
