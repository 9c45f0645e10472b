#include "gradwire/tools/bench/systems/gradwire_stream.h"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>

#include "gradwire/rpc/stream.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/suites/case_name.h"

namespace gradwire::bench {
namespace {

// Yields strings of this size until the reader cancels.
rpc::Stream<std::string> stream_texts(int64_t size) {
  const std::string text(static_cast<std::size_t>(size), 'x');
  while (true) co_yield text;
}
GRADWIRE_RPC(stream_texts)

}  // namespace

Measurement run_stream(const std::shared_ptr<rpc::Agent>& agent, const rpc::Destination& to,
                       const Task& task) {
  const int64_t size = parse_case(task.case_name).bytes;
  rpc::RemoteStream<std::string> stream = agent->rpc_stream<&stream_texts>(to, size);
  return measure_in_flight(
      task.seconds, 1, [](int) {},
      [&](int) {
        const std::optional<std::string> item = stream.next();
        if (!item || static_cast<int64_t>(item->size()) != size)
          throw std::runtime_error("wrong item of a stream");
      });
}

}  // namespace gradwire::bench
