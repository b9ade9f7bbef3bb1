// dsalt-gpu-bench: operations of the CUDA backend without what it costs to start them (captured into CUDA graphs), and
// how far attention is from the definition on rows of the same tensors. What `scripts/peer-attention-gpu.py` runs.
#include <CLI/CLI.hpp>
#include <csignal>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/format.hpp"
#include "console.hpp"
#include "dsalt/errors.hpp"
#include "dsalt/registry.hpp"
#include "dsalt/version.hpp"
#include "exit_code.hpp"
#include "gpu_bench/graph_timing.hpp"
#include "gpu_bench/row_errors.hpp"
#include "gpu_bench/selection.hpp"
#include "guarded.hpp"
#include "output_file.hpp"

namespace {

using namespace dsalt;
using namespace dsalt::benchmark;
using namespace dsalt::tools;
using Json = nlohmann::ordered_json;

struct Arguments {
  std::vector<std::string> operations = {"attention"}, shapes, dtypes = {"bf16"};
  std::string windows, json;
  std::vector<std::int64_t> page_sizes;
  std::int64_t chunk = 128, rows = 64;
  int device = 0;
  double min_time = 0.2;
  bool deterministic = false;
};

DType dtype_from(const std::string& name) {
  for (const auto& [text, dtype] :
       {std::pair{"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}, {"f64", DType::f64}})
    if (name == text) return dtype;
  throw InvalidArgument("--dtype: got \"" + name + "\", need f32, bf16, f16 or f64");
}

/// A row of the table.
struct Item {
  Shape shape;
  Workload work;
  std::optional<Workload> attention = {};  // what the row's time is a share of
};

/// All rows of the logits of cross_entropy, not the 1024 that `dsalt bench` runs.
std::vector<Item> items_of(const std::string& operation, const Shape& shape, DType dtype) {
  std::vector<Item> items;
  if (operation == "selection") {
    for (const SelectionPipeline& pipeline : selection_pipelines(shape, dtype))
      items.push_back({shape, pipeline.selection, pipeline.attention});
  } else if (operation == "cross_entropy" || operation == "cross_entropy_backward") {
    const Direction direction = operation == "cross_entropy" ? Direction::forward : Direction::backward;
    items.push_back({shape, cross_entropy_workload(shape, dtype, direction, shape.tokens())});
  } else {
    for (const Workload& work : workloads(operation, shape, dtype)) items.push_back({shape, work});
  }
  return items;
}

Json of_timing(const Timing& timing) {
  return {{"median_s", timing.median},
          {"p10_s", timing.p10},
          {"p90_s", timing.p90},
          {"repetitions", timing.repetitions},
          {"calls_per_repetition", timing.calls}};
}

/// Ready to be timed: the first call takes memory and loads code, which a capture may not.
Prepared prepared_for(Backend& backend, const Workload& work) {
  Prepared prepared = work.prepare(backend, {});
  prepared.call();
  backend.synchronize();
  return prepared;
}

/// One row: from a graph, eagerly, and the errors.
Json measure(Backend& backend, const WorkStream& stream, const Item& item, const Arguments& arguments) {
  const Workload& work = item.work;
  Json row = {
      {"operation", work.operation}, {"shape", work.shape}, {"dtype", name_of(work.dtype)}, {"skipped", nullptr}};
  try {
    if (!work.refused.empty()) throw Unsupported(work.refused);
    if (const Support support = backend.supports(work.kind, work.direction, work.dtype); !support)
      throw Unsupported(support.reason);
    const Prepared prepared = prepared_for(backend, work);
    row["flop"] = prepared.cost.flop;
    row["bytes"] = prepared.cost.bytes;
    row["pairs"] = prepared.cost.pairs ? Json(*prepared.cost.pairs) : Json();
    row["graph"] = of_timing(time_graph(stream, prepared.call, arguments.min_time));
    row["eager"] = of_timing(time_calls(backend, prepared.call, arguments.min_time));
    if (item.attention) {
      const Prepared attention = prepared_for(backend, *item.attention);
      row["attention"] = of_timing(time_graph(stream, attention.call, arguments.min_time));
      row["share_of_attention"] = row["graph"]["median_s"].get<double>() / row["attention"]["median_s"].get<double>();
    }
    if (work.kind != Operation::attention || arguments.rows == 0) return row;
    const RowErrors errors = sampled_errors(backend, item.shape, work.direction, prepared, arguments.rows);
    row["error"] = {{"of", work.direction == Direction::forward ? "out" : "dq"},
                    {"rows", errors.rows},
                    {"largest", errors.largest},
                    {"rms", errors.rms},
                    {"magnitude", errors.magnitude}};
  } catch (const Unsupported& error) {
    row["skipped"] = error.what();
  } catch (const DeviceError& error) {
    row["skipped"] = error.what();
  } catch (const std::bad_alloc&) {
    row["skipped"] = "memory ran out";
  }
  return row;
}

std::string line_of(const Json& row) {
  std::string text = row["operation"].get<std::string>() + "  " + row["shape"].get<std::string>() + "  " +
                     row["dtype"].get<std::string>() + "  ";
  if (!row["skipped"].is_null()) return text + "skipped: " + row["skipped"].get<std::string>() + "\n";
  const double graph = row["graph"]["median_s"].get<double>(), flop = row["flop"].get<double>();
  text += "graph " + seconds_text(graph) + "  eager " + seconds_text(row["eager"]["median_s"].get<double>());
  if (flop > 0) text += "  " + number_text(flop / graph * 1e-12) + " TFLOP/s";
  text += "  " + number_text(row["bytes"].get<double>() / graph * 1e-9) + " GB/s";
  if (row.contains("attention"))
    text += "  " + number_text(100 * row["share_of_attention"].get<double>()) + " % of attention's " +
            seconds_text(row["attention"]["median_s"].get<double>());
  if (row.contains("error"))
    text += "  " + row["error"]["of"].get<std::string>() + " off by " +
            number_text(row["error"]["largest"].get<double>()) + " at most, RMS " +
            number_text(row["error"]["rms"].get<double>()) + " of " +
            number_text(row["error"]["magnitude"].get<double>());
  return text + "\n";
}

int run(const Arguments& arguments, const std::string& command) {
  std::vector<Shape> shapes;
  for (const std::string& text : arguments.shapes)
    shapes.push_back(settled(parse_shape(text), arguments.windows, arguments.chunk));
  std::vector<DType> dtypes;
  for (const std::string& name : arguments.dtypes) dtypes.push_back(dtype_from(name));
  std::vector<Item> items;
  for (const std::string& operation : arguments.operations)
    for (const Shape& shape : operation == "attention" ? with_pages(shapes, arguments.page_sizes) : shapes)
      for (const DType dtype : dtypes)
        for (Item& item : items_of(operation, shape, dtype)) items.push_back(std::move(item));
  const OutputFile json(arguments.json);

  const std::string name = "cuda:" + std::to_string(arguments.device);
  const auto devices = list_backends();
  if (!devices.back().available) throw BackendUnavailable("backend cuda is unavailable: " + devices.back().detail);
  const WorkStream stream(arguments.device);
  BackendOptions options;
  options.stream = stream.get();
  options.deterministic = arguments.deterministic;
  const auto backend = make_backend(name, options);
  print("dsalt " DSALT_VERSION_STRING ", " + name + ": " + backend->description() + "\n");

  Json file = {{"schema", "dsalt-gpu-bench"},           {"version", 1},
               {"dsalt", DSALT_VERSION_STRING},         {"backend", name},
               {"description", backend->description()}, {"command", command}};
  file["rows"] = Json::array();
  bool measured = false;
  for (const Item& item : items) {
    file["rows"].push_back(measure(*backend, stream, item, arguments));
    measured |= file["rows"].back()["skipped"].is_null();
    print(line_of(file["rows"].back()));
  }
  if (json.wanted()) json.write(file.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
  if (measured) return success;
  note("nothing was measured: every row was skipped");
  return check_failed;
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  Arguments arguments;
  CLI::App app(
      "Times the CUDA backend's operations in CUDA graphs of many calls: what the device needs, without what it costs "
      "to start work from the host (`eager`: with it). Attention is also compared with the definition in double on "
      "some "
      "rows.",
      "dsalt-gpu-bench");
  const auto several = [&](const char* option, std::vector<std::string>& values, const char* help, const char* type) {
    return app.add_option(option, values, help)->type_name(type)->expected(1)->take_all();
  };
  several("--operation", arguments.operations,
          "attention, attention_backward, merge, rmsnorm, ...: those of `dsalt bench --list`; or selection: energies "
          "and select_landmarks one after the other, as a share of attention's forward pass; repeatable (default: "
          "attention)",
          "OP");
  several("--shape", arguments.shapes, "as `dsalt bench --shape`; repeatable", "S")->required();
  several("--dtype", arguments.dtypes, "f32, bf16, f16 or f64; repeatable (default: bf16)", "T");
  app.add_option("--windows", arguments.windows, "constant, uniform or bimodal")->type_name("W");
  app.add_option("--chunk", arguments.chunk, "rows per landmark list; 0: one list")
      ->type_name("C")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24).description(""));
  app.add_option("--page-size", arguments.page_sizes,
                 "attention also with a KV cache in pages of so many keys, in an order that looks random; repeatable")
      ->type_name("P")
      ->expected(1)
      ->take_all()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24).description(""));
  app.add_option("--rows", arguments.rows, "rows of attention to compare with the definition; 0: none")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 20).description(""));
  app.add_option("--device", arguments.device, "number of the GPU")
      ->type_name("N")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024).description(""));
  app.add_option("--min-time", arguments.min_time, "seconds of timed work per row, twice")
      ->type_name("S")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 3600.0).description(""));
  app.add_flag("--deterministic", arguments.deterministic, "the backend's deterministic mode");
  app.add_option("--json", arguments.json, "write one JSON object per row")->type_name("FILE");
  app.footer(
      "Examples:\n"
      "  dsalt-gpu-bench --shape 2,16,8192,128,causal\n"
      "  dsalt-gpu-bench --operation attention --operation attention_backward --shape 4,32,51x1024,64,full\n"
      "  dsalt-gpu-bench --operation rmsnorm --shape 1,32,16384,128,full --json rmsnorm.json\n"
      "  dsalt-gpu-bench --operation selection --shape 1,16,16384,128,512,64 --chunk 1024\n"
      "\n"
      "Exit codes: those of `dsalt` (docs/command.md).");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    print(app.help());
    return success;
  } catch (const CLI::ParseError& error) {
    note(std::string(error.what()) + " (see dsalt-gpu-bench --help)");
    return bad_usage;
  }
  return run_guarded([&] { return run(arguments, quoted_command(argc, argv)); });
}
