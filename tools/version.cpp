// dsalt --version: what was built, with what, and what this machine can do.
#include "dsalt/version.hpp"

#include "amx.hpp"
#include "commands.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/registry.hpp"

namespace dsalt::tools {
namespace {

/// Instruction sets that matter to the CPU backend and that this processor has.
std::string detected_isa() {
#if defined(__x86_64__)
  std::string isa = "x86-64";
#define DSALT_DETECT(feature) \
  if (__builtin_cpu_supports(feature)) isa += " " feature
  DSALT_DETECT("avx2");
  DSALT_DETECT("fma");
  DSALT_DETECT("avx512f");
  DSALT_DETECT("avx512bw");
  DSALT_DETECT("avx512vl");
  DSALT_DETECT("avx512bf16");
#undef DSALT_DETECT
  if (internal::has_amx_bf16()) isa += " amx-bf16";
  return isa;
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "not known to this program";
#endif
}

#if defined(__clang__)
constexpr const char* compiler = "clang";
#else
constexpr const char* compiler = "g++";
#endif

/// The backend that "auto" takes, or why it takes none.
std::string automatic() {
  try {
    return std::string(make_backend("auto")->name());
  } catch (const Error& error) {
    return std::string("cannot be used: ") + error.what();
  }
}

std::string or_unknown(const char* version) { return *version ? version : "unknown"; }

}  // namespace

std::string version_text() {
  std::string backends;
  for (const BackendInfo& info : list_backends())
    backends +=
        (backends.empty() ? "" : ", ") + info.name + (info.available ? "" : " (unavailable: " + info.detail + ")");
  return std::string("dsalt ") + DSALT_VERSION_STRING + "\nbackends   " + backends + "\nauto       " + automatic() +
         "\nbuild      " + or_unknown(DSALT_BUILD_TYPE) + ", " + compiler + " " + __VERSION__ +
         ", DSALT_CUDA=" + DSALT_BUILD_CUDA + "\nopenmp     " + or_unknown(DSALT_BUILD_OPENMP) + "\nhdf5       " +
         or_unknown(DSALT_BUILD_HDF5) + "\neigen      " + or_unknown(DSALT_BUILD_EIGEN) + "\nprocessor  " +
         detected_isa();
}

}  // namespace dsalt::tools
