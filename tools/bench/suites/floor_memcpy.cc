#include <cstring>
#include <stdexcept>
#include <vector>

#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_timing.h"
#include "gradwire/tools/bench/suites/floors.h"

namespace gradwire::bench {
namespace {

class Memcpy final : public BenchProcess {
 public:
  Measurement run(const Task& task) override {
    const CaseName name = parse_case(task.case_name);
    if (name.bytes == 0) throw std::invalid_argument("floor_memcpy cannot run the case " + task.case_name);
    const auto size = static_cast<std::size_t>(name.bytes);
    const bool both_ways = name.operation == "echo" || name.operation == "push_pull";
    std::vector<char> source(size), copied(size), copied_back(size);
    Timing timing = timing_of(task);
    timing.large = true;
    return measure(
        timing, [&](int64_t i) { fill_pattern(source.data(), size, static_cast<uint64_t>(i)); },
        [&](int64_t) {
          std::memcpy(copied.data(), source.data(), size);
          if (both_ways) std::memcpy(copied_back.data(), copied.data(), size);
        },
        [&](int64_t i) {
          check_pattern((both_ways ? copied_back : copied).data(), size, static_cast<uint64_t>(i));
        });
  }
};

}  // namespace

std::unique_ptr<BenchProcess> make_floor_memcpy() { return std::make_unique<Memcpy>(); }

}  // namespace gradwire::bench
