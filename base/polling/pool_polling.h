#pragma once

#include "absl/time/time.h"
#include "gradwire/base/polling/answer_wait.h"
#include "gradwire/base/polling/pause_tuner.h"
#include "gradwire/base/polling/poll_limits.h"
#include "gradwire/base/polling/poll_pace.h"
#include "gradwire/base/polling/spin_wait.h"

namespace gradwire {

// How the threads of one pool wait for messages: its leader for any message, other threads for their answers.
class PoolPolling {
 public:
  explicit PoolPolling(const WaitPolicy& policy);
  PoolPolling(const PoolPolling&) = delete;
  PoolPolling& operator=(const PoolPolling&) = delete;

  // Used only by the leader, one thread at a time.
  PollPace& leader() { return leader_; }
  // Begins a wait for an answer, which polls until `deadline` at the latest. Thread-safe.
  AnswerWait wait_for_answer(absl::Time deadline);

 private:
  const WaitPolicy policy_;
  PollBudget budget_;
  CoreContention contention_;
  PauseTuner answer_pauses_;
  AnswerTimes answer_times_;
  PollPace leader_;
};

// Rests as `wait` decides, a PollPace or an AnswerWait. Returns false if the thread should sleep instead.
template <class Wait>
bool rest(Wait& wait) {
  const Rest rest = wait.rest();
  if (rest == Rest::kSleep) return false;
  if (rest == Rest::kPause) {
    cpu_relax();
  } else {
    yield_core();
    wait.yielded();
  }
  return true;
}

}  // namespace gradwire
