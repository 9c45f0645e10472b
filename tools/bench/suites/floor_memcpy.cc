#include <cstring>
#include <stdexcept>
#include <vector>

#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/run/pattern.h"
#include "gradwire/tools/bench/suites/case_name.h"
#include "gradwire/tools/bench/suites/floors.h"

namespace gradwire::bench {
namespace {

class Memcpy final : public Participant {
 public:
  Measurement run(const Task& task) override {
    const CaseName name = parse_case(task.case_name);
    if (name.bytes == 0) throw std::invalid_argument("memcpy has no case " + task.case_name);
    const auto size = static_cast<std::size_t>(name.bytes);
    const bool both_ways = name.operation == "echo" || name.operation == "push_pull";
    std::vector<char> source(size), there(size), back(size);
    return measure(
        {.seconds = task.seconds, .large = true},
        [&](int64_t i) { fill_pattern(source.data(), size, static_cast<uint64_t>(i)); },
        [&](int64_t) {
          std::memcpy(there.data(), source.data(), size);
          if (both_ways) std::memcpy(back.data(), there.data(), size);
        },
        [&](int64_t i) { check_pattern((both_ways ? back : there).data(), size, static_cast<uint64_t>(i)); });
  }
};

}  // namespace

std::unique_ptr<Participant> make_floor_memcpy() { return std::make_unique<Memcpy>(); }

}  // namespace gradwire::bench
