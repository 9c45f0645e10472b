#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gradwire/base/clock.h"
#include "gradwire/collectives/cpu/mesh/mesh.h"
#include "gradwire/store/hash_store.h"
#include "gradwire/transport/process_counts.h"
#include "gtest/gtest.h"

// Helpers for the tests of Mesh.
namespace gradwire::collectives::cpu {

inline constexpr uint64_t kChannel = 3;
inline constexpr std::size_t kEager = std::size_t{64} << 10;

inline absl::Time in(absl::Duration duration) { return Clock::system().now() + duration; }
inline absl::Time timeout() { return in(absl::Seconds(60)); }

inline Span span(std::string& bytes) { return {bytes.data(), bytes.size()}; }

inline std::string bytes(std::size_t size, unsigned seed) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i + seed) * 2654435761u >> 13);
  return out;
}

// A world whose ranks are all in this process.
class World {
 public:
  World(int size, std::vector<std::string> transports, std::size_t eager_bytes = kEager)
      : store(std::make_shared<store::HashStore>()) {
    for (int rank = 0; rank < size; ++rank) meshes.push_back(make(rank, size, transports, eager_bytes));
  }

  std::shared_ptr<Mesh> make(int rank, int size, std::vector<std::string> transports,
                             std::size_t eager_bytes) {
    Mesh::Options options;
    options.rank = rank;
    options.size = size;
    options.store = store;
    options.transports = std::move(transports);
    options.eager_bytes = eager_bytes;
    absl::StatusOr<std::shared_ptr<Mesh>> mesh = Mesh::create(std::move(options));
    EXPECT_TRUE(mesh.ok()) << mesh.status();
    return mesh.ok() ? *mesh : nullptr;
  }
  Mesh& operator[](int rank) { return *meshes[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<store::Store> store;
  std::vector<std::shared_ptr<Mesh>> meshes;
};

// Runs over each transport, and checks that no descriptors and threads are left.
class MeshTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    descriptors_ = transport::count_descriptors();
    threads_ = transport::count_threads();
  }
  void TearDown() override {
    EXPECT_EQ(transport::count_descriptors_down_to(descriptors_), descriptors_);
    EXPECT_EQ(transport::count_threads_down_to(threads_), threads_);
  }
  std::vector<std::string> transports() const {
    return GetParam() == "default" ? std::vector<std::string>{} : std::vector<std::string>{GetParam()};
  }

 private:
  int descriptors_ = 0;
  int threads_ = 0;
};

}  // namespace gradwire::collectives::cpu
