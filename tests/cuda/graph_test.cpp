// Every operation can be captured into a CUDA graph on the caller's stream, and replayed on new numbers.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "calls.hpp"
#include "gpu_support.hpp"

using namespace dsalt;
using namespace gpu_test;

namespace {

/// What `work` puts on the stream, as a graph that can be launched again and again.
class Graph {
 public:
  template <class Work>
  Graph(const Stream& stream, Work&& work) {
    // the strictest mode: nothing that could wait may be called meanwhile, by any thread
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    try {
      work();
    } catch (...) {
      cudaGraph_t broken = nullptr;
      cudaStreamEndCapture(stream.get(), &broken);
      if (broken) cudaGraphDestroy(broken);
      throw;
    }
    require(cudaStreamEndCapture(stream.get(), &graph_), "cudaStreamEndCapture");
    require(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Graph() {
    if (executable_) cudaGraphExecDestroy(executable_);
    if (graph_) cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const { require(cudaGraphLaunch(executable_, stream.get()), "cudaGraphLaunch"); }
  std::size_t nodes() const {
    std::size_t count = 0;
    require(cudaGraphGetNodes(graph_, nullptr, &count), "cudaGraphGetNodes");
    return count;
  }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

void check_capture(DType dtype, bool deterministic) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get(), deterministic);
  for (const Call& call : every_call(*cuda, dtype)) {
    BOOST_TEST_CONTEXT(call.name << " in " << name_of(dtype)) {
      call.run(*cuda);  // the first call may take memory and load code; a capture may not
      const std::vector<double> expected = outputs_of(*cuda, call);
      clear_outputs(*cuda, call);
      try {
        const Graph graph(stream, [&] { call.run(*cuda); });
        stream.wait();
        BOOST_TEST(graph.nodes() > 0u);
        const std::vector<double> captured = outputs_of(*cuda, call);
        BOOST_TEST(std::count(captured.begin(), captured.end(), 0) == static_cast<std::ptrdiff_t>(captured.size()),
                   "capturing ran the work");
        for (int replay = 0; replay < 3; ++replay) {
          clear_outputs(*cuda, call);
          graph.launch(stream);
          const double error = difference(outputs_of(*cuda, call), expected);
          BOOST_TEST(error <= (deterministic ? 0 : allowed(dtype)), "replay " << replay);
        }
        call.run(*cuda);  // eager calls go on as before
        BOOST_TEST(difference(outputs_of(*cuda, call), expected) <= (deterministic ? 0 : allowed(dtype)));
        graph.launch(stream);
        BOOST_TEST(difference(outputs_of(*cuda, call), expected) <= (deterministic ? 0 : allowed(dtype)));
      } catch (const std::exception& error) {
        BOOST_ERROR(error.what());
        cudaGetLastError();
      }
    }
  }
}

/// Window sizes, energies, landmark lists and the attention that reads them, each from what the one before wrote.
class Pipeline {
 public:
  Pipeline(Backend& backend, SelectionPolicy policy) : backend_(backend) {
    selection_.policy = policy;
    selection_.k = 12;
    if (policy == SelectionPolicy::causal) selection_.chunk = chunk;
    problem_.mask = Mask::sparse;
    if (policy == SelectionPolicy::causal) problem_.landmark_chunk = chunk;
    const std::int64_t lists = landmark_list_count(selection_, n);
    for (Tensor* list : {&landmarks_, &score_, &weight_})
      *list = zeros({1, heads, lists, selection_.k}, list == &landmarks_ ? DType::i32 : DType::f32);
  }

  void run() {
    window_sizes_forward(backend_, {.n_min = 4, .n_max = 60}, {.x = x_, .weight = window_weight_, .bias = window_bias_},
                         window_);
    energies_forward(backend_, {.x = x_, .v = v_}, {.nx = nx_, .nv = nv_});
    SelectionInputs energies;
    energies.nx = nx_;
    energies.nv = nv_;
    energies.alpha_raw = alpha_;
    select_landmarks_forward(backend_, selection_, energies,
                             {.landmarks = landmarks_, .score = score_, .landmark_log_weight = weight_});
    AttentionInputs in;
    in.q = q_;
    in.k = k_;
    in.v = v_;
    in.window = window_;
    in.landmarks = landmarks_;
    in.landmark_log_weight = weight_;
    attention_forward(backend_, problem_, in, {.out = out_, .lse = lse_});
  }
  void set_inputs(std::uint64_t seed) {
    for (const Tensor* tensor : {&x_, &q_, &k_, &v_, &window_weight_, &window_bias_, &alpha_}) {
      const TensorView view = tensor->view();
      const Shape shape(view.shape.begin(), view.shape.begin() + view.rank);
      const Tensor numbers = random_host(shape, view.dtype, seed++);
      backend_.copy_from_host(view.data, numbers.view().data,
                              static_cast<std::size_t>(view.size()) * size_of(view.dtype));
    }
    backend_.synchronize();
  }
  std::vector<double> outputs() { return outputs_of(backend_, call()); }
  void clear() { clear_outputs(backend_, call()); }

 private:
  static constexpr std::int64_t n = 700, heads = 4, kv_heads = 2, width = 64, model = 256, chunk = 96;
  Tensor zeros(const Shape& shape, DType dtype) { return on_device(backend_, Tensor::zeros(shape, dtype)); }
  Call call() { return {"pipeline", {}, {window_, nx_, nv_, landmarks_, score_, weight_, out_, lse_}}; }

  Backend& backend_;
  SelectionProblem selection_;
  AttentionProblem problem_;
  Tensor x_ = zeros({1, n, model}, DType::bf16), q_ = zeros({1, heads, n, width}, DType::bf16),
         k_ = zeros({1, kv_heads, n, width}, DType::bf16), v_ = zeros({1, kv_heads, n, width}, DType::bf16);
  Tensor window_weight_ = zeros({heads, model}, DType::f32), window_bias_ = zeros({heads}, DType::f32),
         alpha_ = zeros({heads}, DType::f32);
  Tensor window_ = zeros({1, heads, n}, DType::f32), nx_ = zeros({1, n}, DType::f32),
         nv_ = zeros({1, kv_heads, n}, DType::f32), landmarks_, score_, weight_,
         out_ = zeros({1, heads, n, width}, DType::bf16), lse_ = zeros({1, heads, n}, DType::f32);
};

}  // namespace

BOOST_AUTO_TEST_SUITE(graphs)

BOOST_AUTO_TEST_CASE(every_operation_is_captured) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) check_capture(dtype, false);
}

BOOST_AUTO_TEST_CASE(deterministic_operations_replay_the_same_bits) {
  for (const DType dtype : {DType::f32, DType::bf16}) check_capture(dtype, true);
}

BOOST_AUTO_TEST_CASE(several_calls_are_one_graph) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get(), true);
  const std::vector<Call> calls = every_call(*cuda, DType::bf16);
  std::vector<std::vector<double>> expected;
  for (const Call& call : calls) {
    call.run(*cuda);
    expected.push_back(outputs_of(*cuda, call));
    clear_outputs(*cuda, call);
  }
  const Graph graph(stream, [&] {
    for (const Call& call : calls) call.run(*cuda);
  });
  for (int replay = 0; replay < 5; ++replay) graph.launch(stream);
  for (std::size_t n = 0; n < calls.size(); ++n)
    BOOST_TEST(difference(outputs_of(*cuda, calls[n]), expected[n]) == 0, calls[n].name);
}

BOOST_AUTO_TEST_CASE(a_replay_reads_new_inputs) {
  const Stream stream;
  const auto cuda = make_cuda(stream.get());
  const Tensor gate = on_device(*cuda, random_host({64}, DType::f32, 1));
  const Tensor up = on_device(*cuda, random_host({64}, DType::f32, 2));
  const Tensor y = on_device(*cuda, Tensor::zeros({64}, DType::f32));
  swiglu_forward(*cuda, {gate, up}, y);
  cuda->synchronize();
  const Graph graph(stream, [&] { swiglu_forward(*cuda, {gate, up}, y); });
  const Tensor other = random_host({64}, DType::f32, 3);
  cuda->copy_from_host(up.view().data, other.view().data, 64 * sizeof(float));
  cuda->synchronize();
  graph.launch(stream);
  const Tensor replayed = on_host(*cuda, y);
  swiglu_forward(*cuda, {gate, up}, y);
  const Tensor eager = on_host(*cuda, y);
  for (int n = 0; n < 64; ++n) BOOST_TEST(*replayed.view().at<float>(n) == *eager.view().at<float>(n));
}

BOOST_AUTO_TEST_CASE(selection_and_attention_are_one_graph) {
  for (const SelectionPolicy policy : {SelectionPolicy::global, SelectionPolicy::causal}) {
    BOOST_TEST_CONTEXT(name_of(policy)) {
      const Stream stream;
      const auto cuda = make_cuda(stream.get(), true);
      Pipeline pipeline(*cuda, policy);
      pipeline.set_inputs(1);
      pipeline.run();  // the first call may take memory and load code; a capture may not
      cuda->synchronize();
      const Graph graph(stream, [&] { pipeline.run(); });
      for (const std::uint64_t seed : {1, 100, 200}) {
        pipeline.set_inputs(seed);
        pipeline.run();
        const std::vector<double> expected = pipeline.outputs();
        pipeline.clear();
        graph.launch(stream);
        BOOST_TEST(difference(pipeline.outputs(), expected) == 0, "inputs " << seed);
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
