#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "gradwire/tools/inspect/analysis/job_view.h"

namespace gradwire::inspect {

// Traffic and calls per second between two views of a job.
struct Rates {
  struct Traffic {
    double sent = 0;      // Bytes per second.
    double received = 0;  // Bytes per second.
  };
  // By the worker and its peer.
  std::map<std::pair<uint64_t, uint64_t>, Traffic> links;
  // By worker.
  std::map<uint64_t, double> calls_made;
  std::map<uint64_t, double> calls_served;
};

// Compares two views by the clocks of the workers. Connections and workers that are in one of
// them only, or were counted again from 0, are left out.
Rates compare(const JobView& before, const JobView& now);

// The value of a counter or table of a worker; 0 if it has none of that name.
int64_t number_of(const google::protobuf::RepeatedPtrField<proto::NamedNumber>& numbers, const char* name);

}  // namespace gradwire::inspect
