// The golden files in data/: the documented commands reproduce them byte for byte, and every backend holds against
// them.
#include <boost/test/unit_test.hpp>

#include "case_support.hpp"
#include "dsalt/verification/golden.hpp"

using namespace case_support;

namespace {

struct Documented {
  std::string glob, file;
};

/// The `dsalt golden generate --case 'GLOB' -o data/FILE` lines of data/README.md.
std::vector<Documented> documented() {
  std::ifstream readme(DSALT_DATA "/README.md");
  BOOST_REQUIRE(readme.good());
  const std::string before = "dsalt golden generate --case '", between = "' -o data/";
  std::vector<Documented> found;
  for (std::string line; std::getline(readme, line);) {
    const std::size_t start = line.find(before), middle = line.find(between);
    if (start == std::string::npos || middle == std::string::npos) continue;
    const std::size_t glob = start + before.size();
    found.push_back({line.substr(glob, middle - glob), line.substr(middle + between.size())});
  }
  return found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_data)

BOOST_AUTO_TEST_CASE(one_small_file_per_operation) {
  std::uintmax_t bytes = 0;
  std::vector<std::string> files;
  for (const Documented& entry : documented()) files.push_back(entry.file);
  for (const auto& entry : std::filesystem::directory_iterator(DSALT_DATA)) {
    if (entry.path().extension() != ".h5") continue;
    bytes += entry.file_size();
    BOOST_TEST((std::find(files.begin(), files.end(), entry.path().filename()) != files.end()),
               entry.path() << " has no command in README.md");
  }
  BOOST_TEST(bytes < 1'000'000u);
  BOOST_TEST(files.size() == std::size(all_operations));
  for (const Operation op : all_operations)
    BOOST_TEST((std::find(files.begin(), files.end(), std::string(name_of(op)) + ".h5") != files.end()), name_of(op));
}

BOOST_AUTO_TEST_CASE(commands_reproduce_the_bytes) {
  const Scratch scratch;
  for (const Documented& entry : documented()) {
    generate_golden(scratch / entry.file, entry.glob);
    BOOST_TEST((bytes_of(scratch / entry.file) == bytes_of(DSALT_DATA "/" + entry.file)), entry.file);
  }
}

BOOST_AUTO_TEST_CASE(every_host_backend_holds) {
  for (const BackendInfo& info : list_backends()) {
    if (!info.available) continue;
    const auto backend = make_backend(info.name);
    std::size_t passed = 0;
    for (const Documented& entry : documented())
      for (const Result& result : check_golden(DSALT_DATA "/" + entry.file, *backend)) {
        BOOST_TEST((result.status != Status::failed), info.name << " " << result.name << ": " << result.message);
        passed += result.status == Status::passed;
      }
    BOOST_TEST_MESSAGE(info.name << ": " << passed << " golden cases");
    BOOST_TEST(passed > 60u, info.name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
