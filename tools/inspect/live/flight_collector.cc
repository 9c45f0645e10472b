#include "gradwire/tools/inspect/live/flight_collector.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/inspect/analysis/text.h"

namespace gradwire::inspect {
namespace {

using Answer = rpc::Observer::Answer;
using Question = rpc::Observer::Question;

// A record that does not exist: the answer has only numbers.
constexpr uint64_t kNoRecord = std::numeric_limits<uint64_t>::max();

absl::Status older_version() {
  return absl::UnimplementedError("the worker gives no flight records: it runs an older version of Gradwire");
}

// Reads `text` as the file of an agent or a group of the process that answered.
absl::StatusOr<tools::FlightFile> file_of(const std::string& text, const proto::AgentState& state,
                                          bool is_group) {
  GRADWIRE_ASSIGN_OR_RETURN(tools::FlightFile file, tools::parse_flight_file(text));
  if (file.is_group != is_group || (!is_group && file.incarnation != state.incarnation()))
    return absl::InvalidArgumentError("the flight record is one of another worker");
  file.process = state.pid();
  file.boot = state.boot().substr(0, tools::FlightFile::kMaxText);
  // The parts have no last line.
  file.truncated = false;
  return file;
}

// Numbers of workers may be anything, and are added.
uint64_t bounded(uint64_t records) { return std::min(records, uint64_t{1} << 40); }

// Workers in the order of the job: the clock of the first one is that of the trace. Then the groups.
void sort_files(const std::vector<proto::WorkerRecord>& workers, std::vector<tools::FlightFile>& files) {
  std::map<uint64_t, std::size_t> order;
  for (const proto::WorkerRecord& worker : workers) order.emplace(worker.incarnation(), order.size());
  const auto place = [&](const tools::FlightFile& file) {
    return file.is_group ? order.size() : order[file.incarnation];
  };
  std::stable_sort(files.begin(), files.end(), [&](const tools::FlightFile& a, const tools::FlightFile& b) {
    return place(a) < place(b);
  });
}

}  // namespace

std::vector<std::string> FlightCollector::begin(const std::vector<proto::WorkerRecord>& workers) {
  std::vector<Question> questions;
  for (const proto::WorkerRecord& worker : workers) {
    questions.push_back({.worker = worker, .request = {}});
    questions.back().request.mutable_flight()->set_from(kNoRecord);
  }
  const std::vector<Answer> answers = asker_.ask(questions);
  std::vector<std::string> problems;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    absl::Status status = answers[i].status();
    if (status.ok() && !answers[i]->has_flight()) status = older_version();
    if (status.ok()) {
      starts_[workers[i].incarnation()] = {workers[i].name(), answers[i]->read_at_us(),
                                           answers[i]->flight().recorded()};
    } else {
      problems.push_back(absl::StrCat(in_quotes(workers[i].name()),
                                      " does not say when the period begins: ", printable(status.message())));
    }
  }
  return problems;
}

// All workers are asked at the same time, for one part each, until all are done.
FlightCollector::Collected FlightCollector::end(const std::vector<proto::WorkerRecord>& workers) {
  Collected collected;
  std::vector<Work> all;
  std::map<uint64_t, Start> left = starts_;
  const absl::Time deadline = clock_.now() + bounds_.time;
  for (const proto::WorkerRecord& worker : workers) {
    Work& work = all.emplace_back();
    work.worker = worker;
    if (const auto start = starts_.find(worker.incarnation()); start != starts_.end()) {
      work.question.set_since_us(start->second.since_us);
      work.question.set_begun(start->second.recorded);
    }
    left.erase(worker.incarnation());
  }
  for (const auto& [incarnation, start] : left)
    collected.problems.push_back(
        absl::StrCat(in_quotes(start.name), " is missing: it has left the job, or is lost"));
  while (true) {
    std::vector<Question> questions;
    std::vector<Work*> asked;
    for (Work& work : all) {
      if (work.done) continue;
      questions.push_back({.worker = work.worker, .request = {}});
      *questions.back().request.mutable_flight() = work.question;
      asked.push_back(&work);
    }
    if (asked.empty()) break;
    const std::vector<Answer> answers = asker_.ask(questions);
    const bool late = clock_.now() >= deadline;
    for (std::size_t i = 0; i < asked.size(); ++i) {
      absl::Status status = take(*asked[i], answers[i], collected);
      if (status.ok() && late && !asked[i]->done)
        status = absl::DeadlineExceededError(absl::StrCat("it has not sent all of its flight records within ",
                                                          absl::FormatDuration(bounds_.time)));
      if (status.ok()) continue;
      asked[i]->done = true;
      asked[i]->text.clear();
      collected.problems.push_back(absl::StrCat(in_quotes(asked[i]->worker.name()),
                                                " is missing or incomplete: ", printable(status.message())));
    }
  }
  sort_files(workers, collected.files);
  return collected;
}

absl::Status FlightCollector::take(Work& work, const Answer& answer, Collected& collected) {
  if (!answer.ok()) {
    // It was asked too soon, or had to make room for another observer.
    if (absl::IsResourceExhausted(answer.status()) && ++work.refused <= bounds_.refusals)
      return absl::OkStatus();
    return answer.status();
  }
  if (!answer->has_flight()) return older_version();
  const std::size_t size = answer->flight().lines().size();
  work.bytes += size;
  total_bytes_ += size;
  if (work.bytes > bounds_.worker_bytes || total_bytes_ > bounds_.total_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "its flight records are larger than ", bounds_.worker_bytes, " bytes, or all together than ",
        bounds_.total_bytes, "; choose a shorter period, or smaller rings"));
  }
  if (++work.parts > bounds_.worker_parts) {
    return absl::ResourceExhaustedError(
        absl::StrCat("its flight records have more than ", bounds_.worker_parts, " parts"));
  }
  return work.question.group() == 0 ? take_calls(work, *answer, collected)
                                    : take_group(work, *answer, collected);
}

// 1. Collect the parts of the calls.
// 2. After the last one, go on with the groups, unless another worker of the process has them.
absl::Status FlightCollector::take_calls(Work& work, const proto::AgentState& state, Collected& collected) {
  const proto::FlightPart& part = state.flight();
  if (part.next() != 0 && part.next() <= work.question.from())
    return absl::InvalidArgumentError("the next part of its flight record is not behind this one");
  work.text += part.lines();
  work.missing += bounded(part.missing());
  if (part.next() != 0) {
    work.question.set_from(part.next());
    return absl::OkStatus();
  }
  GRADWIRE_ASSIGN_OR_RETURN(tools::FlightFile file, file_of(work.text, state, /*is_group=*/false));
  file.recorded = work.missing;
  file.capacity = 0;
  // Its name in the group, and not one that it has chosen.
  file.title = work.worker.name();
  collected.files.push_back(std::move(file));
  work.text.clear();
  work.question.set_group(1);
  const ProcessSpace space = space_of(state);
  work.done = space.known() && !processes_.emplace(space, state.pid()).second;
  return absl::OkStatus();
}

absl::Status FlightCollector::take_group(Work& work, const proto::AgentState& state, Collected& collected) {
  const proto::FlightPart& part = state.flight();
  if (part.group() == 0) {
    work.done = true;
    return absl::OkStatus();
  }
  if (part.group() < work.question.group() || part.group() == kNoRecord)
    return absl::InvalidArgumentError("the numbers of its process groups do not increase");
  work.question.set_group(part.group() + 1);
  GRADWIRE_ASSIGN_OR_RETURN(tools::FlightFile file, file_of(part.lines(), state, /*is_group=*/true));
  const uint64_t overwritten =
      part.overwritten() && file.recorded > file.capacity ? file.recorded - file.capacity : 0;
  file.recorded = bounded(part.missing()) + bounded(overwritten);
  file.capacity = 0;
  collected.files.push_back(std::move(file));
  return absl::OkStatus();
}

}  // namespace gradwire::inspect
