#include "gradwire/tests/device/random_program.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>

#include <cstring>
#include <memory>
#include <random>
#include <sstream>
#include <utility>
#include <vector>

#include "gradwire/tests/device/lag_device.h"

namespace gradwire {
namespace {

constexpr int64_t kSide = 8;
constexpr int kSteps = 30;
constexpr int kStreams = 3;

using EventPointer = std::shared_ptr<c10::Event>;

// The uses of a tensor's memory so far. Views share it.
struct Memory {
  c10::Stream writer;
  EventPointer written;
  std::vector<EventPointer> reads;
};

// A tensor on the CPU and the one on a device that must be equal.
struct Variable {
  at::Tensor cpu;
  at::Tensor lag;
  std::shared_ptr<Memory> memory;
};

// A copy in pinned memory that may be read when the event has passed.
struct Download {
  at::Tensor cpu;
  at::Tensor pinned;
  EventPointer written;
};

bool same(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.sizes() == y.sizes() && std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

class Program {
 public:
  Program(uint64_t seed, Mistake mistake) : random_(seed), mistake_(mistake) {
    lag::set_lag(lag::Profile::seeded(seed));
    for (int device = 0; device < lag::device_count(); device++) {
      streams_.push_back({lag::default_stream(device)});
      while (streams_.back().size() < kStreams) streams_.back().push_back(lag::new_stream(device));
    }
  }

  std::string run() {
    for (int step = 0; step < kSteps; step++) do_step();
    return compare();
  }

 private:
  // Whether to make the mistake now: at one in eight occasions.
  bool makes(Mistake mistake) { return mistake_ == mistake && below(8) == 0; }
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  at::Tensor numbers() {
    return at::rand({kSide, kSide}, at::make_generator<at::CPUGeneratorImpl>(random_())) - 0.5;
  }
  c10::Stream stream_of(const at::Tensor& tensor) {
    return streams_[static_cast<size_t>(tensor.device().index())][below(kStreams)];
  }
  Variable& any() { return variables_[below(variables_.size())]; }
  // A variable on the same device as `other`, which it may be.
  Variable beside(const Variable& other) {
    for (int attempt = 0; attempt < 5; attempt++) {
      Variable found = any();
      if (found.lag.device() == other.lag.device()) return found;
    }
    return other;
  }

  static EventPointer record(const c10::Stream& stream) {
    auto event = std::make_shared<c10::Event>(c10::DeviceType::PrivateUse1);
    event->record(stream);
    return event;
  }

  // Makes the stream wait until the variable is written.
  void wait_for(const Variable& variable, const c10::Stream& stream) {
    if (variable.memory->writer == stream) return;
    if (!makes(Mistake::kNoWait)) stream.wait(*variable.memory->written);
    if (!makes(Mistake::kNoRecordStream)) variable.lag.record_stream(stream);
  }

  // One kernel on the stream of its device: its CPU form has been done. `read` and `written` are used by it.
  template <class Kernel>
  auto on_stream(const c10::Stream& stream, const std::vector<Variable>& read,
                 const std::vector<Variable>& written, const Kernel& kernel) {
    for (const Variable& variable : read) wait_for(variable, stream);
    for (const Variable& variable : written) {
      wait_for(variable, stream);
      for (const EventPointer& event : variable.memory->reads) stream.wait(*event);
      variable.memory->reads.clear();
    }
    const EventPointer early = record(stream);
    const c10::StreamGuard guard(stream);
    auto result = kernel();
    const EventPointer done = makes(Mistake::kEarlyEvent) ? early : record(stream);
    for (const Variable& variable : read) variable.memory->reads.push_back(done);
    for (const Variable& variable : written) {
      variable.memory->written = done;
      variable.memory->writer = stream;
    }
    return std::make_pair(result, done);
  }

  // Adds a variable that a kernel makes.
  template <class Kernel>
  void add(const at::Tensor& cpu, const c10::Stream& stream, const std::vector<Variable>& read,
           const Kernel& kernel) {
    auto [tensor, done] = on_stream(stream, read, {}, kernel);
    variables_.push_back({cpu, tensor, std::make_shared<Memory>(Memory{stream, done, {}})});
  }

  void do_step() {
    const size_t kind = variables_.size() < 3 ? below(2) : below(16);
    if (kind < 2) {
      upload(kind == 0);
    } else if (kind < 6) {
      compute();
    } else if (kind < 9) {
      write_in_place();
    } else if (kind < 10) {
      const Variable base = any();
      variables_.push_back({base.cpu.t(), base.lag.t(), base.memory});
    } else if (kind < 12) {
      move();
    } else if (kind < 13) {
      download();
    } else {
      const size_t freed = below(variables_.size());
      variables_.erase(variables_.begin() + static_cast<std::ptrdiff_t>(freed));
    }
  }

  void upload(bool pinned) {
    const at::Tensor value = numbers();
    const size_t device = below(streams_.size());
    const c10::Stream stream = streams_[device][below(kStreams)];
    at::Tensor host = value;
    if (pinned) {
      host = at::empty({kSide, kSide}, at::TensorOptions().pinned_memory(true));
      host.copy_(value);
    }
    add(value.clone(), stream, {},
        [&] { return host.to(lag::device(static_cast<int>(device)), at::kFloat, /*non_blocking=*/true); });
    // Pageable memory may be overwritten at once. Pinned memory is freed here, while the device may still
    // read.
    if (!pinned) host.zero_();
  }

  void compute() {
    const Variable a = any();
    const Variable b = beside(a);
    using Function = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
    static constexpr Function kFunctions[] = {
        [](const at::Tensor& x, const at::Tensor& y) { return x.add(y, 0.5).tanh(); },
        [](const at::Tensor& x, const at::Tensor& y) { return x.mul(y).sub(0.25); },
        [](const at::Tensor& x, const at::Tensor& y) { return x.mm(y).sin(); },
        [](const at::Tensor& x, const at::Tensor& y) { return at::softmax(x, 1).add(y.relu()); },
        [](const at::Tensor& x, const at::Tensor& y) { return at::where(x > y, x, y.neg()); },
        [](const at::Tensor& x, const at::Tensor& y) {
          return at::cat({x, y}).slice(0, 4, 12).sigmoid();
        },
        [](const at::Tensor& x, const at::Tensor& y) { return x.sum(0, true).sub(y).cos(); },
    };
    const Function function = kFunctions[below(std::size(kFunctions))];
    add(function(a.cpu, b.cpu), stream_of(a.lag), {a, b}, [&] { return function(a.lag, b.lag); });
  }

  void write_in_place() {
    const Variable a = any();
    const Variable b = beside(a);
    using Function = void (*)(const at::Tensor&, const at::Tensor&);
    static constexpr Function kFunctions[] = {
        [](const at::Tensor& x, const at::Tensor&) { x.mul_(0.5).add_(0.125); },
        [](const at::Tensor& x, const at::Tensor& y) { x.copy_(y.clone()); },
        [](const at::Tensor& x, const at::Tensor& y) { x.select(0, 2).add_(y.select(0, 3)).sin_(); },
        [](const at::Tensor& x, const at::Tensor&) { x.slice(1, 2, 5).zero_(); },
    };
    const Function function = kFunctions[below(std::size(kFunctions))];
    function(a.cpu, b.cpu);
    on_stream(stream_of(a.lag), {b}, {a}, [&] {
      function(a.lag, b.lag);
      return 0;
    });
  }

  // Copies a variable to another device. The kernel runs on a stream of the source, and the copy orders a
  // stream of the destination after it.
  void move() {
    const Variable from = any();
    const c10::Stream source = stream_of(from.lag);
    const size_t device = (static_cast<size_t>(from.lag.device().index()) + 1) % streams_.size();
    const c10::Stream destination = streams_[device][below(kStreams)];
    const c10::StreamGuard guard(destination);
    const EventPointer early = record(destination);
    const at::Tensor moved =
        on_stream(source, {from}, {}, [&] {
          return from.lag.to(lag::device(static_cast<int>(device)), at::kFloat, /*non_blocking=*/true);
        }).first;
    const EventPointer done = makes(Mistake::kEarlyEvent) ? early : record(destination);
    variables_.push_back({from.cpu.clone(), moved, std::make_shared<Memory>(Memory{destination, done, {}})});
  }

  void download() {
    const Variable from = any();
    auto [pinned, done] = on_stream(stream_of(from.lag), {from}, {}, [&] {
      const at::Tensor to = at::empty({kSide, kSide}, at::TensorOptions().pinned_memory(true));
      to.copy_(from.lag, /*non_blocking=*/true);
      return to;
    });
    downloads_.push_back({from.cpu.clone(), pinned, done});
  }

  std::string compare() {
    std::ostringstream wrong;
    for (size_t i = 0; i < variables_.size(); i++) {
      const Variable& variable = variables_[i];
      const c10::StreamGuard guard(variable.memory->writer);
      const at::Tensor got = variable.lag.cpu();
      if (!same(got, variable.cpu)) {
        wrong << "variable " << i << " of " << variable.lag.device() << ": got\n"
              << got << "\nexpected\n"
              << variable.cpu << "\n";
      }
    }
    for (size_t i = 0; i < downloads_.size(); i++) {
      downloads_[i].written->synchronize();
      if (!same(downloads_[i].pinned, downloads_[i].cpu)) {
        wrong << "download " << i << ": got\n"
              << downloads_[i].pinned << "\nexpected\n"
              << downloads_[i].cpu << "\n";
      }
    }
    return wrong.str();
  }

  std::mt19937_64 random_;
  const Mistake mistake_;
  // By device.
  std::vector<std::vector<c10::Stream>> streams_;
  std::vector<Variable> variables_;
  std::vector<Download> downloads_;
};

}  // namespace

std::string run_random_program(uint64_t seed, Mistake mistake) { return Program(seed, mistake).run(); }

}  // namespace gradwire
