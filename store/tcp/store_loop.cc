#include "gradwire/store/tcp/store_loop.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/base/process/start_thread.h"
#include "gradwire/base/threads/thread_pool.h"

namespace gradwire::store {

absl::StatusOr<std::shared_ptr<StoreLoop>> StoreLoop::create(const std::string& name) {
  GRADWIRE_ASSIGN_OR_RETURN(std::shared_ptr<transport::EventLoop> loop, transport::EventLoop::create());
  // One thread is enough, because only the loop runs on it.
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<ThreadPool> pool,
                            make_with_threads<ThreadPool>(ThreadPool::Options{
                                .num_threads = 1, .max_threads = 1, .name = name, .poller = loop}));
  return std::shared_ptr<StoreLoop>(new StoreLoop(std::move(loop), std::move(pool)));
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
