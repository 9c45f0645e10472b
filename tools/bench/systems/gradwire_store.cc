#include <stdexcept>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gradwire/store/tcp_store.h"
#include "gradwire/tools/bench/run/measure.h"
#include "gradwire/tools/bench/systems/stores.h"

namespace gradwire::bench {
namespace {

class GradwireStore final : public BenchProcess {
 public:
  std::string listen(const Endpoint& endpoint) override {
    if (endpoint.rank != 0) return "";
    store_ = std::make_shared<store::TcpStore>("127.0.0.1", 0, store::TcpStoreOptions{.is_master = true});
    return absl::StrCat(store_->port());
  }

  void join(const Endpoint& endpoint) override {
    if (store_ != nullptr) return;
    int port = 0;
    (void)absl::SimpleAtoi(endpoint.addresses.at(0), &port);
    store_ = std::make_shared<store::TcpStore>("127.0.0.1", port);
  }

  Measurement run(const Task& task) override {
    if (task.case_name != "set_get") throw std::invalid_argument("unknown case " + task.case_name);
    std::string value;
    std::string got;
    return measure(
        {.seconds = task.seconds}, [&](int64_t i) { value = absl::StrCat("value ", i); },
        [&](int64_t) {
          store_->set("key", value);
          got = store_->get("key");
        },
        [&](int64_t) {
          if (got != value) throw std::runtime_error("the store returned another value");
        });
  }

 private:
  std::shared_ptr<store::TcpStore> store_;
};

}  // namespace

std::unique_ptr<BenchProcess> make_gradwire_store() { return std::make_unique<GradwireStore>(); }

}  // namespace gradwire::bench
