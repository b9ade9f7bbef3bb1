// The kernel tables that this machine can run.
#pragma once

#include <vector>

#include "amx.hpp"
#include "kernels.hpp"

namespace dsalt::test {

inline std::vector<const internal::Kernels*> tables() {
  internal::KernelChoice choices[internal::most_kernels];
  std::vector<const internal::Kernels*> list;
  const int count = internal::available_kernels(choices);
  for (int n = 0; n < count; ++n)
    if (!choices[n].table->enter || internal::request_amx_bf16()) list.push_back(choices[n].table);
  return list;
}

}  // namespace dsalt::test
