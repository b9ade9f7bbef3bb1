// Faults of top-k selection and of gathering.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "support.hpp"

namespace dsalt::faults {
namespace {

struct Selection {
  SelectionProblem problem;
  Tensor nx, nv, alpha_raw, cu_seqlens;
  Tensor dlandmark_log_weight;
  std::int64_t lists = 1, batch = 1;

  Tensor landmarks, score, landmark_log_weight, dnx, dnv, dalpha_raw;

  SelectionInputs inputs() const { return {nx, nv, alpha_raw, cu_seqlens}; }

  void run(Backend& backend) {
    const DType dtype = nx.view().dtype;
    const Shape shape = {batch, alpha_raw.view().shape[0], lists, problem.k};
    landmarks = indices(
        shape, std::vector<std::int32_t>(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3]), -77));
    score = filled(shape, nan, dtype);
    landmark_log_weight = filled(shape, nan, dtype);
    select_landmarks_forward(backend, problem, inputs(), {landmarks, score, landmark_log_weight});
    if (!dlandmark_log_weight.present()) return;
    const auto like = [&](const TensorView& view) {
      return filled({view.shape.begin(), view.shape.begin() + view.rank}, nan, dtype);
    };
    dnx = like(nx), dnv = like(nv), dalpha_raw = like(alpha_raw);
    select_landmarks_backward(backend, problem, inputs(), {landmarks, dlandmark_log_weight}, {dnx, dnv, dalpha_raw});
  }
};

/// One sequence, one head, nx and nv the same energies: the score is z of them, whatever alpha.
Selection one_list(const std::vector<double>& energies, std::int64_t k, DType dtype) {
  const auto n = static_cast<std::int64_t>(energies.size());
  Selection s;
  s.problem.policy = SelectionPolicy::global;
  s.problem.k = k;
  s.nx = tensor({1, n}, energies, dtype);
  s.nv = tensor({1, 1, n}, energies, dtype);
  s.alpha_raw = tensor({1}, {std::log(.6 / .4)}, dtype);
  return s;
}

const std::vector<DType> statistics = {DType::f64, DType::f32};

double sigmoid(double z) { return 1 / (1 + std::exp(-z)); }

}  // namespace

BOOST_AUTO_TEST_SUITE(selection)

BOOST_AUTO_TEST_CASE(ties_go_to_the_lower_index) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    Selection s = one_list({3, 2, 3, 2, 1, 1}, 2, dtype);
    s.run(backend);
    BOOST_TEST((integers(s.landmarks) == std::vector<std::int32_t>{0, 2}));
    for (std::int64_t k = 1; k <= 6; ++k) {
      const std::vector<std::int32_t> order = {0, 2, 1, 3, 4, 5};  // by value, then by index
      std::vector<std::int32_t> expected(order.begin(), order.begin() + k);
      std::sort(expected.begin(), expected.end());
      s = one_list({3, 2, 3, 2, 1, 1}, k, dtype);
      s.run(backend);
      BOOST_TEST((integers(s.landmarks) == expected), "k=" << k);
      for (const std::int64_t n : {1, 5, 64, 1000}) {
        Selection equal = one_list(std::vector<double>(static_cast<std::size_t>(n), 7), k, dtype);
        equal.run(backend);
        std::vector<std::int32_t> first;
        for (std::int32_t slot = 0; slot < k; ++slot) first.push_back(slot < n ? slot : -1);
        BOOST_TEST((integers(equal.landmarks) == first), "all equal, n=" << n << " k=" << k);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(nan_is_never_selected) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    Selection s = one_list({-1, nan, 2, 1}, 1, dtype);
    s.run(backend);
    BOOST_TEST((integers(s.landmarks) == std::vector<std::int32_t>{2}));

    // all slots: the NaN is left out of mean, std and count, in whichever energy it stands
    for (const int where : {0, 1, 2}) {
      BOOST_TEST_CONTEXT("NaN in " << (where == 0 ? "both" : where == 1 ? "nx" : "nv")) {
        Selection all = one_list({-1, nan, 2, 1}, 4, dtype);
        if (where == 1) all.nv = tensor({1, 1, 4}, {-1, 50, 2, 1}, dtype);
        if (where == 2) all.nx = tensor({1, 4}, {-1, 50, 2, 1}, dtype);
        all.dlandmark_log_weight = filled({1, 1, 1, 4}, 1, dtype);
        all.run(backend);
        BOOST_TEST((integers(all.landmarks) == std::vector<std::int32_t>{0, 2, 3, -1}));
        const double m = 2.0 / 3, std = std::sqrt(((-1 - m) * (-1 - m) + (2 - m) * (2 - m) + (1 - m) * (1 - m)) / 2);
        const std::vector<double> z = {(-1 - m) / std, (2 - m) / std, (1 - m) / std};
        check_near(all.score, {z[0], z[1], z[2], 0}, 32);
        check_near(all.landmark_log_weight,
                   {std::log(sigmoid(z[0])), std::log(sigmoid(z[1])), std::log(sigmoid(z[2])), 0}, 32);
        for (const Tensor& t : {all.dnx, all.dnv}) {
          BOOST_TEST(values(t)[1] == 0);
          for (const double x : values(t)) BOOST_TEST(std::isfinite(x));
        }
      }
    }
    Selection none = one_list({nan, nan, nan}, 2, dtype);
    none.run(backend);
    BOOST_TEST((integers(none.landmarks) == std::vector<std::int32_t>{-1, -1}));
    check_all(none.score, 0);
    check_all(none.landmark_log_weight, 0);
  });
}

BOOST_AUTO_TEST_CASE(k_above_the_valid_count) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    const std::int64_t n = 6, k = 4;
    Selection s = one_list({5, 4, 3, 2, 1, 0}, k, dtype);
    s.problem.policy = SelectionPolicy::causal;
    s.problem.chunk = 1;
    s.lists = n;
    s.run(backend);
    std::vector<std::int32_t> expected;  // list t: the candidates before t; at most k of them, then -1
    for (std::int32_t t = 0; t < n; ++t)
      for (std::int32_t slot = 0; slot < k; ++slot) expected.push_back(slot < t ? slot : -1);
    BOOST_TEST((integers(s.landmarks) == expected));

    Call call = one_head(Mask::sparse, n, {1, 2, 4, 8, 16, 32}, dtype);
    call.problem.landmark_chunk = 1;
    call.window = indices({1, 1, n}, std::vector<std::int32_t>(n, 0));
    call.landmarks = s.landmarks;
    // row i sees itself and the min(i, 4) first keys
    check_near(run(backend, call).out, {1, 1.5, 7. / 3, 15. / 4, 31. / 5, 47. / 5});
  });
}

BOOST_AUTO_TEST_CASE(z_score_of_equal_energies_and_of_one) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    std::vector<std::vector<double>> lists = {{5, 5, 5, 5}, {7}, {0, 0}, {1e-8, 2e-8, 3e-8}, {1e30, 1e30, 1e30}};
    // sums of these are inexact: a mean that is off by a rounding must not turn equal energies into scores of 1 or -1
    for (const double value : {0.1, 12345.678, 1e12 / 3})
      for (const std::size_t n : {3, 1000, 4097}) lists.emplace_back(n, value);
    for (const std::vector<double>& energies : lists) {
      BOOST_TEST_INFO_SCOPE(energies.size() << " energies from " << energies[0]);
      const auto n = static_cast<std::int64_t>(energies.size());
      Selection s = one_list(energies, n, dtype);
      s.dlandmark_log_weight = filled({1, 1, 1, n}, 1, dtype);
      s.run(backend);
      check_all(s.score, 0);
      check_near(s.landmark_log_weight, std::vector<double>(energies.size(), -std::log(2)));
      check_all(s.dnx, 0);
      check_all(s.dnv, 0);
      check_all(s.dalpha_raw, 0);
    }
  });
}

BOOST_AUTO_TEST_CASE(z_score_far_from_zero) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    // unbiased std of four consecutive numbers: sqrt(5/3); exact in float32 at each of these offsets
    const std::vector<double> z = {-1.5 / std::sqrt(5. / 3), -.5 / std::sqrt(5. / 3), .5 / std::sqrt(5. / 3),
                                   1.5 / std::sqrt(5. / 3)};
    BOOST_REQUIRE_SMALL(z[0] - -1.161895, 1e-6);
    BOOST_REQUIRE_SMALL(z[2] - .387298, 1e-6);
    for (const double offset : {0.0, 10000.0, 1e6, 8e6}) {
      BOOST_TEST_CONTEXT("offset " << offset) {
        Selection s = one_list({offset, offset + 1, offset + 2, offset + 3}, 4, dtype);
        s.run(backend);
        check_near(s.score, z, 32);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE(z_score_gradient_by_differences) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    // forward and central differences by the definition in double; k below the count, so unselected energies move
    // mean and std only
    const std::vector<double> nx = {1, 4, 2.5, 3, 0.5}, nv = {2, 1, 3, 2.25, 1.5};
    const double alpha_raw = std::log(.6 / .4), tau = 0.5;
    Selection s = one_list(nx, 3, dtype);
    s.nv = tensor({1, 1, 5}, nv, dtype);
    s.problem.tau = tau;
    s.dlandmark_log_weight = tensor({1, 1, 1, 3}, {1, -2, .5}, dtype);
    s.run(backend);
    const std::vector<std::int32_t> chosen = integers(s.landmarks);
    const auto loss = [&](std::vector<double> x, std::vector<double> v, double raw) {
      const auto z = [](std::vector<double> n) {
        double mean = 0, square = 0;
        for (const double value : n) mean += value / 5;
        for (const double value : n) square += (value - mean) * (value - mean);
        for (double& value : n) value = (value - mean) / std::sqrt(square / 4);
        return n;
      };
      const std::vector<double> zx = z(x), zv = z(v), weight = {1, -2, .5};
      double sum = 0;
      for (std::size_t slot = 0; slot < 3; ++slot) {
        const auto j = static_cast<std::size_t>(chosen[slot]);
        sum += weight[slot] * std::log(sigmoid((sigmoid(raw) * zv[j] + (1 - sigmoid(raw)) * zx[j]) / tau));
      }
      return sum;
    };
    std::vector<double> dnx, dnv;
    const double step = 1e-5;
    for (std::size_t j = 0; j < 5; ++j) {
      std::vector<double> up = nx, down = nx;
      up[j] += step, down[j] -= step;
      dnx.push_back((loss(up, nv, alpha_raw) - loss(down, nv, alpha_raw)) / (2 * step));
      up = down = nv;
      up[j] += step, down[j] -= step;
      dnv.push_back((loss(nx, up, alpha_raw) - loss(nx, down, alpha_raw)) / (2 * step));
    }
    const double slack = 1e-8 / (dtype == DType::f64 ? 0x1p-53 : 0x1p-24) + 64;
    check_near(s.dnx, dnx, slack);
    check_near(s.dnv, dnv, slack);
    check_near(s.dalpha_raw, {(loss(nx, nv, alpha_raw + step) - loss(nx, nv, alpha_raw - step)) / (2 * step)}, slack);
  });
}

BOOST_AUTO_TEST_CASE(statistics_are_per_sequence_of_a_pack) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    Selection s = one_list({1, 2, 3, 1000, 2000}, 3, dtype);
    s.batch = 3;
    s.cu_seqlens = indices({4}, {0, 3, 3, 5});
    s.nx = tensor({5}, {1, 2, 3, 1000, 2000}, dtype);
    s.nv = tensor({5, 1}, {1, 2, 3, 1000, 2000}, dtype);
    s.run(backend);
    BOOST_TEST((integers(s.landmarks) == std::vector<std::int32_t>{0, 1, 2, -1, -1, -1, 0, 1, -1}));
    const double r = 1 / std::sqrt(2);
    check_near(s.score, {-1, 0, 1, 0, 0, 0, -r, r, 0}, 32);
  });
}

BOOST_AUTO_TEST_CASE(gather_backward) {
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    // two queries read key 0 as a landmark and nothing else: v_0 gets both gradients
    Call call = one_head(Mask::sparse, 2, {.1, .7}, dtype);
    call.landmarks = indices({1, 1, 2, 1}, {0, 0});
    call.problem.landmark_chunk = 1;
    call.landmark_log_weight = tensor({1, 1, 2, 1}, {-.5, -1}, statistics_dtype(dtype));
    call.dout = tensor({1, 1, 2, 1}, {.2, .3}, dtype);
    call.dlse = tensor({1, 1, 2}, {4, 5}, statistics_dtype(dtype));
    const Result r = run(backend, call);
    const std::vector<double> dout = values(call.dout), v = values(call.v);
    check_near(r.out, {v[0], v[0]});
    check_near(r.lse, {-.5, -1});
    check_near(r.dv, {dout[0] + dout[1], 0});
    check_near(r.dlandmark_log_weight, {4, 5});

    // an index repeated in one list counts once, by its lowest slot
    call.landmarks = indices({1, 1, 1, 4}, {-1, 0, 0, 0});
    call.problem.landmark_chunk.reset();
    call.landmark_log_weight = tensor({1, 1, 1, 4}, {nan, -.5, -7, -9}, statistics_dtype(dtype));
    const Result once = run(backend, call);
    check_near(once.lse, {-.5, -.5});
    check_near(once.dv, {dout[0] + dout[1], 0});
    check_near(once.dlandmark_log_weight, {0, 9, 0, 0});
  });
}

BOOST_AUTO_TEST_CASE(chunks_of_any_length) {
  static constexpr std::int64_t longest = std::int64_t{1} << 62;  // the contract's limit: index + offset fits 64 bits
  on_every_backend(Operation::attention, all_floating, [](Backend& backend, DType dtype) {
    Call call = one_head(Mask::sparse, 3, {1, 2, 4}, dtype);
    call.window = indices({1, 1, 3}, {0, 0, 0});
    call.landmarks = indices({1, 1, 1, 1}, {0});
    for (const std::int64_t chunk : {std::int64_t{3}, std::int64_t{4}, std::int64_t{1} << 32, longest - 1, longest}) {
      call.problem.landmark_chunk = chunk;
      check_near(run(backend, call).out, {1, 1.5, 2.5});
    }
    // the call starts at the last place of a chunk: row 0 reads list 0, the others list 1
    call.landmarks = indices({1, 1, 2, 1}, {-1, 0});
    call.problem.landmark_offset = longest - 1;
    check_near(run(backend, call).out, {1, 1.5, 2.5});
    for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{-1}, longest + 1, INT64_MAX}) {
      call.problem.landmark_chunk = chunk;
      BOOST_CHECK_THROW(run(backend, call), InvalidArgument);
    }
  });
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    for (const auto& [chunk, recent] :
         {std::pair<std::int64_t, std::int64_t>{longest, 0}, {longest, INT64_MAX}, {3, INT64_MAX}}) {
      Selection s = one_list({1, 2, 3}, 1, dtype);
      s.problem.policy = SelectionPolicy::causal;
      s.problem.chunk = chunk;
      s.problem.recent = recent;
      s.run(backend);
      BOOST_TEST((integers(s.landmarks) == std::vector<std::int32_t>{-1}));  // list 0 has no candidates
    }
    Selection all = one_list({1, 2, 3}, 1, dtype);
    all.problem.recent = INT64_MAX;
    all.run(backend);
    BOOST_TEST((integers(all.landmarks) == std::vector<std::int32_t>{-1}));
  });
}

BOOST_AUTO_TEST_CASE(energies_collected_by_many_lists_add_up) {
  on_every_backend(Operation::select_landmarks, statistics, [](Backend& backend, DType dtype) {
    // every one of 40 lists selects from the same early tokens; the batch of gradients equals the sum of each alone
    const std::int64_t n = 40, k = 2, hq = 4;
    Selection s;
    s.problem.policy = SelectionPolicy::causal;
    s.problem.chunk = 1;
    s.problem.k = k;
    s.lists = n;
    s.nx = random_tensor({1, n}, 50, dtype);
    s.nv = random_tensor({1, 2, n}, 51, dtype);
    s.alpha_raw = random_tensor({hq}, 52, dtype);
    s.dlandmark_log_weight = random_tensor({1, hq, n, k}, 53, dtype);
    s.run(backend);
    const std::vector<double> together = values(s.dnx);
    std::vector<double> sum(together.size(), 0);
    const std::vector<double> all = values(s.dlandmark_log_weight);
    for (std::int64_t h = 0; h < hq; ++h)
      for (std::int64_t t = 0; t < n; ++t) {
        Selection alone = s;
        std::vector<double> only(all.size(), 0);
        for (std::int64_t slot = 0; slot < k; ++slot) {
          const auto at = static_cast<std::size_t>((h * n + t) * k + slot);
          only[at] = all[at];
        }
        alone.dlandmark_log_weight = tensor({1, hq, n, k}, only, dtype);
        alone.run(backend);
        const std::vector<double> one = values(alone.dnx);
        for (std::size_t j = 0; j < sum.size(); ++j) sum[j] += one[j];
      }
    check_near(s.dnx, sum, 512);
  });
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace dsalt::faults
