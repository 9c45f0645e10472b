#include "examples/worker_report.h"

#include <cstdio>

#include "gradwire/rpc/agent_statistics.h"

namespace gradwire::examples {

WorkerReport report_of(const rpc::Agent& agent) {
  const rpc::AgentStatistics statistics = agent.statistics();
  WorkerReport report;
  report.name = agent.get_worker_info().name;
  report.calls_made = statistics.calls_made;
  report.calls_served = statistics.calls_served;
  report.bytes_sent = statistics.bytes_sent;
  report.bytes_received = statistics.bytes_received;
  report.p50_us = absl::ToDoubleMicroseconds(statistics.call_p50);
  report.p99_us = absl::ToDoubleMicroseconds(statistics.call_p99);
  return report;
}

void print_reports(const std::vector<WorkerReport>& reports) {
  std::printf("%-12s %12s %12s %10s %12s %10s %10s\n", "worker", "calls made", "served", "sent MB",
              "received MB", "p50 us", "p99 us");
  for (const WorkerReport& report : reports) {
    std::printf("%-12s %12llu %12llu %10.1f %12.1f %10.0f %10.0f\n", report.name.c_str(),
                static_cast<unsigned long long>(report.calls_made),
                static_cast<unsigned long long>(report.calls_served),
                static_cast<double>(report.bytes_sent) * 1e-6,
                static_cast<double>(report.bytes_received) * 1e-6, report.p50_us, report.p99_us);
  }
  std::fflush(stdout);
}

}  // namespace gradwire::examples
