// What Pass does when it has let go of its lock, and with the answers of others.
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
  after(index, std::move(actions));
}

void World::abort(int index, const absl::Status& reason) {
  Actions actions;
  parts_[index]->state.fail(reason, actions);
  after(index, std::move(actions));
}

void World::abort_asked(int index, const absl::Status& reason) {
  Actions actions;
  parts_[index]->state.abort_asked(reason, actions);
  after(index, std::move(actions));
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
  after(call.part, std::move(actions));
}

void World::after(int index, Actions actions, std::vector<WaveMessage> wave, std::vector<uint64_t> numbers,
                  bool drains) {
  Part& part = *parts_[index];
  check_actions(part, actions);
  Aftermath aftermath{index, std::move(wave), std::move(numbers), std::move(actions), drains};
  if (!gap()) return perform(aftermath);
  aftermaths_.push_back(std::move(aftermath));
  scheduler_.add(now_ + some_delay(), Event::Kind::kAfter, aftermaths_.size() - 1);
}

void World::owe(Part& part, uint64_t number, absl::Status status, std::vector<uint64_t> workers) {
  auto found = std::find_if(part.replies.begin(), part.replies.end(),
                            [number](const OwedReply& each) { return each.number == number; });
  if (found == part.replies.end()) return violate("an answer is given twice");
  const int arrival = found->arrival;
  part.replies.erase(found);
  reply(arrival, std::move(status), std::move(workers));
}

void World::perform(Aftermath& aftermath) {
  Part& part = *parts_[aftermath.part];
  PassInfo& pass = passes_[part.pass];
  if (!workers_[part.worker].alive) return;
  const Call to_others{.from = part.worker, .pass = part.pass, .context = pass.context};
  // No numbers: the pass has ended.
  for (std::size_t i = 0; i < aftermath.numbers.size(); ++i) {
    Call wave = to_others;
    wave.kind = aftermath.wave[i].needed ? Kind::kNeeded : Kind::kMark;
    wave.to = aftermath.wave[i].to;
    wave.part = aftermath.part;
    wave.number = aftermath.numbers[i];
    wave.tensors = std::move(aftermath.wave[i].tensors);
    call(std::move(wave));
  }
  Actions& actions = aftermath.actions;
  for (auto& each : actions.mark_answers)
    owe(part, each.reply, absl::OkStatus(), std::move(each.participants));
  for (auto& each : actions.finish_answers)
    owe(part, each.reply, absl::OkStatus(), std::move(each.shipped_to));
  // They come in a hash table's order, which differs between processes.
  std::sort(actions.failed_replies.begin(), actions.failed_replies.end());
  for (uint64_t number : actions.failed_replies) owe(part, number, actions.status, {});
  if (actions.ended) {
    part.ended = true;
    trace(worker_name(part.worker), " ends its part in ", name(pass), ": ",
          actions.status.ok() ? "done" : actions.status.message());
  }
  if (!actions.abort.empty() && pass.completed && pass.status.ok()) {
    violate(absl::StrCat(worker_name(part.worker), " aborts ", name(pass), ", which ended well"));
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
    scheduler_.add(now_ + (gap() ? some_delay() : 0), Event::Kind::kRunRoots, part.pass);
  }
  for (uint64_t to : actions.finish) {
    Call finish = to_others;
    finish.kind = Kind::kFinish;
    finish.to = worker_of(to);
    finish.part = aftermath.part;
    call(std::move(finish));
  }
  if (actions.ended && pass.root == part.worker) complete_pass(part.pass, actions.status);
  if (aftermath.drain) drain(aftermath.part);
}

}  // namespace gradwire::pass_simulation
