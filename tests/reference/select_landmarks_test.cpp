// Landmark selection: scores, order, statistics and gradients, by hand and by finite differences.
#include <tuple>

#include "reference_test.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

struct SelectionCall {
  SelectionProblem problem;
  Tensor nx, nv, alpha_raw, cu_seqlens{}, dlambda{};
  Tensor landmarks{}, score{}, lambda{}, dnx{}, dnv{}, dalpha{};

  SelectionInputs inputs() const { return {nx, nv, alpha_raw, cu_seqlens}; }

  void forward() {
    std::int64_t batch = nx.view().shape[0], longest = 0;
    if (cu_seqlens.present()) {
      batch = cu_seqlens.view().size() - 1;
      for (std::int64_t s = 0; s < batch; ++s)
        longest =
            std::max<std::int64_t>(longest, internal::load_i32(cu_seqlens, s + 1) - internal::load_i32(cu_seqlens, s));
    } else {
      longest = nx.view().shape[1];
    }
    const Shape shape = {batch, alpha_raw.view().shape[0], landmark_list_count(problem, longest), problem.k};
    landmarks = filled(shape, 77, DType::i32);
    score = filled(shape, quiet_nan, nx.view().dtype);
    lambda = filled(shape, quiet_nan, nx.view().dtype);
    select_landmarks_forward(reference(), problem, inputs(), {landmarks, score, lambda});
  }
  /// The gradient through the lists at hand.
  void backward() {
    dalpha = like(alpha_raw);
    SelectionGradients gradients{{}, {}, dalpha};
    if (!problem.detach_energies) {
      gradients.dnx = dnx = like(nx);
      gradients.dnv = dnv = like(nv);
    }
    select_landmarks_backward(reference(), problem, inputs(), {landmarks, dlambda}, gradients);
  }
};

SelectionProblem global(std::int64_t k, double tau = 1) {
  SelectionProblem problem;
  problem.policy = SelectionPolicy::global;
  problem.k = k;
  problem.tau = tau;
  return problem;
}
SelectionProblem causal(std::int64_t k, std::int64_t chunk, std::int64_t recent = 0) {
  SelectionProblem problem;
  problem.k = k;
  problem.chunk = chunk;
  problem.recent = recent;
  return problem;
}

/// One sequence and one head with the same energies in x and v: s = z whatever alpha.
SelectionCall same_energies(const SelectionProblem& problem, const Values& energies) {
  const auto n = static_cast<std::int64_t>(energies.size());
  return {problem, tensor({1, n}, energies), tensor({1, 1, n}, energies), tensor({1}, {0})};
}

double log_sigmoid(double z) { return -std::log1p(std::exp(-z)); }

}  // namespace

BOOST_AUTO_TEST_SUITE(select_landmarks)

BOOST_AUTO_TEST_CASE(ties_go_to_the_lower_index) {
  SelectionCall call = same_energies(global(2), {3, 2, 3, 2, 1, 1});
  call.forward();
  check_same("landmarks", call.landmarks, Values{0, 2});
  call = same_energies(global(3), {3, 2, 3, 2, 1, 1});
  call.forward();
  check_same("landmarks", call.landmarks, Values{0, 1, 2});
  call = same_energies(global(3), {4, 4, 4, 4, 4});
  call.forward();
  check_same("all equal", call.landmarks, Values{0, 1, 2});
}

// A NaN energy is no candidate: the others have mean 2/3 and the same scores as without it.
BOOST_AUTO_TEST_CASE(nan_energies_are_left_out) {
  SelectionCall call = same_energies(global(1), {-1, quiet_nan, 2, 1});
  call.forward();
  check_same("landmarks", call.landmarks, Values{2});
  SelectionCall without = same_energies(global(1), {-1, 2, 1});
  without.forward();
  check_same("score", call.score, without.score);
  // NaN in one of the two energies leaves the candidate out of both z-scores.
  const double x[] = {1, 2, 5, 3}, v[] = {2, 1, 7, 4};
  SelectionCall half{global(4), tensor({1, 4}, {1, quiet_nan, 5, 3}), tensor({1, 1, 4}, {2, 1, 7, quiet_nan}),
                     tensor({1}, {0.5})};
  SelectionCall rest{global(4), tensor({1, 2}, {x[0], x[2]}), tensor({1, 1, 2}, {v[0], v[2]}), tensor({1}, {0.5})};
  half.forward();
  rest.forward();
  check_same("landmarks", half.landmarks, Values{0, 2, -1, -1});
  check_same("score", half.score, rest.score);
  half.dlambda = filled({1, 1, 1, 4}, 1);
  half.backward();
  check_same("dnx of left out", {values_of(half.dnx)[1], values_of(half.dnx)[3]}, Values{0, 0});
  SelectionCall none = same_energies(global(2), {quiet_nan, quiet_nan, quiet_nan});
  none.forward();
  check_same("no candidate", none.landmarks, Values{-1, -1});
  check_same("score of no candidate", none.score, Values{0, 0});
}

// Unbiased z of four equally spaced numbers: deviations -3/2, -1/2, 1/2, 3/2, variance 5/3.
BOOST_AUTO_TEST_CASE(z_scores) {
  SelectionCall call = same_energies(global(4), {10000, 10001, 10002, 10003});
  call.forward();
  const double std = std::sqrt(5.0 / 3);
  check_close("score", call.score, {-1.5 / std, -0.5 / std, 0.5 / std, 1.5 / std}, 1e-12);
  check_close("score", call.score, {-1.161895, -.387298, .387298, 1.161895}, 5e-7);
  for (const Values& constant : {Values{5, 5, 5, 5}, Values{7}, Values{5, 5, 5, 5 + 1e-6}}) {
    call = same_energies(global(2), constant);
    call.forward();
    check_same("score of constants", call.score, Values{0, 0});
    call.dlambda = filled({1, 1, 1, 2}, 1);
    call.backward();
    check_same("dnx", call.dnx, Values(constant.size(), 0));
    check_close("dalpha", call.dalpha, {0}, 0);
  }
}

// nx = [1, 2, 3]: z = [-1, 0, 1]. nv = [6, 2, 4]: mean 4, std 2, z = [1, -1, 0]. alpha = sigma(ln 3) = 3/4:
// s = 3/4 z(nv) + 1/4 z(nx) = [1/2, -3/4, 1/4]. K = 2 takes 0 and 2, tau = 1/2: lambda = log sigma(2 s).
BOOST_AUTO_TEST_CASE(scores_by_hand) {
  SelectionCall call{global(2, 0.5), tensor({1, 3}, {1, 2, 3}), tensor({1, 1, 3}, {6, 2, 4}),
                     tensor({1}, {std::log(3.0)})};
  call.forward();
  check_same("landmarks", call.landmarks, Values{0, 2});
  check_close("score", call.score, {0.5, 0.25});
  check_close("lambda", call.lambda, {log_sigmoid(1), log_sigmoid(0.5)});

  // dlambda = [0, 1]: ds_2 = (1 - sigma(1/2))/tau =: u. dalpha_raw = alpha (1 - alpha) u (z(nv)_2 - z(nx)_2)
  //   = 3/16 u (0 - 1).
  // dz = [0, 0, c] with z_2 = a gives dn_k = (dz_k - c/3 - z_k c a/2)/std:
  //   nx: c = u/4, a = 1, std 1: c [-1/3 + 1/2, -1/3, 2/3 - 1/2] = c [1/6, -1/3, 1/6]
  //   nv: c = 3/4 u, a = 0, std 2: c/2 [-1/3, -1/3, 2/3]
  call.dlambda = tensor({1, 1, 1, 2}, {0, 1});
  call.backward();
  const double u = 2 / (1 + std::exp(0.5)), cx = u / 4, cv = 0.75 * u / 2;
  check_close("dalpha", call.dalpha, {-3.0 / 16 * u});
  check_close("dnx", call.dnx, {cx / 6, -cx / 3, cx / 6});
  check_close("dnv", call.dnv, {-cv / 3, -cv / 3, 2 * cv / 3});

  call.problem.detach_energies = true;
  call.backward();
  check_close("dalpha of detached energies", call.dalpha, {-3.0 / 16 * u});
}

// Constant nv leaves the list to nx and its gradient: only that z is 0.
BOOST_AUTO_TEST_CASE(one_constant_energy) {
  SelectionCall call{global(1), tensor({1, 3}, {1, 2, 3}), tensor({1, 1, 3}, {5, 5, 5}), tensor({1}, {0})};
  call.forward();
  check_same("landmarks", call.landmarks, Values{2});
  check_close("score", call.score, {0.5});
  call.dlambda = tensor({1, 1, 1, 1}, {1});
  call.backward();
  const double u = 1 / (1 + std::exp(0.5)), c = u / 2;
  check_close("dnx", call.dnx, {c / 6, -c / 3, c / 6});
  check_same("dnv", call.dnv, Values{0, 0, 0});
  check_close("dalpha", call.dalpha, {-u / 4});
}

// chunk = 2, N = 5: T = 3 with candidates j < 0, 2, 4; recent = 1 makes that j < 0, 1, 3. Energies grow, so the last
// candidates win; with recent = 1, list 1 has one candidate and score 0.
BOOST_AUTO_TEST_CASE(causal_lists) {
  SelectionCall call = same_energies(causal(2, 2), {1, 2, 3, 4, 5});
  call.forward();
  check_same("landmarks", call.landmarks, Values{-1, -1, 0, 1, 2, 3});
  check_same("unused score", {values_of(call.score)[0], values_of(call.lambda)[0]}, Values{0, 0});
  call = same_energies(causal(2, 2, 1), {1, 2, 3, 4, 5});
  call.forward();
  check_same("landmarks with recent", call.landmarks, Values{-1, -1, 0, -1, 1, 2});
  check_close("lambda of a lone candidate", {values_of(call.lambda)[2]}, {std::log(0.5)});
  SelectionProblem problem = global(2);
  problem.recent = 2;
  call = same_energies(problem, {1, 2, 3, 4, 5});
  call.forward();
  check_same("global with recent", call.landmarks, Values{1, 2});
  problem.recent = 9;
  call = same_energies(problem, {1, 2, 3, 4, 5});
  call.forward();
  check_same("everything is recent", call.landmarks, Values{-1, -1});
}

// A list of the causal policy is the global selection over the tokens before its chunk.
BOOST_AUTO_TEST_CASE(causal_list_equals_global_selection_of_its_past) {
  SelectionCall call{causal(3, 4), random({2, 11}, 1), random({2, 2, 11}, 2), random({4}, 3)};
  call.forward();
  for (std::int64_t t = 0; t < 3; ++t) {
    SelectionCall past = call;
    past.problem = global(3);
    past.nx = Tensor(call.nx.storage(), call.nx.view().narrow(1, 0, 4 * t));
    past.nv = Tensor(call.nv.storage(), call.nv.view().narrow(2, 0, 4 * t));
    past.forward();
    check_same("landmarks", past.landmarks, call.landmarks.view().narrow(2, t, 1));
    check_same("score", past.score, call.score.view().narrow(2, t, 1));
    check_same("lambda", past.lambda, call.lambda.view().narrow(2, t, 1));
  }
}

// Unused slots are ignored: NaN gradients there, and indices that are no candidates of their list, change nothing. A
// repeated index adds up.
BOOST_AUTO_TEST_CASE(gradients_of_given_lists) {
  SelectionCall call{causal(3, 2), random({1, 5}, 1), random({1, 1, 5}, 2), random({1}, 3)};
  call.landmarks = indices({1, 1, 3, 3}, {-1, 0, 4, 1, 2, 0, 3, 3, 9});
  call.dlambda = tensor({1, 1, 3, 3}, {quiet_nan, quiet_nan, quiet_nan, 2, quiet_nan, 3, 4, 5, quiet_nan});
  call.backward();
  SelectionCall plain = call;
  plain.landmarks = indices({1, 1, 3, 3}, {-1, -1, -1, 0, 1, -1, 3, -1, -1});
  plain.dlambda = tensor({1, 1, 3, 3}, {0, 0, 0, 3, 2, 0, 9, 0, 0});
  plain.backward();
  check_close("dalpha", call.dalpha, values_of(plain.dalpha));
  check_close("dnx", call.dnx, values_of(plain.dnx));
  check_close("dnv", call.dnv, values_of(plain.dnv));
  BOOST_TEST(std::fabs(values_of(call.dnx)[3]) > 0);
}

BOOST_AUTO_TEST_CASE(differences) {
  SelectionProblem with_recent = causal(3, 3, 1);
  with_recent.tau = 0.7;
  for (const SelectionProblem& problem : {global(4, 1.3), causal(3, 4), with_recent}) {
    SelectionCall call{problem, random({2, 9}, 1), random({2, 2, 9}, 2), random({4}, 3)};
    call.forward();
    const Values lists = values_of(call.landmarks);
    call.dlambda = random(Shape(call.lambda.view().shape.begin(), call.lambda.view().shape.begin() + 4), 4);
    call.backward();
    const SelectionCall analytic = call;
    bool moved = false;  // a difference across a change of the selection would be meaningless
    const auto objective = [&] {
      call.forward();
      moved = moved || values_of(call.landmarks) != lists;
      return inner(call.lambda, call.dlambda);
    };
    check_differences("dalpha", call.alpha_raw, analytic.dalpha, objective);
    check_differences("dnx", call.nx, analytic.dnx, objective);
    check_differences("dnv", call.nv, analytic.dnv, objective);
    BOOST_TEST(!moved);
  }
}

// Each sequence of a pack has the lists, scores and gradients it has alone; rows past cu_seqlens are not touched.
BOOST_AUTO_TEST_CASE(pack_equals_each_sequence_alone) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    SelectionCall pack{causal(2, 3), random({10}, 1, dtype), random({10, 2}, 2, dtype), random({4}, 3, dtype)};
    pack.cu_seqlens = indices({4}, {0, 3, 3, 9});
    internal::store_double(pack.nx, 9, quiet_nan);
    pack.forward();
    pack.dlambda = random({3, 4, 2, 2}, 4, dtype);
    pack.backward();
    check_same("empty sequence", pack.landmarks.view().select(0, 1), Values(16, -1));
    BOOST_TEST(std::isnan(values_of(pack.dnx)[9]));
    for (const auto& [b, start, length] : {std::tuple<std::int64_t, std::int64_t, std::int64_t>{0, 0, 3}, {2, 3, 6}}) {
      SelectionCall alone{pack.problem, {}, {}, pack.alpha_raw};
      TensorView nx = pack.nx.view().narrow(0, start, length), nv = pack.nv.view().narrow(0, start, length);
      const auto with_batch = [](const Tensor& storage, TensorView view) {  // [...] as [1,...]
        TensorView batched = view;
        batched.rank = view.rank + 1;
        for (int n = 0; n < view.rank; ++n) {
          batched.shape[static_cast<std::size_t>(n + 1)] = view.shape[static_cast<std::size_t>(n)];
          batched.strides[static_cast<std::size_t>(n + 1)] = view.strides[static_cast<std::size_t>(n)];
        }
        batched.shape[0] = 1;
        batched.strides[0] = 0;
        return Tensor(storage.storage(), batched);
      };
      alone.nx = with_batch(pack.nx, nx);
      alone.nv = with_batch(pack.nv, nv.transpose(0, 1));
      alone.forward();
      const std::int64_t own = (length + 2) / 3;  // further lists belong to the longest sequence
      check_same("landmarks", pack.landmarks.view().select(0, b).narrow(1, 0, own),
                 alone.landmarks.view().select(0, 0));
      check_same("score", pack.score.view().select(0, b).narrow(1, 0, own), alone.score.view().select(0, 0));
      check_same("lambda", pack.lambda.view().select(0, b).narrow(1, 0, own), alone.lambda.view().select(0, 0));
    }
    // List 1 of the first sequence lies past its own ceil(3/3): it selects among all three tokens.
    SelectionCall whole{global(2), {}, {}, pack.alpha_raw};
    const Values nx = values_of(pack.nx.view().narrow(0, 0, 3)), nv = values_of(pack.nv.view().narrow(0, 0, 3));
    whole.nx = tensor({1, 3}, nx, dtype);
    whole.nv = tensor({1, 2, 3}, {nv[0], nv[2], nv[4], nv[1], nv[3], nv[5]}, dtype);
    whole.forward();
    check_same("list past the end", pack.landmarks.view().select(0, 0).narrow(1, 1, 1),
               whole.landmarks.view().select(0, 0));
  }
}

BOOST_AUTO_TEST_CASE(packed_differences) {
  SelectionCall call{causal(3, 3), random({10}, 1), random({10, 2}, 2), random({2}, 3)};
  call.cu_seqlens = indices({4}, {0, 4, 4, 10});
  call.forward();
  call.dlambda = random({3, 2, 2, 3}, 4);
  call.backward();
  const SelectionCall analytic = call;
  const auto objective = [&] {
    call.forward();
    return inner(call.lambda, call.dlambda);
  };
  check_differences("dalpha", call.alpha_raw, analytic.dalpha, objective);
  check_differences("dnx", call.nx, analytic.dnx, objective);
  check_differences("dnv", call.nv, analytic.dnv, objective);
}

BOOST_AUTO_TEST_CASE(empty_calls) {
  SelectionCall call{causal(2, 3), filled({2, 0}, 0), filled({2, 1, 0}, 0), filled({2}, 0)};
  call.forward();
  BOOST_TEST(call.landmarks.view().size() == 0);
  call.dlambda = filled({2, 2, 0, 2}, 0);
  call.backward();
  check_same("dalpha", call.dalpha, Values{0, 0});
  call.problem = global(2);
  call.forward();
  check_same("global list without tokens", call.landmarks, Values(8, -1));
}

BOOST_AUTO_TEST_SUITE_END()
