#pragma once

#include <cstddef>
#include <vector>

namespace gradwire::data_parallel {

// The knowledge that the first pass gives about a graph that is the same in every pass: which parameters get
// a gradient, and in how many parts. A parameter whose gradient arrives in several parts is used by several
// passes inside the pass, for example by checkpoints of activations. States: recording; recorded after
// end_recording(). Not thread-safe.
class StaticGraph {
 public:
  explicit StaticGraph(std::size_t parameters) : expected_(parameters), seen_(parameters) {}

  bool recording() const { return recording_; }
  // A part of the parameter's gradient has been accumulated. Returns whether it was the last one of this
  // pass; while recording this is not known, so it returns false. For each part beyond those of the first
  // pass it returns true again; the caller then finds that the parameter is already marked.
  bool accumulated(std::size_t i) { return ++seen_[i] >= expected_[i] && !recording_; }
  // Ends the first pass. The parameters whose parts it has seen are the reached ones.
  void end_recording() {
    recording_ = false;
    expected_ = seen_;
  }
  void begin_pass() { seen_.assign(seen_.size(), 0); }
  // For each parameter, whether a pass computes a gradient for it.
  std::vector<bool> reached() const {
    std::vector<bool> reached(expected_.size());
    for (std::size_t i = 0; i < reached.size(); ++i) reached[i] = expected_[i] > 0;
    return reached;
  }

 private:
  bool recording_ = true;
  std::vector<std::size_t> expected_;
  std::vector<std::size_t> seen_;
};

}  // namespace gradwire::data_parallel
