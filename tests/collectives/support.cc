#include "gradwire/tests/collectives/support.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradwire::collectives {
namespace {

bool is_multigpu(Operation operation) { return operation >= Operation::kBroadcastMultigpu; }

bool has_tensors(Operation operation) {
  return operation != Operation::kBarrier && operation != Operation::kMonitoredBarrier &&
         (operation < Operation::kBroadcastObject || operation > Operation::kScatterObject);
}

std::string text_of(Support support) {
  switch (support) {
    case Support::kNo:
      return "–";
    case Support::kYes:
      return "yes";
    case Support::kStaged:
      return "staged";
    case Support::kIfAware:
      return "aware";
  }
  return "?";
}

std::string row(const std::vector<std::string>& cells) {
  return absl::StrCat("| ", absl::StrJoin(cells, " | "), " |\n");
}

std::string rule(std::size_t columns) {
  std::string line = "|";
  for (std::size_t i = 0; i < columns; ++i) line += "---|";
  return line + "\n";
}

std::string operations_table() {
  std::vector<std::string> header = {"operation"};
  for (const Backend backend : kBackends) {
    for (const TensorDevice device : kTensorDevices) {
      header.push_back(
          absl::StrCat(to_string(backend), ", ", device == TensorDevice::kCpu ? "cpu" : "cuda", " tensors"));
    }
  }
  std::string text = row(header) + rule(header.size());
  const auto add = [&](const std::string& name, const auto& support) {
    std::vector<std::string> cells = {name};
    for (const Backend backend : kBackends) {
      for (const TensorDevice device : kTensorDevices) cells.push_back(text_of(support(backend, device)));
    }
    text += row(cells);
  };
  const auto add_message = [&](const std::string& name, bool (*can)(Backend)) {
    add(name, [can](Backend backend, TensorDevice device) {
      return can(backend) ? support_of(backend, device, Operation::kReceive) : Support::kNo;
    });
  };
  for (const Operation operation : kOperations) {
    add(absl::StrCat("`", name_of(operation), "`"),
        [operation](Backend backend, TensorDevice device) { return support_of(backend, device, operation); });
    if (operation != Operation::kReceive) continue;
    add_message("`recv` from any rank", &receives_from_any);
    add_message("`send` to the same rank", &sends_to_itself);
  }
  return text;
}

std::string reductions_table() {
  const std::vector<std::string> header = {"reduction",       "integers",    "bool", "floating point numbers",
                                           "complex numbers", "other dtypes"};
  std::string text = row(header) + rule(header.size());
  const auto add = [&text](const std::string& name, const Reduction& op) {
    std::vector<std::string> cells = {absl::StrCat("`", name, "`")};
    for (const DtypeClass dtype : kDtypeClasses) {
      std::vector<std::string> backends;
      for (const Backend backend : kBackends) {
        if (reduces(backend, op, dtype)) backends.push_back(to_string(backend));
      }
      cells.push_back(backends.empty() ? text_of(Support::kNo) : absl::StrJoin(backends, ", "));
    }
    text += row(cells);
  };
  for (const ReduceOp op : kReduceOps) add(to_string(op), op);
  add("premul_sum", premul_sum(2));
  return text;
}

}  // namespace

Support support_of(Backend backend, TensorDevice device, Operation operation) {
  if (is_multigpu(operation)) {
    return backend == Backend::kNccl && device == TensorDevice::kCuda ? Support::kYes : Support::kNo;
  }
  if (!has_tensors(operation)) return Support::kYes;
  switch (backend) {
    case Backend::kCpu:
      return device == TensorDevice::kCpu ? Support::kYes : Support::kStaged;
    case Backend::kMpi:
      return device == TensorDevice::kCpu ? Support::kYes : Support::kIfAware;
    case Backend::kNccl:
      return device == TensorDevice::kCpu ? Support::kNo : Support::kYes;
  }
  return Support::kNo;
}

bool receives_from_any(Backend backend) { return backend != Backend::kNccl; }
bool sends_to_itself(Backend backend) { return backend != Backend::kNccl; }

// The three backends support the same reductions.
bool reduces(Backend, const Reduction& op, DtypeClass dtype) {
  if (dtype == DtypeClass::kOther) return false;
  const bool whole = dtype == DtypeClass::kInteger || dtype == DtypeClass::kBool;
  if (op.multiplies) return op.op == ReduceOp::kSum && !whole;
  switch (op.op) {
    case ReduceOp::kSum:
      return true;
    case ReduceOp::kAvg:
      return !whole;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return dtype != DtypeClass::kComplex;
    case ReduceOp::kBand:
    case ReduceOp::kBor:
    case ReduceOp::kBxor:
      return whole;
  }
  return false;
}

std::string support_tables() {
  return absl::StrCat(operations_table(),
                      "\n*staged*: supported in a CUDA build, through pinned memory. *aware*: supported if "
                      "Open MPI reports that it\n"
                      "supports CUDA. –: refused with InvalidArgument before anything is sent. All "
                      "operations except reductions support\n"
                      "all dtypes. These backends support reductions:\n\n",
                      reductions_table());
}

}  // namespace gradwire::collectives
