#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "gradwire/tests/autograd/draft.h"

namespace programs {
namespace {

constexpr std::size_t kMaxLeaves = 8;
constexpr int64_t kMaxElements = 64;

// Returns the shape that two shapes broadcast to, or nullopt if they do not broadcast.
std::optional<std::vector<int64_t>> broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> out(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace

int Generator::add_value(Draft& d, Type type, double bound, int group, bool writable) {
  if (group < 0) {
    group = static_cast<int>(d.groups.size());
    d.groups.push_back({.bound = bound});
  }
  d.block.values.push_back(std::move(type));
  d.infos.push_back({.group = group, .writable = writable});
  return static_cast<int>(d.infos.size()) - 1;
}

int Generator::pick(Draft& d, const std::function<bool(const Type&, int)>& fits) {
  std::vector<int> list;
  for (int i = 0; i < static_cast<int>(d.infos.size()); ++i) {
    if (d.infos[i].available && !d.type(i).undefined && fits(d.type(i), i)) {
      list.push_back(i);
    }
  }
  if (list.empty()) return -1;
  return list[std::max(random_.below(list.size()), random_.below(list.size()))];
}

int Generator::pick_float(Draft& d) {
  return pick(d, [](const Type& type, int) { return type.dtype != Dtype::kInt64; });
}

int Generator::pick_like(Draft& d, int other, const std::function<bool(const Type&)>& fits) {
  return pick(d, [&](const Type& type, int) { return type.dtype == d.type(other).dtype && fits(type); });
}

Operation& Generator::emit(Draft& d, Operation operation) {
  for (int input : operation.inputs) {
    if (input != kNothing) use(d, input);
  }
  d.block.operations.push_back(std::move(operation));
  return d.block.operations.back();
}

int Generator::compute(Draft& d, Kind kind, std::vector<int> inputs, std::vector<int64_t> numbers, Type type,
                       double bound) {
  type.requires_grad = false;
  for (int input : inputs) type.requires_grad |= d.type(input).requires_grad;
  if (type.dtype == Dtype::kInt64) type.requires_grad = false;
  const int out = add_value(d, std::move(type), bound);
  emit(d, {.kind = kind, .inputs = std::move(inputs), .outputs = {out}, .numbers = std::move(numbers)});
  return out;
}

int Generator::view(Draft& d, Kind kind, int of, std::vector<int64_t> numbers, std::vector<int64_t> shape,
                    bool writable) {
  Type type = d.type(of);
  type.shape = std::move(shape);
  const int out = add_value(d, std::move(type), 0, d.infos[of].group, writable && d.infos[of].writable);
  emit(d, {.kind = kind, .inputs = {of}, .outputs = {out}, .numbers = std::move(numbers)});
  return out;
}

std::vector<int64_t> Generator::some_shape() {
  static const std::vector<std::vector<int64_t>> kShapes = {{},     {2},    {3},    {2, 3},    {3, 2},
                                                            {2, 2}, {3, 3}, {2, 3}, {2, 1, 3}, {3, 2}};
  if (plain()) return {3};
  return random_.of(kShapes);
}

bool Generator::leaf(Draft& d) {
  std::vector<int> local;
  for (int i = 0; i < static_cast<int>(program_.leaves.size()); ++i) {
    if (program_.leaves[i].agent == d.block.agent) local.push_back(i);
  }
  int which;
  if (local.empty() || (program_.leaves.size() < kMaxLeaves && random_.percent(50))) {
    if (program_.leaves.size() >= 2 * kMaxLeaves) return false;
    Leaf leaf;
    leaf.agent = d.block.agent;
    leaf.seed = random_.next() | 1;
    leaf.type.shape = some_shape();
    if (!exact()) {
      leaf.type.dtype = Dtype::kFloat32;
    } else if (float32_ && random_.percent(40)) {
      leaf.type.dtype = Dtype::kFloat32;
    } else if (random_.percent(8)) {
      leaf.type.dtype = Dtype::kInt64;
    }
    leaf.type.requires_grad = leaf.type.dtype != Dtype::kInt64 && random_.percent(80);
    leaf.hook = leaf.type.requires_grad && random_.percent(10);
    which = static_cast<int>(program_.leaves.size());
    program_.leaves.push_back(std::move(leaf));
  } else {
    which = random_.of(local);
  }
  const int out = add_value(d, program_.leaves[which].type, exact() ? 3 : 1, -1, /*writable=*/false);
  d.group(out).frozen = true;
  d.infos[out].plain = program_.leaves[which].type.requires_grad;
  emit(d, {.kind = Kind::kLeaf, .outputs = {out}, .numbers = {which}});
  return true;
}

bool Generator::leaf_pair(Draft& d) {
  if (program_.leaves.size() + 2 > kMaxLeaves) return false;
  const Dtype dtype = exact() ? Dtype::kFloat64 : Dtype::kFloat32;
  const Type type{.dtype = dtype, .shape = {2, 3}, .requires_grad = true};
  std::vector<int> pair;
  for (int i = 0; i < 2; ++i) {
    pair.push_back(add_value(d, type, exact() ? 3 : 1, -1, /*writable=*/false));
    d.group(pair.back()).frozen = true;
    emit(d, {.kind = Kind::kLeaf,
             .outputs = {pair.back()},
             .numbers = {static_cast<int64_t>(program_.leaves.size())}});
    program_.leaves.push_back({.agent = d.block.agent, .type = type, .seed = random_.next() | 1});
  }
  compute(d, Kind::kAdd, pair, {}, type, 6);
  return true;
}

bool Generator::binary(Draft& d, Kind kind) {
  const int a = pick_float(d);
  if (a < 0) return false;
  const int b = pick_like(d, a, [&](const Type& type) {
    if (plain()) return type.shape == d.type(a).shape;
    auto shape = broadcast(d.type(a).shape, type.shape);
    return shape.has_value() && elements({.shape = *shape}) <= kMaxElements;
  });
  if (b < 0) return false;
  double bound = d.group(a).bound + d.group(b).bound;
  if (kind == Kind::kMul) {
    bound = d.group(a).bound * d.group(b).bound;
    if (bound > limit_) return false;
    d.group(a).saved = d.group(b).saved = true;
  }
  Type type = d.type(a);
  type.shape = *broadcast(type.shape, d.type(b).shape);
  compute(d, kind, {a, b}, {}, std::move(type), bound);
  return true;
}

bool Generator::unary(Draft& d, Kind kind) {
  const int a = pick_float(d);
  if (a < 0) return false;
  double bound = d.group(a).bound;
  std::vector<int64_t> numbers;
  if (kind == Kind::kScale) {
    const int64_t by = exact() ? random_.of<int64_t>({-2, -1, 2, 3}) : random_.between(4, 24);
    numbers = {by};
    bound *= std::abs(static_cast<double>(by)) / (exact() ? 1 : 16);
  }
  if (kind == Kind::kSquare) bound *= bound;
  if (kind == Kind::kSin || kind == Kind::kTanh) bound = 1;
  if (bound > limit_) return false;
  const int out = compute(d, kind, {a}, std::move(numbers), d.type(a), bound);
  if (kind == Kind::kSquare || kind == Kind::kSin) d.group(a).saved = true;
  if (kind == Kind::kRelu || kind == Kind::kTanh) d.group(out).saved = true;
  return true;
}

bool Generator::matmul(Draft& d) {
  const int a =
      pick(d, [](const Type& type, int) { return type.dtype != Dtype::kInt64 && type.shape.size() == 2; });
  if (a < 0) return false;
  const int b = pick_like(
      d, a, [&](const Type& type) { return type.shape.size() == 2 && type.shape[0] == d.type(a).shape[1]; });
  if (b < 0) return false;
  const double bound = d.group(a).bound * d.group(b).bound * static_cast<double>(d.type(a).shape[1]);
  if (bound > limit_) return false;
  d.group(a).saved = d.group(b).saved = true;
  Type type = d.type(a);
  type.shape = {d.type(a).shape[0], d.type(b).shape[1]};
  compute(d, Kind::kMatmul, {a, b}, {}, std::move(type), bound);
  return true;
}

bool Generator::sum(Draft& d, bool one_dimension) {
  const int a = pick(d, [&](const Type& type, int) {
    return type.dtype != Dtype::kInt64 && type.shape.size() >= (one_dimension ? 1u : 0u);
  });
  if (a < 0) return false;
  Type type = d.type(a);
  std::vector<int64_t> numbers;
  double factor = static_cast<double>(elements(type));
  if (one_dimension) {
    const int64_t dim = random_.below(type.shape.size());
    factor = static_cast<double>(type.shape[dim]);
    type.shape.erase(type.shape.begin() + dim);
    numbers = {dim};
  } else {
    type.shape.clear();
  }
  compute(d, one_dimension ? Kind::kSumDim : Kind::kSum, {a}, std::move(numbers), std::move(type),
          d.group(a).bound * factor);
  return true;
}

bool Generator::cast(Draft& d) {
  const int a = pick(d, [&](const Type& type, int) { return type.dtype == Dtype::kInt64 || float32_; });
  if (a < 0) return false;
  Type type = d.type(a);
  type.dtype = type.dtype == Dtype::kFloat64 ? Dtype::kFloat32 : Dtype::kFloat64;
  const int64_t number = static_cast<int64_t>(type.dtype);
  compute(d, Kind::kCast, {a}, {number}, std::move(type), d.group(a).bound);
  return true;
}

bool Generator::view(Draft& d) {
  const int a = pick_float(d);
  if (a < 0) return false;
  std::vector<int64_t> shape = d.type(a).shape;
  const int64_t dims = static_cast<int64_t>(shape.size());
  const int64_t dim = dims > 0 ? static_cast<int64_t>(random_.below(dims)) : 0;
  switch (random_.below(9)) {
    case 0:
      if (dims < 2) return false;
      std::swap(shape[0], shape[1]);
      view(d, Kind::kTranspose, a, {0, 1}, shape);
      return true;
    case 1: {
      if (dims < 1) return false;
      const int64_t index = static_cast<int64_t>(random_.below(shape[dim]));
      shape.erase(shape.begin() + dim);
      view(d, Kind::kSelect, a, {dim, index}, shape);
      return true;
    }
    case 2: {
      if (dims < 1 || shape[dim] < 2) return false;
      const int64_t start = random_.between(0, shape[dim] - 2);
      const int64_t length = random_.between(1, shape[dim] - 1 - start + (start > 0));
      shape[dim] = length;
      view(d, Kind::kNarrow, a, {dim, start, length}, shape);
      return true;
    }
    case 3:
      if (dims > 2) return false;
      shape.insert(shape.begin() + dim, 1);
      view(d, Kind::kUnsqueeze, a, {dim}, shape);
      return true;
    case 4: {
      if (dims > 2) return false;
      shape.insert(shape.begin(), 2);
      view(d, Kind::kExpand, a, shape, shape, /*writable=*/false);
      return true;
    }
    case 5:
    case 6: {
      if (dims < 1 || shape[dim] < 2) return false;
      d.group(a).frozen = true;
      const bool unbind = random_.percent(50);
      std::vector<std::vector<int64_t>> parts;
      for (int64_t i = 0; i < shape[dim]; i += unbind ? 1 : 2) {
        std::vector<int64_t> part = shape;
        if (unbind) {
          part.erase(part.begin() + dim);
        } else {
          part[dim] = std::min<int64_t>(2, shape[dim] - i);
        }
        parts.push_back(std::move(part));
      }
      Operation operation{.kind = unbind ? Kind::kUnbind : Kind::kSplit, .inputs = {a}, .numbers = {dim}};
      for (std::vector<int64_t>& part : parts) {
        Type type = d.type(a);
        type.shape = std::move(part);
        operation.outputs.push_back(add_value(d, std::move(type), 0, d.infos[a].group, false));
      }
      emit(d, std::move(operation));
      return true;
    }
    case 7:
      // The result is a view or a copy, depending on the strides of the input.
      d.group(a).frozen = true;
      view(d, Kind::kReshape, a, {}, {elements(d.type(a))}, /*writable=*/false);
      return true;
    default: {
      if (tidy_ || !random_.percent(40)) return false;
      d.group(a).frozen = true;
      const int out = view(d, Kind::kDetach, a, {}, shape, /*writable=*/false);
      d.block.values[out].requires_grad = false;
      return true;
    }
  }
}

bool Generator::join(Draft& d) {
  const int a = pick_float(d);
  if (a < 0 || elements(d.type(a)) > kMaxElements / 3) return false;
  const int b = pick_like(d, a, [&](const Type& type) { return type.shape == d.type(a).shape; });
  if (b < 0) return false;
  Type type = d.type(a);
  const bool stack = type.shape.empty() || (type.shape.size() < 3 && random_.percent(50));
  const int64_t dim = type.shape.empty() ? 0 : static_cast<int64_t>(random_.below(type.shape.size()));
  if (stack) {
    type.shape.insert(type.shape.begin() + dim, 2);
  } else {
    type.shape[dim] *= 2;
  }
  compute(d, stack ? Kind::kStack : Kind::kCat, {a, b}, {dim}, std::move(type),
          std::max(d.group(a).bound, d.group(b).bound));
  return true;
}

bool Generator::index_select(Draft& d) {
  const int a =
      pick(d, [](const Type& type, int) { return type.dtype != Dtype::kInt64 && !type.shape.empty(); });
  if (a < 0) return false;
  Type type = d.type(a);
  const int64_t dim = static_cast<int64_t>(random_.below(type.shape.size()));
  std::vector<int64_t> numbers = {dim};
  const int64_t count = random_.between(1, 3);
  for (int64_t i = 0; i < count; ++i) numbers.push_back(random_.between(0, type.shape[dim] - 1));
  type.shape[dim] = count;
  compute(d, Kind::kIndexSelect, {a}, std::move(numbers), std::move(type), d.group(a).bound);
  return true;
}

bool Generator::embedding(Draft& d) {
  const int a = pick(d, [&](const Type& type, int value) {
    return type.dtype != Dtype::kInt64 && type.shape.size() == 2 && d.infos[value].plain;
  });
  if (a < 0) return false;
  Type type = d.type(a);
  d.group(a).frozen = true;
  std::vector<int64_t> numbers = {random_.percent(70)};
  const int64_t count = random_.between(1, 4);
  for (int64_t i = 0; i < count; ++i) numbers.push_back(random_.between(0, type.shape[0] - 1));
  type.shape[0] = count;
  compute(d, Kind::kEmbedding, {a}, std::move(numbers), std::move(type), d.group(a).bound);
  return true;
}

bool Generator::drop_gradient(Draft& d) {
  const int a = pick_float(d);
  if (a < 0) return false;
  const int b = pick_like(d, a, [&](const Type& type) { return type.shape == d.type(a).shape; });
  if (b < 0 || b == a) return false;
  const int out = compute(d, Kind::kDropGradient, {a, b}, {}, d.type(a), d.group(a).bound + d.group(b).bound);
  d.infos[out].writable = false;
  return true;
}

bool Generator::hook(Draft& d) {
  const int a =
      pick(d, [&](const Type& type, int value) { return type.requires_grad && !d.group(value).frozen; });
  if (a < 0) return false;
  emit(d, {.kind = Kind::kHook, .inputs = {a}, .numbers = {program_.hooks++}});
  --d.infos[a].uses;
  return true;
}

bool Generator::change_in_place(Draft& d) {
  const int v = pick(d, [&](const Type& type, int value) {
    return type.dtype != Dtype::kInt64 && d.infos[value].writable && !d.group(value).frozen &&
           !d.group(value).saved;
  });
  if (v < 0) return false;
  Memory& group = d.group(v);
  Kind kind = random_.of<Kind>(
      {Kind::kAddInPlace, Kind::kAddInPlace, Kind::kScaleInPlace, Kind::kMulInPlace, Kind::kCopyInPlace});
  if (kind == Kind::kCopyInPlace && tidy_) kind = Kind::kAddInPlace;
  std::vector<int> inputs = {v};
  std::vector<int64_t> numbers;
  double bound = group.bound * 2;
  bool requires_grad = false;
  if (kind == Kind::kScaleInPlace) {
    numbers = {2};
  } else {
    const int w = pick_like(d, v, [&](const Type& type) {
      auto shape = broadcast(d.type(v).shape, type.shape);
      return shape.has_value() && *shape == d.type(v).shape;
    });
    if (w < 0 || d.infos[w].group == d.infos[v].group) return false;
    inputs.push_back(w);
    requires_grad = d.type(w).requires_grad;
    bound = kind == Kind::kMulInPlace ? group.bound * d.group(w).bound : group.bound + d.group(w).bound;
    if (kind == Kind::kMulInPlace) d.group(w).saved = true;
  }
  if (bound > limit_) return false;
  group.bound = bound;
  for (std::size_t i = 0; i < d.infos.size(); ++i) {
    if (d.infos[i].group != d.infos[v].group) continue;
    d.block.values[i].requires_grad |= requires_grad;
    d.infos[i].plain = false;
  }
  emit(d, {.kind = kind, .inputs = std::move(inputs), .numbers = std::move(numbers)});
  --d.infos[v].uses;
  return true;
}

}  // namespace programs
