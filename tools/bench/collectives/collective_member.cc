#include "gradwire/tools/bench/collectives/collective_member.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace gradwire::bench {
namespace {

constexpr int64_t kMaxSamples = 4'000'000;

}  // namespace

std::string CollectiveMember::listen(const Endpoint& endpoint) {
  // One thread, as in the other suites.
  at::set_num_threads(1);
  if (endpoint.rank != 0) return "";
  page_ = CollectivePage::make();
  return absl::StrCat(host_store(), " ", page_.path());
}

void CollectiveMember::join(const Endpoint& endpoint) {
  endpoint_ = endpoint;
  const std::pair<std::string, std::string> first =
      absl::StrSplit(endpoint.addresses.at(0), absl::MaxSplits(' ', 1));
  int port = 0;
  (void)absl::SimpleAtoi(first.first, &port);
  if (endpoint.rank != 0) page_ = CollectivePage::open(first.second);
  join_group(endpoint, port);
}

Measurement CollectiveMember::run(const Task& task) {
  collective_work work = {};
  if (collective_parse(task.case_name.c_str(), &work) == 0 || work.ranks != endpoint_.size) {
    throw std::invalid_argument(
        absl::StrCat("unknown case for ", endpoint_.size, " ranks: ", task.case_name));
  }
  work.rank = endpoint_.rank;
  CollectiveTensors tensors;
  tensors.part = at::zeros({work.floats});
  work.part = tensors.part.data_ptr<float>();
  if (collective_uses_whole(work.operation) != 0) {
    tensors.whole = at::zeros({work.ranks * work.floats});
    work.whole = tensors.whole.data_ptr<float>();
    tensors.list = tensors.whole.view({work.ranks, work.floats}).unbind(0);
  }
  if (collective_uses_result(work.operation) != 0) {
    tensors.result = at::zeros({work.ranks * work.floats});
    work.result = tensors.result.data_ptr<float>();
    tensors.received = tensors.result.narrow(0, 0, work.floats);
  }
  Measurement measured;
  if (work.rank == 0) measured.micros.resize(kMaxSamples);
  collective_samples samples = {
      .micros = measured.micros.data(), .capacity = kMaxSamples, .count = 0, .calls = 0};
  struct Context {
    CollectiveMember* member;
    const collective_work* work;
    CollectiveTensors* tensors;
  } context{this, &work, &tensors};
  const int correct = collective_run(
      &work, page_.sync(), task.seconds,
      [](void* given) {
        const auto* self = static_cast<Context*>(given);
        self->member->call(*self->work, *self->tensors);
      },
      &context, &samples);
  if (correct == 0) throw std::runtime_error(absl::StrCat("wrong result on rank ", work.rank));
  measured.micros.resize(static_cast<std::size_t>(samples.count));
  measured.calls = samples.calls;
  measured.timed_calls = samples.count;
  return measured;
}

}  // namespace gradwire::bench
