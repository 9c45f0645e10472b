#include "gradwire/autograd/pass/pass_state.h"

#include <algorithm>
#include <iterator>

namespace gradwire::autograd {
namespace {

// The key of the root's own walk. No worker has the incarnation 0.
constexpr std::pair<uint64_t, uint64_t> kRootWalk{0, 0};

}  // namespace

PassState::PassState(Options options) : options_(options), running_(options.fast) {
  if (options_.root != options_.self) partners_.insert(options_.root);
}

// The cases:
// 1. The pass has failed here: answer with its error. The root may learn of the failure only from this
//    answer.
// 2. A new MARK after the end with OK: the sender is wrong, because the root asks for the end only after the
//    wave. Answer with an error.
// 3. A new MARK: walk. The answer follows when the walk and its MARKs are done.
// 4. A repeated MARK: the connection broke before the answer. Send the same answer again, or send it to both
//    when the walk is done.
bool PassState::begin_mark(uint64_t from, uint64_t number, uint64_t reply, Actions& actions) {
  if (!status_.ok()) {
    actions.failed_replies.push_back(reply);
    actions.status = status_;
    return false;
  }
  walking_ = {from, number};
  auto [found, is_new] = waves_.try_emplace(walking_);
  MarkState& wave = found->second;
  if (is_new && ended_) {
    waves_.erase(found);
    actions.failed_replies.push_back(reply);
    actions.status = absl::AbortedError("the backward pass has ended already");
    return false;
  }
  if (is_new) {
    if (from != options_.self) partners_.insert(from);
    wave.replies.push_back(reply);
    return true;
  }
  if (wave.answered) {
    actions.mark_answers.push_back({reply, {wave.participants.begin(), wave.participants.end()}});
  } else {
    wave.replies.push_back(reply);
  }
  return false;
}

void PassState::begin_root() {
  walking_ = kRootWalk;
  waves_.try_emplace(walking_);
}

// Records the MARKs that the walk causes before they are sent: an answer may arrive as soon as the first has
// left. A MARK to this worker itself counts in the wave, but needs no ABORT and cannot be lost.
std::vector<uint64_t> PassState::end_walk(const std::vector<uint64_t>& marked, Actions& actions) {
  std::vector<uint64_t> numbers;
  if (ended_) return numbers;
  MarkState& wave = waves_[walking_];
  wave.walked = true;
  wave.participants.insert(options_.self);
  for (uint64_t worker : marked) {
    numbers.push_back(next_mark_++);
    sent_marks_.emplace(numbers.back(), walking_);
    ++wave.unanswered;
    if (worker != options_.self) {
      reached_.insert(worker);
      partners_.insert(worker);
    }
  }
  finish_wave_if_over(wave, walking_ == kRootWalk, actions);
  return numbers;
}

void PassState::mark_answered(uint64_t number, const std::vector<uint64_t>& participants, Actions& actions) {
  auto sent = sent_marks_.find(number);
  if (ended_ || sent == sent_marks_.end()) return;
  const WaveKey key = sent->second;
  sent_marks_.erase(sent);
  MarkState& wave = waves_[key];
  wave.participants.insert(participants.begin(), participants.end());
  --wave.unanswered;
  finish_wave_if_over(wave, key == kRootWalk, actions);
}

// A MARK is answered when its own walk is over and all MARKs that the walk caused are answered. So the
// answer to the root's MARKs means that no MARK is under way anywhere. The participants are collected on the
// way back; the root then sends each a FINISH.
void PassState::finish_wave_if_over(MarkState& wave, bool root, Actions& actions) {
  if (!wave.walked || wave.unanswered > 0 || wave.answered) return;
  wave.answered = true;
  for (uint64_t reply : wave.replies) {
    actions.mark_answers.push_back({reply, {wave.participants.begin(), wave.participants.end()}});
  }
  wave.replies.clear();
  if (!root) return;
  running_ = true;
  actions.start_run = true;
  for (uint64_t worker : wave.participants) ask_to_finish(worker, actions);
  end_if_done(actions);
}

// For a worker in `shipped_to` the RUN is the FINISH. It counts as asked, so that it gets no second one, and
// finish_answered() follows when its RUN is answered.
void PassState::begin_planned(const std::vector<uint64_t>& participants,
                              const std::vector<uint64_t>& shipped_to, Actions& actions) {
  running_ = true;
  actions.start_run = true;
  for (uint64_t worker : shipped_to) {
    if (worker == options_.self || !asked_.insert(worker).second) continue;
    reached_.insert(worker);
    partners_.insert(worker);
  }
  for (uint64_t worker : participants) ask_to_finish(worker, actions);
  end_if_done(actions);
}

void PassState::ran(uint64_t n, Actions& actions) {
  remaining_ -= n;
  end_if_done(actions);
}

bool PassState::run_arrived(uint64_t from, uint64_t message) {
  if (ended_) return false;
  if (from != options_.self) partners_.insert(from);
  return arrived_.insert(message).second;
}

void PassState::shipping(uint64_t to) {
  ++unanswered_shipments_;
  if (to == options_.self) return;
  shipped_to_.insert(to);
  reached_.insert(to);
  partners_.insert(to);
}

void PassState::shipping_answered(uint64_t to, Actions& actions) {
  if (ended_) return;
  --unanswered_shipments_;
  // The worker knows the pass now, so it can be sent a FINISH.
  if (options_.root == options_.self) ask_to_finish(to, actions);
  end_if_done(actions);
}

void PassState::finish_asked(uint64_t reply, Actions& actions) {
  if (!status_.ok()) {
    actions.failed_replies.push_back(reply);
    actions.status = status_;
  } else if (ended_) {
    actions.finish_answers.push_back({reply, shipped_to()});
  } else {
    finish_replies_.push_back(reply);
    end_if_done(actions);
  }
}

void PassState::finish_answered(uint64_t worker, const std::vector<uint64_t>& shipped_to, Actions& actions) {
  if (ended_) return;
  finished_.insert(worker);
  for (uint64_t further : shipped_to) ask_to_finish(further, actions);
  end_if_done(actions);
}

void PassState::ask_to_finish(uint64_t worker, Actions& actions) {
  if (worker == options_.self || !asked_.insert(worker).second) return;
  reached_.insert(worker);
  partners_.insert(worker);
  actions.finish.push_back(worker);
}

// A part ends when
// 1. every counted event has happened;
// 2. every RUN that it sent is answered: otherwise a gradient could arrive after backward() has returned;
// 3. at the root: the wave is over and every participant has answered its FINISH;
// 4. elsewhere: a FINISH has arrived. Before that the counts may be 0 only for the moment.
void PassState::end_if_done(Actions& actions) {
  if (ended_ || remaining_ > 0) return;
  if (unanswered_shipments_ > 0) return;
  if (options_.root == options_.self) {
    if (!running_ || finished_.size() < asked_.size()) return;
  } else if (finish_replies_.empty()) {
    return;  // More events may be counted before the FINISH arrives.
  }
  ended_ = true;
  actions.ended = true;
  for (uint64_t reply : finish_replies_) actions.finish_answers.push_back({reply, shipped_to()});
  finish_replies_.clear();
}

void PassState::abort_asked(absl::Status status, Actions& actions) {
  if (!ended_) return fail(std::move(status), actions);
  // In the fast mode the root knows only the workers that it has sent a FINISH to. It may not know the
  // workers that this worker shipped to.
  if (!options_.fast || !status_.ok() || options_.root == options_.self || std::exchange(passed_on_, true))
    return;
  actions.abort.assign(reached_.begin(), reached_.end());
  actions.status = std::move(status);
}

// The first error wins. All owed replies are answered with it, which carries it towards the root, and ABORT
// carries it to the workers that were reached. `status_` stays, because later messages of the pass get the
// same answer.
void PassState::fail(absl::Status status, Actions& actions) {
  if (ended_) return;
  ended_ = true;
  status_ = std::move(status);
  actions.ended = true;
  actions.status = status_;
  actions.abort.assign(reached_.begin(), reached_.end());
  // In the fast mode the root may not know this worker, so it would not learn of the failure from an answer.
  if (options_.fast && options_.root != options_.self) actions.abort.push_back(options_.root);
  for (auto& [key, wave] : waves_) {
    actions.failed_replies.insert(actions.failed_replies.end(), wave.replies.begin(), wave.replies.end());
    wave.replies.clear();
  }
  actions.failed_replies.insert(actions.failed_replies.end(), finish_replies_.begin(), finish_replies_.end());
  finish_replies_.clear();
}

// The lost worker gets no ABORT. A worker that this part never exchanged a message with does not matter.
void PassState::worker_lost(uint64_t worker, const absl::Status& status, Actions& actions) {
  if (ended_ || !partners_.contains(worker)) return;
  reached_.erase(worker);
  fail(status, actions);
}

PassState::View PassState::view() const {
  View view{running_, remaining_, unanswered_shipments_ > 0, {}};
  if (ended_ || options_.self != options_.root) return view;
  if (running_) {
    std::set_difference(asked_.begin(), asked_.end(), finished_.begin(), finished_.end(),
                        std::back_inserter(view.awaited));
  } else {
    view.awaited.assign(reached_.begin(), reached_.end());
  }
  return view;
}

}  // namespace gradwire::autograd
