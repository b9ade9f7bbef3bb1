// Cases of `merge`: two partial attentions over disjoint keys.
#include "generators/family_list.hpp"

namespace dsalt::verification {
namespace {

void parts(CaseBuilder& c, const Shape& rows, std::int64_t dv, double spread) {
  Shape values = rows;
  values.push_back(dv);
  c.normal("out1", values);
  c.normal("out2", values);
  c.normal_statistics("lse1", rows, spread);
  c.normal_statistics("lse2", rows, spread);
}

/// lse = -infinity where `empty(row)`, and NaN in that row of out, which must not be read.
void empty_rows(CaseBuilder& c, const std::string& part, std::int64_t dv, bool poison,
                const std::function<bool(std::int64_t)>& empty) {
  const std::int64_t rows = c.input("lse" + part).view().size();
  for (std::int64_t row = 0; row < rows; ++row) {
    if (!empty(row)) continue;
    c.overwrite("lse" + part, row, -infinity);
    for (std::int64_t t = 0; t < dv; ++t) c.overwrite("out" + part, row * dv + t, poison ? not_a_number : 0);
  }
}

}  // namespace

void add_merge(FamilyList& list) {
  list.begin("merge/parts", Operation::merge,
             "Two parts of similar or very different weight, in padded, packed and odd shapes.");
  struct Sizes {
    const char* name;
    Shape rows;
    std::int64_t dv;
  };
  for (const Sizes& n : {Sizes{"padded", {2, 3, 17}, 16},
                         {"packed", {23, 4}, 8},
                         {"one_row", {1}, 1},
                         {"vector", {}, 5},
                         {"wide", {3, 2}, 320},
                         {"no_rows", {0, 4}, 8}})
    for (const double spread : {1.0, 60.0})
      list.add(std::string(n.name) + (spread == 1 ? "_similar" : "_spread"), every_dtype, golden,
               [n, spread](CaseBuilder& c) { parts(c, n.rows, n.dv, spread); });
  list.add("far_apart", every_dtype, golden, [](CaseBuilder& c) {  // exp of the lse itself would overflow or vanish
    parts(c, {2, 9}, 8, 1);
    for (std::int64_t row = 0; row < 18; ++row) {
      c.overwrite("lse1", row, row % 2 == 0 ? 60000 : -60000);
      c.overwrite("lse2", row, row % 3 == 0 ? 59999.5 : -60000.25);
    }
  });
  list.add("equal", every_dtype, golden, [](CaseBuilder& c) { parts(c, {4, 6}, 8, 0); });

  list.begin(
      "merge/empty_parts", Operation::merge,
      "A part with lse = -infinity is the exact identity whatever its values; two of them give 0 and -infinity.");
  for (const bool poison : {false, true}) {
    const std::string suffix = poison ? "_poisoned" : "";
    list.add("first" + suffix, every_dtype, golden, [poison](CaseBuilder& c) {
      parts(c, {2, 7}, 8, 3);
      empty_rows(c, "1", 8, poison, [](std::int64_t row) { return row % 2 == 0; });
    });
    list.add("second" + suffix, every_dtype, golden, [poison](CaseBuilder& c) {
      parts(c, {2, 7}, 8, 3);
      empty_rows(c, "2", 8, poison, [](std::int64_t row) { return row % 3 != 0; });
    });
    list.add("both" + suffix, every_dtype, golden, [poison](CaseBuilder& c) {
      parts(c, {2, 7}, 8, 3);
      empty_rows(c, "1", 8, poison, [](std::int64_t row) { return row % 4 < 2; });
      empty_rows(c, "2", 8, poison, [](std::int64_t row) { return row % 4 == 1 || row % 4 == 2; });
    });
  }
  list.begin("merge/strided", Operation::merge, "Parts stored in other orders and inside larger buffers.");
  list.add("permuted", every_dtype, quick, [](CaseBuilder& c) {
    parts(c, {2, 3, 9}, 8, 2);
    c.permute_storage("out1", {3, 1, 2, 0});
    c.permute_storage("lse1", {2, 1, 0});
    c.embed("out2");
    c.embed("lse2");
  });
}

}  // namespace dsalt::verification
