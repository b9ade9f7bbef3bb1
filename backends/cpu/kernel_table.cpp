// Chooses the kernel table of the running machine; DSALT_CPU_ISA forces one.
#include <string>
#include <string_view>

#include "amx.hpp"
#include "dsalt/errors.hpp"
#include "kernels.hpp"

namespace dsalt::internal {

int available_kernels(KernelChoice (&choices)[most_kernels]) {
  int count = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (avx512bf16 && has_amx_bf16()) choices[count++] = {"amxbf16", &kernels_amxbf16};
  if (avx512bf16) choices[count++] = {"avx512bf16", &kernels_avx512bf16};
  if (avx512) choices[count++] = {"avx512", &kernels_avx512};
  if (avx2) choices[count++] = {"avx2", &kernels_avx2};
#endif
  choices[count++] = {"scalar", &kernels_scalar};
  return count;
}

const Kernels& select_kernels(const char* isa) {
  KernelChoice choices[most_kernels];
  const int count = available_kernels(choices);
  const std::string_view wanted = isa ? isa : "";
  std::string names;
  for (int n = 0; n < count; ++n) {
    const bool refused = choices[n].table->enter && (wanted.empty() || wanted == choices[n].key) && !request_amx_bf16();
    if (refused) continue;
    if (wanted.empty() || wanted == choices[n].key) return *choices[n].table;
    names += (n ? ", " : "") + std::string(choices[n].key);
  }
  throw InvalidArgument("DSALT_CPU_ISA: got \"" + std::string(wanted) +
                        "\", need one that this machine runs: " + names);
}

}  // namespace dsalt::internal
