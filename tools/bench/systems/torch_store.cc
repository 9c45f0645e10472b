#include <stdexcept>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/stores.h"

namespace gradwire::bench {
namespace {

class TorchStore final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    return absl::StrCat(store_->getPort());
  }

  void join(const Endpoint& endpoint) override {
    if (store_) return;
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(std::stoi(endpoint.addresses.at(0)));
    options.waitWorkers = false;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  Measurement run(const Task& task) override {
    if (task.case_name != "set_get") throw std::invalid_argument("unknown case " + task.case_name);
    std::vector<uint8_t> value;
    std::vector<uint8_t> got;
    return measure(
        {.seconds = task.seconds},
        [&](int64_t i) {
          const std::string text = absl::StrCat("value ", i);
          value.assign(text.begin(), text.end());
        },
        [&](int64_t) {
          store_->set("key", value);
          got = store_->get("key");
        },
        [&](int64_t) {
          if (got != value) throw std::runtime_error("the store returned another value");
        });
  }

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_torch_store() { return std::make_unique<TorchStore>(); }

}  // namespace gradwire::bench
