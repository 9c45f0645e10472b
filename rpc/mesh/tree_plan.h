#pragma once

#include <cstddef>
#include <vector>

namespace gradwire::rpc {

// A tree over the places 0 .. n-1, below a root that is not one of them. Each place knows its children from
// the numbers `n` and `fanout` alone. Every child has a higher number than its parent, so messages that
// follow the tree end, and a subtree is a range of neighbours. If members of one host are neighbours, few
// messages leave a host. Immutable.
class TreePlan {
 public:
  // REQUIRES: fanout >= 1
  TreePlan(std::size_t places, std::size_t fanout) : places_(places), fanout_(fanout) {}

  std::size_t places() const { return places_; }
  // The children of the root, in rising order: at most `fanout`.
  std::vector<std::size_t> children_of_root() const { return heads(0, places_); }
  // The children of a place. REQUIRES: place < places()
  std::vector<std::size_t> children(std::size_t place) const;
  // The end of the subtree that begins at `place`: it has the places place .. end-1. REQUIRES: as above.
  std::size_t subtree_end(std::size_t place) const;

 private:
  // The parts of a range, each of them a subtree: their first places.
  std::vector<std::size_t> heads(std::size_t begin, std::size_t end) const;

  const std::size_t places_;
  const std::size_t fanout_;
};

}  // namespace gradwire::rpc
