#include "gradwire/tools/inspect/web/critical_path.h"

#include <algorithm>
#include <map>
#include <utility>

namespace gradwire::inspect {
namespace {

using Part = PassPath::Part;

// Files that were written at different times lack parts of the newest passes.
constexpr std::size_t kMostConsidered = 16;

// The times come from files that may say anything.
int64_t minus(int64_t a, int64_t b) {
  int64_t result = 0;
  return __builtin_sub_overflow(a, b, &result) ? 0 : result;
}

// Follows the path backwards. Each part is entered at most once, so it ends.
class PathFinder {
 public:
  // The clocks of two parts may be apart by `error`.
  PathFinder(const std::vector<Part>& parts, int64_t error)
      : parts_(parts), error_(error), visited_(parts.size()) {}

  // The path from the beginning of the part `root` to its end.
  std::vector<Part> find(std::size_t root) {
    struct Entered {
      std::size_t part;
      int64_t time;  // Everything after this moment is on the path already.
    };
    std::vector<Entered> entered = {{root, parts_[root].end}};
    visited_[root] = true;
    while (!entered.empty()) {
      Entered& last = entered.back();
      const std::size_t cause = ended_last(parts_[last.part].begin, last.time);
      if (cause == parts_.size()) {
        add(last.part, parts_[last.part].begin, last.time);
        const int64_t began = std::min(parts_[last.part].begin, last.time);
        entered.pop_back();
        if (!entered.empty()) entered.back().time = began;
        continue;
      }
      const int64_t end = std::min(parts_[cause].end, last.time);
      add(last.part, end, last.time);
      visited_[cause] = true;
      entered.push_back({cause, end});
    }
    std::reverse(path_.begin(), path_.end());
    return std::move(path_);
  }

 private:
  // The part that began and ended in this period, and ended last; parts_.size() if no part did.
  std::size_t ended_last(int64_t begin, int64_t end) const {
    std::size_t best = parts_.size();
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (visited_[i] || minus(begin, parts_[i].begin) > error_ || minus(parts_[i].end, end) > error_)
        continue;
      if (best == parts_.size() || parts_[i].end > parts_[best].end) best = i;
    }
    return best;
  }
  void add(std::size_t part, int64_t begin, int64_t end) {
    if (begin < end) path_.push_back({parts_[part].worker, begin, end, {}});
  }

  const std::vector<Part>& parts_;
  const int64_t error_;
  std::vector<bool> visited_;
  // From the end to the beginning.
  std::vector<Part> path_;
};

// A pass that has ended at its root. Times of the common clock.
struct Ended {
  CallIdentity id;
  int64_t begin = 0;
  int64_t end = 0;
};

// The last pass, of the newest ones with the most parts.
std::optional<Ended> choose(const std::vector<WorkerTrace>& workers, const std::vector<WorkerClock>& clocks) {
  std::map<CallIdentity, std::size_t> parts;
  std::vector<Ended> ended;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (const TraceSpan& span : workers[i].spans) {
      if (span.kind != SpanKind::kPass) continue;
      ++parts[span.id];
      if (span.result.empty() || span.id.first != workers[i].incarnation) continue;
      ended.push_back({span.id, clocks[i].fit.map(span.begin), clocks[i].fit.map(span.end)});
    }
  }
  std::stable_sort(ended.begin(), ended.end(), [](const Ended& a, const Ended& b) { return a.end > b.end; });
  if (ended.size() > kMostConsidered) ended.resize(kMostConsidered);
  const auto most = std::max_element(ended.begin(), ended.end(), [&](const Ended& a, const Ended& b) {
    return parts.at(a.id) < parts.at(b.id);
  });
  return most == ended.end() ? std::nullopt : std::optional<Ended>(*most);
}

}  // namespace

std::optional<PassPath> last_pass(const std::vector<WorkerTrace>& workers,
                                  const std::vector<WorkerClock>& clocks) {
  const std::optional<Ended> chosen = choose(workers, clocks);
  if (!chosen) return std::nullopt;
  const CallIdentity last = chosen->id;
  const int64_t origin = chosen->begin;
  PassPath pass{.number = last.second};
  std::size_t root = 0;
  // The root comes first, so that the limit never leaves it out.
  for (const bool is_root : {true, false}) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      if ((workers[i].incarnation == last.first) != is_root) continue;
      for (const TraceSpan& span : workers[i].spans) {
        if (span.kind != SpanKind::kPass || span.id != last || pass.parts.size() >= PassPath::kMostParts)
          continue;
        const int64_t begin = minus(clocks[i].fit.map(span.begin), origin);
        const int64_t end = std::max(begin, minus(clocks[i].fit.map(span.end), origin));
        pass.parts.push_back({workers[i].name, begin, end, span.result});
        if (is_root) pass.root = workers[i].name;
        if (!clocks[i].known) pass.error = -1;
        if (pass.error >= 0) pass.error = std::max(pass.error, clocks[i].fit.error());
      }
    }
  }
  pass.total = pass.parts[root].end;
  // Two clocks, each with this error.
  const auto error = static_cast<int64_t>(2 * std::clamp(pass.error, 0.0, 1e9));
  pass.path = PathFinder(pass.parts, error).find(root);
  std::stable_sort(pass.parts.begin(), pass.parts.end(),
                   [](const Part& a, const Part& b) { return a.begin < b.begin; });
  return pass;
}

}  // namespace gradwire::inspect
