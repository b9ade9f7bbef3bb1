// Shapes as text, statistics of times, and which instruction set a description speaks of.
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "bench/data.hpp"
#include "bench/shape.hpp"
#include "bench/statistics.hpp"
#include "dsalt/errors.hpp"
#include "peak.hpp"

using namespace dsalt;
using namespace dsalt::benchmark;

BOOST_AUTO_TEST_SUITE(shapes)

BOOST_AUTO_TEST_CASE(written_shapes_are_read_back) {
  BOOST_TEST(numbered_shapes().size() == 12u);
  for (const Shape& shape : numbered_shapes()) {
    BOOST_TEST(to_string(parse_shape(std::to_string(shape.number))) == to_string(shape));
    BOOST_TEST(to_string(parse_shape(to_string(shape))) == to_string(shape));
  }
  for (const char* text : {"1,8/2,51x2560,64,full", "2,3,4,5,causal", "1,2,3,4,100..200,7", "1,1,1x9,8,0,0"})
    BOOST_TEST(to_string(parse_shape(text)) == text);
  BOOST_TEST(to_string(parse_shape("1,2,3,4")) == "1,2,3,4,causal");
  BOOST_TEST(full_name(settled(parse_shape("11"), "", 128)) == "1,8,8192,64,256,32 constant chunk 128");
  BOOST_TEST(full_name(settled(parse_shape("10"), "", 0)) == "1,8,65536,128,512,64 uniform shared");
  BOOST_TEST(full_name(settled(parse_shape("1,16/1,4096,128,none,2048/1"), "", 1)) ==
             "1,16/1,4096,128,none,2048/1 chunk 1");
  BOOST_TEST(full_name(settled(parse_shape("8"), "bimodal", 128)) == "64,32,1x32768,64,1024,64 bimodal shared");
}

BOOST_AUTO_TEST_CASE(paged_caches_stand_beside_those_in_one_piece) {
  const auto shapes = with_pages({settled(parse_shape("8"), "", 0), settled(parse_shape("12"), "", 0)}, {16, 300});
  std::vector<std::string> names;
  for (const Shape& shape : shapes) names.push_back(full_name(shape));
  const std::vector<std::string> expected = {"64,32,1x32768,64,1024,64 constant shared",
                                             "64,32,1x32768,64,1024,64 constant shared pages of 16",
                                             "64,32,1x32768,64,1024,64 constant shared pages of 300",
                                             "1,8,4096,64,causal",
                                             "1,8,4096,64,causal pages of 16",
                                             "1,8,4096,64,causal pages of 300"};
  BOOST_TEST(names == expected, boost::test_tools::per_element());

  const Tensor table = draw_page_table(shapes[2]);  // ceil(32768 / 300) pages for each of 64 sequences
  BOOST_TEST(table.view().shape[0] == 64);
  BOOST_TEST(table.view().shape[1] == 110);
  std::vector<std::int32_t> pages(table.view().at<std::int32_t>(0), table.view().at<std::int32_t>(64 * 110));
  int in_place = 0;
  for (std::size_t n = 0; n < pages.size(); ++n) in_place += pages[n] == static_cast<std::int32_t>(n);
  BOOST_TEST(in_place < 20);
  std::sort(pages.begin(), pages.end());
  for (std::size_t n = 0; n < pages.size(); ++n) BOOST_REQUIRE(pages[n] == static_cast<std::int32_t>(n));
}

BOOST_AUTO_TEST_CASE(bad_shapes_say_what_came_and_what_is_needed) {
  for (const char* text :
       {"", "0", "13", "-1", "1,2,3", "1,2,3,4,5,6,7", "1,3/2,4,8", "1,2,3x4x5,8", "1,2,0,8", "a,2,3,4", "1,2,3,4,-1",
        "1,2,3,4,9..3", "1,2,3,4,full,3", "1,2,3,4,5,", "1,2, 3,4", "16777216,16777216,16777216,64"})
    BOOST_CHECK_EXCEPTION(parse_shape(text), InvalidArgument, [&](const InvalidArgument& error) {
      const std::string what = error.what();
      return what.starts_with("--shape: got \"" + std::string(text) + "\"") && what.find("need ") != std::string::npos;
    });
  BOOST_CHECK_THROW(settled(Shape{}, "other", 0), InvalidArgument);
}

BOOST_AUTO_TEST_CASE(windows_are_drawn_between_their_ends) {
  for (const auto& [name, low, high] : {std::tuple("constant", 160, 160), std::tuple("uniform", 10, 160)}) {
    const Tensor windows = draw_windows(settled(parse_shape("1,2,5000,4,160"), name, 0));
    int least = 1 << 30, most = 0;
    for (std::int64_t n = 0; n < windows.view().size(); ++n) {
      least = std::min(least, *windows.view().at<std::int32_t>(n));
      most = std::max(most, *windows.view().at<std::int32_t>(n));
    }
    BOOST_TEST(least == low);
    BOOST_TEST(most == high);
  }
  const Tensor bimodal = draw_windows(settled(parse_shape("1,2,5000,4,160"), "bimodal", 0));
  std::int64_t large = 0;
  for (std::int64_t n = 0; n < 10000; ++n) {
    const std::int32_t w = *bimodal.view().at<std::int32_t>(n);
    BOOST_REQUIRE((w == 10 || w == 160));
    large += w == 160;
  }
  BOOST_TEST(large > 4700);
  BOOST_TEST(large < 5300);
}

BOOST_AUTO_TEST_CASE(statistics_by_hand) {
  BOOST_TEST(quantile({3}, 0.9) == 3);
  BOOST_TEST(quantile({1, 2, 4}, 0.5) == 2);
  BOOST_TEST(quantile({0, 10}, 0.1) == 1);
  BOOST_TEST(quantile({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.9) == 9);
  BOOST_TEST(std::fabs(log_log_slope({1, 2, 4, 8}, {5, 20, 80, 320}).value() - 2) < 1e-12);
  BOOST_TEST(!log_log_slope({4}, {2}).has_value());
  BOOST_TEST(!log_log_slope({4, 4}, {2, 3}).has_value());
  BOOST_TEST(!log_log_slope({}, {}).has_value());
}

BOOST_AUTO_TEST_CASE(instruction_sets) {
  using internal::isa_of_description, internal::measure_peak, internal::PeakKind;
  BOOST_TEST(isa_of_description("OpenMP, AVX-512, 2 threads") == "avx512");
  BOOST_TEST(isa_of_description("OpenMP, AVX2, 1 thread") == "avx2");
  BOOST_TEST(isa_of_description("OpenMP, AVX-512 BF16, 64 threads") == "avx512bf16");
  BOOST_TEST(isa_of_description("OpenMP, AMX-BF16, 64 threads") == "amxbf16");
  BOOST_TEST(isa_of_description("OpenMP, scalar, 2 threads") == "scalar");
  BOOST_TEST(measure_peak("scalar", PeakKind::f32, 1).value() > 0);
  BOOST_TEST(!measure_peak("scalar", PeakKind::bf16, 1).has_value());
  BOOST_TEST(!measure_peak("avx512", PeakKind::bf16, 1).has_value());
  BOOST_TEST(!measure_peak("nothing", PeakKind::f32, 1).has_value());
}

BOOST_AUTO_TEST_CASE(copied_arrays_are_no_smaller_than_asked_for) {
  constexpr std::size_t piece = 4u << 20, bytes = 20u << 20;
  for (const int threads : {1, 2, 3, 4})
    BOOST_TEST(static_cast<std::size_t>(internal::ArrayCopies(bytes, threads).pieces() * threads) * piece >= bytes);
}

BOOST_AUTO_TEST_SUITE_END()
