// dsalt bench: operations x shapes x dtypes x backends, each held against what the device can do at most.
#include <fnmatch.h>

#include <algorithm>

#include "bench/compare.hpp"
#include "bench/format.hpp"
#include "bench/machine.hpp"
#include "bench/runner.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/version.hpp"
#include "output_file.hpp"

namespace dsalt::tools {
namespace {

using namespace benchmark;

/// Operations beside attention are run at this shape unless shapes are named.
constexpr int usual_shape = 11;

std::vector<std::string> selected_operations(const BenchArguments& arguments) {
  std::vector<std::string> globs = arguments.operations, selected;
  if (globs.empty()) globs = {arguments.scaling ? "attention" : "*"};
  for (const std::string& glob : globs) {
    bool found = false;
    for (const std::string& name : operation_names()) {
      if (fnmatch(glob.c_str(), name.c_str(), 0) != 0) continue;
      found = true;
      if (std::find(selected.begin(), selected.end(), name) == selected.end()) selected.push_back(name);
    }
    if (!found)
      throw InvalidArgument("--operation: got \"" + glob + "\", which matches none; need a name or shell pattern of " +
                            "those that dsalt bench --list shows");
  }
  return selected;
}

std::vector<DType> selected_dtypes(const BenchArguments& arguments) {
  constexpr std::pair<const char*, DType> names[] = {
      {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"f64", DType::f64}};
  std::vector<DType> dtypes;
  for (const std::string& text : arguments.dtypes) {
    const auto found = std::find_if(std::begin(names), std::end(names), [&](const auto& name) {
      return text == name.first || text == name_of(name.second);
    });
    if (found == std::end(names)) throw InvalidArgument("--dtype: got \"" + text + "\", need f32, bf16, f16 or f64");
    if (std::find(dtypes.begin(), dtypes.end(), found->second) == dtypes.end()) dtypes.push_back(found->second);
  }
  return dtypes.empty() ? std::vector<DType>{DType::f32} : dtypes;
}

/// Each shape with each kind of windows ("": its own), once.
std::vector<Shape> settled_shapes(const BenchArguments& arguments, const std::vector<std::string>& names,
                                  std::vector<std::string> windows) {
  if (windows.empty()) windows.emplace_back();
  std::vector<Shape> shapes;
  for (const std::string& name : names)
    for (const std::string& kind : windows) {
      Shape shape = settled(parse_shape(name), kind, arguments.chunk);
      if (std::none_of(shapes.begin(), shapes.end(),
                       [&](const Shape& other) { return full_name(other) == full_name(shape); }))
        shapes.push_back(std::move(shape));
    }
  return shapes;
}

struct Selection {
  std::vector<std::string> operations;
  std::vector<DType> dtypes;
  std::vector<Shape> attention_shapes, forward_shapes, other_shapes;

  explicit Selection(const BenchArguments& arguments)
      : operations(selected_operations(arguments)), dtypes(selected_dtypes(arguments)) {
    std::vector<std::string> all;
    for (const Shape& shape : numbered_shapes()) all.push_back(std::to_string(shape.number));
    const std::vector<std::string> usual = {std::to_string(usual_shape)};
    attention_shapes = settled_shapes(arguments,
                                      !arguments.shapes.empty() ? arguments.shapes
                                      : arguments.scaling       ? usual
                                                                : all,
                                      arguments.windows);
    forward_shapes = with_pages(attention_shapes, arguments.page_sizes);
    other_shapes = settled_shapes(arguments, arguments.shapes.empty() ? usual : arguments.shapes, {});
  }

  const std::vector<Shape>& shapes(const std::string& operation) const {
    if (operation == "attention") return forward_shapes;
    return operation.starts_with("attention") ? attention_shapes : other_shapes;
  }
};

std::string list_text() {
  std::string text = "operations\n";
  for (const std::string& name : operation_names()) text += "  " + name + "\n";
  text += "\nshapes: number, B,H[/Hkv],N[xNk],D,MASK,K\n";
  for (const Shape& shape : numbered_shapes()) {
    std::string number = std::to_string(shape.number), size = benchmark::to_string(shape);
    if (shape.windows == Windows::uniform) size += " uniform";
    size.resize(std::max<std::size_t>(size.size(), 34), ' ');
    text += std::string(4 - number.size(), ' ') + number + "  " + size + "  " + shape.what + "\n";
  }
  return text + "\nAttention runs at every shape that fits, the other operations at shape " +
         std::to_string(usual_shape) + ", unless --shape names others.\n";
}

void run_rows(Backend& backend, const DeviceLimits& limits, const Selection& selection, const RunOptions& options,
              ProgressLine& progress, std::vector<Row>& rows) {
  std::vector<Workload> work;
  for (const std::string& operation : selection.operations)
    for (const Shape& shape : selection.shapes(operation))
      for (const DType dtype : selection.dtypes)
        for (Workload& each : workloads(operation, shape, dtype)) {
          const bool repeated = std::any_of(work.begin(), work.end(), [&](const Workload& other) {
            return other.operation == each.operation && other.shape == each.shape && other.dtype == each.dtype;
          });
          if (!repeated) work.push_back(std::move(each));
        }
  for (std::size_t n = 0; n < work.size(); ++n) {
    progress.update(std::string(backend.name()) + " " + work[n].operation + " " + work[n].shape + " " +
                        std::string(name_of(work[n].dtype)),
                    n, work.size());
    rows.push_back(run_workload(backend, limits, work[n], options));
  }
}

BackendOptions options_of(const BenchArguments& arguments) {
  BackendOptions options;
  options.threads = arguments.threads;
  options.deterministic = arguments.deterministic;
  return options;
}

void run_backend(Backend& backend, const BenchArguments& arguments, const Selection& selection, ProgressLine& progress,
                 Results& results) {
  const std::string name(backend.name());
  const BackendOptions backend_options = options_of(arguments);
  const auto limits = limits_provider(backend, backend_options);
  progress.update(name + " limits of the device", 0, 1);
  limits->measure();
  const RunOptions options{arguments.min_time, arguments.max_time, limits->copies(), limits->copied_bytes()};

  std::vector<Row> rows;
  if (arguments.scaling) {
    std::size_t done = 0, total = 0;
    ScalingOptions scaling{name, backend_options, options};
    scaling.progress = [&](const std::string& what) { progress.update(name + " " + what, done++, total); };
    const auto for_each = [&](const auto& body) {
      for (const std::string& operation : selection.operations)
        for (const Shape& shape : selection.shapes(operation))
          for (const DType dtype : selection.dtypes) body(operation, shape, dtype);
    };
    for_each([&](const std::string& operation, const Shape& shape, DType dtype) {
      total += scaling_points(operation, shape, dtype, limits->limits(), scaling);
    });
    for_each([&](const std::string& operation, const Shape& shape, DType dtype) {
      for (ScalingSeries& series : run_scaling(operation, shape, dtype, limits->limits(), scaling))
        results.scaling.push_back(std::move(series));
    });
  } else {
    run_rows(backend, limits->limits(), selection, options, progress, rows);
    progress.update(name + " limits of the device, again", rows.size(), rows.size());
    limits->measure();
  }
  for (Row& row : rows) {
    for (const DType dtype : selection.dtypes)
      if (row.dtype == name_of(dtype)) hold_against(limits->limits(), dtype, row);
    results.rows.push_back(std::move(row));
  }
  results.backends.push_back({name, backend.description(), limits->limits()});
}

}  // namespace

int bench(const BenchArguments& arguments) {
  if (arguments.list) {
    print(list_text());
    return success;
  }
  if (!arguments.compare.empty()) {
    const Comparison comparison = compare_files(arguments.compare.at(0), arguments.compare.at(1));
    print(comparison.table);
    if (comparison.common > 0) return success;
    note("no row was measured in both files");
    return check_failed;
  }
  const Selection selection(arguments);
  const OutputFile json(arguments.json), report(arguments.report);
  Results results{DSALT_VERSION_STRING, built_commit(), current_date(), arguments.command, {}, {}, {}};
  std::vector<std::string> names = arguments.backends;
  if (names.empty()) names.emplace_back();
  std::vector<std::unique_ptr<Backend>> backends;  // all of them before the first runs: one may be unavailable
  for (const std::string& name : names) backends.push_back(open_backend(name, options_of(arguments)));
  ProgressLine progress;
  for (const auto& backend : backends) run_backend(*backend, arguments, selection, progress, results);
  progress.finish();

  if (json.wanted()) json.write(to_json(results));
  if (report.wanted()) report.write(to_html(results));
  print(to_table(results));
  const bool measured =
      std::any_of(results.rows.begin(), results.rows.end(), [](const Row& r) { return r.measured(); }) ||
      std::any_of(results.scaling.begin(), results.scaling.end(), [](const ScalingSeries& series) {
        return std::any_of(series.points.begin(), series.points.end(),
                           [](const ScalingPoint& point) { return point.measured(); });
      });
  if (measured) return success;
  note("nothing was measured: every row was skipped");
  return check_failed;
}

}  // namespace dsalt::tools
