// Links dsalt::verification from an installed prefix and calls into it.
#include <dsalt/verification/suites.hpp>
#include <iostream>

int main() {
  for (const dsalt::verification::SuiteInfo& suite : dsalt::verification::suites()) std::cout << suite.name << '\n';
}
