#include "gradwire/collectives/cpu/lanes/lanes.h"

#include <utility>

#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/lanes/lane_core.h"

namespace gradwire::collectives::cpu {

absl::StatusOr<std::unique_ptr<Lanes>> Lanes::join(const Options& options) {
  const HostMemory::Options memory{.index = options.rank,
                                   .size = options.size,
                                   .store = options.store,
                                   .slot_bytes = LaneCarrier::slot_bytes(options.size),
                                   .timeout = options.timeout};
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostMemory> joined, HostMemory::join(memory));
  auto core = std::make_shared<LaneCore>(options, std::move(joined));
  core->start();
  return std::unique_ptr<Lanes>(new Lanes(std::move(core)));
}

Lanes::~Lanes() { core_->shutdown(); }

Future<void> Lanes::send(int dst, int64_t tag, Span data, absl::Time deadline) {
  return core_->send(dst, tag, data, deadline);
}

Future<int> Lanes::receive(int src, int64_t tag, Span data, absl::Time deadline) {
  return core_->receive(src, tag, data, deadline);
}

std::optional<absl::Status> Lanes::try_send(int dst, int64_t tag, Span data) {
  return core_->try_send(dst, tag, data);
}

std::optional<absl::StatusOr<int>> Lanes::try_receive(int src, int64_t tag, Span data) {
  return core_->try_receive(src, tag, data);
}

void Lanes::abort(const absl::Status& reason) { core_->abort(reason); }

}  // namespace gradwire::collectives::cpu
