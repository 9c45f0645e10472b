#include "gradwire/base/threads/stream_fence.h"

namespace gradwire {
namespace {

class Joined : public StreamFence {
 public:
  explicit Joined(std::vector<StreamFencePtr> fences) : fences_(std::move(fences)) {}

  absl::Status wait() const override {
    absl::Status status;
    for (const StreamFencePtr& fence : fences_) status.Update(fence->wait());
    return status;
  }

  absl::StatusOr<bool> reached() const override {
    for (const StreamFencePtr& fence : fences_) {
      absl::StatusOr<bool> reached = fence->reached();
      if (!reached.ok() || !*reached) return reached;
    }
    return true;
  }

 private:
  const std::vector<StreamFencePtr> fences_;
};

}  // namespace

StreamFencePtr join_fences(std::vector<StreamFencePtr> fences) {
  std::erase(fences, nullptr);
  if (fences.size() < 2) return fences.empty() ? nullptr : std::move(fences.front());
  return std::make_shared<Joined>(std::move(fences));
}

}  // namespace gradwire
