// Whether AMX may be used, for those that choose instruction sets.
#pragma once

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dsalt::internal {

#if defined(__x86_64__) && defined(__linux__)
inline constexpr long tile_data = 18;  // XFEATURE_XTILEDATA
#endif

/// Whether the processor has AMX with bfloat16 and the system knows it (Linux from 5.16 on).
inline bool has_amx_bf16() {
#if defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  constexpr long ask_for_supported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  unsigned long long supported = 0;
  return ::syscall(SYS_arch_prctl, ask_for_supported, &supported) == 0 && (supported >> tile_data & 1) != 0;
#else
  return false;
#endif
}

/// Asks the system for leave to use AMX, for all threads of this process and for good; false where it has none or does
/// not give it. Asking again changes nothing.
inline bool request_amx_bf16() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long request_permission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  return has_amx_bf16() && ::syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
  return false;
#endif
}

}  // namespace dsalt::internal
