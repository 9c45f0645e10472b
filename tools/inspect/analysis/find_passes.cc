// Backward passes that wait for results which nobody uses.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/inspect/analysis/analysis.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

// The part of the pass on a worker; nullptr if it reports none.
const proto::PassSummary* part_of(const WorkerView& worker, const proto::PassSummary& pass) {
  for (const proto::PassSummary& part : worker.state.autograd().passes()) {
    if (part.root() == pass.root() && part.number() == pass.number()) return &part;
  }
  return nullptr;
}

// Whether no worker does something for the pass, so that it reaches no more workers. Workers that do not
// answer may.
bool is_stuck(const JobView& job, const proto::PassSummary& pass) {
  return std::all_of(job.workers.begin(), job.workers.end(), [&](const WorkerView& worker) {
    if (!worker.is_member()) return true;
    if (!worker.answered()) return false;
    const proto::PassSummary* part = part_of(worker, pass);
    return part == nullptr || !part->busy();
  });
}

// Whether the receiver of an awaited message will never send its gradients: its part runs, and has no such
// message in its graph.
bool is_unused(const JobView& job, uint64_t sender, const proto::PassSummary& pass,
               const proto::GraphMessage& awaited) {
  const WorkerView* receiver = job.find(awaited.peer());
  if (receiver == nullptr || !receiver->answered()) return false;
  const proto::PassSummary* part = part_of(*receiver, pass);
  if (part == nullptr) {
    // It takes no part in the pass, if its list of passes is complete. In this mode a part begins with the
    // first gradients that reach the worker, so others may still send some.
    const proto::AutogradState& passes = receiver->state.autograd();
    return passes.passes_total() == static_cast<uint64_t>(passes.passes_size()) && is_stuck(job, pass);
  }
  if (!part->running() || !part->reached_all()) return false;
  return std::none_of(part->reached().begin(), part->reached().end(), [&](const proto::GraphMessage& each) {
    return each.peer() == sender && each.message() == awaited.message();
  });
}

}  // namespace

// In the fast mode a worker expects gradients for each message with tensors that it has sent. The receiver
// sends them if its own graph reaches the message, which is known when its part begins to run. One finding
// for each pair of workers: it names a function, if one is known.
std::vector<Finding> find_unused_results(const JobView& job, const Thresholds& thresholds) {
  std::vector<Finding> findings;
  for (const WorkerView& sender : job.workers) {
    if (!sender.answered()) continue;
    for (const proto::PassSummary& pass : sender.state.autograd().passes()) {
      const absl::Duration age = absl::Microseconds(pass.age_us());
      if (!pass.fast() || age < thresholds.slow_call) continue;
      // By receiver: the number of unused messages, and a function whose result one of them was.
      std::map<uint64_t, std::pair<uint64_t, std::string>> unused;
      for (const proto::GraphMessage& awaited : pass.awaited()) {
        if (!is_unused(job, sender.record.incarnation(), pass, awaited)) continue;
        auto& [messages, callee] = unused[awaited.peer()];
        ++messages;
        if (callee.empty()) callee = awaited.callee();
      }
      for (const auto& [receiver, each] : unused) {
        const std::string name = job.name_of(receiver);
        Finding& finding = findings.emplace_back();
        finding.kind = Finding::Kind::kUnusedResult;
        finding.title = absl::StrCat(
            "unused result: the loss does not use ",
            each.second.empty() ? "a tensor" : absl::StrCat("the result of ", in_quotes(each.second)),
            " that ", name, " has received from ", in_quotes(sender.record.name()),
            ", and a backward pass of ", job.name_of(pass.root()),
            " with BackwardMode::kFast has waited for its gradient for ", text_of(age));
        finding.details = {absl::StrCat(each.first, each.first == 1 ? " message" : " messages", " of ",
                                        in_quotes(sender.record.name()), " to ", name, " without gradients"),
                           pass.left_us() < 0 ? "the pass has no deadline: it never ends"
                                              : absl::StrCat("a deadline ends the pass in ",
                                                             text_of(absl::Microseconds(pass.left_us())))};
        finding.culprits = {receiver};
        finding.age = age;
      }
    }
  }
  return findings;
}

}  // namespace gradwire::inspect
