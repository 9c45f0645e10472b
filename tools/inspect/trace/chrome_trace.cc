#include "gradwire/tools/inspect/trace/chrome_trace.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "gradwire/base/text/json_text.h"

namespace gradwire::inspect {

// 1. Visit the periods by their begin.
// 2. Give back the lanes of those that have ended.
// 3. Take the lowest free lane, or a new one.
std::vector<std::size_t> assign_lanes(const std::vector<std::pair<int64_t, int64_t>>& periods) {
  std::vector<std::size_t> order(periods.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return periods[a].first < periods[b].first; });

  using Used = std::pair<int64_t, std::size_t>;  // When it ends, and the lane.
  std::priority_queue<Used, std::vector<Used>, std::greater<>> used;
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> free;
  std::size_t count = 0;
  std::vector<std::size_t> lanes(periods.size());
  for (const std::size_t period : order) {
    while (!used.empty() && used.top().first <= periods[period].first) {
      free.push(used.top().second);
      used.pop();
    }
    if (free.empty()) free.push(count++);
    lanes[period] = free.top();
    free.pop();
    used.emplace(periods[period].second, lanes[period]);
  }
  return lanes;
}

namespace {

// Times come from files, and their differences must not overflow.
constexpr int64_t kFarthest = int64_t{1} << 61;

int64_t bounded(int64_t time) { return std::clamp(time, -kFarthest, kFarthest); }

// A span on the common clock, in its lane.
struct Placed {
  const TraceSpan* span = nullptr;
  std::size_t process = 0;  // From 1.
  uint64_t thread = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// The categories of spans, in the order in which a viewer shows their lanes. A lane has the name of its
// category.
constexpr absl::string_view kGroups[] = {"call", "handler", "backward", "collective"};
// The number of a lane is group * kLanes + lane. Threads of kOperator come after all of them.
constexpr uint64_t kLanes = 100'000;
constexpr uint64_t kOperators = std::size(kGroups) * kLanes;

std::string json(absl::string_view text) {
  std::string out;
  append_json_text(out, text);
  return out;
}

// 64 bits are too many for a number in JavaScript.
std::string identity(const CallIdentity& id) {
  return absl::StrCat("\"", absl::Hex(id.first), ":", absl::Hex(id.second), "\"");
}

class Writer {
 public:
  Writer(const std::vector<WorkerTrace>& workers, const std::vector<WorkerClock>& clocks)
      : workers_(workers), clocks_(clocks) {}

  // 1. Bring all spans to the common clock, and find their lanes.
  // 2. Name processes and lanes.
  // 3. Write the spans.
  // 4. Write the arrows between them.
  std::string write() && {
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) place(worker);
    for (const Placed& placed : placed_) first_ = std::min(first_, placed.begin);
    if (placed_.empty()) first_ = 0;
    out_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n";
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) name_process(worker);
    for (const Placed& placed : placed_) write_span(placed);
    connect_calls();
    connect_parents();
    connect_passes();
    connect_collectives();
    absl::StrAppend(&out_, "\n],\"otherData\":", other_data(), "}\n");
    return std::move(out_);
  }

 private:
  void place(std::size_t worker) {
    const std::vector<TraceSpan>& spans = workers_[worker].spans;
    const ClockFit& fit = clocks_[worker].fit;
    for (std::size_t kind = 0; kind < std::size(kGroups); ++kind) {
      std::vector<Placed> placed;
      std::vector<std::pair<int64_t, int64_t>> periods;
      for (const TraceSpan& span : spans) {
        if (span.kind != static_cast<SpanKind>(kind)) continue;
        const int64_t begin = bounded(fit.map(span.begin));
        const int64_t end = std::max(begin, bounded(fit.map(span.end)));
        placed.push_back({&span, worker + 1, 0, begin, end});
        periods.emplace_back(begin, end);
      }
      const std::vector<std::size_t> lanes = assign_lanes(periods);
      std::size_t used = 0;
      for (std::size_t i = 0; i < placed.size(); ++i) {
        const std::size_t lane = std::min<std::size_t>(lanes[i], kLanes - 1);
        placed[i].thread = kind * kLanes + lane + 1;
        used = std::max(used, lane + 1);
      }
      for (std::size_t lane = 0; lane < used; ++lane) {
        lanes_[{worker + 1, kind * kLanes + lane + 1}] =
            lane == 0 ? std::string(kGroups[kind]) : absl::StrCat(kGroups[kind], " ", lane + 1);
      }
      placed_.insert(placed_.end(), placed.begin(), placed.end());
    }
    for (const TraceSpan& span : spans) {
      if (span.kind != SpanKind::kOperator) continue;
      const int64_t begin = bounded(fit.map(span.begin));
      const uint64_t thread = kOperators + span.thread % kLanes + 1;
      placed_.push_back({&span, worker + 1, thread, begin, std::max(begin, bounded(fit.map(span.end)))});
      const auto name = workers_[worker].thread_names.find(span.thread);
      lanes_[{worker + 1, thread}] =
          name != workers_[worker].thread_names.end() ? name->second : absl::StrCat("thread ", span.thread);
    }
  }

  void name_process(std::size_t worker) {
    const WorkerTrace& trace = workers_[worker];
    const std::string shown = absl::StrCat(trace.name, " (process ", trace.process, ")");
    metadata(worker + 1, 0, "process_name", absl::StrCat("{\"name\":", json(shown), "}"));
    if (trace.overwritten > 0 || trace.damaged > 0)
      metadata(worker + 1, 0, "process_labels", absl::StrCat("{\"labels\":", json(losses_of(trace)), "}"));
    metadata(worker + 1, 0, "process_sort_index", absl::StrCat("{\"sort_index\":", worker, "}"));
    for (auto lane = lanes_.lower_bound({worker + 1, 0});
         lane != lanes_.end() && lane->first.first == worker + 1; ++lane) {
      metadata(worker + 1, lane->first.second, "thread_name",
               absl::StrCat("{\"name\":", json(lane->second), "}"));
      metadata(worker + 1, lane->first.second, "thread_sort_index",
               absl::StrCat("{\"sort_index\":", lane->first.second, "}"));
    }
  }

  void metadata(std::size_t process, uint64_t thread, absl::string_view name, absl::string_view arguments) {
    event(absl::StrCat("\"ph\":\"M\",\"pid\":", process, ",\"tid\":", thread, ",\"name\":\"", name,
                       "\",\"args\":", arguments));
  }

  void write_span(const Placed& placed) {
    const TraceSpan& span = *placed.span;
    std::string arguments =
        absl::StrCat("\"result\":", json(span.result.empty() ? "not ended" : span.result));
    if (!span.peer.empty()) absl::StrAppend(&arguments, ",\"peer\":", json(span.peer));
    if (span.id != CallIdentity()) absl::StrAppend(&arguments, ",\"id\":", identity(span.id));
    if (span.parent != CallIdentity()) absl::StrAppend(&arguments, ",\"parent\":", identity(span.parent));
    if (span.trace != CallIdentity()) {
      absl::StrAppend(&arguments, ",\"trace_id\":\"", absl::Hex(span.trace.first, absl::kZeroPad16),
                      absl::Hex(span.trace.second, absl::kZeroPad16), "\"");
    }
    if (span.kind == SpanKind::kHandler) {
      absl::StrAppend(&arguments, ",\"waited_us\":",
                      microseconds(std::max<int64_t>(0, bounded(span.ran) - bounded(span.begin))));
    }
    const absl::string_view category = span.kind == SpanKind::kOperator
                                           ? absl::string_view("operator")
                                           : kGroups[static_cast<std::size_t>(span.kind)];
    event(absl::StrCat("\"ph\":\"X\",\"pid\":", placed.process, ",\"tid\":", placed.thread, ",\"ts\":",
                       at(placed.begin), ",\"dur\":", microseconds(placed.end - placed.begin), ",\"cat\":\"",
                       category, "\",\"name\":", json(span.name), ",\"args\":{", arguments, "}"));
  }

  void connect_calls() {
    std::map<CallIdentity, const Placed*> calls;
    for (const Placed& placed : placed_) {
      if (placed.span->kind == SpanKind::kCall) calls.emplace(placed.span->id, &placed);
    }
    for (const Placed& handler : placed_) {
      if (handler.span->kind != SpanKind::kHandler) continue;
      const auto found = calls.find(handler.span->id);
      if (found == calls.end() || handler.span->id == CallIdentity()) continue;
      const Placed& call = *found->second;
      arrow("call", call, call.begin, handler, handler.begin);
      if (!handler.span->result.empty() && !call.span->result.empty()) {
        arrow("answer", handler, last(handler), call, last(call));
      }
    }
  }

  void connect_parents() {
    std::map<CallIdentity, const Placed*> handlers;
    for (const Placed& placed : placed_) {
      if (placed.span->kind == SpanKind::kHandler) handlers.emplace(placed.span->id, &placed);
    }
    for (const Placed& call : placed_) {
      if (call.span->kind == SpanKind::kHandler || call.span->parent == CallIdentity()) continue;
      const auto found = handlers.find(call.span->parent);
      if (found == handlers.end() || found->second->process != call.process) continue;
      const Placed& handler = *found->second;
      arrow("nested", handler, std::clamp(call.begin, handler.begin, last(handler)), call, call.begin);
    }
  }

  // All workers of a pass have its context in common.
  void connect_passes() {
    for (const auto& [id, parts] : of_kind(SpanKind::kPass)) {
      const Placed& first = **std::min_element(
          parts.begin(), parts.end(), [](const Placed* a, const Placed* b) { return a->begin < b->begin; });
      for (const Placed* part : parts) {
        if (part != &first) arrow("backward", first, first.begin, *part, part->begin);
      }
    }
  }

  void connect_collectives() {
    for (const auto& [id, ranks] : of_kind(SpanKind::kCollective)) {
      const Placed& late = **std::max_element(
          ranks.begin(), ranks.end(), [](const Placed* a, const Placed* b) { return a->begin < b->begin; });
      for (const Placed* rank : ranks) {
        if (rank != &late) arrow("last to arrive", late, late.begin, *rank, last(*rank));
      }
    }
  }

  std::map<CallIdentity, std::vector<const Placed*>> of_kind(SpanKind kind) const {
    std::map<CallIdentity, std::vector<const Placed*>> found;
    for (const Placed& placed : placed_) {
      if (placed.span->kind == kind && placed.span->id != CallIdentity())
        found[placed.span->id].push_back(&placed);
    }
    return found;
  }

  // The end of an arrow belongs to the span that contains its time; the end of a span is outside of it.
  static int64_t last(const Placed& placed) { return std::max(placed.begin, placed.end - 1); }

  void arrow(absl::string_view name, const Placed& from, int64_t from_time, const Placed& to,
             int64_t to_time) {
    const uint64_t id = ++arrows_;
    const std::string common = absl::StrCat(",\"cat\":\"arrow\",\"name\":\"", name, "\",\"id\":", id);
    event(absl::StrCat("\"ph\":\"s\",\"pid\":", from.process, ",\"tid\":", from.thread,
                       ",\"ts\":", at(from_time), common));
    event(absl::StrCat("\"ph\":\"f\",\"bp\":\"e\",\"pid\":", to.process, ",\"tid\":", to.thread,
                       ",\"ts\":", at(to_time), common));
  }

  static std::string losses_of(const WorkerTrace& trace) {
    std::string text;
    if (trace.overwritten > 0) absl::StrAppend(&text, trace.overwritten, " earlier records were overwritten");
    if (trace.damaged > 0)
      absl::StrAppend(&text, text.empty() ? "" : ", ", trace.damaged, " lines cannot be read");
    return text;
  }

  std::string other_data() const {
    std::string clocks, missing;
    for (std::size_t worker = 0; worker < workers_.size(); ++worker) {
      if (worker > 0) clocks += ",";
      absl::StrAppend(&clocks, json(workers_[worker].name), ":",
                      clocks_[worker].known ? microseconds(static_cast<int64_t>(clocks_[worker].fit.error()))
                                            : std::string("null"));
      if (workers_[worker].overwritten == 0) continue;
      absl::StrAppend(&missing, missing.empty() ? "" : ",", json(workers_[worker].name), ":",
                      workers_[worker].overwritten);
    }
    return absl::StrCat("{\"begin_ns\":\"", first_, "\",\"clock_error_us\":{", clocks,
                        "},\"overwritten_records\":{", missing, "}}");
  }

  std::string at(int64_t time) const { return microseconds(time - first_); }
  static std::string microseconds(int64_t nanoseconds) {
    return absl::StrFormat("%d.%03d", nanoseconds / 1000, std::abs(nanoseconds % 1000));
  }

  void event(absl::string_view fields) {
    if (has_event_) out_ += ",\n";
    has_event_ = true;
    absl::StrAppend(&out_, "{", fields, "}");
  }

  const std::vector<WorkerTrace>& workers_;
  const std::vector<WorkerClock>& clocks_;
  std::vector<Placed> placed_;
  // The names of all lanes, by process and thread.
  std::map<std::pair<std::size_t, uint64_t>, std::string> lanes_;
  int64_t first_ = std::numeric_limits<int64_t>::max();
  uint64_t arrows_ = 0;
  bool has_event_ = false;
  std::string out_;
};

}  // namespace

std::string chrome_trace(const std::vector<WorkerTrace>& workers, const std::vector<WorkerClock>& clocks) {
  return Writer(workers, clocks).write();
}

}  // namespace gradwire::inspect
