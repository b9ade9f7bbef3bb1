// Sparse attention over six tokens: each sees itself, the token before it, and one landmark, token 0.
#include <dsalt/dsalt.hpp>
#include <iostream>
#include <vector>

int main(int argc, char** argv) try {
  using dsalt::TensorView;
  const auto backend = dsalt::make_backend(argc > 1 ? argv[1] : "");  // "reference", "cpu", "cuda"; "" chooses
  std::vector<float> q(6 * 8, 0.5f), k(6 * 8, 0.25f), v = {0, 1, 2, 3, 4, 5}, out(6);
  std::vector<std::int32_t> window(6, 1), landmarks = {0};

  dsalt::attention_forward(*backend, {.mask = dsalt::Mask::sparse},
                           {.q = TensorView::of(q.data(), {1, 1, 6, 8}),  // [B,Hq,Nq,D]
                            .k = TensorView::of(k.data(), {1, 1, 6, 8}),
                            .v = TensorView::of(v.data(), {1, 1, 6, 1}),
                            .window = TensorView::of(window.data(), {1, 1, 6}),
                            .landmarks = TensorView::of(landmarks.data(), {1, 1, 1, 1})},
                           {.out = TensorView::of(out.data(), {1, 1, 6, 1})});

  std::cout << backend->name() << ':';
  for (const float value : out) std::cout << ' ' << value;  // the means of the values each token sees
  std::cout << '\n';
} catch (const dsalt::Error& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
