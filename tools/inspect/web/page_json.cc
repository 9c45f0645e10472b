#include "gradwire/tools/inspect/web/page_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/text.h"
#include "gradwire/tools/inspect/analysis/wait_graph.h"

namespace gradwire::inspect {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostChains = 20;
constexpr std::size_t kMostCallsOfChain = 16;

double seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }
double nanoseconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }

std::string name_of(const JobView& job, uint64_t incarnation) {
  const WorkerView* const worker = job.find(incarnation);
  return worker == nullptr ? "an unknown worker" : printable(worker->record.name());
}

Json call_json(const JobView& job, const WaitGraph::Node& node) {
  return {
      {"callee", printable(node.callee)},
      {"caller", name_of(job, node.caller)},
      {"worker", name_of(job, node.worker)},
      {"stage", node.is_pass ? "PASS" : proto::CallSummary::Stage_Name(node.stage)},
      {"age_s", absl::ToDoubleSeconds(node.age)},
      {"left_s", node.left == absl::InfiniteDuration() ? Json() : Json(absl::ToDoubleSeconds(node.left))}};
}

Json chains_json(const JobView& job) {
  const WaitGraph graph(job);
  std::set<const WaitGraph::Node*> makers;
  for (const auto& [key, node] : graph.nodes()) makers.insert(node.parent);
  using Chain = std::vector<const WaitGraph::Node*>;
  std::vector<Chain> chains;
  for (const auto& [key, node] : graph.nodes()) {
    if (!node.is_pass && !makers.contains(&node)) chains.push_back(WaitGraph::chain_to(node));
  }
  std::stable_sort(chains.begin(), chains.end(),
                   [](const Chain& a, const Chain& b) { return a.front()->age > b.front()->age; });
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(chains.size(), kMostChains); ++i) {
    Json calls = Json::array();
    for (std::size_t j = 0; j < std::min(chains[i].size(), kMostCallsOfChain); ++j) {
      calls.push_back(call_json(job, *chains[i][j]));
    }
    list.push_back(std::move(calls));
  }
  return list;
}

Json samples_json(const History& history) {
  Json list = Json::array();
  for (const History::Sample& sample : history.samples()) {
    list.push_back({{"time", seconds(sample.time)},
                    {"calls", sample.calls},
                    {"p50_s", sample.calls == 0 ? Json() : Json(absl::ToDoubleSeconds(sample.p50))},
                    {"p99_s", sample.calls == 0 ? Json() : Json(absl::ToDoubleSeconds(sample.p99))},
                    {"calls_per_s", sample.calls_made},
                    {"bytes_per_s", sample.bytes_sent}});
  }
  return list;
}

Json lives_json(const History& history) {
  Json list = Json::array();
  for (const History::Life& life : history.lives()) {
    list.push_back({{"name", printable(life.name)},
                    {"began", seconds(life.began)},
                    {"ended", life.ended == absl::InfiniteFuture() ? Json() : Json(seconds(life.ended))},
                    {"how", life.how}});
  }
  return list;
}

Json passes_json(const History& history) {
  Json list = Json::array();
  for (const History::Pass& pass : history.passes()) {
    Json workers = Json::array();
    for (const std::string& worker : pass.workers) workers.push_back(printable(worker));
    list.push_back({{"root", printable(pass.root)},
                    {"number", absl::StrCat(pass.number)},
                    {"began", seconds(pass.began)},
                    {"took_s", absl::ToDoubleSeconds(pass.took)},
                    {"in_progress", pass.in_progress},
                    {"workers", std::move(workers)}});
  }
  return list;
}

Json parts_json(const std::vector<PassPath::Part>& parts) {
  Json list = Json::array();
  for (const PassPath::Part& part : parts) {
    list.push_back({{"worker", printable(part.worker)},
                    {"begin_s", nanoseconds(part.begin)},
                    {"end_s", nanoseconds(part.end)},
                    {"result", printable(part.result)}});
  }
  return list;
}

Json pass_json(const PassPath& pass) {
  return {{"root", printable(pass.root)},       {"number", absl::StrCat(pass.number)},
          {"total_s", nanoseconds(pass.total)}, {"error_s", pass.error < 0 ? Json() : Json(pass.error / 1e9)},
          {"parts", parts_json(pass.parts)},    {"path", parts_json(pass.path)}};
}

}  // namespace

std::string page_json(const PageState& state) {
  Json json = {{"status", printable(state.status)},
               {"protection", state.protection},
               {"flight_status", printable(state.flight_status)},
               {"pass", state.pass ? pass_json(*state.pass) : Json()}};
  if (state.history != nullptr) {
    json["samples"] = samples_json(*state.history);
    json["lives"] = lives_json(*state.history);
    json["passes"] = passes_json(*state.history);
    Json& restarts = json["restarts"] = Json::array();
    for (const absl::Time restart : state.history->restarts()) restarts.push_back(seconds(restart));
  }
  std::string report = "null";
  if (state.report != nullptr) {
    json["summary"] = summary_of(*state.report);
    json["calls"] = chains_json(state.report->job);
    report = json_report(*state.report, /*for_people=*/false);
  }
  // All strings are ASCII already. The report is JSON of another library, so it is put in as text.
  std::string text = json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  text.pop_back();
  absl::StrAppend(&text, ",\"report\":", report, "}");
  return text;
}

}  // namespace gradwire::inspect
