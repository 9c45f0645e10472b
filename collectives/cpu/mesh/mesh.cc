#include "gradwire/collectives/cpu/mesh/mesh.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/collectives/cpu/mesh/mesh_core.h"

namespace gradwire::collectives::cpu {
namespace {

// Ends the core when its user lets go; what is under way refers to the core alone.
class MeshHandle final : public Mesh {
 public:
  explicit MeshHandle(std::shared_ptr<MeshCore> core) : core_(std::move(core)) {}
  ~MeshHandle() override { core_->shutdown(); }

  Future<void> send(int dst, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override {
    return core_->send(dst, channel, tag, data, deadline);
  }
  Future<int> receive(int src, uint64_t channel, int64_t tag, Span data, absl::Time deadline) override {
    return core_->receive(src, channel, tag, data, deadline);
  }
  void abort(uint64_t channel, const absl::Status& reason) override { core_->abort(channel, reason); }
  void forget(uint64_t channel) override { core_->forget(channel); }
  void name_ranks(uint64_t channel, absl::flat_hash_map<int, int> names) override {
    core_->name_ranks(channel, std::move(names));
  }
  std::shared_ptr<Executor> executor() const override { return core_->executor(); }
  void shutdown() override { core_->shutdown(); }

 private:
  const std::shared_ptr<MeshCore> core_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Mesh>> Mesh::create(Options options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a world of ", options.size));
  }
  if (options.store == nullptr) return absl::InvalidArgumentError("a mesh needs a store");
  auto core = std::make_shared<MeshCore>(std::move(options));
  GRADWIRE_RETURN_IF_ERROR(core->start());
  return std::make_shared<MeshHandle>(std::move(core));
}

}  // namespace gradwire::collectives::cpu
