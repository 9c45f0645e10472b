#include "gradwire/store/tcp/store_loop.h"

#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/base/threads/thread_pool.h"

namespace gradwire::store {

absl::StatusOr<std::shared_ptr<StoreLoop>> StoreLoop::create(const std::string& name) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<transport::EventLoop> loop, transport::EventLoop::create());
  try {
    // One thread is enough, because only the loop runs on it.
    auto pool = std::make_shared<ThreadPool>(
        ThreadPool::Options{.num_threads = 1, .max_threads = 1, .name = name, .poller = loop});
    return std::shared_ptr<StoreLoop>(new StoreLoop(std::move(loop), std::move(pool)));
  } catch (const std::system_error& error) {
    return absl::UnavailableError(absl::StrCat("cannot start a store's thread: ", error.what()));
  }
}

StoreLoop::StoreLoop(std::shared_ptr<transport::EventLoop> loop, std::shared_ptr<ThreadPool> pool)
    : loop_(std::move(loop)), pool_(std::move(pool)) {}

// The pool drives the loop. Its shutdown joins the thread, so no other thread runs handlers after this. Tasks
// may be left, for example the end of a connection that its peer has closed first.
StoreLoop::~StoreLoop() {
  pool_->shutdown();
  transport::end(*loop_);
}

std::shared_ptr<Executor> StoreLoop::executor() const { return pool_; }

}  // namespace gradwire::store
