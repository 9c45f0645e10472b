#pragma once

#include <string>

#include "gradwire/tools/bench/collectives/collective_loop.h"

namespace gradwire::bench {

// The shared page of the ranks of one system (collective_loop.h). Other processes open it by its path, which
// is valid while the process that made it runs. The page is a memory file, so nothing remains in the file
// system.
class CollectivePage {
 public:
  // Both throw std::runtime_error.
  static CollectivePage make();
  static CollectivePage open(const std::string& path);
  CollectivePage() = default;
  ~CollectivePage();
  CollectivePage(CollectivePage&& other) noexcept;
  CollectivePage& operator=(CollectivePage&& other) noexcept;

  const std::string& path() const { return path_; }
  collective_sync* sync() { return &sync_; }

 private:
  CollectivePage(int fd, std::string path);

  int fd_ = -1;
  std::string path_;
  collective_sync sync_ = {};
};

}  // namespace gradwire::bench
