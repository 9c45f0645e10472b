#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gradwire/codec/codec_containers.h"
#include "gradwire/rpc/agent.h"

namespace gradwire::examples {

// The statistics of one worker: the calls that it made and served, the bytes that it sent and received, and
// the time that its calls took.
struct WorkerReport {
  std::string name;
  uint64_t calls_made = 0;
  uint64_t calls_served = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  double p50_us = 0;
  double p99_us = 0;
};

WorkerReport report_of(const rpc::Agent& agent);

// Prints a heading and a line for each worker to standard output.
void print_reports(const std::vector<WorkerReport>& reports);

}  // namespace gradwire::examples

template <>
struct gradwire::rpc::Codec<gradwire::examples::WorkerReport> {
  using Report = gradwire::examples::WorkerReport;
  using Tuple = std::tuple<std::string, uint64_t, uint64_t, uint64_t, uint64_t, double, double>;
  static std::string type_name() { return "gradwire::examples::WorkerReport"; }
  static absl::Status encode(const Report& r, Encoder& encoder, proto::Value& out) {
    return encode_value<Tuple>(
        Tuple(r.name, r.calls_made, r.calls_served, r.bytes_sent, r.bytes_received, r.p50_us, r.p99_us),
        encoder, out);
  }
  static absl::StatusOr<Report> decode(const proto::Value& in, Decoder& decoder) {
    GRADWIRE_ASSIGN_OR_RETURN(Tuple parts, decode_value<Tuple>(in, decoder));
    return std::apply([](auto&&... part) { return Report{std::move(part)...}; }, std::move(parts));
  }
};
