#pragma once

#include <string>

#include "gradwire/tools/bench/collectives/collective_loop.h"

namespace gradwire::bench {

// The page in which the ranks of one side meet (collective_loop.h). Others open it by its path, which is good
// while the maker lives; nothing of it stays behind.
class CollectivePage {
 public:
  // Throws std::runtime_error.
  static CollectivePage make();
  static CollectivePage open(const std::string& path);
  CollectivePage() = default;
  ~CollectivePage();
  CollectivePage(CollectivePage&& other) noexcept;
  CollectivePage& operator=(CollectivePage&& other) noexcept;

  const std::string& path() const { return path_; }
  collective_place* place() { return &place_; }

 private:
  CollectivePage(int fd, std::string path);

  int fd_ = -1;
  std::string path_;
  collective_place place_ = {};
};

}  // namespace gradwire::bench
