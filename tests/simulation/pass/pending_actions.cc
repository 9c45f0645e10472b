// The actions that Pass performs after it has unlocked its mutex, and its handling of answers.
#include <algorithm>
#include <utility>

#include "gradwire/tests/simulation/pass/world.h"

namespace gradwire::pass_simulation {

void World::worker_lost(int index, int dead) {
  Part& part = *parts_[index];
  cover(part, Coverage::kWorkerLost);
  Actions actions;
  part.state.worker_lost(incarnation(dead),
                         absl::UnavailableError(absl::StrCat("lost worker ", worker_name(dead))), actions);
  apply_actions(index, std::move(actions));
}

void World::abort(int index, const absl::Status& reason) {
  Actions actions;
  parts_[index]->state.fail(reason, actions);
  apply_actions(index, std::move(actions));
}

void World::abort_asked(int index, const absl::Status& reason) {
  Actions actions;
  parts_[index]->state.abort_asked(reason, actions);
  apply_actions(index, std::move(actions));
}

void World::on_answer(const Call& call, const Answer& answer) {
  Part& part = *parts_[call.part];
  const PassInfo& pass = passes_[part.pass];
  Actions actions;
  if (!answer.status.ok()) {
    cover(part, Coverage::kCallFailed);
    part.state.fail(answer.status, actions);
  } else if (call.kind == Kind::kMark || call.kind == Kind::kNeeded) {
    cover(part, Coverage::kMarkAnswered);
    part.state.mark_answered(call.number, answer.workers, actions);
  } else if (call.kind == Kind::kRun) {
    cover(part, Coverage::kRunAnswered);
    part.state.shipping_answered(incarnation(call.to), actions);
    const bool finished = pass.planned && pass.root == part.worker && call.to != part.worker;
    if (finished) part.state.finish_answered(incarnation(call.to), {}, actions);
  } else if (call.kind == Kind::kFinish) {
    cover(part, Coverage::kFinishAnswered);
    part.state.finish_answered(incarnation(call.to), answer.workers, actions);
  }
  apply_actions(call.part, std::move(actions));
}

void World::apply_actions(int index, Actions actions, std::vector<WaveMessage> wave,
                          std::vector<uint64_t> numbers, bool drains) {
  Part& part = *parts_[index];
  check_actions(part, actions);
  PendingActions pending{index, std::move(wave), std::move(numbers), std::move(actions), drains};
  if (!preempted()) return perform(pending);
  pending_actions_.push_back(std::move(pending));
  scheduler_.add(now_ + some_delay(), Event::Kind::kPerform, pending_actions_.size() - 1);
}

void World::send_owed_reply(Part& part, uint64_t number, absl::Status status, std::vector<uint64_t> workers) {
  auto found = std::find_if(part.replies.begin(), part.replies.end(),
                            [number](const OwedReply& each) { return each.number == number; });
  if (found == part.replies.end()) return violate("a request is answered twice");
  const int arrival = found->arrival;
  part.replies.erase(found);
  reply(arrival, std::move(status), std::move(workers));
}

void World::perform(PendingActions& pending) {
  Part& part = *parts_[pending.part];
  PassInfo& pass = passes_[part.pass];
  if (!workers_[part.worker].alive) return;
  const Call to_others{.from = part.worker, .pass = part.pass, .context = pass.context};
  // If the pass has ended, there are messages but no numbers, and nothing is sent.
  for (std::size_t i = 0; i < pending.numbers.size(); ++i) {
    Call wave = to_others;
    wave.kind = pending.wave[i].needed ? Kind::kNeeded : Kind::kMark;
    wave.to = pending.wave[i].to;
    wave.part = pending.part;
    wave.number = pending.numbers[i];
    wave.tensors = std::move(pending.wave[i].tensors);
    call(std::move(wave));
  }
  Actions& actions = pending.actions;
  for (auto& each : actions.mark_answers)
    send_owed_reply(part, each.reply, absl::OkStatus(), std::move(each.participants));
  for (auto& each : actions.finish_answers)
    send_owed_reply(part, each.reply, absl::OkStatus(), std::move(each.shipped_to));
  // Sort the numbers: PassState returns them in the order of a hash table, which differs between processes.
  std::sort(actions.failed_replies.begin(), actions.failed_replies.end());
  for (uint64_t number : actions.failed_replies) send_owed_reply(part, number, actions.status, {});
  if (actions.ended) {
    part.ended = true;
    trace(worker_name(part.worker), " ends its part in ", name(pass), ": ",
          actions.status.ok() ? "done" : actions.status.message());
  }
  if (!actions.abort.empty() && pass.completed && pass.status.ok()) {
    violate(absl::StrCat(worker_name(part.worker), " aborts ", name(pass), ", which has succeeded"));
  }
  for (uint64_t to : actions.abort) {
    Call abort = to_others;
    abort.kind = Kind::kAbort;
    abort.to = worker_of(to);
    abort.reason = actions.status;
    call(std::move(abort));
  }
  if (actions.start_run) {
    pass.wave_over = true;
    scheduler_.add(now_ + (preempted() ? some_delay() : 0), Event::Kind::kRunRoots, part.pass);
  }
  for (uint64_t to : actions.finish) {
    Call finish = to_others;
    finish.kind = Kind::kFinish;
    finish.to = worker_of(to);
    finish.part = pending.part;
    call(std::move(finish));
  }
  if (actions.ended && pass.root == part.worker) complete_pass(part.pass, actions.status);
  if (pending.drain) drain(pending.part);
}

}  // namespace gradwire::pass_simulation
