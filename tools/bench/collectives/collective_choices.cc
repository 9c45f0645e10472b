// Measures the alternatives between which a reduction chooses by size, and reductions of half and bfloat16
// beside the Gloo of libtorch. The ranks are threads of this process. All columns of a line are measured in
// turn, many times, so that another program on the machine disturbs all of them. The numbers are the smallest
// and, in parentheses, the median duration of a call in microseconds. The ratio x is the first column's time
// divided by this column's.
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gradwire/collectives/coalescing.h"
#include "gradwire/collectives/process_group.h"
#include "gradwire/store/hash_store.h"

namespace gradwire::bench {
namespace {

using collectives::ProcessGroup;
using collectives::ReduceOp;
using Group = std::shared_ptr<ProcessGroup>;
using Gloo = c10d::ProcessGroupGloo;
using Tensors = std::vector<at::Tensor>;

// One rank's groups.
struct Rank {
  Group group;
  c10::intrusive_ptr<Gloo> gloo;
  int rank = 0;
  int size = 0;
};

struct Column {
  std::string name;
  // Makes the call of one rank.
  std::function<void()> call;
};

struct Cost {
  double least = 0;
  double median = 0;
};

// Runs body(rank) on one thread for each rank.
void in_world(int size, const std::function<void(const Rank&)>& body) {
  const auto store = std::make_shared<store::HashStore>();
  const auto gloo_store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Rank own{
          .group = ProcessGroup::create({.backend = "cpu", .world_size = size, .rank = rank, .store = store}),
          .gloo = nullptr,
          .rank = rank,
          .size = size};
      const auto options = Gloo::Options::create(std::chrono::seconds(60));
      options->devices.push_back(Gloo::createDeviceForHostname("127.0.0.1"));
      own.gloo = c10::make_intrusive<Gloo>(gloo_store, rank, size, options);
      body(own);
      own.group->barrier();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The costs of the columns, in their order.
std::vector<Cost> measure(const Rank& rank, const std::vector<Column>& columns, int calls) {
  constexpr int kAttempts = 40;
  std::vector<std::vector<double>> micros(columns.size());
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    for (std::size_t i = 0; i < columns.size(); ++i) {
      columns[i].call();
      rank.group->barrier();
      const auto begin = std::chrono::steady_clock::now();
      for (int call = 0; call < calls; ++call) columns[i].call();
      const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - begin;
      micros[i].push_back(passed.count() / calls);
    }
  }
  std::vector<Cost> costs;
  for (std::vector<double>& each : micros) {
    std::sort(each.begin(), each.end());
    costs.push_back({each.front(), each[each.size() / 2]});
  }
  return costs;
}

// Prints the costs, and the ratios of the first column's to those of the others.
void print(const Rank& rank, const std::string& line, const std::vector<Column>& columns, int calls) {
  const std::vector<Cost> costs = measure(rank, columns, calls);
  if (rank.rank != 0) return;
  std::string text = absl::StrFormat("%-36s", line);
  for (std::size_t i = 0; i < columns.size(); ++i) {
    absl::StrAppendFormat(&text, " %s %.1f (%.1f)", columns[i].name, costs[i].least, costs[i].median);
    if (i > 0) absl::StrAppendFormat(&text, " x%.2f", costs[0].least / costs[i].least);
    text += i + 1 < columns.size() ? "," : "";
  }
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

std::string size_name(int64_t bytes) {
  return bytes >= (1 << 20) ? absl::StrCat(bytes >> 20, " MiB") : absl::StrCat(bytes >> 10, " KiB");
}

int calls_for(int64_t bytes) { return static_cast<int>(std::clamp<int64_t>((4 << 20) / bytes, 2, 200)); }

// all_reduce of half and bfloat16: as this library does it, converted to float by the caller, in two steps
// (a reduce-scatter and an all-gather of the narrow elements), and by Gloo.
void measure_narrow(const Rank& rank, at::ScalarType dtype, ReduceOp op) {
  for (const int64_t bytes :
       {int64_t{4} << 10, int64_t{16} << 10, int64_t{32} << 10, int64_t{64} << 10, int64_t{128} << 10,
        int64_t{256} << 10, int64_t{512} << 10, int64_t{1} << 20, int64_t{4} << 20}) {
    const at::Tensor tensor = at::zeros({bytes / 2}, dtype);
    const at::Tensor part = at::empty({tensor.numel() / rank.size}, dtype);
    const auto gloo = [&] {
      c10d::AllreduceOptions options;
      options.reduceOp = op == ReduceOp::kAvg ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
      Tensors list = {tensor};
      rank.gloo->allreduce(list, options)->wait();
    };
    const auto as_float = [&] {
      const at::Tensor wide = tensor.to(at::kFloat);
      rank.group->all_reduce(wide, op);
      at::Tensor(tensor).copy_(wide);
    };
    const auto in_parts = [&] {
      rank.group->reduce_scatter_tensor(part, tensor, op);
      rank.group->all_gather_into_tensor(tensor, part);
    };
    print(rank,
          absl::StrCat(op == ReduceOp::kAvg ? "avg " : "sum ", c10::toString(dtype), ", ", rank.size,
                       " ranks, ", size_name(bytes)),
          {{"all_reduce", [&] { rank.group->all_reduce(tensor, op); }},
           {"gloo", gloo},
           {"as float", as_float},
           {"in parts", in_parts}},
          calls_for(bytes));
  }
}

// Some all_reduces of one size: as one coalesced call, in one buffer that the caller fills, and one after the
// other.
void measure_coalesced(const Rank& rank, int count) {
  for (const int64_t bytes :
       {int64_t{256}, int64_t{1} << 10, int64_t{4} << 10, int64_t{8} << 10, int64_t{16} << 10,
        int64_t{32} << 10, int64_t{64} << 10, int64_t{128} << 10, int64_t{256} << 10}) {
    Tensors tensors;
    for (int i = 0; i < count; ++i) tensors.push_back(at::zeros({bytes / 4}));
    const at::Tensor flat = at::zeros({count * bytes / 4});
    char* const all = static_cast<char*>(flat.data_ptr());
    const auto in_one = [&] {
      for (int i = 0; i < count; ++i) std::memcpy(all + i * bytes, tensors[i].data_ptr(), bytes);
      rank.group->all_reduce(flat);
      for (int i = 0; i < count; ++i) std::memcpy(tensors[i].data_ptr(), all + i * bytes, bytes);
    };
    print(rank,
          absl::StrCat(count, " tensors, ", rank.size, " ranks, ",
                       bytes < 1024 ? absl::StrCat(bytes, " B") : size_name(bytes)),
          {{"coalesced", [&] { all_reduce_coalesced(tensors, ReduceOp::kSum, rank.group); }},
           {"one buffer", in_one},
           {"one by one",
            [&] {
              for (const at::Tensor& tensor : tensors) rank.group->all_reduce(tensor);
            }}},
          calls_for(count * bytes));
  }
}

void run() {
  at::set_num_threads(1);
  for (const int size : {2, 4}) {
    in_world(size, [](const Rank& rank) {
      for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
        measure_narrow(rank, dtype, rank.size == 2 ? ReduceOp::kAvg : ReduceOp::kSum);
      }
      for (const int count : {4, 16}) measure_coalesced(rank, count);
    });
  }
}

}  // namespace
}  // namespace gradwire::bench

int main() { gradwire::bench::run(); }
