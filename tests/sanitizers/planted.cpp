// Planted faults: a sanitizer build must report each of them, and must not report the sound program.
#include <climits>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

constexpr int count = 100000;

/// Every kind of OpenMP synchronisation that libdsalt relies on. Free of races.
double sound() {
  std::vector<double> a(count), b(8);
  double sum = 0;
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < count; ++i) a[static_cast<std::size_t>(i)] = i;
#pragma omp parallel for num_threads(4) reduction(+ : sum) schedule(dynamic, 100)
  for (int i = 0; i < count; ++i) sum += a[static_cast<std::size_t>(count - 1 - i)];
#pragma omp parallel num_threads(4)
  {
#pragma omp for nowait
    for (std::size_t i = 0; i < 8; ++i) b[i] = a[i];
#pragma omp barrier
#pragma omp for
    for (std::size_t i = 0; i < 8; ++i) a[i] = b[7 - i];
#pragma omp critical
    sum += a[0];
  }
  return sum;
}

double race() {
  double sum = 0;
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < count; ++i) sum += i;
  return sum;
}

double overflow(std::size_t past) {
  std::vector<double> a(8, 1.0);
  return *(a.data() + past);
}

double undefined(int by) { return INT_MAX + by; }

}  // namespace

int main(int argc, char** argv) {
  const std::string_view fault = argc > 1 ? argv[1] : "none";
  double result = sound();
  if (fault == "race") result += race();
  if (fault == "overflow") result += overflow(static_cast<std::size_t>(argc) + 6);
  if (fault == "undefined") result += undefined(argc);
  std::printf("%s: %g\n", argv[1] ? argv[1] : "sound", result);
}
