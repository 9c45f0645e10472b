#include "gradwire/codec/torch/device/handover.h"

#include <utility>

#include "gradwire/base/containers/hash_map.h"
#include "gradwire/base/mutex.h"
#include "gradwire/base/random_id.h"

namespace gradwire::rpc {
namespace {

struct Table {
  ProcessMutex mutex;
  HashMap<uint64_t, Handover> entries ABSL_GUARDED_BY(mutex);
  HashSet<uint64_t> agents ABSL_GUARDED_BY(mutex);
};

// One for the process, because the agents on both ends belong to it. Never destroyed: messages may outlive
// static destruction.
Table& table() {
  static auto* const table = new Table;
  return *table;
}

// Returns an empty handover if none has this number between these two workers.
Handover remove(uint64_t id, uint64_t from, uint64_t to) {
  MutexLock lock(table().mutex);
  const auto found = table().entries.find(id);
  if (found == table().entries.end() || found->second.from != from || found->second.to != to) return {};
  Handover handover = std::move(found->second);
  table().entries.erase(found);
  return handover;
}

class Entry : public HandedOver {
 public:
  Entry(uint64_t id, uint64_t from, uint64_t to) : id_(id), from_(from), to_(to) {}
  ~Entry() override { remove(id_, from_, to_); }
  bool taken() const override {
    MutexLock lock(table().mutex);
    return !table().entries.contains(id_);
  }

 private:
  const uint64_t id_;
  const uint64_t from_;
  const uint64_t to_;
};

}  // namespace

std::shared_ptr<HandedOver> hand_over(Handover handover, uint64_t& id) {
  id = random_id();
  auto entry = std::make_shared<Entry>(id, handover.from, handover.to);
  MutexLock lock(table().mutex);
  table().entries.emplace(id, std::move(handover));
  return entry;
}

absl::StatusOr<Handover> take_handover(uint64_t id, uint64_t from, uint64_t to) {
  Handover handover = remove(id, from, to);
  if (handover.tensors.empty()) {
    return absl::NotFoundError("its tensors are gone: the sender has given the message up");
  }
  return handover;
}

std::shared_ptr<void> drop_handover_later(uint64_t id, uint64_t from, uint64_t to) {
  return std::make_shared<Entry>(id, from, to);
}

std::shared_ptr<void> register_local_agent(uint64_t incarnation) {
  MutexLock lock(table().mutex);
  table().agents.insert(incarnation);
  return std::shared_ptr<void>(nullptr, [incarnation](void*) {
    MutexLock unregister(table().mutex);
    table().agents.erase(incarnation);
  });
}

bool is_local_agent(uint64_t incarnation) {
  MutexLock lock(table().mutex);
  return table().agents.contains(incarnation);
}

}  // namespace gradwire::rpc
