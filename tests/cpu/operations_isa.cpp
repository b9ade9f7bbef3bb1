// Ends the program as skipped where DSALT_CPU_ISA names kernels that this processor does not run; CTest runs the
// program once for each instruction set.
#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "dsalt/dsalt.hpp"
#include "kernels.hpp"

namespace {

struct InstructionSet {
  InstructionSet() {
    const char* wanted = std::getenv("DSALT_CPU_ISA");
    if (!wanted || std::string_view(wanted).empty()) return;
    dsalt::internal::KernelChoice choices[dsalt::internal::most_kernels];
    const int count = dsalt::internal::available_kernels(choices);
    for (int n = 0; n < count; ++n)
      if (std::string_view(choices[n].key) == wanted) return;
    std::printf("skipped: this processor does not run %s\n", wanted);
    std::fflush(stdout);
    std::_Exit(77);
  }
};

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(InstructionSet);

BOOST_AUTO_TEST_CASE(the_backend_runs_on_the_named_kernels) {
  const auto& chosen = dsalt::internal::select_kernels(std::getenv("DSALT_CPU_ISA"));
  BOOST_TEST(dsalt::make_backend("cpu")->description().find(chosen.name) != std::string::npos);
}
