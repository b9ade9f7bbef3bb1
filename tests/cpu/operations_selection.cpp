// Landmark selection on the CPU backend: ties, NaN energies and z-scores by hand, then the reference over both policies
// and forms, exact lists included, and the promises of the causal policy.
#include <numeric>

#include "operations_support.hpp"

namespace dsalt::cpu_test {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

struct Setup {
  SelectionProblem problem;
  Tensor nx, nv, alpha_raw, cu_seqlens;
  Layout layout = Layout::contiguous;

  std::int64_t batch() const { return cu_seqlens.present() ? cu_seqlens.view().shape[0] - 1 : nx.view().shape[0]; }
  std::int64_t longest() const {
    if (!cu_seqlens.present()) return nx.view().shape[1];
    const Values cu = values(cu_seqlens);
    double longest = 0;
    for (std::size_t s = 1; s < cu.size(); ++s) longest = std::max(longest, cu[s] - cu[s - 1]);
    return static_cast<std::int64_t>(longest);
  }

  /// landmarks, score, landmark_log_weight.
  std::vector<Tensor> forward(Backend& backend, const Tensor& nx, const Tensor& nv, const Tensor& alpha_raw) const {
    const Shape lists{batch(), alpha_raw.view().shape[0], landmark_list_count(problem, longest()), problem.k};
    const DType stat = nx.view().dtype;
    std::vector<Tensor> out{fresh(lists, DType::i32, layout), fresh(lists, stat, layout), fresh(lists, stat, layout)};
    select_landmarks_forward(backend, problem, {nx, nv, alpha_raw, cu_seqlens}, {out[0], out[1], out[2]});
    return out;
  }
  std::vector<Tensor> forward(Backend& backend) const { return forward(backend, nx, nv, alpha_raw); }

  /// dnx, dnv, dalpha_raw.
  std::vector<Tensor> backward(Backend& backend, const Tensor& nx, const Tensor& nv, const Tensor& alpha_raw,
                               const Tensor& landmarks, const Tensor& dlambda) const {
    const auto like = [&](const Tensor& t) {
      const TensorView& v = t.view();
      Tensor result = fresh(Shape(v.shape.begin(), v.shape.begin() + v.rank), v.dtype, layout);
      return result;
    };
    std::vector<Tensor> out{like(nx), like(nv), like(alpha_raw)};
    SelectionGradients gradients{out[0], out[1], out[2]};
    if (problem.detach_energies) gradients.dnx = gradients.dnv = {};
    select_landmarks_backward(backend, problem, {nx, nv, alpha_raw, cu_seqlens}, {landmarks, dlambda}, gradients);
    return out;
  }
};

/// One sequence and head whose score is z(nx): alpha is 0 in float32.
Setup one_head(const Values& energies, std::int64_t k) {
  Setup setup;
  setup.problem.policy = SelectionPolicy::global;
  setup.problem.k = k;
  const auto n = static_cast<std::int64_t>(energies.size());
  setup.nx = tensor({1, n}, energies);
  setup.nv = tensor({1, 1, n}, energies);
  setup.alpha_raw = tensor({1}, {-1000});
  return setup;
}

Setup random_setup(std::int64_t batch, std::int64_t n, std::int64_t hkv, std::int64_t hq, std::int64_t k,
                   std::optional<std::int64_t> chunk, std::int64_t recent, Layout layout) {
  Setup setup;
  setup.layout = layout;
  setup.problem.policy = chunk ? SelectionPolicy::causal : SelectionPolicy::global;
  setup.problem.chunk = chunk;
  setup.problem.k = k;
  setup.problem.recent = recent;
  setup.problem.tau = .7;
  setup.nx = random({batch, n}, 1, DType::f32, 2, layout);
  setup.nv = random({batch, hkv, n}, 2, DType::f32, 2, layout);
  setup.alpha_raw = random({hq}, 3, DType::f32, 2, layout);
  return setup;
}

/// Everything behind a forward and backward call in double is exact to about 1e-12; what is left is one rounding.
void check_rounding(const std::string& what, const Tensor& actual, const Values& expected) {
  const Values found = values(actual);
  double largest = 1;
  for (const double x : expected) largest = std::max(largest, std::fabs(x));
  BOOST_REQUIRE_EQUAL(found.size(), expected.size());
  for (std::size_t n = 0; n < found.size(); ++n)
    if (!(std::fabs(found[n] - expected[n]) <= 0x1.01p-24 * std::fabs(expected[n]) + 1e-12 * largest)) {
      BOOST_ERROR(what << "[" << n << "]: got " << found[n] << ", need " << expected[n]);
      return;
    }
}

void compare(const Setup& setup, bool backward = true) {
  const auto forward = run_on_cpu([&](Backend& b) { return setup.forward(b); });
  const auto wide_nx = wide(setup.nx), wide_nv = wide(setup.nv), wide_alpha = wide(setup.alpha_raw);
  const auto expected = setup.forward(*reference(), wide_nx, wide_nv, wide_alpha);
  BOOST_TEST(values(forward[0]) == values(expected[0]), boost::test_tools::per_element());
  check_rounding("score", forward[1], values(expected[1]));
  check_rounding("landmark_log_weight", forward[2], values(expected[2]));
  if (!backward) return;

  // NaN arrives at the unused slots: it must not be read.
  const Values lists = values(forward[0]);
  const TensorView& shape = forward[0].view();
  Values arriving = values(random(Shape(shape.shape.begin(), shape.shape.begin() + 4), 9));
  for (std::size_t n = 0; n < lists.size(); ++n)
    if (lists[n] < 0) arriving[n] = nan;
  const Tensor dlambda =
      tensor(Shape(shape.shape.begin(), shape.shape.begin() + 4), arriving, DType::f32, setup.layout);
  const auto gradients = run_on_cpu(
      [&](Backend& b) { return setup.backward(b, setup.nx, setup.nv, setup.alpha_raw, forward[0], dlambda); });
  const auto wanted = setup.backward(*reference(), wide_nx, wide_nv, wide_alpha, forward[0], wide(dlambda));
  const char* names[] = {"dnx", "dnv", "dalpha_raw"};
  for (std::size_t n = setup.problem.detach_energies ? 2 : 0; n < 3; ++n) {
    if (!setup.cu_seqlens.present() || n == 2) {
      check_rounding(names[n], gradients[n], values(wanted[n]));
      continue;
    }
    // Rows past the last sequence are left alone by both.
    const auto end = static_cast<std::int64_t>(values(setup.cu_seqlens).back());
    const TensorView &a = gradients[n].view(), &w = wanted[n].view();
    check_rounding(names[n], Tensor(gradients[n].storage(), a.narrow(0, 0, end)), values(w.narrow(0, 0, end)));
    const TensorView rest = a.narrow(0, end, a.shape[0] - end);
    const Tensor untouched = fresh(Shape(rest.shape.begin(), rest.shape.begin() + rest.rank), DType::f32);
    BOOST_TEST(same_bytes(rest, untouched));
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(selection)

BOOST_AUTO_TEST_CASE(ties_go_to_the_lower_index) {
  BOOST_TEST(values(one_head({3, 2, 3, 2, 1, 1}, 2).forward(*cpu())[0]) == (Values{0, 2}));
  BOOST_TEST(values(one_head({3, 2, 3, 2, 1, 1}, 3).forward(*cpu())[0]) == (Values{0, 1, 2}));
  BOOST_TEST(values(one_head({5, 5, 5, 5, 5, 5}, 4).forward(*cpu())[0]) == (Values{0, 1, 2, 3}));
  BOOST_TEST(values(one_head(Values(1500, 2), 3).forward(*cpu())[0]) == (Values{0, 1, 2}));
}

BOOST_AUTO_TEST_CASE(nan_energies_are_no_candidates) {
  BOOST_TEST(values(one_head({-1, nan, 2, 1}, 1).forward(*cpu())[0]) == (Values{2}));
  BOOST_TEST(values(one_head({-1, nan, 2, 1}, 4).forward(*cpu())[0]) == (Values{0, 2, 3, -1}));
  BOOST_TEST(values(one_head({nan, nan}, 2).forward(*cpu())[0]) == (Values{-1, -1}));
  Setup setup = one_head({-1, 7, 2, 1}, 2);  // NaN in one of the two energies is enough
  setup.nv = tensor({1, 1, 4}, {1, nan, 2, 3});
  BOOST_TEST(values(setup.forward(*cpu())[0]) == (Values{2, 3}));
}

BOOST_AUTO_TEST_CASE(z_scores) {
  for (const double offset : {0.0, 10000.0, 100000.0}) {
    const auto out = one_head({offset, offset + 1, offset + 2, offset + 3}, 4).forward(*cpu());
    const Values scores = values(out[1]), need{-1.161895, -.387298, .387298, 1.161895};
    for (int n = 0; n < 4; ++n) BOOST_TEST(std::fabs(scores[n] - need[n]) < 1e-6);
  }
  for (const Values& energies : {Values{5, 5, 5, 5}, Values{7}, Values{1, 1 + 1e-7}}) {
    const Setup setup = one_head(energies, static_cast<std::int64_t>(energies.size()));
    const auto out = setup.forward(*cpu());
    for (const double s : values(out[1])) BOOST_TEST(s == 0);
    for (const double lambda : values(out[2])) BOOST_TEST(lambda == static_cast<float>(std::log(.5)));
    const Tensor ones = tensor({1, 1, 1, setup.problem.k}, Values(energies.size(), 1));
    for (const Tensor& g : setup.backward(*cpu(), setup.nx, setup.nv, setup.alpha_raw, out[0], ones))
      for (const double x : values(g)) BOOST_TEST(x == 0);
  }
}

BOOST_AUTO_TEST_CASE(more_slots_than_candidates) {
  Setup setup = random_setup(1, 9, 1, 1, 5, 4, 1, Layout::contiguous);
  const Values lists = values(setup.forward(*cpu())[0]);  // candidates: none, 0-2, 0-6
  BOOST_TEST((Values(lists.begin(), lists.begin() + 10)) == (Values{-1, -1, -1, -1, -1, 0, 1, 2, -1, -1}));
  compare(setup);
}

BOOST_AUTO_TEST_CASE(policies_forms_and_layouts) {
  for (const Layout layout : all_layouts)
    for (const std::optional<std::int64_t>& chunk : {std::optional<std::int64_t>{}, std::optional<std::int64_t>{1},
                                                     std::optional<std::int64_t>{5}, std::optional<std::int64_t>{1000}})
      for (const std::int64_t recent : {0, 3, 1000})
        BOOST_TEST_CONTEXT("layout " << static_cast<int>(layout) << " chunk " << chunk.value_or(0) << " recent "
                                     << recent) {
          for (const std::int64_t n : {0, 1, 3, 17, 65}) compare(random_setup(2, n, 2, 4, 3, chunk, recent, layout));
          compare(random_setup(2, 17, 1, 3, 0, chunk, recent, layout));
          compare(random_setup(2, 17, 3, 3, 40, chunk, recent, layout));
          Setup detached = random_setup(2, 17, 1, 2, 4, chunk, recent, layout);
          detached.problem.detach_energies = true;
          compare(detached);
          Setup packed = random_setup(1, 40, 2, 4, 3, chunk, recent, layout);
          packed.cu_seqlens = tensor({6}, {0, 0, 17, 18, 18, 36}, DType::i32);
          packed.nx = random({40}, 4, DType::f32, 2, layout);
          packed.nv = random({40, 2}, 5, DType::f32, 2, layout);
          compare(packed);
        }
}

BOOST_AUTO_TEST_CASE(nan_and_ties_in_long_lists) {
  Setup setup = random_setup(2, 1301, 2, 4, 17, 64, 5, Layout::contiguous);
  Values nx = values(setup.nx), nv = values(setup.nv);
  for (std::size_t n = 0; n < nx.size(); ++n) nx[n] = n % 11 == 3 ? nan : std::floor(nx[n] * 2);
  for (std::size_t n = 0; n < nv.size(); ++n) nv[n] = n % 13 == 5 ? nan : std::floor(nv[n] * 2);
  setup.nx = tensor({2, 1301}, nx);
  setup.nv = tensor({2, 2, 1301}, nv);
  compare(setup);
}

BOOST_AUTO_TEST_CASE(statistics_far_from_zero) {
  Setup setup = random_setup(1, 777, 2, 2, 9, 50, 0, Layout::contiguous);
  Values nx = values(setup.nx), nv = values(setup.nv);
  for (double& x : nx) x = 10000 + std::floor(x * 50) / 8;
  for (double& x : nv) x = 3000 + std::floor(x * 50) / 8;
  setup.nx = tensor({1, 777}, nx);
  setup.nv = tensor({1, 2, 777}, nv);
  compare(setup);
}

BOOST_AUTO_TEST_CASE(many_sequences) {
  const std::int64_t sequences = 65537;
  Setup setup = random_setup(1, 1, 1, 1, 2, 1, 0, Layout::contiguous);
  Values cu(sequences + 1);
  for (std::int64_t s = 0; s <= sequences; ++s) cu[s] = static_cast<double>(std::min<std::int64_t>(s / 1000 * 3, 150));
  setup.cu_seqlens = tensor({sequences + 1}, cu, DType::i32);
  setup.nx = random({150}, 1);
  setup.nv = random({150, 1}, 2);
  compare(setup);
}

BOOST_AUTO_TEST_CASE(lists_do_not_depend_on_later_tokens_or_on_the_batch) {
  const Setup all = random_setup(2, 700, 2, 4, 6, 64, 3, Layout::contiguous);
  const auto backend = cpu(2);
  const auto whole = all.forward(*backend);
  for (const std::int64_t n : {1, 64, 65, 400}) {
    Setup prefix = all;
    const auto cut = [&](const Tensor& t, int dim) {
      return Tensor(t.storage(), t.view().narrow(0, 1, 1).narrow(dim, 0, n));
    };
    prefix.nx = cut(all.nx, 1);
    prefix.nv = cut(all.nv, 2);
    const auto part = prefix.forward(*backend);
    for (std::size_t o = 0; o < 3; ++o)
      BOOST_TEST(same_bytes(part[o], whole[o].view().narrow(0, 1, 1).narrow(2, 0, (n + 63) / 64)));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::cpu_test
