#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gradwire/collectives/group_backend.h"

namespace gradwire::collectives::testing {

// A backend that does nothing: every operation succeeds at once.
class IdleBackend : public GroupBackend {
 public:
  absl::Status broadcast(at::Tensor, int, absl::Time) override { return absl::OkStatus(); }
  absl::Status reduce(at::Tensor, int, const Reduction&, absl::Time) override { return absl::OkStatus(); }
  absl::Status all_reduce(at::Tensor, const Reduction&, absl::Time) override { return absl::OkStatus(); }
  absl::Status gather(at::Tensor, std::vector<at::Tensor>, int, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status all_gather(at::Tensor, std::vector<at::Tensor>, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status scatter(at::Tensor, std::vector<at::Tensor>, int, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status reduce_scatter(at::Tensor, std::vector<at::Tensor>, const Reduction&, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status all_to_all(std::vector<at::Tensor>, std::vector<at::Tensor>, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status all_gather_into_tensor(at::Tensor, at::Tensor, int, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status reduce_scatter_tensor(at::Tensor, at::Tensor, const Reduction&, int, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status all_to_all_single(at::Tensor, at::Tensor, const std::vector<int64_t>&,
                                 const std::vector<int64_t>&, absl::Time) override {
    return absl::OkStatus();
  }
  absl::Status barrier(absl::Time) override { return absl::OkStatus(); }
  Future<void> send(at::Tensor, int, int, absl::Time) override { return absl::OkStatus(); }
  Future<int> receive(at::Tensor, int, int, absl::Time) override { return absl::StatusOr<int>(0); }
  std::optional<absl::Status> try_send(const at::Tensor&, int, int) override { return absl::OkStatus(); }
  std::optional<absl::StatusOr<int>> try_receive(const at::Tensor&, int, int) override { return 0; }
  void abort(const absl::Status&) override {}
};

}  // namespace gradwire::collectives::testing
