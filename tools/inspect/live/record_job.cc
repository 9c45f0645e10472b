#include "gradwire/tools/inspect/live/record_job.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gradwire/base/clock.h"
#include "gradwire/base/error.h"
#include "gradwire/tools/inspect/live/flight_collector.h"

namespace gradwire::inspect {
namespace {

// Workers answer at most 20 questions a second.
constexpr absl::Duration kPause = absl::Milliseconds(60);

class JobAsker : public FlightAsker {
 public:
  explicit JobAsker(JobReader& reader) : reader_(reader) {}
  std::vector<rpc::Observer::Answer> ask(const std::vector<rpc::Observer::Question>& questions) override {
    absl::SleepFor(answered_ + kPause - Clock::system().now());
    std::vector<rpc::Observer::Answer> answers = reader_.ask(questions);
    answered_ = Clock::system().now();
    return answers;
  }

 private:
  JobReader& reader_;
  absl::Time answered_ = absl::InfinitePast();
};

}  // namespace

absl::StatusOr<std::vector<tools::FlightFile>> record_job(const JobPlace& place, absl::Duration period,
                                                          std::string& errors) {
  GRADWIRE_ASSIGN_OR_RETURN(std::unique_ptr<JobReader> reader, JobReader::open(place));
  JobAsker asker(*reader);
  FlightCollector collector(asker);
  std::string warning;
  GRADWIRE_ASSIGN_OR_RETURN(std::vector<proto::WorkerRecord> members, reader->members(warning));
  for (const std::string& problem : collector.begin(members)) absl::StrAppend(&errors, problem, "\n");
  absl::SleepFor(period);
  GRADWIRE_ASSIGN_OR_RETURN(members, reader->members(warning));
  if (!warning.empty()) absl::StrAppend(&errors, warning, "\n");
  FlightCollector::Collected collected = collector.end(members);
  for (const std::string& problem : collected.problems) absl::StrAppend(&errors, problem, "\n");
  return std::move(collected.files);
}

}  // namespace gradwire::inspect
