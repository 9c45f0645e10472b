#include "gradwire/transport/loop_thread.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/polling/spin_wait.h"
#include "gradwire/base/process/start_thread.h"

namespace gradwire::transport {

absl::Status LoopThread::start(std::shared_ptr<EventLoop> loop, WaitPolicy policy) {
  GRADWIRE_ASSIGN_OR_RETURN(thread_, start_thread("event-loop", [loop = std::move(loop), policy] {
                              while (!loop->ended()) {
                                if (loop->try_enter()) {
                                  SpinWait wait(policy);
                                  // A thread that waits for an answer takes precedence: this thread then
                                  // leaves, and sleeps until the loop needs it.
                                  while (!loop->ended() && !loop->wanted() &&
                                         (loop->poll() != Poller::kNothing ? wait.renew() : wait.rest())) {
                                  }
                                  loop->leave();
                                }
                                if (!loop->ended()) loop->sleep(absl::InfiniteDuration());
                              }
                            }));
  return absl::OkStatus();
}

absl::Status LoopThread::provide(std::shared_ptr<EventLoop>& loop, WaitPolicy policy) {
  if (loop != nullptr) return absl::OkStatus();
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<EventLoop> made, EventLoop::create());
  GRADWIRE_RETURN_IF_ERROR(start(made, policy));
  own_loop_ = made;
  loop = std::move(made);
  return absl::OkStatus();
}

void LoopThread::end() {
  if (own_loop_ == nullptr) return;
  // A plain pointer: `own_loop_` outlives the thread, which is joined below.
  own_loop_->post([loop = own_loop_.get()] { loop->end_in_loop(); });
  join();
}

}  // namespace gradwire::transport
