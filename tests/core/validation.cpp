// Every argument that contradicts the contract is refused before a backend sees it, in words that name the argument,
// what came and what is needed.
#include <boost/test/unit_test.hpp>
#include <functional>
#include <limits>
#include <string>

#include "dsalt/dsalt.hpp"

using namespace dsalt;

namespace {

/// A valid sparse call that each test spoils in one place.
struct SparseCall {
  std::unique_ptr<Backend> backend = make_backend("reference");
  AttentionProblem problem;
  Tensor q = Tensor::zeros({2, 4, 6, 8}, DType::f32), k = Tensor::zeros({2, 2, 7, 8}, DType::f32);
  Tensor v = Tensor::zeros({2, 2, 7, 3}, DType::f32), window = Tensor::zeros({2, 4, 6}, DType::f32);
  Tensor landmarks = Tensor::zeros({2, 1, 3, 5}, DType::i32), weight = Tensor::zeros({2, 1, 3, 5}, DType::f32);
  Tensor out = Tensor::zeros({2, 4, 6, 3}, DType::f32), lse = Tensor::zeros({2, 4, 6}, DType::f32);
  AttentionInputs inputs{q, k, v, window, landmarks, weight, {}, {}, {}, {}};
  AttentionOutputs outputs{out, lse};

  SparseCall() {
    problem.mask = Mask::sparse;
    problem.landmark_chunk = 2;
    problem.soft_edge = SoftEdge{1, 1};
  }
  void run() { attention_forward(*backend, problem, inputs, outputs); }
};

/// The call must be refused with a message that starts with `name: got` and contains `words`.
void check_refused(const std::function<void()>& call, const std::string& name, const std::string& words) {
  try {
    call();
    BOOST_ERROR(name + ": not refused");
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    BOOST_TEST(message.starts_with(name + ": got "), message);
    BOOST_TEST(message.find(words) != std::string::npos, message + " lacks " + words);
  }
}

void spoiled(const std::string& name, const std::string& words, const std::function<void(SparseCall&)>& spoil) {
  SparseCall call;
  spoil(call);
  check_refused([&] { call.run(); }, name, words);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(validation)

BOOST_AUTO_TEST_CASE(the_unspoiled_call_is_accepted) {
  SparseCall call;
  BOOST_CHECK_NO_THROW(call.run());
}

BOOST_AUTO_TEST_CASE(attention_options) {
  const double inf = std::numeric_limits<double>::infinity();
  spoiled("scale", "finite", [&](SparseCall& c) { c.problem.scale = inf; });
  spoiled("scale", "nan", [&](SparseCall& c) { c.problem.scale = inf - inf; });
  spoiled("soft_edge", "-1", [](SparseCall& c) { c.problem.soft_edge->edge = -1; });
  spoiled("soft_tau", "> 0", [](SparseCall& c) { c.problem.soft_edge->tau = 0; });
  spoiled("dropout_p", "1.5", [](SparseCall& c) { c.problem.dropout = Dropout{1.5, 0, 0}; });
  spoiled("landmark_chunk", "at least 1", [](SparseCall& c) { c.problem.landmark_chunk = 0; });
  spoiled("landmark_offset", "landmark_chunk = 2", [](SparseCall& c) { c.problem.landmark_offset = 2; });
  spoiled("landmark_offset", "without landmark_chunk", [](SparseCall& c) {
    c.problem.landmark_chunk.reset();
    c.problem.landmark_offset = 1;
  });
  for (Mask mask : {Mask::full, Mask::causal}) {
    spoiled("window", "none with mask", [&](SparseCall& c) { c.problem.mask = mask; });
    spoiled("bidirectional", "mask", [&](SparseCall& c) {
      c.problem.mask = mask;
      c.problem.bidirectional = true;
    });
    spoiled("landmarks", "none with mask", [&](SparseCall& c) {
      c.problem.mask = mask;
      c.inputs.window = {};
    });
    spoiled("soft_edge", "none with mask", [&](SparseCall& c) {
      c.problem.mask = mask;
      c.inputs.window = c.inputs.landmarks = c.inputs.landmark_log_weight = {};
    });
  }
}

BOOST_AUTO_TEST_CASE(attention_tensors) {
  spoiled("q", "rank 4", [](SparseCall& c) { c.inputs.q = c.q.view().select(0, 0); });
  spoiled("q", "a tensor", [](SparseCall& c) { c.inputs.q = {}; });
  spoiled("q", "memory", [](SparseCall& c) { c.inputs.q.data = nullptr; });
  spoiled("k", "float32", [](SparseCall& c) { c.inputs.k.dtype = DType::f64; });
  spoiled("k", "[2,2,7,8]", [](SparseCall& c) { c.inputs.k.shape[3] = 4; });
  spoiled("v", "[2,2,7,3]", [](SparseCall& c) { c.inputs.v.shape[2] = 6; });
  spoiled("q", "multiple of the 2", [](SparseCall& c) { c.inputs.q.shape[1] = 3; });
  spoiled("q", "cuda:0", [](SparseCall& c) { c.inputs.q.device = {DeviceType::cuda, 0}; });
  spoiled("window", "Hw of 1 or Hq = 4", [](SparseCall& c) { c.inputs.window.shape[1] = 2; });
  spoiled("window", "int32 or float32", [](SparseCall& c) { c.inputs.window.dtype = DType::bf16; });
  spoiled("window", "floating-point window", [](SparseCall& c) { c.inputs.window.dtype = DType::i32; });
  spoiled("landmarks", "Hl of 1 or Hq = 4", [](SparseCall& c) { c.inputs.landmarks.shape[1] = 2; });
  spoiled("landmarks", "= 3 lists", [](SparseCall& c) { c.inputs.landmarks.shape[2] = 2; });
  spoiled("landmarks", "T = 1", [](SparseCall& c) { c.problem.landmark_chunk.reset(); });
  spoiled("landmark_log_weight", "landmarks beside it", [](SparseCall& c) { c.inputs.landmarks = {}; });
  spoiled("landmark_log_weight", "shape of landmarks",
          [](SparseCall& c) { c.inputs.landmark_log_weight.shape[3] = 4; });
  spoiled("out", "does not overlap", [](SparseCall& c) { c.outputs.out.strides[0] = 0; });
  spoiled("out", "[2,4,6,3]", [](SparseCall& c) { c.outputs.out.shape[3] = 2; });
  spoiled("lse", "float32", [](SparseCall& c) { c.outputs.lse.dtype = DType::f64; });
}

BOOST_AUTO_TEST_CASE(landmark_weights_must_be_finite_only_where_they_are_used) {
  spoiled("landmark_log_weight", "nan at [1,0,2,4]", [](SparseCall& c) { c.weight.view().at<float>(29)[0] = NAN; });
  SparseCall call;
  call.weight.view().at<float>(29)[0] = NAN;
  call.landmarks.view().at<std::int32_t>(29)[0] = 7;  // outside [0,nk): an unused slot
  BOOST_CHECK_NO_THROW(call.run());
}

BOOST_AUTO_TEST_CASE(lengths) {
  std::int32_t lengths[] = {7, 8};
  spoiled("k_lengths", "8 at entry 1", [&](SparseCall& c) { c.inputs.k_lengths = TensorView::of(lengths, {2}); });
  std::int32_t cu[] = {0, 1, 2};
  spoiled("cu_seqlens_k", "a tensor", [&](SparseCall& c) { c.inputs.cu_seqlens_q = TensorView::of(cu, {3}); });
  spoiled("k_lengths", "none together", [&](SparseCall& c) {
    c.inputs.cu_seqlens_q = c.inputs.cu_seqlens_k = TensorView::of(cu, {3});
    c.inputs.k_lengths = TensorView::of(lengths, {2});
  });

  const auto backend = make_backend("reference");
  const Tensor rows = Tensor::zeros({4, 1, 2}, DType::f32);
  const auto packed = [&](std::initializer_list<std::int32_t> q, std::initializer_list<std::int32_t> k) {
    AttentionInputs in{rows, rows, rows, {}, {}, {}, {}, {}, {}, {}};
    in.cu_seqlens_q = TensorView::of(std::data(q), {static_cast<std::int64_t>(q.size())});
    in.cu_seqlens_k = TensorView::of(std::data(k), {static_cast<std::int64_t>(k.size())});
    attention_forward(*backend, {}, in, {Tensor::zeros({4, 1, 2}, DType::f32), {}});
  };
  BOOST_CHECK_NO_THROW(packed({0, 1, 4}, {0, 0, 3}));
  check_refused([&] { packed({1, 4}, {0, 4}); }, "cu_seqlens_q", "need 0");
  check_refused([&] { packed({0, 3, 2}, {0, 1, 4}); }, "cu_seqlens_q", "do not decrease");
  check_refused([&] { packed({0, 4}, {0, 5}); }, "cu_seqlens_k", "4 rows");
  check_refused([&] { packed({0, 4}, {0, 2, 4}); }, "cu_seqlens_k", "shape of cu_seqlens_q");
  check_refused([&] { packed({}, {}); }, "cu_seqlens_q", "at least one entry");
}

BOOST_AUTO_TEST_CASE(page_tables) {
  const auto backend = make_backend("reference");
  const Tensor q = Tensor::zeros({2, 4, 3, 8}, DType::f32), out = Tensor::zeros({2, 4, 3, 5}, DType::f32);
  const Tensor k = Tensor::zeros({6, 2, 4, 8}, DType::f32), v = Tensor::zeros({6, 2, 4, 5}, DType::f32);
  std::int32_t entries[] = {5, 0, 3, 3, 1, 6}, lengths[] = {12, 8}, cu[] = {0, 1, 2};
  const auto attend = [&](const auto& spoil) {
    AttentionInputs in;
    in.q = q, in.k = k, in.v = v;
    in.k_lengths = TensorView::of(lengths, {2});
    in.page_table = TensorView::of(entries, {2, 3});
    spoil(in);
    attention_forward(*backend, {}, in, {out, {}});
  };
  const auto refused = [&](const char* name, const char* need, const auto& spoil) {
    check_refused([&] { attend(spoil); }, name, need);
  };
  BOOST_CHECK_NO_THROW(attend([](AttentionInputs&) {}));  // the 6 is not read
  refused("k_lengths", "beside page_table", [](AttentionInputs& in) { in.k_lengths = {}; });
  refused("page_table", "rank 2 [B,M]", [](AttentionInputs& in) { in.page_table = in.page_table.select(0, 0); });
  refused("page_table", "[B,M] = [2,3]", [](AttentionInputs& in) { in.page_table = in.page_table.narrow(0, 0, 1); });
  refused("page_table", "int32", [](AttentionInputs& in) { in.page_table.dtype = DType::f32; });
  refused("page_table", "cuda:0", [](AttentionInputs& in) { in.page_table.device = {DeviceType::cuda, 0}; });
  refused("page_table", "none together", [&](AttentionInputs& in) {
    in.cu_seqlens_q = in.cu_seqlens_k = TensorView::of(cu, {3});
    in.k_lengths = {};
  });
  refused("k", "[P,Hkv,page,D] = [6,2,4,8]", [](AttentionInputs& in) { in.k.shape[3] = 4; });
  refused("v", "[P,Hkv,page,Dv] = [6,2,4,5]", [](AttentionInputs& in) { in.v.shape[0] = 5; });
  refused("v", "[P,Hkv,page,Dv] = [6,2,4,5]", [](AttentionInputs& in) { in.v.shape[2] = 3; });
  refused("k", "at least one row", [](AttentionInputs& in) { in.k.shape[2] = in.v.shape[2] = 0; });
  lengths[0] = 13;
  refused("k_lengths", "13 at entry 0", [](AttentionInputs&) {});
  refused("k_lengths", "from 0 to 12", [](AttentionInputs&) {});
  lengths[0] = 12, lengths[1] = 9;
  refused("page_table", "6 at [1,2]", [](AttentionInputs&) {});
  refused("page_table", "one of the 6 pages of k in the first 3 entries", [](AttentionInputs&) {});
  lengths[1] = 8, entries[1] = -1;
  refused("page_table", "-1 at [0,1]", [](AttentionInputs&) {});
  lengths[0] = 4;
  BOOST_CHECK_NO_THROW(attend([](AttentionInputs&) {}));

  AttentionInputs in;
  in.q = q, in.k = k, in.v = v;
  in.k_lengths = TensorView::of(lengths, {2});
  in.page_table = TensorView::of(entries, {2, 3});
  const Tensor lse = Tensor::zeros({2, 4, 3}, DType::f32), dq = Tensor::zeros({2, 4, 3, 8}, DType::f32);
  check_refused(
      [&] {
        attention_backward(*backend, {}, in, {out, lse, out, {}}, {dq, {}, {}, {}, {}});
      },
      "page_table", "none in the backward pass");
  BOOST_CHECK(backend->supports({}, in, Direction::forward));
  BOOST_CHECK(!backend->supports({}, in, Direction::backward));
}

BOOST_AUTO_TEST_CASE(room_of_a_page_table) {
  std::int32_t entry = 0, length = 1;
  const Tensor q = Tensor::zeros({1, 1, 1, 1}, DType::f32), k = Tensor::zeros({1, 1, 2, 1}, DType::f32);
  AttentionInputs in;
  in.q = q, in.k = in.v = k;
  in.k_lengths = TensorView::of(&length, {1});
  in.page_table = TensorView::of(&entry, {1, 1});
  in.page_table.shape[1] = std::numeric_limits<std::int64_t>::max();  // a broadcast: M page is no 64-bit number
  in.page_table.strides[1] = 0;
  const Tensor out = Tensor::zeros({1, 1, 1, 1}, DType::f32);
  const auto backend = make_backend("reference");
  BOOST_CHECK_NO_THROW(attention_forward(*backend, {}, in, {out, {}}));
}

BOOST_AUTO_TEST_CASE(gradients_need_something_to_belong_to) {
  SparseCall c;
  const AttentionSaved saved{c.out, c.lse, c.out, {}};
  AttentionGradients gradients;
  gradients.dwindow = c.window;
  BOOST_CHECK_NO_THROW(attention_backward(*c.backend, c.problem, c.inputs, saved, gradients));
  c.inputs.window = {};
  c.problem.soft_edge.reset();
  check_refused([&] { attention_backward(*c.backend, c.problem, c.inputs, saved, gradients); }, "dwindow", "none");
  check_refused(
      [&] {
        attention_backward(*c.backend, c.problem, c.inputs, {c.out, c.lse, {}, {}}, {});
      },
      "dout", "tensor");
}

BOOST_AUTO_TEST_CASE(selectors) {
  const auto backend = make_backend("reference");
  const Tensor x = Tensor::zeros({2, 5, 3}, DType::f32), weight = Tensor::zeros({4, 3}, DType::f32);
  const Tensor bias = Tensor::zeros({4}, DType::f32), window = Tensor::zeros({2, 4, 5}, DType::f32);
  const auto windows = [&](WindowProblem problem, TensorView bias_view) {
    window_sizes_forward(*backend, problem, {x, weight, bias_view}, window);
  };
  check_refused([&] { windows({0.5, 2, false}, bias); }, "n_min", ">= 1");
  check_refused([&] { windows({3, 2, false}, bias); }, "n_max", ">= 3");
  check_refused([&] { windows({1, 2, false}, weight); }, "bias", "[Hw]");

  const Tensor nx = Tensor::zeros({2, 5}, DType::f32), nv = Tensor::zeros({2, 2, 5}, DType::f32);
  const Tensor alpha = Tensor::zeros({4}, DType::f32), lists = Tensor::zeros({2, 4, 3, 2}, DType::i32);
  const Tensor scores = Tensor::zeros({2, 4, 3, 2}, DType::f32), weights = Tensor::zeros({2, 4, 3, 2}, DType::f32);
  SelectionProblem problem;
  problem.k = 2;
  problem.chunk = 2;
  const auto select = [&](const SelectionProblem& p) {
    select_landmarks_forward(*backend, p, {nx, nv, alpha, {}}, {lists, scores, weights});
  };
  BOOST_CHECK_NO_THROW(select(problem));
  SelectionProblem bad = problem;
  bad.chunk.reset();
  check_refused([&] { select(bad); }, "chunk", "causal");
  bad = problem;
  bad.policy = SelectionPolicy::global;
  check_refused([&] { select(bad); }, "chunk", "global");
  bad = problem;
  bad.tau = 0;
  check_refused([&] { select(bad); }, "tau", "> 0");
  bad = problem;
  bad.recent = -1;
  check_refused([&] { select(bad); }, "recent", "at least 0");
  bad = problem;
  bad.k = 3;
  check_refused([&] { select(bad); }, "landmarks", "[2,4,3,3]");
}

BOOST_AUTO_TEST_CASE(network_pieces) {
  const auto backend = make_backend("reference");
  const Tensor x = Tensor::zeros({3, 4}, DType::f32), odd = Tensor::zeros({1, 1, 2, 3}, DType::f32);
  const Tensor loss = Tensor::zeros({}, DType::f32), weight = Tensor::zeros({5, 4}, DType::f32);
  check_refused([&] { rmsnorm_forward(*backend, {}, {x, loss}, x); }, "gamma", "[d]");
  check_refused([&] { rope_forward(*backend, {}, {odd, {}, {}}, odd); }, "x", "even");
  check_refused([&] { swiglu_forward(*backend, {x, weight}, x); }, "up", "shape of gate");
  const std::int32_t labels[] = {0, 5, -100};
  check_refused(
      [&] {
        cross_entropy_forward(*backend, {}, {x, weight, TensorView::of(labels, {3})}, loss);
      },
      "labels", "5 at row 1");
  AdamWProblem adamw;
  adamw.step = 0;
  check_refused([&] { adamw_step(*backend, adamw, {x, x, x, x}, {x, x, x}); }, "step", "at least 1");
  adamw.step = 1;
  const Tensor wide = Tensor::zeros({3, 4}, DType::f64);
  check_refused([&] { adamw_step(*backend, adamw, {x, wide, x, x}, {x, x, x}); }, "grad", "no float64");
}

BOOST_AUTO_TEST_SUITE_END()
