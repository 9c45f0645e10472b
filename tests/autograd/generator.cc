#include <utility>

#include "gradwire/tests/autograd/draft.h"

namespace programs {

Generator::Generator(uint64_t seed, const GeneratorOptions& options)
    : random_(seed * 7919 + 17), options_(options) {
  program_.seed = seed;
  program_.family = options.family;
  program_.agents = static_cast<int>(random_.between(options.min_agents, options.max_agents));
  tidy_ = options.for_libtorch || random_.percent(50);
  float32_ = options.family == Family::kExact && random_.percent(30);
  limit_ = float32_ ? 300 : 1e5;
}

Program Generator::run() {
  Draft main;
  main.block.agent = options_.for_libtorch ? 0 : static_cast<int>(random_.below(program_.agents));
  program_.blocks.emplace_back();
  fill(main, static_cast<int>(random_.between(6, 16)));
  choose_roots(main);
  program_.blocks[0] = std::move(main.block);
  return std::move(program_);
}

bool Generator::step(Draft& d) {
  const bool real = !exact();
  // Calls are the most likely operations. The other ones share the remaining numbers of the dice.
  const uint64_t dice = random_.below(100);
  if (dice < 22) return call(d);
  if (dice < 34) return random_.percent(10) && !plain() ? leaf_pair(d) : leaf(d);
  if (dice < 38) return wait(d, random_.below(d.in_flight.size() + 1));
  if (plain()) {
    switch (random_.below(6)) {
      case 0:
        return binary(d, Kind::kAdd);
      case 1:
        return binary(d, Kind::kSub);
      case 2:
        return binary(d, Kind::kMul);
      case 3:
        return unary(d, Kind::kScale);
      case 4:
        return unary(d, Kind::kSin);
      default:
        return unary(d, Kind::kTanh);
    }
  }
  if (!options_.for_libtorch) {
    if (dice < 42) return make_ref(d);
    if (dice < 47) return fetch(d);
  }
  if (dice < 55) return view(d);
  if (dice < 60 && !real) return change_in_place(d);
  if (dice < 63) return embedding(d);
  if (dice < 66) return hook(d);
  if (dice < 68 && !options_.for_libtorch) return drop_gradient(d);
  if (dice < 71) return cast(d);
  switch (random_.below(real ? 13 : 11)) {
    case 0:
    case 1:
      return binary(d, Kind::kAdd);
    case 2:
      return binary(d, Kind::kSub);
    case 3:
    case 4:
      return binary(d, Kind::kMul);
    case 5:
      return unary(d, random_.percent(50) ? Kind::kScale : Kind::kNeg);
    case 6:
      return unary(d, random_.percent(50) ? Kind::kRelu : Kind::kSquare);
    case 7:
      return matmul(d);
    case 8:
      return sum(d, random_.percent(50));
    case 9:
      return join(d);
    case 10:
      return index_select(d);
    case 11:
      return unary(d, Kind::kSin);
    default:
      return unary(d, Kind::kTanh);
  }
}

void Generator::fill(Draft& d, int operations) {
  int done = 0;
  for (int tries = 0; done < operations && tries < 30 * operations; ++tries) {
    if (pick_float(d) < 0) {
      if (!leaf(d)) break;
      continue;
    }
    if (step(d)) ++done;
  }
  while (!d.in_flight.empty()) {
    if (tidy_ || random_.percent(80)) {
      wait(d, 0);
    } else {
      d.in_flight.erase(d.in_flight.begin());
    }
  }
  if (tidy_) {
    for (int ref = 0; ref < static_cast<int>(d.block.refs.size()); ++ref) {
      if (d.ref_uses[ref] > 0) continue;
      fetch(d, ref);
      wait(d, 0);
    }
  }
}

int Generator::fold(Draft& d) {
  if (!tidy_) return -1;
  int total = -1;
  const int count = static_cast<int>(d.infos.size());
  for (int i = 0; i < count; ++i) {
    if (!d.type(i).requires_grad || d.infos[i].uses > 0) continue;
    int scalar = i;
    if (!d.type(i).shape.empty()) {
      Type type = d.type(i);
      type.shape.clear();
      scalar =
          compute(d, Kind::kSum, {i}, {}, type, d.group(i).bound * static_cast<double>(elements(d.type(i))));
    }
    if (exact() && d.type(scalar).dtype == Dtype::kFloat32) {
      Type type = d.type(scalar);
      type.dtype = Dtype::kFloat64;
      scalar =
          compute(d, Kind::kCast, {scalar}, {static_cast<int64_t>(type.dtype)}, type, d.group(scalar).bound);
    }
    total = total < 0 ? scalar
                      : compute(d, Kind::kAdd, {total, scalar}, {}, d.type(scalar),
                                d.group(total).bound + d.group(scalar).bound);
  }
  return total;
}

void Generator::choose_results(Draft& d, bool only_one) {
  const int folded = fold(d);
  if (only_one) {
    int result = folded >= 0 ? folded : pick_float(d);
    if (result < 0) result = constant(d);
    d.block.results = {result};
    return;
  }
  const int64_t count = random_.between(1, 3);
  for (int64_t i = 0; i < count; ++i) {
    const int result = pick(d, [](const Type&, int) { return true; });
    if (result < 0) continue;
    // A value that has no other use may be a result. The caller then folds it, if it is not used there
    // either.
    use(d, result);
    d.block.results.push_back(result);
  }
  if (folded >= 0) d.block.results.push_back(folded);
  if (d.block.results.empty()) d.block.results.push_back(constant(d));
  if (!tidy_ && !d.block.refs.empty() && random_.percent(30)) {
    d.block.ref_results.push_back(static_cast<int>(random_.below(d.block.refs.size())));
  }
}

int Generator::constant(Draft& d) {
  const int out = add_value(d, {.dtype = exact() ? Dtype::kFloat64 : Dtype::kFloat32}, 1);
  emit(d, {.kind = Kind::kConstant, .outputs = {out}});
  return out;
}

void Generator::choose_roots(Draft& d) {
  const int folded = fold(d);
  std::vector<int> roots;
  const int64_t count = random_.between(1, 3);
  for (int64_t i = 0; i < count; ++i) {
    const int root = pick(d, [](const Type& type, int) { return type.requires_grad; });
    if (root >= 0) roots.push_back(root);
  }
  if (folded >= 0) roots.push_back(folded);
  if (roots.empty()) {
    Leaf leaf{.agent = d.block.agent, .seed = 1};
    leaf.type.dtype = exact() ? Dtype::kFloat64 : Dtype::kFloat32;
    leaf.type.requires_grad = true;
    const int out = add_value(d, leaf.type, 1);
    emit(d,
         {.kind = Kind::kLeaf, .outputs = {out}, .numbers = {static_cast<int64_t>(program_.leaves.size())}});
    program_.leaves.push_back(leaf);
    roots.push_back(out);
  }
  d.block.results = roots;

  program_.backward_agent = !options_.for_libtorch && random_.percent(20)
                                ? static_cast<int>(random_.below(program_.agents))
                                : d.block.agent;
  Pass pass;
  for (int i = 0; i < static_cast<int>(roots.size()); ++i) {
    const bool implicit = elements(d.type(roots[i])) == 1 && random_.percent(50);
    pass.roots.push_back({i, implicit ? 0 : random_.next() | 1});
  }
  const int64_t passes = random_.percent(60) ? 1 : random_.between(2, 3);
  for (int64_t i = 0; i < passes; ++i) {
    Pass next = pass;
    next.retain_graph = i + 1 < passes;
    if (!tidy_ && i > 0) {
      next.roots.clear();
      const int64_t some = random_.between(1, static_cast<int64_t>(pass.roots.size()));
      for (int64_t k = 0; k < some; ++k) next.roots.push_back(random_.of(pass.roots));
    }
    if (!tidy_ && random_.percent(15)) {
      for (int leaf = 0; leaf < static_cast<int>(program_.leaves.size()); ++leaf) {
        const Leaf& candidate = program_.leaves[leaf];
        if (candidate.agent == program_.backward_agent && candidate.type.requires_grad &&
            random_.percent(60)) {
          next.inputs.push_back(leaf);
        }
      }
    }
    program_.passes.push_back(std::move(next));
  }
}

Program generate(uint64_t seed, const GeneratorOptions& options) { return Generator(seed, options).run(); }

}  // namespace programs
