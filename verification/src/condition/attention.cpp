// Attention, by enumeration of every admitted (i, j) in double. With
//   size_i   max(|lse_i|, max_j |scale| (sum_d |q k| + g(D) |sum_d q k|) + |beta|)     the partial sums of a dot
//   product
//            stay near its terms when signs are mixed, and grow with it when it is large
//   rho_i    u_acc (1 + size_i + g(n_i)), the relative error of P_ij; n_i admitted keys
//   r_i      u_in + rho_i, where P or dS may be rounded to the main dtype before the second matrix product
//   f        the keep factors of dropout
// the conditions are
//   lse      rho_i
//   out      O_i r_i,                    O_i = sum_j P f |v|
//   |delta|  = sum_d O_i |do|            delta is formed from out, which carries r_i
//   |ds|     = P (f sum_d |do||v| + |delta| + |dlse|)
//   dq       |scale| sum_j |ds| |k| r_i
//   dk       |scale| sum_{h,i} |ds| |q| (r_i + u_acc g(m))      m terms in the sum over the group's rows
//   dv       sum_{h,i} P f |do| (r_i + u_acc g(m))
//   dw       sum |ds| (1 - sigma(z))/tau (r_i + u_acc (2 + |z|)),  z = (w - e)/tau
//   dlambda  sum |ds| (r_i + u_acc g(m))
// P and dS below the smallest normal number (16-bit: the subnormal spacing) round absolutely, not relatively: `floor`.
#include <algorithm>
#include <array>
#include <cmath>

#include "condition/condition.hpp"
#include "internal/admitted.hpp"
#include "internal/dropout.hpp"

namespace dsalt::verification {
namespace {

using internal::AttentionSequence;

struct Pair {
  double signed_sum, terms;
};

/// <a,b> and sum |a b|, in four chains.
Pair dot(const double* a, const double* b, std::int64_t n) {
  std::array<double, 4> sum{}, terms{};
  std::int64_t t = 0;
  for (; t + 4 <= n; t += 4)
    for (std::size_t lane = 0; lane < 4; ++lane) {
      const double product = a[t + static_cast<std::int64_t>(lane)] * b[t + static_cast<std::int64_t>(lane)];
      sum[lane] += product;
      terms[lane] += std::fabs(product);
    }
  for (; t < n; ++t) {
    sum[0] += a[t] * b[t];
    terms[0] += std::fabs(a[t] * b[t]);
  }
  return {(sum[0] + sum[1]) + (sum[2] + sum[3]), (terms[0] + terms[1]) + (terms[2] + terms[3])};
}

/// Adds factor |x| to y.
void add_absolute(double factor, const double* x, double* y, std::int64_t n) {
  for (std::int64_t t = 0; t < n; ++t) y[t] += factor * std::fabs(x[t]);
}

/// A [heads, rows, width] or [heads, rows] piece of one sequence as contiguous doubles.
struct Rows {
  Array array;
  explicit Rows(const TensorView& view) {
    if (view.present()) array = dense(view);
  }
  /// The sequence's k or v: through its page table where there is one.
  Rows(const AttentionSequence& sequence, const TensorView& keys) {
    if (!sequence.page_table.present()) {
      array = dense(keys);
      return;
    }
    array.shape = {keys.shape[0], sequence.nk, keys.shape[3]};
    for (std::int64_t g = 0; g < keys.shape[0]; ++g)
      for (std::int64_t j = 0; j < sequence.nk; ++j) {
        const Array row = dense(sequence.key_row(keys, g, j));
        array.data.insert(array.data.end(), row.data.begin(), row.data.end());
      }
  }
  bool present() const { return !array.shape.empty(); }
  std::int64_t width() const { return array.shape.size() == 3 ? array.shape[2] : 1; }
  const double* operator()(std::int64_t h, std::int64_t i) const {
    return array.data.data() + (h * array.shape[1] + i) * width();
  }
};

/// Sums over query rows that end in one key's or one slot's element: terms with their error, and how many there are.
struct Accumulated {
  std::vector<double> terms, errors;
  std::vector<std::int64_t> count;  // per row of `width` elements
  std::int64_t width;
  Accumulated(std::int64_t rows, std::int64_t row_width)
      : terms(static_cast<std::size_t>(rows * row_width)),
        errors(terms.size()),
        count(static_cast<std::size_t>(rows)),
        width(row_width) {}
  void add(std::int64_t row, double factor, double relative, double floor, const double* x) {
    add_absolute(factor, x, terms.data() + row * width, width);
    add_absolute(factor * relative + floor, x, errors.data() + row * width, width);
    ++count[static_cast<std::size_t>(row)];
  }
  double condition(std::int64_t element, double u_acc) const {
    const auto n = static_cast<std::size_t>(element);
    return errors[n] + u_acc * growth(count[static_cast<std::size_t>(element / width)]) * terms[n];
  }
};

class SequenceCondition {
 public:
  SequenceCondition(const CallRecorder& call, const AttentionSequence& sequence, const Units& u, Tensors& condition)
      : call_(call),
        problem_(call.attention_problem),
        sequence_(sequence),
        u_(u),
        condition_(condition),
        packed_(call.attention_inputs.cu_seqlens_q.present()),
        q_(sequence.q),
        k_(sequence, sequence.k),
        v_(sequence, sequence.v),
        dout_(sequence.query_rows(call.attention_saved.dout, packed_)),
        dlse_(sequence.query_rows(call.attention_saved.dlse, packed_)),
        mask_{problem_, sequence},
        hq_(sequence.q.shape[0]),
        hkv_(sequence.k.shape[0]),
        d_(q_.width()),
        dv_width_(v_.width()),
        scale_(std::fabs(problem_.scale.value_or(1 / std::sqrt(static_cast<double>(d_))))),
        dk_(backward() ? hkv_ * sequence.nk : 0, d_),
        dv_(backward() ? hkv_ * sequence.nk : 0, dv_width_),
        dwindow_(dwindow_rows(), 1),
        dlambda_(dlambda_rows(), 1) {}

  void run() {
    for (std::int64_t h = 0; h < hq_; ++h)
      for (std::int64_t i = 0; i < sequence_.nq; ++i) row(h, i);
    if (!backward()) return;
    write(sequence_.key_rows(condition_.at("dk"), packed_), dk_);
    write(sequence_.key_rows(condition_.at("dv"), packed_), dv_);
    if (condition_.contains("dwindow")) write(sequence_.query_rows(condition_.at("dwindow"), packed_), dwindow_);
    if (condition_.contains("dlandmark_log_weight"))
      write(condition_.at("dlandmark_log_weight").view().select(0, sequence_.b), dlambda_);
  }

 private:
  bool backward() const { return call_.attention_saved.dout.present(); }
  std::int64_t dwindow_rows() const { return condition_.contains("dwindow") ? sequence_.window.size() : 0; }
  std::int64_t dlambda_rows() const {
    return condition_.contains("dlandmark_log_weight") ? sequence_.landmark_log_weight.size() : 0;
  }

  void row(std::int64_t h, std::int64_t i) {
    mask_.admitted(h, i, keys_);
    if (keys_.empty()) return;  // out 0, lse -inf, gradients 0: nothing is rounded
    const std::int64_t kv = h / (hq_ / hkv_);
    const double size = weights(h, i, kv);
    const double rho = u_.acc * (1 + size + growth(static_cast<std::int64_t>(keys_.size())));
    const double relative = u_.in + rho;
    const double floor = (u_.in > u_.acc ? u_.in_floor : 0) + u_.acc_floor;
    element(condition_.at("lse"), h, i, 0) = rho;

    out_terms_.assign(static_cast<std::size_t>(dv_width_), 0);
    out_floor_.assign(static_cast<std::size_t>(dv_width_), 0);
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      add_absolute(weight_[n] * keep_[n], v_(kv, keys_[n].j), out_terms_.data(), dv_width_);
      add_absolute(floor * keep_[n], v_(kv, keys_[n].j), out_floor_.data(), dv_width_);
    }
    for (std::int64_t t = 0; t < dv_width_; ++t)
      element(condition_.at("out"), h, i, t) =
          out_terms_[static_cast<std::size_t>(t)] * relative + out_floor_[static_cast<std::size_t>(t)];
    if (backward()) gradients(h, i, kv, relative, floor);
  }

  /// Fills weight_ and keep_; returns size_i.
  double weights(std::int64_t h, std::int64_t i, std::int64_t kv) {
    const double sign_scale = problem_.scale && *problem_.scale < 0 ? -scale_ : scale_;
    weight_.resize(keys_.size());
    keep_.assign(keys_.size(), 1);
    double largest = -INFINITY, size = 0;
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const Pair product = dot(q_(h, i), k_(kv, keys_[n].j), d_);
      weight_[n] = sign_scale * product.signed_sum + keys_[n].bias;
      size = std::max(size,
                      scale_ * (product.terms + growth(d_) * std::fabs(product.signed_sum)) + std::fabs(keys_[n].bias));
      largest = std::max(largest, weight_[n]);
      if (problem_.dropout)
        keep_[n] = internal::dropout_factor(*problem_.dropout, sequence_.b * hq_ + h, i, keys_[n].j);
    }
    double sum = 0;
    for (const double score : weight_) sum += std::exp(score - largest);
    const double lse = largest + std::log(sum);
    for (double& score : weight_) score = std::exp(score - lse);
    return std::max(size, std::fabs(lse));
  }

  void gradients(std::int64_t h, std::int64_t i, std::int64_t kv, double relative, double floor) {
    const double* dout = dout_(h, i);
    double delta = dlse_.present() ? std::fabs(*dlse_(h, i)) : 0;
    for (std::int64_t t = 0; t < dv_width_; ++t) delta += std::fabs(dout[t]) * out_terms_[static_cast<std::size_t>(t)];
    dq_.assign(static_cast<std::size_t>(d_), 0);
    for (std::size_t n = 0; n < keys_.size(); ++n) {
      const std::int64_t j = keys_[n].j, key = kv * sequence_.nk + j;
      const double upstream = keep_[n] * dot(dout, v_(kv, j), dv_width_).terms + delta;
      const double ds = weight_[n] * upstream;
      const double ds_floor = floor * (1 + upstream);
      add_absolute(scale_ * (ds * relative + ds_floor), k_(kv, j), dq_.data(), d_);
      dk_.add(key, scale_ * ds, relative, scale_ * ds_floor, q_(h, i));
      dv_.add(key, weight_[n] * keep_[n], relative, floor * keep_[n], dout);
      if (keys_[n].slot >= 0)
        landmark_gradient(h, i, keys_[n].slot, ds, relative, ds_floor);
      else if (problem_.soft_edge)
        window_gradient(h, i, j, ds, relative, ds_floor);
    }
    for (std::int64_t t = 0; t < d_; ++t) element(condition_.at("dq"), h, i, t) = dq_[static_cast<std::size_t>(t)];
  }

  void window_gradient(std::int64_t h, std::int64_t i, std::int64_t j, double ds, double relative, double floor) {
    const double w = mask_.window(h, i);
    const std::int64_t e = mask_.distance(i, j);
    if (dwindow_.count.empty() || !internal::in_soft_edge(*problem_.soft_edge, w, e)) return;
    const double z = (w - static_cast<double>(e)) / problem_.soft_edge->tau;
    const double slope = internal::sigmoid(-z) / problem_.soft_edge->tau;
    const std::int64_t head = sequence_.window.shape[0] == 1 ? 0 : h;
    const std::int64_t row = head * sequence_.nq + i;
    dwindow_.add(row, ds, relative + u_.acc * (2 + std::fabs(z)), floor, &slope);
    dwindow_.errors[static_cast<std::size_t>(row)] +=
        ds * u_.acc_floor / problem_.soft_edge->tau;  // 1 - sigma underflows
  }

  void landmark_gradient(std::int64_t h, std::int64_t i, std::int64_t slot, double ds, double relative, double floor) {
    if (dlambda_.count.empty()) return;
    const TensorView& lists = sequence_.landmark_log_weight;
    const std::int64_t head = lists.shape[0] == 1 ? 0 : h;
    const double one = 1;
    dlambda_.add((head * lists.shape[1] + mask_.list_of(i)) * lists.shape[2] + slot, ds, relative, floor, &one);
  }

  /// Element (h, i, t) of a condition shaped like out, q or lse.
  double& element(const Tensor& tensor, std::int64_t h, std::int64_t i, std::int64_t t) const {
    const TensorView view = sequence_.query_rows(tensor, packed_);
    return *view.at<double>(h * view.strides[0] + i * view.strides[1] + (view.rank == 3 ? t * view.strides[2] : 0));
  }

  void write(const TensorView& view, const Accumulated& sums) const {
    std::int64_t n = 0;
    internal::for_each_element([&](std::int64_t at) { *view.at<double>(at) = sums.condition(n++, u_.acc); }, view);
  }

  const CallRecorder& call_;
  const AttentionProblem& problem_;
  const AttentionSequence& sequence_;
  const Units& u_;
  Tensors& condition_;
  bool packed_;
  Rows q_, k_, v_, dout_, dlse_;
  internal::RowMask mask_;
  std::int64_t hq_, hkv_, d_, dv_width_;
  double scale_;
  Accumulated dk_, dv_, dwindow_, dlambda_;
  std::vector<internal::AdmittedKey> keys_;
  std::vector<double> weight_, keep_, out_terms_, out_floor_, dq_;
};

}  // namespace

Tensors attention_condition(const CallRecorder& call, const Tensors& reference, const Units& u) {
  Tensors condition;
  for (const auto& [name, tensor] : reference)
    condition[name] =
        Tensor::zeros({tensor.view().shape.data(), static_cast<std::size_t>(tensor.view().rank)}, DType::f64);
  const internal::AttentionSizes sizes = internal::attention_sizes(call.attention_inputs);
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const AttentionSequence sequence = internal::attention_sequence(call.attention_inputs, b);
    SequenceCondition(call, sequence, u, condition).run();
  }
  return condition;
}

}  // namespace dsalt::verification
