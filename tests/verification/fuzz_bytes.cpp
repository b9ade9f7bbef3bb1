// Damaged case files: cut short, and with random bytes. Our own files carry checksums; files in the oldest HDF5 format
// (what h5py writes) do not, and there the HDF5 library itself may crash.
#include <boost/test/unit_test.hpp>
#include <random>

#include "fuzz_support.hpp"
#include "hdf5_by_hand.hpp"

using namespace fuzz_support;

namespace {

std::vector<char> our_file(const Scratch& scratch) {
  CaseWriter writer(scratch / "ours.h5", "fuzzed");
  for (const char* name : {"rope/positions/packed_f16", "merge/parts/vector_spread_f64", "swiglu/shapes/scalar_bf16"}) {
    Case c = generate_case(name);
    std::replace(c.name.begin(), c.name.end(), '/', '.');
    writer.add(c);
  }
  writer.commit();
  return bytes_of(scratch / "ours.h5");
}

std::vector<char> oldest_format_file(const Scratch& scratch) {
  {
    const by_hand::File file(scratch / "old.h5");
    for (const char* name : {"first", "second"}) {
      H5Gclose(by_hand::add_swiglu(file, name));
      const hid_t c = H5Gopen2(file.cases, name, H5P_DEFAULT);
      by_hand::File::variable_text(c, "note", "of variable length");
      H5Gclose(c);
    }
  }
  return bytes_of(scratch / "old.h5");
}

struct Counts {
  int valid = 0, refused = 0, crashed = 0;
  void take(Verdict verdict) {
    ++(verdict == Verdict::valid ? valid : verdict == Verdict::refused ? refused : crashed);
  }
};

Counts flip(const Scratch& scratch, const std::vector<char>& bytes, int rounds, unsigned seed, bool several) {
  std::mt19937 random(seed);
  Counts counts;
  for (int round = 0; round < rounds; ++round) {
    std::vector<char> damaged = bytes;
    std::string what;
    for (int n = several ? 1 + static_cast<int>(random() % 8) : 1; n > 0; --n) {
      const std::size_t at = random() % bytes.size();
      damaged[at] = static_cast<char>(random() % 4 == 0 ? 0xff : random() % 256);
      what += " " + std::to_string(at) + "=" + std::to_string(static_cast<unsigned char>(damaged[at]));
    }
    write_bytes(scratch / "damaged.h5", damaged);
    const Verdict verdict = judge(scratch / "damaged.h5");
    BOOST_TEST((verdict != Verdict::crashed), "crashed with bytes" << what);
    counts.take(verdict);
  }
  return counts;
}

Counts truncate(const Scratch& scratch, const std::vector<char>& bytes, std::size_t step) {
  Counts counts;
  for (std::size_t length = 0; length < bytes.size(); length += step) {
    write_bytes(scratch / "short.h5", {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)});
    const Verdict verdict = judge(scratch / "short.h5");
    BOOST_TEST((verdict == Verdict::refused), "cut at " << length);
    counts.take(verdict);
  }
  return counts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fuzz_bytes)

BOOST_AUTO_TEST_CASE(whole_files_are_valid) {
  const Scratch scratch;
  our_file(scratch);
  BOOST_TEST((judge(scratch / "ours.h5") == Verdict::valid));
  oldest_format_file(scratch);
  BOOST_TEST((judge(scratch / "old.h5") == Verdict::refused));  // "note" is no attribute of swiglu
  BOOST_TEST(CaseReader(scratch / "old.h5").names().size() == 2u);
}

BOOST_AUTO_TEST_CASE(cut_at_every_37th_byte) {
  const Scratch scratch;
  BOOST_TEST(truncate(scratch, our_file(scratch), 37).refused > 150);
  BOOST_TEST(truncate(scratch, oldest_format_file(scratch), 37).refused > 100);
}

BOOST_AUTO_TEST_CASE(flipped_bytes_in_our_files) {
  const Scratch scratch;
  const auto bytes = our_file(scratch);
  const Counts one = flip(scratch, bytes, 700, 1, false), several = flip(scratch, bytes, 300, 2, true);
  BOOST_TEST_MESSAGE("one byte: " << one.valid << " valid, " << one.refused << " refused; several: " << several.valid
                                  << " valid, " << several.refused << " refused");
  BOOST_TEST(one.valid > 0);  // in the data, or in nothing that matters
  BOOST_TEST(one.refused > 200);
  BOOST_TEST(several.refused > 200);
}

BOOST_AUTO_TEST_CASE(flipped_bytes_in_the_oldest_format) {
  const Scratch scratch;
  const auto bytes = oldest_format_file(scratch);
  const Counts one = flip(scratch, bytes, 700, 3, false), several = flip(scratch, bytes, 300, 4, true);
  BOOST_TEST(one.crashed + several.crashed == 0);
}

BOOST_AUTO_TEST_CASE(random_bytes_behind_the_signature) {
  const Scratch scratch;
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    std::vector<char> noise(64 + random() % 4000);
    for (char& byte : noise) byte = static_cast<char>(random());
    const char signature[] = {'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};
    std::copy(std::begin(signature), std::end(signature), noise.begin());
    noise[8] = static_cast<char>(round % 4);  // superblock version
    write_bytes(scratch / "noise.h5", noise);
    BOOST_TEST((judge(scratch / "noise.h5") == Verdict::refused), "round " << round);
  }
}

BOOST_AUTO_TEST_SUITE_END()
