#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gradwire/tools/inspect/analysis/job_view.h"

namespace gradwire::inspect {

// A call that a JobBuilder has added.
struct BuiltCall {
  uint64_t caller = 0;
  uint64_t number = 0;
};

// Builds views of jobs for tests. Workers are named by letters; the incarnation of "a" is 97.
class JobBuilder {
 public:
  using Call = BuiltCall;

  explicit JobBuilder(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      WorkerView& worker = job.workers.emplace_back();
      worker.record.set_name(name);
      worker.record.set_id(static_cast<int>(job.workers.size()) - 1);
      worker.record.set_incarnation(id(name));
      worker.state.set_name(name);
      worker.state.set_incarnation(id(name));
    }
  }

  static uint64_t id(const std::string& name) { return static_cast<unsigned char>(name[0]); }
  WorkerView& worker(const std::string& name) {
    for (WorkerView& worker : job.workers) {
      if (worker.record.name() == name) return worker;
    }
    return job.workers.front();
  }

  // Adds a call of `callee` from one worker to another, made by the served call `parent`.
  Call call(const std::string& from, const std::string& to, const std::string& callee, absl::Duration age,
            proto::CallSummary::Stage stage = proto::CallSummary::RUNNING, Call parent = {}) {
    const Call made{id(from), ++numbers_[from]};
    pending(from, to, callee, age, made, parent);
    proto::CallSummary& served = *worker(to).state.add_served();
    fill(served, made, callee, id(from), age);
    served.set_stage(stage);
    return made;
  }
  // Adds a call that only its caller reports.
  Call call_without_callee(const std::string& from, const std::string& to, const std::string& callee,
                           absl::Duration age, proto::CallSummary::Stage stage, Call parent = {}) {
    const Call made{id(from), ++numbers_[from]};
    pending(from, to, callee, age, made, parent).set_stage(stage);
    return made;
  }
  // `waiter`, served by `at`, waits for its turn behind `holder`.
  void waits_for_turn(const std::string& at, Call waiter, Call holder) {
    for (proto::CallSummary& call : *worker(at).state.mutable_served()) {
      if (call.identity().caller() != waiter.caller || call.identity().call_id() != waiter.number) continue;
      call.set_stage(proto::CallSummary::QUEUED);
      call.mutable_waits_for()->set_caller(holder.caller);
      call.mutable_waits_for()->set_call_id(holder.number);
    }
  }
  proto::PeerState& peer(const std::string& at, const std::string& of) {
    proto::PeerState& peer = *worker(at).state.add_peers();
    peer.set_name(of);
    peer.set_incarnation(id(of));
    return peer;
  }

  JobView job;

 private:
  static void fill(proto::CallSummary& out, Call call, const std::string& callee, uint64_t peer,
                   absl::Duration age) {
    out.mutable_identity()->set_caller(call.caller);
    out.mutable_identity()->set_call_id(call.number);
    out.set_callee(callee);
    out.set_peer(peer);
    out.set_age_us(absl::ToInt64Microseconds(age));
    out.set_left_us(absl::ToInt64Microseconds(absl::Seconds(60) - age));
  }
  proto::CallSummary& pending(const std::string& from, const std::string& to, const std::string& callee,
                              absl::Duration age, Call made, Call parent) {
    proto::CallSummary& pending = *worker(from).state.add_pending();
    fill(pending, made, callee, id(to), age);
    pending.set_stage(proto::CallSummary::SENT);
    if (parent.caller != 0) {
      pending.mutable_parent()->set_kind(proto::CallOrigin::CALL);
      pending.mutable_parent()->set_incarnation(parent.caller);
      pending.mutable_parent()->set_number(parent.number);
    }
    return pending;
  }

  std::map<std::string, uint64_t> numbers_;
};

}  // namespace gradwire::inspect
