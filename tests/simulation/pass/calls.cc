// The calls between workers. If the request or the answer of a call is lost, the caller repeats the request
// until it is answered or the caller knows that the callee is lost. So a request may arrive more than once. A
// call completes at its caller exactly once.
#include <utility>

#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

int World::call(Call call) {
  const int index = static_cast<int>(calls_.size());
  trace("  ", worker_name(call.from), " to ", worker_name(call.to), ": ", describe(call));
  const bool lost = (workers_[call.from].lost & 1u << call.to) != 0;
  calls_.push_back(std::move(call));
  if (lost) {
    complete(
        index,
        {index, absl::UnavailableError(absl::StrCat("lost worker ", worker_name(calls_[index].to))), {}});
  } else {
    send(index);
  }
  return index;
}

void World::send(int index) {
  const Call& call = calls_[index];
  // Requests of users' calls, and calls of a worker to itself, are not lost, so they are not repeated.
  const bool repeats = call.kind != Kind::kForward && call.kind != Kind::kInputs && call.from != call.to;
  if (repeats && !calm_ && random_.per_mille(scenario_.drop)) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kRetry, index);
    return;
  }
  scheduler_.add(now_ + some_delay(), Event::Kind::kRequest, index);
  if (repeats && !calm_ && random_.per_mille(scenario_.duplicate)) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kRequest, index);
  }
}

void World::on_retry(int index) {
  const Call& call = calls_[index];
  const WorkerState& caller = workers_[call.from];
  if (call.completed || !caller.alive || caller.lost & 1u << call.to) return;
  trace(worker_name(call.from), " repeats to ", worker_name(call.to), ": ", describe(call));
  send(index);
}

void World::on_request(int index) {
  const Call& call = calls_[index];
  const WorkerState& callee = workers_[call.to];
  // A worker closes the connections of a lost worker, so nothing arrives from it.
  if (!callee.alive || callee.lost & 1u << call.from) return;
  arrivals_.push_back({.call = index});
  const int arrival = static_cast<int>(arrivals_.size()) - 1;
  if (preempted()) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kServe, arrival);
  } else {
    serve(arrival);
  }
}

void World::reply(int index, absl::Status status, std::vector<uint64_t> workers) {
  Arrival& arrival = arrivals_[index];
  if (arrival.answered)
    return violate(absl::StrCat("request answered twice: ", describe(calls_[arrival.call])));
  arrival.answered = true;
  const Call& call = calls_[arrival.call];
  if (!workers_[call.from].alive) return;
  if (call.kind == Kind::kForward) return;
  answers_.push_back({arrival.call, std::move(status), std::move(workers)});
  const bool repeats = call.kind != Kind::kInputs && call.from != call.to;
  if (repeats && !calm_ && random_.per_mille(scenario_.drop)) {
    scheduler_.add(now_ + some_delay(), Event::Kind::kRetry, arrival.call);
  } else {
    scheduler_.add(now_ + some_delay(), Event::Kind::kAnswer, answers_.size() - 1);
  }
}

void World::complete(int index, const Answer& answer) {
  Call& call = calls_[index];
  if (call.completed || !workers_[call.from].alive) return;
  call.completed = true;
  if (trace_ != nullptr && call.kind != Kind::kForward) {
    trace(worker_name(call.from), " has the answer of ", worker_name(call.to), " to ", describe(call), ": ",
          answer.status.ok() ? "done" : answer.status.message());
  }
  if (call.kind == Kind::kInputs) {
    PassInfo& pass = passes_[call.pass];
    --pass.unanswered_inputs;
    if (!answer.status.ok()) {
      abort(pass.part, answer.status);
    } else if (pass.unanswered_inputs == 0) {
      start(call.pass);
    }
    return;
  }
  if (call.part >= 0) on_answer(call, answer);
}

void World::fail_calls(int worker, int dead) {
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    if (calls_[i].from != worker || calls_[i].to != dead || calls_[i].completed) continue;
    const int index = static_cast<int>(i);
    complete(index, {index, absl::UnavailableError(absl::StrCat("lost worker ", worker_name(dead))), {}});
  }
}

void World::serve(int index) {
  Arrival& arrival = arrivals_[index];
  const Call& call = calls_[arrival.call];
  if (!workers_[call.to].alive) return;
  if (arrival.stage == 0) {
    trace(worker_name(call.to), " gets from ", worker_name(call.from), ": ", describe(call));
    if (call.kind == Kind::kForward || call.kind == Kind::kInputs) {
      const bool inputs = call.kind == Kind::kInputs;
      if (!enter(call.to, call.context, call.from, inputs ? Coverage::kInputs : Coverage::kForward)) {
        return reply(index, absl::NotFoundError("the context was released"));
      }
      if (!inputs) return reply(index, absl::OkStatus());
      Part& part = *parts_[find_pass(call.to, call.pass)];
      if (part.state.ended()) return reply(index, absl::AbortedError("the pass has ended"));
      for (const Edge& input : passes_[call.pass].inputs) {
        if (graph_of(part).nodes[input.node].worker == call.to) part.executor.add_input(input);
      }
      return reply(index, absl::OkStatus());
    }
    if (call.kind == Kind::kCleanup) {
      serve_cleanup(call.to, call.context, call.low, call.from);
      return reply(index, absl::OkStatus());
    }
    cover(call.to, call.context, Coverage::kPassMessage);
    arrival.part = find_pass(call.to, call.pass);
    if (arrival.part < 0) {
      // A released context has no passes left to abort.
      return reply(index, call.kind == Kind::kAbort ? absl::OkStatus()
                                                    : absl::NotFoundError("the context was released"));
    }
    if (continue_later(index)) return;
  }
  switch (call.kind) {
    case Kind::kMark:
    case Kind::kNeeded:
      return serve_wave(index);
    case Kind::kRun:
      return serve_run(index);
    case Kind::kFinish:
      return serve_finish(index);
    case Kind::kAbort:
      cover(*parts_[arrival.part], Coverage::kAbort);
      parts_[arrival.part]->took_part = true;
      abort_asked(arrival.part, call.reason);
      return reply(index, absl::OkStatus());
    default:
      return;
  }
}

bool World::continue_later(int index) {
  ++arrivals_[index].stage;
  if (!preempted()) return false;
  scheduler_.add(now_ + some_delay(), Event::Kind::kServe, index);
  return true;
}

}  // namespace gradwire::pass_simulation
