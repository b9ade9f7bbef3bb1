// What a thread does around products of pairs: Kernels::enter and leave. Not for kernels.cpp (see kernels.hpp).
#pragma once

#include "kernels.hpp"

namespace dsalt::internal {

class KernelScope {
 public:
  /// Does nothing unless there are going to be products of pairs.
  KernelScope(const Kernels& kernels, bool pairs) : kernels_(kernels), entered_(pairs && kernels.enter) {
    if (entered_) kernels_.enter(&before_);
  }
  ~KernelScope() {
    if (entered_) kernels_.leave(&before_);
  }
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

 private:
  const Kernels& kernels_;
  bool entered_;
  TileState before_;
};

}  // namespace dsalt::internal
