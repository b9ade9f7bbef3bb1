// The backend inside other people's processes: nested in a parallel region, after fork(), with gradual underflow left
// on.
#include <boost/test/unit_test.hpp>

#include <cfloat>
#include <chrono>
#include <csignal>
#include <thread>

#include <omp.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attention_support.hpp"

using namespace dsalt;
using namespace dsalt::test;

namespace {

Setup ordinary() {
  Setup setup;
  setup.name = "ordinary";
  setup.problem.mask = Mask::sparse;
  setup.hq = 4;
  setup.hkv = 2;
  setup.nq = setup.nk = 200;
  setup.window = ragged;
  setup.slots = 10;
  setup.weights = true;
  setup.landmark = [](auto h, auto t, auto slot) { return untidy(h, t, slot, 200); };
  return setup;
}

bool equal(const Results& a, const Results& b) {
  for (const auto& [name, tensor] : a)
    if (!same_bytes(tensor, b.at(name))) return false;
  return a.size() == b.size();
}

/// Whether the description names this number of threads.
bool says(const Backend& backend, const std::string& threads) {
  return backend.description().find(", " + threads + ";") != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(cpu_attention_process)

BOOST_AUTO_TEST_CASE(inside_a_parallel_region) {
  const Call call = draw(ordinary());
  const Results expected = run(*cpu_backend(2), call, true);
  Results results[2];
#pragma omp parallel num_threads(2)
  {
    const auto backend = cpu_backend(3);
    results[omp_get_thread_num()] = run(*backend, call, true);
  }
  check_same_bytes(expected, results[0], "nested");
  if (!results[1].empty()) check_same_bytes(expected, results[1], "nested");
}

BOOST_AUTO_TEST_CASE(from_two_threads_at_once) {
  const Call call = draw(ordinary());
  const Results expected = run(*cpu_backend(2), call, true);
  Results results[2];
  std::thread other([&] { results[0] = run(*cpu_backend(2), call, true); });
  results[1] = run(*cpu_backend(2), call, true);
  other.join();
  for (const Results& result : results) check_same_bytes(expected, result, "two host threads");
}

BOOST_AUTO_TEST_CASE(after_fork) {
  const Call call = draw(ordinary());
  const auto backend = cpu_backend(2);
  const Results expected = run(*backend, call, true);  // OpenMP's threads exist now
  BOOST_TEST(says(*backend, "2 threads"));
  const pid_t child = ::fork();
  BOOST_TEST_REQUIRE(child >= 0);
  if (child == 0) {
    const bool one = says(*backend, "1 thread") && says(*cpu_backend(0), "1 thread");
    const bool same = equal(expected, run(*backend, call, true)) && equal(expected, run(*cpu_backend(2), call, true));
    ::_exit(one && same ? 0 : one ? 2 : 3);
  }
  int status = 0;
  pid_t ended = 0;
  for (int n = 0; n < 1000 && ended == 0; ++n) {  // ten seconds
    ended = ::waitpid(child, &status, WNOHANG);
    if (ended == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (ended == 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  BOOST_TEST(ended == child, "the forked child hung");
  BOOST_TEST((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  BOOST_TEST(says(*backend, "2 threads"));  // the parent keeps its own
  check_same_bytes(expected, run(*backend, call, true), "parent after fork");
}

BOOST_AUTO_TEST_CASE(gradual_underflow_stays_on) {
  run(*cpu_backend(2), draw(ordinary()), true);
  volatile double smallest = DBL_MIN;
  BOOST_TEST(smallest / 2 != 0);
  int lost = 0;
#pragma omp parallel num_threads(2) reduction(+ : lost)
  {
    volatile float tiny = FLT_MIN;
    lost += tiny / 2 == 0;
  }
  BOOST_TEST(lost == 0);
}

BOOST_AUTO_TEST_CASE(what_it_says_about_itself) {
  BOOST_TEST(says(*cpu_backend(1), "1 thread"));
  BOOST_TEST(says(*cpu_backend(7), "7 threads"));
  BOOST_CHECK_THROW(cpu_backend(-1), InvalidArgument);
  const auto backend = cpu_backend(2);
  BOOST_TEST(!backend->supports(Operation::attention, Direction::forward, DType::f64));
  for (const Operation operation : all_operations) {
    const Reproducibility forward = backend->reproducibility(operation, Direction::forward);
    BOOST_TEST((forward.run && forward.threads && forward.batch && forward.prefill));
    const Reproducibility backward = backend->reproducibility(operation, Direction::backward);
    BOOST_TEST((backward.run && backward.threads && backward.batch && !backward.prefill));
  }
}

BOOST_AUTO_TEST_SUITE_END()
