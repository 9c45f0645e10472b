#include "gradwire/tests/chaos/store_host.h"

#include <signal.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace chaos {

StoreHost::StoreHost(std::string program, std::string output_path)
    : program_(std::move(program)), output_path_(std::move(output_path)) {
  start();
}

void StoreHost::start() {
  process_ =
      std::make_unique<WorkerProcess>(std::vector<std::string>{program_, absl::StrCat(port())}, output_path_);
}

void StoreHost::kill() { process_ = nullptr; }

void StoreHost::pause() { process_->signal(SIGSTOP); }

void StoreHost::resume() { process_->signal(SIGCONT); }

}  // namespace chaos
