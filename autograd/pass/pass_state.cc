#include "gradwire/autograd/pass/pass_state.h"

namespace gradwire::autograd {
namespace {

// No worker's incarnation is 0.
constexpr std::pair<uint64_t, uint64_t> kRootWalk{0, 0};

}  // namespace

PassState::PassState(Options options) : options_(options), running_(options.fast) {
  if (options_.root != options_.self) partners_.insert(options_.root);
}

bool PassState::begin_mark(uint64_t from, uint64_t number, uint64_t reply, Actions& actions) {
  if (!status_.ok()) {
    actions.failed_replies.push_back(reply);
    actions.status = status_;
    return false;
  }
  walking_ = {from, number};
  auto [found, is_new] = waves_.try_emplace(walking_);
  Wave& wave = found->second;
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

std::vector<uint64_t> PassState::end_walk(const std::vector<uint64_t>& marked, Actions& actions) {
  std::vector<uint64_t> numbers;
  if (ended_) return numbers;
  Wave& wave = waves_[walking_];
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
  Wave& wave = waves_[key];
  wave.participants.insert(participants.begin(), participants.end());
  --wave.unanswered;
  finish_wave_if_over(wave, key == kRootWalk, actions);
}

void PassState::finish_wave_if_over(Wave& wave, bool root, Actions& actions) {
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
  // It knows of the pass now, so it can be asked.
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

void PassState::end_if_done(Actions& actions) {
  if (ended_ || remaining_ > 0) return;
  if (unanswered_shipments_ > 0) return;
  if (options_.root == options_.self) {
    if (!running_ || finished_.size() < asked_.size()) return;
  } else if (finish_replies_.empty()) {
    return;  // More may be counted yet.
  }
  ended_ = true;
  actions.ended = true;
  for (uint64_t reply : finish_replies_) actions.finish_answers.push_back({reply, shipped_to()});
  finish_replies_.clear();
}

void PassState::abort_asked(absl::Status status, Actions& actions) {
  if (!ended_) return fail(std::move(status), actions);
  // In the fast mode the root knows only those that it has asked, and may not know the workers that this one
  // shipped to.
  if (!options_.fast || !status_.ok() || options_.root == options_.self || std::exchange(passed_on_, true))
    return;
  actions.abort.assign(reached_.begin(), reached_.end());
  actions.status = std::move(status);
}

void PassState::fail(absl::Status status, Actions& actions) {
  if (ended_) return;
  ended_ = true;
  status_ = std::move(status);
  actions.ended = true;
  actions.status = status_;
  actions.abort.assign(reached_.begin(), reached_.end());
  // In the fast mode the root may not know of this worker, now or later.
  if (options_.fast && options_.root != options_.self) actions.abort.push_back(options_.root);
  for (auto& [key, wave] : waves_) {
    actions.failed_replies.insert(actions.failed_replies.end(), wave.replies.begin(), wave.replies.end());
    wave.replies.clear();
  }
  actions.failed_replies.insert(actions.failed_replies.end(), finish_replies_.begin(), finish_replies_.end());
  finish_replies_.clear();
}

void PassState::worker_lost(uint64_t worker, const absl::Status& status, Actions& actions) {
  if (ended_ || !partners_.contains(worker)) return;
  reached_.erase(worker);
  fail(status, actions);
}

}  // namespace gradwire::autograd
